"""The blocks of one relay: which are here, and which to request next from whom. Thread-safe."""

from __future__ import annotations

import heapq
import threading
from array import array
from collections.abc import Iterable, Sequence


class BlockSet:
    """Which of the blocks 0 to `blocks` - 1 are here.

    `present` has a byte for each block, 1 if it is here from the start.
    """

    def __init__(self, blocks: int, present: bytes | bytearray | None = None) -> None:
        self.changed = threading.Condition()
        self._here = bytearray(present) if present is not None else bytearray(blocks)
        self._come = array("I")
        self._first = tuple(_ranges(self._here))
        self.count = sum(self._here)
        self.blocks = blocks
        self.watchers = 0  # connections over which new blocks are announced

    def __contains__(self, block: int) -> bool:
        return bool(self._here[block])

    def add(self, block: int) -> None:
        """Record that a block is here."""
        with self.changed:
            if not self._here[block]:
                self._here[block] = 1
                self._come.append(block)
                self.count += 1
                self.changed.notify_all()

    def drop(self, block: int) -> None:
        """Record that a block is not here after all.

        Peers to which it was announced request it without result until it comes again.
        """
        with self.changed:
            self.count -= self._here[block]
            self._here[block] = 0

    def missing(self) -> list[int]:
        """Return the blocks that are not here."""
        with self.changed:
            return [block for block, here in enumerate(self._here) if not here]

    def added_since(self, position: int, timeout_s: float) -> tuple[int, list[tuple[int, int]]]:
        """Return the position after the newest block, and the ranges that came since `position`.

        With -1 for `position` these are the blocks that were here from the start. Otherwise waits
        at most `timeout_s` seconds for a block.
        """
        if position < 0:
            return 0, list(self._first)
        with self.changed:
            self.changed.wait_for(lambda: len(self._come) > position, timeout_s)
            come = self._come[position:]
        return position + len(come), [(block, block + 1) for block in come]


def _ranges(here: bytearray) -> list[tuple[int, int]]:
    found, at = [], here.find(1)
    while at >= 0:
        end = here.find(0, at)
        end = len(here) if end < 0 else end
        found.append((at, end))
        at = here.find(1, end)
    return found


# States of a block: it is here; it is to be requested; it was requested; it was received, and has
# still to be checked.
HERE, WANTED, CLAIMED, ARRIVED = 0, 1, 2, 3


class MissingBlocks:
    """The blocks that are missing. Each is requested from one upstream that offers it, in `order`.

    An upstream (`who`) is identified by any hashable value. A new order to pull is a new upstream.
    """

    def __init__(self, order: Sequence[int], missing: Iterable[int]) -> None:
        self._order, self._turn = order, array("I", bytes(4 * len(order)))
        for turn, block in enumerate(order):
            self._turn[block] = turn
        self._state = bytearray(len(order))
        for block in missing:
            self._state[block] = WANTED
        # The number of blocks that are not HERE, and of those that are ARRIVED.
        self.left, self._arrived = self._state.count(WANTED), 0
        # By upstream: a byte for each block that it has, and a heap of the turns (positions in
        # `order`) of blocks to request.
        self._has: dict[object, bytearray] = {}
        self._queues: dict[object, list[int]] = {}
        self._changed = threading.Condition()

    def begin(self, who: object) -> None:
        """Accept offers of `who`."""
        with self._changed:
            self._has[who] = bytearray(len(self._state))
            self._queues[who] = []

    def end(self, who: object) -> None:
        """Drop the offers of `who`, and wake the threads that wait for them."""
        with self._changed:
            self._has.pop(who, None)
            self._queues.pop(who, None)
            self._changed.notify_all()

    def offer(self, who: object, blocks: Iterable[int]) -> None:
        """Record that `who` has these blocks."""
        with self._changed:
            if who not in self._queues:
                return
            for block in blocks:
                is_new = not self._has[who][block]
                self._has[who][block] = 1
                if is_new and self._state[block] == WANTED:
                    heapq.heappush(self._queues[who], self._turn[block])
            self._changed.notify_all()

    def take(self, who: object, most: int = 1) -> list[int]:
        """Return the next blocks to request from `who`, at most `most`, and mark them CLAIMED.

        Waits for the first one. Empty if there will be no more.
        """
        with self._changed:
            while self.left and who in self._queues:
                taken = self._claim(self._queues[who], most)
                if taken:
                    return taken
                self._changed.wait()
            return []

    def take_more(self, who: object, most: int) -> list[int]:
        """Do the same without waiting."""
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
        """Record that a block did not come, or was damaged: it is to be requested again."""
        with self._changed:
            if self._state[block] in (CLAIMED, ARRIVED):
                self._arrived -= self._state[block] == ARRIVED
                self._state[block] = WANTED
                for who, queue in self._queues.items():
                    if self._has[who][block]:
                        heapq.heappush(queue, self._turn[block])
                self._changed.notify_all()

    def arrived(self, block: int) -> None:
        """Record that a block was received and has still to be checked."""
        with self._changed:
            if self._state[block] in (WANTED, CLAIMED):
                self._state[block] = ARRIVED
                self._arrived += 1

    def came(self, block: int) -> None:
        """Record that a block is here and right."""
        with self._changed:
            if self._state[block] != HERE:
                self._arrived -= self._state[block] == ARRIVED
                self._state[block] = HERE
                self.left -= 1
                if not self.left:
                    self._changed.notify_all()

    @property
    def all_arrived(self) -> bool:
        """Whether all blocks were received. Some may still prove damaged."""
        return self.left == self._arrived

    def behind(self, who: object) -> int:
        """Return how many blocks `who` has that were not received yet."""
        with self._changed:
            both = zip(self._has.get(who, b""), self._state)
            return sum(1 for has, state in both if has and state in (WANTED, CLAIMED))

    def wait(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` seconds until nothing is missing; return whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: not self.left, timeout_s)
