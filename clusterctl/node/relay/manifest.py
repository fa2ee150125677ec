"""The manifest of a data set, an entry for each file, folder and link, and its encoding. Pure.

It is encoded in parts, so that no side ever holds more than one part as text. The head has the
SHA-256 of each part, and its own SHA-256 identifies the manifest: each part is checked as it comes.
The encoding is its own, not that of node/record.py: its bytes identify the data, and there are
millions of entries.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from clusterctl.node.record import from_json

FILE, FOLDER, LINK = "f", "d", "l"
# The bits of a mode that are copied.
MODES = 0o7777
# The mode of a folder for which the source has none: an existing one keeps its mode and time.
UNKNOWN_MODE = -1
LONGEST_PATH = 1 << 16
# Bytes. Smaller files begin again after an interruption, so the manifest needs no ctime for them.
LEAST_RESUMED = 64 << 10
# Entries in a part of an encoded manifest at most; bytes of paths, links and segments (as text)
# after which a part ends, too.
ROWS, ROWS_BYTES = 1000, 128 << 10
_SEGMENT_BYTES = 20
# Bytes of a part, and of the head; bytes of its text. An entry of MOST_SEGMENTS (scan.py) has 4 MB.
MOST_BYTES = 8 << 20
# What follows the last part where parts are read as one stream, so that a lost end is noticed.
_END = zlib.compress(b"[]")


# What decoding raises for bytes that `encode` has not made.
_MALFORMED = (
    *(zlib.error, ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError),
    RecursionError,
)


class BadManifest(ValueError):
    """Raised for bytes that are not a valid manifest."""


class Entry(NamedTuple):
    """One file, folder or symbolic link. `path` is relative to the destination.

    `segments` are the (offset, length) of the data in a sparse file; None means that all of it is
    data. `digest` is the content's SHA-256 (an MD5 from S3), or empty if it was not requested.
    `changed_ns` is a file's ctime at the source, 0 if not known. It cannot be set back, so it shows
    apart two contents of the same size and mtime.
    """

    path: bytes
    kind: str
    mode: int
    mtime_ns: int
    size: int = 0
    link: bytes = b""
    segments: tuple[tuple[int, int], ...] | None = None
    digest: bytes = b""
    changed_ns: int = 0

    @property
    def data(self) -> Sequence[tuple[int, int]]:
        """The (offset, length) of its data."""
        if self.kind != FILE or not self.size:
            return ()
        return ((0, self.size),) if self.segments is None else self.segments


def text_of(path: bytes) -> str:
    """Return a path as text for JSON and messages. `bytes_of` reverses it for any bytes."""
    return path.decode("utf-8", "surrogateescape")


def bytes_of(text: str) -> bytes:
    """Return the path that `text_of` made this text of."""
    return text.encode("utf-8", "surrogateescape")


def encode(entries: Iterable[Entry]) -> Iterator[bytes]:
    """Yield the parts of a manifest, each a deflated list of entries in JSON.

    The same entries always give the same parts.
    """
    rows: list[Any] = []
    size = 0
    for entry in entries:
        row = [text_of(entry.path), entry.kind, entry.mode, entry.mtime_ns, entry.size]
        rows.append([*row, more] if (more := _more(entry)) else row)
        size += len(entry.path) + len(entry.link) + _SEGMENT_BYTES * len(entry.segments or ())
        if len(rows) == ROWS or size >= ROWS_BYTES:
            yield _part(rows)
            rows, size = [], 0
    if rows:
        yield _part(rows)


def _part(rows: list[Any]) -> bytes:
    return zlib.compress(json.dumps(rows, separators=(",", ":")).encode("ascii"), 1)


def _more(entry: Entry) -> dict[str, Any]:
    more: dict[str, Any] = {}
    if entry.link:
        more["l"] = text_of(entry.link)
    if entry.segments is not None:
        more["s"] = entry.segments
    if entry.digest:
        more["h"] = entry.digest.hex()
    if entry.changed_ns and entry.size >= LEAST_RESUMED:
        more["c"] = entry.changed_ns
    return more


def decode(parts: Iterable[bytes]) -> Iterator[Entry]:
    """Yield the entries of a manifest. Raises BadManifest, see `Decoder`."""
    decoder = Decoder()
    for part in parts:
        yield from decoder.entries(part)


class Decoder:
    """Decodes the parts of a manifest one after another, and checks paths and order."""

    def __init__(self) -> None:
        # The key of the previous entry; the beginning of keys below the latest that is no folder.
        self._before, self._leaf = b"", b""
        self._has_root = False

    def entries(self, part: bytes) -> list[Entry]:
        """Return the entries of the next part.

        Raises BadManifest for what `encode` cannot have made of a real tree.
        """
        found = list(read([part, _END]))
        for entry in found:
            check(entry)
            self._check_order(entry)
        return found

    def _check_order(self, entry: Entry) -> None:
        """Raise BadManifest for a path that occurs twice, or is below something that is no folder.

        Writing `link/file` after `link -> /elsewhere` would write outside of the destination.
        """
        if entry.path == b".":
            if self._has_root:
                raise BadManifest("the root twice")
            self._has_root = True
            return
        key = sort_key(entry.path)
        if key <= self._before or (self._leaf and key.startswith(self._leaf)):
            raise BadManifest(f"twice, or below what is no folder: {entry.path[:80]!r}")
        self._before = key
        if entry.kind != FOLDER:
            self._leaf = key + b"\0"


def as_stream(parts: Iterable[bytes]) -> bytes:
    """Return the parts of a manifest as one text, which `read` reads in pieces of any size."""
    return b"".join(parts) + _END


def read(pieces: Iterable[bytes]) -> Iterator[Entry]:
    """Yield the entries of a manifest from `as_stream` that comes in pieces.

    Only one part is in memory at a time. Paths and order are not checked. Raises BadManifest.
    """
    is_whole = False
    try:
        for text in _inflated(pieces):
            if is_whole:
                raise BadManifest("something follows its end")
            rows = from_json(Any, text)
            if not isinstance(rows, list):
                raise BadManifest("a part is no list")
            is_whole = not rows
            yield from map(_entry, rows)
    except BadManifest:
        raise
    except _MALFORMED as error:
        raise BadManifest(str(error)) from None
    if not is_whole:
        raise BadManifest("it is cut short")


def _inflated(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the text of each part. Raises BadManifest, zlib.error."""
    press, text = zlib.decompressobj(), b""
    for piece in pieces:
        rest = piece
        while rest:
            text += press.decompress(rest, MOST_BYTES + 1 - len(text))
            if len(text) > MOST_BYTES:
                raise BadManifest("a part is too large")
            rest = press.unused_data or press.unconsumed_tail
            if press.eof:
                yield text
                press, text = zlib.decompressobj(), b""
    if text:
        raise BadManifest("it is cut short")


def position_key(path: bytes) -> bytes:
    """Return the sort key of a path, by which the copied folder itself comes first."""
    return b"" if path == b"." else sort_key(path)


def sort_key(path: bytes) -> bytes:
    """Return the sort key of a path, by which each folder is followed by all that is below it."""
    return path.replace(b"/", b"\0")


def _entry(row: Any) -> Entry:
    path, kind, mode, mtime_ns, size = row[:5]
    plain = Entry(bytes_of(path), kind, int(mode), int(mtime_ns), int(size))
    return _with_more(plain, row[5]) if len(row) > 5 else plain


def _with_more(entry: Entry, more: Any) -> Entry:
    segments = more.get("s")
    return Entry(
        *entry[:5],
        bytes_of(more.get("l", "")),
        None if segments is None else tuple((int(at), int(length)) for at, length in segments),
        bytes.fromhex(more.get("h", "")),
        int(more.get("c", 0)),
    )


def check(entry: Entry) -> None:
    """Raise BadManifest for an entry that is malformed or leads out of the destination."""
    around = b"/" + entry.path + b"/"
    if entry.path != b"." and (b"//" in around or b"/./" in around or b"/../" in around):
        raise BadManifest(f"not a path below the destination: {entry.path!r}")
    if b"\0" in entry.path or b"\0" in entry.link or len(entry.path) > LONGEST_PATH:
        raise BadManifest(f"not a path: {entry.path[:80]!r}")
    if entry.kind not in (FILE, FOLDER, LINK) or (entry.kind == LINK) != bool(entry.link):
        raise BadManifest(f"not a kind of entry: {entry.kind!r}")
    if entry.path == b"." and entry.kind != FOLDER:
        raise BadManifest("the destination itself is a folder")
    if entry.size < 0 or entry.mode & ~MODES or len(entry.digest) not in (0, 32):
        raise BadManifest(f"not a size, mode or digest: {entry!r}")
    end = 0
    for offset, length in entry.segments or ():
        if offset < end or length <= 0 or offset + length > entry.size:
            raise BadManifest(f"segments that overlap or leave the file: {entry.path[:80]!r}")
        end = offset + length


def head_of(parts: Iterable[bytes]) -> bytes:
    """Return the head of a manifest: the SHA-256 of each part."""
    return b"".join(hashlib.sha256(part).digest() for part in parts)


def digest_of(blob: bytes) -> str:
    """Return the SHA-256 in hex: that of the head identifies a manifest."""
    return hashlib.sha256(blob).hexdigest()
