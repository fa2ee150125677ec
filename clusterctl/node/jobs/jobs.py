"""Runs on the head node: starts, lists and stops jobs. Each job has a folder in ~/.clusterctl/jobs.

transport/call.py calls `submit`, `find_jobs` and `cancel`. As a program of its own:

    pack ID          writes what is kept of the job to stdout, as a tar archive

A job runs if the process in its `pid` file exists and has the job's ID in its environment: the
kernel reuses process IDs, in particular after a reboot. Jobs may fill the disk, so the space of
what is written while a job runs (`pid`, `exit_status`) or renamed (`cancelled`) is reserved at its
start.

The record of a job, in its folder. Times are seconds since 1970 by the head node's clock.

    spec.json       what was requested (JobSpec)
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
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from clusterctl.node.jobs.spec import JobRecord, JobSpec, JobState, JobStatus, Row
from clusterctl.node.procfs import boot_id, environ_of, read_stat
from clusterctl.node.record import RecordError, from_json, to_json

JOBS = Path.home() / ".clusterctl" / "jobs"
CODE = Path.home() / ".clusterctl" / "code"  # programs shipped by `train --script`, on every node
# Put into the folder of a shipped program once all of it is there: what is newer is the job's.
SHIPPED = ".clusterctl-shipped"
JOB_IDS = "[0-9]" * 8 + "-" + "[0-9]" * 6 + "-" + "[0-9a-f]" * 4
SPEC_FILE = "spec.json"  # written by `submit` only, so its mtime is the time of submission
# Size of the files whose space is reserved at the start.
RESERVED_BYTES = 32
CANCEL_TIMEOUT_S = 15.0
METRICS = "metrics.jsonl"
# The trainer's last row is searched in this many bytes at the end of the file.
ROW_BYTES = 1 << 14
# What `pack` takes first, in this order.
KEPT = (SPEC_FILE, "attempts", "command", "watchdog", "diagnosis.gz")
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


def read_spec(folder: Path) -> JobSpec:
    """Return a job's specification. Raises OSError, RecordError."""
    return from_json(JobSpec, (folder / SPEC_FILE).read_bytes())


def known_spec(folder: Path) -> tuple[JobSpec, str]:
    """Return a job's specification, and why it cannot be read; then it has the job's ID only. One
    job's broken record must not hide all others."""
    try:
        return read_spec(folder), ""
    except OSError as error:
        problem = f"{SPEC_FILE}: {error.strerror}"
    except RecordError as error:
        problem = f"{SPEC_FILE}: {error}"
    return JobSpec(folder.name), problem


def metrics_of(folder: Path, spec: JobSpec) -> Path | None:
    """Return the path of a job's metrics: its own copy after its end, else the trainer's file. None
    if there is none."""
    if (folder / METRICS).exists():
        return folder / METRICS
    path = None
    if spec.log_dir and pid_of(folder) and not (folder / "after").exists():
        path = Path(spec.workdir, spec.log_dir, METRICS)
    # An older file belongs to an earlier job.
    began = mtime_of(folder / "waited") or mtime_of(folder / SPEC_FILE) or 0
    return path if path and (mtime_of(path) or 0) >= began else None


def last_row(path: Path | None) -> Row:
    """Return the last row about a training step; an empty one if there is none."""
    try:
        if path is None:
            return Row()
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - ROW_BYTES))
            lines = file.read(ROW_BYTES).splitlines()
    except OSError:
        return Row()
    for line in reversed(lines):
        with contextlib.suppress(ValueError):  # another program's row, or one cut short
            row = json.loads(line)
            if isinstance(row, dict) and row.get("kind") == "train":
                return from_json(Row, line)
    return Row()


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


def describe(folder: Path) -> JobRecord:
    """Return the record of a job."""
    # The process is checked before the exit status. In the other order a job that ends between the
    # two would look lost.
    running = bool(pid_of(folder))
    spec, problem = known_spec(folder)
    log = folder / "log"
    boot = text_in(folder / "boot_id").strip()
    exit_status = exit_status_of(folder)
    status = JobStatus(
        state=state_of(folder, running, exit_status),
        submitted_at=mtime_of(folder / SPEC_FILE) or 0.0,
        started_at=mtime_of(folder / "waited"),
        ended_at=ended_at(folder, exit_status),
        exit_status=exit_status,
        waits_for=tuple(unfinished_predecessors(folder)) if running else (),
        rebooted=bool(boot) and boot != boot_id(),
        attempts=tuple(attempts_of(folder)),
        messages=tuple(text_in(folder / "watchdog").splitlines()),
    )
    row = last_row(metrics_of(folder, spec))
    log_bytes = log.stat().st_size if log.exists() else 0
    by_rank = (folder / "log-0").exists()
    return JobRecord(spec, status, time.time(), log_bytes, by_rank, row, problem)


def state_of(folder: Path, running: bool, exit_status: int | None) -> JobState:
    """Return the state of a job."""
    is_cancelled = (folder / "cancelled").exists()
    if exit_status is None and running:
        return JobState.QUEUED if (folder / "after").exists() else JobState.RUNNING
    if exit_status == 0:
        return JobState.SUCCEEDED
    if is_cancelled:
        return JobState.CANCELLED
    return JobState.LOST if exit_status is None else JobState.FAILED


def folders() -> list:
    """Return the jobs' folders by time of submission. The IDs do not tell: their times are those of
    users' clocks."""
    found = [path for path in JOBS.glob(JOB_IDS) if path.is_dir()]
    return sorted(found, key=lambda path: (mtime_of(path / SPEC_FILE) or 0, path.name))


def wait_until(reached: Callable[[], bool], timeout_s: float) -> bool:
    """Poll until `reached` is true. Return False after the timeout."""
    deadline = time.monotonic() + timeout_s
    while not reached():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@dataclass(frozen=True)
class Submission:
    """A request to start a job.

    `how` says what to do if jobs with a common claim have not ended: "refuse", "queue" this one
    behind them, or "force" it to start beside them. `files` are further files for its folder.
    """

    spec: JobSpec
    how: str = "refuse"
    files: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Submitted:
    """How a job was started: what it runs in, and the jobs that it waits for. If it was refused,
    only `busy` is set: the oldest job that is in its way."""

    runs_in: str = ""
    after: tuple[str, ...] = ()
    busy: str = ""


@dataclass(frozen=True)
class JobQuery:
    """Which job; with an empty ID all of them."""

    job_id: str = ""


@dataclass(frozen=True)
class JobList:
    jobs: tuple[JobRecord, ...]


@dataclass(frozen=True)
class Cancelled:
    """`ended`: whether the job had ended in time."""

    ended: bool


def submit(request: Submission) -> Submitted:
    """Create the job's folder and start the job."""
    # A lost connection, or Ctrl-C at the client, must not leave a half-started job. SIG_IGN would
    # not do: the job would inherit it and could not be stopped.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    spec = request.spec
    JOBS.mkdir(mode=0o700, parents=True, exist_ok=True)
    # clean-logs takes the same lock, so that it removes no folder of a job that is being started.
    with (JOBS / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        busy = [one.name for one in folders() if pid_of(one) and is_in_the_way(one, spec)]
        if busy and request.how == "refuse":
            return Submitted(busy=busy[0])  # the oldest: the others may be queued behind it
        files = {**request.files, SPEC_FILE: to_json(spec) + "\n"}
        if request.how == "queue":
            files["after"] = "".join(name + "\n" for name in busy)
        folder = JOBS / spec.job_id
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
    return Submitted(runs_in, tuple(busy) if request.how == "queue" else ())


def is_in_the_way(folder: Path, spec: JobSpec) -> bool:
    """Return whether a job has a common claim with a new one. Of a job whose specification cannot
    be read, this is not known: then it is taken to have one."""
    other, problem = known_spec(folder)
    return bool(problem) or bool({*other.claims} & {*spec.claims})


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


def cancel(request: JobQuery) -> Cancelled:
    """Stop a job and wait for its end."""
    wait_for_start()
    folder = JOBS / request.job_id
    pid = pid_of(folder)
    if pid:
        mark_cancelled(folder)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    return Cancelled(wait_until(lambda: not pid_of(folder), CANCEL_TIMEOUT_S))


def find_jobs(request: JobQuery) -> JobList:
    """Return the records of all jobs in the order of their submission, without what only the record
    of one job has; or that of the one job, if there is one of this ID."""
    wait_for_start()
    if request.job_id:
        folder = JOBS / request.job_id
        return JobList((describe(folder),) if folder.is_dir() else ())
    return JobList(tuple(map(summary, map(describe, folders()))))


def summary(job: JobRecord) -> JobRecord:
    return replace(job, spec=replace(job.spec, nodes=(), code=None))


def mark_cancelled(folder: Path) -> None:
    """Mark the job as cancelled. Errors are ignored: the job is stopped even on a full disk."""
    with contextlib.suppress(OSError):
        (folder / "not_cancelled").replace(folder / "cancelled")
        # If the job has to be killed, this is the time of its end: its log may be hours old.
        os.utime(folder / "cancelled")


def pack(folder: Path) -> None:
    """Write the record of a job to stdout; growing files as far as they are. Raises OSError."""
    spec, _ = known_spec(folder)
    paths: list = [folder / name for name in KEPT]
    paths += sorted([*folder.glob("trace-steps-*"), *folder.glob("log-*")])
    rows = metrics_of(folder, spec)
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
        pack(JOBS / sys.argv[2])
    except OSError as error:
        sys.exit(f"{error.filename}: {error.strerror}" if error.filename else str(error))
