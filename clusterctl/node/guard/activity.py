"""What a node does: its jobs, logins, GPUs and processor time."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterctl.node.guard.commands import run
from clusterctl.node.procfs import JOB_VARIABLE, TICKS, boot_s, environ_of, living_thread, read_stat

# Environment variables of ranks and jobs.
MPI_RANKS = (b"OMPI_COMM_WORLD_RANK", b"PMIX_RANK")
MARKS = {*MPI_RANKS, JOB_VARIABLE.encode()}
# Programs of Open MPI.
MPI = ("mpirun", "mpiexec", "orterun", "prterun", "orted", "prted", "ompi_prted", "ompirun_wrapper")
# The title that OpenSSH gives the process of a session: `sshd: ubuntu@pts/0`, since 9.8
# `sshd-session: ...`.
LOGIN = re.compile(r"sshd(?:-session)?: (\S+)@(\S+)")
BUSY_GPU_PERCENT = 5
# Where Deep Learning AMIs mount the instance store. It holds data from this size on, which is less
# than a checkpoint, or this number of files.
STORE = "/opt/dlami/nvme"
STORE_BYTES, STORE_FILES = 16 * 2**20, 1000
SMI_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class JobProcess:
    """A process. `title` is its command line, `cpu_s` includes its children that have ended."""

    pid: int
    parent: int
    name: str
    title: str
    environ: dict[bytes, bytes]
    cpu_s: float


@dataclass(frozen=True)
class NodeActivity:
    """A node's activity: why it is busy, and the processor seconds of its processes, at `at_s` of
    the boot clock. `unknown` is why it is not known whether its GPUs are used."""

    busy: tuple[str, ...]
    cpu_s: float
    at_s: float
    unknown: tuple[str, ...] = ()


def parse_activity(data: dict[str, Any]) -> NodeActivity:
    """Parse the activity of another node. Raises ValueError."""
    try:
        return NodeActivity(
            tuple(map(str, data["busy"])),
            float(data["cpu_s"]),
            float(data["at_s"]),
            tuple(map(str, data.get("unknown", ()))),
        )
    except (KeyError, TypeError) as wrong:
        raise ValueError(f"not what a guard prints: {wrong}") from None


def node_activity(keeps_store: bool) -> NodeActivity:
    """Return the activity of this node. nvidia-smi is slow, so it runs only if all else is idle.

    With `keeps_store` data on the instance store counts as activity.
    """
    processes = all_processes()
    busy = [*jobs(processes), *logins(processes, os.getpid())]
    unknown: list[str] = []
    if not busy:
        busy, unknown = gpus()
        busy += stored() if keeps_store and not busy else []
    # The time of a process that has ended is in its parent's.
    cpu_s = sum(process.cpu_s for process in processes.values())
    at_s = boot_s()
    return NodeActivity(tuple(busy), round(cpu_s, 2), at_s, tuple(unknown))


def all_processes() -> dict[int, JobProcess]:
    """Return all users' processes by process ID, without zombies."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended
            name, fields = read_stat(f"/proc/{pid}")
            there = living_thread(f"/proc/{pid}")
            title = Path(there, "cmdline").read_text(errors="replace").replace("\0", " ").rstrip()
            if fields[0] not in "ZX":
                found[int(pid)] = JobProcess(
                    int(pid),
                    int(fields[1]),
                    name,
                    title,
                    environ_of(there),
                    sum(map(int, fields[11:15])) / TICKS,
                )
    return found


def jobs(processes: dict[int, JobProcess]) -> list[str]:
    """Return why jobs make this node busy; empty if none runs."""
    found = [one for one in processes.values() if one.name in MPI or MARKS & one.environ.keys()]
    if not found:
        return []
    first = min(found, key=lambda process: process.pid)
    return [f"a job's processes: {len(found)}, the first {first.name} ({first.pid})"]


def logins(processes: dict[int, JobProcess], own: int) -> list[str]:
    """Return the open sessions of SSH and of the SSM agent, but not that in which process `own`
    runs. A connection without a session, such as a tunnel, does not count."""
    line = ancestors(processes, own)
    parents = {process.parent for process in processes.values()}
    found = []
    for process in processes.values():
        if process.name.startswith("ssm-session-wor"):
            found.append("a session of Systems Manager")
        title = LOGIN.fullmatch(process.title.strip())
        if not title or process.pid in line or not process.name.startswith("sshd"):
            continue
        # A session has a terminal or has started a process.
        if process.pid in parents or title[2].startswith("pts"):
            found.append(f"{title[1]} is logged in ({title[2]})")
    return sorted(set(found))


def ancestors(processes: dict[int, JobProcess], pid: int) -> set[int]:
    """Return a process and its ancestors."""
    line: set[int] = set()
    while pid in processes and pid not in line:
        line.add(pid)
        pid = processes[pid].parent
    return line


def gpus() -> tuple[list[str], list[str]]:
    """Return why GPUs make this node busy, by nvidia-smi, and why that is not known. Without that
    program there are none."""
    style = "--format=csv,noheader,nounits"
    try:
        status, output = run(["nvidia-smi", "--query-gpu=utilization.gpu", style], SMI_TIMEOUT_S)
        if status:
            # NVIDIA's image has the program also on a machine without a GPU, where it fails.
            return [], [f"nvidia-smi fails: {_last(output)}"] if has_nvidia_card() else []
        at = [int(word) for word in output.split() if word.isdigit()]
        busy = [f"a GPU is used, {max(at)} %"] if at and max(at) >= BUSY_GPU_PERCENT else []
        status, output = run(["nvidia-smi", "--query-compute-apps=pid", style], SMI_TIMEOUT_S)
    except FileNotFoundError:
        return [], []
    except OSError as hangs:
        return [], [f"nvidia-smi: {hangs}"]
    if status:
        return busy, [f"nvidia-smi fails: {_last(output)}"]
    if any(word.isdigit() for word in output.split()):
        busy.append("a process uses a GPU")
    return busy, []


def stored(folder: str = STORE) -> list[str]:
    """Return why an instance store's data makes this node busy: stopping the node would erase it.

    Files are counted, because an empty file system may count its own tables as used.
    """
    if not os.path.ismount(folder):  # noqa: PTH114
        return []
    size = files = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                size += os.lstat(os.path.join(place, name)).st_blocks * 512  # noqa: PTH116,PTH118
            files += 1
            if size >= STORE_BYTES or files >= STORE_FILES:
                return [f"data on {folder}, which a stop erases"]
    return []


def has_nvidia_card() -> bool:
    """Return whether a PCI device is NVIDIA's."""
    for vendor in Path("/sys/bus/pci/devices").glob("*/vendor"):
        with contextlib.suppress(OSError):
            if vendor.read_text().strip() == "0x10de":
                return True
    return False


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1][:200]
