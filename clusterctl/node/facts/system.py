"""Facts about the machine: its kernel, memory, limits, log, and what a login gets."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from clusterctl.node.facts.report import deadline, output
from clusterctl.node.procfs import boot_id

# Kernel messages about GPUs, memory, disks and links. Others are not collected.
RELEVANT = re.compile(
    r"NVRM|SXid|nvidia|oom-kill|Out of memory|Killed process|blocked for more than|soft lockup"
    r"|hard LOCKUP|I/O error|I/O .*timeout|reset failure|read-only|nfs: server|Keep alive watchdog"
    r"|TX hasn't completed|Link is Down|NIC Link|EXT4-fs error|XFS.*(?:rror|hutdown)|Disk failure"
    r"|segfault|general protection|Machine Check|mce:|EDAC|\befa\b|Memory cgroup"
)
LAB = "/usr/lib/clusterctl-lab"  # exists on every host of the lab
MOST_LINES = 200
LONGEST_LINE = 500


@dataclass(frozen=True)
class System:
    """`load` is the mean number of running processes in the last minute."""

    hostname: str
    kernel: str
    boot_id: str
    uptime_s: float
    cpus: int
    load: float


def system() -> System:
    """Return the host's name, kernel, boot, processors and load."""
    name = os.uname()
    cpus = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    return System(name.nodename, name.release, boot_id(), _uptime_s(), cpus, load)


def _uptime_s() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])


def in_lab() -> bool:
    """Return whether this is a host of the local EC2. All of them share the processors."""
    return Path(LAB).is_dir()


@deadline(1200.0)
def cloud_init(wait: bool) -> Optional[int]:
    """Return the exit status of `cloud-init status`: 0 done, 1 failed, 2 done with recoverable
    errors; None without cloud-init. With `wait`, it has ended."""
    if not shutil.which("cloud-init"):
        return None
    command = ["cloud-init", "status", *(["--wait"] if wait else [])]
    null = subprocess.DEVNULL
    return subprocess.run(command, stdin=null, stdout=null, stderr=null, check=False).returncode


def memory() -> dict[str, int]:
    """Return bytes by the names of /proc/meminfo."""
    pairs = (line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    names = ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree", "Shmem")
    return {name: int(rest.split()[0]) * 1024 for name, rest in pairs if name in names}


def limits() -> dict[str, Optional[int]]:
    """Return the soft limits of an SSH login, which a rank has, too. None: unlimited."""
    named = {
        "memlock_bytes": resource.RLIMIT_MEMLOCK,
        "nofile": resource.RLIMIT_NOFILE,
        "nproc": resource.RLIMIT_NPROC,
        "stack_bytes": resource.RLIMIT_STACK,
    }
    found = {name: resource.getrlimit(number)[0] for name, number in named.items()}
    return {
        name: None if value == resource.RLIM_INFINITY else value for name, value in found.items()
    }


@dataclass(frozen=True)
class Login:
    """What a command over SSH gets: ~/.bashrc has been read, if the login shell reads it."""

    shell: str
    home: str
    search_path: str
    library_path: str


def login() -> Login:
    """Return the environment of this very login."""
    names = ("SHELL", "HOME", "PATH", "LD_LIBRARY_PATH")
    return Login(*(os.environ.get(name, "") for name in names))


@dataclass(frozen=True)
class KernelLine:
    """A line of the kernel's log, `age_s` old; None if that is unknown."""

    age_s: Optional[float]
    text: str


def kernel_log() -> tuple[KernelLine, ...]:
    """Return the last messages that match RELEVANT."""
    commands = (["dmesg"], ["sudo", "-n", "dmesg"])
    text = next((text for text in map(output, commands) if text is not None), None)
    if text is None:
        text = output(["journalctl", "-kb", "--no-pager", "-o", "short-monotonic"]) or ""
        # It shows `-- No entries --` to whom it shows nothing.
        if not re.search(r"(?m)^\[", text):
            raise PermissionError("neither dmesg nor journalctl shows the kernel's log")
    uptime_s = _uptime_s()
    lines = [line for line in text.splitlines() if RELEVANT.search(line)]
    return tuple(kernel_message(line, uptime_s) for line in lines[-MOST_LINES:])


def kernel_message(line: str, uptime_s: float) -> KernelLine:
    """Parse a line of dmesg or of journalctl."""
    found = re.match(r"(?:<\d+>)?\[\s*(\d+\.\d+)\]\s?(?:\S+ kernel: )?(.*)", line)
    at, text = (float(found[1]), found[2]) if found else (None, line)
    age_s = None if at is None else round(max(0.0, uptime_s - at), 1)
    return KernelLine(age_s, text[:LONGEST_LINE])
