"""The blocks of one relay: which are here, and which to get next, and from whom. Thread-safe."""

from __future__ import annotations

import heapq
import threading
from array import array
from collections.abc import Iterable, Sequence


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


HERE, WANTED, CLAIMED, ARRIVED = 0, 1, 2, 3


class Wanted:
    """The blocks that are missing. Each is asked of one of those who offer it, in `order`.

    Who offers is named by any value: a new upstream is a new name, and the old one's offers end.
    """

    def __init__(self, order: Sequence[int], missing: Iterable[int]) -> None:
        self._order, self._turn = order, array("I", bytes(4 * len(order)))
        for turn, block in enumerate(order):
            self._turn[block] = turn
        self._state = bytearray(len(order))
        for block in missing:
            self._state[block] = WANTED
        # Those that are not HERE, and how many of them have come and are still to be checked.
        self.left, self._arrived = self._state.count(WANTED), 0
        # For each who offers: what it has, and the turns of what is still to be asked for.
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
                    heapq.heappush(self._queues[who], self._turn[block])
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
            block = self._order[heapq.heappop(queue)]
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
                        heapq.heappush(queue, self._turn[block])
                self._changed.notify_all()

    def arrived(self, block: int) -> None:
        """It has come, and is still to be checked."""
        with self._changed:
            if self._state[block] in (WANTED, CLAIMED):
                self._state[block] = ARRIVED
                self._arrived += 1

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
        """At most so long, until nothing is missing; whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: not self.left, timeout_s)
