"""Runs on the head node: start, list and end jobs, each a folder in ~/.clusterctl/jobs.

    start ID HOW     files of the job as a JSON object on stdin; prints how it was started, or
                     {"busy": ID} when another job is in its way and HOW is "refuse": for a
                     training any other, for a copy one to the same destination. With "queue" it
                     begins when those have ended; prints {"after": [ID]} as well
    list [ID]        one JSON line per job; of one that is named also what is in nodes.json
    cancel ID        asks the job to end and waits for it
    pack ID          what is kept of the job, as a tar archive on stdout

A job runs when the process in its `pid` file lives and carries the job's id in its environment:
process numbers are used again, after a reboot all the more. What is written while it runs (`pid`,
`exit_status`, the name `cancelled`) has its room from the start: jobs fill disks.

The record of a job, in its folder. All times are seconds since 1970, of the head node's clock.

    job.json        what was asked for: argv (exact), line and evaluation (as a shell reads them),
                    ranks, preset, workdir, log_dir, script, variables (null: private),
                    mpi_arguments, hosts (names of the nodes with ranks, the head node first),
                    usd_per_hour (of these nodes; null: not known), git ({commit, changed}: how
                    many files differ from it; null where nothing of a work tree was shipped)
    nodes.json      of each node with ranks: name, address, slots, ranks, instance_type,
                    availability_zone, image, market, efa, placement_group, usd_per_hour,
                    versions (tensorflow, horovod, mpirun, nccl, driver, kernel, python, keras)
    code.json       the program that was shipped: folder, script, files, commit, changed
    boot_id         of the head node when the job was started
    after, waited   the jobs that it waits for; renamed when its turn has come
    attempts        a JSON line for each end by a failure (see after.py)
    log             all output; log-RANK: what that rank wrote (output.py)
    metrics.jsonl   when it has ended, the trainer's rows
    model/, output/, conflicts/, manifest.json   of a script-mode program (node/scripts/collect.py)
    watchdog, diagnosis.gz   what `train --watchdog` said and saw
    trace-steps-START-STOP.json.gz, .xplane.pb   what rank 0 did in these steps
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

JOBS = Path.home() / ".clusterctl" / "jobs"
JOB_IDS = "[0-9]" * 8 + "-" + "[0-9]" * 6 + "-" + "[0-9a-f]" * 4
ORDER_FILE = "job.json"  # written by nobody but `start`
RESERVED_BYTES = 32
CANCEL_TIMEOUT_S = 15.0
METRICS = "metrics.jsonl"
ROW_BYTES = 1 << 14
# What `pack` takes, in this order.
KEPT = ("job.json", "nodes.json", "code.json", "attempts", "command", "watchdog", "diagnosis.gz")
# Of a script-mode program (node/scripts/collect.py).
MANIFEST = "manifest.json"
COLLECTED = ("model", "output", "conflicts")
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
        return path.read_text(errors="replace")
    except OSError:
        return ""


def json_in(path: Path, empty: Any) -> Any:
    """What a file holds; `empty` where it is not there, is another kind of value, or was cut short
    by a crash: one job's record may not hide all others."""
    try:
        found = json.loads(text_in(path))
    except ValueError:
        return empty
    return found if isinstance(found, type(empty)) else empty


def boot_id() -> str:
    """Changes when this machine boots."""
    return text_in(Path("/proc/sys/kernel/random/boot_id")).strip()


def awaited_by(folder: Path) -> list:
    """The jobs that a queued one waits for, and that have not ended. None: its turn has come."""
    return [name for name in text_in(folder / "after").split() if pid_of(JOBS / name)]


def metrics_of(folder: Path, plan: dict) -> Path | None:
    """The trainer's rows of a job: its own copy when it has ended, else what it writes."""
    if (folder / METRICS).exists():
        return folder / METRICS
    log_dir = plan.get("log_dir")
    path = None
    if log_dir and pid_of(folder) and not (folder / "after").exists():
        path = Path(plan.get("workdir", ""), log_dir, METRICS)
    # Older ones are those of an earlier job.
    began = mtime_of(folder / "waited") or mtime_of(folder / ORDER_FILE) or 0
    return path if path and (mtime_of(path) or 0) >= began else None


def last_row(path: Path | None) -> dict:
    """Step and images a second of the last row that has a step; empty where there is none."""
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
    """Its attempts that failed, without a line cut short by a full disk or a crash."""
    found = []
    for line in text_in(folder / "attempts").splitlines():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return [one for one in found if isinstance(one, dict)]


def ended_at(folder: Path, exit_status: int | None) -> float | None:
    """When it ended, or where nobody wrote that down, when it was last heard of."""
    if exit_status is not None:
        return mtime_of(folder / "exit_status")
    heard_of = [mtime_of(folder / "log")]
    # One that was taken out of the queue has never run.
    if not (folder / "after").exists():
        heard_of.append(mtime_of(folder / "cancelled"))
    return max((at for at in heard_of if at), default=None)


def describe(folder: Path) -> dict:
    # First whether it runs, then how it ended: the other way round a job that ends in between
    # would look lost.
    running = bool(pid_of(folder))
    plan = json_in(folder / ORDER_FILE, {})
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
        "waits_for": awaited_by(folder) if running else [],
        "rebooted": bool(boot) and boot != boot_id(),
        "attempts": attempts_of(folder),
        "row": last_row(metrics_of(folder, plan)),
        "started_at": mtime_of(folder / "waited") or mtime_of(folder / ORDER_FILE),
        "ended_at": ended_at(folder, exit_status),
        "now": time.time(),
        "log_bytes": log.stat().st_size if log.exists() else 0,
        "by_rank": (folder / "log-0").exists(),
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


def start(job_id: str, how: str, files: dict) -> dict:
    JOBS.mkdir(parents=True, exist_ok=True)
    # Also of what earlier versions made.
    JOBS.chmod(0o700)
    # clean-logs takes the same lock: no folder goes while its job is being started.
    with (JOBS / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = json.loads(files[ORDER_FILE]).get("destination", "")
        busy = [
            folder.name
            for folder in folders()
            if pid_of(folder) and json_in(folder / ORDER_FILE, {}).get("destination", "") == wanted
        ]
        if busy and how == "refuse":
            return {"busy": busy[0]}  # others may wait for it
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
            # Not a matter of time: a job whose process lives may still begin.
            if not lives(pid) and not (folder / "pid").read_text().strip():
                with contextlib.suppress(OSError):
                    (folder / "environment").unlink()
                sys.exit(f"the job did not start: see {folder}")
            time.sleep(0.05)
    return {"started": job_id, "with": runs_in, "after": busy if how == "queue" else []}


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
    (folder / "boot_id").write_text(boot_id() + "\n")
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
        # The end of a job that has to be killed: its log may have been silent for hours.
        os.utime(folder / "cancelled")
    except OSError:
        # Started by an earlier version.
        with contextlib.suppress(OSError):
            (folder / "cancelled").touch()


def pack(folder: Path) -> None:
    """What is kept of a job, on stdout; of a file that grows, what it has now. Raises OSError."""
    described = describe(folder)
    paths: list = [folder / name for name in KEPT]
    paths += sorted([*folder.glob("trace-steps-*"), *folder.glob("log-*")])
    rows = metrics_of(folder, described["plan"])
    paths += [folder / "log", rows]
    if (folder / MANIFEST).exists():
        paths += [path for name in COLLECTED for path in sorted((folder / name).rglob("*"))]
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
    """What is printed, each on a line. Raises OSError."""
    if action == "start":
        # The end of the connection, or Ctrl-C there, must not leave half a job. Not SIG_IGN: the
        # job would inherit that, and could not be ended.
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
