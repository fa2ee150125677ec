"""The processes of MPI jobs on a node."""

from __future__ import annotations

import os

from clusterctl.node.facts.report import deadline
from clusterctl.node.jobs import processes


# /proc/PID/cmdline of a process that hangs in the kernel may hang, too.
@deadline(20.0)
def job_processes(query: processes.ProcessQuery) -> tuple[processes.NodeProcess, ...]:
    """Return the selected processes of this user, without those that read facts."""
    # This process and those of the other facts are children of the agent.
    return tuple(map(processes.describe, processes.find(query, agent=os.getppid())))
