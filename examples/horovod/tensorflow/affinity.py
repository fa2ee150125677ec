"""Binds a process that trains on one GPU to the processors next to that GPU.

mpirun and torchrun do not know which GPU a process will use, so each process binds itself: call
`bind_near_gpu` first of all, since threads inherit the processors from the thread that starts them.
Processes whose GPUs are at one socket divide its cores.

Standard library only. clusterctl starts a user's own program with this module, too.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

# Set to `none`, this variable leaves the processors as they are.
VARIABLE = "RANK_BINDING"
# How many times another's share a rank's share may be. Where ranks differ in number by socket, as
# three on two sockets, it is 2. The slowest rank sets the pace of all.
MOST_UNEVEN = 2.5
# Variables with a process's number among those of its node, and their count. torchrun's come first:
# torchrun itself may be a process of mpirun. Then Open MPI's, then those of Horovod's launcher.
LOCAL = (
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
)


@dataclass(frozen=True)
class Core:
    """A core: its socket, and the numbers of its processors (hardware threads)."""

    socket: int
    processors: frozenset[int]


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA GPU. `near` are the processors that the kernel calls local to it; may be empty."""

    address: str  # on the PCI bus, such as 0000:10:1c.0
    uuid: str
    model: str
    near: frozenset[int]


def bind_near_gpu(
    environ: Mapping[str, str] = os.environ, root: str = "/", single_uses_all: bool = False
) -> frozenset[int] | None:
    """Bind this process to its share of the node's processors, and print them to stderr.

    Return the processors, or None if the process stays as it is: no launcher is known, VARIABLE
    says so, another program has bound it, or binding is of no use (`share_of`). `root` has the
    folders proc and sys. `single_uses_all`: a node's only process may use all GPUs.
    """
    rank, ranks = local_rank(environ)
    allowed = os.sched_getaffinity(0)
    if not ranks or environ.get(VARIABLE) == "none" or (ranks == 1 and single_uses_all):
        return None
    # A launcher that binds, numactl or taskset has left other processors than the parent has.
    if allowed != affinity_of(os.getppid()):
        return None
    found = gpus_below(root)
    gpus = visible_gpus(found, environ)
    cores, near = cores_below(root, allowed), [gpu.near for gpu in gpus]
    mine = share_of(rank, ranks, cores, near, frozenset().union(*(gpu.near for gpu in found)))
    if mine is None or mine == allowed:
        return None
    try:
        os.sched_setaffinity(0, mine)
    except OSError:  # an administrator has just removed processors
        return None
    where = f", GPU at {gpus[rank].address}" if rank < len(gpus) else ""
    print(f"local rank {rank} uses processors {ranges(mine)}{where}", file=sys.stderr, flush=True)
    return mine


def share_of(
    rank: int,
    ranks: int,
    cores: Iterable[Core],
    near: list[frozenset[int]],
    near_any: frozenset[int] = frozenset(),
) -> frozenset[int] | None:
    """Return the processors of one of a node's `ranks`; None to leave it unbound.

    `near` has the processors next to each visible GPU, in CUDA's order; rank N uses GPU N.
    `near_any` are those next to any GPU of the node, visible or not. Ranks whose GPUs are at the
    same cores divide these, each a part of whole cores in a row. If any of it is not known, or
    names all cores (a virtual machine may not report them), the ranks divide the sockets evenly.

    If cores are next to no GPU, ranks divide the whole sockets of their GPUs, or all sockets, if
    one has no GPU. Nothing is bound where a rank would get less than a core, or much less than
    another (MOST_UNEVEN), for fewer ranks than sockets that are not known, and on one socket
    without GPUs, where the kernel's scheduler does as well.
    """
    ordered = sorted(cores, key=lambda core: (core.socket, min(core.processors)))
    sockets = sorted({core.socket for core in ordered})
    groups = _at_gpus(ranks, ordered, near, near_any.union(*near))
    if groups is None:
        if ranks < len(sockets) or (len(sockets) == 1 and not near):
            return None
        groups = _by_socket(ranks, ordered, sockets)
    # GPUs that no rank uses count: that their part of a socket is free starves no rank.
    sizes = [len(group) / groups.count(group) for group in groups[:ranks]]
    groups = groups[:ranks]
    too_small = any(len(group) < groups.count(group) for group in groups)
    if too_small or max(sizes) > MOST_UNEVEN * min(sizes):
        return None
    mine = groups[rank]
    part, parts = groups[:rank].count(mine), groups.count(mine)
    first, stop = (len(mine) * at // parts for at in (part, part + 1))
    return frozenset().union(*(core.processors for core in mine[first:stop]))


def _at_gpus(
    ranks: int, cores: list[Core], near: list[frozenset[int]], near_any: frozenset[int]
) -> list[tuple[Core, ...]] | None:
    """Return the cores next to each visible GPU; None if these do not distinguish the ranks' GPUs.

    A core next to no GPU belongs to all GPUs of its socket, of whose NUMA nodes some may have none.
    The topology file of p5.48xlarge in aws-ofi-nccl has all GPUs at threads 0-47 of 192.
    """
    groups = [tuple(core for core in cores if core.processors & processors) for processors in near]
    if any(not core.processors & near_any for core in cores):
        with_gpus = {core.socket for core in cores if core.processors & near_any}
        if any(core.socket not in with_gpus for core in cores):
            return None
        of_gpus = [{core.socket for core in group} for group in groups]
        groups = [tuple(core for core in cores if core.socket in each) for each in of_gpus]
    used = groups[:ranks]
    distinct = set(used)
    overlap = sum(map(len, distinct)) > len(set().union(*distinct))
    if len(used) < ranks or overlap or not all(used) or len(used[0]) == len(cores):
        return None
    return groups


def _by_socket(ranks: int, cores: list[Core], sockets: list[int]) -> list[tuple[Core, ...]]:
    """Return the cores of each rank's socket. Every socket gets as many ranks, or one more."""
    by_rank = (sockets[rank * len(sockets) // ranks] for rank in range(ranks))
    return [tuple(core for core in cores if core.socket == socket) for socket in by_rank]


def local_rank(environ: Mapping[str, str]) -> tuple[int, int]:
    """Return this process's number among those of its node, and their count; 0, 0 if unknown."""
    for names in LOCAL:
        values = [environ.get(name, "") for name in names]
        if all(re.fullmatch("[0-9]{1,6}", value) for value in values):
            rank, ranks = map(int, values)
            return (rank, ranks) if rank < ranks else (0, 0)
    return 0, 0


def affinity_of(pid: int) -> set[int]:
    """Return the processors that a process may use; none if it has ended."""
    try:
        return os.sched_getaffinity(pid)
    except OSError:
        return set()


def cores_below(root: str, allowed: Iterable[int]) -> list[Core]:
    """Return the cores of the processors `allowed`, as the folder sys describes them.

    A processor that it does not describe is a core of its own, in socket 0.
    """
    allowed, found = frozenset(allowed), {}
    for processor in allowed:
        folder = Path(root, "sys/devices/system/cpu", f"cpu{processor}", "topology")
        threads = numbers(text_of(folder / "thread_siblings_list")) | {processor}
        socket = text_of(folder / "physical_package_id")
        number = int(socket) if re.fullmatch("-?[0-9]{1,9}", socket) else 0
        found[threads & allowed] = Core(number, threads & allowed)
    return list(found.values())


def gpus_below(root: str) -> list[Gpu]:
    """Return the NVIDIA GPUs in the order of their addresses, as the driver and sysfs list them."""
    found = []
    for file in Path(root, "proc/driver/nvidia/gpus").glob("*/information"):
        rows = (line.partition(":") for line in text_of(file).splitlines())
        values = {name.strip(): value.strip() for name, _, value in rows}
        address = values.get("Bus Location", "").lower()
        if re.fullmatch(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", address):
            near = numbers(text_of(Path(root, "sys/bus/pci/devices", address, "local_cpulist")))
            found.append(Gpu(address, values.get("GPU UUID", ""), values.get("Model", ""), near))
    return sorted(found, key=lambda gpu: [int(part, 16) for part in re.split("[:.]", gpu.address)])


def visible_gpus(gpus: list[Gpu], environ: Mapping[str, str]) -> list[Gpu]:
    """Return the GPUs that CUDA shows to a process, in CUDA's order. `gpus` are by address.

    A part of a GPU (MIG) is a GPU of which nothing is known, unless its name has the GPU's UUID.
    Source: "CUDA Environment Variables" in NVIDIA's CUDA C++ Programming Guide. GPUs of one model
    are taken to be in the order of their addresses, which NVIDIA promises for CUDA_DEVICE_ORDER=
    PCI_BUS_ID only; of several models, the fastest is the first, and which that is is not known.
    """
    unknown = Gpu("unknown", "", "", frozenset())
    if len({gpu.model for gpu in gpus}) > 1 and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        gpus = [unknown] * len(gpus)
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return gpus
    visible = []
    for word in map(str.strip, chosen.split(",")):
        if re.fullmatch("[0-9]{1,6}", word):
            named = gpus[int(word) : int(word) + 1]
        else:
            uuid = re.sub("^MIG-(?=GPU-)", "", word).partition("/")[0]
            named = [gpu for gpu in gpus if gpu.uuid.startswith(uuid) and uuid.startswith("GPU-")]
            named = named or [unknown] * word.startswith("MIG-")
        if len(named) != 1:  # CUDA ignores a wrong entry, and all that follow it
            break
        visible += named
    return visible


def text_of(path: Path) -> str:
    """Return a file's text without surrounding space; empty if there is no such file."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def numbers(text: str) -> frozenset[int]:
    """Return the numbers in a list such as `0-3,8`; none if it is malformed."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        match = re.fullmatch("([0-9]{1,6})(?:-([0-9]{1,6}))?", part)
        if not match:
            return frozenset()
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(found)


def ranges(processors: Iterable[int]) -> str:
    """Return a list such as `0-3,8` of these numbers."""
    runs: list[list[int]] = []
    for number in sorted(processors):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs)
