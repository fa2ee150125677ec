"""`clusterctl env` on two hosts of the lab: copy and installation, and mpirun between the hosts.

The packages are tiny. docs/environment.md has the times and sizes of the real ones.
"""

from __future__ import annotations

import json

import pytest

from tests.bootstrap.wheels import make_wheelhouse

pytestmark = [pytest.mark.lab, pytest.mark.train]

FOLDER = "/opt/tiny-training/environment"
WHEELS = ".cache/clusterctl"


@pytest.fixture
def pair(pair):
    """Return the cluster. The end removes what a test has installed."""
    yield pair
    for node in (0, 1):
        pair.on(node, f"sudo -n rm -rf /opt/tiny-training {WHEELS} .clusterctl/training-env")


def ok(ran) -> str:
    status, out, err = ran
    assert status == 0, (out, err)
    return out


def states(out: str) -> list[str]:
    return [node["state"] for node in json.loads(out)["nodes"]]


@pytest.mark.all
def test_from_this_machines_wheels_and_again_from_the_head_nodes(pair, tmp_path):
    wheels = make_wheelhouse(tmp_path / "my wheels")
    (wheels / "notes.txt").write_text("no package")
    install = ("--prefix", FOLDER, "--wheelhouse", str(wheels))
    steps = ok(pair.ctl("env install", *install, "--dry-run")).splitlines()
    assert steps == [
        "pair-0: get the wheels, once for all nodes",
        "copy the wheels from pair-0 to pair-1",
        f"pair-[0-1]: install into {FOLDER}, and test it with two ranks",
    ]
    status, out, err = pair.ctl("env install", *install, "--json")
    assert (status, states(out)) == (0, ["ready", "ready"]), err
    assert "ranks on pair-[0-1] meet" in err
    assert pair.on(0, f"ls -A {WHEELS}") == "wheels\n", "what was given is gone"
    assert pair.on(1, f"ls -A {WHEELS}/wheels") == "", "the wheels stay on the head node only"

    # From now on, train, status and install use that folder.
    assert f"{FOLDER}/bin/mpirun -np 2" in ok(pair.ctl("train", "2", "--synthetic", "--dry-run"))
    assert ok(pair.ctl("env install")).count("ready") == 2
    assert ok(pair.ctl("env install", "--dry-run")) == "nothing to do: every node is ready\n"

    # A replaced node needs neither a package index nor this machine's wheels.
    pair.on(1, "sudo -n rm -rf /opt/tiny-training .clusterctl/training-env")
    err = pair.ends(1, f"error: pair-1: there is no training environment in {FOLDER}", "env status")
    assert "hint: clusterctl env install pair" in err
    status, out, err = pair.ctl("env install", "--json")
    assert (status, states(out)) == (0, ["ready", "ready"]), err
    assert "copying the wheels from pair-0 to pair-1" in err
    assert "pair-0: installing" not in err


TRAINER = "examples/horovod/tensorflow/train_imagenet_resnet_hvd.py"
COMPILES = """\
import os, sys
folder = os.environ["CUDA_CACHE_PATH"] + "/a/b"
os.makedirs(folder, exist_ok=True)
open(folder + "/kernel", "w").write(" ".join(sys.argv[1:]))
"""


@pytest.mark.all
def test_kernels_are_compiled_on_one_node_for_all(pair, tmp_path):
    """Fake programs replace those that need a GPU: the driver's, and the trainer that compiles."""
    wheels = make_wheelhouse(tmp_path / "wheels")
    smi = "#!/bin/sh\necho 9.0\n"
    for node in (0, 1):
        pair.on(node, f"printf %s '{smi}' | sudo -n tee /usr/local/bin/nvidia-smi >/dev/null")
        pair.on(node, "sudo -n chmod 755 /usr/local/bin/nvidia-smi")
    # Restore the nodes' own trainer, since other tests share the cluster.
    for node in (0, 1):
        pair.on(node, f"cp -p {TRAINER} {TRAINER}.kept")
    pair.put(TRAINER, COMPILES)
    install = ("--prefix", FOLDER, "--wheelhouse", str(wheels), "--preset", "gpu")
    try:
        # Two kinds of GPUs: the highest chooses for both nodes, unless a release is named.
        pair.on(1, "sudo -n sed -i s/9.0/8.0/ /usr/local/bin/nvidia-smi")
        first, *_ = ok(pair.ctl("env install", *install, "--dry-run")).splitlines()
        assert first == (
            "--tensorflow NEWEST, for compute capability 9.0 on pair-0, the highest of the "
            "cluster; the lowest is 8.0"
        )
        pair.on(1, "sudo -n sed -i s/8.0/10.0/ /usr/local/bin/nvidia-smi")
        install += ("--tensorflow", "2.15")
        pair.ends(1, "no code for compute capability 10.0", "env install", *install)
        pair.on(1, "sudo -n sed -i s/10.0/8.0/ /usr/local/bin/nvidia-smi")
        steps = ok(pair.ctl("env install", *install, "--dry-run")).splitlines()
        assert steps[-1].startswith("pair-0: compile TensorFlow's kernels for compute capability")
        status, out, err = pair.ctl("env install", *install, "--json")
        assert (status, states(out)) == (0, ["ready", "ready"]), err
        assert all("+gpu-sm80.90" in node["key"] for node in json.loads(out)["nodes"])
        compiled = [pair.on(node, f"cat {WHEELS}/cuda/a/b/kernel") for node in (0, 1)]
        assert compiled[0].startswith("--synthetic --num_batches 3")
        assert compiled[0] == compiled[1]
    finally:
        for node in (0, 1):
            pair.on(node, f"mv {TRAINER}.kept {TRAINER}")
            pair.on(node, f"sudo -n rm -rf /usr/local/bin/nvidia-smi {WHEELS}/cuda")


@pytest.mark.all
def test_what_is_in_the_way_is_said_before_anything_is_done(pair, tmp_path):
    wheels = make_wheelhouse(tmp_path / "wheels")
    pair.on(1, f"sudo -n mkdir -p {FOLDER}/mine")
    install = ("--prefix", FOLDER, "--wheelhouse", str(wheels))
    status, _, err = pair.ctl("env install", *install)
    assert status == 1
    assert f"error: pair-1: {FOLDER} holds something that clusterctl has not put there" in err
    assert pair.on(0, f"ls -d {FOLDER} {WHEELS} 2>/dev/null; true") == ""
    status, _, err = pair.ctl("env install", "--prefix", "/opt/../etc")
    assert status == 2
    status, _, err = pair.ctl("env install", "--prefix", FOLDER, "--wheelhouse", str(tmp_path))
    assert (status, "there is no wheel in" in err) == (2, True), err


@pytest.mark.all
def test_wheels_that_do_not_suffice(pair, tmp_path):
    wheels = make_wheelhouse(tmp_path / "wheels", horovod="")
    next(wheels.glob("numpy-*")).unlink()
    status, _, err = pair.ctl("env install", "--prefix", FOLDER, "--wheelhouse", str(wheels))
    assert status == 1
    assert "error: pair-0: the training environment: the wheels cannot be had from" in err
    assert "numpy==1.26.4" in err
