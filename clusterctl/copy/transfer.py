"""Runs a copy: starts relays on the nodes and at the source, and makes their ways to each other.

Passes their events to the coordinator, and its orders to them.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import functools
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clusterctl.copy.coordinator import Coordinator
from clusterctl.copy.failures import AGAIN, out_of_time, with_unquoted_home
from clusterctl.copy.plan import CopyPlan, SourceSummary
from clusterctl.copy.report import CopyProgress, TransferReport, progress_of, report_of
from clusterctl.copy.request import CopyRequest
from clusterctl.copy.session import (
    Ended,
    Inbox,
    LocalRelay,
    LoggedIn,
    Logins,
    RelaySession,
    RemoteRelay,
)
from clusterctl.copy.topology import SOURCE, CopyTimeouts
from clusterctl.domain.errors import ClusterctlError, CommandFailed, NotFound, UsageError
from clusterctl.node.packer import program_of
from clusterctl.node.relay.messages import (
    Event,
    Listen,
    Listening,
    Lost,
    Order,
    Ping,
    PullFrom,
    Stop,
)
from clusterctl.transport.connections import Connections
from clusterctl.transport.dial import Target
from clusterctl.transport.reverse_tunnels import HERE, ForwardTunnel, ReverseTunnels

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
        self._tunnels = ReverseTunnels(connections, self._address, self._port)
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


# Seconds between turns if no event comes, between calls of `watch`, and between pings.
TICK_S = 0.1
WATCH_S = 0.25
PING_S = 2.0
# Seconds that relays may take to release their destination: after the copy, and after Ctrl-C.
STOP_WITHIN_S = 10.0
INTERRUPTED_WITHIN_S = 3.0

Planner = Callable[[SourceSummary, Sequence[str]], CopyPlan]


@dataclass(frozen=True)
class Transfer:
    """One copy. `source` is the node that has the source files; None means this machine.

    `to_here`: it is a copy from a node to this machine, the only one of `targets`.

    `slowest_link` returns the rate of the slowest link in bytes per second, for the progress; it is
    called only after planning. `predict` takes a plan, a number of files and a number of bytes,
    and returns the plan with the time that these will take. `watch` is called with each progress.
    """

    connections: Connections
    targets: Sequence[Target]
    request: CopyRequest
    plan: Planner
    source: Target | None = None
    to_here: bool = False
    slowest_link: Callable[[], float | None] = lambda: None
    predict: Callable[[CopyPlan, int, int], CopyPlan] | None = None
    max_logins: int = 64
    timeout_s: float | None = None
    timeouts: CopyTimeouts | None = None
    watch: Callable[[CopyProgress], None] = field(default=lambda progress: None)

    @property
    def node_paths(self) -> tuple[str, ...]:
        """The paths on nodes that the user may have written."""
        if self.to_here:
            return ()  # a fetch, which finds them itself
        return (self.request.destination, *(self.request.sources if self.source else ()))

    def run(self) -> TransferReport:
        """Run the copy to its end. Raises UsageError if there is nothing at the source here,
        NotFound if there is nothing on the node.

        A KeyboardInterrupt is raised again after all relays have ended. Data that has come is
        kept, and the same copy goes on from there.
        """
        return _Run(self).run()


class _Run:
    """The state of a transfer that is under way."""

    def __init__(self, transfer: Transfer) -> None:
        self._transfer = transfer
        self._planned: CopyPlan | None = None
        self._coordinator = Coordinator(
            [target.host for target in transfer.targets],
            self._plan,
            dry_run=transfer.request.dry_run,
            timeouts=transfer.timeouts,
        )
        self._inbox = Inbox()
        self._logins = Logins(transfer.connections, transfer.max_logins)
        self._program = program_of("clusterctl.node.relay.relay")
        self._relays: dict[str, RelaySession] = {}
        self._targets = {target.host: target for target in transfer.targets}
        self._routes: Routes | None = None
        self._tunnel: ForwardTunnel | None = None
        self._began = time.monotonic()
        self._watched_at = self._pinged_at = 0.0
        self._common = common_config(transfer.request)

    def run(self) -> TransferReport:
        """See `Transfer.run`."""
        try:
            self._start()
            self._go_on()
            self._wait(STOP_WITHIN_S)
        except KeyboardInterrupt:
            self._stop_all()
            self._wait(INTERRUPTED_WITHIN_S)
            raise
        finally:
            self._end_all()
        self._watch(always=True)
        report = report_of(self._coordinator, time.monotonic() - self._began, self._plan_data)
        paths = self._transfer.node_paths
        for error in filter(None, (report.error, *(node.error for node in report.nodes))):
            error.hint = with_unquoted_home(error.hint, error.message, paths)
        if isinstance(report.error, UsageError) and report.source is None:
            # Here nothing was asked of a node yet.
            nothing = UsageError if self._transfer.source is None else NotFound
            raise nothing(report.error.message, report.error.hint)
        return report

    # Start

    def _start(self) -> None:
        transfer = self._transfer
        if transfer.source is None:
            config = {**self._common, **source_config(transfer.request)}
            config.update(node=SOURCE, base=str(Path.cwd()), later=True)
            self._relays[SOURCE] = LocalRelay(SOURCE, self._inbox, self._program, config)
        else:
            config = source_config(transfer.request)
            if transfer.source in transfer.targets:
                # The node runs a target relay, too, which listens on the port of --port.
                config["port"] = 0
            self._start_on(SOURCE, transfer.source, config)
        for target in transfer.targets:
            config = target_config(transfer.request)
            if transfer.to_here:
                config = {**self._common, **config, "node": target.host, "bind": HERE}
                self._relays[target.host] = LocalRelay(
                    target.host, self._inbox, self._program, config
                )
                continue
            self._start_on(target.host, target, config)

    def _start_on(self, name: str, target: Target, config: Mapping[str, Any]) -> None:
        self._relays[name] = RemoteRelay(
            *(name, target, self._logins, self._inbox, self._program),
            {**self._common, "node": target.host, **config},
        )

    def _start_source_here(self, node: str) -> None:
        """Make the source listen on this machine's end of the first SSH connection."""
        relay = self._relays[SOURCE]
        if self._routes is not None or not isinstance(relay, LocalRelay):
            return
        self._routes = Routes(
            self._transfer.connections, self._targets[node], self._relays, self._inbox
        )
        relay.give(Listen(self._routes.own_address))

    def _plan(self, summary: SourceSummary, there: Sequence[str]) -> CopyPlan:
        self._planned = self._transfer.plan(summary, there)
        return self._planned

    @property
    def _plan_data(self) -> dict[str, Any]:
        """The plan as data, with the time for the largest gap that nodes have reported."""
        if not self._planned:
            return {}
        gaps = [peer.gap for peer in self._coordinator.targets if peer.gap]
        planned, predict = self._planned, self._transfer.predict
        if gaps and predict:
            files, size = max(gap.files for gap in gaps), max(gap.bytes for gap in gaps)
            planned = predict(planned, files, size)
        return planned.as_data()

    # One turn

    def _go_on(self) -> None:
        """Run turns until the copy is over. A bug here fails the targets that are not done."""
        while not self._coordinator.stopped:
            try:
                self._turn()
            except ClusterctlError:
                raise
            except Exception as bug:  # noqa: BLE001
                self._stop_all()
                why = f"clusterctl cannot go on with it: {type(bug).__name__}: {bug}"
                self._coordinator.give_up(functools.partial(CommandFailed, message=why, hint=AGAIN))
                break

    def _turn(self) -> None:
        for node, updates in self._inbox.take(TICK_S):
            now = time.monotonic()
            if isinstance(updates, LoggedIn):
                self._logged_in(node, now)
            elif isinstance(updates, Ended):
                self._coordinator.ended(now, node, updates.error)
            else:
                self._handle(node, updates, now)
        now = time.monotonic()
        limit = self._transfer.timeout_s
        if limit is not None and now - self._began > limit:
            self._coordinator.give_up(lambda host: out_of_time(host, limit))
        for node, order in self._coordinator.tick(now):
            self._handle_order(node, order)
        if now - self._pinged_at >= PING_S:
            self._pinged_at = now
            for relay in self._relays.values():
                relay.give(Ping())
        self._watch()

    def _logged_in(self, node: str, now: float) -> None:
        self._coordinator.started(now, node)
        if node != SOURCE:
            self._start_source_here(node)

    def _handle(self, node: str, event: Event, now: float) -> None:
        if self._routes:
            if node == SOURCE and isinstance(event, Listening):
                self._routes.source_listens(event)
            elif isinstance(event, Lost) and event.upstream == SOURCE:
                self._routes.lost(node, event)
        self._coordinator.handle_event(now, node, event)

    def _handle_order(self, node: str, order: Order) -> None:
        relay = self._relays[node]
        source = self._transfer.source if self._transfer.to_here else None
        if source and isinstance(order, PullFrom) and order.name:
            order = order._replace(address=HERE, port=self._tunnel_to(source, order).port)
        if not self._routes or not isinstance(order, PullFrom):
            relay.give(order)
        elif order.name == SOURCE:
            client_address = self._coordinator.net.peers[node].at.client_address
            self._routes.give(self._targets[node], client_address, order)
        else:
            self._routes.forget(node)
            relay.give(order)

    def _tunnel_to(self, source: Target, order: PullFrom) -> ForwardTunnel:
        """Return the tunnel from this machine to the source's relay; open it the first time."""
        if self._tunnel is None:
            where = (order.address, order.port)
            self._tunnel = ForwardTunnel(self._transfer.connections, source, *where)
        return self._tunnel

    def _watch(self, always: bool = False) -> None:
        now = time.monotonic()
        if always or now - self._watched_at >= WATCH_S:
            self._watched_at = now
            self._transfer.watch(
                progress_of(
                    self._coordinator,
                    now - self._began,
                    self._transfer.slowest_link() if self._planned else None,
                    self._plan_data,
                )
            )

    # End

    def _stop_all(self) -> None:
        for relay in self._relays.values():
            with contextlib.suppress(ClusterctlError):
                relay.give(Stop())

    def _wait(self, limit_s: float) -> None:
        """Wait until all relays that still answer have ended, at most `limit_s` seconds."""
        deadline = time.monotonic() + limit_s
        peers = self._coordinator.net.peers
        for name, relay in self._relays.items():
            left = deadline - time.monotonic()
            # A relay that failed because it was silent will not handle Stop either.
            relay.join(max(0.0, left if peers[name].alive else min(left, 0.5)))

    def _end_all(self) -> None:
        for relay in self._relays.values():
            relay.end()
        if self._routes:
            self._routes.close()
        if self._tunnel:
            self._tunnel.close()


# How long the certificate is valid before and after now: the clocks of nodes may be wrong.
VALID = datetime.timedelta(days=7)


def common_config(request: CopyRequest) -> dict[str, Any]:
    """Return the part of a relay's configuration that all relays of one copy share.

    A relay receives it first on its standard input. The new secret and, with --encrypt, the
    certificate and its key are never written to a file or a command line.
    """
    return {
        "secret": secrets.token_hex(32),
        "tls": {"pem": ephemeral_pem()} if request.encrypt else None,
        "port": request.port,
        "checksum": request.checksum,
    }


def source_config(request: CopyRequest) -> dict[str, Any]:
    """Return the configuration's part for the relay at the source."""
    names = request.names
    return {
        "role": "source",
        "sources": list(request.sources),
        "names_b64": None if names is None else [base64.b64encode(n).decode() for n in names],
        "delete_in": request.destination if request.delete else None,
    }


def target_config(request: CopyRequest) -> dict[str, Any]:
    """Return the configuration's part for the relay of a node that gets the data."""
    return {
        "role": "target",
        "destination": request.destination,
        "delete": request.delete,
        "dry_run": request.dry_run,
        "several": len(request.sources) > 1,
    }


def ephemeral_pem() -> str:
    """Return a new certificate and its key as PEM. All relays of one copy share them."""
    # Imported here, so that the command line starts without it.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "clusterctl copy")])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - VALID)
        .not_valid_after(now + VALID)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return (certificate.public_bytes(serialization.Encoding.PEM) + private).decode()
