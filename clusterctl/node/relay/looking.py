"""One look at some names of a folder: what each is, and what is in it."""

from __future__ import annotations

import os
import stat
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterctl.node.relay.contents import Content, FileChanged, read_content
from clusterctl.node.relay.crc32c import fastest
from clusterctl.node.relay.listing import (
    NOT_RECORDS,
    Piece,
    count_row,
    looks_like_records,
    no_counts,
    shard_of,
    text_of_rows,
)
from clusterctl.node.relay.manifest import MODES, bytes_of, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from clusterctl.node.relay.crc32c import Crc

ATTEMPTS = 3
TICK_S = 0.25


class Wanted(NamedTuple):
    """What to look at beside names, kinds, sizes, modes, links and the structure of TFRecords."""

    content: bool = False
    crc: bool = False
    mtime: bool = False


class Looker:
    """Looks at files, one after another; `tell` hears of (files, bytes) read, now and then."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.crc_name, crc = fastest()
        self._crc: Crc | None = crc if wanted.crc else None
        self._files = self._bytes = 0
        self._told_at = 0.0
        self._tell: Callable[[Any], None] = lambda _: None

    def look(
        self, folder: bytes, places: Sequence[tuple[bytes, bytes]], tell: Callable[[Any], None]
    ) -> Piece:
        """The (name, path) of some entries of `folder`."""
        self._tell = tell
        rows: list[list[Any]] = []
        counts = no_counts()
        problems: list[tuple[str, str, str]] = []
        shards: set[str] = set()
        not_shards: list[str] = []
        for name, path in places:
            try:
                row, content, trouble = self._row(name, path)
            except FileNotFoundError:
                trouble = ("vanished", "was there a moment ago")
                row = None
            if trouble:
                problems.append((text_of(shown_path(folder, name)), *trouble))
            if row is None:
                continue
            rows.append(row)
            count_row(row, counts)
            if content and content.records is not None:
                shards.add(shard_of(row[0]))
            elif content and not content.compressed and looks_like_records(row[0]):
                not_shards.append(row[0])
            self._tick(0, 1)
        self._flush()
        return Piece(text_of_rows(rows), counts, problems, sorted(shards), not_shards)

    def _row(
        self, name: bytes, path: bytes
    ) -> tuple[list[Any], Content | None, tuple[str, str] | None]:
        status = os.lstat(path)
        kind = _kind(status.st_mode)
        mode = 0 if kind == "l" else status.st_mode & MODES
        link = text_of(os.readlink(path)) if kind == "l" else ""
        content, trouble = self._content(path) if kind == "f" else (None, None)
        size = status.st_size if kind == "f" else 0
        mtime_ns = status.st_mtime_ns
        if content:
            size, mtime_ns = content.size, content.mtime_ns
        records = content.records if content else None
        row = [
            text_of(name),
            kind,
            mode,
            size,
            mtime_ns if self.wanted.mtime and kind == "f" else 0,
            link,
            content.sha256 if content else "",
            records.number if records else NOT_RECORDS,
            records.frame if records else "",
            trouble[0] if trouble else "",
        ]
        return row, content, trouble

    def _content(self, path: bytes) -> tuple[Content | None, tuple[str, str] | None]:
        for _ in range(ATTEMPTS):
            try:
                content = read_content(path, self.wanted.content, self._crc, self._read)
            except FileChanged:
                continue
            except FileNotFoundError:
                raise
            except OSError as error:
                return None, ("unreadable", error.strerror or str(error))
            problem = content.records.problem if content.records else ""
            return content, ("corrupt", problem) if problem else None
        return None, ("changed", "changes while it is read")

    def _read(self, size: int) -> None:
        self._tick(size, 0)

    def _tick(self, size: int, files: int) -> None:
        self._bytes += size
        self._files += files
        if time.monotonic() - self._told_at >= TICK_S:
            self._flush()

    def _flush(self) -> None:
        if self._files or self._bytes:
            self._tell([self._files, self._bytes])
        self._files = self._bytes = 0
        self._told_at = time.monotonic()


def shown_path(folder: bytes, name: bytes) -> bytes:
    """As it is reported: below the path that was asked for."""
    return name if folder in (b"", b".") else folder + b"/" + name


def _kind(mode: int) -> str:
    if stat.S_ISREG(mode):
        return "f"
    if stat.S_ISDIR(mode):
        return "d"
    return "l" if stat.S_ISLNK(mode) else "o"


def look_at(looker: Looker, task: Sequence[Any], tell: Callable[[Any], None]) -> list[Any]:
    """A task as it comes to another process: folder, piece number, [[name, path], ...]."""
    folder, number, places = task
    pairs = [(bytes_of(name), bytes_of(path)) for name, path in places]
    return [folder, number, list(looker.look(bytes_of(folder), pairs, tell))]
