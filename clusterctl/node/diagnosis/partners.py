"""Who is at the other end of what a process waits for, on this node."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from pathlib import Path

from clusterctl.node.diagnosis.sockets import unix_peers
from clusterctl.node.procfs import read_stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any, Callable

    WaitOf = Callable[[int], tuple[str, str, str]]

MOST = 4  # partners of a process
LONGEST = 200  # characters of an argument
LOCKS = ("flock", "fcntl")
# Until a child that was started by these executes its program, its parent waits (vfork(2)).
STARTS = ("vfork", "clone", "clone3")
# System calls that wait for what another process writes. Only of those that wait for one descriptor
# alone it is known which.
READS = ("read", "recv", "poll", "ppoll", "select", "pselect6")


def add(entries: Iterable[dict[str, Any]], wait_of: WaitOf) -> None:
    """Add to processes for whom they wait by their last samples, for whom these wait, and so on
    (`Partner` of evidence.py). `wait_of` returns state, wait channel and system call of a process.
    """
    _descriptors.cache_clear()
    for entry in entries:
        entry["partners"] = _of(entry, wait_of)
        if entry["role"] == "launcher":
            entry["partners"] += _stopped_readers(entry, wait_of)


def _of(entry: dict[str, Any], wait_of: WaitOf) -> list[dict[str, Any]]:
    if not entry["samples"]:
        return []
    last = entry["samples"][-1]
    found: list[dict[str, Any]] = []
    waiting = [(entry["pid"], last["state"], last["wait_channel"], last["syscall"])]
    for waiter, state, channel, call in waiting:
        for pid, relation in _ends(waiter, state, channel, call):
            if len(found) < MOST and pid not in [one[0] for one in waiting]:
                waiting.append((pid, *wait_of(pid)))
                one = dict(zip(("pid", "state", "wait_channel", "call"), waiting[-1]))
                found.append({**one, "relation": relation, "argv": _argv(pid), "waiter": waiter})
    return found


def _stopped_readers(entry: dict[str, Any], wait_of: WaitOf) -> Iterator[dict[str, Any]]:
    """Yield the stopped processes that would read a launcher's output from its pipe. It waits for
    them only once the pipe is full."""
    pid, known = entry["pid"], {one["pid"] for one in entry["partners"]}
    for fd in ("1", "2"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/{pid}/fd/{fd}")  # noqa: PTH115
            for reader in readers_of(target, pid) if target.startswith("pipe:") else ():
                state, channel, call = wait_of(reader)
                if state == "T" and reader not in known:
                    known.add(reader)
                    one = {"pid": reader, "state": state, "wait_channel": channel, "call": call}
                    yield {**one, "relation": "reads", "argv": _argv(reader), "waiter": pid}


def _ends(pid: int, state: str, channel: str, call: str) -> Iterator[tuple[int, str]]:
    """Yield the processes for which one waits, and what each is to it."""
    name, _, path = call.partition(" ")
    if state in "tT":
        yield from ((tracer, "traces") for tracer in _tracers(pid))
    if name in LOCKS:
        yield from ((holder, "locks") for holder in _holders(pid, path))
    elif name in STARTS or name.startswith("wait"):
        yield from ((child, "child") for child in _children(pid, name in STARTS))
    elif path.startswith("/dev/pts/") and not name.startswith(READS):  # that waits for its user
        yield from ((master, "collects") for master in masters_of(path.rpartition("/")[2]))
    elif path.startswith("socket:["):
        yield from _at_socket(path[8:-1], name)
    elif path.startswith("pipe:") or channel.endswith(("pipe_read", "pipe_write", "pipe_wait")):
        yield from _at_pipe(path, pid, "w" if name.startswith(READS) else "r")


def _argv(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        raw = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
        return [word.decode(errors="backslashreplace")[:LONGEST] for word in raw[:4]]
    return []


def _children(own: int, is_unexecuted: bool) -> Iterator[int]:
    """Yield the children of a process, or those of them that still run its program."""
    program = _program(own)
    for pid in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
        with contextlib.suppress(OSError, IndexError):
            fields = read_stat(f"/proc/{pid}")[1]
            is_child = int(fields[1]) == own and fields[0] not in "ZX"
            if is_child and (not is_unexecuted or _program(int(pid)) == program):
                yield int(pid)


def _program(pid: int) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115
    return ""


def _at_socket(inode: str, call: str) -> Iterator[tuple[int, str]]:
    """Yield the processes that have the other end of a Unix socket."""
    with contextlib.suppress(OSError):
        peer = unix_peers().get(inode, "")
        relation = "writes" if call.startswith(READS) else "reads"
        for pid, _, target in _descriptors():
            if target == f"socket:[{peer}]":
                yield pid, relation


def _tracers(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
        found = re.search(r"^TracerPid:\s*([1-9]\d*)", status, re.M)
        if found:
            yield int(found[1])


def _holders(pid: int, path: str) -> Iterator[int]:
    """Yield the holders of the lock on a file that a process waits for: who has locked it
    (proc_locks(5)), or if that process has it no longer, as of OFD locks and those that a child has
    inherited, who has it open locked."""
    holder: dict[str, int] = {}
    locker = 0
    with contextlib.suppress(OSError):
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if "->" not in words:
                holder[words[0]] = int(words[4])
            elif int(words[5]) == pid:
                locker = holder.get(words[0], 0)
    locked = {one for one, fd, at in _descriptors() if at == path and _info(one, fd, "lock")}
    if Path(f"/proc/{locker}").exists():
        is_readable = any(one == locker for one, _, _ in _descriptors())
        locked = {locker} if locker in locked or not (locked and is_readable) else locked
    yield from sorted(locked - {pid})


@functools.lru_cache(maxsize=1)
def _descriptors() -> tuple[tuple[int, str, str], ...]:
    """Return process ID, descriptor and target of all descriptors that this user may see."""
    found = []
    for pid in os.listdir("/proc"):  # noqa: PTH208
        if pid.isdigit():
            with contextlib.suppress(OSError):
                for fd in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
                    with contextlib.suppress(OSError):
                        target = os.readlink(f"/proc/{pid}/fd/{fd}")  # noqa: PTH115
                        found.append((int(pid), fd, target))
    return tuple(found)


def _info(pid: int, fd: str, name: str) -> str:
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/fdinfo/{fd}").read_text()
        found = re.search(rf"^{name}:\s*(\w+)", status, re.M)
        return found[1] if found else ""
    return ""


def masters_of(number: str) -> Iterator[int]:
    """Yield the processes that have the other end of /dev/pts/NUMBER, which read what is written
    there."""
    for pid, fd, target in _descriptors():
        if target.endswith("/ptmx") and _info(pid, fd, "tty-index") == number:
            yield pid


def forget() -> None:
    """Have the descriptors of all processes read again, since they change."""
    _descriptors.cache_clear()


def readers_of(pipe: str, own: int) -> list[int]:
    """Return the other processes that read a pipe, by its name in /proc."""
    return [pid for pid, _ in _at_pipe(pipe, own, "r")]


def written_by(own: int) -> list[str]:
    """Return the descriptors of a process that are open for writing, but for its messages."""
    of_own = sorted((int(fd), fd) for pid, fd, _ in _descriptors() if pid == own and fd != "2")
    return [fd for _, fd in of_own if _access(own, fd) in (os.O_WRONLY, os.O_RDWR)]


def _access(pid: int, fd: str) -> int:
    return int(_info(pid, fd, "flags") or "0", 8) & os.O_ACCMODE


def _at_pipe(path: str, own: int, mode: str) -> Iterator[tuple[int, str]]:
    """Yield the other processes that read a pipe or FIFO (mode r), or write into it (w)."""
    for pid, fd, target in _descriptors():
        if target == path and pid != own:
            access = _access(pid, fd)
            if access == os.O_RDWR or access == (os.O_RDONLY if mode == "r" else os.O_WRONLY):
                yield pid, "reads" if mode == "r" else "writes"
