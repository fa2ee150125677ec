"""The relay that receives: blocks into parts of files, and on to the next from there."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from clusterctl.node.relay.blocks import Ledger, Wanted
from clusterctl.node.relay.layout import Extent, Layout, left_over
from clusterctl.node.relay.manifest import FILE, LEAST_RESUMED, Entry, text_of
from clusterctl.node.relay.publish import Publisher
from clusterctl.node.relay.source import Source
from clusterctl.node.relay.staging import Removed, Staging, add_part
from clusterctl.node.relay.wire import (
    CHUNK,
    LENGTH,
    NUMBER,
    TRAILER,
    Link,
    PeerError,
    Waits,
    send_whole,
    trailer,
    waited_s,
    write_at,
)

# Blocks of many small files, kept for those that ask next.
CACHE_BYTES = 64 << 20
FILES_AT_ONCE = 16
# The kernel writes 1.8 GiB/s to one file, 3.5 to two (tmpfs); an EC2 connection carries 0.6.
STREAMS_OF_A_FILE = 3


class Waiting(NamedTuple):
    """A block that nobody has checked yet: since when it is here, and from where."""

    since: float
    link: Link


class Store:
    """The blocks of one node. Thread-safe, but for one receiver of a block at a time.

    A block goes from the socket into its file by splice while a node behind gets its blocks here:
    no byte of it is seen. The node behind has it from that file, by sendfile; if its checksum is
    right there, so it was here. Only then the block counts, for the journal and for its file.
    Where nobody confirms it in time, it is read again here. The last node of a chain, and one with
    --encrypt or without splice, sums what it receives before it writes it.
    """

    def __init__(
        self,
        staging: Staging,
        entries: Sequence[Entry],
        layout: Layout,
        missing: Iterable[int],
        publisher: Publisher,
        waits: Waits,
        streams: int,
    ) -> None:
        self._staging, self._entries, self._layout = staging, entries, layout
        self._publisher, self._waits = publisher, waits
        self._lock = threading.Lock()
        # The kernel lets one write to a file at a time, and those that wait there burn CPU.
        self._turns = [threading.Lock() for _ in range(FILES_AT_ONCE)]
        self._cache: OrderedDict[int, bytes] = OrderedDict()
        self._cached = 0
        self._sums = array("Q", bytes(8 * layout.blocks))  # checksum + 1; 0: not known
        self.bad: set[int] = set()
        state = left_over(entries, layout, missing, staging.pieces)
        self._left, self._resumed = state.left, state.resumed
        self._begun = set(state.resumed)  # which have a part
        self._here = Source(
            entries, publisher.path, publisher.stamp, layout, waits, staging.new_sum
        )
        self.ledger = Ledger(layout.blocks, state.here)
        self.wanted = Wanted(
            layout.in_turns(-(-streams // STREAMS_OF_A_FILE)), self.ledger.missing()
        )
        self._waiting: dict[int, Waiting] = {}
        self._passed_on: set[int] = set()  # of those that wait
        self._damaged: set[int] = set()  # summed as they come the next time
        self.received = 0
        umask = os.umask(0o077)
        os.umask(umask)
        self._masked = umask | 0o7000

    def publish_whole(self, missing: Sequence[int]) -> None:
        """What needs no more bytes: links, empty files, what an earlier copy nearly had."""
        for number in missing:
            entry = self._entries[number]
            if entry.kind == "l" or (entry.kind == FILE and not self._left[number]):
                self._left.pop(number, None)
                self._publisher.put([(number, self._staging.part(entry), False)])

    def receive(self, link: Link, block: int, buffer: memoryview) -> None:
        """The answer to BLOCK, whose LENGTH has been read. Raises PeerError, OSError.

        `buffer` has room for a block.
        """
        extents = self._layout.extents(block)
        checksum, data = None, None
        if len(extents) == 1:
            unseen = self.ledger.watchers and block not in self._damaged and link.pipe_bytes()
            if not (unseen and self._splice(link, extents[0])):
                checksum = self._stream(link, extents[0], buffer)
        else:
            data = buffer[: self._layout.length(block)]
            began = waited_s()
            link.read_into(data)
            self._waits.add("receive", waited_s() - began)
            total = self._staging.new_sum()
            total.update(data)
            checksum = total.value()
        told, bad = read_trailer(link, checksum, extents)
        if checksum is None and not bad:
            self._accept_unseen(link, block, told)
            return
        self.accept(block, extents, data, told, bad)
        link.confirmed.append(block)

    def _splice(self, link: Link, extent: Extent) -> bool:
        """Write one piece of one file without a look at it; False where that is not possible."""
        at, end = extent.offset, extent.offset + extent.length
        descriptor = self._open_part(extent.entry)
        if descriptor < 0:
            return False
        turn = self._turns[extent.entry % FILES_AT_ONCE]
        receiving = writing = 0.0
        try:
            while at < end:
                began = waited_s()
                size = link.fill_pipe(end - at)
                received = waited_s()
                with turn:
                    link.drain_pipe(descriptor, at, size)
                receiving += received - began
                writing += waited_s() - received
                at += size
        finally:
            os.close(descriptor)
            self._waits.add("receive", receiving)
            self._waits.add("write", writing)
        return True

    def _stream(self, link: Link, extent: Extent, buffer: memoryview) -> int:
        """One piece of one file, written as it comes. Its checksum."""
        at, end = extent.offset, extent.offset + extent.length
        total = self._staging.new_sum()
        descriptor = self._open_part(extent.entry)
        turn = self._turns[extent.entry % FILES_AT_ONCE]
        receiving = writing = 0.0
        try:
            while at < end:
                view = buffer[: min(CHUNK, end - at)]
                began = waited_s()
                link.read_into(view)
                received = waited_s()
                total.update(view)
                if descriptor >= 0:
                    with turn:
                        write_at(descriptor, view, at)
                receiving += received - began
                writing += waited_s() - received
                at += len(view)
        finally:
            if descriptor >= 0:
                os.close(descriptor)
            self._waits.add("receive", receiving)
            self._waits.add("write", writing)
        return total.value()

    def accept(
        self,
        block: int,
        extents: Sequence[Extent],
        data: memoryview | None,
        checksum: int,
        bad: Sequence[int],
    ) -> None:
        """A block that is right; `data` unless it is written already. Raises OSError.

        `bad` are the entries that it has zeros for.
        """
        if bad:
            self._spoil(bad)
        if any(extent.entry not in self._left for extent in extents):
            # Of a file that was here, the others get what is here in its other blocks, too.
            self._resumed.update(extent.entry for extent in extents)
        else:
            self._sums[block] = checksum + 1
            if data is not None:
                self._keep(block, bytes(data))
        if data is not None:
            began = waited_s()
            with self._publisher.one_by_one:
                self._spread(extents, data)
            self._waits.add("write", waited_s() - began)
        with self._lock:
            self.received += self._layout.length(block)
        self.ledger.add(block)
        self._tick(extents, checksum)
        self.wanted.came(block)

    def _accept_unseen(self, link: Link, block: int, checksum: int) -> None:
        self._sums[block] = checksum + 1
        with self._lock:
            self.received += self._layout.length(block)
            self._waiting[block] = Waiting(time.monotonic(), link)
        self.wanted.arrived(block)
        self.ledger.add(block)

    def confirm(self, block: int) -> None:
        """A node behind has got it from here, and it is right there."""
        self._settle(block, good=True)

    def check_waiting(self, within_s: float) -> None:
        """Check the blocks that nobody has confirmed in time; all of them where nobody will.

        Raises OSError.
        """
        since = time.monotonic() - (within_s if self.ledger.watchers else 0)
        with self._lock:
            late = [block for block, one in self._waiting.items() if one.since <= since]
        for block in late:
            self._check(block)

    def _check(self, block: int) -> bool:
        """Whether it is right, as it is in its file. Raises OSError."""
        [extent] = self._layout.extents(block)
        if extent.entry not in self._left:  # it has turned bad, and nothing of it is here
            return self._settle(block, good=True)
        with contextlib.suppress(FileNotFoundError):  # just now
            total = self._staging.new_sum()
            descriptor = os.open(self._part(extent, False), os.O_RDONLY)
            try:
                add_part(total, descriptor, extent.offset, extent.length)
            finally:
                os.close(descriptor)
            return self._settle(block, good=total.value() + 1 == self._sums[block])
        return self._settle(block, good=True)

    def _settle(self, block: int, good: bool) -> bool:
        """A block that waits is right, or has to come again; whoever says it first counts."""
        with self._lock:
            waiting = self._waiting.pop(block, None)
            if waiting is None:
                return block in self.ledger
            self._passed_on.discard(block)
            if not good:
                self._damaged.add(block)
                self.received -= self._layout.length(block)
        if good:
            self._tick(self._layout.extents(block), self._sums[block] - 1)
            waiting.link.confirmed.append(block)
            self.wanted.came(block)
        else:
            self.ledger.drop(block)
            self.wanted.give_back(block)
        return good

    def _spread(self, extents: Sequence[Extent], data: memoryview) -> None:
        at = 0
        for extent in extents:
            piece = data[at : at + extent.length]
            at += extent.length
            if len(extents) > 1 and self._is_whole(extent):
                self._write_whole(extent.entry, piece)
                continue
            descriptor = self._open_part(extent.entry)
            if descriptor >= 0:
                try:
                    write_at(descriptor, piece, extent.offset)
                finally:
                    os.close(descriptor)

    def _is_whole(self, extent: Extent) -> bool:
        """Whether it is all of a file; such a file needs no journal."""
        entry = self._entries[extent.entry]
        return extent.length == entry.size and entry.segments is None

    def _write_whole(self, number: int, data: memoryview) -> None:
        if number not in self._left:
            return
        entry = self._entries[number]
        mode = self._publisher.mode_for_now(number)
        descriptor = os.open(
            self._staging.whole(number), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode
        )
        try:
            write_at(descriptor, data, 0)
            if mode & self._masked:
                os.fchmod(descriptor, mode)
            os.utime(descriptor, ns=(entry.mtime_ns, entry.mtime_ns))
        finally:
            os.close(descriptor)

    def _open_part(self, number: int) -> int:
        """-1 for a file that is here already."""
        if number not in self._left:
            return -1
        entry = self._entries[number]
        part = self._staging.part(entry)
        # Made once: where it has been removed, blocks are gone that count as here.
        with self._lock if number not in self._begun else contextlib.nullcontext():
            create = 0 if number in self._begun else os.O_CREAT
            try:
                descriptor = os.open(part, os.O_WRONLY | create, 0o600)
            except PermissionError:
                # An earlier copy ended when it had given the part its own mode, a read-only one.
                os.chmod(part, 0o600)
                descriptor = os.open(part, os.O_WRONLY)
            except FileNotFoundError:
                if number in self.bad:  # just now
                    return -1
                raise Removed(text_of(self._staging.folder)) from None
            self._begun.add(number)
        if entry.segments is not None:
            os.ftruncate(descriptor, entry.size)
        return descriptor

    def _spoil(self, bad: Sequence[int]) -> None:
        """Keep nothing of these entries: a later copy would take their zeros for data."""
        with self._lock:
            self.bad.update(bad)
            for number in bad:
                if self._left.pop(number, None) is not None:
                    self._staging.drop(self._entries[number])

    def _tick(self, extents: Sequence[Extent], checksum: int) -> None:
        """So much less is left of the files in the block; what is whole is published."""
        whole = []
        with self._lock:
            for extent in extents:
                left = self._left.get(extent.entry)
                if left is None:
                    continue
                self._left[extent.entry] = left - extent.length
                entry = self._entries[extent.entry]
                if left == extent.length:
                    del self._left[extent.entry]
                    ready = len(extents) > 1 and self._is_whole(extent)
                    whole.append((extent.entry, self._part(extent, ready), ready))
                elif len(extents) == 1 and entry.size >= LEAST_RESUMED:
                    # Under the lock: another thread may find the entry bad, and drop its journal.
                    self._staging.note(entry, extent.offset, extent.length, checksum)
        if whole:
            self._publisher.put(whole)

    def _part(self, extent: Extent, whole: bool) -> bytes:
        if whole:
            return self._staging.whole(extent.entry)
        return self._staging.part(self._entries[extent.entry])

    def _keep(self, block: int, data: bytes) -> None:
        with self._lock:
            self._cache[block] = data
            self._cached += len(data)
            while self._cached > CACHE_BYTES:
                _, old = self._cache.popitem(last=False)
                self._cached -= len(old)

    def send_block(self, link: Link, block: int) -> None:
        """For the next in the chain. Raises PeerError, OSError."""
        with self._lock:
            asked_again = block in self._waiting and block in self._passed_on
            if block in self._waiting:
                self._passed_on.add(block)
        if asked_again and not self._check(block):
            raise PeerError("a block here is damaged", "corrupt")
        known = self._sums[block]
        extents = self._layout.extents(block)
        if not self.bad.isdisjoint(extent.entry for extent in extents):
            self._send_what_is_good(link, extents)
            return
        if not known and not self._resumed.isdisjoint(extent.entry for extent in extents):
            known = self._sums[block] = self._checksum(extents) + 1
        if not known:
            self._here.send_block(link, block)
            return
        link.send(LENGTH.pack(self._layout.length(block)))
        with self._lock:
            data = self._cache.get(block)
        began = waited_s()
        if data is not None:
            link.send(data)
        else:
            for extent in extents:
                self._send_extent(link, extent)
        link.send(trailer(known - 1, ()))
        self._waits.add("send", waited_s() - began)

    def _send_what_is_good(self, link: Link, extents: Sequence[Extent]) -> None:
        """A block with files that are no good any more: zeros in their place, and their numbers."""
        bad = [extent.entry for extent in extents if extent.entry in self.bad]
        parts = [
            bytes(extent.length) if extent.entry in bad else self._read(extent)
            for extent in extents
        ]
        total = self._staging.new_sum()
        total.update(data := b"".join(parts))
        send_whole(link, data, total.value(), bad)

    def _read(self, extent: Extent) -> bytes:
        descriptor = self._open_for_reading(extent)
        try:
            data = os.pread(descriptor, extent.length, extent.offset)
        finally:
            os.close(descriptor)
        if len(data) != extent.length:
            raise PeerError("a file here became shorter")
        return data

    def _send_extent(self, link: Link, extent: Extent) -> None:
        descriptor = self._open_for_reading(extent)
        try:
            link.send_file(descriptor, extent.offset, extent.length)
        finally:
            os.close(descriptor)

    def _checksum(self, extents: Sequence[Extent]) -> int:
        """Of what an earlier copy left."""
        total = self._staging.new_sum()
        for extent in extents:
            descriptor = self._open_for_reading(extent)
            try:
                add_part(total, descriptor, extent.offset, extent.length)
            finally:
                os.close(descriptor)
        return total.value()

    def _open_for_reading(self, extent: Extent) -> int:
        for whole in (self._is_whole(extent), False):
            with contextlib.suppress(FileNotFoundError):
                return os.open(self._part(extent, whole), os.O_RDONLY)
        if extent.entry in self.bad:  # just now: what is under its name is older
            raise PeerError("a file here is no good any more")
        return os.open(self._publisher.path(extent.entry), os.O_RDONLY | os.O_NOFOLLOW)


def read_trailer(
    link: Link, checksum: int | None, extents: Sequence[Extent]
) -> tuple[int, list[int]]:
    """The block's checksum, and the entries that it is no good for.

    Raises PeerError where `checksum` is another one.
    """
    told, count = TRAILER.unpack(link.read(TRAILER.size))
    if count > len(extents):
        raise PeerError("it names more bad files than there are", "corrupt")
    bad = [NUMBER.unpack(link.read(NUMBER.size))[0] for _ in range(count)]
    if checksum not in (None, told) or not {extent.entry for extent in extents}.issuperset(bad):
        raise PeerError("a block came with a wrong checksum", "corrupt")
    return told, bad
