"""Remove what training runs wrote: the trainer's log folders, and ended jobs' logs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import clusterctl.diagnostics
from clusterctl.diagnostics.program import NodeProgram, json_lines, read_each
from clusterctl.domain.results import CommandResult, FanoutResult
from clusterctl.operations.access import Access
from clusterctl.operations.logs import refuse_while_training

CLEAN = NodeProgram(Path(clusterctl.diagnostics.__file__).parent / "node" / "clean.py")
TIMEOUT_S = 600.0


@dataclass(frozen=True)
class CleanedNode:
    """What was removed on a node, or would be: (folder, bytes). `failed`: one sentence each."""

    host: str
    removed: tuple[tuple[str, int], ...]
    failed: tuple[str, ...]

    @property
    def freed_bytes(self) -> int:
        return sum(size for _, size in self.removed)


def clean_logs(
    access: Access, jobs: bool = False, dry_run: bool = False, force: bool = False
) -> FanoutResult[CleanedNode]:
    """Clean every node. Raises JobRunning unless `force`, HostError of the head node."""
    if not (force or dry_run):
        refuse_while_training(access, "their logs are being written")
    flags = [*(["--jobs"] if jobs else []), *(["--dry-run"] if dry_run else [])]
    result = access.connections.run_all(
        access.targets, CLEAN.command(*flags), stdin=CLEAN.stdin(), timeout_s=TIMEOUT_S
    )
    return read_each(result, parse_cleaned)


def parse_cleaned(result: CommandResult) -> CleanedNode:
    """What `node/clean.py` printed. Raises CommandFailed."""
    [answer] = json_lines(result, "removing the logs")
    removed = tuple((path, size) for path, size in answer["removed"])
    return CleanedNode(result.host, removed, tuple(answer["failed"]))
