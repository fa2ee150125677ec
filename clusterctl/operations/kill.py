"""End what jobs left running on the nodes, and prove that nothing of it is there any more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from clusterctl.diagnostics.processes import (
    NodeProcess,
    ProcessQuery,
    end_processes,
    list_processes,
)
from clusterctl.domain.results import FanoutResult, HostOutcome
from clusterctl.operations.access import Access
from clusterctl.transport.target import Target

Outcomes = FanoutResult[tuple[NodeProcess, ...]]


@dataclass(frozen=True)
class KillReport:
    """What was found, how it ended, and what a second look still saw; then failures by host."""

    found: tuple[NodeProcess, ...]
    ended: tuple[NodeProcess, ...]
    left: tuple[NodeProcess, ...]
    failures: tuple[HostOutcome[tuple[NodeProcess, ...]], ...]

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
    found = list_processes(access.connections, targets, query)
    on_found(found)
    busy = _hosts_with_processes(found)
    if dry_run or not busy:
        return KillReport(_all(found), (), (), tuple(found.failures))
    concerned = [target for target in targets if target.host in busy]
    return _end(access, query, concerned, found)


def _end(
    access: Access, query: ProcessQuery, targets: Sequence[Target], found: Outcomes
) -> KillReport:
    ended = end_processes(access.connections, targets, query)
    # The proof: what the nodes themselves say now, not what was sent to them.
    left = list_processes(access.connections, targets, query)
    failures = {outcome.host: outcome for outcome in [*left.failures, *found.failures]}
    failed = [outcome for outcome in ended.failures if outcome.host not in failures]
    return KillReport(_all(found), _all(ended), _all(left), (*failures.values(), *failed))


def _all(result: Outcomes) -> tuple[NodeProcess, ...]:
    return tuple(process for processes in result.values for process in processes)


def _hosts_with_processes(result: Outcomes) -> set[str]:
    return {outcome.host for outcome in result.outcomes if outcome.value}
