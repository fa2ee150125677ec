"""Where a relay's threads spend their time: what limits a copy is read from it."""

from __future__ import annotations

import threading

KINDS = ("receive", "write", "read", "send", "sync")


class Waits:
    """Seconds of all threads together, by kind. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = dict.fromkeys(KINDS, 0.0)

    def add(self, kind: str, seconds: float) -> None:
        with self._lock:
            self._seconds[kind] += seconds

    def seconds(self) -> dict[str, float]:
        with self._lock:
            return {kind: round(value, 3) for kind, value in self._seconds.items()}
