"""Stores the blocks that a node receives in parts of files, and sends them on from there."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from clusterctl.node.relay.activity import ACTIVITY, WRITE
from clusterctl.node.relay.blocks import BlockSet, MissingBlocks
from clusterctl.node.relay.entries import Entries
from clusterctl.node.relay.layout import WHOLE, Extent, Layout, missing_content
from clusterctl.node.relay.manifest import LEAST_RESUMED, LINK, text_of
from clusterctl.node.relay.publish import Publisher
from clusterctl.node.relay.source import Source
from clusterctl.node.relay.staging import Removed, add_part
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

# Bytes of blocks of several files that are kept in memory for the next node in the chain.
CACHE_BYTES = 64 << 20
# The number of write locks that files share.
FILES_AT_ONCE = 16
# Connections that get blocks of the same file. The kernel writes 1.8 GiB/s to one file, 3.5 to two
# (tmpfs); an EC2 connection carries 0.6.
STREAMS_OF_A_FILE = 3


class Waiting(NamedTuple):
    """A block that is not checked yet: since when it is here, and the connection it came over."""

    since: float
    link: Link


class Store:
    """The blocks of one node. Thread-safe, except that a block has one receiver at a time.

    Where a next node in the chain waits for blocks, a block that belongs to one file goes from the
    socket to the file by splice, and its checksum is not computed here. The next node gets the
    block from the file by sendfile and computes the checksum: if the block is right there, it was
    right here. The next node confirms that, and only then the block counts for the journal and for
    its file. If no confirmation comes in time, this node reads the block again and checks it. The
    last node of a chain, and a node with --encrypt or without splice, checks each block before it
    writes it.
    """

    def __init__(
        self,
        entries: Entries,
        layout: Layout,
        missing: Iterable[int],
        publisher: Publisher,
        waits: Waits,
        streams: int,
    ) -> None:
        staging = self._staging = publisher.staging
        self._entries, self.layout = entries, layout
        self._publisher, self._waits = publisher, waits
        self._lock = threading.Lock()
        # The kernel lets one thread write to a file at a time, and those that wait use CPU time.
        self._turns = [threading.Lock() for _ in range(FILES_AT_ONCE)]
        self._cache: OrderedDict[int, bytes] = OrderedDict()
        self._cached = 0
        self._sums = array("Q", bytes(8 * layout.blocks))  # checksum + 1 by block; 0: not known
        self.bad: set[int] = set()
        state = missing_content(entries, layout, missing, staging.pieces)
        self._left, self._resumed = state.left, state.resumed
        self._started = set(state.resumed)  # files that have a part
        self._here = Source(
            entries, publisher.path, publisher.stamp, layout, waits, staging.new_sum
        )
        self.ledger = BlockSet(layout.blocks, state.here)
        self.wanted = MissingBlocks(
            layout.in_turns(-(-streams // STREAMS_OF_A_FILE)), self.ledger.missing()
        )
        self._waiting: dict[int, Waiting] = {}
        self._passed_on: set[int] = set()  # blocks in `_waiting` that were sent on
        self._damaged: set[int] = set()  # blocks that are summed when they come again
        self.received = 0
        # The umask can only be read by setting it.
        umask = os.umask(0o077)
        os.umask(umask)
        self._masked = umask | 0o7000

    def publish_whole(self, missing: Sequence[int]) -> None:
        """Publish what needs no more bytes: links, empty files, and files that are complete."""
        for number in missing:
            if self._entries.kind(number) == LINK or not self._left[number]:
                self._left[number] = WHOLE
                part = self._staging.part(self._entries[number])
                self._publisher.put([(number, part, False)])

    def receive(self, link: Link, block: int, buffer: memoryview) -> None:
        """Receive and store a block whose LENGTH has been read. Raises PeerError, OSError.

        `buffer` has room for a block.
        """
        extents = self.layout.extents(block)
        checksum, data = None, None
        if len(extents) == 1:
            can_splice = self.ledger.watchers and block not in self._damaged and link.pipe_bytes()
            if not (can_splice and self._splice(link, extents[0])):
                checksum = self._stream(link, extents[0], buffer)
        else:
            data = buffer[: self.layout.length(block)]
            began = waited_s()
            link.read_into(data)
            self._waits.add("receive", waited_s() - began)
            total = self._staging.new_sum()
            total.update(data)
            checksum = total.value()
        checked, bad = read_trailer(link, checksum, extents)
        if checksum is None and not bad:
            self._accept_spliced(link, block, checked)
            return
        self.accept(block, extents, data, checked, bad)
        link.confirmed.append(block)

    def _splice(self, link: Link, extent: Extent) -> bool:
        """Move a piece of a file from the socket to the file by splice, without summing it.

        Return False, with nothing read, if the file is here already or is bad.
        """
        at, end = extent.offset, extent.offset + extent.length
        path = self._publisher.path(extent.entry)
        ACTIVITY.begin(WRITE, path)
        descriptor = self._open_part(extent.entry)
        ACTIVITY.end()
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
                    ACTIVITY.begin(WRITE, path)
                    link.drain_pipe(descriptor, at, size)
                    ACTIVITY.end()
                receiving += received - began
                writing += waited_s() - received
                at += size
        finally:
            _close(descriptor, path)
            self._waits.add("receive", receiving)
            self._waits.add("write", writing)
        return True

    def _stream(self, link: Link, extent: Extent, buffer: memoryview) -> int:
        """Write a piece of a file as it comes. Return its checksum."""
        at, end = extent.offset, extent.offset + extent.length
        total = self._staging.new_sum()
        path = self._publisher.path(extent.entry)
        ACTIVITY.begin(WRITE, path)
        descriptor = self._open_part(extent.entry)
        ACTIVITY.end()
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
                        ACTIVITY.begin(WRITE, path)
                        write_at(descriptor, view, at)
                        ACTIVITY.end()
                receiving += received - began
                writing += waited_s() - received
                at += len(view)
        finally:
            if descriptor >= 0:
                _close(descriptor, path)
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
        """Accept a block that is right, and write `data` unless it is None. Raises OSError.

        `bad` are the entries for which the block has zeros.
        """
        if bad:
            self._spoil(bad)
        if any(self._left[extent.entry] == WHOLE for extent in extents):
            # A file in this block was here before and is kept. Peers get this node's content of it
            # in this block as in its other blocks, so the received checksum does not apply.
            self._resumed.update(extent.entry for extent in extents)
        else:
            self._sums[block] = checksum + 1
            if data is not None:
                self._keep(block, bytes(data))
        if data is not None:
            began = waited_s()
            with self._publisher.one_by_one:
                self._spread(extents, data)
                ACTIVITY.end()
            self._waits.add("write", waited_s() - began)
        with self._lock:
            self.received += self.layout.length(block)
        self.ledger.add(block)
        self._tick(extents, checksum)
        self.wanted.came(block)

    def _accept_spliced(self, link: Link, block: int, checksum: int) -> None:
        self._sums[block] = checksum + 1
        with self._lock:
            self.received += self.layout.length(block)
            self._waiting[block] = Waiting(time.monotonic(), link)
        self.wanted.arrived(block)
        self.ledger.add(block)

    def confirm(self, block: int) -> None:
        """Accept a block that the next node got from here and found right."""
        self._finish_check(block, good=True)

    def check_waiting(self, within_s: float) -> None:
        """Check the blocks that were not confirmed within `within_s` seconds.

        If no node watches for blocks here, all blocks are checked, since none will be confirmed.
        Raises OSError, and Removed if the staging folders are not this copy's any more.
        """
        self._staging.check()
        since = time.monotonic() - (within_s if self.ledger.watchers else 0)
        with self._lock:
            late = [block for block, one in self._waiting.items() if one.since <= since]
        for block in late:
            self._check(block)

    def _check(self, block: int) -> bool:
        """Sum a block in its file. Return whether it is right. Raises OSError."""
        [extent] = self.layout.extents(block)
        if self._left[extent.entry] == WHOLE:  # the file became bad, and its part was removed
            return self._finish_check(block, good=True)
        with contextlib.suppress(FileNotFoundError):  # removed a moment ago
            total = self._staging.new_sum()
            descriptor = os.open(self._part(extent, False), os.O_RDONLY)
            try:
                add_part(total, descriptor, extent.offset, extent.length)
            finally:
                os.close(descriptor)
            return self._finish_check(block, good=total.value() + 1 == self._sums[block])
        return self._finish_check(block, good=True)

    def _finish_check(self, block: int, good: bool) -> bool:
        """Accept a waiting block, or request it again. The first result for a block counts.

        Return whether the block is here.
        """
        with self._lock:
            waiting = self._waiting.pop(block, None)
            if waiting is None:
                return block in self.ledger
            self._passed_on.discard(block)
            if not good:
                self._damaged.add(block)
                self.received -= self.layout.length(block)
        if good:
            self._tick(self.layout.extents(block), self._sums[block] - 1)
            waiting.link.confirmed.append(block)
            self.wanted.came(block)
        else:
            self.ledger.drop(block)
            self.wanted.give_back(block)
        return good

    def _spread(self, extents: Sequence[Extent], data: memoryview) -> None:
        """Write the pieces of a block to their files."""
        at = 0
        for extent in extents:
            piece = data[at : at + extent.length]
            at += extent.length
            ACTIVITY.begin(WRITE, self._publisher.path(extent.entry))
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
        """Return whether an extent is a whole file. Such a file needs no journal."""
        entry = self._entries[extent.entry]
        return extent.length == entry.size and entry.segments is None

    def _write_whole(self, number: int, data: memoryview) -> None:
        if self._left[number] == WHOLE:
            return
        entry = self._entries[number]
        mode = self._publisher.mode_for_now(number)
        descriptor = os.open(
            self._staging.whole(number, entry), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode
        )
        try:
            write_at(descriptor, data, 0)
            if mode & self._masked:  # open() has dropped these bits
                os.fchmod(descriptor, mode)
            os.utime(descriptor, ns=(entry.mtime_ns, entry.mtime_ns))
        finally:
            os.close(descriptor)

    def _open_part(self, number: int) -> int:
        """Open a file's part for writing; -1 for a file that is here already or is bad."""
        if self._left[number] == WHOLE:
            return -1
        entry = self._entries[number]
        part = self._staging.part(entry)
        # Created only once: if the part was removed, blocks that count as here are lost.
        with self._lock if number not in self._started else contextlib.nullcontext():
            create = 0 if number in self._started else os.O_CREAT
            try:
                descriptor = os.open(part, os.O_WRONLY | create, 0o600)
            except PermissionError:
                # An earlier copy had given the part its mode, which is read-only, and then ended.
                os.chmod(part, 0o600)
                descriptor = os.open(part, os.O_WRONLY)
            except FileNotFoundError:
                if number in self.bad:  # removed a moment ago, by `_spoil`
                    return -1
                raise Removed(text_of(self._staging.folder_of(entry).path)) from None
            self._started.add(number)
        if entry.segments is not None:
            os.ftruncate(descriptor, entry.size)
        return descriptor

    def _spoil(self, bad: Sequence[int]) -> None:
        """Remove the parts of these entries: a later copy would take their zeros for data."""
        with self._lock:
            self.bad.update(bad)
            for number in bad:
                if self._left[number] != WHOLE:
                    self._left[number] = WHOLE
                    self._staging.drop(self._entries[number])

    def _tick(self, extents: Sequence[Extent], checksum: int) -> None:
        """Count a good block for its files, note it in their journals, and publish whole files."""
        whole = []
        with self._lock:
            for extent in extents:
                left = self._left[extent.entry]
                if left == WHOLE:
                    continue
                self._left[extent.entry] = left - extent.length
                entry = self._entries[extent.entry]
                if left == extent.length:
                    self._left[extent.entry] = WHOLE
                    ready = len(extents) > 1 and self._is_whole(extent)
                    whole.append((extent.entry, self._part(extent, ready), ready))
                elif len(extents) == 1 and entry.size >= LEAST_RESUMED:
                    # Under the lock, since `_spoil` in another thread may drop the journal.
                    ACTIVITY.begin(WRITE, self._publisher.path(extent.entry))
                    self._staging.note(entry, extent.offset, extent.length, checksum)
                    ACTIVITY.end()
        if whole:
            self._publisher.put(whole)

    def _part(self, extent: Extent, whole: bool) -> bytes:
        entry = self._entries[extent.entry]
        return self._staging.whole(extent.entry, entry) if whole else self._staging.part(entry)

    def _keep(self, block: int, data: bytes) -> None:
        """Keep a block in memory for the next node in the chain."""
        with self._lock:
            self._cache[block] = data
            self._cached += len(data)
            while self._cached > CACHE_BYTES:
                _, old = self._cache.popitem(last=False)
                self._cached -= len(old)

    def send_block(self, link: Link, block: int) -> None:
        """Send a block to the next node in the chain. Raises PeerError, OSError."""
        # A node that requests an unconfirmed block again has found it damaged: check it here.
        with self._lock:
            is_repeated = block in self._waiting and block in self._passed_on
            if block in self._waiting:
                self._passed_on.add(block)
        if is_repeated and not self._check(block):
            raise PeerError("a block here is damaged", "corrupt")
        known = self._sums[block]
        extents = self.layout.extents(block)
        if not self.bad.isdisjoint(extent.entry for extent in extents):
            self._send_what_is_good(link, extents)
            return
        if not known and not self._resumed.isdisjoint(extent.entry for extent in extents):
            known = self._sums[block] = self._checksum(extents) + 1
        if not known:
            self._here.send_block(link, block)
            return
        link.send(LENGTH.pack(self.layout.length(block)))
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
        """Send a block that has bad files, with zeros for these, and their numbers at the end."""
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
        """Return the checksum of a block that an earlier copy left."""
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
        # It became bad a moment ago, and its part was removed: the file with its name is older.
        if extent.entry in self.bad:
            raise PeerError("a file here is no good any more")
        return os.open(self._publisher.path(extent.entry), os.O_RDONLY | os.O_NOFOLLOW)


def _close(descriptor: int, path: bytes) -> None:
    """Close a file that was written. Over a network that may write all of it. Raises OSError."""
    ACTIVITY.begin(WRITE, path)
    os.close(descriptor)
    ACTIVITY.end()


def read_trailer(
    link: Link, checksum: int | None, extents: Sequence[Extent]
) -> tuple[int, list[int]]:
    """Read what follows a block. Return its checksum and the numbers of bad entries.

    Raises PeerError if `checksum` is given and differs.
    """
    checked, count = TRAILER.unpack(link.read(TRAILER.size))
    if count > len(extents):
        raise PeerError("it names more bad files than there are", "corrupt")
    bad = [NUMBER.unpack(link.read(NUMBER.size))[0] for _ in range(count)]
    if checksum not in (None, checked) or not {extent.entry for extent in extents}.issuperset(bad):
        raise PeerError("a block came with a wrong checksum", "corrupt")
    return checked, bad
