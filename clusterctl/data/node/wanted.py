"""Which block to get next, and from whom. Thread-safe."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterable

HERE, WANTED, CLAIMED = 0, 1, 2


class Wanted:
    """The blocks that are missing. Each is asked of one of those who offer it, the lowest first.

    Who offers is named by any value: a new upstream is a new name, and the old one's offers end.
    """

    def __init__(self, blocks: int, missing: Iterable[int]) -> None:
        self._state = bytearray(blocks)
        for block in missing:
            self._state[block] = WANTED
        self.left = self._state.count(WANTED)
        self._offers: dict[object, list[int]] = {}
        self._changed = threading.Condition()

    def begin(self, who: object) -> None:
        """`who` may offer from now on."""
        with self._changed:
            self._offers[who] = []

    def end(self, who: object) -> None:
        """What `who` offered counts no more, and who waits for it is told."""
        with self._changed:
            self._offers.pop(who, None)
            self._changed.notify_all()

    def offer(self, who: object, blocks: Iterable[int]) -> None:
        with self._changed:
            offers = self._offers.get(who)
            if offers is None:
                return
            for block in blocks:
                if self._state[block] == WANTED:
                    heapq.heappush(offers, block)
            self._changed.notify_all()

    def take(self, who: object) -> int | None:
        """The next block to ask `who` for; None when there will be none any more."""
        with self._changed:
            while self.left and who in self._offers:
                offers = self._offers[who]
                while offers:
                    block = heapq.heappop(offers)
                    if self._state[block] == WANTED:
                        self._state[block] = CLAIMED
                        return block
                self._changed.wait()
            return None

    def give_back(self, block: int) -> None:
        """It did not come: whoever offers it is asked again."""
        with self._changed:
            if self._state[block] == CLAIMED:
                self._state[block] = WANTED
                for offers in self._offers.values():
                    heapq.heappush(offers, block)
                self._changed.notify_all()

    def came(self, block: int) -> bool:
        """It is here. Whether it was the last one."""
        with self._changed:
            if self._state[block] == HERE:
                return False
            self._state[block] = HERE
            self.left -= 1
            if not self.left:
                self._changed.notify_all()
            return not self.left
