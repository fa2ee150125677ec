"""The progress of the supervisor: lets others wait for it, and records what it could not do."""

from __future__ import annotations

import threading
from collections.abc import Callable


class ReconcileTracker:
    """Tracks the supervisor's steps. Thread-safe.

    A step takes into account everything that was set before it began.
    """

    def __init__(self) -> None:
        self._ended = threading.Condition()
        self._wanted = self._done = 0
        self._problems: dict[str, str] = {}

    def begin(self) -> int:
        """Begin a step, and return its number for `end`."""
        with self._ended:
            return self._wanted

    def end(self, number: int) -> None:
        """End the step with this number, and wake those who wait for it."""
        with self._ended:
            self._done = number
            self._ended.notify_all()

    def wait(self, wake: Callable[[], None], timeout_s: float) -> bool:
        """Wait until a step that begins after this call has ended. Return False on a timeout.

        `wake` has the supervisor begin a step at once.
        """
        with self._ended:
            self._wanted += 1
            mine = self._wanted
            wake()
            return self._ended.wait_for(lambda: self._done >= mine, timeout_s)

    def note(self, instance_id: str, problem: str) -> bool:
        """Record why an instance's host cannot be made as wanted; empty if it can.

        Return whether there is a problem that was not recorded before.
        """
        with self._ended:
            before = self._problems.pop(instance_id, "")
            if problem:
                self._problems[instance_id] = problem
            return problem not in ("", before)

    def problem(self, instance_id: str) -> str:
        """Return the recorded problem of an instance; empty if there is none."""
        with self._ended:
            return self._problems.get(instance_id, "")


TRACKER = ReconcileTracker()
