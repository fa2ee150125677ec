"""Which processors each rank of a node takes, read from a folder that stands for proc and sys."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.node import affinity
from clusterctl.node.affinity import (
    Core,
    cores_below,
    gpus_below,
    local_rank,
    numbers,
    ranges,
    share_of,
    visible_gpus,
)
from clusterctl.node.packer import program_of
from tests.fake_sysfs import machine, two_sockets_here
from tests.programs import completed

# p4d.24xlarge: two sockets of 24 cores with two threads each. Addresses and processors of its GPUs:
# p4d-24xl-topo.xml in aws-ofi-nccl.
P4D = [f"0000:{bus}:{slot}.0" for bus in ("10", "20", "90", "a0") for slot in ("1c", "1d")]
P4D_NEAR = ["0-23,48-71"] * 4 + ["24-47,72-95"] * 4


def shares(root, ranks, allowed, environ=None):
    """Return the processors of each rank as text; None for one that is not bound."""
    cores = cores_below(str(root), numbers(allowed))
    near = [gpu.near for gpu in visible_gpus(gpus_below(str(root)), environ or {})]
    near_any = frozenset().union(*(gpu.near for gpu in gpus_below(str(root))))
    found = [share_of(rank, ranks, cores, near, near_any) for rank in range(ranks)]
    return [one if one is None else ranges(one) for one in found]


@pytest.fixture(scope="module")
def p4d(tmp_path_factory):
    return machine(tmp_path_factory.mktemp("p4d"), 2, 24, gpus=P4D, near=P4D_NEAR)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (1, ["0-23,48-71"]),
        # GPUs 0 and 1 are at one socket: the ranks divide it, and nobody uses the other.
        (2, ["0-11,48-59", "12-23,60-71"]),
        (3, ["0-7,48-55", "8-15,56-63", "16-23,64-71"]),
        (4, ["0-5,48-53", "6-11,54-59", "12-17,60-65", "18-23,66-71"]),
        (
            6,
            ["0-5,48-53", "6-11,54-59", "12-17,60-65", "18-23,66-71", "24-35,72-83", "36-47,84-95"],
        ),
        (
            8,
            ["0-5,48-53", "6-11,54-59", "12-17,60-65", "18-23,66-71"]
            + ["24-29,72-77", "30-35,78-83", "36-41,84-89", "42-47,90-95"],
        ),
    ],
)
def test_ranks_divide_the_cores_next_to_their_gpus(p4d, ranks, expected):
    assert shares(p4d, ranks, "0-95") == expected


@pytest.mark.parametrize("near", ["0-63", "", None, "nonsense", "-1"])
@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        (1, [None]),
        (2, ["0-15,32-47", "16-31,48-63"]),
        (3, ["0-7,32-39", "8-15,40-47", "16-31,48-63"]),
        (4, ["0-7,32-39", "8-15,40-47", "16-23,48-55", "24-31,56-63"]),
        (8, [f"{n}-{n + 3},{n + 32}-{n + 35}" for n in range(0, 32, 4)]),
    ],
)
def test_ranks_divide_the_sockets_where_the_machine_does_not_tell(tmp_path, near, ranks, expected):
    """p3.16xlarge runs on Xen, which may call all processors local to each GPU."""
    gpus = [f"0000:00:{slot:02x}.0" for slot in range(0x17, 0x1F)]
    root = machine(tmp_path, 2, 16, gpus=gpus, near=[near] * 8)
    assert shares(root, ranks, "0-63") == expected


@pytest.mark.parametrize(
    ("sockets", "cores", "threads", "gpus", "ranks", "expected"),
    [
        # g5.12xlarge: one socket and four GPUs.
        (1, 24, 2, 4, 4, ["0-5,24-29", "6-11,30-35", "12-17,36-41", "18-23,42-47"]),
        # g5.xlarge: the rank has all four processors.
        (1, 2, 2, 1, 1, ["0-3"]),
        # Cores that do not divide evenly.
        (1, 5, 1, 2, 2, ["0-1", "2-4"]),
        # Without GPUs.
        (1, 2, 1, 0, 2, [None, None]),
        (2, 2, 1, 0, 1, [None]),
        (2, 2, 1, 0, 2, ["0-1", "2-3"]),
        (2, 2, 1, 0, 4, ["0", "1", "2", "3"]),
        # More ranks than cores: none is bound.
        (2, 2, 2, 0, 5, [None] * 5),
        (1, 2, 2, 4, 4, [None] * 4),
        # More ranks than GPUs.
        (2, 4, 1, 2, 4, ["0-1", "2-3", "4-5", "6-7"]),
    ],
)
def test_other_machines(tmp_path, sockets, cores, threads, gpus, ranks, expected):
    everything = f"0-{sockets * cores * threads - 1}"
    names = [f"0000:00:1{slot}.0" for slot in range(gpus)]
    root = machine(tmp_path, sockets, cores, threads, names, [everything] * gpus)
    assert shares(root, ranks, everything) == expected


@pytest.mark.parametrize(
    ("allowed", "ranks", "expected"),
    [
        # A cgroup leaves the first socket only, or some cores of each, or single threads.
        ("0-23,48-71", 8, [f"{n}-{n + 2},{n + 48}-{n + 50}" for n in range(0, 24, 3)]),
        ("0-3,24-27", 8, ["0", "1", "2", "3", "24", "25", "26", "27"]),
        ("0-7,55", 2, ["0-3", "4-7,55"]),
        # Four ranks would have one core together.
        ("0-23,24", 8, [None] * 8),
    ],
)
def test_a_share_is_of_the_processors_that_are_allowed(p4d, allowed, ranks, expected):
    assert shares(p4d, ranks, allowed) == expected


def by_socket(cores_of_all, ranks):
    """Return shares that divide two sockets, both threads of each core together."""
    each = cores_of_all // ranks
    starts = range(0, cores_of_all, each)
    return [f"{n}-{n + each - 1},{n + cores_of_all}-{n + cores_of_all + each - 1}" for n in starts]


@pytest.mark.parametrize(
    ("near", "expected"),
    [
        # The topology file of p5.48xlarge in aws-ofi-nccl: 96 of 192 threads are next to no GPU.
        (["0-47"] * 8, by_socket(96, 8)),
        (["0-7,96-103"] * 8, by_socket(96, 8)),
        (["0-47"] * 4, by_socket(96, 4)),
        (["0-47"] * 2, by_socket(96, 2)),
        (["0-47"], [None]),
        # NUMA nodes of 12 cores, and GPUs at every second one, those of the second socket first.
        (
            ["60-71,156-167"] * 2 + ["84-95,180-191"] * 2 + ["12-23"] * 2 + ["36-47"] * 2,
            by_socket(96, 8)[4:] + by_socket(96, 8)[:4],
        ),
        # At every one: the NUMA node alone.
        ([f"{n}-{n + 11},{n + 96}-{n + 107}" for n in range(0, 96, 12)], by_socket(96, 8)),
    ],
)
def test_no_core_is_lost_because_it_is_next_to_no_gpu(tmp_path, near, expected):
    gpus = [f"0000:{bus}3:00.0" for bus in range(len(near))]
    root = machine(tmp_path, 2, 48, gpus=gpus, near=near)
    assert shares(root, len(near), "0-191") == expected


@pytest.mark.parametrize("gpus", [0, 2])
@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        ("0,24-38", [None, None]),
        ("0-22,24", [None, None]),
        ("0-3,24-35", [None, None]),
        ("0-7,24-39", ["0-7", "24-39"]),
    ],
)
def test_ranks_are_not_bound_if_a_cgroup_leaves_one_of_them_much_less(
    tmp_path, gpus, allowed, expected
):
    near = ["0-23", "24-47"][:gpus]
    root = machine(tmp_path, 2, 24, 1, [f"0000:00:1{n}.0" for n in range(gpus)], near)
    assert shares(root, 2, allowed) == expected


def test_shares_are_apart_whole_cores_and_not_empty(p4d):
    for ranks in (1, 5, 7, 8, 13, 48):
        found = [numbers(one) for one in shares(p4d, ranks, "0-95") if one]
        assert len(found) == ranks
        assert sum(map(len, found)) == len(frozenset().union(*found)), "each processor once"
        assert all({(one + 48) % 96 for one in mine} == mine for mine in found), "both threads"


FIRST, LAST = "0-23,48-71", "24-47,72-95"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"CUDA_VISIBLE_DEVICES": "6"}, [LAST]),
        ({"CUDA_VISIBLE_DEVICES": "7, 0"}, [LAST, FIRST]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-7a,GPU-0a58-ff"}, [LAST, FIRST]),
        ({"CUDA_VISIBLE_DEVICES": "MIG-GPU-5a58-ff/2/0"}, [LAST]),
        # A part of an unknown GPU: the ranks divide the sockets.
        ({"CUDA_VISIBLE_DEVICES": "MIG-53b6c2d1,MIG-GPU-9/1/0"}, [FIRST, LAST]),
        # CUDA stops at what it does not know: the second rank's GPU is not known.
        ({"CUDA_VISIBLE_DEVICES": "7,8,0"}, [FIRST, LAST]),
        ({"CUDA_VISIBLE_DEVICES": "7,GPU-,0"}, [FIRST, LAST]),
        ({"CUDA_VISIBLE_DEVICES": ""}, [FIRST, LAST]),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, [FIRST, LAST]),
    ],
)
def test_the_gpus_are_those_that_cuda_shows(p4d, environ, expected):
    assert shares(p4d, len(expected), "0-95", environ) == expected


def test_of_gpus_of_several_models_the_order_is_known_by_address_only(tmp_path):
    root = machine(tmp_path, 2, 24, gpus=P4D[::4], near=P4D_NEAR[::4])
    file = root / "proc/driver/nvidia/gpus" / P4D[0] / "information"
    file.write_text(file.read_text().replace("A100", "T4"))
    assert shares(root, 1, "0-95") == [None]
    assert shares(root, 1, "0-95", {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}) == [FIRST]


def test_a_machine_that_describes_nothing(tmp_path):
    assert set(cores_below(str(tmp_path), {1, 3})) == {
        Core(0, frozenset({1})),
        Core(0, frozenset({3})),
    }
    assert shares(tmp_path, 2, "0-3") == [None, None]
    for text in (b"", b"\xff\xfe", b"Bus Location: ../../etc\n", b"Bus Location: 00:1e.0\n"):
        folder = tmp_path / "proc/driver/nvidia/gpus/0000:00:1e.0"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "information").write_bytes(text)
        assert gpus_below(str(tmp_path)) == []


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, 0)),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "3", "OMPI_COMM_WORLD_LOCAL_SIZE": "8"}, (3, 8)),
        ({"HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "2"}, (1, 2)),
        # torchrun is a rank of mpirun itself.
        (
            {
                "LOCAL_RANK": "5",
                "LOCAL_WORLD_SIZE": "8",
                "OMPI_COMM_WORLD_LOCAL_RANK": "0",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
            },
            (5, 8),
        ),
        ({"LOCAL_RANK": "8", "LOCAL_WORLD_SIZE": "8"}, (0, 0)),
        ({"LOCAL_RANK": "-1", "LOCAL_WORLD_SIZE": "x"}, (0, 0)),
        ({"LOCAL_RANK": "2"}, (0, 0)),
    ],
)
def test_a_ranks_number_on_its_node(environ, expected):
    assert local_rank(environ) == expected


# Binds itself as local rank 1 of 2 by the folder argv[1], and prints what it and a thread may use.
BINDS = """
import os, sys, threading
sys.path.insert(0, sys.argv[2])
from affinity import bind_near_gpu
if len(sys.argv) > 3:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
print(bind_near_gpu(os.environ, sys.argv[1]))
threading.Thread(target=lambda: print(sorted(os.sched_getaffinity(0)))).start()
"""
TWO_RANKS = {"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}


@pytest.fixture
def two_sockets(tmp_path):
    return two_sockets_here(tmp_path)


def bound(root, *arguments, **environ):
    module = Path(affinity.__file__).resolve()
    return completed(
        [sys.executable, "-c", BINDS, root, module.parent, *arguments],
        env={**os.environ, **TWO_RANKS, **environ},
        check=True,
    )


def test_a_process_binds_itself_and_its_threads_and_says_so(two_sockets):
    root, _, second = two_sockets
    done = bound(root)
    assert done.stdout.splitlines()[1] == str(second)
    where = f"{ranges(second)}, GPU at 0000:00:11.0"
    assert done.stderr == f"local rank 1 uses processors {where}\n"


def test_a_process_that_is_bound_or_must_not_be_is_left_alone(two_sockets):
    root, first, second = two_sockets
    done = bound(root, "as taskset does")
    assert (done.stdout, done.stderr) == (f"None\n[{first[0]}]\n", "")
    for environ in ({"RANK_BINDING": "none"}, {"OMPI_COMM_WORLD_LOCAL_SIZE": ""}):
        done = bound(root, **environ)
        assert (done.stdout, done.stderr) == (f"None\n{first + second}\n", "")


EXAMPLE = Path(affinity.__file__).resolve().parent
SAYS = "import os; print(sorted(os.sched_getaffinity(0)))"
RANK_1 = {
    "RANK": "1",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}


def said(*argv, **environ):
    done = completed(
        [sys.executable, *argv], env={**os.environ, **RANK_1, **environ}, timeout=60, check=True
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "argv"), [("start_rank", (sys.executable, "-c", SAYS)), ("torch_rank", ("-c", SAYS))]
)
def test_what_starts_a_rank_binds_it_first(two_sockets, name, argv):
    root, first, second = two_sockets
    text = program_of(f"clusterctl.node.jobs.{name}").text
    assert text.count('root: str = "/"') == 1
    (root / name).write_text(text.replace('root: str = "/"', f'root: str = "{root}"'))
    told = said("-IS", root / name, *argv)
    assert str(second) in told
    assert f"local rank 1 uses processors {ranges(second)}" in told
    # A rank that is alone on its node may use all GPUs.
    told = said("-IS", root / name, *argv, **{one: "01"["SIZE" in one] for one in RANK_1})
    assert (str(first + second) in told, "uses processors" in told) == (True, False)


def test_a_program_that_cannot_be_started_is_named():
    with pytest.raises(subprocess.CalledProcessError) as failed:
        said("-c", "from clusterctl.node.jobs import start_rank as s; s.main()", "/no such")
    assert failed.value.stderr == "/no such: No such file or directory\n"


@pytest.mark.parametrize("flags", [["--synthetic", "--num_batches", "1"], ["--eval"]])
def test_the_trainer_and_its_evaluation_bind_before_threads_are_started(two_sockets, flags):
    """Horovod's package here is one that prints the processors and ends the trainer."""
    root, first, second = two_sockets
    folder = shutil.copytree(EXAMPLE, root / "trainer", ignore=lambda _, names: {"__pycache__"})
    module = folder / "affinity.py"
    module.write_text(module.read_text().replace('root: str = "/"', f'root: str = "{root}"'))
    (folder / "horovod").mkdir()
    (folder / "horovod/__init__.py").write_text(f"{SAYS}\nraise SystemExit\n")
    data = [] if "--synthetic" in flags else ["--data_dir", "x"]
    told = said(folder / "train_imagenet_resnet_hvd.py", *flags, *data)
    assert told.startswith(f"{second}\n")
