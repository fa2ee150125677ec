"""As whom the lab runs: root, a user with subordinate ids, or a user with a single id."""

from __future__ import annotations

import os
import pwd
import shutil
from dataclasses import dataclass
from pathlib import Path

from clusterctl.lab import uidmap


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


def _subids(file: Path) -> list[uidmap.SubIds]:
    return uidmap.parse_subids(file.read_text()) if file.exists() else []


def _user_name(uid: int) -> str | None:
    """newuidmap refuses a user whom it cannot find."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None
