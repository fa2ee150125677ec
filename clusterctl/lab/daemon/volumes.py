"""The volumes of a host, in memory: of a given size, full or read-only where that is wanted."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from clusterctl.lab.daemon import syscalls

DATA = "/data"
BLOCK = 4096  # no size at all would be no limit
# Of what a host changes outside its volumes; as large as the root volume of a small image.
ROOT_BYTES = 8 * 2**30
# A console is cut to what EC2 keeps of it whenever it takes more memory than this.
CONSOLE_KEPT, CONSOLE_MOST = 64 * 1024, 1024 * 1024
# What a host can print between two looks. Its root can open the file anew, and reserve room in it.
CONSOLE_BYTES = 64 * 2**20


def make(point: Path, size: int, mode: int, flags: int = syscalls.MS_NOSUID) -> None:
    """A file system in memory. Files without content take memory, too: a block each, at most."""
    options = f"size={size},nr_inodes={size // BLOCK},mode={mode:o}"
    syscalls.mount("tmpfs", str(point), "tmpfs", flags, options)


def unmake(point: Path) -> None:
    if point.is_mount():
        syscalls.unmount(str(point))


def read_console(log: Path) -> bytes:
    """The end of what a host printed; nothing for one that is gone or still to come."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - CONSOLE_KEPT))
            return file.read(CONSOLE_KEPT)
    except FileNotFoundError:
        return b""


def bound_console(log: Path) -> None:
    """Free the memory of a console's beginning. The host goes on writing at its end meanwhile."""
    state = log.stat() if log.exists() else None
    # Blocks can lie behind its end, where the host's root reserved them.
    if state and state.st_blocks * 512 > CONSOLE_MOST and state.st_size > CONSOLE_KEPT:
        with log.open("r+b") as file:
            syscalls.punch_hole(file.fileno(), state.st_size - CONSOLE_KEPT)


def leave(point: Path, size: int, left: int | None) -> None:
    """Have a volume of `size` bytes be full but for so much; None: all that is not taken."""
    if left is not None:
        state = os.statvfs(point)
        taken = (state.f_blocks - state.f_bfree) * state.f_frsize
        size = max(BLOCK, min(size, taken + left))
    flags = syscalls.MS_REMOUNT | syscalls.MS_NOSUID
    syscalls.mount("tmpfs", str(point), "tmpfs", flags, f"size={size}")


def set_readonly(pid: int, readonly: bool) -> None:
    """Cover the /data of the host of `pid` with a read-only view of it, or uncover it.

    The volume itself cannot become read-only while a file on it is open for writing.
    """
    inside = os.fork()
    if inside == 0:
        _there(pid, _cover if readonly else _uncover)
    _, status = os.waitpid(inside, 0)
    if code := os.waitstatus_to_exitcode(status):
        raise OSError(code, f"/data: {os.strerror(code)}")


def _there(pid: int, act: Callable[[], None]) -> NoReturn:
    """In the place of a host's processes: this one ends with the error's number, or 0."""
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
    syscalls.mount(DATA, DATA, "", syscalls.MS_BIND, "")
    flags = syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_RDONLY | syscalls.MS_NOSUID
    syscalls.mount("", DATA, "", flags, "")


def _uncover() -> None:
    syscalls.unmount(DATA)
