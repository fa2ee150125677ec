"""Tasks that the tests of shard_jobs.py run in processes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from shard_jobs import Made


def write_text(task: str, path: Path, count) -> Made:  # type: ignore[no-untyped-def]
    path.write_text(task)
    count(1)
    return Made(1)


def leave_one_out(task: str, path: Path, count) -> Made:  # type: ignore[no-untyped-def]
    return Made(1, (("a cat.JPEG", "no \N{CAT FACE}"),), keep=task != "drop")


def fail(task: str, path: Path, count) -> Made:  # type: ignore[no-untyped-def]
    path.write_text("half")
    if task == "full":
        raise OSError(28, "No space left on device", str(path))
    return write_text(task, path, count)


def die(task: str, path: Path, count) -> Made:  # type: ignore[no-untyped-def]
    path.write_text("half")
    if task == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return write_text(task, path, count)


def hang(task: str, path: Path, count) -> Made:  # type: ignore[no-untyped-def]
    """Write the process id to the file named by the task and never end. "quick" returns at once."""
    if task == "quick":
        return write_text(task, path, count)
    path.write_text("half")
    Path(task).write_text(f"{os.getpid()}\n")
    while True:
        time.sleep(0.01)
        count(1)
