"""Finds the other disks in a destination: a folder of the copy may be a link, or a mount point."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from typing import NamedTuple

from clusterctl.node.relay.entries import Entries
from clusterctl.node.relay.manifest import FOLDER


class _Place(NamedTuple):
    """A folder: its real path, and where a file can be renamed to from it.

    A rename does not even lead from one mount of a file system to another one.
    """

    real: bytes
    mount: bytes
    device: int

    @property
    def disk(self) -> tuple[bytes, int]:
        return self.mount, self.device


def other_disks(
    root: bytes, entries: Entries, missing: Collection[int], mounts: Collection[bytes]
) -> dict[bytes, bytes]:
    """Return the real path of each folder of the copy at which another disk begins, by its path.

    If it is ROOT's disk that begins there again, the value is ROOT. `missing` are the numbers of
    entries that are not there yet, `mounts` the mount points of this machine.
    """
    if not os.path.isdir(root):
        return {}
    main = _place(os.path.realpath(root), mounts)
    # Only the folders where a link or another disk is: millions of others cost no memory.
    places = {b"": main}
    found: dict[bytes, bytes] = {}
    for number in entries.of_kind(FOLDER):
        path = entries.path(number)
        if path == b"." or number in missing:
            continue
        above = os.path.dirname(path)
        while above not in places:
            above = os.path.dirname(above)
        parent = places[above]
        rest = path[len(above) :].lstrip(b"/")
        here = _below(parent, os.path.join(parent.real, rest), mounts)
        if here is not parent:
            places[path] = here
            if here.disk != parent.disk:
                found[path] = root if here.disk == main.disk else here.real
    return found


def _below(parent: _Place, path: bytes, mounts: Collection[bytes]) -> _Place:
    """Return the place of a folder of the copy, `parent` if no link and no other disk is there."""
    try:
        status = os.lstat(path)
        link = stat.S_ISLNK(status.st_mode)
        if not link and status.st_dev == parent.device and path not in mounts:
            return parent
        return _place(os.path.realpath(path), mounts)
    except OSError:
        return parent


def _place(real: bytes, mounts: Collection[bytes]) -> _Place:
    mount = real
    while mount not in mounts and mount != b"/":
        mount = os.path.dirname(mount)
    return _Place(real, mount, os.stat(real).st_dev)
