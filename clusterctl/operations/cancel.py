"""End a job: ask its mpirun, then end what is left of it on every node."""

from __future__ import annotations

from dataclasses import dataclass

from clusterctl.diagnostics.processes import ProcessQuery
from clusterctl.jobs.detached import end_job, find_job
from clusterctl.jobs.record import JobRecord
from clusterctl.operations.access import Access
from clusterctl.operations.kill import KillReport, kill
from clusterctl.operations.logs import running_jobs


@dataclass(frozen=True)
class CancelledJob:
    """A job as it is now, and what had to be ended by force."""

    job: JobRecord
    was_running: bool
    leftovers: KillReport


def cancel(access: Access, job_id: str | None = None) -> list[CancelledJob]:
    """End that job, or those that run; none is success. Raises UsageError, HostError."""
    if job_id:
        jobs = [find_job(access.connections, access.head, job_id)]
    else:
        jobs = running_jobs(access)
    return [_cancel(access, job) for job in jobs]


def _cancel(access: Access, job: JobRecord) -> CancelledJob:
    if job.running:
        end_job(access.connections, access.head, job.job_id)
    leftovers = kill(access, ProcessQuery(job_id=job.job_id))
    now = find_job(access.connections, access.head, job.job_id)
    return CancelledJob(now, job.running, leftovers)
