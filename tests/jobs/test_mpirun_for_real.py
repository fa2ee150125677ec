"""The mpirun line on two hosts of the lab, with both families of Open MPI: the place of ranks."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from clusterctl.domain.hostsfile import HostsFile, HostSlots, format_hosts_file
from clusterctl.jobs.deploy import deploy_files
from clusterctl.jobs.head_facts import Environment
from clusterctl.jobs.mpirun import MpiRun
from clusterctl.jobs.plan import JobRequest, new_job_id, plan_job
from clusterctl.operations.train import head_facts
from tests.variants import usual

PLACE = """\
import os, socket, sys
rank, size = os.environ["OMPI_COMM_WORLD_RANK"], os.environ["OMPI_COMM_WORLD_SIZE"]
local, job = os.environ["OMPI_COMM_WORLD_LOCAL_RANK"], os.environ["CLUSTERCTL_JOB"]
fusion = os.environ.get("HOROVOD_FUSION_THRESHOLD", "-")
assert sys.stdin.read() == ""  # a program that asks something is not held up by it
line = f"{rank}/{size} local {local} on {socket.gethostname()} of {job} fusion {fusion}"
sys.stdout.write(line + "\\n")  # in one piece: the ranks share the pipe
"""
FIVE = Environment(
    MpiRun("/opt/clusterctl/training/bin/mpirun", "5.0.11"), "/usr/bin/python3", True
)
FOUR = Environment(MpiRun("/usr/bin/mpirun", "4.1.4"), "/usr/bin/python3", True)


@pytest.mark.lab
@pytest.mark.parametrize("preset", usual(1, ["gpu", "cpu"]))
@pytest.mark.parametrize(
    "environment",
    [pytest.param(FOUR, id="4.1"), pytest.param(FIVE, id="5", marks=pytest.mark.train)],
)
@pytest.mark.parametrize(("ranks", "on_head"), usual(1, [(3, 2), (1, 1), (2, 2), (4, 2)]))
def test_ranks_fill_the_head_node_first(pair, environment, preset, ranks, on_head):
    pair.put("place.py", PLACE)
    job = new_job_id()
    with pair.access() as access:
        facts = replace(head_facts(access), environments=(environment,))
        addresses = [node.private_ip for node in access.cluster.nodes]
        hosts = HostsFile(tuple(HostSlots(address, 2) for address in addresses))
        shipped = deploy_files(access.connections, access.targets, format_hosts_file(hosts))
        assert not shipped.failures
        request = JobRequest(ranks, preset=preset, script="~/place.py")
        plan = plan_job(request, facts, hosts, job)
        command = f"cd {shlex.quote(plan.workdir)} && {plan.line}"
        result = access.connections.run(access.head, command, timeout_s=60)
        names = [access.connections.run(t, "hostname").stdout.strip() for t in access.targets]
    assert result.ok, result
    fusion = "16777216" if preset == "gpu" else "-"
    places = [names[0]] * on_head + [names[1]] * (ranks - on_head)
    locals_ = [*range(on_head), *range(ranks - on_head)]
    assert sorted(result.stdout.splitlines()) == [
        f"{rank}/{ranks} local {local} on {name} of {job} fusion {fusion}"
        for rank, (name, local) in enumerate(zip(places, locals_))
    ]
