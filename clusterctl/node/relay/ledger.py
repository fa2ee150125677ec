"""Which blocks a relay has, told to whom it concerns as they come. Thread-safe."""

from __future__ import annotations

import threading
from array import array


class Ledger:
    """Blocks 0 to `blocks` - 1, each of which is here or not (yet)."""

    def __init__(self, blocks: int, present: bytes | bytearray | None = None) -> None:
        self.changed = threading.Condition()
        self._here = bytearray(present) if present is not None else bytearray(blocks)
        self._come = array("I")
        self._first = tuple(_ranges(self._here))
        self.count = sum(self._here)
        self.blocks = blocks
        self.watchers = 0  # how many are told

    def __contains__(self, block: int) -> bool:
        return bool(self._here[block])

    @property
    def complete(self) -> bool:
        return self.count == self.blocks

    def add(self, block: int) -> None:
        with self.changed:
            if not self._here[block]:
                self._here[block] = 1
                self._come.append(block)
                self.count += 1
                self.changed.notify_all()

    def drop(self, block: int) -> None:
        """It is not here after all. Who was told of it asks in vain, until it comes again."""
        with self.changed:
            self.count -= self._here[block]
            self._here[block] = 0

    def missing(self) -> list[int]:
        with self.changed:
            return [block for block, here in enumerate(self._here) if not here]

    def news(self, seen: int, timeout_s: float) -> tuple[int, list[tuple[int, int]]]:
        """What has come since `seen` (-1: everything), as ranges, and where that ends.

        Waits at most `timeout_s` for something to come.
        """
        if seen < 0:
            return 0, list(self._first)
        with self.changed:
            self.changed.wait_for(lambda: len(self._come) > seen, timeout_s)
            come = self._come[seen:]
        return seen + len(come), [(block, block + 1) for block in come]


def _ranges(here: bytearray) -> list[tuple[int, int]]:
    found, at = [], here.find(1)
    while at >= 0:
        end = here.find(0, at)
        end = len(here) if end < 0 else end
        found.append((at, end))
        at = here.find(1, end)
    return found
