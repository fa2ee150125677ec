"""The processes of MPI jobs on a node."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
from pathlib import Path

from clusterctl.node.facts.report import deadline
from clusterctl.node.jobs import processes
from clusterctl.node.jobs.folder import all_jobs
from clusterctl.node.jobs.spec import JobRecord
from clusterctl.node.procfs import read_stat
from clusterctl.node.untrusted import text_in

FIRST_PERSON = 1000  # user IDs below are those of the system's accounts
SLURMS = "slurmstepd"  # starts the tasks of a step
PORT = re.compile(r"(?:MASTER_PORT=|--master_port )(\d{1,5})(?!\d)")


# /proc/PID/cmdline of a process that hangs in the kernel may hang, too.
@deadline(20.0)
def job_processes(query: processes.ProcessQuery) -> tuple[processes.NodeProcess, ...]:
    """Return the selected processes of this user, without those that read facts."""
    # This process and those of the other facts are children of the agent.
    return tuple(map(processes.describe, processes.find(query, agent=os.getppid())))


@deadline(20.0)
def active_jobs() -> tuple[JobRecord, ...]:
    """Return the jobs of this node that have not ended, queued ones included, oldest first."""
    return tuple(job for job in (one.record() for one in all_jobs()) if job.is_active)


def job_ports() -> tuple[int, ...]:
    """Return the ports of jobs that have not ended. A queued one does not listen yet."""
    text = "".join(text_in(one.path / "command") for one in all_jobs() if one.is_held())
    return tuple(sorted(set(map(int, PORT.findall(text)))))


@deadline(20.0)
def hidden_users() -> tuple[str, ...]:
    """Return the users who may have a job here whose processes this user may not read: they have a
    launcher or a daemon of one, a task of Slurm, or, unless it is a system's account, Python.
    Root may read all."""
    found: set[int] = set()
    if os.geteuid() == 0:
        return ()
    others: dict[int, tuple[int, processes.Process]] = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
        with contextlib.suppress(OSError, ValueError, IndexError):
            user = os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116
            name, fields = read_stat(f"/proc/{pid}")
            argv = Path(f"/proc/{pid}/cmdline").read_text(errors="backslashreplace").split("\0")
            one = processes.Process(int(pid), int(fields[1]), name, argv, {}, Path(argv[0]).name)
            if user != os.geteuid():
                others[one.pid] = user, one
    for user, one in others.values():
        _, above = others.get(one.ppid, (0, None))
        is_task = above is not None and above.name == SLURMS
        is_python = user >= FIRST_PERSON and processes.is_python(one)
        role = processes.role_of(one, any_launcher=True)
        if role or is_task or is_python or processes.is_starter(one):
            found.add(user)
    return tuple(sorted(map(user_name, found)))


def user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
