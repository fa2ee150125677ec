"""Runs on a node: what interrupted copies have left in folders of their own beside the data.

    list      one JSON line each: {"path": DST, "bytes": N, "age_s": SECONDS, "in_use": BOOLEAN},
              with "failed": TEXT for what could not be looked at
    discard   the same, and those that no copy uses are removed

Looks at local file systems, in folders down to DEEPEST below /.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

# As relay/scan.py names it.
STAGING = ".clusterctl-copy"
DEEPEST = 5
# Nobody's data is there, and much else.
SYSTEM = {f"/{name}" for name in ("boot", "dev", "etc", "proc", "run", "snap", "sys", "usr")}
REMOTE = ("nfs", "lustre", "fuse", "cifs", "ceph", "efs", "9p", "autofs")


def stagings() -> Iterator[str]:
    """Such folders."""
    skipped = SYSTEM | remote_mounts()
    todo = [("/", 0)]
    while todo:
        folder, depth = todo.pop()
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False) or entry.path in skipped:
                    continue
                if entry.name == STAGING:
                    yield entry.path
                elif depth < DEEPEST:
                    todo.append((entry.path, depth + 1))


def remote_mounts() -> set:
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return {mount[1] for mount in mounts if mount[2].startswith(REMOTE)}


def describe(staging: str, discard: bool) -> dict:
    folder = Path(staging)
    described = {"path": str(folder.parent), "bytes": 0, "age_s": 0.0, "in_use": False}
    try:
        found = [folder.lstat()]
        for path in folder.rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # it has just come, or gone
                found.append(path.lstat())
        described["bytes"] = sum(status.st_blocks * 512 for status in found)
        described["age_s"] = max(0.0, time.time() - max(status.st_mtime for status in found))
        # As a copy takes it: none begins while this one is held.
        with (folder / "lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                described["in_use"] = True
            else:
                if discard:
                    shutil.rmtree(folder)
    except OSError as error:
        described["failed"] = str(error.strerror)
    return described


def main() -> None:
    for place in sorted(stagings()):
        print(json.dumps(describe(place, discard=sys.argv[1] == "discard")))
