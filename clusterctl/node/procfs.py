"""Facts about processes and the boot, read from /proc."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

# The environment variable that has the job's ID, of every process of a job.
JOB_VARIABLE = "CLUSTERCTL_JOB"
TICKS = os.sysconf("SC_CLK_TCK")  # of processor time and start times, per second


def read_stat(folder: str | Path) -> tuple[str, list[str]]:
    """Return the name of a process or thread, and the fields of its `stat` after the name: state,
    parent and so on (proc(5)). The state of a process is that of a thread that goes on, if its main
    thread has ended. Raises OSError."""
    name, fields = _read_stat(folder)
    if fields[0] == "Z" and int(fields[17]) > 1:
        fields[0] = _read_stat(living_thread(folder))[1][0]
    return name, fields


def _read_stat(folder: str | Path) -> tuple[str, list[str]]:
    # The name is in parentheses, and may have spaces and parentheses itself. A Path would double
    # what this costs, and `diagnose` reads thousands.
    with open(f"{folder}/stat", "rb", 0) as file:  # noqa: PTH123
        name, _, rest = file.read().partition(b"(")[2].rpartition(b")")
    return os.fsdecode(name), rest.decode().split()


def living_thread(folder: str | Path) -> str:
    """Return the folder of a process, or that of a thread of it that goes on after the main thread
    has ended (pthread_exit(3)): only there are its state, its files and its environment then.
    Raises OSError."""
    if _read_stat(folder)[1][0] == "Z":
        tasks: list[str] = []
        with contextlib.suppress(OSError):  # a thread has no folder of threads
            tasks = os.listdir(f"{folder}/task")  # noqa: PTH208
        for task in tasks:
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if _read_stat(f"{folder}/task/{task}")[1][0] not in "ZX":
                    return f"{folder}/task/{task}"
    return str(folder)


def environ_of(folder: str | Path) -> dict[bytes, bytes]:
    """Return a process's environment; empty if it is gone or another user's."""
    try:
        pairs = Path(folder, "environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return {name: value for name, _, value in (pair.partition(b"=") for pair in pairs)}


def boot_s() -> float:
    """Return the seconds since the boot, suspends included, by a clock that nobody sets."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Return the kernel's random ID of this boot; empty if it cannot be read."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
