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
from clusterctl.domain.results import CommandResult, FanoutResult, HostOutcome
from clusterctl.domain.units import format_duration
from clusterctl.operations.logs import refuse_while_training
from clusterctl.transport.fanout import fan_out

if TYPE_CHECKING:
    from clusterctl.operations.access import Access
    from clusterctl.transport.target import Target

BOOT_ID = "cat /proc/sys/kernel/random/boot_id"
# Returns before the node goes down: a link that is cut under the command would take its answer.
REBOOT = (
    "sudo -n true && { setsid sudo -n sh -c 'sleep 0.5; systemctl reboot || reboot'"
    " </dev/null >/dev/null 2>&1 & }"
)
COMMAND_TIMEOUT_S = 20.0
# A node on its way up lets packets vanish: better ask again soon than wait for one answer.
CONNECT_TIMEOUT_S = 5.0
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
    boot_id = _checked(connections.run(target, BOOT_ID, timeout_s=COMMAND_TIMEOUT_S))
    at = time.monotonic()
    try:
        result = connections.run(target, REBOOT, timeout_s=COMMAND_TIMEOUT_S)
    except (ConnectionLost, CommandTimeout):
        # It went down under the command all the same, which is what was asked for.
        result = None
    if result is not None and not result.ok:
        complaint = (result.stderr.strip().splitlines() or ["no message"])[-1]
        raise CommandFailed(target.host, f"refused to reboot: {complaint}")
    connections.forget(target)
    return _Sent(target.host, target, boot_id, at)


def _wait(access: Access, sent: _Sent, timeout_s: float) -> Rebooted:
    """Raises NotBack at the deadline, saying which of the two was seen last."""
    deadline = sent.at + timeout_s
    seen = "it is still up: it never went down"
    while time.monotonic() < deadline:
        try:
            if _boot_id(access, sent.target) != sent.boot_id:
                return Rebooted(sent.host, time.monotonic() - sent.at)
        except NOT_YET as error:
            seen = error.message
        time.sleep(POLL_S)
    raise NotBack(
        sent.host,
        f"not back within {format_duration(timeout_s)}: {seen}",
        f"see `clusterctl status {access.cluster.name}`, or wait longer: --timeout 20m",
    )


def _boot_id(access: Access, target: Target) -> str:
    # A connection of its own each time: a kept one would not survive the reboot.
    pool = access.connections
    session = pool.open_another(target, CONNECT_TIMEOUT_S)
    try:
        return _checked(session.run(BOOT_ID, timeout_s=COMMAND_TIMEOUT_S))
    finally:
        session.close()


def _checked(result: CommandResult) -> str:
    if not result.ok:
        raise CommandFailed(result.host, f"cannot read its boot id: {result.stderr.strip()}")
    return result.stdout.strip()


def exit_status_of(result: FanoutResult[Rebooted]) -> int:
    """255 if a node could not be reached, 1 if one is not back or refused, else 0."""
    errors: list[ClusterctlError] = [f.error for f in result.failures if f.error]
    return max((error.exit_status for error in errors), default=0)
