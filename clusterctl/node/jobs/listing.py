"""Runs on the head node, by `call`: the records of its jobs, and a wait for a line of a log.

This module imports little, since `clusterctl jobs` and each follower of a log wait for it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from clusterctl.node.jobs.folder import JOBS, JobFolder, all_jobs
from clusterctl.node.jobs.spec import JobRecord
from clusterctl.node.untrusted import text_in


@dataclass(frozen=True)
class AwaitedLine:
    """A line of a job's log, by its beginning."""

    job_id: str
    beginning: str


def wait_for_line(request: AwaitedLine) -> tuple[str, ...]:
    """Wait until the job's log has the line, or the job has ended. Return this line; if there is
    none, an empty text and the last 30 lines of the log."""
    job = JobFolder(JOBS / request.job_id)
    while True:
        is_over = not job.is_run()  # first: a job writes until its end
        lines = text_in(job.path / "log").split("\n")
        # The last one has no end: it may be written only in part.
        found = [line for line in lines[:-1] if line.startswith(request.beginning)]
        if found or is_over:
            return tuple(found[:1] or ["", *lines[-30:]])
        time.sleep(0.2)


def find_jobs(request: str) -> tuple[JobRecord, ...]:
    """Return the record of the job of this ID, if there is one. Without an ID return those of all
    jobs in the order of their submission, without what only the record of one job has."""
    if request:
        job = JobFolder(JOBS / request)
        return (job.record(),) if job.path.is_dir() else ()
    return tuple(summary(job.record()) for job in all_jobs())


def summary(job: JobRecord) -> JobRecord:
    return replace(job, spec=replace(job.spec, nodes=(), code=None))
