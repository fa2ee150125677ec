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


@dataclass(frozen=True)
class Mode:
    """How the lab maps ids. `name` is root, subuid or single."""

    name: str
    ids: IdMap


def choose_mode(euid: int) -> Mode:
    """Return the best mode that this machine offers to this user."""
    subuids, subgids = (_subids(Path("/etc", name)) for name in ("subuid", "subgid"))
    if euid == 0:
        return Mode("root", map_for_root(subuids, subgids))
    gid, name = os.getegid(), _user_name(euid)
    mapped = map_for_user(euid, name, subuids, subgids) if name else None
    if mapped and shutil.which("newuidmap") and shutil.which("newgidmap"):
        return Mode("subuid", mapped)
    return Mode("single", single_map(euid, gid))


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
    ways = {folder: closed for folder in folders if (closed := _closed_above(folder))}
    if not ways:
        return
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("", "/", "", syscalls.MS_REC | syscalls.MS_SLAVE, "")
    # The empty file systems hide the folders. Through these descriptors they can still be mounted.
    held = {folder: os.open(folder, os.O_PATH) for folder in ways}
    for closed in set(ways.values()):
        syscalls.mount("tmpfs", str(closed), "tmpfs", syscalls.MS_NOSUID, "mode=755,size=1m")
    for folder, file in sorted(held.items()):
        folder.mkdir(parents=True, exist_ok=True)
        syscalls.mount(f"/proc/self/fd/{file}", str(folder), "", syscalls.MS_BIND, "")
        os.close(file)


def _closed_above(folder: Path) -> Path | None:
    """Return the topmost folder above it that others may not pass; None if there is none."""
    above = reversed(folder.parents)
    return next((one for one in above if not one.stat().st_mode & stat.S_IXOTH), None)


def _subids(file: Path) -> list[SubIds]:
    return parse_subids(file.read_text()) if file.exists() else []


def _user_name(uid: int) -> str | None:
    """Return a user's name; None if it has none, in which case newuidmap refuses the user."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


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
    """The map from ids in the lab to ids outside: lines of (inside, outside, count)."""

    uids: tuple[tuple[int, int, int], ...]
    gids: tuple[tuple[int, int, int], ...]


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
    while taken := [ids for ids in (*subuids, *subgids) if _overlaps(ids, first)]:
        first = max(ids.first + ids.count for ids in taken)
    return IdMap(((0, first, COUNT),), ((0, first, COUNT),))


def map_for_user(uid: int, name: str, subuids: list[SubIds], subgids: list[SubIds]) -> IdMap | None:
    """Return a map to the user's subordinate ids; None without enough of them.

    The user's own id is not in it, so that root on a host does not own the user's files.
    """
    users, groups = (_ids_of(ids, name, uid) for ids in (subuids, subgids))
    if users is None or groups is None:
        return None
    return IdMap(
        ((0, users.first, min(users.count, COUNT)),),
        ((0, groups.first, min(groups.count, COUNT)),),
    )


def single_map(uid: int, gid: int) -> IdMap:
    """Return a map in which root inside is the user."""
    return IdMap(((0, uid, 1),), ((0, gid, 1),))


def _overlaps(ids: SubIds, first: int) -> bool:
    return ids.first < first + COUNT and first < ids.first + ids.count


def _ids_of(ids: list[SubIds], name: str, uid: int) -> SubIds | None:
    """Return the user's first range that is large enough. A host needs the ids up to 65534."""
    own = [one for one in ids if one.owner in (name, str(uid)) and one.count >= COUNT - 1]
    return own[0] if own else None
