"""The volumes of a host, in memory: of a given size, full or read-only where that is wanted."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from clusterctl.lab.hosts.daemon import syscalls

DATA = "/data"
# Of the volume that is a host's /data: the folder that it sees, and the file beside it that takes
# the room away. Hosts can neither see nor delete that.
SHOWN, FILLER = "shown", "filler"
FILL_BYTES = 2**20  # at once: a host may write meanwhile, and what does not fit any more is undone
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


def make_data(point: Path, size: int) -> None:
    """The volume of a host's /data."""
    make(point, size, 0o755)
    (point / SHOWN).mkdir()
    (point / SHOWN).chmod(0o1777)


def fill(volume: Path, left: int | None) -> None:
    """Have a host's volume be full but for so many bytes; None: all that the host does not take.

    Raises MemoryError where that would take more than half of the memory that is available.
    """
    filler = volume / FILLER
    filler.unlink(missing_ok=True)
    if left is None:
        return
    missing, available = _free(volume) - left, _available_memory()
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


def _available_memory() -> int:
    told = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    assert told  # Linux has it from 3.14 on
    return int(told[1]) * 1024


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
