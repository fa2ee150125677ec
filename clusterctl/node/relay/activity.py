"""What the threads of a relay are doing with files, for its heartbeat.

A disk or a file system that hangs stops a thread in the kernel, while the heartbeat goes on. Only
the step that a thread began and never ended shows it.
"""

from __future__ import annotations

import os
import threading
import time
from typing import NamedTuple, Union

Path = Union[bytes, str]
# The steps, as the user reads them after "it hangs ".
SCAN, COMPARE, READ = "listing the source", "comparing", "reading"
WRITE, SYNC, PUBLISH, DELETE = "writing", "writing to disk", "putting in place", "deleting"
# A step that lasts less than this many seconds is not reported.
NOTED_S = 1.0
# The field of a line of /proc/diskstats with the sectors written, after the numbers of the device
# and its name (Linux, Documentation/admin-guide/iostats.rst).
_WRITTEN = 9


class FileStep(NamedTuple):
    """What a thread is doing, on which path, and since when by the monotonic clock."""

    name: str = ""
    path: Path = b""
    since: float = 0.0


class FileActivity:
    """The steps of all threads. `moves` changes with each step that begins or goes on.

    `arrived` counts the bytes that have come from other relays, those of blocks that are not whole
    and those of damaged ones included. Threads only replace their own entry, so there is no lock:
    `begin` is called for each file. A count that two threads change at once may miss a change,
    which does not matter.
    """

    def __init__(self) -> None:
        self._steps: dict[int, FileStep] = {}
        self._disks: set[int] = set()
        self._moves = 0
        self.arrived = 0

    def begin(self, name: str, path: Path) -> None:
        """Record what this thread is doing from here on."""
        self._moves += 1
        self._steps[threading.get_ident()] = FileStep(name, path, time.monotonic())

    def writes_to(self, path: Path) -> None:
        """Record that the disk of a path is written to. Raises OSError.

        What it writes counts as a move of steps that wait for it. To be called by a thread that may
        hang, not by the heartbeat.
        """
        self._disks.add(os.stat(path).st_dev)

    def go_on(self) -> None:
        """Record that this thread's step has advanced, for example by a piece of a file."""
        self._moves += 1

    def end(self) -> None:
        """Record that this thread does nothing with files, perhaps because it waits for data."""
        self._moves += 1
        self._steps.pop(threading.get_ident(), None)

    def longest(self) -> FileStep:
        """Return the step that has lasted longest; an empty one if none has lasted NOTED_S."""
        step = min(list(self._steps.values()), key=lambda one: one.since, default=FileStep())
        return step if step.name and time.monotonic() - step.since >= NOTED_S else FileStep()

    def moves(self, step: FileStep) -> int:
        """Return a number that changes while anything goes on. `step` is the longest one.

        A call that has data written to disk reports nothing before its end, which may take minutes:
        what the disks have written counts, too.
        """
        waits = step.name in (WRITE, SYNC, PUBLISH, DELETE)
        return self._moves + (sum(map(_written, list(self._disks))) if waits else 0)


def _written(device: int) -> int:
    """Return how much a disk, or the server of NFS, has taken; 0 where that is not known."""
    try:
        mount, kind, source = _mount_of(device)
        if kind.startswith("nfs"):
            return _taken_by_server(mount)
        # Btrfs gives its files the number of no disk.
        disk = os.stat(source).st_rdev if source.startswith("/dev/") else device
        numbers = [str(os.major(disk)), str(os.minor(disk))]
        with open("/proc/diskstats", encoding="ascii") as lines:
            for fields in map(str.split, lines):
                if fields[:2] == numbers:
                    return int(fields[_WRITTEN])
    except (OSError, ValueError, IndexError):
        pass
    return 0


def _mount_of(device: int) -> tuple[str, str, str]:
    """Return the mount point, type and source of a file system; empty if it is not found."""
    number = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            own, _, other = line.partition(" - ")
            if own.split()[2] == number:
                kind, source = other.split()[:2]
                return own.split()[4], kind, source
    return "", "", ""


def _taken_by_server(mount: str) -> int:
    """Return the bytes that an NFS server has taken (nfs(5), /proc/self/mountstats)."""
    with open("/proc/self/mountstats", encoding="utf-8", errors="replace") as lines:
        here = False
        for line in lines:
            if line.startswith("device "):
                here = f" mounted on {mount} " in line
            elif here and line.strip().startswith("bytes:"):
                return int(line.split()[6])
    return 0


# A relay is a process of its own.
ACTIVITY = FileActivity()
