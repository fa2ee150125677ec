"""Runs on the head node, by `call`: the records of its jobs. This module imports little, since
`clusterctl jobs` and each follower of a log wait for it."""

from __future__ import annotations

from dataclasses import replace

from clusterctl.node.jobs.folder import JOBS, JobFolder, all_jobs
from clusterctl.node.jobs.spec import JobRecord


def find_jobs(request: str) -> tuple[JobRecord, ...]:
    """Return the record of the job of this ID, if there is one. Without an ID return those of all
    jobs in the order of their submission, without what only the record of one job has."""
    if request:
        job = JobFolder(JOBS / request)
        return (job.record(),) if job.path.is_dir() else ()
    return tuple(summary(job.record()) for job in all_jobs())


def summary(job: JobRecord) -> JobRecord:
    return replace(job, spec=replace(job.spec, nodes=(), code=None))
