"""Facts of the head node: read on a node, and the choice of the environment from its report."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from clusterctl.domain.errors import CommandFailed, HostUnreachable
from clusterctl.jobs.head_facts import Environment, choose_environment, facts_of_head, facts_to_read
from clusterctl.jobs.mpirun import MpiRun
from clusterctl.node.facts import network
from clusterctl.node.facts.gpus import GpusOfNode, GpuState, capabilities, gpus, has_driver
from clusterctl.node.facts.report import FactReading, FactReport
from clusterctl.node.facts.software import Mpi, environments
from clusterctl.node.facts.system import Login, System, login, system
from clusterctl.node.record import name_of
from clusterctl.operations import train
from clusterctl.transport.call import read_report
from clusterctl.transport.dial import Target
from clusterctl.transport.fanout import fan_out
from tests.local_node import HEAD, LocalNode

CARD = GpuState(
    "0000:17:00.0", "V100", "GPU-1", 16160.0, *([None] * 5), (), {}, False, False, "", "", ()
)


def report_of(facts):
    """Return the report of a head node with these facts."""
    values = {
        system: System("demo-0", "6.8", "boot", 60.0, 64, 0.1),
        login: Login("/bin/bash", "/home/ubuntu", "/usr/bin", "/usr/local/cuda/lib64"),
        **facts,
    }
    read = (FactReading(name_of(fact), fact.__name__, value) for fact, value in values.items())
    return FactReport(0.0, 0.0, tuple(read), "demo-0")


def mpi(folder, version="mpirun (Open MPI) 5.0.11"):
    return Mpi(f"{folder}/bin/mpirun", version, f"{folder}/bin/python", horovod=True)


def test_a_gpu_instance():
    amazons = mpi("/opt/amazon", "mpirun (Open MPI) 4.1.7")
    facts = facts_of_head(
        report_of(
            {
                has_driver: True,
                gpus: GpusOfNode("580", "13.0", (CARD,) * 8),
                environments: (amazons, mpi("/usr", "HYDRA build details:")),
            }
        )
    )
    assert (facts.nvidia_driver, facts.gpu_memory_mib, facts.gpus) == (True, 16160, 8)
    assert (facts.home, facts.library_path) == ("/home/ubuntu", "/usr/local/cuda/lib64")
    # Errors name the node as the cluster does, and not by its hostname.
    assert facts.host == "demo-0"
    # The second mpirun is not Open MPI's.
    own = MpiRun("/opt/amazon/bin/mpirun", "4.1.7")
    assert facts.environments == (Environment(own, "/opt/amazon/bin/python", True),)


def test_a_broken_gpu_is_no_obstacle_here_and_other_facts_are():
    def failing(fact):
        late = FactReading(
            name_of(fact), fact.__name__, error="no answer within 20 s", timed_out=True
        )
        report = report_of({})
        return FactReport(0.0, 0.0, (*report.readings, late), "demo-0")

    assert facts_of_head(failing(gpus)).gpus == 0
    with pytest.raises(CommandFailed, match="cannot read its state: environments: no answer"):
        facts_of_head(failing(environments))


OLD, NEWEST = "/opt/clusterctl/training", "/opt/clusterctl/training-newest"


@pytest.mark.parametrize(
    ("found", "folders", "chosen"),
    [
        ((), [OLD, NEWEST], OLD),
        ((80, 89), [OLD, NEWEST], OLD),
        ((90,), [OLD, NEWEST], NEWEST),
        ((80, 100), [OLD, NEWEST, "/usr"], NEWEST),
        ((90,), [OLD, "/usr"], OLD),
        # `env install` was told which one, or it is active: it is listed before the others, too.
        ((90,), [OLD, OLD, NEWEST], OLD),
        ((90,), ["/data/mine", OLD, NEWEST], "/data/mine"),
    ],
)
def test_new_gpus_take_the_newest_tensorflow(found, folders, chosen):
    report = report_of({capabilities: found, environments: tuple(map(mpi, folders))})
    path = choose_environment(facts_of_head(report)).mpirun.path
    assert path == f"{chosen}/bin/mpirun"


def lost(host):
    raise HostUnreachable(host, "no answer")


@pytest.mark.parametrize(
    ("head", "others", "folders", "chosen"),
    [
        (80, [(90,)], [OLD, NEWEST], NEWEST),
        (80, [None, (90,)], [OLD, NEWEST], NEWEST),
        (80, [(80,), (), None], [OLD, NEWEST], OLD),
        (90, [(80,)], [OLD, NEWEST], NEWEST),
        (80, [(90,)], [OLD], OLD),
        (80, [(90,)], [OLD, OLD, NEWEST], OLD),
        (90, [], [OLD, NEWEST], NEWEST),
    ],
)
def test_the_newest_gpus_of_the_cluster_choose_for_all_nodes(
    monkeypatch, head, others, folders, chosen
):
    """None: a node that does not answer."""
    targets = [Target(f"demo-{index}", "10.0.0.4", "ubuntu") for index in range(len(others) + 1)]
    reports = {
        targets[0].host: report_of({capabilities: (head,), environments: [*map(mpi, folders)]})
    }
    for target, found in zip(targets[1:], others):
        reports[target.host] = None if found is None else report_of({capabilities: found})

    def read(_, asked, *__, **___):
        return fan_out(lambda one: reports[one.host] or lost(one.host), asked)

    monkeypatch.setattr(train, "read_reports", read)
    access = SimpleNamespace(
        connections=None, head=targets[0], head_name=targets[0].host, targets=targets
    )
    assert choose_environment(train.head_facts(access)).mpirun.path == f"{chosen}/bin/mpirun"


@pytest.mark.parametrize("named", [None, "~/my env", "{home}/my env"])
def test_the_facts_of_a_real_node(weird_home, named):
    conda = weird_home / "anaconda3" / "envs" / "tensorflow2_p38"
    activated, told = weird_home / "my env", weird_home / "to ld"
    for fake in (conda, activated, told):
        (fake / "bin").mkdir(parents=True)
        (fake / "bin" / "mpirun").write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.0.5' >&2\n")
        (fake / "bin" / "mpirun").chmod(0o755)
    (weird_home / ".clusterctl").mkdir(exist_ok=True)
    (weird_home / ".clusterctl/training-env").write_text(f"{told}\n")
    # A folder in the home folder is not the module of its name.
    (weird_home / "horovod").mkdir()
    environ = {"LD_LIBRARY_PATH": "/a b/lib", "CONDA_PREFIX": ""}
    environ["VIRTUAL_ENV"] = str(conda if named else activated)
    node = LocalNode(weird_home, environ)
    facts = facts_to_read(named and named.format(home=weird_home))
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        found = facts_of_head(read_report(node, HEAD, facts, "looking at it"))
        assert busy.getsockname()[1] in found.busy_ports
    assert found.home == str(weird_home)
    assert found.addresses
    assert found.interfaces
    assert found.library_path == "/a b/lib"
    paths = [environment.mpirun.path for environment in found.environments]
    assert paths[:2] == [f"{activated}/bin/mpirun", f"{told}/bin/mpirun"]
    assert f"{conda}/bin/mpirun" in paths
    assert not any(one.horovod for one in found.environments[:2])


def test_efa_and_its_libraries_are_found(tmp_path, monkeypatch):
    """A folder replaces /opt."""
    plugin = tmp_path / "ofi-nccl" / "lib" / "x86_64-linux-gnu"
    fabric = tmp_path / "efa" / "lib64"
    for folder, name in {plugin: "libnccl-net.so", fabric: "libfabric.so.1"}.items():
        folder.mkdir(parents=True)
        (folder / name).touch()
    libraries = [
        [one.replace("/opt/amazon", str(tmp_path)) for one in some]
        for some in network.EFA_LIBRARIES
    ]
    monkeypatch.setattr(network, "EFA_LIBRARIES", libraries)
    assert network.efa_libraries() == (str(plugin), str(fabric))
