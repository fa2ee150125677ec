"""Where to look: a path as the user gave it, or what a copy has made of its sources."""

from __future__ import annotations

import glob
import os
import stat
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.node.relay.manifest import bytes_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

STAGING = b".clusterctl-copy"
# Of a folder with more, all of the destination is looked at in place of so many names.
MOST_NAMES = 10_000
# The only thing that was asked for: the path itself.
ITSELF = b"."


class Nothing(Exception):
    """There is nothing at the path."""


class Place(NamedTuple):
    """A file or folder, and the name by which it is compared with other nodes'."""

    name: bytes
    path: bytes


def path_of(text: str, base: str = "") -> bytes:
    """`~` is the home folder, and so is what relative paths are below, where `base` is empty."""
    home = os.path.expanduser(b"~")
    return os.path.join(home, bytes_of(base), os.path.expanduser(bytes_of(text)))


def place_itself(path: bytes) -> list[Place]:
    """A link is followed. Raises Nothing, OSError."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        raise Nothing from None
    return [Place(ITSELF, os.path.realpath(path))]


def source_places(paths: Sequence[bytes]) -> list[Place]:
    """What `copy` would give to the nodes: with a slash at its end, a folder stands for what is
    in it. Raises Nothing, OSError.
    """
    expanded = [path for pattern in paths for path in _expand(pattern)]
    if len(expanded) == 1 and stat.S_ISREG(os.lstat(expanded[0]).st_mode):
        return [Place(ITSELF, expanded[0])]
    places: dict[bytes, Place] = {}
    for path in expanded:
        for place in _brought_by(path):
            places.setdefault(place.name, place)
    if len(expanded) == 1 and len(places) > MOST_NAMES:
        return [Place(ITSELF, expanded[0])]
    return list(places.values())


def named_places(folder: bytes, names: Sequence[bytes]) -> list[Place]:
    """What --files-from names, below the only source."""
    normal = [os.path.normpath(name.strip(b"/")) for name in names if name.strip(b"/")]
    return [Place(name, os.path.join(folder, name)) for name in dict.fromkeys(normal)]


def copied_places(destination: bytes, names: Sequence[bytes], file_name: bytes) -> list[Place]:
    """Where DST has what `source_places` found elsewhere; `file_name` is set for a single file."""
    if list(names) == [ITSELF]:
        # A folder there is one that the file is in; of a folder's content it is the folder.
        inside = os.path.join(destination, file_name)
        return [Place(ITSELF, inside if os.path.isdir(destination) else destination)]
    return named_places(destination, names)


def _expand(pattern: bytes) -> Iterator[bytes]:
    if os.path.lexists(pattern):
        yield pattern
        return
    matches = sorted(glob.glob(pattern))
    if not matches:
        raise Nothing
    yield from matches


def _brought_by(path: bytes) -> Iterator[Place]:
    contents = path.endswith(b"/") or os.path.basename(path) in (b".", b"..")
    if not contents:
        yield Place(os.path.basename(path), path)
        return
    for name in sorted(os.listdir(path)):
        if name != STAGING:
            yield Place(name, os.path.join(path, name))
