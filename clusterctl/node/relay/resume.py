"""Which blocks need not come: their files are here, or an earlier copy left these pieces. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from clusterctl.node.relay.layout import Layout
from clusterctl.node.relay.manifest import FILE, Entry


class LeftOver(NamedTuple):
    """`here`: 1 for each block that need not come. `left`: for each file that is not whole, the
    bytes that have to come. `resumed`: those files of which pieces are here."""

    here: bytearray
    left: dict[int, int]
    resumed: set[int]


def left_over(
    entries: Sequence[Entry],
    layout: Layout,
    missing: Iterable[int],
    pieces_of: Callable[[Entry], Sequence[tuple[int, int]]],
) -> LeftOver:
    """`missing` are the entries that are not here; `pieces_of` what there is of one's part."""
    left = {
        number: sum(length for _, length in entries[number].data)
        for number in missing
        if entries[number].kind == FILE
    }
    here = bytearray(b"\1") * layout.blocks
    resumed: dict[int, Sequence[tuple[int, int]]] = {}
    for segment, blocks in enumerate(layout.by_entry()):
        number = layout.owner_of(segment)
        if number not in left:
            continue
        if number not in resumed:
            resumed[number] = pieces_of(entries[number])
        if not resumed[number]:
            here[blocks.start : blocks.stop] = bytes(len(blocks))
            continue
        for block in blocks:
            if not _covered(layout, block, number, resumed[number]):
                here[block] = 0
    begun = {number for number, pieces in resumed.items() if pieces}
    for number, length in _in_missing_blocks(layout, here, begun).items():
        left[number] = length
    return LeftOver(here, left, begun)


def _covered(layout: Layout, block: int, number: int, pieces: Sequence[tuple[int, int]]) -> bool:
    return all(
        any(at <= extent.offset and extent[1] + extent[2] <= at + size for at, size in pieces)
        for extent in layout.extents(block)
        if extent.entry == number
    )


def _in_missing_blocks(layout: Layout, here: bytearray, chosen: set[int]) -> dict[int, int]:
    """How much of each of these files is in blocks that must come."""
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
