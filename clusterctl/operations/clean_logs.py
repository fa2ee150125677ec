"""Remove what training runs wrote: the trainer's log folders, and ended jobs' logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import clusterctl.diagnostics
from clusterctl.diagnostics.program import NodeProgram, json_lines, read_each
from clusterctl.domain.results import CommandResult, FanoutResult
from clusterctl.operations.access import Access
from clusterctl.operations.logs import job_running, refuse_while_training
from clusterctl.transport.target import Target

CLEAN = NodeProgram(Path(clusterctl.diagnostics.__file__).parent / "node" / "clean.py")
TIMEOUT_S = 600.0
BECAUSE = "their logs are being written"


@dataclass(frozen=True)
class CleanedNode:
    """What was removed on a node, or would be: (folder, bytes). `failed`: one sentence each.

    `busy` is a job that runs there: nothing was removed.
    """

    host: str
    removed: tuple[tuple[str, int], ...] = ()
    failed: tuple[str, ...] = ()
    busy: str = ""

    @property
    def freed_bytes(self) -> int:
        return sum(size for _, size in self.removed)


def clean_logs(
    access: Access, jobs: bool = False, dry_run: bool = False, force: bool = False
) -> FanoutResult[CleanedNode]:
    """Clean every node. Raises JobRunning unless `force`, HostError of the head node."""
    if not (force or dry_run):
        refuse_while_training(access, BECAUSE)
    given = {"--jobs": jobs, "--dry-run": dry_run, "--force": force}
    command = CLEAN.command(*(flag for flag, is_given in given.items() if is_given))

    def clean(targets: Sequence[Target]) -> FanoutResult[CleanedNode]:
        result = access.connections.run_all(
            targets, command, stdin=CLEAN.stdin(), timeout_s=TIMEOUT_S
        )
        return read_each(result, parse_cleaned)

    # First the head node, which knows of a job that was started since.
    head = clean([access.head])
    for node in head.values:
        if node.busy:
            raise job_running(access.cluster.name, node.busy, BECAUSE)
    others = clean([target for target in access.targets if target != access.head])
    return FanoutResult((*head.outcomes, *others.outcomes))


def parse_cleaned(result: CommandResult) -> CleanedNode:
    """What `node/clean.py` printed. Raises CommandFailed."""
    [answer] = json_lines(result, "removing the logs")
    removed = tuple((path, size) for path, size in answer.get("removed", ()))
    return CleanedNode(
        result.host, removed, tuple(answer.get("failed", ())), answer.get("busy", "")
    )
