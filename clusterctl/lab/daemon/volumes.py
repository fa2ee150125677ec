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


def make(point: Path, size: int, mode: int) -> None:
    options = f"size={size},mode={mode:o}"
    syscalls.mount("tmpfs", str(point), "tmpfs", syscalls.MS_NOSUID, options)


def unmake(point: Path) -> None:
    if point.is_mount():
        syscalls.unmount(str(point))


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
