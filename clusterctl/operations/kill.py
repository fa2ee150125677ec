"""End what jobs left running on the nodes, or a job with all that is left of it, and prove that
nothing of it is there any more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clusterctl.domain.errors import HostError
from clusterctl.domain.results import FanoutResult, HostOutcome
from clusterctl.jobs.detached import JobRecord, end_job, find_job
from clusterctl.jobs.processes import (
    NodeProcess,
    ProcessQuery,
    all_of,
    end_processes,
    list_processes,
)
from clusterctl.operations.access import Access
from clusterctl.operations.logs import running_jobs

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


@dataclass(frozen=True)
class Cancelled:
    """The jobs as they were before and are now, and what else was found and ended, by `kill`."""

    jobs: tuple[tuple[JobRecord, JobRecord], ...]
    others: KillReport


def cancel(access: Access, job_id: str | None = None) -> Cancelled:
    """End that job, or all that runs: jobs, what was started by hand, what others left.

    Nothing running is success. Raises UsageError for an unknown job, HostError of the head node
    when it goes away meanwhile; one that does not answer at all is a failure of the report.
    """
    silent: HostError | None = None
    jobs: list[JobRecord] = []
    if job_id:
        jobs = [find_job(access.connections, access.head, job_id)]
    else:
        try:
            jobs = running_jobs(access)
        except HostError as error:
            # The others can be dealt with all the same.
            silent = error
    for job in jobs:
        if job.running:
            end_job(access.connections, access.head, job.job_id)
    others = kill(access, ProcessQuery(job_id=job_id))
    if silent:
        known = [outcome for outcome in others.failures if outcome.host != silent.host]
        others = replace(
            others,
            answered=tuple(host for host in others.answered if host != silent.host),
            failures=(HostOutcome(silent.host, error=silent), *known),
        )
    now = [find_job(access.connections, access.head, job.job_id) for job in jobs]
    return Cancelled(tuple(zip(jobs, now)), others)
