"""Jobs on the head node that outlive the SSH connection which started them.

Starts, lists and ends them, and follows their logs across lost connections.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from enum import Enum
from types import MappingProxyType
from typing import Any

from clusterctl.bootstrap.head_programs import FOLDER
from clusterctl.domain.errors import (
    ClusterctlError,
    CommandFailed,
    CommandTimeout,
    ConnectionLost,
    HostError,
    HostUnreachable,
    UsageError,
)
from clusterctl.domain.results import CommandResult, json_line, json_lines
from clusterctl.domain.timeouts import Timeouts
from clusterctl.jobs.plan import JobPlan
from clusterctl.node.jobs.jobs import METRICS
from clusterctl.node.jobs.lost_daemon import LOST_DAEMON
from clusterctl.node.packer import program_of
from clusterctl.transport.connections import Connections
from clusterctl.transport.data import read_data
from clusterctl.transport.target import Target


class JobState(Enum):
    """The state of a job (docs/jobs.md)."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    # The job's process is gone without an exit status: a reboot, or a kill -9.
    LOST = "lost"


@dataclass(frozen=True)
class JobRecord:
    """The record of one job. The docstring of node/jobs/jobs.py describes the files it is from.

    `exit_status` is None for a job that has not ended, or that is lost. `line` is the whole command
    line, `evaluation` that of the evaluation after a training. `log_dir` is the trainer's log
    folder on the head node, `log_name` the name of the log in it. `variables` and `mpi_arguments`
    are the user's; the value of a private variable is None. `destination` is where a copy puts its
    data. `watchdog` has the watchdog's messages. `by_rank`: each rank has a log of its own.
    `waits_for` are the jobs before this one in the queue. `retries` is that of `train --retries`.
    `model_dir` is where the model of a script-mode program is uploaded; empty if it stays on the
    head node, None for any other job. `metric_definitions` are those of a script-mode program.
    `usd_per_hour` is what the nodes cost together when the job began, `list_usd_per_hour` AWS's
    price for their types on demand; None if unknown. `recipe` is the trainer's recipe
    (recipe.JobRecipe.as_data), None for any other job. `nodes` is the content of nodes.json; empty
    unless the job was queried by its id. What does not apply is empty.
    """

    job_id: str
    state: JobState
    exit_status: int | None
    started_at: datetime
    duration_s: float
    ranks: int
    preset: str
    line: str
    log_bytes: int
    evaluation: str = ""
    log_dir: str = ""
    log_name: str = "hvd_train.log"
    variables: Mapping[str, str | None] = field(default_factory=dict)
    mpi_arguments: tuple[str, ...] = ()
    destination: str = ""
    watchdog: tuple[str, ...] = ()
    by_rank: bool = False
    argv: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    usd_per_hour: float | None = None
    list_usd_per_hour: float | None = None
    git: Mapping[str, Any] | None = None
    nodes: tuple[Mapping[str, Any], ...] = ()
    attempts: tuple[Mapping[str, Any], ...] = ()
    retries: int = 0
    step: int | None = None
    images_per_s: float | None = None
    waits_for: tuple[str, ...] = ()
    rebooted: bool = False
    model_dir: str | None = None
    metric_definitions: Mapping[str, str] = field(default_factory=dict)
    recipe: Mapping[str, Any] | None = None

    @property
    def unended(self) -> bool:
        """Whether the job is running or queued."""
        return self.state in (JobState.RUNNING, JobState.QUEUED)

    @property
    def usd(self) -> float | None:
        """The cost of the job's nodes while it ran, in US dollars; None if a price is unknown."""
        if self.usd_per_hour is None:
            return None
        return 0.0 if self.state is JobState.QUEUED else self.usd_per_hour * self.duration_s / 3600

    @property
    def ended_at(self) -> datetime:
        """When the job ended. For a job that has not ended, the time of the query."""
        return self.started_at + timedelta(seconds=self.duration_s)

    def as_data(self) -> dict[str, Any]:
        """Return the record for `--json`."""
        return {
            "id": self.job_id,
            "state": self.state.value,
            "exit_status": self.exit_status,
            "waits_for": list(self.waits_for),
            "head_rebooted": self.rebooted,
            "started_at": self.started_at.isoformat(),
            "ended_at": None if self.unended else self.ended_at.isoformat(),
            "duration_s": round(self.duration_s, 1),
            "usd": None if self.usd is None else round(self.usd, 4),
            "usd_per_hour": self.usd_per_hour,
            "list_usd_per_hour": self.list_usd_per_hour,
            "step": self.step,
            "images_per_s": self.images_per_s,
            "hosts": list(self.hosts),
            "argv": list(self.argv),
            "git": None if self.git is None else dict(self.git),
            "attempts": [dict(one) for one in self.attempts],
            **({"nodes": [dict(one) for one in self.nodes]} if self.nodes else {}),
            "gpus": self.ranks,
            "preset": self.preset,
            "line": self.line,
            "evaluation": self.evaluation,
            "recipe": None if self.recipe is None else dict(self.recipe),
            "variables": dict(self.variables),
            "mpi_arguments": list(self.mpi_arguments),
            "log_dir": self.log_dir,
            "destination": self.destination,
            "model_dir": self.model_dir,
            "watchdog": list(self.watchdog),
            "log_bytes": self.log_bytes,
        }


def parse_jobs(result: CommandResult) -> list[JobRecord]:
    """Return the jobs that `node/jobs/jobs.py list` printed, oldest first. Raises CommandFailed."""
    return [read_record(described) for described in json_lines(result, "looking at the jobs")]


def read_record(described: dict[str, Any]) -> JobRecord:
    """Return the record in a JSON object of `node/jobs/jobs.py list`.

    The head node's clock measures the duration, also of a job that has not ended.
    """
    plan = described.get("plan") or {}
    state = _state(described)
    started = described["started_at"] or described["now"]
    ended = described["ended_at"] or started
    if state in (JobState.RUNNING, JobState.QUEUED):
        ended = described["now"]
    row = described.get("row") or {}
    return JobRecord(
        job_id=described["id"],
        state=state,
        exit_status=described["exit_status"],
        started_at=datetime.fromtimestamp(started, timezone.utc),
        duration_s=max(0.0, ended - started),
        ranks=int(plan.get("ranks", 0)),
        preset=str(plan.get("preset", "")),
        line=str(plan.get("line", "")),
        log_bytes=described["log_bytes"],
        evaluation=str(plan.get("evaluation", "")),
        log_dir=str(plan.get("log_dir", "")),
        log_name=str(plan.get("log_name") or JobRecord.log_name),
        variables=plan.get("variables", {}),
        mpi_arguments=tuple(plan.get("mpi_arguments", ())),
        destination=str(plan.get("destination", "")),
        watchdog=tuple(described.get("watchdog", "").splitlines()),
        by_rank=bool(described.get("by_rank")),
        argv=tuple(plan.get("argv", ())),
        hosts=tuple(plan.get("hosts", ())),
        usd_per_hour=plan.get("usd_per_hour"),
        list_usd_per_hour=plan.get("list_usd_per_hour"),
        git=plan.get("git"),
        nodes=tuple(described.get("nodes", ())),
        attempts=tuple(described.get("attempts", ())),
        retries=int(plan.get("retries", 0)),
        step=row.get("step"),
        images_per_s=row.get("images_per_s"),
        waits_for=tuple(described.get("waits_for", ())),
        rebooted=bool(described.get("rebooted")),
        model_dir=plan.get("model_dir"),
        metric_definitions=plan.get("metric_definitions", {}),
        recipe=plan.get("recipe"),
    )


def _state(described: dict[str, Any]) -> JobState:
    if described["exit_status"] is None:
        if described["running"]:
            return JobState.QUEUED if described.get("queued") else JobState.RUNNING
        return JobState.CANCELLED if described["cancelled"] else JobState.LOST
    if described["exit_status"] == 0:
        return JobState.SUCCEEDED
    return JobState.CANCELLED if described["cancelled"] else JobState.FAILED


# Programs for the head node.
JOBS = program_of("clusterctl.node.jobs.jobs")
AFTER = program_of("clusterctl.node.jobs.after")
OUTPUT = program_of("clusterctl.node.jobs.output")
COLLECT = program_of("clusterctl.node.scripts.collect")
TIMEOUT_S = 60.0


class JobRunning(ClusterctlError):
    """Another job is running on the cluster."""


def job_files(plan: JobPlan, record: Mapping[str, Any] = MappingProxyType({})) -> dict[str, str]:
    """Return the files of the job's folder by name: its record, its lines, the programs it needs.

    `record` has further keys for job.json, or other values: with its `retries`, the job is started
    again so often after a lost node, on `min_ranks` ranks or more.
    """
    description = {
        "ranks": plan.ranks,
        "preset": plan.preset,
        "synthetic": plan.synthetic,
        "workdir": plan.workdir,
        "log_dir": plan.log_dir,
        "log_name": plan.run.log_name if plan.run else "",
        "argv": plan.argv,
        "script": plan.script_path,
        "retries": 0,
        "min_ranks": plan.ranks,
        "line": plan.line,
        "evaluation": plan.evaluation_line,
        "variables": {one.name: None if one.private else one.value for one in plan.variables},
        "mpi_arguments": plan.mpi_arguments,
        "tag_end": plan.tag_end,
        "torchrun": plan.torchrun,
        "destination": plan.destination,
        "output": plan.output,
        "recipe": plan.recipe.as_data() if plan.recipe else None,
        **record,
    }
    files = {
        "command": " &&\n".join(plan.lines) + "\n",
        "job.json": json.dumps(description, indent=1) + "\n",
        "run": run_script(plan),
    }
    if not plan.destination:
        files["after.py"] = AFTER.text
    if plan.tag_end:
        # Created in advance, since the disk may be full when a rank first writes.
        files |= {f"log-{rank}": "" for rank in range(plan.ranks)}
    if plan.contract:
        files["collect.py"] = COLLECT.text
    if plan.watchdog:
        files["watchdog.json"] = plan.watchdog
    private = {one.name: one.value for one in plan.variables if one.private}
    if private:
        files["environment"] = json.dumps(private)
    if plan.tag_end or private:
        files["output.py"] = OUTPUT.text
    return files


def run_script(plan: JobPlan) -> str:
    """Return the shell script that runs the job's lines, logs their output and keeps the status.

    The evaluation runs if the training succeeded and nobody cancelled the job; its line precedes
    its output in the log. After a failure after.py runs: its status 0 means to start again.
    """
    private = any(one.private for one in plan.variables)
    by = _BY_OUTPUT if plan.tag_end or private else ""
    line = plan.evaluation_line
    evaluation = _EVALUATION.format(line=by + line, quoted=shlex.quote(line)) if line else ""
    path = shlex.quote(f"{plan.log_dir}/{METRICS}")
    metrics = _METRICS.format(path=path, name=METRICS) if plan.log_dir else ""
    after = "" if plan.destination else _AFTER.format(by=by)
    collect = _COLLECT if plan.contract else ""
    watchdog = _WATCHDOG.format(job_id=plan.job_id) if plan.watchdog else ""
    return f"""\
#!/bin/sh
# Job {plan.job_id} of clusterctl. TERM ends it: `clusterctl cancel` sends that here.
folder=$(cd "$(dirname "$0")" && pwd) || exit
# Written over what was reserved: on a full disk there is no room for another file.
keep() {{ printf '%s\\n' "$2" 1<>"$folder/$1"; }}
{_PRIVATE if private else ""}keep pid $$ || exit
{_TURN}{watchdog}echo "job {plan.job_id}: its output is in $folder/log"
ended=
line=
trap 'ended=yes; [ -z "$line" ] || kill -TERM "$line" 2>/dev/null' TERM INT HUP
run() {{
    before=$(wc -c <"$folder/log")
    (
        cd {shlex.quote(plan.workdir)} && exec "$@"
    ) </dev/null >>"$folder/log" 2>&1 &
    line=$!
    # The signal may have come before there was a line to pass it to.
    [ -z "$ended" ] || kill -TERM "$line" 2>/dev/null
    wait "$line"
    status=$?
    # A signal ends the first wait early; the line's own end is what counts.
    while kill -0 "$line" 2>/dev/null; do
        wait "$line"
        status=$?
    done
    line=
    # Open MPI 5 says 0, too, when it has lost a node.
    if [ "$status" -eq 0 ] && tail -c +$((before + 1)) "$folder/log" |
        grep -qE {shlex.quote(LOST_DAEMON)}; then
        status={ConnectionLost.exit_status}
    fi
}}
run {by}{plan.line}
{after}{evaluation}{metrics}{collect}keep exit_status "$status"
"""


# Wait for the jobs before this one in the queue. The environment of a process tells whether it is
# that job: Linux may have given the job's process number to another process.
_TURN = """\
if [ -e "$folder/after" ]; then
    for id in $(cat "$folder/after"); do
        while grep -qzxF "CLUSTERCTL_JOB=$id" "/proc/$(cat "$folder/../$id/pid")/environ"; do
            sleep 1
        done 2>/dev/null
    done
    mv "$folder/after" "$folder/waited" && touch "$folder/waited"
fi
touch "$folder/exit_status"
"""
_AFTER = """\
while [ "$status" -ne 0 ] && [ -z "$ended" ]; do
    failed=$status
    run python3 -ISu "$folder/after.py" "$folder" "$failed" "$before"
    if [ "$status" -ne 0 ]; then
        status=$failed
        break
    fi
    . "$folder/again"
    run {by}"$@"
done
"""
# Collect the files of a program that failed, too: they may tell why. Not of one that was cancelled,
# since `run` stops whatever it starts then.
_COLLECT = """\
if [ -z "$ended" ]; then
    ended_with=$status
    run python3 -ISu "$folder/collect.py" "$folder"
    [ "$ended_with" -eq 0 ] || status=$ended_with
fi
"""
# Copy the trainer's rows, since a later job may delete them. A file older than exit_status, which
# is touched when the job starts, is from an earlier job.
_METRICS = """\
if [ {path} -nt "$folder/exit_status" ]; then
    cp {path} "$folder/{name}" 2>/dev/null || rm -f "$folder/{name}"
fi
"""


# Unlink the file of private variables before the script writes its pid: from then on the job may be
# killed, and must leave no file with secrets. output.py reads them from the open descriptor 3.
_PRIVATE = """\
exec 3<"$folder/environment" && rm -f "$folder/environment" || exit
"""
# output.py sets the private variables, not this shell: one may have the name of a variable of this
# script, or a name that shells do not let be set (PPID), and a PATH is meant for the ranks.
_BY_OUTPUT = 'python3 -ISu "$folder/output.py" "$folder" '
# The watchdog runs without the job's variable and in a session of its own, since it may cancel the
# job, and since it must survive when the leftovers of a failed attempt are killed.
_WATCHDOG = f"""\
(env -u CLUSTERCTL_JOB setsid "$HOME"/{FOLDER}/bin/clusterctl-watchdog {{job_id}} \\
    </dev/null >"$folder/watchdog.log" 2>&1 &)
"""
# 143 is the status of a process killed by TERM: the job was cancelled between its two lines.
_EVALUATION = """\
if [ "$status" -eq 0 ] && [ -n "$ended" ]; then
    status=143
elif [ "$status" -eq 0 ]; then
    printf '+ %s\\n' {quoted} >>"$folder/log"
    run {line}
fi
"""


@dataclass(frozen=True)
class Started:
    """How a job was started: what it runs in (`tmux session …`, `nohup`), and which jobs it waits
    for."""

    runs_in: str
    after: tuple[str, ...] = ()


def start_job(
    connections: Connections,
    head: Target,
    plan: JobPlan,
    cluster: str,
    how: str = "refuse",
    more_files: Mapping[str, str] = MappingProxyType({}),
    record: Mapping[str, Any] = MappingProxyType({}),
) -> Started:
    """Start a job on the head node.

    `how` decides what happens if other jobs are running: start beside them ("force"), start after
    them ("queue"), or raise JobRunning ("refuse"). `more_files` go into the job's folder, `record`
    into its job.json. Raises CommandFailed if the job could not be started. If it may have been
    started all the same, the message of ConnectionLost or KeyboardInterrupt says so.
    """
    try:
        result = connections.run(
            head,
            JOBS.command("start", plan.job_id, how),
            stdin=JOBS.stdin(json.dumps({**job_files(plan, record), **more_files}).encode()),
            timeout_s=TIMEOUT_S,
        )
    except (CommandTimeout, ConnectionLost) as lost:
        raise ConnectionLost(
            lost.host,
            f"{lost.message}; job {plan.job_id} may run there all the same",
            f"see whether it does: clusterctl jobs {cluster}",
        ) from lost
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"interrupted; job {plan.job_id} may run all the same: see `clusterctl jobs {cluster}`"
        ) from None
    if os.strerror(errno.ENOSPC) in result.stderr:
        raise CommandFailed(
            result.host,
            f"job {plan.job_id} was not started: its disk is full",
            f"make room: clusterctl disk {cluster}, clusterctl clean-logs {cluster} --jobs",
        )
    answer = json_line(result, "starting the job")
    if "busy" in answer:
        raise job_running_error(str(answer["busy"]), cluster, plan.destination)
    return Started(str(answer["with"]), tuple(answer.get("after", ())))


def job_running_error(job_id: str, cluster: str, destination: str = "") -> JobRunning:
    """Return the error for a job that is in the way: for a copy, one to the same `destination`."""
    if destination:
        return JobRunning(
            f"job {job_id} copies to {destination} on {cluster} already",
            f"follow it (clusterctl logs {cluster} {job_id} -f), or end it "
            f"(clusterctl cancel {cluster} {job_id}): what it has brought is kept",
        )
    return JobRunning(
        f"job {job_id} is running on {cluster}",
        f"follow it (clusterctl logs {cluster} -f), end it (clusterctl cancel {cluster}), "
        "start this one after it (--queue) or beside it (--force)",
    )


def list_jobs(connections: Connections, head: Target, job_id: str | None = None) -> list[JobRecord]:
    """Return the jobs of the head node, oldest first, or the one `job_id`. Raises HostError."""
    arguments = [job_id] if job_id else []
    result = connections.run(
        head, JOBS.command("list", *arguments), stdin=JOBS.stdin(), timeout_s=TIMEOUT_S
    )
    return parse_jobs(result)


def find_job(connections: Connections, head: Target, job_id: str) -> JobRecord:
    """Return the record of one job. Raises UsageError if there is none of that id; HostError."""
    jobs = list_jobs(connections, head, job_id)
    if not jobs:
        raise UsageError(f"there is no job {job_id}", "see `clusterctl jobs NAME`")
    return jobs[0]


def end_job(connections: Connections, head: Target, job_id: str) -> bool:
    """Cancel a job, wait for its end, and return whether it has ended. Raises HostError."""
    result = connections.run(
        head, JOBS.command("cancel", job_id), stdin=JOBS.stdin(), timeout_s=TIMEOUT_S
    )
    answer = json_line(result, "ending the job")
    return bool(answer["ended"])


BETWEEN_LOOKS_S = 0.2


def tail_command(
    job_id: str, offset: int, until_end: bool, silent: bool = False, rank: int | None = None
) -> str:
    """Return the command that prints a job's log, or that of one rank, from byte `offset` on.

    With `until_end` it follows the log until the job has ended. `silent`: print nothing, only wait.
    """
    folder = f'"$HOME"/.clusterctl/jobs/{job_id}'
    wait = f'-f -s 0.2 --pid="$(cat {folder}/pid)" ' if until_end else ""
    return f"exec tail -c +{offset + 1} {wait}" + (
        "/dev/null" if silent else f"{folder}/log" if rank is None else f"{folder}/log-{rank}"
    )


def follow_job(
    connections: Connections,
    head: Target,
    job_id: str,
    sink: Callable[[bytes], None] | None,
    on_lost: Callable[[HostError, float], None] = lambda why, delay_s: None,
    rank: int | None = None,
    seen: JobRecord | None = None,
    timeouts: Timeouts = Timeouts(),
) -> JobRecord:
    """Pass a job's log, or that of one rank, to `sink` until the job has ended. Return its record.

    Without a sink, only wait. `seen` is the job's record, if the caller has just queried it.

    After a lost connection the log continues at the byte where it broke; `on_lost(why, delay_s)` is
    called before each new attempt, of which there are as many in a row as `reconnect_after_s` has
    delays. Raises ConnectionLost or HostUnreachable, with the last known state of the job, if the
    head node is off or if all attempts in a row fail. Raises UsageError if there is no such job.
    """
    failures, offset, known = 0, 0, f"of job {job_id} nothing was heard"
    while True:
        received = _Counter(sink or (lambda chunk: None))
        try:
            job, seen = seen or find_job(connections, head, job_id), None
            known = _known(job)
            command = tail_command(job_id, offset, job.unended, silent=sink is None, rank=rank)
            read_data(connections, head, command, received)
            if not job.unended:
                return job
            timeouts.clock.sleep(BETWEEN_LOOKS_S)
        except (ConnectionLost, HostUnreachable) as lost:
            failures = 1 if received.count else failures + 1
            if received.count:
                known = _known(job, received.at)
            if lost.is_off or failures > len(timeouts.reconnect_after_s):
                raise type(lost)(lost.host, f"{lost.message}; {known}", lost.hint) from lost
            delay_s = timeouts.reconnect_after_s[failures - 1]
            on_lost(lost, delay_s)
            connections.forget(head)
            timeouts.clock.sleep(delay_s)
        offset += received.count


def _known(job: JobRecord, line_at: datetime | None = None) -> str:
    """Return in words what is known of a job on a head node that does not answer."""
    at = line_at or datetime.now(timezone.utc)
    what = "wrote its last line that came" if line_at else f"was {job.state.value}"
    return f"job {job.job_id} {what} at {at:%H:%M:%S} UTC; what became of it since is not known"


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
