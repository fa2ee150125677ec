"""Records of jobs, as the head node describes them."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

from clusterctl.node.jobs.spec import JobRecord, JobSpec, JobState, JobStatus, JobStep

JOB = "20261120-154501-3f2a"


def job_record(
    state: JobState = JobState.RUNNING,
    exit_status: int | None = None,
    *,
    began: datetime | None = None,
    duration_s: float = 90.0,
    argv: tuple[str, ...] = ("mpirun",),
    **spec: Any,
) -> JobRecord:
    """Return the record of a job that began then (None: `duration_s` ago)."""
    started = began.timestamp() if began else time.time() - duration_s
    ended = started + duration_s
    status = JobStatus(
        state=state,
        submitted_at=started,
        started_at=started,
        ended_at=None if state in (JobState.RUNNING, JobState.QUEUED) else ended,
        exit_status=exit_status,
    )
    fields = {"job_id": JOB, "ranks": 2, "steps": (JobStep(argv),), **spec}
    return JobRecord(JobSpec(**fields), status, now=ended)
