"""Reboot nodes and see them come back: another boot id, and SSH that answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.domain.errors import (
    ClusterctlError,
    CommandFailed,
    CommandTimeout,
    ConnectionLost,
    HostUnreachable,
    KeyRefused,
)
from clusterctl.domain.results import FanoutResult, HostOutcome
from clusterctl.domain.units import format_duration
from clusterctl.operations.logs import refuse_while_training
from clusterctl.transport.fanout import fan_out

if TYPE_CHECKING:
    from clusterctl.operations.access import Access
    from clusterctl.transport.target import Target

BOOT_ID = "cat /proc/sys/kernel/random/boot_id"
# sudo of a locked-down image may know only one of the two.
REBOOT = "sudo -n systemctl reboot 2>/dev/null || sudo -n reboot"
COMMAND_TIMEOUT_S = 20.0
POLL_S = 0.5
DEFAULT_TIMEOUT_S = 600.0
# Not back yet: the last three are what a host says while it goes down or comes up.
NOT_YET = (HostUnreachable, ConnectionLost, CommandTimeout, KeyRefused)


class NotBack(CommandFailed):
    """The node did not come back in time, or never went."""


@dataclass(frozen=True)
class Rebooted:
    """A node that was told to reboot; `back_after_s` is None where nobody waited for it."""

    host: str
    back_after_s: float | None = None


@dataclass(frozen=True)
class _Sent:
    """The command is out: `boot_id` is what must change."""

    host: str
    target: Target
    boot_id: str
    at: float


def reboot(
    access: Access,
    indices: Sequence[int] | None = None,
    *,
    wait: bool = True,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    force: bool = False,
    on_outcome: Callable[[HostOutcome[Rebooted]], None] = lambda outcome: None,
) -> FanoutResult[Rebooted]:
    """Reboot these nodes or all, the head node last. One outcome per node, in their order.

    Raises UsageError, JobRunning unless `force`, HostError of a head node that cannot be asked.
    """
    targets = access.select(indices)
    if not force:
        refuse_while_training(access, "a reboot ends it")
    head = access.head
    workers = [target for target in targets if target != head]
    sent = fan_out(lambda target: _send(access, target), workers)
    if head in targets:
        last = fan_out(lambda target: _send(access, target), [head])
        sent = FanoutResult((*sent.outcomes, *last.outcomes))
    return _outcomes(access, targets, sent, wait, timeout_s, on_outcome)


def _outcomes(
    access: Access,
    targets: Sequence[Target],
    sent: FanoutResult[_Sent],
    wait: bool,
    timeout_s: float,
    on_outcome: Callable[[HostOutcome[Rebooted]], None],
) -> FanoutResult[Rebooted]:
    done = {
        failure.host: HostOutcome[Rebooted](failure.host, error=failure.error)
        for failure in sent.failures
    }
    for outcome in done.values():
        on_outcome(outcome)
    back = fan_out(
        lambda one: _wait(access, one, timeout_s) if wait else Rebooted(one.host),
        sent.values,
        on_outcome=on_outcome,
    )
    done.update({outcome.host: outcome for outcome in back.outcomes})
    return FanoutResult(tuple(done[target.host] for target in targets))


def _send(access: Access, target: Target) -> _Sent:
    connections = access.connections
    before = connections.run(target, BOOT_ID, timeout_s=COMMAND_TIMEOUT_S)
    if not before.ok:
        raise CommandFailed(target.host, f"cannot read its boot id: {before.stderr.strip()}")
    at = time.monotonic()
    try:
        result = connections.run(target, REBOOT, timeout_s=COMMAND_TIMEOUT_S)
    except (ConnectionLost, HostUnreachable, CommandTimeout):
        # The host went down under the command, which is what was asked for.
        result = None
    # A signal (128 and above) is the shutdown reaching the command.
    if result is not None and 0 < result.exit_status < 128:
        complaint = (result.stderr.strip().splitlines() or ["no message"])[-1]
        raise CommandFailed(target.host, f"refused to reboot: {complaint}")
    connections.forget(target)
    return _Sent(target.host, target, before.stdout.strip(), at)


def _wait(access: Access, sent: _Sent, timeout_s: float) -> Rebooted:
    """Raises NotBack at the deadline, saying which of the two was seen last."""
    deadline = sent.at + timeout_s
    seen = "it is still up: it never went down"
    while time.monotonic() < deadline:
        try:
            now = access.connections.run(sent.target, BOOT_ID, timeout_s=COMMAND_TIMEOUT_S)
            if now.ok and now.stdout.strip() != sent.boot_id:
                return Rebooted(sent.host, time.monotonic() - sent.at)
            # Still the old boot: its connection must not be kept over the reboot.
            access.connections.forget(sent.target)
        except NOT_YET as error:
            seen = error.message
            access.connections.forget(sent.target)
        time.sleep(POLL_S)
    raise NotBack(
        sent.host,
        f"not back within {format_duration(timeout_s)}: {seen}",
        f"see `clusterctl status {access.cluster.name}`, or wait longer: --timeout 20m",
    )


def exit_status_of(result: FanoutResult[Rebooted]) -> int:
    """255 if a node could not be reached, 1 if one is not back or refused, else 0."""
    errors: list[ClusterctlError] = [f.error for f in result.failures if f.error]
    return max((error.exit_status for error in errors), default=0)
