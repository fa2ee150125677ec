"""The data of all files as one stream, cut into blocks, and which blocks have to come. Pure."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple

from clusterctl.node.relay.manifest import FILE, Entry


class Extent(NamedTuple):
    """A piece of a file: `length` bytes from `offset` on of entry number `entry`."""

    entry: int
    offset: int
    length: int


class Layout:
    """The division of the stream: block j is bytes [j * block_bytes, (j + 1) * block_bytes).

    The stream is the data of the regular files in the manifest's order, one after another, without
    the holes of sparse files.
    """

    def __init__(self, entries: Sequence[Entry], block_bytes: int) -> None:
        self.block_bytes = block_bytes
        # Segment n begins at starts[n] of the stream, and at offsets[n] of entry owners[n].
        self._starts, self._owners, self._offsets = array("Q"), array("I"), array("Q")
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
        """Return the bytes of a block. The last one may be shorter than `block_bytes`."""
        return min(self.block_bytes, self.total - block * self.block_bytes)

    def extents(self, block: int) -> list[Extent]:
        """Return the pieces of files that a block consists of, in order."""
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
        """Yield the range of blocks that each segment is in, in the order of segments.

        `owner_of` returns the entry that a segment belongs to.
        """
        for number, begins in enumerate(self._starts):
            ends = self._starts[number + 1] if number + 1 < len(self._starts) else self.total
            yield range(begins // self.block_bytes, -(-ends // self.block_bytes))

    def in_turns(self, files: int) -> array[int]:
        """Return all blocks in an order that takes them from this many files by turns.

        Threads that write to the same file wait for each other in the kernel. A block belongs to
        the file of its first byte.
        """
        rows = zip(self._starts, self._owners, chain((-1,), self._owners))
        bounds = [-(-at // self.block_bytes) for at, owner, before in rows if owner != before]
        bounds.append(self.blocks)
        waiting = (range(*pair) for pair in zip(bounds, bounds[1:]) if pair[0] < pair[1])
        lanes = deque(islice(waiting, files))
        order = array("I")
        while lanes:
            lane = lanes.popleft()
            order.append(lane[0])
            following = lane[1:] or next(waiting, None)
            if following:
                lanes.append(following)
        return order

    def owner_of(self, segment: int) -> int:
        """Return the number of the entry that a segment belongs to."""
        return self._owners[segment]


# In the place of the bytes that an entry lacks, for one that lacks nothing.
WHOLE = -1


class LeftOver(NamedTuple):
    """What has to come.

    `here` has a byte for each block, 1 if it need not come. `left` has the bytes of each entry that
    have to come, WHOLE if it is no file or is there. `resumed` are the files of which pieces are
    here.
    """

    here: bytearray
    left: array[int]
    resumed: set[int]


def missing_content(
    entries: Sequence[Entry],
    layout: Layout,
    missing: Iterable[int],
    pieces_of: Callable[[Entry], Sequence[tuple[int, int]]],
) -> LeftOver:
    """Return what has to come.

    `missing` are the numbers of entries that are not here. `pieces_of` returns the pieces (offset,
    length) of an entry's file that an interrupted copy left.
    """
    left = array("q", [WHOLE]) * len(entries)
    for number in missing:
        entry = entries[number]
        if entry.kind == FILE:
            left[number] = sum(length for _, length in entry.data)
    here = bytearray(b"\1") * layout.blocks
    started: set[int] = set()
    pieces: Sequence[tuple[int, int]] = ()
    latest = -1  # the segments of a file follow each other
    for segment, blocks in enumerate(layout.by_entry()):
        number = layout.owner_of(segment)
        if left[number] == WHOLE:
            continue
        if number != latest:
            latest, pieces = number, pieces_of(entries[number])
        if not pieces:
            here[blocks.start : blocks.stop] = bytes(len(blocks))
            continue
        started.add(number)
        for block in blocks:
            if not _covered(layout, block, number, pieces):
                here[block] = 0
    for number, length in _in_missing_blocks(layout, here, started).items():
        left[number] = length
    return LeftOver(here, left, started)


def _covered(layout: Layout, block: int, number: int, pieces: Sequence[tuple[int, int]]) -> bool:
    """Return whether the pieces contain all bytes of entry `number` in the block."""
    return all(
        any(at <= extent.offset and extent[1] + extent[2] <= at + size for at, size in pieces)
        for extent in layout.extents(block)
        if extent.entry == number
    )


def _in_missing_blocks(layout: Layout, here: bytearray, chosen: set[int]) -> dict[int, int]:
    """Return how many bytes of each chosen file are in blocks that have to come."""
    lengths = dict.fromkeys(chosen, 0)
    blocks: set[int] = set()
    for segment, found in enumerate(layout.by_entry() if chosen else ()):
        if layout.owner_of(segment) in chosen:
            blocks.update(block for block in found if not here[block])
    for block in blocks:
        for extent in layout.extents(block):
            if extent.entry in chosen:
                lengths[extent.entry] += extent.length
    return lengths
