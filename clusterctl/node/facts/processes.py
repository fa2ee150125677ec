"""The processes of MPI jobs on a node."""

from __future__ import annotations

import os
import re

from clusterctl.node.facts.report import deadline
from clusterctl.node.jobs import processes
from clusterctl.node.jobs.folder import all_jobs, text_in
from clusterctl.node.jobs.spec import JobRecord

PORT = re.compile(r"(?:MASTER_PORT=|--master_port )(\d+)")


# /proc/PID/cmdline of a process that hangs in the kernel may hang, too.
@deadline(20.0)
def job_processes(query: processes.ProcessQuery) -> tuple[processes.NodeProcess, ...]:
    """Return the selected processes of this user, without those that read facts."""
    # This process and those of the other facts are children of the agent.
    return tuple(map(processes.describe, processes.find(query, agent=os.getppid())))


@deadline(20.0)
def unended_jobs() -> tuple[JobRecord, ...]:
    """Return the jobs of this node that have not ended, queued ones included, oldest first."""
    return tuple(job for job in (one.record() for one in all_jobs()) if job.unended)


def job_ports() -> tuple[int, ...]:
    """Return the ports of jobs that have not ended. A queued one does not listen yet."""
    text = "".join(text_in(one.path / "command") for one in all_jobs() if one.is_held())
    return tuple(sorted(set(map(int, PORT.findall(text)))))
