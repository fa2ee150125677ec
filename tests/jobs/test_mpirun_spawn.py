"""The options of the mpirun line take effect: a fake ssh records how mpirun calls it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.jobs.mpirun import (
    MpiLaunch,
    MpiRun,
    mpirun_argv,
    parse_mpirun_version,
    sets_binding,
)
from clusterctl.node.packer import program_of
from tests.fake_sysfs import two_sockets_here
from tests.programs import completed
from tests.variants import usual

pytestmark = pytest.mark.slow

MPIRUNS = [Path("/opt/clusterctl/training/bin/mpirun"), Path("/usr/bin/mpirun")]
AGENT_OPTION = {"4": ("--mca", "plm_rsh_agent"), "5": ("--prtemca", "plm_ssh_agent")}
# Without no_tree_spawn, mpirun would connect only to the first two from here.
NARROW_TREE = {"4": ("--mca", "routed_radix", "2"), "5": ("--prtemca", "prte_routed_radix", "2")}

ALLOW_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def installed(path: Path):
    marks = [] if "/usr/bin" in str(path) else [pytest.mark.train]
    return pytest.param(path, marks=marks, id=str(path))


def ran(launch: MpiLaunch, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a launch's command line in a folder. It has to succeed."""
    done = completed(mpirun_argv(launch), cwd=folder, env={**os.environ, **ALLOW_ROOT})
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("mpirun", [installed(path) for path in MPIRUNS])
def test_ranks_of_this_host_alone_need_no_hosts_file_and_no_free_cores(mpirun, tmp_path):
    if not mpirun.exists():
        pytest.skip(f"there is no {mpirun}")
    ranks = (os.cpu_count() or 1) + 1
    said = "$OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_LOCAL_SIZE on $(hostname)"
    program = ("/bin/sh", "-c", f'echo "{said}"')
    run = MpiRun(str(mpirun), version_of(mpirun))
    launch = MpiLaunch(run, 64, ranks, (), (), program, on_head_only=True)
    (tmp_path / "hosts").write_text("10.9.9.1 slots=64\n")
    done = ran(launch, tmp_path)
    assert sorted(done.stdout.splitlines()) == sorted(
        f"{rank} of {ranks} on {socket.gethostname()}" for rank in range(ranks)
    )


# Options with which mpirun prints where it would bind ranks, what it prints for each rank, and for
# a rank that it would not bind.
SHOW = {
    "4": (("--display-map", "--do-not-launch"), "Process rank: ", "Bound: N/A"),
    "5": (("--display", "map,bind", "--do-not-launch"), "Binding: ", "Binding: UNBOUND"),
}


def all_only(*words):
    return pytest.param(words, marks=pytest.mark.all)


@pytest.mark.parametrize("mpirun", [installed(path) for path in MPIRUNS])
@pytest.mark.parametrize(
    "arguments",
    [
        *((), ("--map-by", "ppr:8:node:PE=6")),
        *(all_only("--bind-to", "core"), all_only("--npernode", "8")),
        *(all_only("--mca", "hwloc_base_binding_policy", "core"), all_only("--cpus-per-proc", "6")),
        all_only("--mca", "hwloc_default_binding_policy", "core"),
    ],
)
def test_mpirun_binds_nothing_unless_users_options_do(mpirun, arguments, tmp_path):
    """On a machine of two sockets, Open MPI 5 would bind all eight ranks of a p4d.24xlarge to the
    first one."""
    if not mpirun.exists():
        pytest.skip(f"there is no {mpirun}")
    version = version_of(mpirun)
    options, each, free = SHOW[version[0]]
    run = MpiRun(str(mpirun), version)
    argv = mpirun_argv(
        MpiLaunch(run, 1, 8, (), (), ("true",), on_head_only=True, arguments=(*options, *arguments))
    )
    done = completed(
        argv,
        cwd=tmp_path,
        env={
            **os.environ,
            **ALLOW_ROOT,
            "HWLOC_SYNTHETIC": "pack:2 core:24 pu:2",
            "HWLOC_THISSYSTEM": "1",
        },
    )
    unbound = 0 if sets_binding(run, arguments) else 8
    found = (done.stdout.count(each), done.stdout.count(free))
    assert found == (8, unbound), done.stdout + done.stderr


@pytest.mark.parametrize("mpirun", [installed(path) for path in MPIRUNS])
def test_a_rank_may_use_all_processors_that_mpirun_may(mpirun, tmp_path):
    if not mpirun.exists():
        pytest.skip(f"there is no {mpirun}")
    run = MpiRun(str(mpirun), version_of(mpirun))
    says = "import os; print(sorted(os.sched_getaffinity(0)), flush=True)"
    launch = MpiLaunch(run, 1, 2, (), (), (sys.executable, "-IS", "-c", says), on_head_only=True)
    done = completed(mpirun_argv(launch), cwd=tmp_path, env={**os.environ, **ALLOW_ROOT})
    assert done.stdout.splitlines() == 2 * [str(sorted(os.sched_getaffinity(0)))], done.stderr


@pytest.mark.parametrize("mpirun", [installed(path) for path in MPIRUNS])
@pytest.mark.parametrize("binding", [(), ("--bind-to", "hwthread")])
def test_ranks_bind_themselves_unless_mpirun_has_done_so(mpirun, binding, tmp_path):
    if not mpirun.exists():
        pytest.skip(f"there is no {mpirun}")
    root, *halves = two_sockets_here(tmp_path)
    text = program_of("clusterctl.node.jobs.start_rank").text
    (root / "start").write_text(text.replace('root: str = "/"', f'root: str = "{root}"'))
    run = MpiRun(str(mpirun), version_of(mpirun))
    says = "import os; print(sorted(os.sched_getaffinity(0)), flush=True)"
    python = (sys.executable, "-IS")
    program = (*python, str(root / "start"), *python, "-c", says)
    launch = MpiLaunch(run, 1, 2, (), (), program, on_head_only=True, arguments=binding)
    done = ran(launch, tmp_path)
    told = done.stderr.count("uses processors")
    if binding:
        assert told == 0
    else:
        assert told == 2
        assert sorted(done.stdout.splitlines()) == sorted(map(str, halves))


def version_of(mpirun: Path) -> str:
    said = subprocess.run([mpirun, "--version"], capture_output=True, text=True, check=True).stdout
    return parse_mpirun_version(said)


@pytest.mark.parametrize("mpirun", [installed(path) for path in MPIRUNS])
@pytest.mark.parametrize("hosts", usual(1, [130, 6]))
def test_every_host_is_dialled_from_here_with_keep_alives(mpirun, hosts, tmp_path):
    if not mpirun.exists():
        pytest.skip(f"there is no {mpirun}")
    version = version_of(mpirun)
    agent = tmp_path / "agent"
    calls = tmp_path / "calls"
    calls.mkdir()
    # All have to be called before one of them fails, because mpirun gives up at the first failure.
    agent.write_text(
        # Counted only once it is written: the last one to be called ends the others.
        f'#!/bin/sh\necho "$*" >{tmp_path}/$$ && mv {tmp_path}/$$ {calls}/$$\n'
        f"[ $(ls {calls} | wc -l) -lt {hosts} ] || rm {agent}\n"
        f"while [ -e {agent} ]; do sleep 0.2; done\n"
        "exit 1\n"
    )
    agent.chmod(0o755)
    lines = ["localhost slots=1", *(f"10.9.9.{number} slots=1" for number in range(1, hosts + 1))]
    (tmp_path / "hosts").write_text("\n".join(lines) + "\n")
    launch = MpiLaunch(MpiRun(str(mpirun), version), hosts + 1, hosts + 1, (), (), ("true",))
    path, *rest = mpirun_argv(launch)
    extra = [*AGENT_OPTION[version[0]], str(agent), *NARROW_TREE[version[0]]]
    try:
        done = subprocess.run(
            [path, *extra, *rest],
            cwd=tmp_path,
            env={**os.environ, **ALLOW_ROOT},
            capture_output=True,
            timeout=240,
            check=False,
        )
    finally:
        agent.unlink(missing_ok=True)
    assert done.returncode != 0
    asked = [call.read_text() for call in calls.iterdir()]
    assert len(asked) == hosts
    for text in asked:
        assert "-o ServerAliveInterval=10 -o ServerAliveCountMax=5 10.9.9." in text
        assert "-o BatchMode=yes -o ConnectTimeout=30" in text
