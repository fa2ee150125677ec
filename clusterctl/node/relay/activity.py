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
# Fields of a line of /proc/diskstats: numbers of the device, sectors written (iostats.rst).
_MAJOR, _MINOR, _WRITTEN = 0, 1, 9


class Step(NamedTuple):
    """What a thread is doing, on which path, and since when by the monotonic clock."""

    name: str = ""
    path: Path = b""
    since: float = 0.0


class Activity:
    """The steps of all threads. `moves` changes with each step that begins or goes on.

    Threads only replace their own entry, so there is no lock: `begin` is called for each file.
    """

    def __init__(self) -> None:
        self._steps: dict[int, Step] = {}
        self._moves = 0

    def begin(self, name: str, path: Path) -> None:
        """Record what this thread is doing from here on."""
        self._moves += 1
        self._steps[threading.get_ident()] = Step(name, path, time.monotonic())

    def go_on(self) -> None:
        """Record that this thread's step has advanced, for example by a piece of a file."""
        self._moves += 1

    def end(self) -> None:
        """Record that this thread does nothing with files, perhaps because it waits for data."""
        self._moves += 1
        self._steps.pop(threading.get_ident(), None)

    def longest(self) -> Step:
        """Return the step that has lasted longest; an empty one if none has lasted NOTED_S."""
        step = min(list(self._steps.values()), key=lambda one: one.since, default=Step())
        return step if step.name and time.monotonic() - step.since >= NOTED_S else Step()

    def moves(self, step: Step) -> int:
        """Return a number that changes while anything goes on. `step` is the longest one.

        fsync(2) tells nothing before its end, which may take minutes: what its disk has written
        counts, too.
        """
        return self._moves + (_written(step.path) if step.name == SYNC else 0)


def _written(path: Path) -> int:
    """Return how much the disk of a path has written; for others what the kernel has to write."""
    try:
        device = os.stat(path).st_dev
        with open("/proc/diskstats", encoding="ascii") as lines:
            for fields in map(str.split, lines):
                if (int(fields[_MAJOR]), int(fields[_MINOR])) == (
                    os.major(device),
                    os.minor(device),
                ):
                    return int(fields[_WRITTEN])
        with open("/proc/meminfo", encoding="ascii") as lines:
            waiting = [line.split()[1] for line in lines if line.startswith(("Dirty:", "Writeb"))]
        return sum(map(int, waiting))
    except (OSError, ValueError, IndexError):
        return 0


# A relay is a process of its own.
ACTIVITY = Activity()
