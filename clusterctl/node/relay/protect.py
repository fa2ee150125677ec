"""Decides which folders a node needs, by their identity, not by their names: `copy --delete` does
not delete in them, and `train --output` takes none of them.

A path's text does not show where it leads: it may be a link, contain `..`, or be a bind mount.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Tuple

MOUNTS = "/proc/self/mountinfo"
# Folders of the system: nothing is deleted in them, nor in what is below them.
_SYSTEM = (
    *(b"/bin", b"/boot", b"/dev", b"/etc", b"/lib", b"/lib32", b"/lib64", b"/libx32"),
    *(b"/proc", b"/run", b"/sbin", b"/snap", b"/sys", b"/usr", b"/var"),
)
# Folders that are not for data themselves, while folders below them may be.
_SHARED = (b"/", b"/dev/shm", b"/home", b"/opt", b"/tmp", b"/var/tmp")  # noqa: S108
# Folders below system folders in which data may be.
_DATA = (b"/dev/shm", b"/var/tmp")  # noqa: S108
# Programs are installed here. A disk that is mounted below it is for data (/opt/dlami/nvme).
_PROGRAMS = b"/opt"
# Without these, no login works in a home folder's user, and clusterctl loses its jobs.
OF_HOME = (b".ssh", b".clusterctl")

Identity = Tuple[int, int]


class Protected(NamedTuple):
    """Folders in which nothing is deleted, by (st_dev, st_ino), each with the path to name.

    `exact`: these folders, but not those below them: they are needed, or contain what is needed.
    `whole`: these folders with all that is below them. `open`: folders below those of `whole` that
    are for data. `programs` is like `whole`, except for other file systems mounted below it. Each
    folder directly in `homes` is one of `exact`: a directory service may list no users.
    """

    exact: dict[Identity, bytes]
    whole: dict[Identity, bytes]
    open: frozenset[Identity]
    programs: Identity | None
    homes: Identity | None


def identity(path: bytes) -> Identity | None:
    """Return the (st_dev, st_ino) of what a path leads to, None if there is nothing."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def protected(home: bytes) -> Protected:
    """Return what is protected on this node, whose user has this home folder."""
    homes = {home, *_homes()}
    own = [os.path.join(one, name) for one in homes for name in OF_HOME]
    needed = [
        (path, os.path.realpath(path))
        for path in (*_SHARED, *_SYSTEM, *sorted(homes), *own)
        if identity(path) is not None
    ]
    # What contains a needed folder is needed, too. That the folder is needed is the better reason.
    rows = [*needed, *((path, above) for path, real in needed for above in _and_above(real))]
    exact: dict[Identity, bytes] = {}
    for path, folder in rows:
        if (one := identity(folder)) is not None:
            exact.setdefault(one, path)
    whole = {one: path for path in (*_SYSTEM, *own) if (one := identity(path)) is not None}
    data = frozenset(one for one in map(identity, _DATA) if one is not None)
    return Protected(exact, whole, data, identity(_PROGRAMS), identity(b"/home"))


def why_needed(folder: bytes, guarded: Protected) -> str:
    """Return why the node needs a folder; empty if it does not.

    The folder need not exist yet: then its nearest existing parent folder counts.
    """
    real = os.path.realpath(folder)
    name = os.fsdecode(folder) if folder == real else f"{os.fsdecode(folder)} ({os.fsdecode(real)})"
    chain = [identity(path) for path in _and_above(real)]
    if chain[0] is not None and chain[0] in guarded.exact:
        needed = guarded.exact[chain[0]]
        if identity(needed) != chain[0]:
            return f"{name} contains {os.fsdecode(needed)}"
        return name if needed in (folder, real) else f"{name} is {os.fsdecode(needed)}"
    if guarded.homes is not None and chain[1:2] == [guarded.homes]:
        return f"{name} is a home folder"
    for part in real.split(b"/"):
        if part in OF_HOME:
            return f"{name} lies in a folder {os.fsdecode(part)}"
    for above in chain:
        if above is None:
            continue
        if above in guarded.open:
            return ""
        if above in guarded.whole:
            return f"{name} lies in {os.fsdecode(guarded.whole[above])}"
        if above == guarded.programs and _same_disk(real, above):
            return f"{name} lies in {os.fsdecode(_PROGRAMS)}, with the programs"
    return ""


def mount_points(table: str) -> set[bytes]:
    """Return all mount points in `table`, the text of /proc/self/mountinfo."""
    rows = (line.split(" ") for line in table.splitlines())
    paths = (os.fsencode(row[4]) for row in rows if len(row) > 4)
    # The kernel writes a space as \040.
    return {re.sub(rb"\\([0-7]{3})", lambda m: bytes([int(m[1], 8) & 255]), one) for one in paths}


def read_mount_points() -> set[bytes]:
    """Return the mount points that this process sees; none if the kernel does not list them."""
    with contextlib.suppress(OSError), open(MOUNTS, errors="surrogateescape") as file:
        return mount_points(file.read())
    return set()


def _homes() -> Iterator[bytes]:
    """Yield the home folders of all users that the node knows."""
    with contextlib.suppress(OSError):
        for user in pwd.getpwall():
            if user.pw_dir.startswith("/"):
                yield os.fsencode(user.pw_dir)


def _and_above(path: bytes) -> Iterable[bytes]:
    """Yield an absolute path and all folders above it, up to /."""
    while True:
        yield path
        if path == b"/":
            return
        path = os.path.dirname(path)


def _same_disk(path: bytes, other: Identity) -> bool:
    while (one := identity(path)) is None:
        path = os.path.dirname(path)
    return bool(one[0] == other[0])
