"""The jobs of a cluster: list, find, follow and fetch them, and find what runs on which node."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from clusterctl.domain.errors import (
    CommandFailed,
    ConnectionLost,
    HostError,
    HostUnreachable,
    NotFound,
    UsageError,
)
from clusterctl.domain.ranges import grouped
from clusterctl.domain.results import FanoutResult, HostOutcome, last_line
from clusterctl.jobs.detached import (
    JobRunning,
    LogFollower,
    find_job,
    follow_job,
    list_jobs,
    tail_command,
)
from clusterctl.jobs.processes import TIMEOUT_S, all_of, processes_in
from clusterctl.node.facts.processes import active_jobs, job_processes
from clusterctl.node.facts.report import Fact, FactReport
from clusterctl.node.jobs.processes import NodeProcess, ProcessQuery
from clusterctl.node.jobs.spec import SERVE, JobRecord, JobState
from clusterctl.operations.access import Access
from clusterctl.transport.call import facts_of, read_reports
from clusterctl.transport.connections import read_data
from clusterctl.transport.dial import Target

# The first of several steps of a remedy: they are lines, or parts between semicolons.
FIRST_STEP = re.compile(r"(?:`[^`\n]*`|\((?:[^()\n]|\([^()\n]*\))*\)|(?!; ).)*")


class NoJobs(NotFound):
    """No job has run on the cluster yet."""


def jobs_of(access: Access) -> list[JobRecord]:
    """Return the jobs of the cluster, oldest first. Raise HostError."""
    return list_jobs(access.connections, access.head)


def running_jobs(access: Access) -> list[JobRecord]:
    """Return the jobs that have not ended, queued ones included. Raise HostError."""
    return [job for job in jobs_of(access) if job.is_active]


@dataclass(frozen=True)
class RunningWork:
    """The head node's jobs that have not ended, and the processes of jobs on all nodes. `silent`
    has the outcomes of nodes that did not answer, `served_on` the names of the models by the nodes
    that serve them: those of the servers, and the head node, which runs them as jobs.

    A run is a job, or an mpirun that was started by hand. Processes without a run are leftovers:
    for example ranks whose daemon or mpirun was killed while their node was cut off.
    `are_jobs_known` is False if the head node did not report its jobs: then nothing is left over
    for certain, since the processes may be those of a running job.
    """

    jobs: tuple[JobRecord, ...]
    processes: tuple[NodeProcess, ...]
    silent: tuple[HostOutcome[Any], ...] = ()
    served_on: Mapping[str, Sequence[str]] = field(default_factory=dict)
    are_jobs_known: bool = True

    @property
    def launchers(self) -> tuple[NodeProcess, ...]:
        return tuple(process for process in self.processes if process.role == "launcher")

    @property
    def unlisted(self) -> tuple[NodeProcess, ...]:
        """The processes, without mpirun's daemons, that are of none of the head node's jobs."""
        ids = {job.job_id for job in self.jobs}
        own = (one for one in self.processes if one.role != "daemon")
        return tuple(one for one in own if one.job_id not in ids)

    @property
    def trainings(self) -> RunningWork:
        """This value without the jobs that copy data or serve a model: a training may run at the
        same time. `served_on` stays."""
        others = {job.job_id for job in self.jobs if not job.spec.is_training}
        return replace(
            self,
            jobs=tuple(job for job in self.jobs if job.job_id not in others),
            processes=tuple(one for one in self.processes if one.job_id not in others),
        )

    @property
    def leftovers(self) -> tuple[NodeProcess, ...]:
        """The processes that remain although no run is in progress.

        mpirun's daemons do not count: they exit by themselves a moment after the run.
        """
        return self._without_a_run if self.are_jobs_known else ()

    @property
    def of_unknown_jobs(self) -> tuple[NodeProcess, ...]:
        """The processes that are leftovers, or ranks of a job of which the head node reports
        nothing now."""
        return () if self.are_jobs_known else self._without_a_run

    @property
    def _without_a_run(self) -> tuple[NodeProcess, ...]:
        return () if self.jobs or self.launchers else self.unlisted


def work_facts(access: Access, target: Target) -> list[Fact]:
    """Return the facts about a node that running_work needs."""
    # A job is listed from when its runner has started. One that is just being submitted is not.
    jobs = [active_jobs] if target.host == access.head_name else []
    return [*jobs, partial(job_processes, query=ProcessQuery())]


def running_work(
    access: Access, more: Sequence[Target] = (), known: FanoutResult[FactReport] | None = None
) -> RunningWork:
    """List the jobs, and the processes of all nodes in service and of `more`. A node that does not
    answer is in `silent`. `known` are the nodes' reports, if these facts of all were read a moment
    ago.

    The nodes are read at slightly different moments, so that what a job has just started, or is
    just ending, may look as if it had no job. That is only reported if a second reading shows it,
    too.
    """
    first = _read_work(access, more, known)
    has_launcher = any(one.role == "launcher" for one in first.unlisted)
    if not first.are_jobs_known or not (has_launcher or first.trainings.leftovers):
        return first
    access.timeouts.clock.sleep(access.timeouts.second_reading_s)
    found = _read_work(access, more)
    before = {(one.host, one.pid, one.job_id) for one in first.unlisted}
    late = (one for one in found.unlisted if (one.host, one.pid, one.job_id) not in before)
    # An mpirun that somebody has started meanwhile stays.
    passing = [one for one in late if one.job_id or one.role != "launcher"]
    return replace(found, processes=tuple(one for one in found.processes if one not in passing))


def _read_work(
    access: Access, more: Sequence[Target], known: FanoutResult[FactReport] | None = None
) -> RunningWork:
    """Read once what running_work returns."""
    silent: dict[str, HostOutcome[Any]] = {}
    jobs: tuple[JobRecord, ...] = ()
    targets = {target.host: target for target in (*access.targets, *more)}
    try:
        targets.setdefault(access.head_name, access.head)
    except HostError as error:  # it is gone
        silent[error.host] = HostOutcome(error.host, error=error)
    reports = known or read_reports(
        access.connections,
        tuple(targets.values()),
        partial(work_facts, access),
        "reading the jobs",
        TIMEOUT_S,
    )
    heads = tuple(one for one in reports.outcomes if one.host == access.head_name)
    for outcome in facts_of(FanoutResult(heads), active_jobs, "reading the jobs").outcomes:
        jobs = outcome.value or ()
        if outcome.error:
            silent[outcome.host] = outcome
    found = processes_in(reports)
    silent.update({outcome.host: outcome for outcome in found.failures})
    processes = tuple(all_of(found))
    serving = [job for job in jobs if job.spec.preset == SERVE]
    served_on = grouped(
        (host, _model(job))
        for job in serving
        for host in dict.fromkeys((*job.spec.hosts, access.head_name))
    )
    are_jobs_known = access.head_name not in silent
    return RunningWork(jobs, processes, tuple(silent.values()), served_on, are_jobs_known)


def refuse_while_training(
    access: Access, because: str, targets: Sequence[Target] | None = None
) -> None:
    """Raise JobRunning while a run is in progress, or while one of `targets` (None: the nodes in
    service) serves a model. Raise HostError if the head node does not answer.

    `because` completes the message. `targets` are the nodes that the operation disturbs. Other
    nodes that do not answer, and leftover processes, do not count: the commands that call this are
    among those that repair such nodes.
    """
    running = running_work(access, targets or ())
    refuse_while_running(access, running, because, targets)


def refuse_while_running(
    access: Access, running: RunningWork, because: str, targets: Sequence[Target] | None = None
) -> None:
    """Do the same as refuse_while_training with `running`, an earlier result of running_work."""
    name = access.cluster.name
    for outcome in running.silent:
        if outcome.host == access.head_name and outcome.error:
            before = f"{outcome.error.hint}; or, " if outcome.error.hint else ""
            raise HostError(
                outcome.host,
                f"cannot ask whether a job runs: {outcome.error.message}",
                f"{before}if you are sure that none does: --force",
            ) from outcome.error
    jobs = [job for job in running.jobs if job.spec.preset != SERVE]
    if jobs:
        # The first job runs; the others may be queued behind it.
        raise job_running(name, jobs[0].job_id, because)
    for process in running.launchers:
        raise JobRunning(
            f"{process.short_command} (process {process.pid}) is running on {process.host}, "
            f"and {because}",
            f"wait for its end, or end it and all jobs (clusterctl cancel {name}), or go on all "
            "the same: --force",
        )
    disturbed = {target.host for target in (access.targets if targets is None else targets)}
    served, models = [], []
    for job in running.jobs:  # by now, all serve a model
        host, model = job.spec.hosts[0], _model(job)
        if {host, access.head_name} & disturbed:
            by = "" if host in disturbed else f" by {access.head_name}"
            served.append(f"model {model} is served on {host}{by}")
            models.append(model)
    if served:
        raise _in_use(", ".join(served), because, stop_commands(name, models))


def _model(job: JobRecord) -> str:
    return job.spec.destination.removeprefix("model ")


def stop_commands(cluster: str, models: Iterable[str]) -> str:
    """Return the commands that end these served models."""
    return "; ".join(f"clusterctl serve {cluster} --stop --model {model}" for model in models)


def job_running(cluster: str, job_id: str, because: str) -> JobRunning:
    """Return the error that refuses an operation which would disturb the running job."""
    return _in_use(f"job {job_id} is running on {cluster}", because, f"clusterctl cancel {cluster}")


def _in_use(what: str, because: str, end: str) -> JobRunning:
    hint = f"end it first ({end}), or go on all the same: --force"
    return JobRunning(f"{what}, and {because}", hint)


def find(
    access: Access, job_id: str | None, training: bool = False, latest: bool = False
) -> JobRecord:
    """Return the job `job_id`. With None, return the latest job that has started and serves no
    model.

    With `training`, jobs that copy data do not count. With `latest`, queued jobs count, too. If
    all jobs are queued, return the last one. Raise NotFound for an unknown id, NoJobs, HostError.
    """
    if job_id is not None:
        return find_job(access.connections, access.head, job_id, access.cluster.name)
    jobs = [job for job in jobs_of(access) if not (training and not job.spec.is_training)]
    jobs = [job for job in jobs if job.spec.preset != SERVE]
    if not jobs:
        name = access.cluster.name
        raise NoJobs(
            f"no job is on record on {name}: none has run, or `clean-logs` has removed them",
            f"start one: clusterctl train {name} GPUS --synthetic",
        )
    started = [job for job in jobs if job.state is not JobState.QUEUED]
    return (jobs if latest or not started else started)[-1]


def check_rank(job: JobRecord, rank: int) -> None:
    """Raise NotFound if the job has no logs by rank, UsageError if it has no such rank."""
    if not job.by_rank:
        raise NotFound(
            f"of job {job.job_id} there are no logs by rank",
            "it is a copy, sets mpirun's output (--mpi-arg), or was started by an older clusterctl",
        )
    if rank >= job.spec.ranks:
        raise UsageError(
            f"job {job.job_id} has no rank {rank}", f"--rank 0 to {job.spec.ranks - 1}"
        )


def read_log(
    access: Access, job: JobRecord, sink: Callable[[bytes], None], rank: int | None = None
) -> None:
    """Pass the present content of a job's log, or of one rank's, to `sink`. Raise HostError.

    A job that has not ended may have no log yet, and a rank that has written nothing has none. An
    ended job without a readable log is a CommandFailed.
    """
    command = tail_command(job.job_id, 0, until_end=False, rank=rank)
    result = read_data(access.connections, access.head, command, sink)
    if not result.ok and rank is None and not job.is_active:
        why = last_line(result.stderr)
        raise CommandFailed(result.host, f"the log of job {job.job_id} cannot be read: {why}")


def follow(
    access: Access, job_id: str, log: LogFollower, last_read: JobRecord | None = None
) -> JobRecord:
    """Pass the job's log to the follower until the job ends; return its record.

    For `last_read` see follow_job. Raise ConnectionLost or HostUnreachable, with the last known
    state of the job and the command that follows it again, if its log can still exist.
    """
    try:
        return follow_job(
            *(access.connections, access.head, job_id, log, last_read, access.timeouts)
        )
    except (ConnectionLost, HostUnreachable) as lost:
        again = f"then: clusterctl logs {access.cluster.name} {job_id} -f"
        if lost.is_gone:
            again = "then start the job again: its log was on the disk that is gone"
        hint = f"{lost.hint}; {again}" if lost.hint else again
        raise type(lost)(lost.host, lost.message, hint) from lost


def wait_for(access: Access, last_read: JobRecord) -> JobRecord:
    """Wait until the job has ended and return its record. Raise the errors of follow_job."""
    where = (access.connections, access.head, last_read.job_id)
    return follow_job(*where, LogFollower(), last_read, access.timeouts)


def with_reasons(access: Access, job: JobRecord) -> JobRecord:
    """Return the record with `reasons` in each attempt that lost nodes: node name -> why. A node
    that only booted has none, unless its machine is not in the cluster any more."""
    there = {node.instance_id for node in access.cluster.nodes}

    def explained(attempt: dict[str, Any]) -> dict[str, Any]:
        notices, machines = (attempt.get(key) or {} for key in ("notices", "machines"))
        booted = (name for name in attempt.get("rebooted") or () if machines.get(name))
        gone = (name for name in booted if machines[name] not in there)
        lost = [*(attempt.get("silent") or ()), *gone]
        reasons = {
            name: access.why_lost(name, machines.get(name, ""), notices.get(name) or {})
            for name in lost
        }
        return {**attempt, "reasons": reasons} if lost else attempt

    attempts = tuple(map(explained, job.status.attempts))
    return replace(job, status=replace(job.status, attempts=attempts))


def lost_in(attempt: Mapping[str, Any]) -> str:
    """Return what an attempt lost: `demo-1: a spot interruption`; empty if it lost no node."""
    if not attempt.get("lost"):
        return ""
    names: dict[str, list[str]] = {}
    for name in (*attempt.get("silent", ()), *attempt.get("rebooted", ())):
        names.setdefault((attempt.get("reasons") or {}).get(name, ""), []).append(name)
    texts = [", ".join(lost) + (f": {why}" if why else "") for why, lost in names.items()]
    # mpirun lost its daemon on a node, and no node was found to be gone.
    return "; ".join(texts) or "mpirun's daemon on a node"


# Signatures of a node that does not answer.
UNREACHABLE = ("ssh.timeout", "ssh.no-route")


def first_error(log: Path, is_lost: bool = False) -> list[str]:
    """Return `explain`'s lines about the first error of a log; an empty list if it finds none.

    `is_lost`: the job lost a node, whose state is known from EC2. The log's error that it did not
    answer is then no more than that, and has no causes and hints of its own.
    """
    from clusterctl.explain.engine import explain

    with log.open("rb") as file:
        found = explain(iter(lambda: file.read(1 << 20), b""))
    lead = found.lead
    if found.exit_without_error:
        return [found.exit_without_error]
    if lead:
        # Those of this line: `lead.ranks` and `lead.hosts` are of all lines of this kind.
        where = "".join(
            f", {word}{lead.values[name]}"
            for name, word in (("rank", "rank "), ("host", ""))
            if lead.values.get(name)
        )
        first = f"first error, line {lead.line}{where}: {lead.text[:200]}"
        if is_lost and lead.signature.id in UNREACHABLE:
            return [first]
        texts = [first, f"  {lead.cause}"]
        if lead.remedy:
            step = FIRST_STEP.findall(lead.remedy)[0]
            texts.append(f"  hint: {step}")
            if step != lead.remedy:
                texts.append(f"  other causes and hints: clusterctl explain {quote(str(log))}")
        return texts
    return [f"first error, line {one.line}: {one.text[:200]}" for one in found.unknown[:1]]
