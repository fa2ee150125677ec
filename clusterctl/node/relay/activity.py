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


class Step(NamedTuple):
    """What a thread is doing, on which path, and since when by the monotonic clock.

    `device` is the number of the disk that it waits for, if known: see `Activity.begin_sync`.
    """

    name: str = ""
    path: Path = b""
    since: float = 0.0
    device: int = -1


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

    def begin_sync(self, path: Path, at: Path) -> None:
        """Record that this thread has `path` written to the disk of `at`. Raises OSError."""
        self.begin(SYNC, path)
        # Here, since the heartbeat must not ask a file system that may hang.
        device = os.stat(at).st_dev
        step = self._steps[threading.get_ident()]
        self._steps[threading.get_ident()] = step._replace(device=device)

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
        return self._moves + (_written(step.device) if step.device >= 0 else 0)


def _written(device: int) -> int:
    """Return how much a disk has written; for a network's, how much the kernel has to write."""
    numbers = [str(os.major(device)), str(os.minor(device))]
    try:
        with open("/proc/diskstats", encoding="ascii") as lines:
            for fields in map(str.split, lines):
                if fields[:2] == numbers:
                    return int(fields[_WRITTEN])
        with open("/proc/meminfo", encoding="ascii") as lines:
            waiting = [line.split()[1] for line in lines if line.startswith(("Dirty:", "Writeb"))]
        return sum(map(int, waiting))
    except (OSError, ValueError, IndexError):
        return 0


# A relay is a process of its own.
ACTIVITY = Activity()
