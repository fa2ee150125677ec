"""End what jobs left running on the nodes, and prove that nothing of it is there any more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from clusterctl.diagnostics.processes import (
    NodeProcess,
    ProcessQuery,
    all_of,
    end_processes,
    list_processes,
)
from clusterctl.domain.results import FanoutResult, HostOutcome
from clusterctl.operations.access import Access

Outcomes = FanoutResult[tuple[NodeProcess, ...]]
# A process that was being started meanwhile may appear on another node: it is ended, too.
ROUNDS = 2


@dataclass(frozen=True)
class KillReport:
    """What was found, how it ended, and what the last look still saw.

    `answered` are the nodes that said so; the others are in `failures`.
    """

    found: tuple[NodeProcess, ...]
    ended: tuple[NodeProcess, ...]
    left: tuple[NodeProcess, ...]
    answered: tuple[str, ...]
    failures: tuple[HostOutcome[Any], ...]

    @property
    def exit_status(self) -> int:
        """255 if a host could not be reached, 1 if something would not end, else 0."""
        if self.failures:
            return 255
        return 1 if self.left else 0


def kill(
    access: Access,
    query: ProcessQuery,
    indices: Sequence[int] | None = None,
    dry_run: bool = False,
    on_found: Callable[[Outcomes], None] = lambda found: None,
) -> KillReport:
    """End the processes of `query` on these nodes, or on all. One outcome per host."""
    targets = access.select(indices)
    looked = list_processes(access.connections, targets, query)
    on_found(looked)
    found = all_of(looked)
    failures = {outcome.host: outcome for outcome in looked.failures}
    ended: dict[tuple[str, int], NodeProcess] = {}
    left: tuple[NodeProcess, ...] = ()
    new = () if dry_run else found
    for _ in range(ROUNDS):
        if not new:
            break
        busy = {process.host for process in new}
        told = end_processes(access.connections, [t for t in targets if t.host in busy], query)
        ended.update({(process.host, process.pid): process for process in all_of(told)})
        # The proof: what the nodes themselves say now, not what was sent to them.
        reached = [target for target in targets if target.host not in failures]
        looked = list_processes(access.connections, reached, query)
        left = all_of(looked)
        new = tuple(process for process in left if (process.host, process.pid) not in ended)
        for outcome in (*looked.failures, *told.failures):
            failures.setdefault(outcome.host, outcome)
    answered = tuple(target.host for target in targets if target.host not in failures)
    return KillReport(found, tuple(ended.values()), left, answered, tuple(failures.values()))
