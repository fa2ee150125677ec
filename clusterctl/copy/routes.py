"""How each node gets to the source on this machine: directly, or through its SSH connection."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Protocol

from clusterctl.copy.doorway import Doorways, own_address
from clusterctl.copy.lines import Inbox
from clusterctl.copy.member import SOURCE, number, text
from clusterctl.domain.errors import ClusterctlError
from clusterctl.transport.connections import Connections
from clusterctl.transport.target import Target

_BLOCKED = ("refused", "silent", "closed", "denied")


class Told(Protocol):
    """What takes orders."""

    def give(self, order: Mapping[str, Any]) -> None: ...


class Routes:
    """Fills in the source's address in orders. `first` is the node whose connection came first."""

    def __init__(
        self,
        connections: Connections,
        first: Target,
        relays: Mapping[str, Told],
        inbox: Inbox,
    ) -> None:
        self.own_address = own_address(connections, first)
        self._connections, self._relays, self._inbox = connections, relays, inbox
        self._address, self._port = self.own_address, 0
        self._doorways: Doorways | None = None
        self._through_ssh: set[str] = set()
        # The number of each node's latest order: a doorway that opens late is not for an older one.
        self._latest: dict[str, int] = {}
        self._lock = threading.Lock()

    def source_listens(self, event: Mapping[str, Any]) -> None:
        """Take the source's `listening` event."""
        self._address, self._port = text(event, "address"), number(event, "port")
        self._doorways = Doorways(self._connections, self._address, self._port)

    def lost(self, node: str, kind: str) -> None:
        """The node gets no connection to the source: the next order leads through SSH."""
        if kind in _BLOCKED:
            self._through_ssh.add(node)

    def forget(self, node: str) -> None:
        """The node is to pull from another one now."""
        with self._lock:
            self._latest[node] = self._latest.get(node, 0) + 1

    def give(self, target: Target, client_address: str, order: Mapping[str, Any]) -> None:
        """Send an order that names the source, with the address at which this node finds it."""
        self.forget(target.host)
        if self._is_direct(target, client_address):
            there = {"address": self._address, "port": self._port}
            self._relays[target.host].give({**order, **there})
            return
        latest = self._latest[target.host]
        threading.Thread(
            target=self._give_through_ssh, args=(target, dict(order), latest), daemon=True
        ).start()

    def _is_direct(self, target: Target, client_address: str) -> bool:
        """Whether the node sees this machine at the address that it has here: no NAT between."""
        return client_address == self._address and target.host not in self._through_ssh

    def _give_through_ssh(self, target: Target, order: dict[str, Any], latest: int) -> None:
        # On a thread of its own: the answer of a node that hangs would hold up all others.
        assert self._doorways
        try:
            address, port = self._doorways.open(target)
        except ClusterctlError as error:
            self._inbox.put(
                target.host,
                {"event": "lost", "upstream": SOURCE, "kind": "closed", "why": error.message},
            )
            return
        with self._lock:
            if self._latest[target.host] == latest:
                self._relays[target.host].give({**order, "address": address, "port": port})

    def close(self) -> None:
        if self._doorways:
            self._doorways.close()
