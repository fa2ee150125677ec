"""The head node's data about a job: its record, its log's beginning and end, its last metrics."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import os
import re
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Optional, Sequence

from clusterctl.node.diagnosis import partners
from clusterctl.node.jobs import processes
from clusterctl.node.jobs.folder import JOBS, METRICS, JobFolder, all_jobs
from clusterctl.node.jobs.listing import summary
from clusterctl.node.jobs.output import TIMES, write_times
from clusterctl.node.jobs.spec import JobRecord, JobSpec, JobState
from clusterctl.node.procfs import read_stat
from clusterctl.node.record import finite, from_data, read_rows, to_data
from clusterctl.node.untrusted import text_in

# A file's time may be so far ahead of the clock, whose resolution is not that of the kernel's.
FUTURE_S = 1.0


@dataclass(frozen=True)
class JobOutput:
    """What a job has written.

    `log_name` is the log's path, of a job that was started by hand.
    `log_first` and `log` are the first and the last lines of the log; `log_silent_s` is the time
    since it was last written. `log_added` are lines that were written during the samples, and
    `own_added` those of a log that a rank writes by itself. If `log_is_older`, the file was there
    before the job, which appends to it, or its lines come late: what was in it then tells nothing
    of the job, so `log` has no other lines. `log_is_shared` if another job writes into it, too.
    `log_is_cut` if it ends within a line: then its writers keep lines back, and write blocks.
    `log_writes` are the last writes to the log: how many seconds ago each was, and how many lines
    it completed; the last of these is the last of `log`.
    `rank_logs` are the last lines of the ranks' own logs, by rank, of a job that has ended.
    `written_bytes` is how much the main threads of the ranks on this host, and of processes that
    have their variables, have written meanwhile, by process ID.
    `metrics` are the last lines of the trainer's metrics.jsonl, and `metrics_silent_s` the time
    since that was last written.
    """

    log_dir: str = ""
    log_name: str = ""
    log_bytes: int = 0
    log_silent_s: Optional[float] = None
    log_first: tuple[str, ...] = ()
    log: tuple[str, ...] = ()
    log_added: tuple[str, ...] = ()
    own_added: tuple[str, ...] = ()
    log_is_older: bool = False
    log_is_shared: bool = False
    log_is_cut: bool = False
    log_writes: tuple[tuple[float, int], ...] = ()
    written_bytes: dict[str, int] = field(default_factory=dict)
    rank_logs: dict[str, tuple[str, ...]] = field(default_factory=dict)
    metrics: tuple[dict[str, Any], ...] = ()
    metrics_silent_s: Optional[float] = None


@dataclass(frozen=True)
class JobOnHead(JobOutput):
    """What `collect` finds. `addresses` are those of the job's nodes by name, `hosts` is the text
    of its hosts file, `line` and `launcher` are command line and process ID of an mpirun started by
    hand, and `group` what its ranks have in common, if it has some there. `others` are the ids of
    other running jobs."""

    found: Optional[JobRecord] = None
    others: tuple[str, ...] = ()
    addresses: dict[str, Optional[str]] = field(default_factory=dict)
    hosts: str = ""
    line: tuple[str, ...] = ()
    launcher: int = 0
    group: str = ""
    age_s: Optional[float] = None
    log_path: str = ""


@dataclass(frozen=True)
class LaterRequest:
    """The output of job `job`, as of `collect`, of whose log `log_bytes` have been read before."""

    job: Optional[str] = None
    log_bytes: int = 0


@dataclass(frozen=True)
class LogRequest:
    """The logs of the job by hand with this name: the process ID of its launcher, or what its ranks
    have in common. Without a name: of all jobs by hand."""

    job: str = ""


@dataclass(frozen=True)
class LauncherLog:
    """A file to which jobs on this node write, of `size` bytes. Of a long one `text` is the
    beginning, `last` the end, and `left_out` the number of bytes between them. `path` is empty if
    the output goes to no file, and `error` is why it cannot be read."""

    job: str
    path: str = ""
    size: int = 0
    text: str = ""
    last: str = ""
    left_out: int = 0
    error: str = ""


FIRST_LINES = 40  # of the log
MOST_RANKS, RANK_LINES, RANK_COLUMNS = 256, 40, 400  # of the ranks' own logs
METRICS_LINES = 200  # at the end of the metrics
LONGEST_LINE = 4096  # bytes of a line that are kept
MOST_BYTES = 2 << 20  # read at the end of a log
MOST_PIPES = 3  # one after another, between a job and its log
MOST_OF_LOGS = 4 << 20  # bytes of all logs together: no response may be longer than 16 MiB
# The options with which script(1) writes each line at once.
FLUSHES = re.compile(r"-\w*f|--flush").match
# Ends of names by which a log is recognized beside the metrics, if mpirun writes to no file.
LOGS = (".log", ".out", ".txt", "log")


def collect(job_id: str | None, log_lines: int, watched_s: float = 0.0) -> dict[str, Any]:
    """Return the evidence about job `job_id`, as the data of a JobOnHead. Without an ID: about the
    running job, else about an mpirun started by hand, else about the latest job.

    It takes `watched_s`, and `log_added` is what was written meanwhile.
    """
    before = _collect(job_id, 0) if watched_s else {}
    path, writers = before.get("log_path", ""), before.get("writers", ())
    # What is in the log is read between what its writers have written: so that is never less.
    wrote, size = _written_bytes(writers), _size_of(path)
    time.sleep(watched_s)
    found = _collect(job_id, log_lines)
    if path and path == found.get("log_path"):
        found["log_added"] = _added(path, size)
        if found.get("log_is_older"):
            found["log"] = found["log_added"]
    grown = (_added(*one) for one in before.get("own_logs", {}).items())
    found["own_added"] = next(filter(None, grown), [])
    by_now = _written_bytes(writers)
    found["written_bytes"] = {pid: by_now[pid] - wrote[pid] for pid in wrote.keys() & by_now.keys()}
    own = ("log_path", "own_logs", "writers")
    return {name: one for name, one in found.items() if name not in own}


def _written_bytes(pids: Sequence[int]) -> dict[str, int]:
    """Return the bytes that the main threads of these processes have written, as far as known."""
    texts = {pid: text_in(Path(f"/proc/{pid}/task/{pid}/io")) for pid in pids}
    found = {pid: re.search(r"wchar: (\d+)", text) for pid, text in texts.items()}
    return {str(pid): int(one[1]) for pid, one in found.items() if one}


def _size_of(path: str) -> int:
    with contextlib.suppress(OSError):
        return os.path.getsize(path)  # noqa: PTH202
    return 0


def later_output(request: LaterRequest) -> JobOutput:
    """Return what a job has written by now, as `metrics`, and since as `log_added`."""
    found = _collect(request.job, 0)
    path = found.get("log_path", "")
    found["log_added"] = _added(path, request.log_bytes) if path else []
    names = ("log_name", "log_added", "metrics", "metrics_silent_s")
    return from_data(JobOutput, {name: found[name] for name in names if name in found})


@dataclass(frozen=True)
class JobByHand:
    """A job that was started by hand, as far as it is on this node: its outermost launcher, and its
    ranks. `name` is the process ID of the launcher, or what the ranks have in common."""

    name: str
    launcher: Optional[processes.Process]
    ranks: tuple[processes.Process, ...]


class OpenLog(NamedTuple):
    """A file to which a job writes. `source` is where it can be read: a process has it open, and
    its path may be another's, or gone. `infos` are what /proc has of those that it has open. What
    is written there `is_late` if the process keeps it for a while."""

    path: str
    source: str
    infos: tuple[str, ...] = ()
    is_late: bool = False


def jobs_by_hand(found: list[processes.Process]) -> list[JobByHand]:
    """Return the jobs among these processes that clusterctl has not started."""
    groups, above = processes.groups_of(found), {one.pid: one for one in found}
    outside = [one for one in found if processes.JOB not in one.environ]
    every = {one.pid for one in outside if one.role == "launcher"}
    ranks: dict[str, list[processes.Process]] = {}
    for one in outside:
        if one.role == "rank":
            ranks.setdefault(groups.get(one.pid, ""), []).append(one)
    jobs = []
    for one in outside:
        # What a launcher writes to one above it is in the log of that one.
        if one.pid in every and every & processes.ancestors(above, one.pid) == {one.pid}:
            own = ranks.pop(groups[one.pid], []) if one.pid in groups else []
            jobs.append(JobByHand(str(one.pid), one, tuple(own)))
    return [*jobs, *(JobByHand(name, None, tuple(own)) for name, own in ranks.items())]


def job_logs(request: LogRequest) -> tuple[LauncherLog, ...]:
    """Return the logs of jobs that were started by hand on this host: each file once, and each
    job without one."""
    partners.forget()
    logs: dict[str, tuple[OpenLog, str]] = {}
    silent = []
    for job in jobs_by_hand(processes.find_any()):
        if request.job in ("", job.name):
            own, _ = _files_of(job)
            for one in own:
                logs.setdefault(one.path, (one, job.name))
            # The launcher of ranks without one may be on another host, and its log there.
            silent += [] if own or not job.launcher else [LauncherLog(job.name)]
    share = MOST_OF_LOGS // max(1, len(logs))
    return (*(_text_of(name, log, share) for log, name in logs.values()), *silent)


def _text_of(job: str, log: OpenLog, most: int) -> LauncherLog:
    try:
        with open(log.source, "rb") as file:  # noqa: PTH123
            size = os.fstat(file.fileno()).st_size
            left_out = max(0, size - most)
            first = file.read(most // 2 if left_out else most)
            file.seek(max(0, size - most // 2))
            last = file.read(most // 2) if left_out else b""
    except OSError as error:
        return LauncherLog(job, log.path, error=error.strerror or str(error))
    text, end = (one.decode(errors="replace") for one in (first, last))
    return LauncherLog(job, log.path, size, text, end, left_out)


def _added(path: str, start: int) -> list[str]:
    """Return the lines of a log from this byte on, the last MOST_BYTES of it."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            file.seek(max(start, os.path.getsize(path) - MOST_BYTES))  # noqa: PTH202
            return [_line(line) for line in file.read(MOST_BYTES).splitlines()]
    except OSError:
        return []


def _collect(job_id: str | None, log_lines: int) -> dict[str, Any]:
    partners.forget()
    trainings = [one for one in [job.record() for job in all_jobs()] if one.spec.is_training]
    running = [one for one in trainings if one.state is JobState.RUNNING]
    every = processes.find_any()
    jobs = jobs_by_hand(every)
    by_hand = [one for one in jobs if one.launcher]
    named = [one for one in trainings if one.job_id == job_id]
    chosen = named if job_id else (running or ([] if by_hand else trainings))[-1:]
    # Ranks of other running jobs are not left over. Those of an mpirun started by hand have no ID.
    others = [one.job_id for one in running if one not in chosen] + [""] * bool(by_hand)
    if chosen:
        mark = os.fsencode(chosen[0].job_id)
        writers = [
            x.pid for x in every if x.role == "rank" and x.environ.get(processes.JOB) == mark
        ]
        return {**_of_record(chosen[0], log_lines), "others": others, "writers": writers}
    by_hand = [one for one in by_hand if one.name == job_id] or by_hand
    largest = max(by_hand, key=lambda one: len(one.ranks), default=None)
    launcher = largest.launcher if largest else None
    rest = [one for one in jobs if one is not largest]
    shown = {}
    if largest and launcher:
        shown = _of_hand(largest, launcher, log_lines, rest)
        shown["group"] = processes.groups_of(every).get(launcher.pid, "")
    return {**shown, "found": None, "others": [one.job_id for one in running]}


def _of_record(record: JobRecord, log_lines: int) -> dict[str, Any]:
    folder, spec = JOBS / record.job_id, record.spec
    workdir = Path(os.path.expanduser(spec.workdir or "~"))  # noqa: PTH111
    return {
        "found": to_data(summary(record)),
        "addresses": {one.get("name"): one.get("address") for one in spec.nodes},
        # After a retry, the job has a hosts file of its own. That of the cluster may have changed.
        "hosts": text_in(folder / "hosts") or hosts_of(spec) or text_in(workdir / "hosts"),
        **_log(folder / "log", log_lines),
        "rank_logs": {} if record.is_active or not log_lines else _rank_logs(folder),
        **_metrics(JobFolder(folder).metrics(spec, record.status)),
    }


def hosts_of(spec: JobSpec) -> str:
    """Return the hosts file of a job's nodes when it began; empty if it has no record of them."""
    slots = [(one.get("address"), one.get("slots")) for one in spec.nodes]
    return "".join(f"{host} slots={count}\n" for host, count in slots if host and count)


def _rank_logs(folder: Path) -> dict[str, list[str]]:
    """Return the last lines of the logs of the ranks, by rank; of the first MOST_RANKS."""
    found = {}
    for rank in range(MOST_RANKS):
        lines = _log(folder / f"log-{rank}", RANK_LINES).get("log")
        if lines is None:
            break
        if lines:
            found[str(rank)] = [line[:RANK_COLUMNS] for line in lines]
    return found


def _files_of(job: JobByHand) -> tuple[list[OpenLog], str | None]:
    """Return the logs of a job by hand, and its metrics. They are among the files that its launcher
    and the ranks on this node have open, or that who reads their output has."""
    paths = _open_paths(job.ranks)
    metrics = next((path for path in paths if path.endswith("/" + METRICS)), None)
    beside = [path for path in paths if metrics and Path(path).parent == Path(metrics).parent]
    logs = _outputs((job.launcher,) if job.launcher else ()) or _outputs(job.ranks)
    logs = logs or [OpenLog(one, one) for one in beside if one.endswith(LOGS)][:1]
    return logs, metrics


def _outputs(writers: Sequence[processes.Process]) -> list[OpenLog]:
    """Return the files to which the output of these processes goes, also through a pipe, as tee's,
    or a terminal, as that of script(1)."""
    found: dict[str, OpenLog] = {}
    for one in writers:
        waiting = [(one.pid, fd, 0) for fd in ("1", "2")]
        for pid, fd, depth in waiting:
            with contextlib.suppress(OSError):
                target, source = _target(pid, fd), Path(f"/proc/{pid}/fd/{fd}")
                readers: list[int] = []
                if source.is_fifo():
                    line = _line_of(pid)
                    readers = [at for at in partners.readers_of(target, pid) if at not in line]
                elif target.startswith("/dev/pts/"):
                    masters = partners.masters_of(target.rpartition("/")[2])
                    readers = [at for at in masters if _script_of(at)]
                elif source.is_file():
                    before = found.get(target) or OpenLog(target, _readable(target, source))
                    infos = (*before.infos, f"/proc/{pid}/fdinfo/{fd}")
                    script = _script_of(pid)
                    is_late = bool(script) and not any(map(FLUSHES, script))
                    found[target] = before._replace(infos=infos, is_late=is_late)
                if depth < MOST_PIPES:
                    ends = [(at, other) for at in readers for other in partners.written_by(at)]
                    waiting += [(at, other, depth + 1) for at, other in ends]
    return [*found.values()]


def _script_of(pid: int) -> list[str]:
    """Return the command line of a process that runs script(1), which writes what is shown on a
    terminal into a file; empty for another one."""
    words = text_in(Path(f"/proc/{pid}/cmdline")).split("\0")
    return words if words[0].rpartition("/")[2] == "script" else []


def _readable(path: str, source: Path) -> str:
    """Return the path of a file that a process has open, or what is open, if that is another."""
    with contextlib.suppress(OSError):  # it is deleted, or on a mount that only that process has
        if source.samefile(path):
            return path
    return str(source)


def _target(pid: int, fd: str) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/fd/{fd}")  # noqa: PTH115
    return ""


def _line_of(pid: int) -> set[int]:
    """Return a process and its ancestors: one that reads what it has started may write any file."""
    line: set[int] = set()
    with contextlib.suppress(OSError, IndexError):
        while pid and pid not in line:
            line.add(pid)
            pid = int(read_stat(f"/proc/{pid}")[1][1])
    return line


def _of_hand(
    job: JobByHand, launcher: processes.Process, log_lines: int, rest: Sequence[JobByHand] = ()
) -> dict[str, Any]:
    """Return the evidence about a job that was started by hand. `rest` are the other jobs."""
    logs, metrics = _files_of(job)
    hosts = ""
    words = [*launcher.argv, ""]
    for word, value in zip(words, words[1:]):
        if word in ("--hostfile", "-hostfile", "--machinefile", "-machinefile"):
            with contextlib.suppress(OSError):
                cwd = os.readlink(f"/proc/{launcher.pid}/cwd")  # noqa: PTH115
                hosts = text_in(Path(cwd, value))
    age_s = processes.describe(launcher).age_s
    log = _log(Path(logs[0].source) if logs else None, log_lines)
    if (log.get("log_silent_s") or 0.0) > age_s + FUTURE_S:
        log.update(log_silent_s=None)  # the clock was set, or another job has written last
    appended = _appended_bytes(logs[0].infos) if logs else None
    if appended == 0:
        log.update(log_silent_s=age_s, log_path="", log_first=[], log=[])
    elif appended and _was_made_before(logs[0].source, _writes_for_s(launcher, logs[0].path)):
        log.update(log_is_older=True, log_first=[], log=[])
    elif logs and logs[0].is_late:
        log.update(log_is_older=True, log_silent_s=None, log_first=[], log=[])
    return {
        "line": launcher.argv,
        "launcher": launcher.pid,
        "age_s": age_s,
        "log_dir": str(Path(metrics).parent) if metrics else "",
        "hosts": hosts,
        "log_name": logs[0].path if logs else "",
        "log_is_shared": any(
            one.path == logs[0].path for other in rest for one in _files_of(other)[0] if logs
        ),
        "writers": [one.pid for one in job.ranks],
        "own_logs": _own_logs(job.ranks, [one.path for one in logs]),
        **log,
        **_metrics(Path(metrics) if metrics else None),
    }


def _appended_bytes(infos: Sequence[str]) -> int | None:
    """Return where a file ended after what was last appended to it by those that opened it so (as
    nohup and `>>` do); 0 if they have written nothing, None if it is not opened so.

    Of `>>log 2>>log`, each has a position of its own, and a program may write to one only.
    """
    ends = []
    for info in infos:
        words = text_in(Path(info)).split()
        facts = dict(zip(words[::2], words[1::2]))
        if int(facts.get("flags:", "0"), 8) & os.O_APPEND:
            ends.append(int(facts.get("pos:", "0")))
    return max(ends, default=None)


def _writes_for_s(launcher: processes.Process, path: str) -> float:
    """Return how long the job's output may have gone to a file: the age of the script that has
    started the launcher, if its output goes there, too, as that of `nohup ./run.sh`."""
    ages = [processes.describe(launcher).age_s]
    for pid in _line_of(launcher.ppid):
        if path in (_target(pid, "1"), _target(pid, "2")):
            with contextlib.suppress(OSError):
                ages.append(processes.describe(processes.read_process(pid)).age_s)
    return max(ages)


def _was_made_before(path: str, age_s: float) -> bool:
    """Return whether a file was made more than `age_s` ago; False if that is not known."""
    stat = ["stat", "--dereference", "--format=%W", path]
    made = subprocess.run(stat, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    made_s = int(made.stdout) if made.stdout.strip().isdigit() else 0
    return bool(made_s) and time.time() - made_s > age_s + FUTURE_S


def _open_paths(found: Sequence[processes.Process]) -> list[str]:
    paths: list[str] = []
    for one in found:
        with contextlib.suppress(OSError):
            for fd in sorted(os.listdir(f"/proc/{one.pid}/fd"), key=int):  # noqa: PTH208
                path = _target(one.pid, fd)
                # A file on a mount that is dead would never be found. These are few.
                if path.endswith((METRICS, *LOGS)) and os.path.isfile(path):  # noqa: PTH113
                    paths.append(path)
    return paths


def _own_logs(ranks: Sequence[processes.Process], known: Sequence[str]) -> dict[str, int]:
    """Return the logs that ranks write by themselves, but for those that are known, with their
    sizes. A program may keep its lines for long before it writes them."""
    ends = [(one.pid, fd) for one in ranks for fd in partners.written_by(one.pid)]
    paths = {path for pid, fd in ends if (path := _target(pid, fd)).endswith(LOGS)}
    return {path: _size_of(path) for path in sorted(paths.difference(known))}


def _log(path: Path | None, lines: int) -> dict[str, Any]:
    try:
        if path is None:
            return {}
        state = path.stat()
        with path.open("rb") as file:
            first = file.read(FIRST_LINES * 512).splitlines()[:FIRST_LINES]
            file.seek(max(0, state.st_size - MOST_BYTES))
            raw = file.read(MOST_BYTES).splitlines(keepends=True)[-lines:] if lines else []
            end = file.tell()
    except OSError:
        return {}
    return {
        "log_path": str(path),
        "log_writes": _writes(path.with_name(TIMES), end, raw) if path.name == "log" else [],
        "log_bytes": state.st_size,
        "log_silent_s": _age_s(state.st_mtime, time.time()),
        # A bar that is drawn again and again ends so, too, and begins after \r.
        "log_is_cut": len(raw) > 1
        and not raw[-1].endswith((b"\n", b"\r"))
        and raw[-2][-1:] == b"\n",
        "log_first": [_line(line) for line in first],
        "log": [_line(line.rstrip(b"\r\n")) for line in raw],
    }


def _age_s(written: float, now: float) -> Optional[float]:
    """Return the seconds since a file was written; None if that is in the future.

    A clock that was set back tells nothing about it: it could have been written long ago.
    """
    age_s = now - written
    return round(max(0.0, age_s), 1) if age_s > -FUTURE_S else None


def _writes(times: Path, end: int, lines: list[bytes]) -> list[tuple[float, int]]:
    """Return the last writes to a log: how many seconds ago each was, and how many of the log's
    last `lines`, which end at byte `end`, it completed. Nothing without a job's file of times."""
    try:
        writes = write_times(times.read_bytes())
    except OSError:
        return []
    ends = list(itertools.accumulate(map(len, lines), initial=end - sum(map(len, lines))))[1:]
    before = [bisect.bisect_right(ends, size) for _, size in writes]
    now = time.time()
    return [
        (round(max(0.0, now - at_s), 2), upto - done)
        for (at_s, _), done, upto in zip(writes[1:], before, before[1:])
        if upto > done and at_s <= now + FUTURE_S
    ]


def _line(raw: bytes) -> str:
    return raw[:LONGEST_LINE].decode(errors="replace")


def _metrics(path: Path | None) -> dict[str, Any]:
    found = _log(path, METRICS_LINES)
    rows = read_rows(dict, "\n".join(found.get("log", []))).rows
    return {"metrics": finite(rows), "metrics_silent_s": found.get("log_silent_s")}
