"""The user ids of the lab: root's, a user's subordinate ids, or a user's single id.

A lab that root starts is root only until it has started. Then its server gives up root.
"""

from __future__ import annotations

import os
import pwd
import shutil
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from clusterctl.lab.hosts.daemon import syscalls


def choose_mode(euid: int) -> tuple[str, IdMap]:
    """Return the best mode for this user (root, subuid or single), and its ids."""
    files = (Path("/etc", name) for name in ("subuid", "subgid"))
    subuids, subgids = (parse_subids(file.read_text()) if file.exists() else [] for file in files)
    if euid == 0:
        return "root", map_for_root(subuids, subgids)
    try:
        mapped = map_for_user(euid, pwd.getpwuid(euid).pw_name, subuids, subgids)
    except KeyError:  # newuidmap refuses a user without a name
        mapped = None
    if mapped and shutil.which("newuidmap") and shutil.which("newgidmap"):
        return "subuid", mapped
    return "single", IdMap(euid, os.getegid(), 1)  # root inside is the user


def give_up_root(id: int, folders: Iterable[Path], samples: Iterable[Path]) -> bool:
    """Change to this uid and gid for good, without groups and capabilities.

    Call this before any thread is started. `folders` (Python's) stay reachable even below a folder
    that is closed to others, such as /root; this process then sees nothing else of that folder.
    Return False, still as root, if the id cannot read the files in `samples`.
    """
    _uncover({folder.resolve() for folder in folders})
    os.seteuid(id)
    try:
        for sample in samples:
            sample.open("rb").close()
    except OSError:
        os.seteuid(0)
        return False
    os.seteuid(0)
    os.setgroups([])
    os.setresgid(id, id, id)
    os.setresuid(id, id, id)
    return True


def _uncover(folders: set[Path]) -> None:
    """Make the folders reachable to others, in a mount namespace of this process.

    A closed folder above one of them is covered with an empty file system, in which only the
    folders themselves are mounted.
    """
    ways = {}  # folder -> the topmost folder above it that others may not pass
    for folder in folders:
        closed = [one for one in folder.parents if not one.stat().st_mode & stat.S_IXOTH]
        if closed:
            ways[folder] = closed[-1]
    if not ways:
        return
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("", "/", "", syscalls.MS_REC | syscalls.MS_SLAVE, "")
    # The empty file systems hide the folders. Through these descriptors they can still be mounted.
    held = {folder: os.open(folder, os.O_PATH) for folder in ways}
    for top in set(ways.values()):
        syscalls.mount("tmpfs", str(top), "tmpfs", syscalls.MS_NOSUID, "mode=755,size=1m")
    for folder, file in sorted(held.items()):
        folder.mkdir(parents=True, exist_ok=True)
        syscalls.mount(f"/proc/self/fd/{file}", str(folder), "", syscalls.MS_BIND, "")
        os.close(file)


# The number of ids of a host.
COUNT = 65536
# The first id outside that root's lab tries to use.
FIRST = 100_000


@dataclass(frozen=True)
class SubIds:
    """A line of /etc/subuid or /etc/subgid."""

    owner: str
    first: int
    count: int


@dataclass(frozen=True)
class IdMap:
    """The map of the first `count` uids and gids in the lab to those from these on outside."""

    uid: int
    gid: int
    count: int


def parse_subids(text: str) -> list[SubIds]:
    """Return the valid lines of /etc/subuid or /etc/subgid. Others are skipped."""
    found = []
    for line in text.splitlines():
        owner, _, numbers = line.strip().partition(":")
        first, _, count = numbers.partition(":")
        if owner and first.isdigit() and count.isdigit():
            found.append(SubIds(owner, int(first), int(count)))
    return found


def map_for_root(subuids: list[SubIds], subgids: list[SubIds]) -> IdMap:
    """Return a map to 65536 ids that no user has as subordinate ids, the same for uids and gids."""
    first = FIRST
    while ends := [
        ids.first + ids.count
        for ids in (*subuids, *subgids)
        if ids.first < first + COUNT and first < ids.first + ids.count
    ]:
        first = max(ends)
    return IdMap(first, first, COUNT)


def map_for_user(uid: int, name: str, subuids: list[SubIds], subgids: list[SubIds]) -> IdMap | None:
    """Return a map to the user's subordinate ids; None without enough of them.

    The user's own id is not in it, so that root on a host does not own the user's files.
    """
    # A host needs the ids up to 65534.
    users, groups = (
        [one for one in ids if one.owner in (name, str(uid)) and one.count >= COUNT - 1]
        for ids in (subuids, subgids)
    )
    if not users or not groups:
        return None
    count = min(users[0].count, groups[0].count, COUNT)
    return IdMap(users[0].first, groups[0].first, count)
