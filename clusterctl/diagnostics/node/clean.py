"""Runs on a node: remove the trainer's log folders, and with --jobs the ended jobs' folders.

With --dry-run only says what it would. Prints {"removed": [[path, bytes], ...], "failed": [...]},
or {"busy": ID} when a job runs here; with --force only that job's own folder is left alone then.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import sys
from pathlib import Path

HOME = Path.home()
JOBS = HOME / ".clusterctl" / "jobs"
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
    with contextlib.ExitStack() as stack:
        if JOBS.is_dir():
            # A start holds it until its job has a process: a job without one has ended.
            lock = stack.enter_context((JOBS / ".lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        print(json.dumps(clean(sys.argv[1:])))


def clean(options: list) -> dict:
    dry_run = "--dry-run" in options
    jobs = [job for job in sorted(JOBS.glob("*-*-*")) if job.is_dir()]
    running = [job.name for job in jobs if runs(job)]
    if running and not dry_run and "--force" not in options:
        return {"busy": running[-1]}
    folders = [folder for folder in LOGS if folder.is_dir() and not folder.is_symlink()]
    if "--jobs" in options:
        folders += [job for job in jobs if job.name not in running]
    removed, failed = [], []
    for folder in folders:
        size = size_of(folder)
        try:
            if not dry_run:
                shutil.rmtree(folder)
            removed.append([str(folder), size])
        except OSError as error:
            failed.append(f"{error.filename}: {error.strerror}")
    return {"removed": removed, "failed": failed}


main()
