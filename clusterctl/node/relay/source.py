"""The relay that has the data: reads blocks from the files as they are requested."""

from __future__ import annotations

import base64
import contextlib
import errno
import os
import threading
from collections.abc import Callable, Sequence

from clusterctl.node.relay.activity import ACTIVITY, READ
from clusterctl.node.relay.base import Relay, host_identity
from clusterctl.node.relay.blocks import BlockSet
from clusterctl.node.relay.compare import destination
from clusterctl.node.relay.entries import Entries
from clusterctl.node.relay.hashing import Crc32, Gmac, Sum, digests_of_files
from clusterctl.node.relay.layout import Extent, Layout
from clusterctl.node.relay.manifest import (
    FILE,
    MOST_BYTES,
    Entry,
    bytes_of,
    digest_of,
    encode,
    head_of,
    text_of,
)
from clusterctl.node.relay.messages import MOST_WARNINGS, Begin, Listed, Order
from clusterctl.node.relay.scan import Found, LeftOut, SourceError, endangered, scan
from clusterctl.node.relay.wire import (
    CHUNK,
    LENGTH,
    Link,
    PeerError,
    Waits,
    thread_buffer,
    trailer,
    waited_s,
)


class _Outgoing:
    """Sends one block in pieces. `total` is the checksum of all of them.

    Pieces of small files are collected and sent together. Large ones are read for the checksum and
    then sent from the page cache by sendfile, which costs less than a copy to the socket. If the
    file is changed between the two, the receiver finds the checksum wrong.
    """

    def __init__(
        self, link: Link, head: bytes, buffer: memoryview, large: bool, total: Sum
    ) -> None:
        self._link, self._buffer = link, buffer
        self._by_sendfile = large and not link.secured
        self._used, self._head = 0, head
        self.total = total
        self.seconds = 0.0

    def room(self, most: int) -> memoryview:
        """Return a buffer for up to `most` bytes. `filled` must follow with their number."""
        if self._used == len(self._buffer):
            self.flush()
        return self._buffer[self._used : self._used + most]

    def filled(self, size: int) -> None:
        """Record that `size` bytes were written to the buffer that `room` returned."""
        self._used += size

    def filled_from(self, descriptor: int, at: int, size: int) -> None:
        """Like `filled`, for bytes that were just read from this place. Raises PeerError."""
        if not self._by_sendfile:
            self.filled(size)
            return
        self.total.update(self._buffer[:size])
        began = waited_s()
        self._link.send(self._head)
        self._head = b""
        self._link.send_file(descriptor, at, size)
        self.seconds += waited_s() - began

    def flush(self) -> None:
        """Send what was collected. Raises PeerError."""
        self.total.update(self._buffer[: self._used])
        began = waited_s()
        self._link.send(self._head)
        self._link.send(self._buffer[: self._used])
        self._used, self._head = 0, b""
        self.seconds += waited_s() - began

    def end(self, bad: Sequence[int]) -> None:
        """Send the rest and the trailer, with the numbers of bad entries. Raises PeerError."""
        self.flush()
        self._link.send(trailer(self.total.value(), bad))


class Source:
    """Sends blocks that it reads from the files. Thread-safe.

    `path` returns the path of an entry, `stamp` its ctime (ns) when it was found, or 0. A file that
    has changed since then or cannot be read is named as bad at the end of the block, with zeros for
    bytes that are lacking. No node publishes it.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        path: Callable[[int], bytes],
        stamp: Callable[[int], int],
        layout: Layout,
        waits: Waits,
        new_sum: Callable[[], Sum],
    ) -> None:
        self._new_sum = new_sum
        self._entries, self._path, self._stamp, self._layout = entries, path, stamp, layout
        self._waits = waits
        self._lock, self._one_by_one = threading.Lock(), threading.Lock()
        self.bad: dict[int, str] = {}

    def send_block(self, link: Link, block: int) -> None:
        """Send a block. Raises PeerError."""
        extents, length = self._layout.extents(block), self._layout.length(block)
        # Threads that open and close many files at the same time slow each other down.
        with self._one_by_one if len(extents) > 1 else contextlib.nullcontext():
            if len(extents) > 1 and link.is_gone():
                # It has waited here for the blocks of others, perhaps for minutes.
                raise PeerError("it closed the connection")
            began = waited_s()
            large = len(extents) == 1
            buffer = thread_buffer(min(length, CHUNK) if large else length)
            out = _Outgoing(link, LENGTH.pack(length), buffer, large, self._new_sum())
            bad = [extent.entry for extent in extents if not self._send(out, extent)]
        out.end(bad)
        self._waits.add("send", out.seconds)
        self._waits.add("read", waited_s() - began - out.seconds)

    def confirm(self, block: int) -> None:
        """Do nothing: blocks are summed here as they are sent, so none awaits confirmation."""

    def _send(self, out: _Outgoing, extent: Extent) -> bool:
        """Send a piece of a file. Return whether the file is good."""
        at, end, good = extent.offset, extent.offset + extent.length, True
        path = self._path(extent.entry)
        ACTIVITY.begin(READ, path)
        descriptor = self._open(extent.entry)
        ACTIVITY.end()
        try:
            while at < end:
                view = out.room(end - at)  # may send
                ACTIVITY.begin(READ, path)
                size = self._read(extent.entry, descriptor, view, at) if good else 0
                ACTIVITY.end()
                if size:
                    out.filled_from(descriptor, at, size)
                else:
                    good, size = False, len(view)
                    view[:] = bytes(size)
                    out.filled(size)
                at += size
            return good and self._unchanged(extent.entry, descriptor)
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def _open(self, number: int) -> int:
        try:
            # O_NONBLOCK: a pipe may have replaced the file, and open() would wait for its writer.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            return os.open(self._path(number), flags)
        except OSError as error:
            self._blame(number, str(error.strerror))
            return -1

    def _read(self, number: int, descriptor: int, view: memoryview, at: int) -> int:
        if descriptor < 0:
            return 0
        try:
            size = os.preadv(descriptor, [view], at)
        except OSError as error:
            self._blame(number, str(error.strerror))
            return 0
        if not size:
            self._blame(number, "it became shorter while it was copied")
        return size

    def _unchanged(self, number: int, descriptor: int) -> bool:
        # The ctime is compared because the mtime can be set back after a change.
        # Compared twice: `Publisher.retouch` changes the ctime first and the stamp after it.
        for _ in range(2):
            status = os.fstat(descriptor)
            recorded = (self._entries[number].size, self._stamp(number))
            if (status.st_size, status.st_ctime_ns) == recorded:
                return True
        self._blame(number, "it changed while it was copied")
        return False

    def _blame(self, number: int, why: str) -> None:
        """Record the first reason why a file is bad."""
        with self._lock:
            self.bad.setdefault(number, f"{text_of(self._entries[number].path)}: {why}")


def _without_unreadable(found: Found) -> Found:
    """Return what was found without files that cannot be read: they are left out.

    Only files that not everybody may read are tried.
    """
    path = found.places.getter()
    unreadable = {
        number
        for number, entry in enumerate(found.entries)
        if entry.kind == FILE and ~entry.mode & 0o444 and not os.access(path(number), os.R_OK)
    }
    if not unreadable:
        return found
    why = os.strerror(errno.EACCES)
    left_out = [LeftOut(path(number), why, errno.EACCES) for number in sorted(unreadable)]
    return found.without(unreadable)._replace(left_out=[*found.left_out, *left_out])


class SourceRelay(Relay):
    """The relay at the source."""

    def start(self) -> None:
        sources, names, base = self._requested()
        found = _without_unreadable(scan(sources, names, base))
        self._entries, self._path, single = found.entries, found.places.getter(), found.single
        warnings = found.warnings
        if self.config.get("checksum"):
            self._take_digests()
        if not self._entries and not warnings:
            raise SourceError("there is nothing to copy")
        parts = list(encode(self._entries))
        head = head_of(parts)
        if len(head) > MOST_BYTES:
            raise SourceError(f"{len(self._entries)} files and folders are too many for one copy")
        for blob in (head, *parts):
            self.server.manifest.add(blob)
        self.emit(
            Listed(
                digest=digest_of(head),
                files=sum(entry.kind == FILE for entry in self._entries),
                bytes=sum(length for entry in self._entries for _, length in entry.data),
                warnings=tuple(warnings[:MOST_WARNINGS]),
                left_out=len(warnings),
                single=single,
                host=host_identity(),
                roots=tuple(text_of(os.path.realpath(os.path.join(base, one))) for one in sources),
                endangered=self._endangered(sources, base),
            )
        )

    def _endangered(self, sources: list[bytes], base: bytes) -> str:
        if self.config.get("delete_in") is None:
            return ""
        dst = destination(self.config["delete_in"], os.path.expanduser("~"))
        return text_of(endangered(sources, base, dst))

    def _requested(self) -> tuple[list[bytes], list[bytes] | None, bytes]:
        config = self.config
        home = os.path.expanduser("~")
        sources = [
            bytes_of(home + one[1:] if one == "~" or one.startswith("~/") else one)
            for one in config["sources"]
        ]
        names = config.get("names_b64")
        base = bytes_of(config.get("base") or home)
        return sources, None if names is None else [base64.b64decode(n) for n in names], base

    def _take_digests(self) -> None:
        files = (n for n in range(len(self._entries)) if self._entries.kind(n) == FILE)
        digests = digests_of_files(map(self._path, files))
        self._entries = Entries(
            entry._replace(digest=next(digests)) if entry.kind == FILE else entry
            for entry in self._entries
        )

    def handle(self, order: Order) -> None:
        if not isinstance(order, Begin):
            return
        layout = Layout(self._entries, order.block_bytes)
        content = Source(
            self._entries,
            self._path,
            lambda number: self._entries[number].changed_ns,
            layout,
            self.waits,
            Gmac if order.gmac else Crc32,
        )
        here = BlockSet(layout.blocks, b"\1" * layout.blocks)
        self.server.have_content(here, content, order.streams)
