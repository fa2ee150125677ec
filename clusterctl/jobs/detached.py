"""Jobs on the head node that outlive the connection which started them."""

from __future__ import annotations

import errno
import json
import os
import shlex
from collections.abc import Mapping
from types import MappingProxyType

from clusterctl.domain.errors import (
    ClusterctlError,
    CommandFailed,
    CommandTimeout,
    ConnectionLost,
    UsageError,
)
from clusterctl.jobs.mpirun import LOST_DAEMON
from clusterctl.jobs.plan import JobPlan
from clusterctl.jobs.record import JobRecord, parse_jobs
from clusterctl.node.packer import program_of
from clusterctl.transport.answers import json_lines
from clusterctl.transport.connections import Connections
from clusterctl.transport.target import Target

JOBS = program_of("clusterctl.node.jobs.jobs")
TIMEOUT_S = 60.0


class JobRunning(ClusterctlError):
    """Another job is running on the cluster."""


def job_files(plan: JobPlan) -> dict[str, str]:
    """The files of the job's folder: its line, its description, and what runs it."""
    description = {
        "ranks": plan.ranks,
        "preset": plan.preset,
        "synthetic": plan.synthetic,
        "workdir": plan.workdir,
        "log_dir": plan.log_dir,
        "log_name": plan.run.log_name if plan.run else "",
        "line": plan.line,
        "evaluation": plan.evaluation_line,
        "variables": {one.name: None if one.private else one.value for one in plan.variables},
        "mpi_arguments": plan.mpi_arguments,
        "destination": plan.destination,
    }
    files = {
        "command": " &&\n".join(plan.lines) + "\n",
        "job.json": json.dumps(description, indent=1) + "\n",
        "run": run_script(plan),
    }
    private = {one.name: one.value for one in plan.variables if one.private}
    if private:
        files["environment"] = json.dumps(private)
    return files


def run_script(plan: JobPlan) -> str:
    """The shell script that runs the lines, keeps their output, and notes how it ended.

    The evaluation runs when the training succeeded and nobody ended the job; it begins in the log
    with its line.
    """
    line = plan.evaluation_line
    evaluation = _EVALUATION.format(line=line, quoted=shlex.quote(line)) if line else ""
    has_private = any(one.private for one in plan.variables)
    private, execute = (_PRIVATE, _WITH_PRIVATE) if has_private else ("", "exec")
    return f"""\
#!/bin/sh
# Job {plan.job_id} of clusterctl. TERM ends it: `clusterctl cancel` sends that here.
folder=$(cd "$(dirname "$0")" && pwd) || exit
# Written over what was reserved: on a full disk there is no room for another file.
keep() {{ printf '%s\\n' "$2" 1<>"$folder/$1"; }}
{private}keep pid $$ || exit
echo "job {plan.job_id}: its output is in $folder/log"
ended=
line=
trap 'ended=yes; [ -z "$line" ] || kill -TERM "$line" 2>/dev/null' TERM INT HUP
run() {{
    (
        cd {shlex.quote(plan.workdir)} && {execute} "$@"
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
    if [ "$status" -eq 0 ] && grep -qE {shlex.quote(LOST_DAEMON)} "$folder/log"; then
        status={ConnectionLost.exit_status}
    fi
}}
run {plan.line}
{evaluation}keep exit_status "$status"
"""


# Before the job has a process that a signal could end: its values are in no file from then on,
# but for the one that nobody else can open.
_PRIVATE = """\
exec 3<"$folder/environment" && rm -f "$folder/environment" || exit
"""
# Not by this shell: a user's variable may have the name of one of its own, or of one that no shell
# lets be set (PPID), and PATH is theirs for the ranks. Python ignores two signals; mpirun must not.
_WITH_PRIVATE = "exec python3 -ISc " + shlex.quote(
    "import json, os, signal, sys; os.lseek(3, 0, 0); private = json.loads(open(3).read()); "
    "os.environb.update((name.encode(), value.encode('utf-8', 'surrogateescape')) "
    "for name, value in private.items()); "
    "[signal.signal(one, signal.SIG_DFL) for one in (signal.SIGPIPE, signal.SIGXFSZ)]; "
    "os.execv(sys.argv[1], sys.argv[1:])"
)
# 143: ended by TERM, between the lines.
_EVALUATION = """\
if [ "$status" -eq 0 ] && [ -n "$ended" ]; then
    status=143
elif [ "$status" -eq 0 ]; then
    printf '+ %s\\n' {quoted} >>"$folder/log"
    run {line}
fi
"""


def start_job(
    connections: Connections,
    head: Target,
    plan: JobPlan,
    cluster: str,
    force: bool = False,
    more_files: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Start it on the head node: `tmux session …` or `nohup`. Raises JobRunning, CommandFailed.

    `more_files` go into the job's folder.
    """
    try:
        result = connections.run(
            head,
            JOBS.command("start", plan.job_id, "force" if force else "refuse"),
            stdin=JOBS.stdin(json.dumps({**job_files(plan), **more_files}).encode()),
            timeout_s=TIMEOUT_S,
        )
    except (CommandTimeout, ConnectionLost) as lost:
        raise ConnectionLost(
            lost.host,
            f"{lost.message}; job {plan.job_id} may run there all the same",
            f"see whether it does: clusterctl logs {cluster} --list",
        ) from lost
    if os.strerror(errno.ENOSPC) in result.stderr:
        raise CommandFailed(
            result.host,
            f"job {plan.job_id} was not started: its disk is full",
            f"make room: clusterctl disk {cluster}, clusterctl clean-logs {cluster} --jobs",
        )
    [answer] = json_lines(result, "starting the job")
    if "busy" in answer:
        raise in_the_way(str(answer["busy"]), cluster, plan.destination)
    return str(answer["with"])


def in_the_way(job_id: str, cluster: str, destination: str) -> JobRunning:
    """The refusal of a training beside another, or of a copy beside one to the same place."""
    if destination:
        job = f"--job {job_id}"
        return JobRunning(
            f"job {job_id} copies to {destination} on {cluster} already",
            f"follow it (clusterctl logs {cluster} -f {job}), or end it "
            f"(clusterctl cancel {cluster} {job}): what it has brought is kept",
        )
    return JobRunning(
        f"job {job_id} is running on {cluster}",
        f"follow it (clusterctl logs {cluster} -f), end it (clusterctl cancel {cluster}), "
        "or start another beside it: --force",
    )


def list_jobs(connections: Connections, head: Target, job_id: str | None = None) -> list[JobRecord]:
    """The jobs of the head node, oldest first, or that one. Raises HostError."""
    arguments = [job_id] if job_id else []
    result = connections.run(
        head, JOBS.command("list", *arguments), stdin=JOBS.stdin(), timeout_s=TIMEOUT_S
    )
    return parse_jobs(result)


def find_job(connections: Connections, head: Target, job_id: str) -> JobRecord:
    """One job. Raises UsageError when there is none of that id, HostError."""
    jobs = list_jobs(connections, head, job_id)
    if not jobs:
        raise UsageError(f"there is no job {job_id}", "see `clusterctl logs NAME --list`")
    return jobs[0]


def end_job(connections: Connections, head: Target, job_id: str) -> bool:
    """Ask a job to end, and wait: whether it did. Raises HostError."""
    result = connections.run(
        head, JOBS.command("cancel", job_id), stdin=JOBS.stdin(), timeout_s=TIMEOUT_S
    )
    [answer] = json_lines(result, "ending the job")
    return bool(answer["ended"])
