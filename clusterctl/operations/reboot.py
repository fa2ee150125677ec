"""`reboot`: reboot nodes, one after another, and check that each comes back as it was.

As it was means: the same file systems are mounted, cloud-init has not failed, and there are as many
GPUs as the type has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Optional

from clusterctl.domain.errors import (
    CommandFailed,
    CommandTimeout,
    ConnectionLost,
    HostUnreachable,
    KeyRefused,
)
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.results import CommandResult, FanoutResult, HostOutcome, last_line
from clusterctl.domain.units import count, format_duration
from clusterctl.node.facts.disks import PSEUDO, Mounted, mounted
from clusterctl.node.facts.gpus import gpus
from clusterctl.node.facts.report import FactReading, FactReport
from clusterctl.node.facts.system import cloud_init, system
from clusterctl.operations.logs import refuse_while_training
from clusterctl.transport.call import read_report
from clusterctl.transport.fanout import fan_out

if TYPE_CHECKING:
    from clusterctl.operations.access import Access
    from clusterctl.transport.call import RunsCommands
    from clusterctl.transport.connections import Connections
    from clusterctl.transport.dial import Target

# Mounts below these come and go with sessions, packages and containers.
_PASSING = ("/proc", "/sys", "/dev", "/run", "/snap", "/var/lib/docker", "/var/lib/containers")


@dataclass(frozen=True)
class BootState:
    """The state of a node in one boot.

    `mounts` are by mount point. `gpus` is the number that nvidia-smi reports, or the reading that
    failed: then it is not known. `cloud_init` is the
    exit status of `cloud-init status`: 0 done, 1 failed, 2 done with recoverable errors; None
    without cloud-init.
    """

    boot_id: str
    mounts: Mapping[str, Mounted] = field(default_factory=dict)
    gpus: int | FactReading = 0
    cloud_init: int | None = None


def state_of(report: FactReport) -> BootState:
    """Return the state in a report. Raises CommandFailed if it lacks anything but the GPUs."""
    found, mounts = report.get(system), report.get(mounted)
    for reading in report.failed(system, mounted, cloud_init):
        raise CommandFailed(report.host, f"cannot read its {reading.label}: {reading.error}")
    if not found or not found.boot_id or mounts is None:
        raise CommandFailed(report.host, "cannot read its boot id and mounts")
    cards = report.get(gpus)
    unread = next(iter(report.failed(gpus)), None)
    return BootState(
        found.boot_id,
        {one.path: one for one in mounts if _is_kept(one)},
        unread or (len(cards.gpus) if cards else 0),
        report.get(cloud_init),
    )


def _is_kept(one: Mounted) -> bool:
    passing = any(one.path == path or one.path.startswith(f"{path}/") for path in _PASSING)
    return one.kind not in PSEUDO and not passing


def differences(before: BootState, after: BootState, gpus: int) -> list[str]:
    """Return what is not as it was before the reboot, in words; empty if all is.

    `gpus` is the number of GPUs of the node's type. If it is 0, for an unknown type, the GPUs from
    before the reboot are expected. Without any, nvidia-smi may fail now if it failed then: it does
    so on a machine that has it, but no GPU.
    """
    reported = [
        f"{where} ({was.source}) is not mounted again"
        for where, was in before.mounts.items()
        if where not in after.mounts
    ]
    reported += [
        f"{where} is {after.mounts[where].source} now, not {was.source}"
        for where, was in before.mounts.items()
        if where in after.mounts and not _same(was, after.mounts[where])
    ]
    wanted = gpus or (0 if isinstance(before.gpus, FactReading) else before.gpus)
    if isinstance(after.gpus, FactReading):
        if wanted or after.gpus.timed_out or not isinstance(before.gpus, FactReading):
            reported.append(f"how many GPUs it has is not known: {after.gpus.error}")
    elif after.gpus < wanted:
        reported.append(f"nvidia-smi sees {after.gpus} of {count(wanted, 'GPU')}")
    if after.cloud_init not in (None, 0, 2) and before.cloud_init in (None, 0, 2):
        reported.append(f"cloud-init failed (exit status {after.cloud_init})")
    return reported


def _same(was: Mounted, now: Mounted) -> bool:
    # Linux renumbers disks at each boot: /dev/nvme1n1 may become /dev/nvme2n1.
    disks = was.source.startswith("/dev/") and now.source.startswith("/dev/")
    return was.kind == now.kind and (disks or was.source == now.source)


# Reboots half a second after it has returned, so that its exit status arrives before the connection
# is lost.
REBOOT = (
    "sudo -n true && { setsid sudo -n sh -c 'sleep 0.5; systemctl reboot || reboot'"
    " </dev/null >/dev/null 2>&1 & }"
)
COMMAND_TIMEOUT_S = 20.0
PROBE_TIMEOUT_S = 60.0
# A booting node may drop packets, so a short timeout and another try are faster.
CONNECT_TIMEOUT_S = 5.0
POLL_S = 0.5
DEFAULT_TIMEOUT_S = 600.0
# The errors of a node that is not back yet. All but the first come from hosts that shut down or
# boot: they may kill a command, which then fails or prints half of its output.
NOT_YET = (HostUnreachable, ConnectionLost, CommandTimeout, KeyRefused, CommandFailed)


class NotBack(CommandFailed):
    """The node did not come back in time, or never went down."""


class NotAsItWas(CommandFailed):
    """The node is back, but something that it had is missing or has failed."""


class NotTouched(CommandFailed):
    """The node was not rebooted, because an earlier one is not back as it was."""


@dataclass(frozen=True)
class Rebooted:
    """A node that was rebooted.

    `back_after_s` is the time from the command until the node was back as it was; None if that was
    not waited for.
    """

    host: str
    back_after_s: Optional[float] = None


@dataclass(frozen=True)
class RollingReboot:
    """How rebooted nodes are waited for: `at_once` are rebooted at a time (None: all), and each may
    take `timeout_s` to be back as it was."""

    at_once: int | None = 1
    timeout_s: float = DEFAULT_TIMEOUT_S


# Called with a host's name when its reboot is requested.
Sent = Callable[[str], None]


def reboot(
    access: Access,
    indices: Sequence[int] | None = None,
    *,
    rolling: RollingReboot | None = RollingReboot(),
    force: bool = False,
    on_sent: Sent = lambda host: None,
    on_outcome: Callable[[HostOutcome[Rebooted]], None] = lambda outcome: None,
) -> FanoutResult[Rebooted]:
    """Reboot these nodes, or all in service for None. Return one outcome per node, in that order.

    The head node comes last. The next nodes are rebooted when those before are back as they were.
    After one that is not, the rest gets NotTouched. A node that could not be sent the command does
    not stop the others. Without `rolling`, all are rebooted at the same time. `on_sent` is called
    with a host as its reboot is requested, `on_outcome` with each outcome.

    Raises UsageError for an unknown index. Unless `force` is given, raises JobRunning while a job
    runs, and HostError if the head node cannot be queried for jobs.
    """
    targets = access.select(indices)
    if not force:
        refuse_while_training(access, "a reboot ends it", targets)
    done: dict[str, HostOutcome[Rebooted]] = {}
    reported: set[str] = set()

    def note(outcome: HostOutcome[Rebooted]) -> None:
        done[outcome.host] = outcome
        on_outcome(outcome)

    def one(target: Target) -> Rebooted:
        sent = _send(access, target, on_sent)
        reported.add(target.host)
        return _wait(access, sent, rolling.timeout_s) if rolling else Rebooted(target.host)

    for batch in batches(targets, access.head, rolling.at_once if rolling else None):
        fan_out(one, batch, max_workers=len(batch), on_outcome=note)
        late = [host for host in done if host in reported and done[host].error]
        if late:
            for target in targets:
                if target.host not in done:
                    note(HostOutcome(target.host, error=_not_touched(target.host, late)))
            break
    return FanoutResult(tuple(done[target.host] for target in targets))


def batches(
    targets: Sequence[Target], head: Target, at_once: int | None
) -> Iterator[Sequence[Target]]:
    """Yield the nodes to reboot together, at most `at_once`; the head node is in the last batch."""
    workers = [target for target in targets if target != head]
    heads = [target for target in targets if target == head]
    # Nodes behind the head node cannot be reached while it reboots, so it gets a batch of its own.
    apart = any(target.jump for target in workers)
    for group in (workers, heads) if apart else ([*workers, *heads],):
        size = at_once or max(len(group), 1)
        for first in range(0, len(group), size):
            yield group[first : first + size]


def _not_touched(host: str, late: Sequence[str]) -> NotTouched:
    return NotTouched(
        host,
        f"not rebooted, since {fold_hosts(late)} is not back as it was",
        "see what is wrong there first; then reboot the rest by their indices",
    )


@dataclass(frozen=True)
class _Sent:
    """A reboot that was requested at `at`, a time of the access's monotonic clock.

    `before` is the state from before it, which must come back with another boot id.
    """

    target: Target
    before: BootState
    at: float

    @property
    def host(self) -> str:
        return self.target.host


def _send(access: Access, target: Target, on_sent: Sent) -> _Sent:
    """Record a node's state and reboot it. Raises CommandFailed if it refuses, HostError."""
    connections = access.connections
    before = _state(connections, target, wait=False, timeout_s=PROBE_TIMEOUT_S)
    at = access.timeouts.clock.monotonic()
    on_sent(target.host)
    try:
        result = connections.run(target, REBOOT, timeout_s=COMMAND_TIMEOUT_S)
    except (ConnectionLost, CommandTimeout):
        # The node went down before the command's result arrived.
        result = None
    if result is not None and not result.ok:
        raise CommandFailed(target.host, f"refused to reboot: {last_line(result.stderr)}")
    connections.forget(target)
    return _Sent(target, before, at)


def _wait(access: Access, sent: _Sent, timeout_s: float) -> Rebooted:
    """Wait until the node is back as it was.

    Raises NotBack with the last error at the deadline, and NotAsItWas if something is still missing
    `restored_s` after the node is back.
    """
    timeouts, clock = access.timeouts, access.timeouts.clock
    deadline = sent.at + timeout_s
    found = "it is still up: it never went down"
    stable_by = None
    fresh = _NewConnections(access.connections)
    promised = {node.name: node.gpus for node in access.cluster.nodes}.get(sent.host, 0)
    while clock.monotonic() < deadline:
        try:
            left_s = max(1.0, deadline - clock.monotonic())
            after = _state(fresh, sent.target, wait=True, timeout_s=left_s)
            if after.boot_id != sent.before.boot_id:
                stable_by = stable_by or min(deadline, clock.monotonic() + timeouts.restored_s)
                lacks = differences(sent.before, after, promised)
                if not lacks:
                    return Rebooted(sent.host, clock.monotonic() - sent.at)
                found = f"not as it was: {'; '.join(lacks)}"
                if clock.monotonic() > stable_by:
                    break
        except NOT_YET as error:
            found = error.message
        clock.sleep(POLL_S)
    name = access.cluster.name
    if stable_by:
        raise NotAsItWas(
            sent.host,
            f"back, but {found}",
            f"log in and check: clusterctl ssh {name} {sent.host.rpartition('-')[2]}",
        )
    raise NotBack(
        sent.host,
        f"not back within {format_duration(timeout_s)}: {found}",
        f"see `clusterctl status {name}`, or wait longer: --timeout 20m",
    )


def _state(connections: RunsCommands, target: Target, wait: bool, timeout_s: float) -> BootState:
    """Read a node's state. With `wait`, cloud-init has ended. Raise HostError."""
    facts = (system, mounted, gpus, partial(cloud_init, wait=wait))
    return state_of(read_report(connections, target, facts, "looking at it", timeout_s))


@dataclass(frozen=True)
class _NewConnections:
    """Makes a new connection for each command: a kept one may belong to the boot that is ending."""

    connections: Connections

    def run(
        self, target: Target, command: str, *, timeout_s: float | None, stdin: bytes
    ) -> CommandResult:
        session = self.connections.open_another(target, CONNECT_TIMEOUT_S)
        try:
            return session.run(command, timeout_s=timeout_s, stdin=stdin)
        finally:
            session.close()
