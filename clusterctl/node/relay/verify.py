"""The relay that makes the manifest of one path, for `clusterctl.copy.verify` to compare."""

from __future__ import annotations

import base64
import errno
import heapq
import json
import os
import stat
import threading
import time
import zlib
from collections import Counter
from typing import Any

from clusterctl.node.relay import hashing
from clusterctl.node.relay.base import Failure, Relay
from clusterctl.node.relay.compare import destination
from clusterctl.node.relay.entries import Entries
from clusterctl.node.relay.manifest import (
    FILE,
    FOLDER,
    LINK,
    Entry,
    as_stream,
    digest_of,
    encode,
    position_key,
)
from clusterctl.node.relay.manifest import text_of as text
from clusterctl.node.relay.messages import GetPiece, Order, Piece, Progress, VerifiedTree
from clusterctl.node.relay.scan import LeftOut, scan

# The size of a file that could not be read, and of a folder that could not be listed.
NOT_READ = -1
# The kind of an entry for which even stat() failed.
UNKNOWN = "?"
# How often a file is read that changes while it is read.
ATTEMPTS = 3
# Problems that are sent, each with its path.
MOST_PROBLEMS = 10_000
# Bytes of an answer to GetPiece.
PIECE = 256 << 10


class VerifyRelay(Relay):
    """Scans a path, and sends the digest of its manifest, then the manifest on request.

    The configuration has "path", and may have "content" (compare SHA-256) and "mtime".
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self._lock = threading.Lock()
        self._files = self._bytes = 0
        self._blobs: dict[str, bytes] = {}

    def start(self) -> None:
        began = time.monotonic()
        path = destination(self.config["path"], os.path.expanduser("~"))
        counts, entries, problems = self._compare(path)
        manifest = as_stream(encode(entries))
        encoded = json.dumps(problems[:MOST_PROBLEMS]).encode()
        self._blobs = {"manifest": manifest, "problems": zlib.compress(encoded)}
        self.emit(
            VerifiedTree(
                digest=digest_of(manifest),
                **counts,
                problems=len(problems),
                read_bytes=self._bytes,
                duration_s=round(time.monotonic() - began, 3),
            )
        )

    def handle(self, order: Order) -> None:
        if isinstance(order, GetPiece):
            piece = self._blobs[order.blob][order.at : order.at + PIECE]
            self.emit(Piece(base64.b64encode(piece).decode()))

    def figures(self) -> Progress:
        return Progress(files=self._files, bytes=self._bytes)

    def _compare(self, path: bytes) -> tuple[dict[str, int], Entries, list[tuple[str, str, str]]]:
        """Return counts, the manifest's entries and the problems (path, kind, reason).

        Raises Failure, OSError.
        """
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            raise Failure("absent", "there is nothing at the path") from None
        root = os.path.realpath(path) + (b"/" if stat.S_ISDIR(status.st_mode) else b"")
        found = scan([root], None, b"")
        if not root.endswith(b"/"):
            renamed = (one._replace(path=b".") for one in found.entries)
            found = found._replace(entries=Entries(renamed))
        kinds = Counter(entry.kind for entry in found.entries)
        counts = {
            "files": kinds[FILE],
            "folders": kinds[FOLDER],
            "links": kinds[LINK],
            "others": sum(not one.errno for one in found.left_out),
            "bytes": sum(entry.size for entry in found.entries),
        }
        problems: list[tuple[str, str, str]] = []
        unread = {_below(root, one.path): one for one in found.left_out if one.errno}
        entries, unknown = Entries(), []
        items = zip(found.entries, found.places.all())
        run = hashing.side_by_side if self.config.get("content") else map
        for entry, found_wrong in run(self._checked, items):
            closed = unread.pop(entry.path, None)  # a folder that cannot be listed
            trouble = _trouble(closed) if closed else found_wrong
            if trouble:
                problems.append((text(entry.path), *trouble))
            if not trouble:
                entries.append(self._compared(entry))
            elif trouble[0] != "vanished":
                entries.append(self._compared(entry)._replace(size=NOT_READ))
        for name, left_out in unread.items():
            trouble = _trouble(left_out)
            problems.append((text(name), *trouble))
            if trouble[0] != "vanished":
                unknown.append(Entry(name, UNKNOWN, 0, 0, NOT_READ))
        if unknown:
            unknown.sort(key=_position)
            entries = Entries(heapq.merge(entries, unknown, key=_position))
        return counts, entries, sorted(problems)

    def _checked(self, item: tuple[Entry, bytes]) -> tuple[Entry, tuple[str, str] | None]:
        """Return an entry, with a digest if content is compared, and the problem with it, if any.

        A problem is (kind, reason).
        """
        entry, path = item
        if entry.kind != FILE:
            return entry, None
        with self._lock:
            self._files += 1
        try:
            if not self.config.get("content"):
                if os.access(path, os.R_OK):
                    return entry, None
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            for _ in range(ATTEMPTS):
                before = os.lstat(path)
                digest = hashing.digest_of(path, self._read)
                after = os.lstat(path)
                if (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns):
                    size, mtime_ns = after.st_size, after.st_mtime_ns
                    return entry._replace(size=size, mtime_ns=mtime_ns, digest=digest), None
            return entry, ("changed", "changes while it is read")
        except OSError as error:
            return entry, _trouble(LeftOut(path, str(error.strerror), error.errno or 0))

    def _compared(self, entry: Entry) -> Entry:
        """Return the entry without what is not compared: holes, ctimes, times of non-files."""
        is_timed = self.config.get("mtime") and entry.kind == FILE
        return entry._replace(
            mtime_ns=entry.mtime_ns if is_timed else 0, segments=None, changed_ns=0
        )

    def _read(self, size: int) -> None:
        with self._lock:
            self._bytes += size


def _position(entry: Entry) -> bytes:
    return position_key(entry.path)


def _trouble(left_out: LeftOut) -> tuple[str, str]:
    if left_out.errno == errno.ENOENT:
        return "vanished", "was there a moment ago"
    return "unreadable", left_out.why


def _below(root: bytes, path: bytes) -> bytes:
    return path[len(root) :].lstrip(b"/") or b"."
