"""`train.sh` and `train_synthetic.sh` on a node: the same line as `clusterctl train`, run there.

Python 3.8 and the standard library only: shipped as ~/.clusterctl/launch.pyz (jobs/shipping).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from clusterctl.domain.errors import ClusterctlError, MissingTool, UsageError
from clusterctl.domain.hostsfile import parse_hosts_file
from clusterctl.jobs.facts import PROBE, parse_facts
from clusterctl.jobs.ids import new_job_id
from clusterctl.jobs.mpirun import JOB_VARIABLE
from clusterctl.jobs.plan import JobPlan, JobRequest, plan_job

# The tutorial's scripts end with 1 on a usage error.
FAILED = 1


def plan_here(mode: str, gpus: str, arguments: list[str], environ: dict[str, str]) -> JobPlan:
    """The plan for the `hosts` file of the current folder. Raises ClusterctlError."""
    if not re.fullmatch(r"-?\d{1,6}", gpus, re.ASCII):
        raise UsageError(f"not a number of GPUs: {gpus!r}")
    hosts_path = Path("hosts")
    if not hosts_path.exists():
        raise MissingTool(
            f"there is no hosts file in {Path.cwd()}",
            "write one line per node into it: ADDRESS slots=GPUS (localhost slots=8 for this one)",
        )
    hosts = parse_hosts_file(hosts_path.read_text(encoding="utf-8"), str(hosts_path.resolve()))
    probe = subprocess.run(["sh", "-c", PROBE], stdout=subprocess.PIPE, env=environ, check=False)
    facts = parse_facts(probe.stdout.decode(errors="surrogateescape"))
    request = JobRequest(int(gpus), mode == "synthetic", arguments=tuple(arguments))
    return plan_job(
        request,
        facts,
        hosts,
        new_job_id(),
        f"add nodes (clusterctl up NAME --nodes N), or correct {hosts_path.resolve()}",
    )


def main() -> None:
    """`launch.pyz train|synthetic GPUS [ARGUMENTS]`: print the line, then become mpirun."""
    try:
        plan = plan_here(sys.argv[1], sys.argv[2], sys.argv[3:], dict(os.environ))
    except ClusterctlError as failure:
        print(f"error: {failure.message}", file=sys.stderr)
        if failure.hint:
            print(f"  hint: {failure.hint}", file=sys.stderr)
        sys.exit(FAILED)
    print(f"+ {plan.line}", file=sys.stderr, flush=True)
    os.environ[JOB_VARIABLE] = plan.job_id
    os.execv(plan.argv[0], plan.argv)
