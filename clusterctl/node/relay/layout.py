"""The data of all files as one stream, cut into blocks. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from clusterctl.node.relay.manifest import Entry


class Extent(NamedTuple):
    """A piece of a file: `length` bytes from `offset` on of entry number `entry`."""

    entry: int
    offset: int
    length: int


class Layout:
    """Block j is bytes [j * block_bytes, (j + 1) * block_bytes) of the stream.

    The stream is the data of the regular files in the manifest's order, one after another, holes
    of sparse files left out.
    """

    def __init__(self, entries: Sequence[Entry], block_bytes: int) -> None:
        self.block_bytes = block_bytes
        # Segment n begins at starts[n] of the stream, and at offsets[n] of entry owners[n].
        self._starts: list[int] = []
        self._owners: list[int] = []
        self._offsets: list[int] = []
        at = 0
        for index, entry in enumerate(entries):
            for offset, length in entry.data:
                self._starts.append(at)
                self._owners.append(index)
                self._offsets.append(offset)
                at += length
        self.total = at
        self.blocks = -(-at // block_bytes)

    def length(self, block: int) -> int:
        return min(self.block_bytes, self.total - block * self.block_bytes)

    def extents(self, block: int) -> list[Extent]:
        """What the block consists of, in order."""
        at = block * self.block_bytes
        end = at + self.length(block)
        number = bisect_right(self._starts, at) - 1
        found = []
        while at < end:
            begins = self._starts[number]
            ends = self._starts[number + 1] if number + 1 < len(self._starts) else self.total
            length = min(end, ends) - at
            found.append(Extent(self._owners[number], self._offsets[number] + at - begins, length))
            at += length
            number += 1
        return found

    def by_entry(self) -> Iterator[range]:
        """For each segment in order, the blocks it is in; its owner: `owner_of` the same number."""
        for number, begins in enumerate(self._starts):
            ends = self._starts[number + 1] if number + 1 < len(self._starts) else self.total
            yield range(begins // self.block_bytes, -(-ends // self.block_bytes))

    def owner_of(self, segment: int) -> int:
        """The entry of segment number `segment`."""
        return self._owners[segment]
