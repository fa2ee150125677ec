"""The relay that receives: blocks into parts of files, and on to the next from there."""

from __future__ import annotations

import os
import threading
import time
import zlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from clusterctl.data.node.layout import Extent, Layout
from clusterctl.data.node.ledger import Ledger
from clusterctl.data.node.manifest import FILE, Entry
from clusterctl.data.node.publish import Publisher
from clusterctl.data.node.source import Source
from clusterctl.data.node.staging import Staging
from clusterctl.data.node.waits import Waits
from clusterctl.data.node.wire import CHUNK, LENGTH, NUMBER, TRAILER, Link, PeerError

# Blocks of many small files, kept for those that ask next.
CACHE_BYTES = 64 << 20


class Store:
    """The blocks of one node. Thread-safe, but for one receiver of a block at a time."""

    def __init__(
        self,
        staging: Staging,
        entries: Sequence[Entry],
        layout: Layout,
        missing: Iterable[int],
        publisher: Publisher,
        waits: Waits,
    ) -> None:
        self._staging, self._entries, self._layout = staging, entries, layout
        self._publisher, self._waits = publisher, waits
        self._lock = threading.Lock()
        self._cache: OrderedDict[int, bytes] = OrderedDict()
        self._cached = 0
        self._sums = array("Q", bytes(8 * layout.blocks))  # checksum + 1; 0: not known
        self._bad_of: dict[int, list[int]] = {}
        self.bad: set[int] = set()
        self._left: dict[int, int] = {
            number: sum(length for _, length in entries[number].data)
            for number in missing
            if entries[number].kind == FILE
        }
        self.ledger = Ledger(layout.blocks, self._present())
        self.received = 0

    def _present(self) -> bytearray:
        """1 for each block that need not come; and what is left of each file."""
        here = bytearray(b"\1") * self._layout.blocks
        resumed: dict[int, list[tuple[int, int]]] = {}
        for segment, blocks in enumerate(self._layout.by_entry()):
            number = self._layout.owner_of(segment)
            if number not in self._left:
                continue
            if number not in resumed:
                resumed[number] = self._staging.pieces(self._entries[number])
            if not resumed[number]:
                here[blocks.start : blocks.stop] = bytes(len(blocks))
            for block in blocks if resumed[number] else ():
                if not self._covered(block, number, resumed[number]):
                    here[block] = 0
        self._count_left(here, [number for number, pieces in resumed.items() if pieces])
        return here

    def _covered(self, block: int, number: int, pieces: Sequence[tuple[int, int]]) -> bool:
        return all(
            any(at <= extent.offset and extent[1] + extent[2] <= at + size for at, size in pieces)
            for extent in self._layout.extents(block)
            if extent.entry == number
        )

    def _count_left(self, here: bytearray, resumed: Sequence[int]) -> None:
        """Of what an earlier copy began, only what is in blocks that must come is left."""
        for number in resumed:
            self._left[number] = 0
        chosen = set(resumed)
        for segment, blocks in enumerate(self._layout.by_entry()):
            if self._layout.owner_of(segment) in chosen:
                for block in blocks:
                    if not here[block]:
                        self._left[self._layout.owner_of(segment)] += sum(
                            extent.length
                            for extent in self._layout.extents(block)
                            if extent.entry == self._layout.owner_of(segment)
                        )

    def publish_whole(self, missing: Sequence[int]) -> None:
        """What needs no more bytes: links, empty files, what an earlier copy nearly had."""
        for number in missing:
            entry = self._entries[number]
            if entry.kind == "l" or (entry.kind == FILE and not self._left[number]):
                self._left.pop(number, None)
                self._publisher.put(number)

    def receive(self, link: Link, block: int, buffer: memoryview) -> None:
        """The answer to BLOCK, whose LENGTH has been read. Raises PeerError, OSError."""
        extents = self._layout.extents(block)
        if len(extents) == 1:
            checksum = self._stream(link, extents[0], buffer)
            data = None
        else:
            data = memoryview(bytearray(self._layout.length(block)))
            began = time.monotonic()
            link.read_into(data)
            self._waits.add("receive", time.monotonic() - began)
            checksum = zlib.crc32(data)
        bad = read_trailer(link, checksum, extents)
        self.accept(block, extents, data, checksum, bad)

    def _stream(self, link: Link, extent: Extent, buffer: memoryview) -> int:
        """One piece of one file, written as it comes. Its checksum."""
        checksum, at, end = 0, extent.offset, extent.offset + extent.length
        descriptor = self._open_part(extent.entry)
        receiving = writing = 0.0
        try:
            while at < end:
                view = buffer[: min(CHUNK, end - at)]
                began = time.monotonic()
                link.read_into(view)
                received = time.monotonic()
                checksum = zlib.crc32(view, checksum)
                if descriptor >= 0:
                    _write(descriptor, view, at)
                receiving += received - began
                writing += time.monotonic() - received
                at += len(view)
        finally:
            if descriptor >= 0:
                os.close(descriptor)
            self._waits.add("receive", receiving)
            self._waits.add("write", writing)
        return checksum

    def accept(
        self,
        block: int,
        extents: Sequence[Extent],
        data: memoryview | None,
        checksum: int,
        bad: Sequence[int],
    ) -> None:
        """A block that is right; `data` unless it is written already. Raises OSError."""
        if data is not None:
            began = time.monotonic()
            self._spread(extents, data)
            self._waits.add("write", time.monotonic() - began)
            if len(extents) > 1:
                self._keep(block, bytes(data))
        self._sums[block] = checksum + 1
        if bad:
            self._bad_of[block] = list(bad)
        for extent in extents:
            self._tick(extent, checksum if len(extents) == 1 else None, extent.entry in bad)
        with self._lock:
            self.received += self._layout.length(block)
        self.ledger.add(block)

    def _spread(self, extents: Sequence[Extent], data: memoryview) -> None:
        at = 0
        for extent in extents:
            descriptor = self._open_part(extent.entry)
            if descriptor >= 0:
                try:
                    _write(descriptor, data[at : at + extent.length], extent.offset)
                finally:
                    os.close(descriptor)
            at += extent.length

    def _open_part(self, number: int) -> int:
        """-1 for a file that is here already."""
        if number not in self._left:
            return -1
        entry = self._entries[number]
        descriptor = os.open(self._staging.part(entry), os.O_WRONLY | os.O_CREAT, 0o600)
        if entry.segments is not None:
            os.ftruncate(descriptor, entry.size)
        return descriptor

    def _tick(self, extent: Extent, checksum: int | None, bad: bool) -> None:
        number = extent.entry
        with self._lock:
            if bad:
                self.bad.add(number)
            left = self._left.get(number)
            if left is None:
                return
            self._left[number] = left = left - extent.length
            if left == 0:
                del self._left[number]
        if left == 0:
            if number in self.bad:
                self._staging.drop(self._entries[number])
            else:
                self._publisher.put(number)
        elif checksum is not None:
            self._staging.note(self._entries[number], extent.offset, extent.length, checksum)

    def _keep(self, block: int, data: bytes) -> None:
        with self._lock:
            self._cache[block] = data
            self._cached += len(data)
            while self._cached > CACHE_BYTES:
                _, old = self._cache.popitem(last=False)
                self._cached -= len(old)

    def send_block(self, link: Link, block: int) -> None:
        """For the next in the chain. Raises PeerError, OSError."""
        known = self._sums[block]
        if not known:
            Source(self._entries, self._path, self._layout, self._waits).send_block(link, block)
            return
        link.send(LENGTH.pack(self._layout.length(block)))
        with self._lock:
            data = self._cache.get(block)
        began = time.monotonic()
        if data is not None:
            link.send(data)
        else:
            for extent in self._layout.extents(block):
                self._send_extent(link, extent)
        bad = self._bad_of.get(block, [])
        link.send(TRAILER.pack(known - 1, len(bad)) + b"".join(map(NUMBER.pack, bad)))
        self._waits.add("send", time.monotonic() - began)

    def _send_extent(self, link: Link, extent: Extent) -> None:
        if extent.entry in self.bad:
            _send_zeros(link, extent.length)
            return
        descriptor = self._open_for_reading(extent.entry)
        try:
            link.send_file(descriptor, extent.offset, extent.length)
        except EOFError:
            raise PeerError("a file here became shorter") from None
        finally:
            os.close(descriptor)

    def _open_for_reading(self, number: int) -> int:
        try:
            return os.open(self._staging.part(self._entries[number]), os.O_RDONLY)
        except FileNotFoundError:
            return os.open(self._publisher.path(number), os.O_RDONLY | os.O_NOFOLLOW)

    def _path(self, number: int) -> bytes:
        part = self._staging.part(self._entries[number])
        return part if os.path.lexists(part) else self._publisher.path(number)


def read_trailer(link: Link, checksum: int, extents: Sequence[Extent]) -> list[int]:
    """The entries that the block is no good for. Raises PeerError where the bytes are wrong."""
    told, count = TRAILER.unpack(link.read(TRAILER.size))
    if count > len(extents):
        raise PeerError("it names more bad files than there are", "corrupt")
    bad = [NUMBER.unpack(link.read(NUMBER.size))[0] for _ in range(count)]
    if told != checksum or not {extent.entry for extent in extents}.issuperset(bad):
        raise PeerError("a block came with a wrong checksum", "corrupt")
    return bad


def _write(descriptor: int, view: memoryview, at: int) -> None:
    while len(view):
        size = os.pwrite(descriptor, view, at)
        view, at = view[size:], at + size


def _send_zeros(link: Link, length: int) -> None:
    zeros = bytes(min(CHUNK, length))
    while length:
        link.send(zeros[: min(len(zeros), length)])
        length -= min(len(zeros), length)
