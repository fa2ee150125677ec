"""Who is at the other end of what a process waits for, on this node."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from clusterctl.node.procfs import read_stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MOST = 4  # partners of a process
LONGEST = 200  # characters of an argument
LOCKS = ("flock", "fcntl")


def of(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the partners of a process, by its last sample (`Partner` of evidence.py)."""
    if not entry["samples"]:
        return []
    last, pid = entry["samples"][-1], entry["pid"]
    call, _, path = last["syscall"].partition(" ")
    found = []
    if last["state"] in "tT":
        found += [(tracer, "traces") for tracer in _tracers(pid)]
    if call in LOCKS:
        found += [(holder, "locks") for holder in _holders(pid)]
    elif path.startswith("/dev/pts/"):
        found += [(master, "collects") for master in _masters(path.rpartition("/")[2])]
    elif path.startswith("pipe:") or last["wait_channel"].endswith(("pipe_read", "pipe_write")):
        found += _at_pipe(path, pid, "w" if call.startswith("read") else "r")
    return [_described(one, relation) for one, relation in found[:MOST] if one != pid]


def _described(pid: int, relation: str) -> dict[str, Any]:
    state, argv = "", []
    with contextlib.suppress(OSError, IndexError):
        state = read_stat(f"/proc/{pid}")[1][0]
        raw = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
        argv = [word.decode(errors="backslashreplace")[:LONGEST] for word in raw[:4]]
    return {"pid": pid, "state": state, "relation": relation, "argv": argv}


def _tracers(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        said = Path(f"/proc/{pid}/status").read_text(errors="replace")
        found = re.search(r"^TracerPid:\s*([1-9]\d*)", said, re.M)
        if found:
            yield int(found[1])


def _holders(pid: int) -> Iterator[int]:
    """Yield the holders of the lock that a process waits for (proc_locks(5))."""
    holder: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if "->" not in words:
                holder[words[0]] = int(words[4])
            elif int(words[5]) == pid and words[0] in holder:
                yield holder[words[0]]


def _descriptors() -> Iterator[tuple[int, str, str]]:
    """Yield process ID, descriptor and target of all descriptors that this user may see."""
    for pid in os.listdir("/proc"):  # noqa: PTH208
        if pid.isdigit():
            with contextlib.suppress(OSError):
                for fd in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
                    with contextlib.suppress(OSError):
                        yield int(pid), fd, os.readlink(f"/proc/{pid}/fd/{fd}")  # noqa: PTH115


def _info(pid: int, fd: str, name: str) -> str:
    with contextlib.suppress(OSError):
        said = Path(f"/proc/{pid}/fdinfo/{fd}").read_text()
        found = re.search(rf"^{name}:\s*(\w+)", said, re.M)
        return found[1] if found else ""
    return ""


def _masters(number: str) -> Iterator[int]:
    """Yield the processes that have the other end of /dev/pts/NUMBER, which read what is written
    there."""
    for pid, fd, target in _descriptors():
        if target.endswith("/ptmx") and _info(pid, fd, "tty-index") == number:
            yield pid


def _at_pipe(path: str, own: int, mode: str) -> Iterator[tuple[int, str]]:
    """Yield the other processes that read a pipe or FIFO (mode r), or write into it (w)."""
    for pid, fd, target in _descriptors():
        if target == path and pid != own:
            access = int(_info(pid, fd, "flags") or "0", 8) & os.O_ACCMODE
            if access == os.O_RDWR or access == (os.O_RDONLY if mode == "r" else os.O_WRONLY):
                yield pid, "reads" if mode == "r" else "writes"
