"""What the supervisor has done: others wait for it to look, and learn what it could not do."""

from __future__ import annotations

import threading
from collections.abc import Callable


class ReconcileTracker:
    """Thread-safe. A look takes in all that was so when it began."""

    def __init__(self) -> None:
        self._ended = threading.Condition()
        self._wanted = self._done = 0
        self._problems: dict[str, str] = {}

    def begin(self) -> int:
        """Which look this is, for `end`."""
        with self._ended:
            return self._wanted

    def end(self, look: int) -> None:
        with self._ended:
            self._done = look
            self._ended.notify_all()

    def wait(self, wake: Callable[[], None], timeout_s: float) -> bool:
        """Until a look is over that began after this call; False where there is none in time."""
        with self._ended:
            self._wanted += 1
            mine = self._wanted
            wake()
            return self._ended.wait_for(lambda: self._done >= mine, timeout_s)

    def note(self, instance_id: str, problem: str) -> bool:
        """Why what is wanted of a host cannot be done; empty: it can. True when that is news."""
        with self._ended:
            before = self._problems.pop(instance_id, "")
            if problem:
                self._problems[instance_id] = problem
            return problem not in ("", before)

    def problem(self, instance_id: str) -> str:
        with self._ended:
            return self._problems.get(instance_id, "")


TRACKER = ReconcileTracker()
