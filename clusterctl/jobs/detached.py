"""Jobs on the head node that outlive the SSH connection which started them.

Starts, lists and ends them, and follows their logs across lost connections.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from clusterctl.domain.errors import (
    ClusterctlError,
    CommandFailed,
    CommandTimeout,
    ConnectionLost,
    HostError,
    HostUnreachable,
    Interrupted,
    NotFound,
)
from clusterctl.domain.results import make_room
from clusterctl.domain.timeouts import Timeouts
from clusterctl.jobs.plan import JOBS_FOLDER, JobPlan
from clusterctl.node.jobs.jobs import Submission, Submitted, cancel, submit
from clusterctl.node.jobs.listing import find_jobs
from clusterctl.node.jobs.spec import LOG_NAME, JobRecord, JobSpec, JobStep, When
from clusterctl.node.packer import program_of
from clusterctl.node.procfs import JOB_VARIABLE
from clusterctl.node.record import pick
from clusterctl.transport.call import NodeCall, call
from clusterctl.transport.connections import Connections, read_data
from clusterctl.transport.dial import Target

# Programs for the head node.
JOBS = program_of("clusterctl.node.jobs.jobs")
RUNNER = program_of("clusterctl.node.jobs.runner")
COLLECT = program_of("clusterctl.node.scripts.collect")
COLLECT_FILE = "collect.py"  # in the job's folder
TIMEOUT_S = 60.0
START_WITHIN_S = 120.0  # what a lost job has left on any node is ended first
CANCEL_WITHIN_S = 150.0  # see CANCEL_TIMEOUT_S of node/jobs/jobs.py


class JobRunning(ClusterctlError):
    """Another job is running on the cluster."""


def spec_of(plan: JobPlan, **more: Any) -> JobSpec:
    """Return the specification of a planned job. `more` are further fields, or other values. Pure.

    With `retries`, the job is started again so often after a lost node, on `min_ranks` ranks or
    more.
    """
    steps = [JobStep(plan.argv)]
    if plan.evaluation:
        steps.append(JobStep(plan.evaluation, When.SUCCESS))
    if plan.contract:
        # Of a program that failed, too: what it left may show why.
        folder = f"{plan.home}/{JOBS_FOLDER}/{plan.job_id}"
        collect = ("python3", "-ISu", f"{folder}/{COLLECT_FILE}", folder)
        steps.append(JobStep(collect, When.ALWAYS))
    fields: dict[str, Any] = {
        "steps": tuple(steps),
        "log_name": plan.run.log_name if plan.run else LOG_NAME,
        "variables": {one.name: None if one.private else one.value for one in plan.variables},
        "recipe": plan.recipe.as_data() if plan.recipe else None,
        "min_ranks": plan.ranks,
        "batch_size": plan.run.batch_size if plan.run else None,
        "code": None,  # the plan's is a folder
    }
    return pick(JobSpec, plan, **{**fields, **more})


def submission_of(plan: JobPlan, spec: JobSpec, how: str = "refuse") -> Submission:
    """Return the request to start a planned job with this specification. Pure."""
    private = {one.name: one.value for one in plan.variables if one.private}
    return Submission(spec, how, private, {COLLECT_FILE: COLLECT.text} if plan.contract else {})


def start_job(
    connections: Connections, head: Target, request: Submission, cluster: str
) -> Submitted:
    """Start a job on the head node.

    Raises JobRunning if another job is in its way and the request refuses that, and CommandFailed
    if the job could not be started. If it may have been started all the same, the message of
    ConnectionLost or KeyboardInterrupt has that.
    """
    spec = request.spec
    lines = [shlex.join(one.argv) for one in spec.steps if one.when is not When.ALWAYS]
    # Its lines are a file of their own, for a user.
    files = {"command": " &&\n".join(lines) + "\n", **request.files}
    try:
        shipped = replace(request, files=files)
        runner = RUNNER.text.encode()
        submission = NodeCall(submit, shipped, "starting the job", START_WITHIN_S, runner)
        started = call(connections, head, submission)
    except (CommandTimeout, ConnectionLost) as lost:
        raise ConnectionLost(
            lost.host,
            f"{lost.message}; job {spec.job_id} may run there all the same",
            f"see whether it does: clusterctl jobs {cluster}",
        ) from lost
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted; job {spec.job_id} may run all the same: see `clusterctl jobs {cluster}`"
        ) from None
    except CommandFailed as failed:
        if hint := make_room(failed.message, cluster):
            message = f"job {spec.job_id} was not started: its disk is full"
            raise CommandFailed(failed.host, message, hint) from failed
        raise
    if started.busy:
        raise job_running_error(started.busy, cluster, spec.destination)
    return started


def job_running_error(job_id: str, cluster: str, destination: str = "") -> JobRunning:
    """Return the error for a job that is in the way: for a copy, one to the same `destination`."""
    if destination:
        return JobRunning(
            f"job {job_id} copies to {destination} on {cluster} already",
            f"follow it (clusterctl logs {cluster} {job_id} -f), or end it "
            f"(clusterctl cancel {cluster} {job_id}): what it has copied is kept",
        )
    return JobRunning(
        f"job {job_id} is running on {cluster}",
        f"follow it (clusterctl logs {cluster} -f), end it (clusterctl cancel {cluster}), "
        "start this one after it (--queue) or alongside it (--force)",
    )


def list_jobs(connections: Connections, head: Target, job_id: str = "") -> list[JobRecord]:
    """Return the jobs of the head node, oldest first, or the one `job_id`. Raises HostError."""
    return [*call(connections, head, NodeCall(find_jobs, job_id, "reading the jobs", TIMEOUT_S))]


def find_job(
    connections: Connections, head: Target, job_id: str, cluster: str = "NAME"
) -> JobRecord:
    """Return the record of one job. Raises NotFound if there is none of that id; HostError."""
    jobs = list_jobs(connections, head, job_id)
    if not jobs:
        raise NotFound(f"there is no job {job_id}", f"see `clusterctl jobs {cluster}`")
    return jobs[0]


def end_job(connections: Connections, head: Target, job_id: str) -> bool:
    """Cancel a job, wait for its end, and return whether it has ended. Raises HostError."""
    return call(connections, head, NodeCall(cancel, job_id, "ending the job", CANCEL_WITHIN_S))


BETWEEN_POLLS_S = 0.2


def tail_command(
    job_id: str, offset: int, until_end: bool, silent: bool = False, rank: int | None = None
) -> str:
    """Return the command that prints a job's log, or that of one rank, from byte `offset` on.

    With `until_end` it follows the log until the job has ended. `silent`: print nothing, only wait.
    """
    folder = f'"$HOME"/.clusterctl/jobs/{job_id}'
    log = "log" if rank is None else f"log-{rank}"
    path = "/dev/null" if silent else f"{folder}/{log}"
    tail = f"exec tail -c +{offset + 1}"
    if not until_end:
        return f"{tail} {path}"
    # JobFolder.signal_runner in shell: Python would start too late for each log that is followed.
    # If there is no such process here, what is there is printed, and the caller polls again.
    return (
        f"read -r pid boot _ <{folder}/lock; read -r now </proc/sys/kernel/random/boot_id; "
        f'[ "$boot" = "$now" ] && grep -qzxF {JOB_VARIABLE}={job_id} "/proc/$pid/environ" '
        f'2>/dev/null && {tail} -f -s 0.05 --pid="$pid" {path}; {tail} {path}'
    )


@dataclass(frozen=True)
class LogFollower:
    """Who follows a job's log, or that of one rank: `sink` gets it, and None only waits.

    After a lost connection, `on_lost(why, delay_s)` is called before each new attempt.
    """

    sink: Callable[[bytes], None] | None = None
    on_lost: Callable[[HostError, float], None] = lambda why, delay_s: None
    rank: int | None = None


def follow_job(
    connections: Connections,
    head: Target,
    job_id: str,
    log: LogFollower,
    last_read: JobRecord | None = None,
    timeouts: Timeouts = Timeouts(),
) -> JobRecord:
    """Pass a job's log to the follower until the job has ended. Return its record.

    `last_read` is the job's record, if the caller has just queried it. After a lost connection the
    log continues at the byte where it broke; there are as many new attempts in a row as
    `reconnect_after_s` has delays. Raises ConnectionLost or HostUnreachable, with the last known
    state of the job, if the head node is off or if all attempts in a row fail. Raises NotFound if
    there is no such job.
    """
    failures, offset, known = 0, 0, f"of job {job_id} no message arrived"
    polled_again = False
    while True:
        received = _Counter(log.sink or (lambda chunk: None))
        try:
            job, last_read = last_read or find_job(connections, head, job_id), None
            known = _known(job)
            silent = log.sink is None
            command = tail_command(job_id, offset, job.is_active, silent=silent, rank=log.rank)
            read_data(connections, head, command, received)
            if not job.is_active:
                return job
            # The job has ended, unless its runner was not there yet, or its end is not recorded.
            if polled_again:
                timeouts.clock.sleep(BETWEEN_POLLS_S)
            polled_again = True
        except (ConnectionLost, HostUnreachable) as lost:
            failures = 1 if received.count else failures + 1
            if received.count:
                known = _known(job, received.at)
            if lost.is_off or failures > len(timeouts.reconnect_after_s):
                now = "it ended with its node" if lost.is_gone else "its current state is unknown"
                last = type(lost)(lost.host, f"{lost.message}; {known}; {now}", lost.hint)
                last.is_gone = lost.is_gone
                raise last from lost
            delay_s = timeouts.reconnect_after_s[failures - 1]
            log.on_lost(lost, delay_s)
            connections.forget(head)
            timeouts.clock.sleep(delay_s)
        offset += received.count


def _known(job: JobRecord, line_at: datetime | None = None) -> str:
    """Return in words what is known of a job on a head node that does not answer."""
    at = line_at or datetime.now(timezone.utc)
    what = "wrote its last line that came" if line_at else f"was {job.state}"
    return f"job {job.job_id} {what} at {at:%H:%M:%S} UTC"


class _Counter:
    """Passes chunks to a sink, counts its bytes, and keeps the time of the last chunk."""

    def __init__(self, sink: Callable[[bytes], None]) -> None:
        self._sink = sink
        self.count = 0
        self.at: datetime | None = None

    def __call__(self, chunk: bytes) -> None:
        self.count += len(chunk)
        self.at = datetime.now(timezone.utc)
        self._sink(chunk)
