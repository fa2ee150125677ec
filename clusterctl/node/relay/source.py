"""The relay that has the data: blocks read from the files, once, as they are sent."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import zlib
from collections.abc import Callable, Sequence

from clusterctl.node.relay.layout import Extent, Layout
from clusterctl.node.relay.manifest import Entry, text_of
from clusterctl.node.relay.waits import Waits
from clusterctl.node.relay.wire import CHUNK, LENGTH, Link, trailer


class _Outgoing:
    """Pieces of a block on their way out, sent together; `checksum` is of all of them."""

    def __init__(self, link: Link, head: bytes, room: int) -> None:
        self._link = link
        self._buffer = memoryview(bytearray(room))
        self._used, self._head = 0, head
        self.checksum = 0
        self.seconds = 0.0

    def room(self, most: int) -> memoryview:
        """Where to put up to `most` bytes of data; `filled` says how many they are."""
        if self._used == len(self._buffer):
            self.flush()
        return self._buffer[self._used : self._used + most]

    def filled(self, size: int) -> None:
        self.checksum = zlib.crc32(self._buffer[self._used : self._used + size], self.checksum)
        self._used += size

    def flush(self, more: bytes = b"") -> None:
        """Raises PeerError."""
        began = time.monotonic()
        self._link.send(self._head)
        self._link.send(self._buffer[: self._used])
        self._link.send(more)
        self._used, self._head = 0, b""
        self.seconds += time.monotonic() - began


class Source:
    """Sends blocks of the files; `path` says where an entry is, `stamp` the ctime with which it
    was found (0 where it was not). Thread-safe.

    A file that has changed since then, or cannot be read, is sent as zeros where need be and named
    as bad at the end of the block: nobody publishes it.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        path: Callable[[int], bytes],
        stamp: Callable[[int], int],
        layout: Layout,
        waits: Waits,
    ) -> None:
        self._entries, self._path, self._stamp, self._layout = entries, path, stamp, layout
        self._waits = waits
        self._lock, self._one_by_one = threading.Lock(), threading.Lock()
        self.bad: dict[int, str] = {}

    def send_block(self, link: Link, block: int) -> None:
        """Raises PeerError."""
        extents, length = self._layout.extents(block), self._layout.length(block)
        # Threads that open and close many files by turns get in each other's way.
        with self._one_by_one if len(extents) > 1 else contextlib.nullcontext():
            began = time.monotonic()
            out = _Outgoing(link, LENGTH.pack(length), length if len(extents) > 1 else CHUNK)
            bad = [extent.entry for extent in extents if not self._send(out, extent)]
        out.flush(trailer(out.checksum, bad))
        self._waits.add("send", out.seconds)
        self._waits.add("read", time.monotonic() - began - out.seconds)

    def _send(self, out: _Outgoing, extent: Extent) -> bool:
        """Whether the file is good."""
        at, end, good = extent.offset, extent.offset + extent.length, True
        descriptor = self._open(extent.entry)
        try:
            while at < end:
                view = out.room(end - at)
                size = self._read(extent.entry, descriptor, view, at) if good else 0
                if not size:
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
            # Not to wait for the other end, should a pipe be there by now.
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
        # Its own time may have been set back by whoever wrote to it; that of this change cannot.
        # Looked at twice: a node that gives the file its mode tells the new stamp after that.
        for _ in range(2):
            status = os.fstat(descriptor)
            told = (self._entries[number].size, self._stamp(number))
            if (status.st_size, status.st_ctime_ns) == told:
                return True
        self._blame(number, "it changed while it was copied")
        return False

    def _blame(self, number: int, why: str) -> None:
        with self._lock:
            self.bad.setdefault(number, f"{text_of(self._entries[number].path)}: {why}")
