"""The jobs of a cluster: listed, looked at, followed."""

from __future__ import annotations

from collections.abc import Callable

from clusterctl.diagnostics.processes import ProcessQuery, list_processes
from clusterctl.domain.errors import ClusterctlError, ConnectionLost, HostError, HostUnreachable
from clusterctl.jobs.detached import JobRunning, find_job, list_jobs
from clusterctl.jobs.follow import follow_job, tail_command
from clusterctl.jobs.record import JobRecord
from clusterctl.operations.access import Access


class NoJobs(ClusterctlError):
    """No job has run on the cluster yet."""


def jobs_of(access: Access) -> list[JobRecord]:
    """The jobs of the cluster, oldest first. Raises HostError."""
    return list_jobs(access.connections, access.head)


def running_jobs(access: Access) -> list[JobRecord]:
    """Those that have not ended. Raises HostError."""
    return [job for job in jobs_of(access) if job.running]


def refuse_while_training(access: Access, because: str) -> None:
    """Raises JobRunning while a job or a hand-started mpirun runs, HostError without an answer."""
    name = access.cluster.name
    try:
        running = running_jobs(access)
        [outcome] = list_processes(access.connections, [access.head], ProcessQuery()).outcomes
        if outcome.error:
            raise outcome.error
    except HostError as error:
        raise HostError(
            error.host,
            f"cannot ask whether a job runs: {error.message}",
            "if you are sure that none does: --force",
        ) from error
    if running:
        raise job_running(name, running[-1].job_id, because)
    launchers = [process.pid for process in outcome.value or () if process.role == "launcher"]
    if launchers:
        raise JobRunning(
            f"mpirun (process {launchers[0]}) is running on {access.head.host}, and {because}",
            f"end it first (clusterctl kill {name}), or go on all the same: --force",
        )


def job_running(cluster: str, job_id: str, because: str) -> JobRunning:
    """The refusal of what would disturb that job."""
    return JobRunning(
        f"job {job_id} is running on {cluster}, and {because}",
        f"end it first (clusterctl cancel {cluster}), or go on all the same: --force",
    )


def find(access: Access, job_id: str | None) -> JobRecord:
    """That job, or the latest. Raises UsageError for an unknown id, NoJobs, HostError."""
    if job_id:
        return find_job(access.connections, access.head, job_id)
    jobs = jobs_of(access)
    if not jobs:
        name = access.cluster.name
        raise NoJobs(
            f"no job has run on {name}", f"start one: clusterctl train {name} GPUS --synthetic"
        )
    return jobs[-1]


def read_log(access: Access, job_id: str, sink: Callable[[bytes], None]) -> None:
    """The log as it is now. Raises HostError."""

    def take(stream: str, chunk: bytes) -> None:
        if stream == "stdout":
            sink(chunk)

    access.connections.run(access.head, tail_command(job_id, 0, until_end=False), sink=take)


def follow(
    access: Access,
    job_id: str,
    sink: Callable[[bytes], None],
    on_lost: Callable[[float], None],
) -> JobRecord:
    """The log until the job has ended, and what it came to.

    Raises ConnectionLost or HostUnreachable, saying that the job goes on.
    """
    name = access.cluster.name
    try:
        return follow_job(access.connections, access.head, job_id, sink, on_lost)
    except (ConnectionLost, HostUnreachable) as lost:
        raise type(lost)(
            lost.host,
            f"{lost.message}; job {job_id} goes on there",
            f"come back: clusterctl logs {name} -f; end it: clusterctl cancel {name}",
        ) from lost
