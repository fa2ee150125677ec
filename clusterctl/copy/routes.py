"""How each node gets to the source on this machine: directly, or through its SSH connection."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping

from clusterctl.copy.session import Inbox, RelaySession
from clusterctl.copy.topology import SOURCE
from clusterctl.domain.errors import ClusterctlError
from clusterctl.node.relay.messages import Listening, Lost, PullFrom
from clusterctl.transport.connections import Connections
from clusterctl.transport.reverse_tunnels import HERE, ReverseTunnels
from clusterctl.transport.target import Target

_BLOCKED = ("refused", "silent", "closed", "denied")


class Routes:
    """Fills in the source's address in orders. `first` is the node whose connection came first."""

    def __init__(
        self,
        connections: Connections,
        first: Target,
        relays: Mapping[str, RelaySession],
        inbox: Inbox,
    ) -> None:
        self.own_address = own_address(connections, first)
        self._connections, self._relays, self._inbox = connections, relays, inbox
        self._address, self._port = self.own_address, 0
        self._tunnels: ReverseTunnels | None = None
        self._through_ssh: set[str] = set()
        # The number of each node's latest order: a tunnel that opens late is not for an older one.
        self._latest: dict[str, int] = {}
        self._lock = threading.Lock()

    def source_listens(self, told: Listening) -> None:
        self._address, self._port = told.address, told.port
        self._tunnels = ReverseTunnels(self._connections, self._address, self._port)

    def lost(self, node: str, kind: str) -> None:
        """The node gets no connection to the source: the next order leads through SSH."""
        if kind in _BLOCKED:
            self._through_ssh.add(node)

    def forget(self, node: str) -> None:
        """The node is to pull from another one now."""
        with self._lock:
            self._latest[node] = self._latest.get(node, 0) + 1

    def give(self, target: Target, client_address: str, order: PullFrom) -> None:
        """Send an order that names the source, with the address at which this node finds it."""
        self.forget(target.host)
        if self._is_direct(target, client_address):
            order = order._replace(address=self._address, port=self._port)
            self._relays[target.host].give(order)
            return
        latest = self._latest[target.host]
        threading.Thread(
            target=self._give_through_ssh, args=(target, order, latest), daemon=True
        ).start()

    def _is_direct(self, target: Target, client_address: str) -> bool:
        """Whether the node sees this machine at the address that it has here: no NAT between."""
        return client_address == self._address and target.host not in self._through_ssh

    def _give_through_ssh(self, target: Target, order: PullFrom, latest: int) -> None:
        # On a thread of its own: the answer of a node that hangs would hold up all others.
        assert self._tunnels
        try:
            address, port = self._tunnels.open(target)
        except ClusterctlError as error:
            self._inbox.put(target.host, Lost(SOURCE, error.message, "closed"))
            return
        with self._lock:
            if self._latest[target.host] == latest:
                self._relays[target.host].give(order._replace(address=address, port=port))

    def close(self) -> None:
        if self._tunnels:
            self._tunnels.close()


def own_address(connections: Connections, target: Target) -> str:
    """The address of this machine on the SSH connection to a node, or of loopback.

    Behind a jump host, or a proxy command, there is none that the node could connect to.
    """
    transport = connections.session(target).client.get_transport()
    try:
        address = str(transport.sock.getsockname()[0])  # type: ignore[union-attr]
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.bind((address, 0))
    except (OSError, AttributeError, TypeError, IndexError):
        # Also an address that a socket passed on from another network has.
        return HERE
    return address
