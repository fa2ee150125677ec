"""Facts of the head node: the parser on captured output, and the real probe."""

from __future__ import annotations

import os
import subprocess

import pytest

from clusterctl.domain.errors import ClusterctlError, HostUnreachable
from clusterctl.domain.results import CommandResult
from clusterctl.jobs.head_facts import (
    PROBE,
    Environment,
    choose_environment,
    parse_facts,
    probe,
)
from clusterctl.jobs.mpirun import MpiRun
from clusterctl.operations.train import head_facts
from clusterctl.transport.fanout import fan_out
from clusterctl.transport.target import Target


def test_a_gpu_instance_whose_shell_greets():
    # Written by hand in the probe's format: no machine with this driver was available.
    facts = parse_facts(
        "Welcome to Ubuntu\n  System load = 0.0\n"
        "home=/home/ubuntu\nsearch_path=/usr/bin\nlibrary_path=/usr/local/cuda/lib64\ncpus=64\n"
        "hostname=demo-0\naddresses=10.0.0.4 172.17.0.1 \nnvidia_driver=yes\ngpus=8\n"
        "gpu_memory_mib=16160\n"
        "mpirun=/opt/amazon/openmpi/bin/mpirun\nversion=mpirun (Open MPI) 4.1.7\n"
        "python=/usr/bin/python3\nhorovod=yes\n"
        "mpirun=/usr/bin/mpirun\nversion=HYDRA build details:\npython=/p\n"
    )
    assert (facts.nvidia_driver, facts.gpu_memory_mib, facts.gpus) == (True, 16160, 8)
    assert facts.addresses == ("10.0.0.4", "172.17.0.1")
    assert facts.library_path == "/usr/local/cuda/lib64"
    # The second mpirun is not Open MPI's.
    amazons = MpiRun("/opt/amazon/openmpi/bin/mpirun", "4.1.7")
    assert facts.environments == (Environment(amazons, "/usr/bin/python3", True),)
    with pytest.raises(ClusterctlError, match="did not say what it has"):
        parse_facts("bye\n")


OLD, NEWEST = "/opt/clusterctl/training", "/opt/clusterctl/training-newest"


@pytest.mark.parametrize(
    ("capabilities", "folders", "chosen"),
    [
        ("", [OLD, NEWEST], OLD),
        ("8.0 8.9 ", [OLD, NEWEST], OLD),
        ("9.0 ", [OLD, NEWEST], NEWEST),
        ("8.0 10.0 ", [OLD, NEWEST, "/usr"], NEWEST),
        ("9.0 ", [OLD, "/usr"], OLD),
        ("[N/A] ", [OLD, NEWEST], OLD),
        # `env install` was told which one, or it is active: it is listed before the others, too.
        ("9.0 ", [OLD, OLD, NEWEST], OLD),
        ("9.0 ", ["/data/mine", OLD, NEWEST], "/data/mine"),
    ],
)
def test_new_gpus_take_the_newest_tensorflow(capabilities, folders, chosen):
    told = [f"home=/h\ncapabilities={capabilities}\n"]
    for folder in folders:
        told.append(f"mpirun={folder}/bin/mpirun\nversion=mpirun (Open MPI) 5.0.11\n")
        told.append(f"python={folder}/bin/python\nhorovod=yes\n")
    assert choose_environment(parse_facts("".join(told))).mpirun.path == f"{chosen}/bin/mpirun"


class Mixed:
    """Nodes whose GPUs differ: the output of any command on a node is its text, None fails."""

    def __init__(self, *texts):
        self.texts = {f"demo-{index}": text for index, text in enumerate(texts)}
        self.connections, (self.head, *_) = self, self.targets

    head_name = "demo-0"

    @property
    def targets(self):
        return [Target(host, "10.0.0.4", "ubuntu") for host in self.texts]

    def run(self, target, *_, **__):
        if self.texts[target.host] is None:
            raise HostUnreachable(target.host, "no answer")
        return CommandResult(target.host, "", 0, self.texts[target.host], "", 0.1)

    def run_all(self, targets, *_, **__):
        return fan_out(self.run, targets)


@pytest.mark.parametrize(
    ("head", "others", "folders", "chosen"),
    [
        ("8.0", ["9.0\n9.0\n"], [OLD, NEWEST], NEWEST),
        ("8.0", [None, "9.0\n"], [OLD, NEWEST], NEWEST),
        ("8.0", ["8.0\n", "nvidia-smi: not found\n", ""], [OLD, NEWEST], OLD),
        ("9.0", ["8.0\n"], [OLD, NEWEST], NEWEST),
        ("8.0", ["9.0\n"], [OLD], OLD),
        ("8.0", ["9.0\n"], [OLD, OLD, NEWEST], OLD),
        ("9.0", [], [OLD, NEWEST], NEWEST),
    ],
)
def test_the_newest_gpus_of_the_cluster_choose_for_all_nodes(head, others, folders, chosen):
    told = [f"home=/h\ncapabilities={head} \n"]
    for folder in folders:
        told.append(f"mpirun={folder}/bin/mpirun\nversion=mpirun (Open MPI) 5.0.11\n")
        told.append(f"python={folder}/bin/python\nhorovod=yes\n")
    facts = head_facts(Mixed("".join(told), *others))
    assert choose_environment(facts).mpirun.path == f"{chosen}/bin/mpirun"


@pytest.mark.parametrize("named", [None, "~/my env", "{home}/my env"])
def test_the_probe_runs_in_a_plain_shell(weird_home, named):
    conda = weird_home / "anaconda3" / "envs" / "tensorflow2_p38"
    activated = weird_home / "my env"
    for fake in (conda, activated):
        (fake / "bin").mkdir(parents=True)
        (fake / "bin" / "mpirun").write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.0.5'\n")
        (fake / "bin" / "mpirun").chmod(0o755)
    home = {"HOME": str(weird_home), "LD_LIBRARY_PATH": "/a b/lib"}
    environ = {**os.environ, **home, "VIRTUAL_ENV": str(conda if named else activated)}
    environ.pop("CONDA_PREFIX", None)
    command = probe(named and named.format(home=weird_home))
    done = subprocess.run(["sh", "-c", command], env=environ, capture_output=True, check=True)
    facts = parse_facts(done.stdout.decode())
    assert facts.home == str(weird_home)
    assert facts.addresses
    assert facts.library_path == "/a b/lib"
    assert facts.cpus >= 1
    paths = [environment.mpirun.path for environment in facts.environments]
    assert paths[0] == f"{activated}/bin/mpirun"
    assert f"{conda}/bin/mpirun" in paths


def test_efa_and_its_libraries_are_found(tmp_path):
    """Folders replace /sys and /opt. The drivers are links, as in the kernel's /sys."""
    for card, driver in {"rdmap16s27": "efa", "rdmap32s27": "efa", "mlx5_0": "mlx5_core"}.items():
        (tmp_path / "drivers" / driver).mkdir(parents=True, exist_ok=True)
        device = tmp_path / "sys" / "infiniband" / card / "device"
        device.mkdir(parents=True)
        (device / "driver").symlink_to(tmp_path / "drivers" / driver)
    plugin = tmp_path / "opt" / "ofi-nccl" / "lib" / "x86_64-linux-gnu"
    fabric = tmp_path / "opt" / "efa" / "lib64"
    for folder, name in {plugin: "libnccl-net.so", fabric: "libfabric.so.1"}.items():
        folder.mkdir(parents=True)
        (folder / name).touch()
    probe = PROBE.replace("/sys/class", f"{tmp_path}/sys").replace("/opt/amazon", f"{tmp_path}/opt")
    done = subprocess.run(["sh", "-c", probe], capture_output=True, text=True, check=True)
    facts = parse_facts(done.stdout)
    assert (facts.efa, facts.efa_libraries) == (2, (str(plugin), str(fabric)))
