"""Scans the source, with rsync's meaning of paths and slashes, and makes manifest entries."""

from __future__ import annotations

import errno
import glob
import heapq
import os
import stat
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from clusterctl.node import paths
from clusterctl.node.relay.activity import ACTIVITY, SCAN
from clusterctl.node.relay.entries import Entries
from clusterctl.node.relay.manifest import FILE, FOLDER, LINK, MODES, Entry, position_key, text_of

# The name of the folder for files that are not whole yet. It never belongs to a data set.
STAGING = paths.STAGING.encode()
# The data of a sparse file is listed in at most so many segments, which bounds the manifest and
# takes about 20 MB of memory on each machine. The smallest holes beyond that are copied as zeros.
MOST_SEGMENTS = 100_000


# The kind of what is neither a file, a folder nor a link, while a scan goes on.
_OTHER = "?"


class SourceError(Exception):
    """Raised if there is nothing to copy; the message says why."""


def is_own(path: bytes) -> bool:
    """Return whether a relative path is that of a staging folder, or is below one."""
    return STAGING in path.split(b"/")


class LeftOut(NamedTuple):
    """A path at the source that is not copied, and why. `errno` is 0 if no system call failed."""

    path: bytes
    why: str
    errno: int = 0


class Places:
    """The path at the source of each entry, in 4 bytes: those below one folder share its path."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._heads: dict[tuple[bytes, bool], int] = {}
        self._which = array("I")

    def append(self, path: bytes) -> None:
        """Add the path of the entry that was added last."""
        name = self._entries.path(len(self._which))
        ends = path.endswith(name)
        head = (path[: len(path) - len(name)] if ends else path, ends)
        self._which.append(self._heads.setdefault(head, len(self._heads)))

    def all(self) -> Iterator[bytes]:
        """Yield the paths in the order of the entries."""
        return map(self.getter(), range(len(self._which)))

    def getter(self) -> Callable[[int], bytes]:
        """Return the function that returns the path of an entry, given by number."""
        heads, which, name = list(self._heads), self._which, self._entries.path

        def path(number: int) -> bytes:
            head, ends = heads[which[number]]
            return head + name(number) if ends else head

        return path


class Found(NamedTuple):
    """The result of a scan: the entries, the path of each, and what was left out.

    `single`: the source is one file, to which DST may give another name.
    """

    entries: Entries
    places: Places
    left_out: list[LeftOut]
    single: bool

    def without(self, numbers: set[int]) -> Found:
        """Return what was found without the entries of these numbers."""
        path = self.places.getter()
        entries = Entries()
        places = Places(entries)
        for number, entry in enumerate(self.entries):
            if number not in numbers:
                entries.append(entry)
                places.append(path(number))
        return self._replace(entries=entries, places=places, single=self.single and not numbers)

    @property
    def warnings(self) -> list[str]:
        """One line for each path that was left out."""
        return [f"{text_of(one.path)}: {one.why}" for one in self.left_out]


class _Gathering:
    """What a scan has found so far. Several sources may have the same paths."""

    def __init__(self) -> None:
        self._entries = Entries()
        self._places = Places(self._entries)
        self._last: bytes | None = None
        self._is_sorted = True
        self.left_out: list[LeftOut] = []

    def leave_out(self, path: bytes, why: str | OSError) -> None:
        if isinstance(why, OSError):
            self.left_out.append(LeftOut(path, str(why.strerror), why.errno or 0))
        else:
            self.left_out.append(LeftOut(path, why))

    def add(self, name: bytes, path: bytes, status: os.stat_result) -> None:
        """Add an entry. Raises OSError."""
        kind, link = _kind(status), b""
        if kind == LINK:
            link = os.readlink(path)
        mode, mtime_ns = status.st_mode & MODES, status.st_mtime_ns
        size, segments = 0, None
        if kind == FILE:
            size, segments = status.st_size, _segments(path, status)
        self._entries.append(
            Entry(name, kind, mode, mtime_ns, size, link, segments, changed_ns=status.st_ctime_ns)
        )
        self._places.append(path)
        key = position_key(name)
        self._is_sorted = self._is_sorted and (self._last is None or self._last < key)
        self._last = key

    def found(self) -> Found:
        """Return the entries in the manifest's order, of each path that of the first source.

        If one source has a folder where another has a link or a file, what is in that folder is
        left out: it would be written through the link, outside of the destination.
        """
        dropped: set[int] = set()
        before, leaf = b"", Entry(b"", FOLDER, 0, 0)
        found = Found(self._entries, self._places, self.left_out, False)
        path = self._places.getter()
        if not self._is_sorted:
            found = self._sorted()
            path = found.places.getter()
        for number, entry in enumerate(found.entries):
            if entry.path == before:
                dropped.add(number)
            elif entry.kind == _OTHER:
                dropped.add(number)
                self.leave_out(path(number), "not a file, folder or symbolic link")
            else:
                before = entry.path
                if leaf.path and before.startswith(leaf.path + b"/"):
                    dropped.add(number)
                    kind = "link" if leaf.kind == LINK else "file"
                    why = f"another source has a {kind} at {text_of(leaf.path)}"
                    self.leave_out(path(number), why)
                elif entry.kind != FOLDER:
                    leaf = entry
        return found.without(dropped) if dropped else found

    def _sorted(self) -> Found:
        name, path = self._entries.path, self._places.getter()
        entries = Entries()
        places = Places(entries)
        for number in sorted(range(len(self._entries)), key=lambda one: position_key(name(one))):
            entries.append(self._entries[number])
            places.append(path(number))
        return Found(entries, places, self.left_out, False)


def scan(sources: Sequence[bytes], names: Sequence[bytes] | None, base: bytes) -> Found:
    """Scan the sources, which may be globs, and relative to `base`. Raises SourceError, OSError.

    A folder without a slash at its end is copied with its name, one with a slash without. `names`
    (of --files-from) are paths below the only source, and are copied with their parent folders.
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
        single = len(paths) == 1
    found = gathering.found()
    is_file = len(found.entries) == 1 and found.entries[0].kind == FILE
    return found._replace(single=single and is_file)


def _expand(pattern: bytes) -> list[bytes]:
    if os.path.lexists(pattern) or not glob.has_magic(pattern):
        return [pattern]
    found = sorted(glob.glob(pattern))
    matches = [one for one in found if not is_own(os.path.basename(one))]
    if not matches:
        raise SourceError(f"nothing matches {text_of(pattern)}")
    return matches


def endangered(sources: Sequence[bytes], base: bytes, dst: bytes) -> bytes:
    """Return the path of a source that --delete would remove on a machine where DST is too.

    Empty if there is none. A source that is copied onto itself is safe, with all that is below it.
    """
    folders, safe, paths, dst = [], [], [], os.path.realpath(dst)
    for path in (path for source in sources for path in _expand(os.path.join(base, source))):
        contents = _is_contents(path)
        folder, name = os.path.split(path)
        real = os.path.join(os.path.realpath(folder), name)
        target = dst if contents else os.path.join(dst, name)
        if contents or (os.path.isdir(path) and not os.path.islink(path)):
            real, target = os.path.realpath(path), os.path.realpath(target)
            folders.append(target)
        paths.append(real)
        if real == target:
            safe.append(real)
    for path in paths:
        above = [folder for folder in folders if os.path.commonpath([folder, path]) == folder]
        if above and not any(os.path.commonpath([one, path]) == one for one in safe):
            return path
    return b""


def _is_contents(path: bytes) -> bool:
    """Return whether a path stands for what is in the folder, not for the folder."""
    return path.endswith(b"/") or os.path.basename(path) in (b".", b"..")


def _take(gathering: _Gathering, path: bytes) -> None:
    contents = _is_contents(path)
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
        if is_own(name):  # its place is that of this copy's own staging folder
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
    """Add what is below a folder, in the manifest's order, so that nothing has to be sorted."""
    folders = [(top, name, _names_in(gathering, top))]
    while folders:
        folder, prefix, names = folders[-1]
        child = next(names, None)
        if child is None:
            folders.pop()
            continue
        if is_own(child):
            continue
        path = os.path.join(folder, child)
        below = prefix + b"/" + child if prefix else child
        ACTIVITY.begin(SCAN, path)
        try:
            status = os.lstat(path)
            gathering.add(below, path, status)
        except OSError as error:
            gathering.leave_out(path, error)
            continue
        if stat.S_ISDIR(status.st_mode):
            folders.append((path, below, _names_in(gathering, path)))
    ACTIVITY.end()


def _names_in(gathering: _Gathering, folder: bytes) -> Iterator[bytes]:
    """Return the names of what is in a folder, sorted."""
    ACTIVITY.begin(SCAN, folder)
    names = []
    try:
        with os.scandir(folder) as listing:
            for child in listing:
                names.append(child.name)
                ACTIVITY.go_on()
    except OSError as error:
        gathering.leave_out(folder, error)
        return iter(())
    return iter(sorted(names))


def _kind(status: os.stat_result) -> str:
    if stat.S_ISREG(status.st_mode):
        return FILE
    if stat.S_ISDIR(status.st_mode):
        return FOLDER
    return LINK if stat.S_ISLNK(status.st_mode) else _OTHER


def _segments(path: bytes, status: os.stat_result) -> tuple[tuple[int, int], ...] | None:
    if status.st_blocks * 512 >= status.st_size:
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None  # Reading it later fails, too, and reports why.
    try:
        found = few_segments(segments_of(descriptor, status.st_size), MOST_SEGMENTS)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None if found == ((0, status.st_size),) else found


def few_segments(segments: Iterable[tuple[int, int]], most: int) -> tuple[tuple[int, int], ...]:
    """Return segments (offset, length) as at most this many: the largest holes stay.

    `segments` are in order. Not all of them are in memory at once.
    """
    found: list[tuple[int, int]] = []
    for segment in segments:
        found.append(segment)
        if len(found) > 2 * most:
            found = _joined(found, most)
    return tuple(_joined(found, most) if len(found) > most else found)


def _joined(found: list[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    """Return `found` as `most` segments, joined over the smallest holes."""
    holes = [one[0] - sum(before) for before, one in zip(found, found[1:])]
    kept = sorted(heapq.nlargest(most - 1, range(len(holes)), key=holes.__getitem__))
    firsts, lasts = [0, *(n + 1 for n in kept)], [*kept, len(found) - 1]
    pairs = ((found[first], found[last]) for first, last in zip(firsts, lasts))
    return [(first[0], sum(last) - first[0]) for first, last in pairs]


def segments_of(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, length) of each piece of a file that is no hole, in bytes. Raises OSError."""
    at = 0
    while at < size:
        ACTIVITY.go_on()
        try:
            begins = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # no data from here on
                return
            raise
        if begins >= size:  # it has grown since it was found
            return
        ends = min(os.lseek(descriptor, begins, os.SEEK_HOLE), size)
        yield begins, ends - begins
        at = ends


def _why_not(path: bytes, error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return f"there is nothing at {text_of(path)}"
    return f"cannot read {text_of(path)}: {error.strerror}"
