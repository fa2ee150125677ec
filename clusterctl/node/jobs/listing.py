"""Runs on the head node, by `call`: the records of its jobs. This module imports little, since
`clusterctl jobs` and each follower of a log wait for it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from clusterctl.node.jobs.folder import JOBS, JobFolder, all_jobs
from clusterctl.node.jobs.spec import JobRecord


@dataclass(frozen=True)
class JobQuery:
    """Which job; with an empty ID all of them."""

    job_id: str = ""


@dataclass(frozen=True)
class JobList:
    jobs: tuple[JobRecord, ...]


def find_jobs(request: JobQuery) -> JobList:
    """Return the records of all jobs in the order of their submission, without what only the record
    of one job has; or that of the one job, if there is one of this ID."""
    if request.job_id:
        job = JobFolder(JOBS / request.job_id)
        return JobList((job.record(),) if job.path.is_dir() else ())
    return JobList(tuple(summary(job.record()) for job in all_jobs()))


def summary(job: JobRecord) -> JobRecord:
    return replace(job, spec=replace(job.spec, nodes=(), code=None), copied=())
