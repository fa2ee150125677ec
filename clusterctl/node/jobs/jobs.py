"""Runs on the head node: starts, lists and stops jobs. Each job has a folder in ~/.clusterctl/jobs.

    start ID HOW     reads the files of the job from stdin, a JSON object of texts by name; prints
                     how it was started. HOW says what to do if other jobs are in its way (for a
                     training other trainings, for a copy those to the same destination): "refuse"
                     prints {"busy": ID} instead, "queue" starts it when they have ended and also
                     prints {"after": [ID]}, "force" starts it beside them
    list [ID]        one JSON line per job; with an ID also what is in its nodes.json
    cancel ID        sends the job TERM and waits for its end
    pack ID          writes what is kept of the job to stdout, as a tar archive

A job runs if the process in its `pid` file exists and has the job's ID in its environment: the
kernel reuses process IDs, in particular after a reboot. Jobs may fill the disk, so the space of
what is written while a job runs (`pid`, `exit_status`) or renamed (`cancelled`) is reserved at its
start.

The record of a job, in its folder. Times are seconds since 1970 by the head node's clock.

    job.json        what was requested: argv (exact), line and evaluation (quoted for a shell),
                    ranks, preset, workdir, log_dir, script, variables (null: private),
                    mpi_arguments, hosts (names of the nodes with ranks, the head node first),
                    usd_per_hour (of these nodes; null: not known), list_usd_per_hour (AWS's price
                    for their types on demand), git ({commit, changed}: the number of files that
                    differ from it; null if the folder is no git work tree)
    nodes.json      for each node with ranks: name, address, slots, ranks, instance_type,
                    availability_zone, image, market, efa, placement_group, usd_per_hour,
                    list_usd_per_hour, versions (tensorflow, horovod, mpirun, nccl, cuda, cudnn,
                    driver, kernel, python, keras)
    code.json       the program that was shipped: folder, script, files, commit, changed
    boot_id         of the head node when the job was started
    after, waited   the jobs that it waits for; `after` is renamed to `waited` at the job's turn
    attempts        a JSON line for each failure (see after.py)
    log             all output; log-RANK: what that rank wrote (output.py)
    metrics.jsonl   after the job's end, the trainer's rows
    model/, output/, conflicts/, manifest.json   of a script-mode program (node/scripts/collect.py)
    watchdog, diagnosis.gz   messages and evidence of `train --watchdog`
    trace-steps-START-STOP.json.gz, .xplane.pb   rank 0's trace of these steps
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
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from clusterctl.node.procfs import boot_id, environ_of, read_stat

JOBS = Path.home() / ".clusterctl" / "jobs"
CODE = Path.home() / ".clusterctl" / "code"  # programs shipped by `train --script`, on every node
# Put into the folder of a shipped program once all of it is there: what is newer is the job's.
SHIPPED = ".clusterctl-shipped"
JOB_IDS = "[0-9]" * 8 + "-" + "[0-9]" * 6 + "-" + "[0-9a-f]" * 4
REQUEST_FILE = "job.json"  # written by `start` only, so its mtime is the time of submission
# Size of the files whose space is reserved at the start.
RESERVED_BYTES = 32
CANCEL_TIMEOUT_S = 15.0
METRICS = "metrics.jsonl"
# The trainer's last row is searched in this many bytes at the end of the file.
ROW_BYTES = 1 << 14
# What `pack` takes first, in this order.
KEPT = ("job.json", "nodes.json", "code.json", "attempts", "command", "watchdog", "diagnosis.gz")
# Files and folders of a script-mode program (node/scripts/collect.py).
MANIFEST = "manifest.json"
COLLECTED = ("model", "output", "conflicts")
START_TIMEOUT_S = 10.0


def pid_of(folder: Path) -> int:
    """Return the process ID of the job; 0 if it has ended."""
    pid = recorded_pid(folder)
    return pid if is_of_job(f"/proc/{pid}", folder.name) else 0


def recorded_pid(folder: Path) -> int:
    """Return the process ID that the job had on the boot of its `boot_id`; 0 if none is written."""
    try:
        return int((folder / "pid").read_text())
    except (OSError, ValueError):
        return 0


def is_of_job(process: str | Path, job_id: str) -> bool:
    """Return whether the process of a folder in /proc has the job's ID in its environment."""
    return environ_of(process).get(b"CLUSTERCTL_JOB") == os.fsencode(job_id)


def exit_status_of(folder: Path) -> int | None:
    """Return the exit status of a job; None if none is written yet."""
    try:
        return int((folder / "exit_status").read_text())
    except (OSError, ValueError):
        return None


def mtime_of(path: Path) -> float | None:
    """Return the time of a file's last change; None if there is no file."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def text_in(path: Path) -> str:
    """Return the text of a file; empty if it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def json_in(path: Path, empty: Any) -> Any:
    """Return the content of a JSON file; `empty` if the file is missing, was cut short by a crash,
    or has a value of another type: one job's broken record must not hide all others."""
    try:
        found = json.loads(text_in(path))
    except ValueError:
        return empty
    return found if isinstance(found, type(empty)) else empty


def unfinished_predecessors(folder: Path) -> list:
    """Return the jobs that a queued job waits for and that have not ended; empty at its turn."""
    return [name for name in text_in(folder / "after").split() if pid_of(JOBS / name)]


def metrics_of(folder: Path, plan: dict) -> Path | None:
    """Return the path of a job's metrics: its own copy after its end, else the trainer's file. None
    if there is none."""
    if (folder / METRICS).exists():
        return folder / METRICS
    log_dir = plan.get("log_dir")
    path = None
    if log_dir and pid_of(folder) and not (folder / "after").exists():
        path = Path(plan.get("workdir", ""), log_dir, METRICS)
    # An older file belongs to an earlier job.
    began = mtime_of(folder / "waited") or mtime_of(folder / REQUEST_FILE) or 0
    return path if path and (mtime_of(path) or 0) >= began else None


def last_row(path: Path | None) -> dict:
    """Return step, epoch and images/s of the last row about a training step; empty if none."""
    try:
        if path is None:
            return {}
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - ROW_BYTES))
            lines = file.read(ROW_BYTES).splitlines()
    except OSError:
        return {}
    for line in reversed(lines):
        with contextlib.suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict) and row.get("kind") == "train":
                return {name: row.get(name) for name in ("step", "epoch", "images_per_s")}
    return {}


def attempts_of(folder: Path) -> list:
    """Return the failed attempts of a job. Lines cut short are skipped."""
    found = []
    for line in text_in(folder / "attempts").splitlines():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return [one for one in found if isinstance(one, dict)]


def ended_at(folder: Path, exit_status: int | None) -> float | None:
    """Return when the job ended; if no exit status was written, when it last wrote to its log or
    was cancelled. None if neither is known."""
    if exit_status is not None:
        return mtime_of(folder / "exit_status")
    heard_of = [mtime_of(folder / "log")]
    # A job that was cancelled in the queue has never run.
    if not (folder / "after").exists():
        heard_of.append(mtime_of(folder / "cancelled"))
    return max((at for at in heard_of if at), default=None)


def describe(folder: Path) -> dict:
    """Return the line of `list` about a job."""
    # The process is checked before the exit status. In the other order a job that ends between the
    # two would look lost.
    running = bool(pid_of(folder))
    plan = json_in(folder / REQUEST_FILE, {})
    log = folder / "log"
    exit_status = exit_status_of(folder)
    boot = text_in(folder / "boot_id").strip()
    return {
        "id": folder.name,
        "plan": plan,
        "running": running,
        "exit_status": exit_status,
        "cancelled": (folder / "cancelled").exists(),
        "queued": running and (folder / "after").exists(),
        "waits_for": unfinished_predecessors(folder) if running else [],
        "rebooted": bool(boot) and boot != boot_id(),
        "attempts": attempts_of(folder),
        "row": last_row(metrics_of(folder, plan)),
        "started_at": mtime_of(folder / "waited") or mtime_of(folder / REQUEST_FILE),
        "ended_at": ended_at(folder, exit_status),
        "now": time.time(),
        "log_bytes": log.stat().st_size if log.exists() else 0,
        "by_rank": (folder / "log-0").exists(),
        "watchdog": text_in(folder / "watchdog"),
    }


def folders() -> list:
    """Return the jobs' folders by time of submission. The IDs do not tell: their times are those of
    users' clocks."""
    found = [path for path in JOBS.glob(JOB_IDS) if path.is_dir()]
    return sorted(found, key=lambda path: (mtime_of(path / REQUEST_FILE) or 0, path.name))


def wait_until(reached: Callable[[], bool], timeout_s: float) -> bool:
    """Poll until `reached` is true. Return False after the timeout."""
    deadline = time.monotonic() + timeout_s
    while not reached():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def start(job_id: str, how: str, files: dict) -> dict:
    """Create the job's folder with these files and start the job. Return what `start` prints."""
    JOBS.mkdir(mode=0o700, parents=True, exist_ok=True)
    # clean-logs takes the same lock, so that it removes no folder of a job that is being started.
    with (JOBS / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = json.loads(files[REQUEST_FILE]).get("destination", "")
        busy = [
            folder.name
            for folder in folders()
            if pid_of(folder)
            and json_in(folder / REQUEST_FILE, {}).get("destination", "") == wanted
        ]
        if busy and how == "refuse":
            return {"busy": busy[0]}  # the oldest: the others may be queued behind it
        if how == "queue":
            files["after"] = "".join(name + "\n" for name in busy)
        folder = JOBS / job_id
        folder.mkdir(mode=0o700)
        try:
            write_files(folder, files)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            sys.exit(f"{folder}: {error.strerror}")
        runs_in, pid = launch(folder)
        while not (folder / "pid").read_text().strip():
            # There is no timeout: while its process lives, the job may still write its pid.
            if not lives(pid) and not (folder / "pid").read_text().strip():
                with contextlib.suppress(OSError):
                    (folder / "environment").unlink()
                sys.exit(f"the job did not start: see {folder}")
            time.sleep(0.05)
    return {"started": job_id, "with": runs_in, "after": busy if how == "queue" else []}


def wait_for_start() -> None:
    """Wait until no job is being started: a job that has no process yet looks lost.

    The wait has a timeout, since clean-logs holds the lock while it removes large folders.
    """
    with contextlib.suppress(OSError), (JOBS / ".lock").open() as lock:
        wait_until(lambda: got_shared(lock), START_TIMEOUT_S)


def got_shared(lock: TextIO) -> bool:
    """Try to take a shared lock, and return whether that worked."""
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def write_files(folder: Path, files: dict) -> None:
    """Write the job's files, and reserve the space of those that are written while it runs."""
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8", errors="surrogateescape")
    (folder / "boot_id").write_text(boot_id() + "\n")
    (folder / "log").touch()
    for name in ("pid", "exit_status", "not_cancelled"):
        with (folder / name).open("wb") as file:
            file.write(b"\n" * RESERVED_BYTES)
            file.flush()
            # Some file systems report a full disk only here.
            os.fsync(file.fileno())


def lives(pid: int) -> bool:
    """Return whether the process exists and is no zombie."""
    try:
        return read_stat(f"/proc/{pid}")[1][0] not in "ZX"
    except OSError:
        return False


def launch(folder: Path) -> tuple:
    """Start the job detached: in its own tmux session if tmux is installed, else under nohup.

    Return a description of where it runs, and its process ID.
    """
    # `env` sets the variable, not tmux's environment: a tmux server that starts here would pass it
    # to all its later windows.
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
    """Stop a job and wait for its end. Return what `cancel` prints."""
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
    """Mark the job as cancelled. Errors are ignored: the job is stopped even on a full disk."""
    with contextlib.suppress(OSError):
        (folder / "not_cancelled").replace(folder / "cancelled")
        # If the job has to be killed, this is the time of its end: its log may be hours old.
        os.utime(folder / "cancelled")


def pack(folder: Path) -> None:
    """Write the record of a job to stdout; growing files as far as they are. Raises OSError."""
    described = describe(folder)
    paths: list = [folder / name for name in KEPT]
    paths += sorted([*folder.glob("trace-steps-*"), *folder.glob("log-*")])
    rows = metrics_of(folder, described["plan"])
    paths += [folder / "log", rows]
    paths.append(folder / MANIFEST)
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
        for path in paths:
            if path and path.is_file():
                with path.open("rb") as file:
                    name = METRICS if path == rows else str(path.relative_to(folder))
                    info = archive.gettarinfo(arcname=name, fileobj=file)
                    archive.addfile(info, file)


def main() -> None:
    try:
        if sys.argv[1] == "pack":
            pack(JOBS / sys.argv[2])
            return
        for answer in answers(sys.argv[1], sys.argv[2:]):
            print(json.dumps(answer))
    except OSError as error:
        sys.exit(f"{error.filename}: {error.strerror}" if error.filename else str(error))


def answers(action: str, arguments: list) -> list:
    """Carry out an action and return the objects to print, one a line. Raises OSError."""
    if action == "start":
        # A lost connection, or Ctrl-C at the client, must not leave a half-started job. SIG_IGN
        # would not do: the job would inherit it and could not be stopped.
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        files = json.loads(sys.stdin.buffer.read())
        return [start(arguments[0], arguments[1], files)]
    wait_for_start()
    if action == "cancel":
        return [cancel(arguments[0])]
    if arguments:
        folder = JOBS / arguments[0]
        nodes = [one for one in json_in(folder / "nodes.json", []) if isinstance(one, dict)]
        return [{**describe(folder), "nodes": nodes}] if folder.is_dir() else []
    return [describe(folder) for folder in folders()]
