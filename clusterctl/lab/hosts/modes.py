"""As whom the lab runs: root, a user with subordinate ids, or a user with a single id.

Root's lab is root only until it has started: its server then goes on as `give_up_root` says.
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
    """`name` is root, subuid or single."""

    name: str
    ids: IdMap


def choose_mode(euid: int) -> Mode:
    """The best that this machine offers to this user."""
    subuids, subgids = (_subids(Path("/etc", name)) for name in ("subuid", "subgid"))
    if euid == 0:
        return Mode("root", map_for_root(subuids, subgids))
    gid, name = os.getegid(), _user_name(euid)
    mapped = map_for_user(euid, name, subuids, subgids) if name else None
    if mapped and shutil.which("newuidmap") and shutil.which("newgidmap"):
        return Mode("subuid", mapped)
    return Mode("single", single_map(euid, gid))


def give_up_root(id: int, folders: Iterable[Path], samples: Iterable[Path]) -> bool:
    """Go on as this id for good, before any thread is started: no capabilities, no files of root's.

    The folders (Python's) stay readable although they may lie below one that is root's alone, such
    as /root: this process then sees nothing else there. False, and still root, where the id cannot
    read the samples: whoever installed them kept them to themselves.
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
    """Have others reach the folders: where one on the way is closed, only the way is left of it."""
    ways = {folder: closed for folder in folders if (closed := _closed_above(folder))}
    if not ways:
        return
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("", "/", "", syscalls.MS_REC | syscalls.MS_SLAVE, "")
    # What is mounted over them hides them: they are found again by these.
    held = {folder: os.open(folder, os.O_PATH) for folder in ways}
    for closed in set(ways.values()):
        syscalls.mount("tmpfs", str(closed), "tmpfs", syscalls.MS_NOSUID, "mode=755,size=1m")
    for folder, file in sorted(held.items()):
        folder.mkdir(parents=True, exist_ok=True)
        syscalls.mount(f"/proc/self/fd/{file}", str(folder), "", syscalls.MS_BIND, "")
        os.close(file)


def _closed_above(folder: Path) -> Path | None:
    """The first folder on the way that only its owner may pass."""
    above = reversed(folder.parents)
    return next((one for one in above if not one.stat().st_mode & stat.S_IXOTH), None)


def _subids(file: Path) -> list[SubIds]:
    return parse_subids(file.read_text()) if file.exists() else []


def _user_name(uid: int) -> str | None:
    """newuidmap refuses a user whom it cannot find."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


COUNT = 65536
FIRST = 100_000


@dataclass(frozen=True)
class SubIds:
    """A line of /etc/subuid or /etc/subgid."""

    owner: str
    first: int
    count: int


@dataclass(frozen=True)
class IdMap:
    """Ids in the lab to ids outside: lines of (inside, outside, count)."""

    uids: tuple[tuple[int, int, int], ...]
    gids: tuple[tuple[int, int, int], ...]


def parse_subids(text: str) -> list[SubIds]:
    """The lines that can be read; others are some other program's business."""
    found = []
    for line in text.splitlines():
        owner, _, numbers = line.strip().partition(":")
        first, _, count = numbers.partition(":")
        if owner and first.isdigit() and count.isdigit():
            found.append(SubIds(owner, int(first), int(count)))
    return found


def map_for_root(subuids: list[SubIds], subgids: list[SubIds]) -> IdMap:
    """65536 ids that nobody has been given, the same for users and groups."""
    first = FIRST
    while taken := [ids for ids in (*subuids, *subgids) if _overlaps(ids, first)]:
        first = max(ids.first + ids.count for ids in taken)
    return IdMap(((0, first, COUNT),), ((0, first, COUNT),))


def map_for_user(uid: int, name: str, subuids: list[SubIds], subgids: list[SubIds]) -> IdMap | None:
    """The user's subordinate ids, root's among them; None without any.

    The user is nobody on a host: root there must not be who the user's own files belong to.
    """
    users, groups = (_ids_of(ids, name, uid) for ids in (subuids, subgids))
    if users is None or groups is None:
        return None
    return IdMap(
        ((0, users.first, min(users.count, COUNT)),),
        ((0, groups.first, min(groups.count, COUNT)),),
    )


def single_map(uid: int, gid: int) -> IdMap:
    return IdMap(((0, uid, 1),), ((0, gid, 1),))


def _overlaps(ids: SubIds, first: int) -> bool:
    return ids.first < first + COUNT and first < ids.first + ids.count


def _ids_of(ids: list[SubIds], name: str, uid: int) -> SubIds | None:
    """The user's first range; a host needs ids up to nobody's, 65534."""
    own = [one for one in ids if one.owner in (name, str(uid)) and one.count >= COUNT - 1]
    return own[0] if own else None
