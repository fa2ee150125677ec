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

from clusterctl.lab.hosts import uidmap
from clusterctl.lab.hosts.daemon import syscalls


@dataclass(frozen=True)
class Mode:
    """`name` is root, subuid or single."""

    name: str
    ids: uidmap.IdMap


def choose_mode(euid: int) -> Mode:
    """The best that this machine offers to this user."""
    subuids, subgids = (_subids(Path("/etc", name)) for name in ("subuid", "subgid"))
    if euid == 0:
        return Mode("root", uidmap.map_for_root(subuids, subgids))
    gid, name = os.getegid(), _user_name(euid)
    mapped = uidmap.map_for_user(euid, name, subuids, subgids) if name else None
    if mapped and shutil.which("newuidmap") and shutil.which("newgidmap"):
        return Mode("subuid", mapped)
    return Mode("single", uidmap.single_map(euid, gid))


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


def _subids(file: Path) -> list[uidmap.SubIds]:
    return uidmap.parse_subids(file.read_text()) if file.exists() else []


def _user_name(uid: int) -> str | None:
    """newuidmap refuses a user whom it cannot find."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None
