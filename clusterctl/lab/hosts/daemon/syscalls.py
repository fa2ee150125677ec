"""System calls that Python's library lacks. Each raises OSError."""

from __future__ import annotations

import ctypes
import os
import signal

CLONE_NEWTIME = 0x00000080
CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
# Those of a lab and of a host, but for users and time.
ALL_NAMESPACES = CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE, MS_SLAVE = 4096, 16384, 1 << 18, 1 << 19
MNT_DETACH = 2

_PUNCH_HOLE_KEEP_SIZE = 2 | 1
# close_range(2) by its number, the same on all architectures: glibc has it only since 2.34. Its
# flag exists since Linux 5.11, which the lab needs.
_NR_CLOSE_RANGE, _CLOSE_RANGE_CLOEXEC = 436, 4
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def enter_mounts(pid: int) -> None:
    """Enter the mount namespace of a process."""
    namespace = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
    try:
        _check(_libc.setns(namespace, CLONE_NEWNS), f"enter the mounts of {pid}")
    finally:
        os.close(namespace)


def mount(source: str, target: str, fstype: str, flags: int, data: str) -> None:
    """Call mount(2). An empty string stands for what the flags do not need."""
    result = _libc.mount(
        source.encode(), target.encode(), fstype.encode(), ctypes.c_ulong(flags), data.encode()
    )
    _check(result, f"mount {fstype or source} on {target}")


def unmount(target: str) -> None:
    """Unmount at once from the tree; the kernel frees the file system when nothing uses it."""
    _check(_libc.umount2(target.encode(), MNT_DETACH), f"unmount {target}")


def pivot_root(new_root: str, put_old: str) -> None:
    _check(_libc.pivot_root(new_root.encode(), put_old.encode()), f"pivot_root {new_root}")


def punch_hole(file: int, length: int) -> None:
    """Free the blocks of a file's first `length` bytes. They read as zeros then."""
    offsets = ctypes.c_int64(0), ctypes.c_int64(length)
    _check(_libc.fallocate64(file, _PUNCH_HOLE_KEEP_SIZE, *offsets), "fallocate")


def keep_only_standard_files() -> None:
    """Have exec close all descriptors but standard input, output and error."""
    last = ctypes.c_uint(2**32 - 1)
    _check(_libc.syscall(_NR_CLOSE_RANGE, 3, last, _CLOSE_RANGE_CLOEXEC), "close_range")


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that forked it ends."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def own_proc_files() -> None:
    """Make this process own its files in /proc again. A change of ids gives them to root."""
    _check(_libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0), "prctl")


def _check(result: int, what: str) -> None:
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
