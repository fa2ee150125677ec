"""Runs on a node: removes what trainings wrote into log folders, and the folders of ended jobs
together with the programs that were shipped for them and PyTorch's dumps.

A log folder may be any folder, even the home folder. So only files with the trainer's names are
removed, and the folder itself only if it is empty then. Links are neither followed nor removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path

from clusterctl.node.jobs.folder import (
    CHECKPOINT,
    CODE,
    JOB_IDS,
    JOBS,
    METRICS,
    SPEC_FILE,
    JobFolder,
    dumps_by_job,
    is_of_job,
    mtime_of,
)
from clusterctl.node.paths import step_of

# Files of the trainer, and of the tutorial's trainer for TensorFlow 1.
OURS = re.compile(r"\.?model\.ckpt-\d+\..*|events\.out\.tfevents\..*")
UNFINISHED = re.compile(r"\.?model\.ckpt-\d+_temp.*")  # folders
# Too general names to remove, unless checkpoints are next to them.
CHECKPOINT_INDEXES = {"checkpoint", "graph.pbtxt"}
SHIPPED_WITHIN_S = 86400.0  # a younger program without a record may be of a job that is to start


@dataclass(frozen=True)
class Cleaning:
    """A request to remove files.

    `folders` are pairs of a log folder, which may begin with ~, and the name of the log in it; the
    trainer's files are removed there, except in the folders of `keep`. With `jobs`, the folders of
    ended jobs are removed too, except those of the jobs in `running`: those that run, and those
    whose folders these name. `recorded` are the jobs that
    the head node has a record of: the program of another one may be that of a job about to start.
    With `keep_last` above 0, only checkpoints older than the last `keep_last` are removed from a
    log folder, and the last `keep_last` jobs stay. `dumps` is the folder of the Flight Recorder's
    dumps, which go with their job. `dry_run` removes nothing. `force` removes files
    even while a job runs, but for the folders of `running`.
    """

    folders: tuple[tuple[str, str], ...] = ()
    keep: tuple[str, ...] = ()
    jobs: bool = False
    keep_last: int = 0
    dry_run: bool = False
    force: bool = False
    running: tuple[str, ...] = ()
    recorded: tuple[str, ...] = ()
    dumps: str = "/tmp"


@dataclass(frozen=True)
class LogFolder:
    """A log folder, or the folder of an ended job.

    `size_bytes` and `checkpoints` count what is removed. `others` is the number of files that no
    training wrote, which stay.
    """

    path: str
    size_bytes: int = 0
    checkpoints: int = 0
    others: int = 0


@dataclass(frozen=True)
class NodeLogs:
    """What was removed on a node, or would be removed.

    `failed` has a message for each path that could not be removed, `links` one for each symbolic
    link, which stays. `busy` is the id of a running job, because of which nothing was
    removed.
    """

    folders: tuple[LogFolder, ...] = ()
    failed: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    busy: str = ""

    @property
    def size_bytes(self) -> int:
        return sum(folder.size_bytes for folder in self.folders)

    @property
    def checkpoints(self) -> int:
        return sum(folder.checkpoints for folder in self.folders)


def size_of(path: str) -> int:
    """Return the bytes on the disk. Links are not followed."""
    total = 0
    for root, folders, files in os.walk(path):
        for name in [*folders, *files]:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(root, name)).st_blocks * 512  # noqa: PTH118
    return total + os.lstat(path).st_blocks * 512


def submitted(job: Path) -> tuple:
    """Return the key that sorts jobs by time of submission. The IDs do not show it: their times are
    those of users' clocks. A node without the job's record has the time the program came."""
    for path in (JOBS / job.name / SPEC_FILE, CODE / job.name):
        with contextlib.suppress(OSError):
            return path.stat().st_mtime, job.name
    return 0.0, job.name


def may_begin(job: str) -> bool:
    """Return whether a job may be about to start: its program is here, but not its record. A
    program is shipped some time before its job is submitted."""
    shipped = None if (JOBS / job).exists() else mtime_of(CODE / job)
    return shipped is not None and time.time() - shipped < SHIPPED_WITHIN_S


def clean(request: Cleaning) -> NodeLogs:
    """Remove the files. If a job runs here, nothing is removed without `force`."""
    with contextlib.ExitStack() as stack:
        if JOBS.is_dir():
            # `start` holds the lock until its job has a process: then a job without one has ended.
            lock = stack.enter_context((JOBS / ".lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        return _clean(request)


def _clean(request: Cleaning) -> NodeLogs:
    jobs = [job for job in sorted(JOBS.glob(JOB_IDS), key=submitted) if job.is_dir()]
    running = [job.name for job in jobs if JobFolder(job).is_active()]
    if running and not (request.dry_run or request.force):
        return NodeLogs(busy=running[0])  # the oldest: the others may be queued behind it
    removal = _Removal(request)
    removal.take_logs()
    if request.jobs:
        removal.take_jobs([job.name for job in jobs])
    return NodeLogs(tuple(removal.found), tuple(removal.failed), tuple(sorted(set(removal.links))))


class _Removal:
    """What is removed, or with `dry_run` would be, what could not be, and what is a link."""

    def __init__(self, request: Cleaning) -> None:
        self._request = request
        self.found: list[LogFolder] = []
        self.failed: list[str] = []
        self.links: list[str] = []

    def take_logs(self) -> None:
        """Remove what trainings wrote into their log folders."""
        request = self._request
        kept = {os.path.realpath(place(name)) for name in request.keep}  # noqa: PTH114
        names: dict = {}  # of the trainer's logs, by folder
        for name, log in request.folders:
            path = place(name)
            if not self._is_link(path) and os.path.realpath(path) not in kept:  # noqa: PTH114
                names.setdefault(os.path.realpath(path), set()).update({log, f"eval_{log}"})
        for path, logs in names.items():
            try:
                folder, paths = scan(path, logs, request.keep_last)
            except OSError as error:
                if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
                    self.failed.append(f"{error.filename}: {error.strerror}")
                continue
            if paths:
                self._take(folder, paths)
                if not request.dry_run:
                    with contextlib.suppress(OSError):  # other files are left in it
                        os.rmdir(path)  # noqa: PTH106

    def take_jobs(self, recorded: list) -> None:
        """Remove what is kept of ended jobs. `recorded` are those with a record on this node."""
        request = self._request
        dumps = dumps_by_job(Path(request.dumps))
        known = {*dumps, *recorded, *(job.name for job in CODE.glob(JOB_IDS))}
        ids = sorted(known, key=lambda name: submitted(JOBS / name))
        for name in ids[: max(0, len(ids) - request.keep_last)]:
            own = [str(top / name) for top in (JOBS, CODE) if (top / name).is_dir()]
            for dump in dumps.get(name, ()):
                with contextlib.suppress(OSError):
                    own += [str(dump)] * (dump.lstat().st_uid == os.geteuid())
            # A job that is queued, waits for a restart or has its model collected may have no
            # process on this node. The head node's list names it, and only it has a record.
            processes = Path("/proc").glob("[0-9]*")
            is_running = name in request.running or any(is_of_job(one, name) for one in processes)
            begins = name not in request.recorded and may_begin(name)
            if own and not (is_running or begins) and not any(map(self._is_link, own)):
                self._take(LogFolder(own[0]), own)

    def _take(self, folder: LogFolder, paths: list) -> None:
        try:
            size_bytes = sum(map(size_of, paths))
            for path in [] if self._request.dry_run else paths:
                (shutil.rmtree if os.path.isdir(path) else os.unlink)(path)  # noqa: PTH112
            self.found.append(replace(folder, size_bytes=size_bytes))
        except OSError as error:
            self.failed.append(f"{error.filename}: {error.strerror}")

    def _is_link(self, path: str) -> bool:
        if os.path.islink(path):  # noqa: PTH114
            self.links.append(f"{path} is a link to {os.readlink(path)}")  # noqa: PTH115
            return True
        return False


def place(name: str) -> str:
    """Return the path without trailing slashes: a link `x` would be followed as `x/` or `x/.`."""
    return re.sub(r"(/\.?)+$", "", os.path.expanduser(name)) or "/"  # noqa: PTH111


def is_metrics(entry: os.DirEntry) -> bool:
    """Return whether this is the trainer's file: other programs write files of that name, too."""
    if entry.name != METRICS or not entry.is_file(follow_symlinks=False):
        return False
    with open(entry.path, "rb") as file:  # noqa: PTH123
        return file.read(8) == b'{"run": '


def scan(path: str, logs: set, keep_last: int = 0) -> tuple:
    """Return a description of a log folder, and the paths in it that may be removed."""
    with os.scandir(path) as entries:
        there = list(entries)
    if keep_last:
        return old_checkpoints(path, there, keep_last)
    checkpoints = sum(bool(CHECKPOINT.fullmatch(entry.name)) for entry in there)
    names = logs | CHECKPOINT_INDEXES if checkpoints else logs
    ours = [
        entry.path
        for entry in there
        if (
            (OURS.fullmatch(entry.name) or entry.name in names or is_metrics(entry))
            and entry.is_file(follow_symlinks=False)
        )
        or (UNFINISHED.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False))
    ]
    others = len(there) - len(ours)
    return LogFolder(path, checkpoints=checkpoints, others=others), ours


def old_checkpoints(path: str, there: list, keep_last: int) -> tuple:
    """Like `scan`, for all checkpoints of a log folder but the last ones, and nothing else."""
    whole = {step_of(entry.name) for entry in there if CHECKPOINT.fullmatch(entry.name)}
    going = set(sorted(whole)[:-keep_last])
    paths = [
        entry.path
        for entry in there
        if step_of(entry.name) in going and entry.is_file(follow_symlinks=False)
    ]
    others = len(there) - len(paths)
    return LogFolder(path, checkpoints=len(going), others=others), paths
