"""Runs on the head node: start, list and end jobs, each a folder in ~/.clusterctl/jobs.

    start ID FORCE   files of the job as a JSON object on stdin; prints how it was started, or
                     {"busy": ID} when another job runs and FORCE is not "force"
    list [ID]        one JSON line per job
    cancel ID        asks the job to end and waits for it

A job runs when the process in its `pid` file lives and carries the job's id in its environment:
process numbers are used again, after a reboot all the more.
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

JOBS = Path.home() / ".clusterctl" / "jobs"
START_TIMEOUT_S = 20.0
CANCEL_TIMEOUT_S = 15.0


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


def describe(folder: Path) -> dict:
    # First whether it runs, then how it ended: the other way round a job that ends in between
    # would look lost.
    running = bool(pid_of(folder))
    try:
        plan = json.loads((folder / "job.json").read_text())
    except (OSError, ValueError):
        plan = {}
    log = folder / "log"
    return {
        "id": folder.name,
        "plan": plan,
        "running": running,
        "exit_status": exit_status_of(folder),
        "cancelled": (folder / "cancelled").exists(),
        "started_at": mtime_of(folder / "command"),
        "ended_at": mtime_of(folder / "exit_status") or mtime_of(log),
        "now": time.time(),
        "log_bytes": log.stat().st_size if log.exists() else 0,
    }


def folders() -> list:
    return sorted(path for path in JOBS.glob("*-*-*") if path.is_dir())


def wait_until(reached: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not reached():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def start(job_id: str, force: bool, files: dict) -> dict:
    JOBS.mkdir(parents=True, exist_ok=True)
    with (JOBS / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        busy = [folder.name for folder in folders() if pid_of(folder)]
        if busy and not force:
            return {"busy": busy[-1]}
        folder = JOBS / job_id
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8", errors="surrogateescape")
        (folder / "log").touch()
        how = launch(folder)
        if not wait_until((folder / "pid").exists, START_TIMEOUT_S):
            sys.exit(f"the job did not start: see {folder}")
    return {"started": job_id, "with": how}


def launch(folder: Path) -> str:
    """Detached: in a tmux session of its own where there is tmux, else in a session of its own."""
    # Not exported to tmux itself: its server would hand the variable to all its later windows.
    job = ["env", "CLUSTERCTL_JOB=" + folder.name, "sh", str(folder / "run")]
    if shutil.which("tmux"):
        session = "clusterctl-" + folder.name
        argv = ["tmux", "new-session", "-d", "-s", session, *job]
        tried = subprocess.run(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False
        )
        if tried.returncode == 0:
            return "tmux session " + session
    subprocess.Popen(
        ["nohup", *job],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    return "nohup"


def cancel(job_id: str) -> dict:
    folder = JOBS / job_id
    pid = pid_of(folder)
    if pid:
        (folder / "cancelled").touch()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    return {
        "was_running": bool(pid),
        "ended": wait_until(lambda: not pid_of(folder), CANCEL_TIMEOUT_S),
    }


def main() -> None:
    action, arguments = sys.argv[1], sys.argv[2:]
    if action == "start":
        answers = [
            start(arguments[0], arguments[1] == "force", json.loads(sys.stdin.buffer.read()))
        ]
    elif action == "cancel":
        answers = [cancel(arguments[0])]
    else:
        wanted = [JOBS / name for name in arguments]
        answers = [describe(folder) for folder in wanted or folders() if folder.is_dir()]
    for answer in answers:
        print(json.dumps(answer))


try:
    main()
except OSError as error:
    sys.exit(f"{error.filename}: {error.strerror}" if error.filename else str(error))
