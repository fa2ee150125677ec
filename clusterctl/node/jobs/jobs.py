"""Runs on the head node: start, list and end jobs, each a folder in ~/.clusterctl/jobs.

    start ID FORCE   files of the job as a JSON object on stdin; prints how it was started, or
                     {"busy": ID} when another job is in its way and FORCE is not "force": for a
                     training any other, for a copy one to the same destination
    list [ID]        one JSON line per job
    cancel ID        asks the job to end and waits for it

A job runs when the process in its `pid` file lives and carries the job's id in its environment:
process numbers are used again, after a reboot all the more. What is written while it runs (`pid`,
`exit_status`, the name `cancelled`) has its room from the start: jobs fill disks.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

JOBS = Path.home() / ".clusterctl" / "jobs"
JOB_IDS = "[0-9]" * 8 + "-" + "[0-9]" * 6 + "-" + "[0-9a-f]" * 4
ORDER_FILE = "job.json"  # written by nobody but `start`
RESERVED_BYTES = 32
CANCEL_TIMEOUT_S = 15.0
START_TIMEOUT_S = 10.0


def pid_of(folder: Path) -> int:
    """The process that runs the job; 0 when it has ended."""
    try:
        pid = int((folder / "pid").read_text())
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return 0
    return pid if b"CLUSTERCTL_JOB=" + os.fsencode(folder.name) in environ else 0


def exit_status_of(folder: Path) -> int | None:
    try:
        return int((folder / "exit_status").read_text())
    except (OSError, ValueError):
        return None


def mtime_of(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def text_in(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def destination_of(description: str) -> str:
    """Where a copy brings its data; empty for a training."""
    try:
        return str(json.loads(description).get("destination", ""))
    except ValueError:
        return ""


def describe(folder: Path) -> dict:
    # First whether it runs, then how it ended: the other way round a job that ends in between
    # would look lost.
    running = bool(pid_of(folder))
    try:
        plan = json.loads((folder / "job.json").read_text())
    except (OSError, ValueError):
        plan = {}
    log = folder / "log"
    exit_status = exit_status_of(folder)
    return {
        "id": folder.name,
        "plan": plan,
        "running": running,
        "exit_status": exit_status,
        "cancelled": (folder / "cancelled").exists(),
        "started_at": mtime_of(folder / ORDER_FILE),
        "ended_at": mtime_of(log if exit_status is None else folder / "exit_status"),
        "now": time.time(),
        "log_bytes": log.stat().st_size if log.exists() else 0,
        "watchdog": text_in(folder / "watchdog"),
    }


def folders() -> list:
    """In the order in which they were started here: an id has the clock of some laptop."""
    found = [path for path in JOBS.glob(JOB_IDS) if path.is_dir()]
    return sorted(found, key=lambda path: (mtime_of(path / ORDER_FILE) or 0, path.name))


def wait_until(reached: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not reached():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def start(job_id: str, force: bool, files: dict) -> dict:
    JOBS.mkdir(parents=True, exist_ok=True)
    # Also of what earlier versions made.
    JOBS.chmod(0o700)
    # clean-logs takes the same lock: no folder goes while its job is being started.
    with (JOBS / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = destination_of(files["job.json"])
        busy = [
            folder.name
            for folder in folders()
            if pid_of(folder) and destination_of(text_in(folder / "job.json")) == wanted
        ]
        if busy and not force:
            return {"busy": busy[-1]}
        folder = JOBS / job_id
        folder.mkdir(mode=0o700)
        try:
            write_files(folder, files)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            sys.exit(f"{folder}: {error.strerror}")
        how, pid = launch(folder)
        while not (folder / "pid").read_text().strip():
            # Not a matter of time: a job whose process lives may still begin.
            if not lives(pid) and not (folder / "pid").read_text().strip():
                with contextlib.suppress(OSError):
                    (folder / "environment").unlink()
                sys.exit(f"the job did not start: see {folder}")
            time.sleep(0.05)
    return {"started": job_id, "with": how}


def wait_for_start() -> None:
    """Until no job is being started: one that has no process yet looks as if it had lost it.

    Not for ever: clean-logs may hold the lock as long as a large folder takes.
    """
    with contextlib.suppress(OSError), (JOBS / ".lock").open() as lock:
        wait_until(lambda: got_shared(lock), START_TIMEOUT_S)


def got_shared(lock: TextIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def write_files(folder: Path, files: dict) -> None:
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8", errors="surrogateescape")
    (folder / "log").touch()
    for name in ("pid", "exit_status", "not_cancelled"):
        with (folder / name).open("wb") as file:
            file.write(b"\n" * RESERVED_BYTES)
            file.flush()
            # Some file systems say only now that there is no room.
            os.fsync(file.fileno())


def lives(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def launch(folder: Path) -> tuple:
    """Detached: in a tmux session of its own where there is tmux, else in a session of its own.

    Returns what it is in, and its process.
    """
    # Not exported to tmux itself: its server would hand the variable to all its later windows.
    job = ["env", "CLUSTERCTL_JOB=" + folder.name, "sh", str(folder / "run")]
    if shutil.which("tmux"):
        session = "clusterctl-" + folder.name
        argv = ["tmux", "new-session", "-d", "-P", "-F", "#{pane_pid}", "-s", session, *job]
        tried = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
        if tried.returncode == 0:
            return "tmux session " + session, int(tried.stdout)
    process = subprocess.Popen(
        ["nohup", *job],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    return "nohup", process.pid


def cancel(job_id: str) -> dict:
    folder = JOBS / job_id
    pid = pid_of(folder)
    if pid:
        mark_cancelled(folder)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    return {
        "was_running": bool(pid),
        "ended": wait_until(lambda: not pid_of(folder), CANCEL_TIMEOUT_S),
    }


def mark_cancelled(folder: Path) -> None:
    """Whether or not that can be written down, the job is ended."""
    try:
        (folder / "not_cancelled").replace(folder / "cancelled")
    except OSError:
        # Started by an earlier version.
        with contextlib.suppress(OSError):
            (folder / "cancelled").touch()


def main() -> None:
    try:
        for answer in answers(sys.argv[1], sys.argv[2:]):
            print(json.dumps(answer))
    except OSError as error:
        sys.exit(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def answers(action: str, arguments: list) -> list:
    """What is printed, each on a line. Raises OSError."""
    if action == "start":
        files = json.loads(sys.stdin.buffer.read())
        return [start(arguments[0], arguments[1] == "force", files)]
    wait_for_start()
    if action == "cancel":
        return [cancel(arguments[0])]
    wanted = [JOBS / name for name in arguments]
    return [describe(folder) for folder in wanted or folders() if folder.is_dir()]
