"""What one file has: its digest, and its records where it is a TFRecord file. Each is read once."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.node.relay.tfrecord import FOOTER, HEADER, RecordParser, begins_record

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.node.relay.crc32c import Crc
    from clusterctl.node.relay.tfrecord import Records

_READ = 1 << 20
# Records below this are read with their data: one large read is cheaper than many small ones.
_SMALL = 1 << 15
_WINDOW = 1 << 18
_COMPRESSED = (b"\x1f\x8b", b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda", b"\x28\xb5\x2f\xfd")


class Content(NamedTuple):
    """`sha256` is empty where nobody asked, `records` None for what is no TFRecord file."""

    sha256: str
    records: Records | None
    compressed: bool
    size: int
    mtime_ns: int


class FileChanged(Exception):
    """Somebody writes to the file: what was read of it is no one state of it."""


def read_content(
    path: bytes, digest: bool, crc: Crc | None, tick: Callable[[int], None]
) -> Content:
    """`crc` checks the data of records too; `tick` is told of bytes read. Raises FileChanged,
    OSError.
    """
    # NONBLOCK: what was a file a moment ago may be a pipe by now.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags)
    try:
        before = os.fstat(descriptor)
        head = os.pread(descriptor, HEADER, 0)
        parser = RecordParser(before.st_size, crc) if begins_record(head) else None
        hashing = hashlib.sha256() if digest else None
        if hashing or (parser and crc):
            _read_all(descriptor, before.st_size, parser, hashing, tick)
        elif parser:
            _read_frames(descriptor, before.st_size, parser, tick)
        after = os.fstat(descriptor)
        if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            raise FileChanged
    finally:
        os.close(descriptor)
    return Content(
        hashing.hexdigest() if hashing else "",
        parser.end() if parser else None,
        head.startswith(_COMPRESSED),
        before.st_size,
        before.st_mtime_ns,
    )


def _read_all(
    descriptor: int,
    size: int,
    parser: RecordParser | None,
    hashing: hashlib._Hash | None,
    tick: Callable[[int], None],
) -> None:
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
    buffer = memoryview(bytearray(min(_READ, size)))
    at = 0
    while at < size and (hashing or (parser and not parser.lost)):
        piece = _piece(descriptor, buffer, at, size)
        if hashing:
            hashing.update(piece)
        if parser:
            parser.feed(piece)
        at += len(piece)
        tick(len(piece))


def _read_frames(
    descriptor: int, size: int, parser: RecordParser, tick: Callable[[int], None]
) -> None:
    """Lengths and CRCs alone, over the data of large records."""
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    buffer = memoryview(bytearray(min(_WINDOW, size)))
    at = 0
    while at < size and not parser.lost:
        over = parser.skippable
        if over > _SMALL:
            parser.skip(over)
            at += over
        if at == 0 or over > _SMALL:
            piece = _piece(descriptor, buffer[: FOOTER + HEADER], at, size)
        else:
            piece = _piece(descriptor, buffer, at, size)
        parser.feed(piece)
        at += len(piece)
        tick(len(piece))


def _piece(descriptor: int, buffer: memoryview, at: int, size: int) -> memoryview:
    got = os.preadv(descriptor, [buffer[: size - at]], at)
    if not got:
        raise FileChanged
    return buffer[:got]
