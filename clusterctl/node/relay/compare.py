"""Compares a node's files with the data set: what is missing, what is extra. Changes nothing."""

from __future__ import annotations

import itertools
import os
import stat
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from clusterctl.node.relay.activity import ACTIVITY, COMPARE
from clusterctl.node.relay.entries import Entries
from clusterctl.node.relay.hashing import has_digest, side_by_side
from clusterctl.node.relay.manifest import FOLDER, LINK, MODES, Entry, sort_key, text_of
from clusterctl.node.relay.scan import is_own

SECOND_NS = 1_000_000_000


class Plan(NamedTuple):
    """The result of a comparison. Entries are given by their numbers.

    `missing`: entries that have to come. `retouch`: files with the right content whose mode and
    time have to be set, or whose mode hides them from their owner. `extra`: paths that the source
    does not have, each folder after its content. `stamps`: for each entry the ctime (ns) of the
    existing file, else 0. `unlisted`: folders that cannot be listed, so that extra paths in them
    are not known. `unread`: those of `missing` that have a file of the right size whose content
    could not be read, and so not be compared.
    """

    missing: array[int]
    retouch: array[int]
    extra: list[bytes]
    stamps: array[int]
    unlisted: list[bytes]
    unread: frozenset[int]


def destination(text: str, home: str) -> bytes:
    """Return DST as an absolute path: `~` and relative paths mean the home folder, as in rsync."""
    if text == "~" or text.startswith("~/"):
        text = home + text[1:]
    return os.path.join(os.fsencode(home), os.fsencode(text))


@dataclass(frozen=True)
class FoundDestination:
    """DST on a node: the `home` folder, the absolute `path`, and whether that is a folder. Every
    spelling of one place has the same `real` path, which begins with ~ below the home folder."""

    home: str
    path: str
    real: str
    is_folder: bool


def find_destination(request: str) -> FoundDestination:
    """Return where DST is on this node. Nothing needs to exist there."""
    home = os.path.expanduser("~")
    path = os.fsdecode(destination(request, home))
    real, above = os.path.realpath(path), os.path.realpath(home)
    if real == above or real.startswith(above + "/"):
        real = "~" + real[len(above) :]
    return FoundDestination(home, path, real, os.path.isdir(path))


def place(dst: bytes, single: bool, entries: Entries) -> tuple[bytes, Entries]:
    """Return the folder that the entries are relative to, and the entries.

    If the source is a single file, DST may give it a new name.
    """
    if not single or dst.endswith(b"/") or os.path.isdir(dst):
        # DST may be a link to a folder, on another disk for example.
        return os.path.realpath(dst), entries
    folder, name = os.path.split(dst)
    return folder, Entries([entries[0]._replace(path=name)])


def compare(
    root: bytes, entries: Entries, checksum: bool, delete: bool, among: Iterable[int] | None = None
) -> Plan:
    """Compare entries with the files below `root`. Raises OSError.

    A file is the same if its size and time are, or with `checksum` its size and content. `among`
    are the numbers of the entries to compare; None means all. Without `delete`, `extra` is empty.
    """
    missing, retouch, doubtful = array("I"), array("I"), array("I")
    stamps = array("q", bytes(8 * len(entries)))
    fresh = not os.path.lexists(root)
    folders = array("I")
    known = set(map(entries.path, entries.of_kind(FOLDER)))
    new_prefix = b"/"  # the prefix of all paths below the latest folder that has to be made
    for number in range(len(entries)) if among is None else among:
        entry = entries[number]
        if fresh or entry.path.startswith(new_prefix):
            status = None
        else:
            ACTIVITY.begin(COMPARE, path := _at(root, entry))
            status = _lstat(path)
        if entry.kind == FOLDER:
            if _is_folder(root, known, entry, status):
                folders.append(number)
            else:
                missing.append(number)
                new_prefix = new_prefix if entry.path.startswith(new_prefix) else entry.path + b"/"
        elif entry.kind == LINK:
            if not _same_link(root, entry, status):
                missing.append(number)
        elif status is None or not stat.S_ISREG(status.st_mode) or status.st_size != entry.size:
            missing.append(number)
        else:
            # Taken before the content is read, so that any later change is noticed.
            stamps[number] = status.st_ctime_ns
            if checksum:
                doubtful.append(number)
            elif not _same_time(status.st_mtime_ns, entry.mtime_ns):
                missing.append(number)
            elif status.st_mode & MODES != entry.mode or not entry.mode & stat.S_IRUSR:
                retouch.append(number)
    ACTIVITY.end()
    same = side_by_side(lambda n: has_digest(_at(root, entries[n]), entries[n].digest), doubtful)
    unread = set()
    for number, is_same in zip(doubtful, same):
        (retouch if is_same else missing).append(number)
        if is_same is None:
            unread.add(number)
    unlisted: list[bytes] = []
    extra = _extra(root, entries, folders, unlisted) if delete else []
    ACTIVITY.end()
    if len(doubtful):
        missing = array("I", sorted(missing))
    return Plan(missing, retouch, extra, stamps, unlisted, frozenset(unread))


def _at(root: bytes, entry: Entry) -> bytes:
    return root if entry.path == b"." else root + b"/" + entry.path


def _is_folder(root: bytes, known: set[bytes], entry: Entry, status: os.stat_result | None) -> bool:
    """Return whether a folder of the data set exists at its path.

    A link to a folder counts and is kept (rsync's --keep-dirlinks), since it may lead to another
    disk. A link to another folder of the data set does not: both would have the same files.
    """
    if status is not None and stat.S_ISLNK(status.st_mode):
        return os.path.isdir(_at(root, entry)) and not _leads_to_another(root, known, entry.path)
    return status is not None and stat.S_ISDIR(status.st_mode)


def _leads_to_another(root: bytes, known: set[bytes], name: bytes) -> bool:
    """Return whether the link `name` leads to the root or another folder of the data set.

    `known` are the paths of all folders of the data set.
    """
    if root == b"/":  # the node itself needs the links there
        return False
    target, parts = os.path.realpath(root + b"/" + name), name.split(b"/")[:-1]
    others = set()
    for above in (b"/".join(parts[:n]) for n in range(len(parts) + 1)):
        real = os.path.realpath(root + b"/" + above)
        if os.path.commonpath([target, real]) == real:
            others.add(os.path.normpath(os.path.join(above, os.path.relpath(target, real))))
    return b"." in others or not others.isdisjoint(known)


def _lstat(path: bytes) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None  # If it cannot be written either, the publisher reports that.


def _same_link(root: bytes, entry: Entry, status: os.stat_result | None) -> bool:
    if status is None or not stat.S_ISLNK(status.st_mode):
        return False
    return os.readlink(_at(root, entry)) == entry.link


def _same_time(one_ns: int, other_ns: int) -> bool:
    """Return whether two times are equal. Some file systems keep whole seconds only."""
    if one_ns == other_ns:
        return True
    whole = one_ns % SECOND_NS == 0 or other_ns % SECOND_NS == 0
    return whole and one_ns // SECOND_NS == other_ns // SECOND_NS


class _Listing:
    """A folder that both sides have: the names in it here, and which of them the source has."""

    def __init__(self, number: int, path: bytes, names: Sequence[bytes]) -> None:
        self.number, self.prefix = number, b"" if path == b"." else path + b"/"
        self._names, self._is_known = names, bytearray(len(names))

    def know(self, path: bytes) -> None:
        """Record that the source has this path, which is below the folder."""
        name = path[len(self.prefix) :].partition(b"/")[0]
        at = bisect_left(self._names, name)
        if at < len(self._names) and self._names[at] == name:
            self._is_known[at] = 1

    def others(self) -> list[bytes]:
        """Return the paths in the folder that the source does not have."""
        pairs = zip(self._names, self._is_known)
        return [self.prefix + name for name, known in pairs if not known and not is_own(name)]


def _extra(
    root: bytes, entries: Entries, folders: array[int], unlisted: list[bytes]
) -> list[bytes]:
    """Return what these folders, which both sides have, contain and the source does not.

    Of the names here only those in the folders above one entry are in memory at a time. Raises
    ValueError if the entries are not in the manifest's order: names would be extra that are not.
    """
    others: list[tuple[int, list[bytes]]] = []
    above: list[_Listing] = []
    numbers, before = iter(folders), b""
    folder = next(numbers, -1)

    def enter(number: int, path: bytes) -> None:
        names = _names(root + b"/" + (b"" if path == b"." else path + b"/"), unlisted)
        above.append(_Listing(number, path, names))

    def leave() -> None:
        listing = above.pop()
        others.append((listing.number, listing.others()))

    roots = [number for number in folders if entries.path(number) == b"."]
    if len(roots) > 1:
        raise ValueError("the root is there twice")
    for number in roots:
        enter(number, b".")
    for number in range(len(entries)):
        path, is_shared = entries.path(number), number == folder
        folder = next(numbers, -1) if is_shared else folder
        if path == b".":
            continue
        key = sort_key(path)
        if key <= before:
            raise ValueError("the entries are not sorted")
        before = key
        while above and not path.startswith(above[-1].prefix):
            leave()
        if above:
            above[-1].know(path)
        if is_shared:
            enter(number, path)
    while above:
        leave()
    found = (name for _, names in sorted(others) for name in names)
    return [path for name in found for path in _tree(root, name, unlisted)]


def _tree(root: bytes, name: bytes, unlisted: list[bytes]) -> list[bytes]:
    """Return a path and all that is below it, each folder after its content."""
    path = root + b"/" + name
    below: list[bytes] = []
    if os.path.isdir(path) and not os.path.islink(path):
        for child in _names(path, unlisted):
            below.extend(_tree(root, name + b"/" + child, unlisted))
    return [*below, name]


def _names(folder: bytes, unlisted: list[bytes]) -> list[bytes]:
    ACTIVITY.begin(COMPARE, folder)
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except PermissionError:
        unlisted.append(folder)
        return []


def shown(paths: Iterable[bytes], most: int = 20) -> tuple[str, ...]:
    """Return the first `most` paths as text, for a message."""
    return tuple(map(text_of, itertools.islice(paths, most)))
