"""A job's folder on the head node, ~/.clusterctl/jobs/ID: its record and its lock.

    spec.json       what was requested (JobSpec): written before the folder has its name
    events.jsonl    a line for each change, appended (spec.Event); `fold` makes the status of them
    lock            held by the job's runner; has its process ID and the boot's ID. Later, who ends
                    what a lost runner has left holds a part of it
    heartbeat       the time, written over in place every second; then the earliest and the latest
                    time that the clock has shown since the job began
    log             all output; log-RANK: what that rank wrote (output.py)
    times           when the log was written to last, a ring of lines (output.py)
    metrics.jsonl   after the job's end, the trainer's rows
    copied.json     how far a copy is on each node, padded with blanks (copy/report.py)
    command         the lines, for a user to read
    runner.py       the program that runs the job, which a running job keeps
    model/, output/, conflicts/, manifest.json   of a script-mode program (node/scripts/collect.py)
    diagnosis.gz    evidence of `train --watchdog`
    trace-steps-START-STOP.json.gz, .xplane.pb   rank 0's trace of these steps

A job runs if all of its lock is held. The kernel frees it when the runner ends, also after kill -9
and a power cut. Only who holds it appends events that change the state. Anyone may append `cancel`
and `message`: a request and a report.

Jobs may fill the disk. So the blocks of events.jsonl and heartbeat are allocated before the job
starts, and its end can always be recorded.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import signal
import struct
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Tuple

from clusterctl.node.jobs.spec import (
    NOT_RECORDED,
    STILL_RUN,
    CopyNode,
    JobEvent,
    JobRecord,
    JobSpec,
    JobState,
    JobStatus,
    Row,
    fold,
)
from clusterctl.node.procfs import JOB_VARIABLE, boot_id, boot_s, environ_of
from clusterctl.node.record import RecordError, from_json, to_json
from clusterctl.node.untrusted import text_in

# Dumps of PyTorch's Flight Recorder, on the node of their rank, whose number follows.
DUMP_PREFIX = "/tmp/clusterctl.{job_id}.flight."
DUMP = re.compile(r"clusterctl\.([\w-]+)\.flight\.(\d{1,9})")
# Not Path.home(): clusterctl imports this module, too, and its user may have no home folder.
_OWN = Path(os.path.expanduser("~"), ".clusterctl")  # noqa: PTH111
JOBS = _OWN / "jobs"
CODE = _OWN / "code"  # programs shipped by `train --script`, on every node
# mpirun's launch agent on every node (start_daemon.py), below the home folder.
START_DAEMON_PATH = ".clusterctl/start_daemon.py"
# Put into the folder of a shipped program once all of it is there: inode and time of change of each
# file. What is not in this list is the job's. Times are not compared with it: the clock may be set.
SHIPPED = ".clusterctl-shipped"
KNOWN_HOSTS = "clusterctl_known_hosts"  # in ~/.ssh of the head node: those of all nodes that joined
LIST_SHIPPED = f"find . -type f -printf '%i %C@\\n' >{SHIPPED}"
JOB_IDS = "[0-9]" * 8 + "-" + "[0-9]" * 6 + "-" + "[0-9a-f]" * 4
SPEC_FILE, EVENTS, METRICS = "spec.json", "events.jsonl", "metrics.jsonl"
COPIED = "copied.json"
RUNNER_FILE = "runner.py"
# Files and folders of a script-mode program (node/scripts/collect.py).
MANIFEST = "manifest.json"
COLLECTED = ("model", "output", "conflicts")
# Those that it has on every node at the start, below the job's there, as in SageMaker's /opt/ml.
SCRIPT_FOLDERS = (
    *("code", "input/config", "input/data", "model", "output/data", "output/intermediate"),
)
CHECKPOINT = re.compile(r"model\.ckpt-\d+\.index")
# What a training that was killed has left of the checkpoint that it was writing.
HALF_CHECKPOINT = re.compile(r"\.model\.ckpt-\d+[._].*|model\.ckpt-\d+_temp.*")
RESERVED_BYTES = 64 << 10  # of events.jsonl
END_BYTES = 4 << 10  # of these, only `ended` may use the last ones
HEARTBEAT_BYTES, LOCK_BYTES = 64, 64
# The trainer's last row is searched in this many bytes at the end of the file.
ROW_BYTES = 1 << 14
# Open file description locks (fcntl(2)), of 64-bit Linux; Python names them from 3.9 on. A POSIX
# lock would end as soon as its process closes any descriptor of the file.
FLOCK, F_OFD_GETLK, F_OFD_SETLK = "hhqqi4x", 36, 37
# A lock of no length is the runner's, and goes to the file's end; one of a length is a cleaner's.
WRITE_LOCK = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
CLEANER_LOCK = struct.pack(FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, LOCK_BYTES, 0)
# On a read-only disk the lock cannot be opened for writing, as those above need it: cleaners share
# this one.
SHARED_LOCK = struct.pack(FLOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, LOCK_BYTES, 0)
KEEP_SIZE = 1  # of fallocate(2): `tail -f` and `wc` see the real end of the file


def is_of_job(process: str | Path, job_id: str) -> bool:
    """Return whether the process of a folder in /proc has the job's ID in its environment."""
    return environ_of(process).get(JOB_VARIABLE.encode()) == os.fsencode(job_id)


def mtime_of(path: Path) -> float | None:
    """Return the time of a file's last change; None if there is no file."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def size_of(path: Path) -> int | None:
    """Return a file's size; None if there is no file, or it may not be read."""
    try:
        return path.stat().st_size
    except OSError:
        return None


def stamp_of(path: Path) -> str:
    """Return what differs once a file was written or replaced; empty if there is none.

    Whether it was written since another event is not known from its time: the clock may have been
    set meanwhile.
    """
    try:
        status = path.stat()
    except OSError:
        return ""
    return f"{status.st_ino}:{status.st_size}:{status.st_mtime_ns}"


def value_in(text: str, empty: Any) -> Any:
    """Return the value of a JSON text; `empty` for what is none of that type."""
    try:
        found = from_json(Any, text)
    except RecordError:
        return empty
    return found if isinstance(found, type(empty)) else empty


def all_jobs() -> list[JobFolder]:
    """Return the jobs of this node in the order of their submission, by this node's clock. The IDs
    do not show it: their times are those of users' clocks."""
    # Whoever removes a job's folder, and is killed, may leave an empty one.
    found = [JobFolder(path) for path in JOBS.glob(JOB_IDS) if has_content(path)]
    return sorted(found, key=lambda one: (one.submitted_at(), one.job_id))


def has_content(path: Path) -> bool:
    """Return whether something is in a folder, or may be: it cannot be read."""
    try:
        return any(path.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


class JobFolder:
    """The record of one job. `lock` is open while this process holds it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = -1

    @property
    def job_id(self) -> str:
        return self.path.name

    def create(self, spec: JobSpec, after: list[str]) -> None:
        """Write a new record, with room for what is written while the job runs. Raises OSError."""
        self.path.mkdir(mode=0o700)
        contents = {
            SPEC_FILE: to_json(spec) + "\n",
            EVENTS: "",
            "heartbeat": " " * HEARTBEAT_BYTES,
            "lock": " " * LOCK_BYTES,
        }
        for name, text in contents.items():
            with (self.path / name).open("w") as file:
                file.write(text)
                file.flush()
                if name == EVENTS:
                    reserve(file.fileno(), RESERVED_BYTES)
                os.fsync(file.fileno())  # some file systems report a full disk only here
        self.append("submitted", after=after, boot_id=boot_id())

    def spec(self) -> JobSpec:
        """Return the job's specification. Raises OSError, RecordError."""
        return from_json(JobSpec, (self.path / SPEC_FILE).read_bytes())

    def known_spec(self) -> tuple[JobSpec, str]:
        """Return the job's specification, and why it cannot be read; then it has the job's ID only.
        One job's broken record must not hide all others."""
        try:
            return self.spec(), ""
        except OSError as error:
            problem = f"{SPEC_FILE}: {error.strerror}"
        except RecordError as error:
            problem = f"{SPEC_FILE}: {error}"
        return JobSpec(self.job_id), problem

    def append(self, kind: str, **data: Any) -> None:
        """Append an event and sync it: one write of one line, so that a reader sees all of it or
        nothing. On a full disk, events other than `ended` that do not fit are dropped. Raises
        OSError for `ended`."""
        event = JobEvent(kind, round(time.time(), 3), data, round(boot_s(), 3))
        line = to_json(event).encode() + b"\n"
        try:
            with (self.path / EVENTS).open("a+b", buffering=0) as file:
                size = file.seek(0, os.SEEK_END)
                # The last line may have been cut short by a crash.
                is_torn = size and os.pread(file.fileno(), 1, size - 1) != b"\n"
                if kind != "ended" and size + len(line) > RESERVED_BYTES - END_BYTES:
                    reserve(file.fileno(), size + len(line) + END_BYTES)
                file.write(b"\n" * bool(is_torn) + line)
                os.fsync(file.fileno())
        except OSError:
            if kind == "ended":
                raise

    def events(self) -> list[JobEvent]:
        """Return the events. Lines that a crash has cut short are skipped."""
        found = []
        with contextlib.suppress(OSError):
            for line in (self.path / EVENTS).read_bytes().split(b"\n"):
                with contextlib.suppress(RecordError):
                    found.append(from_json(JobEvent, line))
        return found

    def is_active(self) -> bool:
        """Return whether the job's end is not recorded and another process works on it. A runner
        that has recorded the end of its job may hold the lock for a moment longer."""
        return self.is_held() and not fold(self.events()).has_ended

    def submitted_at(self) -> float:
        """Return when the job was submitted. Its specification was written then, and never
        again."""
        return mtime_of(self.path / SPEC_FILE) or 0.0

    def status(self) -> JobStatus:
        """Return what became of the job. LOST is derived here: no runner, and no recorded end."""
        runs = self.is_run()  # first: in the other order a job that ends now would seem lost
        folded = fold(self.events())
        if folded.ended_at is not None:
            return folded.read_in(boot_id())
        if runs:
            return folded
        return folded.lost(self.heartbeat_at(), boot_id())

    def heartbeat_at(self) -> float | None:
        """Return the time of the last heartbeat, which is close to the end of a lost job."""
        return next(iter(self._heartbeat()), None)

    def clock_range(self) -> tuple[float, float]:
        """Return the earliest and the latest time that the clock has shown while the job ran:
        whoever sets it back does not know of the job. Empty, as (inf, 0), if that is not known."""
        _, low, high = (self._heartbeat() + [0.0, float("inf"), 0.0])[:3]
        return low, high

    def _heartbeat(self) -> list[float]:
        with contextlib.suppress(ValueError):
            return [float(word) for word in text_in(self.path / "heartbeat").split()]
        return []

    def write_heartbeat(self, low: float, high: float) -> None:
        """Write the heartbeat over the last one: this needs no new block."""
        text = f"{time.time():.1f} {low:.1f} {high:.1f}\n".ljust(HEARTBEAT_BYTES)
        path = self.path / "heartbeat"
        # The disk may have become read-only.
        with contextlib.suppress(OSError), path.open("r+b", buffering=0) as file:
            file.write(text.encode())

    def is_run(self) -> bool:
        """Return whether the job's runner holds the lock."""
        return self.held_bytes() == 0

    def is_held(self) -> bool:
        """Return whether a process holds the lock: the job's runner, or who ends what a job without
        one has left."""
        return self.held_bytes() is not None

    def held_bytes(self) -> int | None:
        """Return the length of the lock that is held; None if none is."""
        with contextlib.suppress(OSError), (self.path / "lock").open("rb") as file:
            kind, _, _, size, _ = struct.unpack(FLOCK, fcntl.fcntl(file, F_OFD_GETLK, WRITE_LOCK))
            return None if kind == fcntl.F_UNLCK else int(size)
        return None

    def holder(self) -> tuple[int, str]:
        """Return the process ID that the job's runner has or had, and the ID of the boot; 0 if
        there was none."""
        pid, boot, *_ = [*text_in(self.path / "lock").split(), "", ""]
        return (int(pid), boot) if pid.isdigit() else (0, "")

    def signal_runner(self, number: int) -> None:
        """Send a signal to the job's runner, if there is one.

        Process IDs are checked only here: os.kill of 0 or -1 would be sent to a whole group, or to
        every process; and the ID of a process in a container is another's out here.
        """
        pid, boot = self.holder()
        own = pid > 1 and boot == boot_id() and is_of_job(f"/proc/{pid}", self.job_id)
        if own and self.is_run():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def take(self, to_clean: bool = False) -> bool:
        """Lock the record, as its runner or to end what that has left, until this process ends or
        `release`. Return False if another process holds it. Raises OSError."""
        kind = CLEANER_LOCK if to_clean else WRITE_LOCK
        try:
            lock = os.open(self.path / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            if not to_clean or error.errno != errno.EROFS:
                raise
            kind = SHARED_LOCK
            lock = os.open(self.path / "lock", os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.fcntl(lock, F_OFD_SETLK, kind)
        except OSError as error:
            os.close(lock)
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            return False
        if not to_clean:
            os.pwrite(lock, f"{os.getpid()} {boot_id()}\n".ljust(LOCK_BYTES).encode(), 0)
        self.lock = lock
        return True

    def release(self) -> None:
        os.close(self.lock)
        self.lock = -1

    def metrics(self, spec: JobSpec, status: JobStatus) -> Path | None:
        """Return the path of the job's metrics: its own copy after its end, else the trainer's
        file. None if there is none."""
        if size_of(self.path / METRICS) is not None:
            return self.path / METRICS
        # A job without a runner is ended before a later one starts, and its rows are kept then.
        if not spec.log_dir or status.has_ended or status.started_at is None:
            return None
        if METRICS not in self.written(spec, status):
            return None
        return Path(spec.workdir, spec.log_dir, METRICS)

    @staticmethod
    def stamps(spec: JobSpec) -> dict[str, str]:
        """Return the stamps of the trainer's log and rows, for the event `running`."""
        folder = Path(spec.workdir, spec.log_dir or "-")
        return {name: stamp_of(folder / name) for name in (spec.log_name, METRICS)}

    def written(self, spec: JobSpec, status: JobStatus) -> list[str]:
        """Return which of the trainer's log and rows the job has written. A file that is as it was
        when the job began is an earlier job's."""
        found = self.stamps(spec).items()
        return [name for name, stamp in found if stamp and stamp != status.before.get(name, "")]

    def has_written(self) -> bool:
        """Return whether the job may have written into its folders. A training begins with its log;
        an evaluation writes one of another name, and no checkpoint."""
        spec, status = self.known_spec()[0], self.status()
        has_started = status.started_at is not None
        return has_started and (not spec.log_dir or spec.log_name in self.written(spec, status))

    def keep_metrics(self, spec: JobSpec, status: JobStatus) -> None:
        """Copy the trainer's rows at the end of the job, since a later job may delete them."""
        path = self.metrics(spec, status)
        if path and path.parent != self.path:
            import shutil

            try:
                shutil.copyfile(path, self.path / METRICS)
            except OSError:
                with contextlib.suppress(OSError):  # the disk may be read-only
                    (self.path / METRICS).unlink()

    def record(self) -> JobRecord:
        """Return the job as it is described to others."""
        status = self.status()
        spec, problem = self.known_spec()
        if status.state is JobState.QUEUED:
            before = {name: JobFolder(self.path.parent / name) for name in status.waits_for}
            left = (name for name, one in before.items() if one.is_active())
            status = replace(status, waits_for=tuple(left))
        if status.reason == NOT_RECORDED and not status.has_ended:
            # Without its supervisors nothing ends what a runner that was killed has left.
            processes = Path("/proc").glob("[0-9]*")
            if any(is_of_job(one, self.job_id) for one in processes):
                status = replace(status, reason=NOT_RECORDED + STILL_RUN)
        if status.state is JobState.RUNNING:
            status = status.ran_until(boot_s())
        return JobRecord(
            spec,
            status,
            now=time.time(),
            log_bytes=size_of(self.path / "log") or 0,
            by_rank=size_of(self.path / "log-0") is not None,
            row=last_row(self.metrics(spec, status), status.started_at or 0.0),
            problem=problem,
            copied=self.copied(),
        )

    def copied(self) -> tuple[CopyNode, ...]:
        """Return how far a copy is; empty for any other job."""
        with contextlib.suppress(RecordError):
            text = text_in(self.path / COPIED)
            return from_json(Tuple[CopyNode, ...], text)  # type: ignore[arg-type]
        return ()


def last_row(path: Path | None, since: float) -> Row:
    """Return the last row about a training step of the last training in the file; an empty one if
    there is none. Rows of before `since` (seconds since 1970), if their time is known, are those of
    an earlier job, to which a job that goes on from a checkpoint, or evaluates, adds its own."""
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
            row = from_json(Row, line)
            if row.kind == "train" and (not row.time or row.time >= since):
                return row
            if row.kind == "train" or (row.kind == "begin" and row.validation_samples is None):
                break
    return Row()


def reserve(fd: int, size: int) -> None:
    """Allocate blocks for a file of this size. Raises OSError."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(fd, KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(size)):
        number = ctypes.get_errno()
        if number != errno.EOPNOTSUPP:  # NFS: events are written as long as there is room
            raise OSError(number, os.strerror(number))


def cancel_requested(folder: JobFolder) -> None:
    """Request a job's end for the user, and signal its runner. Without one, whoever needs the job
    ends it."""
    folder.append("cancel", by="user", why="")
    folder.signal_runner(signal.SIGTERM)


def log_message(folder: JobFolder, text: str) -> None:
    """Record a message of the watchdog, and add it to the job's log."""
    now = time.gmtime()
    folder.append("message", text=f"{time.strftime('%Y-%m-%d %H:%M:%S', now)} UTC: {text}")
    line = f"clusterctl watchdog, {time.strftime('%H:%M:%S', now)} UTC: {text}\n"
    try:
        with (folder.path / "log").open("ab", buffering=0) as log:
            log.write(line.encode("utf-8", "surrogateescape"))
    except OSError:
        return


def dumps_by_job(folder: Path) -> dict[str, list[Path]]:
    """Return the dumps in a folder, of each job by rank."""
    found: dict[str, list[Path]] = {}
    matches = [(DUMP.fullmatch(path.name), path) for path in folder.iterdir()]
    named = [(match, path) for match, path in matches if match]
    for match, path in sorted(named, key=lambda one: int(one[0][2])):
        found.setdefault(match[1], []).append(path)
    return found
