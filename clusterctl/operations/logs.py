"""The jobs of a cluster: listed, looked at, followed; and what of ours runs where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from clusterctl.domain.errors import ClusterctlError, ConnectionLost, HostError, HostUnreachable
from clusterctl.domain.results import HostOutcome
from clusterctl.jobs.detached import (
    JobRecord,
    JobRunning,
    find_job,
    follow_job,
    list_jobs,
    tail_command,
)
from clusterctl.jobs.processes import NodeProcess, ProcessQuery, all_of, list_processes
from clusterctl.operations.access import Access


class NoJobs(ClusterctlError):
    """No job has run on the cluster yet."""


def jobs_of(access: Access) -> list[JobRecord]:
    """The jobs of the cluster, oldest first. Raises HostError."""
    return list_jobs(access.connections, access.head)


def running_jobs(access: Access) -> list[JobRecord]:
    """Those that have not ended. Raises HostError."""
    return [job for job in jobs_of(access) if job.running]


@dataclass(frozen=True)
class Running:
    """What of ours runs where: the head node's jobs, and processes by node. `silent` did not say.

    A run is a job, or an mpirun that somebody started by hand. What is there without one is left
    over: ranks whose daemon or mpirun was killed, on a node that was cut off.
    """

    jobs: tuple[JobRecord, ...]
    processes: tuple[NodeProcess, ...]
    silent: tuple[HostOutcome[Any], ...] = ()

    @property
    def launchers(self) -> tuple[NodeProcess, ...]:
        return tuple(process for process in self.processes if process.role == "launcher")

    @property
    def trainings(self) -> Running:
        """The same without the jobs that copy, which share no GPU with anybody."""
        copies = {job.job_id for job in self.jobs if job.destination}
        return replace(
            self,
            jobs=tuple(job for job in self.jobs if job.job_id not in copies),
            processes=tuple(one for one in self.processes if one.job_id not in copies),
        )

    @property
    def leftovers(self) -> tuple[NodeProcess, ...]:
        """Without daemons, which end by themselves a moment after the run."""
        if self.jobs or self.launchers:
            return ()
        return tuple(process for process in self.processes if process.role != "daemon")


def what_runs(access: Access) -> Running:
    """Ask every node. What a node does not say is an outcome in `silent`."""
    silent: dict[str, HostOutcome[Any]] = {}
    jobs: list[JobRecord] = []
    try:
        # This one waits for a job that is being started, and has no process yet.
        jobs = running_jobs(access)
    except HostError as error:
        silent[error.host] = HostOutcome(error.host, error=error)
    found = list_processes(access.connections, access.targets, ProcessQuery())
    silent.update({outcome.host: outcome for outcome in found.failures})
    return Running(tuple(jobs), all_of(found), tuple(silent.values()))


def refuse_while_training(access: Access, because: str) -> None:
    """Raises JobRunning while a run goes on, HostError of a head node that does not say.

    Another node may be silent, and may have leftovers: these verbs are what mends it.
    """
    refuse_beside_a_run(access, what_runs(access), because)


def refuse_beside_a_run(access: Access, running: Running, because: str) -> None:
    """As refuse_while_training, with an answer of what_runs."""
    name = access.cluster.name
    for outcome in running.silent:
        if outcome.host == access.head.host and outcome.error:
            raise HostError(
                outcome.host,
                f"cannot ask whether a job runs: {outcome.error.message}",
                "if you are sure that none does: --force",
            ) from outcome.error
    if running.jobs:
        raise job_running(name, running.jobs[-1].job_id, because)
    for process in running.launchers:
        raise JobRunning(
            f"{process.short_command} (process {process.pid}) is running on {process.host}, "
            f"and {because}",
            f"end it first (clusterctl cancel {name}), or go on all the same: --force",
        )


def job_running(cluster: str, job_id: str, because: str) -> JobRunning:
    """The refusal of what would disturb that job."""
    return JobRunning(
        f"job {job_id} is running on {cluster}, and {because}",
        f"end it first (clusterctl cancel {cluster}), or go on all the same: --force",
    )


def find(access: Access, job_id: str | None, training: bool = False) -> JobRecord:
    """That job, or the latest, or the latest training. Raises UsageError for an unknown id, NoJobs,
    HostError."""
    if job_id:
        return find_job(access.connections, access.head, job_id)
    jobs = [job for job in jobs_of(access) if not (training and job.destination)]
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
    on_lost: Callable[[HostError, float], None],
) -> JobRecord:
    """The log until the job has ended, and what it came to.

    Raises ConnectionLost or HostUnreachable, with what was last known of it.
    """
    try:
        return follow_job(access.connections, access.head, job_id, sink, on_lost)
    except (ConnectionLost, HostUnreachable) as lost:
        again = f"then: clusterctl logs {access.cluster.name} -f --job {job_id}"
        hint = f"{lost.hint}; {again}" if lost.hint else again
        raise type(lost)(lost.host, lost.message, hint) from lost
