"""Names at URLs as a tree of files: what a file system cannot hold is left out, and said. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from clusterctl.node.relay.manifest import FILE, FOLDER, UNKNOWN_MODE, Entry, in_order

LONGEST_NAME = 255
LONGEST_PATH = 4000
# Where transfers keep what is not whole yet.
OWN_FOLDERS = (b".clusterctl-copy", b".clusterctl-sync")
FILE_MODE, FOLDER_MODE = 0o644, 0o755
# Of one kind; the rest is counted.
WARNINGS_SHOWN = 10


class Found(NamedTuple):
    """Something at a URL. `name` is its path below the destination; with a slash at its end it is
    a folder. `place` is where in source number `source` it is, `version` what says that it is
    still the same."""

    name: bytes
    source: int
    place: bytes
    size: int
    mtime_ns: int
    version: str = ""
    archived: bool = False


class Origin(NamedTuple):
    """Where an entry's content is."""

    source: int
    place: bytes
    version: str


def origin_of(entry: Entry) -> Origin:
    """Raises ValueError for an entry that has none."""
    source, place, version = json.loads(entry.origin.decode())
    return Origin(int(source), place.encode("utf-8", "surrogateescape"), str(version))


def tree_of(found: Sequence[Found]) -> tuple[list[Entry], list[str]]:
    """Entries in the order of their paths, folders before what is in them; and warnings.

    Of two files of one name the later source's is taken, as by one copy after the other.
    """
    left_out: dict[str, list[bytes]] = {}
    files: dict[bytes, Found] = {}
    folders: dict[bytes, int] = {}
    for one in found:
        why = why_not(one)
        path = one.name.rstrip(b"/")
        if why:
            left_out.setdefault(why, []).append(one.name)
        elif one.name.endswith(b"/"):
            folders[path] = max(one.mtime_ns, folders.get(path, 0))
        else:
            if path in files:
                left_out.setdefault("a later source has it too", []).append(path)
            files[path] = one
    for path, one in files.items():
        for parent in _parents(path):
            folders[parent] = max(one.mtime_ns, folders.get(parent, 0))
    for path in [path for path in files if path in folders]:
        left_out.setdefault("it is a file and a folder of others", []).append(path)
        del files[path]
    entries = [Entry(path, FOLDER, FOLDER_MODE, at) for path, at in folders.items()]
    entries += [_entry(path, one) for path, one in files.items()]
    return sorted(entries, key=lambda entry: in_order(entry.path)), _warnings(left_out)


def how_many_left_out(found: Sequence[Found], entries: Sequence[Entry]) -> int:
    """Of what was found, and is no folder, what is no file of the tree."""
    wanted = sum(not one.name.endswith(b"/") or bool(why_not(one)) for one in found)
    return wanted - sum(entry.kind == FILE for entry in entries)


def top_of(entries: Sequence[Entry]) -> Entry:
    """The folder that the entries are in, as old as the newest of them."""
    return Entry(b".", FOLDER, UNKNOWN_MODE, max(entry.mtime_ns for entry in entries))


def why_not(one: Found) -> str:
    """Why there can be no such file; empty if there can."""
    name = one.name[:-1] if one.name.endswith(b"/") else one.name
    parts = name.split(b"/")
    if one.name.endswith(b"/") and one.size:
        return "it has content, and the name of a folder"
    if any(part in (b"", b".", b"..") for part in parts) or b"\0" in name:
        return "it is no name that a file can have"
    if parts[0] in OWN_FOLDERS:
        return "the name is that of a folder of clusterctl's own"
    if any(len(part) > LONGEST_NAME for part in parts) or len(name) > LONGEST_PATH:
        return "its name is too long for a file"
    return "it is archived: restore it first" if one.archived else ""


def _parents(path: bytes) -> list[bytes]:
    parts = path.split(b"/")
    return [b"/".join(parts[:n]) for n in range(1, len(parts))]


def _entry(path: bytes, one: Found) -> Entry:
    place = one.place.decode("utf-8", "surrogateescape")
    origin = json.dumps([one.source, place, one.version], separators=(",", ":")).encode()
    return Entry(path, FILE, FILE_MODE, one.mtime_ns, one.size, origin=origin)


def _warnings(left_out: dict[str, list[bytes]]) -> list[str]:
    lines = []
    for why, names in left_out.items():
        lines += [f"left out {_shown(name)}: {why}" for name in names[:WARNINGS_SHOWN]]
        if len(names) > WARNINGS_SHOWN:
            lines.append(f"left out {len(names) - WARNINGS_SHOWN} more: {why}")
    return lines


def _shown(name: bytes) -> str:
    text = name.decode("utf-8", "backslashreplace")
    shown = text if text.isprintable() else repr(text)
    return shown if len(shown) <= 100 else f"{shown[:97]}..."
