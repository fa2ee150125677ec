"""What a data set consists of: one entry for each file, folder and symbolic link, and its bytes
on the wire. Pure."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

FILE, FOLDER, LINK = "f", "d", "l"
MODES = 0o7777
# Of a folder that the source says nothing about: it keeps its own mode, and its time.
UNKNOWN_MODE = -1
# What a decoder takes at most: 64 bytes of text an entry, for ten million of them.
MOST_BYTES = 1 << 30
LONGEST_PATH = 1 << 16
# Smaller files are got anew after an interruption, so that nobody needs to know their ctime.
LEAST_RESUMED = 64 << 10
ROWS = 1000
_READ = 1 << 20


class BadManifest(ValueError):
    """These bytes are no manifest."""


class Entry(NamedTuple):
    """One thing of the data set. `path` is relative to the destination, in bytes.

    `segments` are the (offset, length) of the data in a sparse file; None: all of it is data.
    `digest` is the content's SHA-256, or empty where nobody asked for it. `changed_ns` is a file's
    ctime at the source, which nobody can set back: it tells apart two contents of the same size
    and time. 0: not known.
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
        """Where its data is: (offset, length)."""
        if self.kind != FILE or not self.size:
            return ()
        return ((0, self.size),) if self.segments is None else self.segments


def text_of(path: bytes) -> str:
    """A path as JSON and messages can carry it; `bytes_of` reverses it, whatever its encoding."""
    return path.decode("utf-8", "surrogateescape")


def bytes_of(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def encode(entries: Sequence[Entry]) -> bytes:
    """Deflated lines of JSON, ROWS entries each; the same entries always give the same bytes."""
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
    """Raises BadManifest for anything that `encode` would not have made of a real tree."""
    entries = []
    for entry in read([blob]):
        check(entry)
        entries.append(entry)
    _check_order(entries)
    return entries


def read(pieces: Iterable[bytes]) -> Iterator[Entry]:
    """The entries of an encoded manifest that comes in pieces, one after another: however many
    there are, few are in memory. Raises BadManifest; paths and order are not checked."""
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


def in_order(path: bytes) -> bytes:
    """What entries are sorted by: each folder is followed by all that is below it."""
    return path.replace(b"/", b"\0")


def _check_order(entries: Sequence[Entry]) -> None:
    """Raises BadManifest for a path that is there twice, or below what is no folder.

    Whoever writes `link/file` after `link -> /elsewhere` writes outside the destination.
    """
    before, leaf = b"", b""
    for entry in entries:
        if entry.path == b".":
            continue
        key = in_order(entry.path)
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
    """Raises BadManifest: nothing of a manifest may lead out of the destination."""
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
    """What both sides compare: SHA-256 of the encoded manifest, in hex."""
    return hashlib.sha256(blob).hexdigest()
