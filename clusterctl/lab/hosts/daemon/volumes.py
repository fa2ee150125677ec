"""The volumes of hosts: file systems in memory, which a fault can fill or make read-only."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from clusterctl.lab.hosts.daemon import syscalls
from clusterctl.node.facts.system import memory

DATA = "/data"
EMPTY = "/mnt"  # a folder of the host that nothing else uses
# In the volume of a host's /data: the folder that the host sees, and next to it the file that fills
# the volume. The host can neither see nor delete that file.
SHOWN, FILLER = "shown", "filler"
# The filler grows by this much at a time: the host may write at the same time, and an allocation
# that does not fit is undone as a whole.
FILL_BYTES = 2**20
BLOCK = 4096
# For what a host changes outside of its volumes; as large as the root volume of a small image.
ROOT_BYTES = 8 * 2**30
# EC2 keeps CONSOLE_KEPT bytes of a console. One that takes more than CONSOLE_MOST is cut to that.
CONSOLE_KEPT, CONSOLE_MOST = 64 * 1024, 1024 * 1024
# The size of a console's file system: limits what a host can print between two cuts. Root on the
# host can also open the file itself, and reserve room in it.
CONSOLE_BYTES = 64 * 2**20


def make(point: Path, size: int, mode: int, flags: int = syscalls.MS_NOSUID) -> None:
    """Mount a file system in memory, with `size` bytes.

    The number of its files is limited to one for each block, because empty files take memory too.
    """
    options = f"size={size},nr_inodes={size // BLOCK},mode={mode:o}"
    syscalls.mount("tmpfs", str(point), "tmpfs", flags, options)


def unmake(point: Path) -> None:
    """Unmount a file system, if one is mounted there."""
    if point.is_mount():
        syscalls.unmount(str(point))


def read_console(log: Path) -> bytes:
    """Return the end of what a host printed; empty if there is no such file."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - CONSOLE_KEPT))
            return file.read(CONSOLE_KEPT)
    except FileNotFoundError:
        return b""


def bound_console(log: Path) -> None:
    """Free the memory of a console's beginning. The host can write at its end at the same time."""
    state = log.stat() if log.exists() else None
    # By blocks, not by size: root on the host can reserve blocks behind the end.
    if state and state.st_blocks * 512 > CONSOLE_MOST and state.st_size > CONSOLE_KEPT:
        with log.open("r+b") as file:
            syscalls.punch_hole(file.fileno(), state.st_size - CONSOLE_KEPT)


def fill(volume: Path, left: int | None) -> None:
    """Fill a host's volume up to `left` free bytes; None frees what the filler takes.

    Raise MemoryError if that would take more than half of the machine's available memory.
    """
    filler = volume / FILLER
    filler.unlink(missing_ok=True)
    if left is None:
        return
    missing, available = _free(volume) - left, memory()["MemAvailable"]
    if missing > available // 2:
        raise MemoryError(
            f"a full /data would take {missing / 2**30:.1f} GiB of this machine's memory, and "
            f"{available / 2**30:.1f} GiB are available (clusterctl lab start --data-size)"
        )
    with filler.open("wb") as file:
        while (missing := _free(volume) - left) > 0:
            try:
                os.posix_fallocate(file.fileno(), file.tell(), min(missing, FILL_BYTES))
                file.seek(0, os.SEEK_END)
            except OSError as refused:
                if refused.errno != errno.ENOSPC:
                    raise


def _free(volume: Path) -> int:
    state = os.statvfs(volume)
    return state.f_bfree * state.f_frsize


def set_readonly(pid: int, readonly: bool) -> None:
    """Cover the /data of the host with PID 1 `pid` with a read-only view of it, or uncover it.

    The view is a file system of its own that is read-only, mounted writable: so the kernel shows
    one whose disk has failed.

    The volume itself cannot become read-only while a file on it is open for writing. Raise OSError.
    """
    # In a child, so that this process stays in its own mount namespace.
    inside = os.fork()
    if inside == 0:
        _there(pid, _cover if readonly else _uncover)
    _, status = os.waitpid(inside, 0)
    if code := os.waitstatus_to_exitcode(status):
        raise OSError(code, f"/data: {os.strerror(code)}")


def _there(pid: int, act: Callable[[], None]) -> NoReturn:
    """Act in the mount namespace of a process, and exit with the error's number, or 0."""
    code = errno.EIO
    try:
        syscalls.enter_mounts(pid)
        act()
        code = 0
    except OSError as refused:
        code = refused.errno or errno.EIO
    finally:
        os._exit(code)


def _cover() -> None:
    # An overlay without an upper layer cannot be written to. It needs two lower ones.
    syscalls.mount("tmpfs", EMPTY, "tmpfs", syscalls.MS_RDONLY, "size=4k")
    syscalls.mount("overlay", DATA, "overlay", syscalls.MS_NOSUID, f"lowerdir={DATA}:{EMPTY}")
    syscalls.unmount(EMPTY)


def _uncover() -> None:
    syscalls.unmount(DATA)
