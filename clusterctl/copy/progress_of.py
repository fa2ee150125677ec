"""What people are told of a copy, while it runs and at the end: from the coordinator's state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterctl.copy.coordinator import Coordinator
from clusterctl.copy.limits import NOTHING, Use, limited_by
from clusterctl.copy.member import Member, number
from clusterctl.copy.report import CopyProgress, NodeProgress, NodeReport, NodeStage, TransferReport


def progress_of(
    coordinator: Coordinator,
    elapsed_s: float,
    slowest_link: float | None = None,
    plan: Mapping[str, Any] | None = None,
) -> CopyProgress:
    """The copy now."""
    nodes = tuple(_node(coordinator, member) for member in coordinator.targets)
    return CopyProgress(
        elapsed_s=elapsed_s,
        nodes=nodes,
        source=coordinator.heard.summary,
        left_s=_left_s(nodes),
        slowest_link=slowest_link,
        plan=dict(plan or {}),
    )


def _node(coordinator: Coordinator, member: Member) -> NodeProgress:
    if coordinator.dry_run and member.stage is NodeStage.COPYING:
        # It has said what it lacks, and that was all.
        return NodeProgress(member.name, NodeStage.DONE)
    moving = member.stage is NodeStage.COPYING
    needed = member.gap.bytes if member.gap else 0
    silent = _is_silent(coordinator, member)
    return NodeProgress(
        host=member.name,
        stage=member.stage,
        # Its last bytes are not told before its end.
        bytes=needed if member.stage is NodeStage.DONE else member.bytes,
        needed_bytes=needed,
        rate=member.rate(coordinator.now) if moving and not silent else 0.0,
        upstream=member.upstream,
        note=_note(member, silent),
        silent=silent,
        slow=moving and member.leaf,
    )


def _is_silent(coordinator: Coordinator, member: Member) -> bool:
    """Whether a node that would tell every second how far it is does not."""
    quiet_s = coordinator.now - member.heard_at
    return member.stage is NodeStage.COPYING and quiet_s >= coordinator.net.patience.silent_s


def _note(member: Member, silent: bool) -> str:
    if member.error:
        return member.error.message
    if silent:
        return "is silent"
    if member.stage is NodeStage.COPYING and member.leaf:
        return "at the end of the chain, so that it holds back nobody"
    return ""


def _left_s(nodes: tuple[NodeProgress, ...]) -> float | None:
    """The longest of the nodes' times; None while one cannot be told.

    Slow nodes count only when they are all that is still under way.
    """
    moving = [node for node in nodes if node.stage is NodeStage.COPYING]
    heard = [node for node in moving if not node.silent]
    prompt = [node for node in heard if not node.slow]
    if moving and not heard:
        return None
    left_out = [node for node in moving if node not in (prompt or heard)]
    longest = 0.0
    for node in nodes:
        if node in left_out:
            continue
        if node.stage in (NodeStage.CONNECTING, NodeStage.COMPARING):
            return None
        left = node.needed_bytes - node.bytes
        if node.stage is NodeStage.COPYING and left > 0:
            if not node.rate:
                return None
            longest = max(longest, left / node.rate)
    return longest


def report_of(
    coordinator: Coordinator,
    duration_s: float,
    *,
    dry_run: bool = False,
    plan: Mapping[str, Any] | None = None,
) -> TransferReport:
    """The copy at its end."""
    heard, source = coordinator.heard, coordinator.net.source
    streams = coordinator.net.streams
    first = heard.first_complete_at
    moved = any(member.bytes for member in coordinator.targets)
    return TransferReport(
        source=heard.summary,
        nodes=tuple(map(_report, coordinator.targets)),
        duration_s=duration_s,
        one_copy_s=first - coordinator.began_at if first is not None and moved else None,
        limited_by=limited_by(
            _use(source, streams), [_use(member, streams) for member in coordinator.targets]
        )
        if moved
        else NOTHING,
        dry_run=dry_run,
        error=source.error,
        plan=dict(plan or {}),
    )


def _report(member: Member) -> NodeReport:
    done = member.done or {}
    return NodeReport(
        host=member.name,
        gap=member.gap,
        received_bytes=number(done, "bytes") or member.bytes,
        files=number(done, "files"),
        deleted=number(done, "deleted"),
        left_out=number(done, "left_out"),
        duration_s=_duration_s(member),
        error=member.error,
        warnings=tuple(member.warnings),
        moves=tuple(member.moves),
        limits={**member.waits, "cpu": member.cpu} if member.wall else {},
    )


def _duration_s(member: Member) -> float:
    return max(0.0, member.ended_at - member.joined_at) if member.joined else 0.0


def _use(member: Member, streams: int) -> Use:
    return Use(member.waits, member.cpu, _duration_s(member) or member.wall, streams, member.bytes)
