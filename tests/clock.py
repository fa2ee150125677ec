"""A clock for tests: waiting takes no time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from clusterctl.domain.timeouts import Clock

# Polls are at most 8 seconds apart (ec2/errors.py, `backoff_delays`).
LONG_S = 10.0
# A power of two, so that sums of it are exact, and no time is left at a deadline by rounding.
POLL_S = 1 / 64


class FakeClock(Clock):
    """A clock that a wait moves forward by its length, at once.

    Threads wait side by side: a wait moves the clock of its own thread only, and `advance` that of
    all. `waits` are the seconds of all waits so far. `after_wait` is called after each wait with
    the number of waits.
    """

    def __init__(self, after_wait: Callable[[int], None] = lambda waits: None) -> None:
        self.waits: list[float] = []
        self.after_wait = after_wait
        self._lock = threading.Lock()
        self._advanced = 0.0
        self._own = threading.local()

    def monotonic(self) -> float:
        return self._advanced + getattr(self._own, "waited", 0.0)

    def time(self) -> float:
        return self.monotonic()

    def sleep(self, seconds: float) -> None:
        self._own.waited = getattr(self._own, "waited", 0.0) + seconds
        with self._lock:
            self.waits.append(seconds)
            waits = len(self.waits)
        self.after_wait(waits)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        if not event.is_set():
            self.sleep(seconds)
        return event.is_set()

    def advance(self, seconds: float) -> None:
        """Move the clock of all threads forward."""
        with self._lock:
            self._advanced += seconds


class LabClock(FakeClock):
    """A clock for tests against the local EC2, which has a clock of its own: it skips long waits.

    Shorter ones are polls of the local EC2, which soon has the result: they take a moment instead.
    `waits` has the long ones only. Its Unix time is the real one, as that of the local EC2.
    """

    def time(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        if seconds < LONG_S:
            time.sleep(POLL_S)
            self.advance(POLL_S)
        else:
            super().sleep(seconds)
