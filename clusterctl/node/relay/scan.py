"""What is at the source: rsync's meaning of paths and slashes, as manifest entries."""

from __future__ import annotations

import errno
import glob
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from clusterctl.node.relay.manifest import FILE, FOLDER, LINK, MODES, Entry, in_order, text_of

# Where files are until they are whole: no data of anybody's.
STAGING = b".clusterctl-copy"
# A file in more pieces is taken as it reads, holes as zeros.
MOST_SEGMENTS = 10_000


class SourceError(Exception):
    """There is nothing to copy; the message says why."""


class LeftOut(NamedTuple):
    """What is there and is no entry, and why. `errno` is 0 where no system call has refused it."""

    path: bytes
    why: str
    errno: int = 0


class Found(NamedTuple):
    """The source: its entries, where each one is, and what was left out.

    `single`: it is one file, which DST may give another name.
    """

    entries: list[Entry]
    paths: list[bytes]
    left_out: list[LeftOut]
    single: bool

    @property
    def warnings(self) -> list[str]:
        """One line for each thing that was left out."""
        return [f"{text_of(one.path)}: {one.why}" for one in self.left_out]


class _Gathering:
    def __init__(self) -> None:
        self.found: dict[bytes, tuple[Entry, bytes]] = {}
        self.left_out: list[LeftOut] = []

    def leave_out(self, path: bytes, why: str | OSError) -> None:
        if isinstance(why, OSError):
            self.left_out.append(LeftOut(path, str(why.strerror), why.errno or 0))
        else:
            self.left_out.append(LeftOut(path, why))

    def add(self, name: bytes, path: bytes, status: os.stat_result) -> None:
        """What two sources have in common is taken from the first."""
        if name in self.found:
            return
        kind, link = _kind(status), b""
        if kind is None:
            self.leave_out(path, "not a file, folder or symbolic link")
            return
        if kind == LINK:
            link = os.readlink(path)
        mode, mtime_ns = status.st_mode & MODES, status.st_mtime_ns
        size, segments = 0, None
        if kind == FILE:
            size, segments = status.st_size, _segments(path, status)
        entry = Entry(
            name, kind, mode, mtime_ns, size, link, segments, changed_ns=status.st_ctime_ns
        )
        self.found[name] = (entry, path)

    def rows(self) -> list[tuple[Entry, bytes]]:
        """What was found, in the manifest's order.

        One source may have a folder where another has a link or file: what is in that folder would
        be written through the link, outside the destination.
        """
        kept, leaf = [], Entry(b"", FOLDER, 0, 0)
        for entry, path in sorted(self.found.values(), key=lambda row: in_order(row[0].path)):
            if leaf.path and entry.path.startswith(leaf.path + b"/"):
                kind = "link" if leaf.kind == LINK else "file"
                self.leave_out(path, f"another source has a {kind} at {text_of(leaf.path)}")
                continue
            if entry.kind != FOLDER:
                leaf = entry
            kept.append((entry, path))
        return kept


def scan(sources: Sequence[bytes], names: Sequence[bytes] | None, base: bytes) -> Found:
    """The files below the sources, which may be globs, and relative to `base`.

    A folder without a slash at its end comes with its name, else without. `names` are of things
    below the only source and keep their folders. Raises SourceError, OSError.
    """
    gathering = _Gathering()
    if names is not None:
        (source,) = sources
        _take_names(gathering, os.path.join(base, source), names)
        single = False
    else:
        paths = [path for source in sources for path in _expand(os.path.join(base, source))]
        for path in paths:
            _take(gathering, path)
        single = len(paths) == 1 and [e.kind for e, _ in gathering.found.values()] == [FILE]
    rows = gathering.rows()
    return Found([e for e, _ in rows], [p for _, p in rows], gathering.left_out, single)


def _expand(pattern: bytes) -> list[bytes]:
    if os.path.lexists(pattern) or not glob.has_magic(pattern):
        return [pattern]
    found = sorted(glob.glob(pattern))
    matches = [one for one in found if not os.path.basename(one).startswith(STAGING)]
    if not matches:
        raise SourceError(f"nothing matches {text_of(pattern)}")
    return matches


def _take(gathering: _Gathering, path: bytes) -> None:
    contents = path.endswith(b"/") or os.path.basename(path) in (b".", b"..")
    try:
        status = os.stat(path) if contents else os.lstat(path)
    except OSError as error:
        raise SourceError(_why_not(path, error)) from None
    if not stat.S_ISDIR(status.st_mode):
        gathering.add(os.path.basename(path), path, status)
        return
    name = b"" if contents else os.path.basename(path)
    gathering.add(name or b".", path, status)
    _walk(gathering, path, name)


def _take_names(gathering: _Gathering, root: bytes, names: Sequence[bytes]) -> None:
    for raw in names:
        name = os.path.normpath(raw.strip(b"/")) if raw.strip(b"/") else b""
        if not name or name == b"." or name.split(b"/")[0] == b"..":
            raise SourceError(f"not a name below {text_of(root)}: {text_of(raw)}")
        path = os.path.join(root, name)
        if b"/" + STAGING in b"/" + name:  # it would take the place of what this copy puts there
            gathering.leave_out(path, "an interrupted copy has left it")
            continue
        try:
            status = os.lstat(path)
        except OSError as error:
            gathering.leave_out(path, error)
            continue
        for parent in _parents(name):
            gathering.add(parent, os.path.join(root, parent), os.stat(os.path.join(root, parent)))
        gathering.add(name, path, status)
        if stat.S_ISDIR(status.st_mode):
            _walk(gathering, path, name)


def _parents(name: bytes) -> Iterator[bytes]:
    parts = name.split(b"/")
    return (b"/".join(parts[:n]) for n in range(1, len(parts)))


def _walk(gathering: _Gathering, top: bytes, name: bytes) -> None:
    folders = [(top, name)]
    while folders:
        folder, prefix = folders.pop()
        try:
            with os.scandir(folder) as listing:
                children = list(listing)
        except OSError as error:
            gathering.leave_out(folder, error)
            continue
        for child in children:
            if child.name.startswith(STAGING):
                continue
            below = prefix + b"/" + child.name if prefix else child.name
            try:
                status = child.stat(follow_symlinks=False)
                gathering.add(below, child.path, status)
            except OSError as error:
                gathering.leave_out(child.path, error)
                continue
            if stat.S_ISDIR(status.st_mode):
                folders.append((child.path, below))


def _kind(status: os.stat_result) -> str | None:
    if stat.S_ISREG(status.st_mode):
        return FILE
    if stat.S_ISDIR(status.st_mode):
        return FOLDER
    return LINK if stat.S_ISLNK(status.st_mode) else None


def _segments(path: bytes, status: os.stat_result) -> tuple[tuple[int, int], ...] | None:
    if status.st_blocks * 512 >= status.st_size:
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None  # What reads it later says why it cannot.
    try:
        found = tuple(_data_of(descriptor, status.st_size))
    except OSError:
        return None
    finally:
        os.close(descriptor)
    whole = found == ((0, status.st_size),)
    return None if whole or len(found) > MOST_SEGMENTS else found


def _data_of(descriptor: int, size: int) -> Iterable[tuple[int, int]]:
    at = 0
    while at < size:
        try:
            begins = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # no data from here on
                return
            raise
        if begins >= size:  # it grows
            return
        ends = min(os.lseek(descriptor, begins, os.SEEK_HOLE), size)
        yield begins, ends - begins
        at = ends


def _why_not(path: bytes, error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return f"there is nothing at {text_of(path)}"
    return f"cannot read {text_of(path)}: {error.strerror}"
