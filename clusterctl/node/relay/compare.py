"""What a node lacks of the data set, and what it has too much. Nothing is changed here."""

from __future__ import annotations

import itertools
import os
import stat
from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from clusterctl.node.relay.hashing import has_digest, side_by_side
from clusterctl.node.relay.manifest import FOLDER, LINK, MODES, Entry, text_of
from clusterctl.node.relay.scan import STAGING

SECOND_NS = 1_000_000_000


class Plan(NamedTuple):
    """`missing`: the entries (their numbers) that have to come. `retouch`: files whose content is
    there, but not their mode or time. `extra`: paths that the source does not have, folders after
    what is in them. `stamps`: for each entry the ctime of the file that is here, else 0.
    `unlisted`: folders of which nobody can say what is too much in them."""

    missing: list[int]
    retouch: list[int]
    extra: list[bytes]
    stamps: array[int]
    unlisted: list[bytes]


def destination(text: str, home: str) -> bytes:
    """DST as a path: `~` and relative paths mean the home folder, as for rsync."""
    if text == "~" or text.startswith("~/"):
        text = home + text[1:]
    return os.path.join(os.fsencode(home), os.fsencode(text))


def place(dst: bytes, single: bool, entries: list[Entry]) -> tuple[bytes, list[Entry]]:
    """The folder that the entries are relative to, and they. One file may be given a new name."""
    if not single or dst.endswith(b"/") or os.path.isdir(dst):
        # DST may be a link to a folder, on another disk for example.
        return os.path.realpath(dst), entries
    folder, name = os.path.split(dst)
    return folder, [entries[0]._replace(path=name)]


def compare(
    root: bytes,
    entries: Sequence[Entry],
    checksum: bool,
    delete: bool,
    among: Iterable[int] | None = None,
) -> Plan:
    """Sizes and times decide, or with `checksum` the content. Raises OSError.

    `among` are the numbers of the entries to look at; None: all.
    """
    missing, retouch, doubtful = [], [], []
    stamps = array("q", bytes(8 * len(entries)))
    fresh = not os.path.lexists(root)
    folders: list[bytes] = []
    anew = b"/"  # what the paths below the latest folder that has to be made begin with
    for number in range(len(entries)) if among is None else among:
        entry = entries[number]
        status = None if fresh or entry.path.startswith(anew) else _look(_at(root, entry))
        if entry.kind == FOLDER:
            if _is_folder(root, entries, entry, status):
                folders.append(entry.path)
            else:
                missing.append(number)
                anew = anew if entry.path.startswith(anew) else entry.path + b"/"
        elif entry.kind == LINK:
            if not _same_link(root, entry, status):
                missing.append(number)
        elif status is None or not stat.S_ISREG(status.st_mode) or status.st_size != entry.size:
            missing.append(number)
        else:
            # Before the content is read: what changes from now on is noticed.
            stamps[number] = status.st_ctime_ns
            if checksum:
                doubtful.append(number)
            elif not _same_time(status.st_mtime_ns, entry.mtime_ns):
                missing.append(number)
            elif status.st_mode & MODES != entry.mode:
                retouch.append(number)
    same = side_by_side(lambda n: has_digest(_at(root, entries[n]), entries[n].digest), doubtful)
    for number, is_same in zip(doubtful, same):
        (retouch if is_same else missing).append(number)
    unlisted: list[bytes] = []
    extra = _extra(root, entries, folders, unlisted) if delete else []
    return Plan(sorted(missing), retouch, extra, stamps, unlisted)


def _at(root: bytes, entry: Entry) -> bytes:
    return root if entry.path == b"." else root + b"/" + entry.path


def _is_folder(
    root: bytes, entries: Sequence[Entry], entry: Entry, status: os.stat_result | None
) -> bool:
    """Links to folders count: they lead to other disks, and stay (rsync's --keep-dirlinks). One
    that leads to another folder of the copy does not: files of both would be the same ones.
    """
    if status is not None and stat.S_ISLNK(status.st_mode):
        return os.path.isdir(_at(root, entry)) and not _leads_to_another(root, entries, entry.path)
    return status is not None and stat.S_ISDIR(status.st_mode)


def _leads_to_another(root: bytes, entries: Sequence[Entry], name: bytes) -> bool:
    if root == b"/":  # whose links the node itself needs
        return False
    target, parts = os.path.realpath(root + b"/" + name), name.split(b"/")[:-1]
    others = set()
    for above in (b"/".join(parts[:n]) for n in range(len(parts) + 1)):
        real = os.path.realpath(root + b"/" + above)
        if os.path.commonpath([target, real]) == real:
            others.add(os.path.normpath(os.path.join(above, os.path.relpath(target, real))))
    known = (entry.path for entry in entries if entry.kind == FOLDER)
    return b"." in others or (bool(others) and any(path in others for path in known))


def _look(path: bytes) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None  # Where it cannot be made either, its publisher says so.


def _same_link(root: bytes, entry: Entry, status: os.stat_result | None) -> bool:
    if status is None or not stat.S_ISLNK(status.st_mode):
        return False
    return os.readlink(_at(root, entry)) == entry.link


def _same_time(one_ns: int, other_ns: int) -> bool:
    """Some file systems keep whole seconds only."""
    if one_ns == other_ns:
        return True
    whole = one_ns % SECOND_NS == 0 or other_ns % SECOND_NS == 0
    return whole and one_ns // SECOND_NS == other_ns // SECOND_NS


def _extra(
    root: bytes, entries: Sequence[Entry], folders: Sequence[bytes], unlisted: list[bytes]
) -> list[bytes]:
    """What is in these folders, which are in both places, and is not in the source."""
    known = {entry.path for entry in entries}
    found: list[bytes] = []
    for folder in folders:
        prefix = b"" if folder == b"." else folder + b"/"
        for name in _names(root + b"/" + prefix, unlisted):
            if prefix + name not in known and name != STAGING:
                found.extend(_tree(root, prefix + name, unlisted))
    return found


def _tree(root: bytes, name: bytes, unlisted: list[bytes]) -> list[bytes]:
    path = root + b"/" + name
    below: list[bytes] = []
    if os.path.isdir(path) and not os.path.islink(path):
        for child in _names(path, unlisted):
            below.extend(_tree(root, name + b"/" + child, unlisted))
    return [*below, name]


def _names(folder: bytes, unlisted: list[bytes]) -> list[bytes]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except PermissionError:
        unlisted.append(folder)
        return []


def shown(paths: Iterable[bytes], most: int = 20) -> tuple[str, ...]:
    """The first names, for a message."""
    return tuple(map(text_of, itertools.islice(paths, most)))
