"""Which blocks each node fetches from the URLs by itself."""

from __future__ import annotations

from collections.abc import Sequence

Range = tuple[int, int]


class Shares:
    """All blocks for each node, or with `exchange` a share for each, handed on when one dies."""

    def __init__(self, blocks: int, exchange: bool) -> None:
        self._blocks, self._exchange = blocks, exchange
        self._of: dict[str, list[Range]] = {}

    def among(self, names: Sequence[str]) -> dict[str, list[Range]]:
        """The ranges at the start."""
        if not self._exchange:
            self._of = {name: [(0, self._blocks)] for name in names}
        else:
            self._of = dict(zip(names, split([(0, self._blocks)], len(names))))
        return {name: list(ranges) for name, ranges in self._of.items()}

    def also(self, name: str) -> dict[str, list[Range]]:
        """For a node that comes late: everything, or nothing where the others have shared it."""
        self._of[name] = [] if self._exchange else [(0, self._blocks)]
        return {name: self._of[name]} if self._of[name] else {}

    def without(self, name: str) -> dict[str, list[Range]]:
        """What each of the others has to fetch besides, now that this one is gone."""
        orphaned = self._of.pop(name, [])
        if not self._exchange or not orphaned or not self._of:
            return {}
        names = sorted(self._of, key=lambda other: _size(self._of[other]))
        more = {one: got for one, got in zip(names, split(orphaned, len(names))) if got}
        for one, ranges in more.items():
            self._of[one] = self._of[one] + ranges
        return more


def split(ranges: Sequence[Range], parts: int) -> list[list[Range]]:
    """These blocks in so many parts of about the same size, each of neighbours."""
    total, taken = _size(ranges), 0
    found: list[list[Range]] = [[] for _ in range(parts)]
    for first, end in ranges:
        at = first
        while at < end:
            part = min(parts - 1, taken * parts // total)
            # The first block that belongs to the next part.
            bound = -(-(part + 1) * total // parts) - taken
            stop = end if part == parts - 1 else min(end, at + max(1, bound))
            found[part].append((at, stop))
            taken += stop - at
            at = stop
    return found


def _size(ranges: Sequence[Range]) -> int:
    return sum(end - begin for begin, end in ranges)
