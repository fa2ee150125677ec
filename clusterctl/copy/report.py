"""The progress and the result of a copy as plain values, and the file in which a detached copy
keeps how far it is. Times are in seconds.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from clusterctl.copy.plan import SourceSummary
from clusterctl.copy.topology import Peer
from clusterctl.domain.errors import ClusterctlError, UsageError
from clusterctl.domain.results import worst
from clusterctl.node.jobs.spec import CopyNode
from clusterctl.node.record import pick, to_json
from clusterctl.node.relay.messages import Done, Gap, Progress

if TYPE_CHECKING:
    from clusterctl.copy.coordinator import Coordinator


NAMED = 3  # so many of the things that were left out are named in a message


class NodeStage(Enum):
    """How far one node is, in order. A node may fail at any stage."""

    CONNECTING = "connecting"
    COMPARING = "comparing"
    COPYING = "copying"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True)
class NodeProgress:
    """The current state of one node.

    `upstream` is the node that it pulls from, or its tool, `rate` its recent bytes a second. Of
    `needed_files`, `files` have come, where that is known. `duration_s` is how long the node has
    taken, which ends when it is done. The time left of the whole copy excludes `silent` nodes, and
    `slow` nodes while others are under way.
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
    files: Optional[int] = None
    needed_files: Optional[int] = None
    duration_s: float = 0.0


@dataclass(frozen=True)
class CopyProgress:
    """The current state of the whole copy. `left_s` is None while it cannot be predicted.

    `slowest_link` is in bytes a second, headers included. `plan` is `CopyPlan.as_data()`; it is
    empty until there is a plan.
    """

    elapsed_s: float
    nodes: tuple[NodeProgress, ...]
    source: Optional[SourceSummary] = None
    left_s: Optional[float] = None
    slowest_link: Optional[float] = None
    plan: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class NodeReport:
    """The result for one node. `error` is why it lacks data; `moves` lists how it was relinked.

    `left_out` counts files that changed or vanished at the source during the copy, or could not be
    put in place; `warnings` name the first of them. `limits` has the seconds that the relay's
    threads waited, by kind, and its CPU seconds as `cpu`. `path` is where the file of a web server
    is, in terms of DST as given.
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
    path: str = ""
    links: int = 0

    @property
    def rate(self) -> float:
        """Bytes a second over the whole copy to this node."""
        return self.received_bytes / self.duration_s if self.duration_s else 0.0


@dataclass(frozen=True)
class TransferReport:
    """The result of the whole copy. `one_copy_s` is the time until the first node had everything.

    `limited_by` is one of `source disk`, `target disk`, `link`, `CPU`, `nothing`, or empty: not
    known. `plan` is `CopyPlan.as_data()`. `missing` are nodes that the cluster should have and does
    not. `verified` are the nodes whose files were read again and are equal to the source's, or only
    to each other's if the source was not `reread`.
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
    reread: bool = True

    @property
    def failed(self) -> tuple[NodeReport, ...]:
        return tuple(node for node in self.nodes if node.error)

    @property
    def ok(self) -> bool:
        return not self.exit_status

    @property
    def exit_status(self) -> int:
        """0 if every node has everything, 2 if the request was refused as a whole, 255 if a host
        could not be reached, else 1: also if a node is missing, refused a dry run, or something was
        left out."""
        if isinstance(self.error, UsageError):
            return self.error.exit_status
        errors = filter(None, (self.error, *(node.error for node in self.failed)))
        is_failed = bool(self.missing or self.refused or self.left_out)
        return worst((one.exit_status for one in errors), is_failed)

    @property
    def problem(self) -> ClusterctlError | None:
        """Why not every node has everything: the first error, else what was left out. None if all
        have. Whoever goes on to use the data checks this, not `failed`."""
        errors = (self.error, *(node.error for node in self.nodes))
        return next(filter(None, errors), self.left_out)

    @property
    def left_out(self) -> ClusterctlError | None:
        """What was left out, at the source or on a node."""
        ends = [one for one in (self.source, *self.nodes) if one and one.left_out]
        if not ends:
            return None
        named = list(dict.fromkeys(text for one in ends for text in one.warnings))[:NAMED]
        more = max(one.left_out for one in ends) - len(named)
        return ClusterctlError(
            f"left out: {'; '.join(named)}" + (f"; and {more} more" if more > 0 else ""),
            "make readable what cannot be read, or remove it; then run it again",
        )

    @property
    def refused(self) -> tuple[NodeReport, ...]:
        """Nodes of a dry run that have not enough room or whose DST is not writable."""
        nodes = self.nodes if self.dry_run else ()
        return tuple(node for node in nodes if node.gap and not node.gap.can_be_filled)


# Made from the coordinator's state


def progress_of(
    coordinator: Coordinator,
    elapsed_s: float,
    slowest_link: float | None = None,
    plan: Mapping[str, Any] | None = None,
) -> CopyProgress:
    """Return the current state of the copy."""
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
        # In a dry run a node is done when it has reported what it lacks.
        return NodeProgress(peer.name, NodeStage.DONE)
    moving = stage is NodeStage.COPYING
    needed = peer.gap.bytes if peer.gap else 0
    # While it copies, a relay sends Progress at least every second.
    quiet_s = coordinator.now - (peer.last_event_at or 0.0)
    silent = moving and quiet_s >= coordinator.timeouts.silent_s
    slow = moving and peer.in_tail
    note = "at the end of the chain, so that it holds back no other node" if slow else ""
    return NodeProgress(
        host=peer.name,
        stage=stage,
        # A relay may end before it has reported its last bytes.
        bytes=needed if stage is NodeStage.DONE else peer.bytes,
        needed_bytes=needed,
        rate=peer.rate(coordinator.now) if moving and not silent else 0.0,
        upstream=peer.upstream,
        note=peer.error.message if peer.error else "is silent" if silent else note,
        silent=silent,
        slow=slow,
        duration_s=_duration_s(peer, coordinator.now),
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
    """Return the longest time left of the nodes in seconds; None if it cannot be predicted.

    Slow nodes count only if no other is under way.
    """
    moving = [node for node in nodes if node.stage is NodeStage.COPYING]
    responding = [node for node in moving if not node.silent]
    prompt = [node for node in responding if not node.slow]
    if moving and not responding:
        return None
    if any(node.stage in (NodeStage.CONNECTING, NodeStage.COMPARING) for node in nodes):
        return None
    longest = 0.0
    for node in prompt or responding:
        left = node.needed_bytes - node.bytes
        if left > 0:
            if not node.rate:
                return None
            longest = max(longest, left / node.rate)
    return longest


def report_of(
    coordinator: Coordinator, duration_s: float, plan: Mapping[str, Any] | None = None
) -> TransferReport:
    """Return the report of a copy that is over."""
    first, source = coordinator.first_complete_at, coordinator.net.source
    moved = any(peer.bytes for peer in coordinator.targets)
    streams = coordinator.net.streams
    return TransferReport(
        source=coordinator.summary,
        nodes=tuple(map(_node_report, coordinator.targets)),
        duration_s=duration_s,
        one_copy_s=first - coordinator.began_at if first is not None and moved else None,
        limited_by=limited_by(
            TimeUse.of(source, streams), [TimeUse.of(peer, streams) for peer in coordinator.targets]
        ),
        dry_run=coordinator.dry_run,
        error=source.error,
        plan=dict(plan or {}),
    )


def _node_report(peer: Peer) -> NodeReport:
    # A dry run ends without `Done`: what is in the way would be left out.
    blocked = peer.gap.blocked if peer.gap and not peer.error else 0
    done, progress = peer.done or Done(left_out=blocked), peer.progress or Progress()
    return pick(
        *(NodeReport, done, peer),
        host=peer.name,
        received_bytes=done.bytes or peer.bytes,
        duration_s=_duration_s(peer),
        warnings=tuple(peer.warnings),
        moves=tuple(peer.moves),
        limits={**progress.waits, "cpu": progress.cpu} if progress.wall else {},
    )


def _duration_s(peer: Peer, now: float = 0.0) -> float:
    return max(0.0, (peer.ended_at or now) - peer.joined_at) if peer.joined_at else 0.0


# What limited the copy

# A disk or link counts as busy if a relay's threads waited this share of their time for it.
BUSY = 0.5
# A processor counts as fully used from this share of its time on.
FULL = 0.85


@dataclass(frozen=True)
class TimeUse:
    """How one relay spent its time, in seconds.

    `waits` are those that all its threads waited, by kind; `cpu` is CPU time, `wall` clock time.
    """

    waits: Mapping[str, float]
    cpu: float
    wall: float
    threads: int = 1
    cores: int = 1
    moved_bytes: int = 0

    @classmethod
    def of(cls, peer: Peer, streams: int) -> TimeUse:
        progress = peer.progress or Progress()
        wall = _duration_s(peer) or progress.wall
        return cls(progress.waits, progress.cpu, wall, streams, max(1, peer.at.cores), peer.bytes)

    def share(self, *kinds: str) -> float:
        """Return the share of its threads' time that was spent waiting for these kinds."""
        spent = sum(self.waits.get(kind, 0.0) for kind in kinds)
        return spent / (self.wall * max(1, self.threads)) if self.wall > 0 else 0.0

    @property
    def lacks_cpu(self) -> bool:
        """Whether all processors were in use; or one, and its CPU time is BUSY times its waits.

        Python code can use one processor only, because of the interpreter lock.
        """
        if self.wall <= 0:
            return False
        in_use = self.cpu / self.wall
        computing = self.cpu >= BUSY * sum(self.waits.values())
        return in_use >= FULL * self.cores or (in_use >= FULL and computing)


def limited_by(source: TimeUse, nodes: Sequence[TimeUse]) -> str:
    """Return what limited the copy: `nothing`, `link`, `CPU`, `source disk` or `target disk`.

    Empty if that is not known, as with many small files, for which no wait is long.
    """
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
    waiting = max(source.share("send"), *(node.share("receive") for node in moved))
    return "link" if waiting >= BUSY else ""


# Bytes that are reserved for a node, and of a message or hint.
NODE_BYTES, LONGEST_TEXT = 2 << 10, 400
EVERY_S = 1.0


def new_state(hosts: Sequence[str]) -> str:
    """Return the file's first content, which is as long as any later one."""
    nodes = tuple(CopyNode(host, NodeStage.CONNECTING.value) for host in hosts)
    return to_json(nodes).ljust(NODE_BYTES * (len(hosts) + 1))


class StateFile:
    """Writes the file. `watch` passes the progress of the copy on.

    The file is replaced at once. If the disk is full, it is written over in place: it has its
    blocks.
    """

    def __init__(self, path: Path, watch: Callable[[CopyProgress], None]) -> None:
        self._path, self._watch = path, watch
        self._written_at = 0.0
        self._last: CopyProgress | None = None

    def watch(self, progress: CopyProgress) -> None:
        self._watch(progress)
        self._last = progress
        if time.monotonic() - self._written_at >= EVERY_S:
            self._written_at = time.monotonic()
            self._write([_of_progress(node, progress) for node in progress.nodes])

    def finish(self, report: TransferReport) -> None:
        """Write the result of the copy."""
        tools = {node.host: node.upstream for node in self._last.nodes} if self._last else {}
        is_url = report.plan.get("way") == "tool"
        self._write(
            [_of_report(node, report, tools.get(node.host, "") * is_url) for node in report.nodes]
        )

    def _write(self, nodes: Sequence[CopyNode]) -> None:
        text = to_json(nodes)
        new = self._path.with_name(self._path.name + ".new")
        with contextlib.suppress(OSError):  # the disk is full and the file too short, or read-only
            size = self._path.stat().st_size
            data = text.ljust(size).encode()
            try:
                new.write_bytes(data)
                new.replace(self._path)
            except OSError:
                new.unlink(missing_ok=True)
                if len(data) == size:
                    with self._path.open("r+b", buffering=0) as file:
                        os.pwrite(file.fileno(), data, 0)


def _of_progress(node: NodeProgress, progress: CopyProgress) -> CopyNode:
    is_compared = node.stage in (NodeStage.COPYING, NodeStage.DONE)
    is_url = progress.plan.get("way") == "tool"
    present = None
    if progress.source and node.needed_files is not None:
        present = max(0, progress.source.files - node.needed_files)
    return CopyNode(
        node.host,
        node.stage.value,
        tool=node.upstream * is_url,
        files=node.files,
        needed_files=node.needed_files,
        present_files=present,
        bytes=node.bytes if is_compared else None,
        needed_bytes=node.needed_bytes if is_compared else None,
        left_out=progress.source.left_out if progress.source else 0,
        duration_s=round(node.duration_s, 3),
        exit_status={NodeStage.DONE: 0, NodeStage.FAILED: 1}.get(node.stage),
        message=node.note[:LONGEST_TEXT] if node.stage is NodeStage.FAILED else "",
    )


def _of_report(node: NodeReport, report: TransferReport, tool: str) -> CopyNode:
    gap, error = node.gap, node.error
    present = max(0, report.source.files - gap.files) if report.source and gap else None
    return CopyNode(
        node.host,
        (NodeStage.FAILED if error else NodeStage.DONE).value,
        tool=tool,
        files=node.files if gap else None,
        needed_files=gap.files if gap else None,
        present_files=present,
        bytes=node.received_bytes if gap else None,
        needed_bytes=gap.bytes if gap else None,
        left_out=node.left_out + (report.source.left_out if report.source else 0),
        duration_s=round(node.duration_s, 3),
        exit_status=error.exit_status if error else 0,
        message=error.message[:LONGEST_TEXT] if error else "",
        hint=error.hint[:LONGEST_TEXT] if error else "",
    )
