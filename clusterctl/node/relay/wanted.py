"""Which block to get next, and from whom. Thread-safe."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterable

HERE, WANTED, CLAIMED, ARRIVED = 0, 1, 2, 3


class Wanted:
    """The blocks that are missing. Each is asked of one of those who offer it, the lowest first.

    Who offers is named by any value: a new upstream is a new name, and the old one's offers end.
    """

    def __init__(self, blocks: int, missing: Iterable[int]) -> None:
        self._state = bytearray(blocks)
        for block in missing:
            self._state[block] = WANTED
        # Those that are not HERE, and how many of them have come and are still to be checked.
        self.left, self._arrived = self._state.count(WANTED), 0
        # For each who offers: what it has, and what of that is still to be asked for.
        self._has: dict[object, bytearray] = {}
        self._queues: dict[object, list[int]] = {}
        self._changed = threading.Condition()

    def begin(self, who: object) -> None:
        """`who` may offer from now on."""
        with self._changed:
            self._has[who] = bytearray(len(self._state))
            self._queues[who] = []

    def end(self, who: object) -> None:
        """What `who` offered counts no more, and who waits for it is told."""
        with self._changed:
            self._has.pop(who, None)
            self._queues.pop(who, None)
            self._changed.notify_all()

    def offer(self, who: object, blocks: Iterable[int]) -> None:
        with self._changed:
            if who not in self._queues:
                return
            for block in blocks:
                self._has[who][block] = 1
                if self._state[block] == WANTED:
                    heapq.heappush(self._queues[who], block)
            self._changed.notify_all()

    def take(self, who: object, most: int = 1) -> list[int]:
        """The next blocks to ask `who` for, at most so many; none when there will be no more.

        Waits for the first one.
        """
        with self._changed:
            while self.left and who in self._queues:
                taken = self._claim(self._queues[who], most)
                if taken:
                    return taken
                self._changed.wait()
            return []

    def take_more(self, who: object, most: int) -> list[int]:
        """The same without waiting."""
        with self._changed:
            return self._claim(self._queues.get(who, []), most)

    def _claim(self, queue: list[int], most: int) -> list[int]:
        taken: list[int] = []
        while queue and len(taken) < most:
            block = heapq.heappop(queue)
            if self._state[block] == WANTED:
                self._state[block] = CLAIMED
                taken.append(block)
        return taken

    def give_back(self, block: int) -> None:
        """It did not come, or not right: whoever has it may be asked."""
        with self._changed:
            if self._state[block] in (CLAIMED, ARRIVED):
                self._arrived -= self._state[block] == ARRIVED
                self._state[block] = WANTED
                for who, queue in self._queues.items():
                    if self._has[who][block]:
                        heapq.heappush(queue, block)
                self._changed.notify_all()

    def arrived(self, block: int) -> None:
        """It has come, and is still to be checked."""
        with self._changed:
            if self._state[block] in (WANTED, CLAIMED):
                self._state[block] = ARRIVED
                self._arrived += 1
                if self.all_arrived:
                    self._changed.notify_all()

    def came(self, block: int) -> None:
        """It is here."""
        with self._changed:
            if self._state[block] != HERE:
                self._arrived -= self._state[block] == ARRIVED
                self._state[block] = HERE
                self.left -= 1
                if not self.left:
                    self._changed.notify_all()

    @property
    def all_arrived(self) -> bool:
        """Whether nothing more is to come, unless what came is found to be wrong."""
        return self.left == self._arrived

    def behind(self, who: object) -> int:
        """How many blocks `who` has that have not come yet."""
        with self._changed:
            both = zip(self._has.get(who, b""), self._state)
            return sum(1 for has, state in both if has and state in (WANTED, CLAIMED))

    def wait(self, timeout_s: float) -> bool:
        """Until all has arrived, at most so long. Whether nothing is missing."""
        with self._changed:
            self._changed.wait_for(lambda: self.all_arrived, timeout_s)
            return not self.left
