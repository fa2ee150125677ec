"""Runs on a node: finds the staging folders that interrupted copies left next to their data, and
removes those that no copy uses.

Only local file systems are searched, in folders at most DEEPEST levels below /, or below
clusterctl's own folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from clusterctl.node.facts.disks import PSEUDO, is_remote, mounted
from clusterctl.node.facts.report import deadline
from clusterctl.node.paths import STAGING

DEEPEST = 5
OWN = ".clusterctl"  # the data of jobs and served models, below a home folder
# Folders that have many files and no user data.
SYSTEM = {f"/{name}" for name in ("boot", "dev", "etc", "proc", "run", "snap", "sys", "usr")}


@dataclass(frozen=True)
class CopyParts:
    """Partial files of an interrupted copy to `path`, last written `age_s` seconds ago.

    `in_use` means that a copy is using them. `failed` is the reason if they could not be examined
    or removed, else empty.
    """

    path: str
    size_bytes: int = 0
    age_s: float = 0.0
    in_use: bool = False
    failed: str = ""


def stagings(top: str = "/") -> Iterator[str]:
    """Yield the paths of staging folders below `top`."""
    # What is remote may hang, and so may an automount, which is a pseudo file system.
    skipped = {one.path for one in mounted() if is_remote(one.kind) or one.kind in PSEUDO} | SYSTEM
    todo = [(top, 0)]
    while todo:
        folder, depth = todo.pop()
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False) or entry.path in skipped:
                    continue
                if entry.name == STAGING:
                    yield entry.path
                elif depth < DEEPEST:
                    todo.append((entry.path, 0 if entry.name == OWN else depth + 1))


# Five levels of folders on a large file system take seconds.
@deadline(30.0)
def copy_parts() -> tuple[CopyParts, ...]:
    """Return the partial files of interrupted copies."""
    return remove_parts(False)


def remove_parts(request: bool) -> tuple[CopyParts, ...]:
    """Return the partial files of copies. If that is requested, remove those that no copy uses."""
    return tuple(describe(path, request) for path in sorted(stagings()))


def describe(staging: str, discard: bool) -> CopyParts:
    """Describe one staging folder. Remove it if `discard` and no copy uses it."""
    folder = Path(staging)
    described = CopyParts(str(folder.parent))
    try:
        found = [folder.lstat()]
        for path in folder.rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # a running copy may remove files
                found.append(path.lstat())
        age_s = max(0.0, time.time() - max(status.st_mtime for status in found))
        described = replace(
            described,
            size_bytes=sum(status.st_blocks * 512 for status in found),
            age_s=round(age_s, 1),
        )
        # A copy holds the same lock while it runs, so none can begin here meanwhile. Others may
        # have put a link there.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with open(os.open(folder / "lock", flags, 0o600), "a") as lock:  # noqa: PTH123
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                described = replace(described, in_use=True)
            else:
                if discard:
                    shutil.rmtree(folder)
    except OSError as error:
        described = replace(described, failed=str(error.strerror))
    return described
