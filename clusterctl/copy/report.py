"""What a copy has come to: while it runs, and at its end. Plain values; times in seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from clusterctl.copy.plan import SourceSummary
from clusterctl.copy.topology import Peer
from clusterctl.domain.errors import ClusterctlError
from clusterctl.node.relay.messages import Done, Gap, Progress

if TYPE_CHECKING:
    from clusterctl.copy.coordinator import Coordinator


class NodeStage(Enum):
    """How far one node is, in the order they pass."""

    CONNECTING = "connecting"
    COMPARING = "comparing"
    COPYING = "copying"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True)
class NodeProgress:
    """One node now. `upstream` is whom it pulls from; `rate` is bytes a second of late.

    The whole copy's time left is without those that are `silent`, which nobody knows of, and
    without those that are `slow`, while others are under way.
    """

    host: str
    stage: NodeStage
    bytes: int = 0
    needed_bytes: int = 0
    rate: float = 0.0
    upstream: str = ""
    note: str = ""
    silent: bool = False
    slow: bool = False


@dataclass(frozen=True)
class CopyProgress:
    """The whole copy now. `left_s` is None while nobody can know.

    `slowest_link` is in bytes a second, headers included. `plan` is `CopyPlan.as_data()`, from when
    there is one.
    """

    elapsed_s: float
    nodes: tuple[NodeProgress, ...]
    source: SourceSummary | None = None
    left_s: float | None = None
    slowest_link: float | None = None
    plan: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class NodeReport:
    """One node at the end. `error` says why it has not all of it; `moves` how it was relinked.

    `left_out` files changed or vanished at the source meanwhile, or could not be put in place;
    `warnings` name the first ones.
    """

    host: str
    gap: Gap | None = None
    received_bytes: int = 0
    files: int = 0
    deleted: int = 0
    left_out: int = 0
    duration_s: float = 0.0
    error: ClusterctlError | None = None
    warnings: tuple[str, ...] = ()
    moves: tuple[str, ...] = ()
    limits: dict[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        return self.received_bytes / self.duration_s if self.duration_s else 0.0


@dataclass(frozen=True)
class TransferReport:
    """The copy at its end. `one_copy_s`: when the first node of the chain had all of it.

    `limited_by` is one of `source disk`, `target disk`, `link`, `CPU`, `nothing`.
    `plan` is what was planned and predicted, `CopyPlan.as_data()`. `missing` are nodes that the
    cluster is to have and that are not there; `verified` those whose files were read again and
    are the source's.
    """

    source: SourceSummary | None
    nodes: tuple[NodeReport, ...]
    duration_s: float
    one_copy_s: float | None = None
    limited_by: str = "nothing"
    dry_run: bool = False
    error: ClusterctlError | None = None
    plan: dict[str, Any] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    verified: tuple[str, ...] = ()

    @property
    def failed(self) -> tuple[NodeReport, ...]:
        return tuple(node for node in self.nodes if node.error)

    @property
    def ok(self) -> bool:
        return not self.exit_status

    @property
    def exit_status(self) -> int:
        """0 when every node has all of it; 255 if a host could not be reached; else 1, also for
        what was left out. A request that made no sense has its own."""
        statuses = [node.error.exit_status for node in self.failed if node.error]
        statuses += [self.error.exit_status] if self.error else []
        if statuses:
            return max(statuses)
        left_out = any(node.left_out for node in self.nodes)
        left_out = left_out or bool(self.source and self.source.warnings)
        return int(bool(self.missing or self.refused or left_out))

    @property
    def refused(self) -> tuple[NodeReport, ...]:
        """Of a dry run: those that would not take it."""
        nodes = self.nodes if self.dry_run else ()
        return tuple(node for node in nodes if node.gap and not node.gap.can_be_filled)


# From the coordinator's state


def progress_of(
    coordinator: Coordinator,
    elapsed_s: float,
    slowest_link: float | None = None,
    plan: Mapping[str, Any] | None = None,
) -> CopyProgress:
    """The copy now."""
    nodes = tuple(_node_progress(coordinator, peer) for peer in coordinator.targets)
    return CopyProgress(
        elapsed_s=elapsed_s,
        nodes=nodes,
        source=coordinator.summary,
        left_s=_left_s(nodes),
        slowest_link=slowest_link,
        plan=dict(plan or {}),
    )


def _node_progress(coordinator: Coordinator, peer: Peer) -> NodeProgress:
    stage = _stage(peer)
    if coordinator.dry_run and stage is NodeStage.COPYING:
        # It has said what it lacks, and that was all.
        return NodeProgress(peer.name, NodeStage.DONE)
    moving = stage is NodeStage.COPYING
    needed = peer.gap.bytes if peer.gap else 0
    # One that would tell every second how far it is does not.
    quiet_s = coordinator.now - (peer.heard_at or 0.0)
    silent = moving and quiet_s >= coordinator.timeouts.silent_s
    slow = moving and peer.in_tail
    note = "at the end of the chain, so that it holds back nobody" if slow else ""
    return NodeProgress(
        host=peer.name,
        stage=stage,
        # Its last bytes are not told before its end.
        bytes=needed if stage is NodeStage.DONE else peer.bytes,
        needed_bytes=needed,
        rate=peer.rate(coordinator.now) if moving and not silent else 0.0,
        upstream=peer.upstream,
        note=peer.error.message if peer.error else "is silent" if silent else note,
        silent=silent,
        slow=slow,
    )


def _stage(peer: Peer) -> NodeStage:
    if peer.error:
        return NodeStage.FAILED
    if peer.done:
        return NodeStage.DONE
    if peer.gap:
        return NodeStage.COPYING
    return NodeStage.COMPARING if peer.at.port else NodeStage.CONNECTING


def _left_s(nodes: tuple[NodeProgress, ...]) -> float | None:
    """The longest of the nodes' times; None while one cannot be told.

    Slow nodes count only when they are all that is still under way.
    """
    moving = [node for node in nodes if node.stage is NodeStage.COPYING]
    heard = [node for node in moving if not node.silent]
    prompt = [node for node in heard if not node.slow]
    if moving and not heard:
        return None
    if any(node.stage in (NodeStage.CONNECTING, NodeStage.COMPARING) for node in nodes):
        return None
    longest = 0.0
    for node in prompt or heard:
        left = node.needed_bytes - node.bytes
        if left > 0:
            if not node.rate:
                return None
            longest = max(longest, left / node.rate)
    return longest


def report_of(
    coordinator: Coordinator, duration_s: float, plan: Mapping[str, Any] | None = None
) -> TransferReport:
    """The copy at its end."""
    first, source = coordinator.first_complete_at, coordinator.net.source
    moved = any(peer.bytes for peer in coordinator.targets)
    streams = coordinator.net.streams
    return TransferReport(
        source=coordinator.summary,
        nodes=tuple(map(_node_report, coordinator.targets)),
        duration_s=duration_s,
        one_copy_s=first - coordinator.began_at if first is not None and moved else None,
        limited_by=limited_by(
            Use.of(source, streams), [Use.of(peer, streams) for peer in coordinator.targets]
        ),
        dry_run=coordinator.dry_run,
        error=source.error,
        plan=dict(plan or {}),
    )


def _node_report(peer: Peer) -> NodeReport:
    done, progress = peer.done or Done(), peer.progress or Progress()
    return NodeReport(
        host=peer.name,
        gap=peer.gap,
        received_bytes=done.bytes or peer.bytes,
        files=done.files,
        deleted=done.deleted,
        left_out=done.left_out,
        duration_s=_duration_s(peer),
        error=peer.error,
        warnings=tuple(peer.warnings),
        moves=tuple(peer.moves),
        limits={**progress.waits, "cpu": progress.cpu} if progress.wall else {},
    )


def _duration_s(peer: Peer) -> float:
    return max(0.0, peer.ended_at - peer.joined_at) if peer.joined_at else 0.0


# What it was limited by

# Of its threads' time.
BUSY = 0.5
# Of a processor.
FULL = 0.85


@dataclass(frozen=True)
class Use:
    """One relay: seconds of all its threads by kind, of its processors, and of the clock."""

    waits: Mapping[str, float]
    cpu: float
    wall: float
    threads: int = 1
    cores: int = 1
    moved_bytes: int = 0

    @classmethod
    def of(cls, peer: Peer, streams: int) -> Use:
        told = peer.progress or Progress()
        wall = _duration_s(peer) or told.wall
        return cls(told.waits, told.cpu, wall, streams, max(1, peer.at.cores), peer.bytes)

    def share(self, *kinds: str) -> float:
        """The part of its threads' time that went into these."""
        spent = sum(self.waits.get(kind, 0.0) for kind in kinds)
        return spent / (self.wall * max(1, self.threads)) if self.wall > 0 else 0.0

    @property
    def lacks_cpu(self) -> bool:
        """All its processors are in use; or one, all that Python code can have, and what its
        threads did was computing more than waiting.
        """
        if self.wall <= 0:
            return False
        in_use = self.cpu / self.wall
        computing = self.cpu >= BUSY * sum(self.waits.values())
        return in_use >= FULL * self.cores or (in_use >= FULL and computing)


def limited_by(source: Use, nodes: Sequence[Use]) -> str:
    """`nothing`, `link`, `CPU`, `source disk` or `target disk`."""
    moved = [node for node in nodes if node.moved_bytes]
    if not moved:
        return "nothing"
    if any(use.lacks_cpu for use in (source, *moved)):
        return "CPU"
    disk = max(node.share("write", "sync") for node in moved)
    if disk >= BUSY and disk > min(node.share("receive") for node in moved):
        return "target disk"
    if source.share("read") >= BUSY and source.share("read") > source.share("send"):
        return "source disk"
    return "link"
