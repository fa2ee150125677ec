"""The manifest of a data set, an entry for each file, folder and link, and its encoding. Pure."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

FILE, FOLDER, LINK = "f", "d", "l"
# The bits of a mode that are copied.
MODES = 0o7777
# The mode of a folder for which the source has none: an existing one keeps its mode and time.
UNKNOWN_MODE = -1
# The most text that is decoded: enough for ten million entries of 64 bytes.
MOST_BYTES = 1 << 30
LONGEST_PATH = 1 << 16
# Bytes. Smaller files begin anew after an interruption, so the manifest needs no ctime for them.
LEAST_RESUMED = 64 << 10
# Entries in a line of an encoded manifest.
ROWS = 1000
# Bytes that are inflated at once.
_READ = 1 << 20


class BadManifest(ValueError):
    """Raised for bytes that are not a valid manifest."""


class Entry(NamedTuple):
    """One file, folder or symbolic link. `path` is relative to the destination.

    `segments` are the (offset, length) of the data in a sparse file; None means that all of it is
    data. `digest` is the content's SHA-256 (an MD5 from S3), or empty if it was not requested.
    `changed_ns` is a file's ctime at the source, 0 if not known. It cannot be set back, so it tells
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


def encode(entries: Sequence[Entry]) -> bytes:
    """Encode entries as deflated lines of JSON. The same entries always give the same bytes."""
    press = zlib.compressobj(1)
    parts = []
    for at in range(0, len(entries), ROWS):
        rows = list(map(_row, entries[at : at + ROWS]))
        line = json.dumps(rows, separators=(",", ":")) + "\n"
        parts.append(press.compress(line.encode("ascii")))
    parts.append(press.flush())
    return b"".join(parts)


def _row(entry: Entry) -> list[Any]:
    row = [text_of(entry.path), entry.kind, entry.mode, entry.mtime_ns, entry.size]
    more = _more(entry)
    return [*row, more] if more else row


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


def decode(blob: bytes) -> list[Entry]:
    """Decode a manifest. Raises BadManifest for what `encode` cannot have made of a real tree."""
    entries = []
    for entry in read([blob]):
        check(entry)
        entries.append(entry)
    _check_order(entries)
    return entries


def read(pieces: Iterable[bytes]) -> Iterator[Entry]:
    """Yield the entries of an encoded manifest that comes in pieces.

    Only few entries are in memory at a time. Paths and order are not checked. Raises BadManifest.
    """
    partial, size = b"", 0
    try:
        for text in _inflated(pieces):
            size += len(text)
            if size > MOST_BYTES:
                raise BadManifest("it is too large")
            *lines, partial = (partial + text).split(b"\n")
            for line in lines:
                yield from map(_entry, json.loads(line))
        if partial:
            raise BadManifest("it is cut short")
    except (zlib.error, ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        if isinstance(error, BadManifest):
            raise
        raise BadManifest(str(error)) from None


def _inflated(pieces: Iterable[bytes]) -> Iterator[bytes]:
    press = zlib.decompressobj()
    for piece in pieces:
        yield press.decompress(piece, _READ)
        while press.unconsumed_tail:
            yield press.decompress(press.unconsumed_tail, _READ)
    yield press.flush()
    if not press.eof:
        raise BadManifest("it is cut short")


def sort_key(path: bytes) -> bytes:
    """Return the sort key of a path, by which each folder is followed by all that is below it."""
    return path.replace(b"/", b"\0")


def _check_order(entries: Sequence[Entry]) -> None:
    """Raise BadManifest for a path that occurs twice, or is below something that is no folder.

    Writing `link/file` after `link -> /elsewhere` would write outside of the destination.
    """
    before, leaf = b"", b""
    for entry in entries:
        if entry.path == b".":
            continue
        key = sort_key(entry.path)
        if key <= before or (leaf and key.startswith(leaf)):
            raise BadManifest(f"twice, or below what is no folder: {entry.path[:80]!r}")
        before = key
        if entry.kind != FOLDER:
            leaf = key + b"\0"


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


def digest_of(blob: bytes) -> str:
    """Return the SHA-256 of an encoded manifest in hex, by which relays identify it."""
    return hashlib.sha256(blob).hexdigest()
