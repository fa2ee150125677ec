"""The relay that has the data: blocks read from the files, once, as they are sent."""

from __future__ import annotations

import os
import threading
import time
import zlib
from collections.abc import Callable, Sequence

from clusterctl.data.node.layout import Extent, Layout
from clusterctl.data.node.manifest import Entry, text_of
from clusterctl.data.node.waits import Waits
from clusterctl.data.node.wire import CHUNK, LENGTH, NUMBER, TRAILER, Link


class Source:
    """Sends blocks of the files; `path` says where an entry is. Thread-safe.

    A file that has changed since it was listed, or cannot be read, is sent as zeros where need be
    and named as bad at the end of the block: nobody publishes it.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        path: Callable[[int], bytes],
        layout: Layout,
        waits: Waits,
    ) -> None:
        self._entries, self._path, self._layout = entries, path, layout
        self._waits = waits
        self._lock = threading.Lock()
        self.bad: dict[int, str] = {}

    def send_block(self, link: Link, block: int) -> None:
        """Raises PeerError."""
        link.send(LENGTH.pack(self._layout.length(block)))
        checksum, bad = 0, []
        buffer = memoryview(bytearray(CHUNK))
        for extent in self._layout.extents(block):
            checksum, good = self._send(link, extent, buffer, checksum)
            if not good:
                bad.append(extent.entry)
        numbers = b"".join(map(NUMBER.pack, bad))
        link.send(TRAILER.pack(checksum, len(bad)) + numbers)

    def _send(
        self, link: Link, extent: Extent, buffer: memoryview, checksum: int
    ) -> tuple[int, bool]:
        at, end, good = extent.offset, extent.offset + extent.length, True
        descriptor = self._open(extent.entry)
        try:
            while at < end:
                view = buffer[: min(CHUNK, end - at)]
                began = time.monotonic()
                size = self._read(extent.entry, descriptor, view, at) if good else 0
                self._waits.add("read", time.monotonic() - began)
                if not size:
                    good, size = False, len(view)
                    view[:] = bytes(size)
                checksum = zlib.crc32(view[:size], checksum)
                began = time.monotonic()
                link.send(view[:size])
                self._waits.add("send", time.monotonic() - began)
                at += size
            return checksum, good and self._unchanged(extent.entry, descriptor)
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def _open(self, number: int) -> int:
        try:
            return os.open(self._path(number), os.O_RDONLY | os.O_NOFOLLOW)
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
        status, entry = os.fstat(descriptor), self._entries[number]
        if (status.st_size, status.st_mtime_ns) == (entry.size, entry.mtime_ns):
            return True
        self._blame(number, "it changed while it was copied")
        return False

    def _blame(self, number: int, why: str) -> None:
        with self._lock:
            self.bad.setdefault(number, f"{text_of(self._entries[number].path)}: {why}")
