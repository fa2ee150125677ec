"""What a copy has come to: while it runs, and at its end. Plain values; times in seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from clusterctl.domain.errors import ClusterctlError


class NodeStage(Enum):
    """How far one node is, in the order they pass."""

    CONNECTING = "connecting"
    COMPARING = "comparing"
    COPYING = "copying"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True)
class SourceSummary:
    """What the source has. `warnings`: what it left out, one line each."""

    files: int
    bytes: int
    blocks: int
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Gap:
    """What one node lacks. `missing` is how many files, folders and links it lacks or has
    otherwise, `delete` how many the source does not have.

    `delete_names` and `missing_names` are the first of these.
    """

    files: int
    bytes: int
    blocks: int
    delete: int = 0
    free_bytes: int = 0
    delete_names: tuple[str, ...] = ()
    writable: bool = True
    missing: int = 0
    missing_names: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.files or self.bytes)

    @property
    def fits(self) -> bool:
        return self.bytes <= self.free_bytes

    @property
    def can_be_filled(self) -> bool:
        return self.fits and (self.writable or (self.is_empty and not self.delete))


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
