"""Runs on a node: remove the trainer's log folders, and with --jobs the ended jobs' folders.

With --dry-run only says what it would. Prints {"removed": [[path, bytes], ...], "failed": [...]}.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

HOME = Path.home()
LOGS = (
    HOME / "imagenet_resnet",
    HOME / "examples" / "horovod" / "tensorflow" / "imagenet_resnet",
)


def size_of(folder: Path) -> int:
    """Bytes on the disk; links are not followed, nor is another file system entered."""
    total = 0
    for root, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            try:
                total += os.lstat(os.path.join(root, name)).st_blocks * 512  # noqa: PTH118
            except OSError:
                continue
    return total


def runs(job: Path) -> bool:
    try:
        pid = int((job / "pid").read_text())
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return False
    return b"CLUSTERCTL_JOB=" + os.fsencode(job.name) in environ


def main() -> None:
    dry_run, jobs = "--dry-run" in sys.argv, "--jobs" in sys.argv
    folders = [folder for folder in LOGS if folder.is_dir() and not folder.is_symlink()]
    if jobs:
        kept = HOME / ".clusterctl" / "jobs"
        folders += [job for job in sorted(kept.glob("*-*-*")) if job.is_dir() and not runs(job)]
    removed, failed = [], []
    for folder in folders:
        size = size_of(folder)
        try:
            if not dry_run:
                shutil.rmtree(folder)
            removed.append([str(folder), size])
        except OSError as error:
            failed.append(f"{error.filename}: {error.strerror}")
    print(json.dumps({"removed": removed, "failed": failed}))


main()
