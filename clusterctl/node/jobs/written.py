"""Runs on a node, by `call`: the files that jobs have written there, which go with the node's disk.

What counts is the time of the inode's last change (ctime): a program may set the other times, as by
copying, but not this one. Reading a file, as `fetch` does, leaves it. A change of mode, owner or
links makes it a new one, though the content is the same: then the file counts as not fetched. A
file that is written twice within a tick of the kernel's clock (4 ms at 250 Hz), and listed between
the two, is the only change that is not found.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Dict, Optional

from clusterctl.node.jobs.folder import (
    CHECKPOINT,
    CODE,
    COLLECTED,
    HALF_CHECKPOINT,
    JOB_IDS,
    JOBS,
    KNOWN_HOSTS,
    MANIFEST,
    SHIPPED,
    JobFolder,
    all_jobs,
)
from clusterctl.node.jobs.spec import SERVE
from clusterctl.node.paths import EXAMPLES_FOLDER, LOG_FOLDER
from clusterctl.node.record import RecordError, from_json, to_json
from clusterctl.node.relay.protect import OF_HOME, protected, why_needed
from clusterctl.node.untrusted import text_in

FETCHED = "fetched.json"  # in the job's folder: what `note_fetched` was given
CHECKPOINTS, MODEL, FILES = "checkpoints", "model", "files"
KINDS = {"model": MODEL}
# Folders of runs that were started by hand: as in the tutorial, and next to the shipped trainer.
BY_HAND = (LOG_FOLDER, f"{EXAMPLES_FOLDER}/{LOG_FOLDER}")
# Keys and other jobs; in a working folder also what Python and clusterctl write next to a program.
NO_RESULTS = set(map(os.fsdecode, OF_HOME))
NEXT_TO_A_PROGRAM = {"__pycache__", SHIPPED}
# What clusterctl itself writes next to the shipped trainer, also while jobs run there.
HOSTS = f"{EXAMPLES_FOLDER}/hosts"
MOST_UNREAD = 5
CLOCK_SLACK_S = 0.1  # the heartbeat has one decimal, and times of change lag by a tick


@dataclass(frozen=True)
class OutputFolder:
    """A folder that a job writes into. `job` is its ID, empty for a folder that no job of this
    cluster has written. `kind` is checkpoints, model or files.

    Only files count that were written from `since` to `until`, seconds since 1970 by the node's
    clock (None is no limit), and that are not in the list `shipped` of each node (empty for none).
    `hosts` are the other nodes with ranks, which may write there, too: names, and addresses of
    machines that the job did not begin on.
    """

    job: str
    path: str
    kind: str
    since: Optional[float] = None
    until: Optional[float] = None
    shipped: str = ""
    hosts: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether all that is in the folder counts: it is no working folder."""
        return self.since is None and not self.shipped


@dataclass(frozen=True)
class Trees:
    """Folders to list. With `named`, each OutputFiles names its files. With `recorded`, the IDs of
    all jobs that the head node has a record of, also folders here of no job, and of other jobs."""

    trees: tuple[OutputFolder, ...]
    named: bool = False
    recorded: Optional[tuple[str, ...]] = None


@dataclass(frozen=True)
class OutputFiles:
    """What is in an OutputFolder: at least one file, or something that cannot be read. `digest` is
    that of all names, sizes, times of change and inodes. `names` are paths below `path`. `unread`
    names the first paths that cannot be read, with the reasons."""

    job: str
    path: str
    kind: str
    files: int
    bytes: int
    digest: str
    names: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


@dataclass(frozen=True)
class Going:
    """A job that has not ended."""

    id: str
    serves: bool


@dataclass(frozen=True)
class Overview:
    """On the head node: the jobs that have not ended, the folders that jobs write into, what is in
    those of the head node, and the digests of what was fetched, by job (each that has a record),
    host and path. `unknown` is why, for each job whose folders are not known. `joined` are the
    names and addresses of the nodes that were given to the head node."""

    jobs: tuple[Going, ...]
    trees: tuple[OutputFolder, ...]
    found: tuple[OutputFiles, ...]
    fetched: dict[str, dict[str, dict[str, str]]]
    unknown: dict[str, str] = field(default_factory=dict)
    joined: tuple[str, ...] = ()


@dataclass(frozen=True)
class FetchedOutput:
    """The digests of what was fetched of a job, by host and path."""

    job: str
    digests: dict[str, dict[str, str]] = field(default_factory=dict)


def trees_of(folder: Path, in_s3: bool = False) -> list[OutputFolder]:
    """Return the folders of a job: none for a copy or a served model, nor, unless `in_s3`, that of
    a model that is in S3. Raises OSError if the job's specification cannot be read."""
    spec, problem = JobFolder(folder).known_spec()
    if problem:
        raise OSError(f"where job {folder.name} wrote is not known: {problem}")
    code = CODE / folder.name
    status = JobFolder(folder).status()
    others = (*dict.fromkeys((*spec.hosts, *status.ran_on)),)[1:]

    def tree(path: Path, kind: str, hosts: tuple[str, ...] = (), shipped: str = "") -> OutputFolder:
        return OutputFolder(folder.name, str(path), kind, hosts=hosts, shipped=shipped)

    if not (spec.is_training and spec.argv):
        return []
    chosen = Path(spec.output) if spec.output else None
    is_own = chosen and code in (chosen, *chosen.parents)
    output = [tree(chosen, FILES, hosts=others)] if chosen and not is_own else []
    if spec.log_dir:
        return [*output, tree(Path(spec.workdir, spec.log_dir), CHECKPOINTS)]
    if spec.model_dir is not None:
        working = code / "code"  # what the program wrote next to itself is collected nowhere
        own = [tree(working, FILES, hosts=others, shipped=str(code / SHIPPED))]
        if spec.model_dir and status.exit_status == 0 and not in_s3:
            return own
        if (folder / MANIFEST).exists():
            return [tree(folder / name, KINDS.get(name, FILES)) for name in COLLECTED] + own
        named = COLLECTED[:2]
        return [tree(code / name, KINDS.get(name, FILES), hosts=others) for name in named] + own
    if code.is_dir():
        return [*output, tree(code, FILES, hosts=others, shipped=str(code / SHIPPED))]
    if output:
        return output
    # A program of the nodes works in the folder of the examples, as other jobs do.
    job = JobFolder(folder).record()
    since = job.status.started_at or job.status.submitted_at
    until = job.now if job.is_active else job.status.ended_at
    low, high = JobFolder(folder).clock_range()
    since, until = min(since, low - CLOCK_SLACK_S), until and max(until, high + CLOCK_SLACK_S)
    return [replace(tree(Path(spec.workdir), FILES, others), since=since, until=until)]


def all_trees() -> tuple[list[OutputFolder], list[OutputFolder], dict[str, str]]:
    """Return the folders of all jobs, each once: that of the latest job that wrote there. Then
    those that only earlier jobs have on some of the other nodes. And why those of a job are not
    known, by job."""
    found: dict[tuple, OutputFolder] = {}
    earlier: list[OutputFolder] = []
    hosts_of: dict[tuple, set[str]] = {}
    unknown = {}
    jobs = all_jobs()[::-1]
    jobs.sort(key=lambda one: not one.has_written())
    for job in jobs:
        try:
            for tree in trees_of(job.path):
                key = os.path.realpath(tree.path), tree.since  # noqa: PTH114
                hosts = hosts_of.setdefault(key, set())
                if found.setdefault(key, tree) is not tree:
                    earlier.append(
                        replace(tree, hosts=tuple(one for one in tree.hosts if one not in hosts))
                    )
                hosts.update(tree.hosts)
        except OSError as error:
            unknown[job.job_id] = str(error)
    return [*found.values()][::-1], [one for one in earlier if one.hosts], unknown


def _of_no_record(trees: Sequence[OutputFolder], recorded: Collection[str]) -> list[OutputFolder]:
    """Return the folders here of runs that were started by hand, and of the programs of jobs that
    are not among those `recorded` and ran on other nodes, too. A folder of `trees` is a job's."""
    known = {os.path.realpath(tree.path) for tree in trees}  # noqa: PTH114
    by_hand = (str(Path.home() / name) for name in BY_HAND)
    found = [
        OutputFolder("", path, CHECKPOINTS)
        for path in by_hand
        if os.path.realpath(path) not in known  # noqa: PTH114
    ]
    for code in CODE.glob(JOB_IDS):
        if code.name in recorded:
            continue
        # A script-mode program has a folder next to its channels and what clusterctl writes there.
        is_script_mode = (code / "input" / "config").is_dir() and (code / "code").is_dir()
        parts = [code / name for name in ("code", *COLLECTED[:2])]
        places = parts if is_script_mode else [code]
        shipped = str(code / SHIPPED)
        found += [OutputFolder(code.name, str(one), FILES, shipped=shipped) for one in places]
    return found


def list_files(tree: OutputFolder) -> tuple[list[tuple[str, os.stat_result]], list[str]]:
    """Return the regular files of a folder that count, as paths below it, and what could not be
    read, with the reasons: what is there is not known. Links are not followed."""
    found: list[tuple[str, os.stat_result]] = []
    unread: list[str] = []

    def note(error: OSError) -> None:
        is_gone = isinstance(error, NotADirectoryError) and not os.path.lexists(error.filename)
        if not (is_gone or isinstance(error, FileNotFoundError)):
            unread.append(f"{error.filename}: {error.strerror}")

    why = why_no_results(tree.path, tree.job)
    if why:
        return [], [why]
    since, until = tree.since or 0.0, tree.until or float("inf")
    shipped = shipped_files(tree.shipped)
    left_out = NO_RESULTS if tree.is_whole else NO_RESULTS | NEXT_TO_A_PROGRAM
    half = HALF_CHECKPOINT if tree.kind == CHECKPOINTS else re.compile("(?!)")
    hosts = str(Path.home() / HOSTS)
    for root, folders, names in os.walk(tree.path, onerror=note):
        folders[:] = sorted(one for one in {*folders} - left_out if not half.fullmatch(one))
        for name in sorted(one for one in {*names} - left_out if not half.fullmatch(one)):
            path = os.path.join(root, name)  # noqa: PTH118
            if path == hosts:
                continue
            try:
                status = os.lstat(path)
            except OSError as error:  # a file that was removed meanwhile is no loss
                note(error)
                continue
            is_known = (status.st_ino, status.st_ctime_ns) in shipped
            if not stat.S_ISREG(status.st_mode) or is_known or not since < status.st_ctime <= until:
                continue
            if os.access(path, os.R_OK):
                found.append((os.path.relpath(path, tree.path), status))
            elif os.path.lexists(path):  # the others can be fetched all the same
                unread.append(f"{path}: {os.strerror(errno.EACCES)}")
    return found, unread


def why_no_results(path: str, job: str) -> str:
    """Return why a folder is not taken for a job's results: the node, or a login to it, needs it.
    Empty if it is. Below the job's own folders any is taken, and without a job."""
    real = os.path.realpath(path)  # noqa: PTH114
    own = (os.path.realpath(one / job) for one in (CODE, JOBS))  # noqa: PTH114
    if not job or any(os.path.commonpath([one, real]) == one for one in own):
        return ""
    why = why_needed(os.fsencode(path), protected(os.fsencode(Path.home())))
    return f"{why}, which the node needs" if why else ""


def shipped_files(path: str) -> set[tuple[int, int]]:
    """Return inode and time of change of the files that a list names; empty if it is missing."""
    found = set()
    for line in text_in(Path(path)).splitlines() if path else ():
        with contextlib.suppress(ValueError):
            inode, _, changed = line.partition(" ")
            seconds, _, rest = changed.partition(".")
            found.add((int(inode), int(seconds + rest[:9].ljust(9, "0"))))
    return found


def found_in(tree: OutputFolder, named: bool = False) -> OutputFiles | None:
    """Return what is in a folder, with names if `named`; None if nothing counts.

    Of the trainer's folder nothing counts without a checkpoint: its logs and records are made again
    in no time.
    """
    files, unread = list_files(tree)
    if tree.kind == CHECKPOINTS and not any(CHECKPOINT.fullmatch(name) for name, _ in files):
        files = []
    if not (files or unread):
        return None
    import hashlib

    content = hashlib.sha256()
    for name, status in files:
        about = (status.st_size, status.st_ctime_ns, status.st_ino)
        content.update(os.fsencode(name) + b"\0%d %d %d\n" % about)
    return OutputFiles(
        *(tree.job, tree.path, tree.kind, len(files)),
        bytes=sum(status.st_size for _, status in files),
        digest=content.hexdigest(),
        names=tuple(name for name, _ in files) if named else (),
        unread=tuple(unread[:MOST_UNREAD]),
    )


def find_output(request: Trees) -> tuple[OutputFiles, ...]:
    """Return what is in these folders here."""
    trees = [*request.trees]
    if request.recorded is not None:
        trees += _of_no_record(trees, request.recorded)
    found = (found_in(tree, request.named) for tree in trees)
    return tuple(one for one in found if one)


def list_trees(request: str) -> tuple[OutputFolder, ...]:
    """Return, on the head node, the folders that the job of this ID writes into. Where another
    training has written into its log folder since, that is the other job's: nothing tells which of
    the checkpoints are whose. Raises OSError."""
    latest = {os.path.realpath(one.path): one for one in all_trees()[0]}  # noqa: PTH114
    own = trees_of(JOBS / request, in_s3=True)
    return tuple(
        latest.get(os.path.realpath(one.path), one) if one.kind == CHECKPOINTS else one  # noqa: PTH114
        for one in own
    )


def note_fetched(request: FetchedOutput) -> None:
    """Add to what was fetched of a job, unless `clean-logs` has removed it meanwhile: then it has
    no results that anybody could lose. Raises OSError."""
    folder = JOBS / request.job
    if not folder.exists():
        return
    known = fetched_of(folder)
    for host, digests in request.digests.items():
        known[host] = {**known.get(host, {}), **digests}
    new = folder / (FETCHED + ".new")
    new.write_text(to_json(known))
    new.replace(folder / FETCHED)


def fetched_of(folder: Path) -> dict[str, dict[str, str]]:
    """Return the digests of what was fetched of a job. Of a damaged record nothing counts as
    fetched: files that are fetched twice are better than files that are lost."""
    try:
        return from_json(Dict[str, Dict[str, str]], (folder / FETCHED).read_bytes())
    except (OSError, RecordError):
        return {}


def overview(request: None) -> Overview:
    """Return, on the head node, what all jobs have written and what was fetched. What cannot be
    read of one job or folder hides no other."""
    going = []
    listed, earlier, unknown = all_trees()
    for one in all_jobs():
        try:
            job = one.record()
        except OSError as error:
            unknown.setdefault(one.job_id, f"job {one.job_id}: {error.filename}: {error.strerror}")
            continue
        if job.is_active:
            going.append(Going(job.job_id, job.spec.preset == SERVE))
    fetched = {one.job_id: fetched_of(one.path) for one in all_jobs()}
    found = find_output(Trees(tuple(listed), recorded=tuple(fetched)))
    lines = text_in(Path.home() / ".ssh" / KNOWN_HOSTS).splitlines()
    joined = tuple(name for line in lines for name in line.split(" ", 1)[0].split(","))
    return Overview(tuple(going), (*listed, *earlier), found, fetched, unknown, joined)
