"""The processes of MPI jobs on a node."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from clusterctl.node.facts.report import deadline
from clusterctl.node.jobs import jobs, processes
from clusterctl.node.procfs import environ_of

STARTING_S = 300.0  # how long a job that is being started may have no process yet
PORT = re.compile(r"(?:MASTER_PORT=|--master_port )(\d+)")


# /proc/PID/cmdline of a process that hangs in the kernel may hang, too.
@deadline(20.0)
def job_processes(query: processes.ProcessQuery) -> tuple[processes.NodeProcess, ...]:
    """Return the selected processes of this user, without those that read facts."""
    # This process and those of the other facts are children of the agent.
    return tuple(map(processes.describe, processes.find(query, agent=os.getppid())))


def job_ports() -> tuple[int, ...]:
    """Return the ports of jobs that have not ended. A queued one does not listen yet."""
    found: set[int] = set()
    for folder in jobs.JOBS.glob("*"):
        # Space is reserved in this file with empty lines.
        if not jobs.text_in(folder / "exit_status").strip() and _is_unended(folder):
            found.update(map(int, PORT.findall(jobs.text_in(folder / "command"))))
    return tuple(sorted(found))


def _is_unended(folder: Path) -> bool:
    pid = jobs.text_in(folder / "pid").strip()
    if pid:
        return environ_of(f"/proc/{pid}").get(processes.JOB) == os.fsencode(folder.name)
    return time.time() - (jobs.mtime_of(folder / "command") or 0.0) < STARTING_S
