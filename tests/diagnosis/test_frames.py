"""The calls of real libraries, as py-spy reads them from ranks that wait."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from clusterctl.diagnosis.evidence import Frame
from clusterctl.diagnosis.frames import Activity, collective_of, name_of, place_of
from clusterctl.node.diagnosis.stacks import _read_py_spy
from clusterctl.operations.diagnose import installed_py_spy
from tests.lab.running import wait_until

TORCH = Path(__file__).with_name("torch_waits.py")
# Interpreters that may have PyTorch: Debian's has 1.13. Others are named in a variable.
PYTHONS = ("/usr/bin/python3", *os.environ.get("CLUSTERCTL_TORCH_PYTHONS", "").split())
IN, INIT, GRAPH = Activity.COLLECTIVE, Activity.INIT, Activity.GRAPH
# What rank 0 does while rank 1 is elsewhere, in the order of torch_waits.py.
WAITS = {
    "init": (INIT, ""),
    "all_reduce": (IN, "torch.distributed's all_reduce"),
    "barrier": (IN, "torch.distributed's barrier"),
    "all_gather": (IN, "torch.distributed's all_gather"),
    "broadcast": (IN, "torch.distributed's broadcast"),
    "recv": (IN, "torch.distributed's recv"),
    "gather_object": (IN, "torch.distributed's all_gather"),
    "new_group": (INIT, ""),
    "ddp": (IN, None),
    "backward": (GRAPH, ""),
    "loader": (Activity.DATA, ""),
    "wait": (Activity.USER, ""),
}


def place(pid):
    """Return the place and the collective of a process's main thread; None if it is not read."""
    argv = [str(installed_py_spy()), "dump", "--nonblocking", "--json", "--pid", str(pid)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    try:
        threads = _read_py_spy(done.stdout)
    except OSError:
        return None
    for thread in threads:
        if thread["thread"] == "MainThread":
            frames = tuple(Frame(**frame) for frame in thread["frames"])
            return place_of(frames), collective_of(frames), [name_of(one) for one in frames[-6:]]
    return None


@pytest.mark.all
@pytest.mark.parametrize("python", PYTHONS)
def test_where_ranks_of_torch_wait(python, tmp_path):
    probe = subprocess.run([python, "-c", "import torch"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"{python} has no PyTorch: ./scripts/test installs Debian's")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    common |= {"WORLD_SIZE": "2", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen([python, str(TORCH), str(tmp_path)], env={**common, "RANK": str(rank)})
        for rank in (0, 1)
    ]
    seen = {}
    try:
        for name, expected in WAITS.items():
            at = tmp_path / f"at-{name}"
            wait_until(at.exists, f"rank 0 at {name}")

            def is_there(name=name, expected=expected):
                seen[name] = place(ranks[0].pid)
                told = seen[name]
                return told and told[0] is expected[0] and expected[1] in (None, told[1])

            try:
                wait_until(is_there, name)
            except AssertionError:
                raise AssertionError(f"{name}: {seen[name]}, not {expected}") from None
            (tmp_path / f"go-{name}").touch()
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def test_names_are_compared_without_their_class():
    """From Python 3.11 on, py-spy reports qualified names."""
    horovod = "/x/site-packages/horovod/common/basics.py"
    user = Frame("Trainer.fit", "/home/u/train.py", 3)
    for name in ("init", "HorovodBasics.init"):
        assert place_of((user, Frame(name, horovod, 56))) is INIT
    loader = Frame(
        "_SingleProcessDataLoaderIter.__next__", "/x/site-packages/torch/utils/data/dataloader.py"
    )
    assert place_of((user, loader)) is Activity.DATA
    # The user's code below a library's call is what runs.
    own = Frame("Data.__getitem__", "/home/u/data.py", 9)
    assert place_of((user, loader, own)) is Activity.USER
    assert name_of(Frame("f.<locals>.<lambda>")) == "<lambda>"


def test_what_tensorflow_traces_is_no_wait():
    """A collective of a graph is built where it is called, and waited for where the graph runs."""
    tensorflow = "/x/site-packages/tensorflow/python"
    user = Frame("main", "/home/u/train.py", 3)
    traces = (user, Frame("func_graph_from_py_func", f"{tensorflow}/framework/func_graph.py", 1059))
    step = Frame("tf__step", "/tmp/__autograph_generated_filex1.py", 15)
    builds = (Frame("horovod_allreduce", "<string>", 110), Frame("op", f"{tensorflow}/ops.py", 7))
    assert place_of((*traces, step, *builds)) is Activity.BUILD
    assert place_of((*traces, step, builds[0])) is IN
    assert place_of((*traces, Frame("step", "/home/u/train.py", 9))) is Activity.USER
    assert (
        place_of((*traces, Frame("quick_execute", f"{tensorflow}/eager/execute.py", 53))) is GRAPH
    )
