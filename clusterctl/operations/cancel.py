"""End a job or all that runs: ask its mpirun, then end what is left of it on every node."""

from __future__ import annotations

from dataclasses import dataclass, replace

from clusterctl.diagnostics.processes import ProcessQuery
from clusterctl.domain.errors import HostError
from clusterctl.domain.results import HostOutcome
from clusterctl.jobs.detached import JobRecord, end_job, find_job
from clusterctl.operations.access import Access
from clusterctl.operations.kill import KillReport, kill
from clusterctl.operations.logs import running_jobs


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
