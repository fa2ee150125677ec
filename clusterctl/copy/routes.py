"""How each node reaches the source on this machine: directly, or through its SSH connection."""

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

# What a tunnel that cannot be opened counts as: long enough to be tried again.
CUT_FOR_S = 60.0
# Kinds of `Lost` after which a node gets a tunnel through its SSH connection.
_BLOCKED = ("refused", "silent", "closed", "denied")


class Routes:
    """Completes orders to pull from the source with an address that the node can reach.

    `first` is the node whose SSH connection came first. The source listens on its local address.
    """

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
        self._worked: set[str] = set()  # nodes that have had a direct connection
        # The number of each node's latest order, so that a tunnel that opens late does not send an
        # outdated one.
        self._latest: dict[str, int] = {}
        self._lock = threading.Lock()

    def source_listens(self, event: Listening) -> None:
        """Record the address and port on which the source listens."""
        self._address, self._port = event.address, event.port
        self._tunnels = ReverseTunnels(self._connections, self._address, self._port)

    def lost(self, node: str, event: Lost) -> None:
        """Record that a node has no connection to the source.

        If there never was one, its next order leads through SSH.
        """
        if event.worked:
            self._worked.add(node)
        if event.kind in _BLOCKED and node not in self._worked:
            self._through_ssh.add(node)

    def forget(self, node: str) -> None:
        """Cancel an order for this node that still waits for its tunnel."""
        with self._lock:
            self._latest[node] = self._latest.get(node, 0) + 1

    def give(self, target: Target, client_address: str, order: PullFrom) -> None:
        """Send an order to pull from the source, with the address at which the node reaches it.

        `client_address` is this machine's address as the node sees it.
        """
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
        """Return whether the node can connect directly.

        It can if it sees this machine at the machine's own address, which means that there is no
        NAT in between, and has not failed to connect before.
        """
        return client_address == self._address and target.host not in self._through_ssh

    def _give_through_ssh(self, target: Target, order: PullFrom, latest: int) -> None:
        # This runs on a thread of its own: a node that hangs would hold up all others.
        assert self._tunnels
        try:
            address, port = self._tunnels.open(target)
        except ClusterctlError as error:
            self._inbox.put(target.host, Lost(SOURCE, error.message, "closed", CUT_FOR_S))
            return
        with self._lock:
            if self._latest[target.host] == latest:
                self._relays[target.host].give(order._replace(address=address, port=port))

    def close(self) -> None:
        """Close all tunnels."""
        if self._tunnels:
            self._tunnels.close()


def own_address(connections: Connections, target: Target) -> str:
    """Return this machine's address on the SSH connection to a node, or the loopback address.

    Behind a jump host or a proxy command there is no address that the node could connect to.
    """
    transport = connections.session(target).client.get_transport()
    try:
        address = str(transport.sock.getsockname()[0])  # type: ignore[union-attr]
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.bind((address, 0))
    except (OSError, AttributeError, TypeError, IndexError):
        # bind() fails, too, if the socket was passed on from another network and has an address
        # that this machine has not.
        return HERE
    return address
