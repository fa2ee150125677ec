"""Runs on a node: finds and ends this user's processes of MPI jobs.

The processes of jobs are those that have a job's or a rank's variable in their environment, Open
MPI's launchers and daemons and the program of train.sh, whoever started them, and the descendants
of all these. A program may write its title over its environment (setproctitle); if its parent ends,
too, only the session (setsid(2)) shows that it belongs to a job. So what is in a session that was
made for a job is found as well: one whose leader is the job's, or is the process that the job's
record names, and each session that an earlier list has shown.
A user's shells, editors, notebooks and other Python processes are not among them.
This program and its ancestors are never among them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Iterable, Mapping, NamedTuple, Optional, Sequence

from clusterctl.node.jobs import launchers
from clusterctl.node.jobs.folder import JOBS, START_DAEMON_PATH, JobFolder
from clusterctl.node.procfs import (
    JOB_VARIABLE,
    TICKS,
    boot_id,
    environ_of,
    living_thread,
    read_stat,
)

# Environment variables.
JOB = JOB_VARIABLE.encode()
RANKS = (b"OMPI_COMM_WORLD_RANK", b"PMI_RANK")
LAUNCHERS = ("mpirun", "mpiexec", "orterun", "prterun", "ompirun_wrapper", "mpiexec.hydra")
DAEMONS = ("orted", "prted", "ompi_prted", "hydra_pmi_proxy")
# On nodes of a cluster, only `diagnose` inspects those: `kill` ends nothing because of them.
OTHER_LAUNCHERS = ("srun", "mpirun.mpich", "mpiexec.mpich", "mpirun.openmpi", "mpiexec.openmpi")
OTHER_DAEMONS = ("hydra_bstrap_proxy",)
# Options with which any of them starts no rank.
QUESTIONS = ("--version", "-version", "-V", "--help", "-help", "-h")
# A script of theirs may start a rank, as its parent or by exec.
SHELLS = ("sh", "bash", "dash", "zsh", "ksh", "mksh", "tcsh", "csh", "busybox")
# The modules by which Python starts ranks, and the programs of the same names.
STARTERS = re.compile(
    r"horovodrun|torchrun|deepspeed|accelerate|torch\.distributed\.(?:run|launch)"
    r"|deepspeed\.launcher\.(?:launch|runner)|accelerate\.commands\.launch"
)
# Where the program of train.sh is, in the home folder.
TRAIN_SH = "/.clusterctl/launch.pyz"
# What is left of an environment under a title has fewer variables with a value.
FEW_VARIABLES = 3
TERM_GRACE_S = 5.0
KILL_GRACE_S = 5.0
SHORT_COMMAND = 72  # characters of a line on the screen


@dataclass(frozen=True)
class NodeProcess:
    """A process of a job on a node. `role` is rank, launcher, daemon, job, child or python.

    `rank` and `job_id` are None for a process that has none. `age_s` is in seconds. `ended` is
    terminated, killed, or empty for a process that still runs. `session` identifies its session if
    that is a job's: what is in it belongs to the job, also when nothing else shows that any more.
    `group` identifies the job, of any launcher, on all hosts; empty if unknown. `parent` is the
    process that has started it. The caller adds `host`.
    """

    host: str
    pid: int
    rank: Optional[int]
    role: str
    job_id: Optional[str]
    age_s: float
    argv: tuple[str, ...]
    ended: str = ""
    session: str = ""
    group: str = ""
    parent: int = 0

    @property
    def command(self) -> str:
        """The command line as one line: characters that cannot be printed are escaped."""
        return "".join(
            character if character.isprintable() else ascii(character)[1:-1]
            for character in shlex.join(self.argv)
        )

    @property
    def short_command(self) -> str:
        """The command line, cut to SHORT_COMMAND characters."""
        whole = self.command
        return whole if len(whole) <= SHORT_COMMAND else whole[: SHORT_COMMAND - 1] + "…"


@dataclass(frozen=True)
class ProcessQuery:
    """A selection of processes: those of one job, or of all jobs for None.

    `all_python` adds every Python process of the SSH user, as the tutorial's `pkill -9 python`, and
    none of other users, not even as root.
    `sessions` are those of processes that were found before, each with its host. With
    `any_launcher` also jobs of launchers that no cluster of clusterctl has; as root, every user's.
    With a `group` only that job of theirs; its `launcher` may have no rank on its own host.
    """

    job_id: Optional[str] = None
    all_python: bool = False
    sessions: frozenset[tuple[str, str]] = frozenset()
    any_launcher: bool = False
    group: str = ""
    launcher: int = 0

    def after(self, found: Iterable[NodeProcess]) -> ProcessQuery:
        """Return the query that also finds what is in the sessions of these processes."""
        found_sessions = {(one.host, one.session) for one in found if one.session}
        return replace(self, sessions=self.sessions | found_sessions)

    def on(self, host: str) -> ProcessQuery:
        """Return the query for one host."""
        return replace(self, sessions=frozenset(one for one in self.sessions if one[0] == host))


EVERY_JOB = ProcessQuery()


class JobSession(NamedTuple):
    """A session that is a job's. `leader_ticks`: when its leader started, 0 if that was gone.

    The kernel gives no process the number of a session while any process is in it.
    """

    boot: str
    number: int
    leader_ticks: int

    @classmethod
    def of_text(cls, word: str) -> JobSession:
        """Return the session in a word. Raises ValueError."""
        boot, number, ticks = word.split(":")
        return cls(boot, int(number), int(ticks))

    def __str__(self) -> str:
        return f"{self.boot}:{self.number}:{self.leader_ticks}"

    def is_still(self, leader_ticks: int) -> bool:
        """Return whether the session is still the one that was found. `leader_ticks` is when the
        process with its number started, which may be a zombie by now; 0 if there is none."""
        return leader_ticks in (0, self.leader_ticks)


@dataclass(eq=False)
class Process:
    """One process, and what shows whether it belongs to a job. `role`: see `role_of`."""

    pid: int
    ppid: int
    name: str
    argv: list[str]
    environ: dict[bytes, bytes]
    program: str = ""
    state: str = "S"
    started_ticks: int = 0
    session: int = 0
    role: str = ""
    group: str = ""
    is_session_of_job: bool = False
    is_of_login: bool = True  # not another user's, also where sudo runs this program

    def __post_init__(self) -> None:
        self.program = self.program or self.name

    @property
    def identity(self) -> tuple[int, int]:
        """Process ID and start time: the kernel reuses process IDs."""
        return self.pid, self.started_ticks

    @property
    def is_unreadable(self) -> bool:
        """Whether its environment cannot be read, or a title was written over it (setproctitle)."""
        return sum(map(bool, self.environ.values())) < FEW_VARIABLES

    def has_ended(self) -> bool:
        return not lives(self.pid) or start_of(self.pid) != self.started_ticks


def read_process(pid: int, everyone: bool = True) -> Process:
    """Read one process from /proc. Raises OSError if it is gone or, with `everyone` false,
    another user's."""
    folder = Path(f"/proc/{pid}")
    owner = _owner(folder)
    if not everyone and owner != os.geteuid():
        raise PermissionError
    name, fields = read_stat(folder)
    if int(fields[17]) > 1:
        folder = Path(living_thread(folder))
    argv = [text(word) for word in (folder / "cmdline").read_bytes().split(b"\0")[:-1]]
    try:
        program = os.path.basename(os.readlink(folder / "exe"))  # noqa: PTH115, PTH119
    except OSError:
        program = ""
    return Process(
        pid=pid,
        ppid=int(fields[1]),
        name=name,
        argv=argv,
        environ=environ_of(folder),
        program=program,
        state=fields[0],
        started_ticks=int(fields[19]),
        session=int(fields[3]),
        # The variable stays when root goes on to start a program as another user.
        is_of_login=str(owner) == str(os.geteuid() or os.environ.get("SUDO_UID") or 0),
    )


def _owner(folder: Path) -> int:
    """Return whose process it is. One that must not be dumped is shown as root's, and is another
    user's if both its real and its effective user ID are."""
    if owner := folder.stat().st_uid:
        return owner
    status = (folder / "status").read_text(errors="replace")
    real, effective = status.partition("\nUid:\t")[2].split("\t")[:2]
    return int(real) if real == effective else 0


def text(raw: bytes) -> str:
    return raw.decode(errors="backslashreplace")


def all_processes(everyone: bool = False) -> dict[int, Process]:
    """Return the processes of this user, or of every user, by process ID, without zombies."""
    found = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                process = read_process(int(entry), everyone)
                if process.state not in "ZX":
                    found[process.pid] = process
    return found


def ancestors(processes: dict[int, Process], own: int) -> set[int]:
    """Return process `own` and its ancestors."""
    line, pid = set(), own
    while pid in processes and pid not in line:
        line.add(pid)
        pid = processes[pid].ppid
    return line


def role_of(process: Process, any_launcher: bool = False) -> str:
    """Return "rank", "launcher", "daemon", "job" (another with a job's variable) or "".

    With `any_launcher` also the ranks of launchers that no cluster of clusterctl has.
    """
    named = {process.name, process.program}
    place = launchers.rank_identity(process.environ) if any_launcher else None
    # What a step of Slurm has started may start the ranks, and has the step's variables.
    if place and place.launcher not in (launchers.SLURM, launchers.BY_HAND):
        return "rank"
    if any(name in process.environ for name in RANKS):
        return "rank"
    is_named = named & {*LAUNCHERS, *(OTHER_LAUNCHERS if any_launcher else ())}
    if is_train_sh(process) or (is_named and not is_question(process.argv)):
        return "launcher"
    if named & {*DAEMONS, *(OTHER_DAEMONS if any_launcher else ())}:
        return "daemon"
    if place and (place.launcher == launchers.SLURM or is_python(process)):
        return "rank"
    return "job" if JOB in process.environ else ""


def is_question(argv: Sequence[str]) -> bool:
    """Return whether a launcher is only asked for its version or help, as clusterctl asks each
    mpirun for its version. Before that it may have options, but no program."""
    scripts = (*LAUNCHERS, *OTHER_LAUNCHERS)  # as which a shell runs some
    words = [one for one in argv[1:] if one.rpartition("/")[2] not in scripts]
    first = next((one for one in words if one in QUESTIONS or one[:1] != "-"), "")
    return first in QUESTIONS


def is_starter(process: Process) -> bool:
    """Return whether this is the program of torch, accelerate or DeepSpeed that starts ranks."""
    words = [word.rpartition("/")[2] for word in process.argv[:4]]
    return is_python(process) and any(map(STARTERS.fullmatch, words))


def starts_ranks(process: Process) -> bool:
    """Return whether that is what this process runs, and no word further on: it may have no rank
    yet, as torchrun until all its nodes have come."""
    words = [word.rpartition("/")[2] for word in process.argv[1:4] if word[:1] != "-"]
    starts = words[:1] != ["accelerate"] or words[1:2] == ["launch"]
    return is_starter(process) and starts and bool(STARTERS.fullmatch(words[0] if words else ""))


def is_of_torchrun(process: Process) -> bool:
    """Return whether torchrun started the process. Then torchrun's RANK is its rank: mpirun's
    variable, inherited from torchrun, numbers the nodes."""
    return b"TORCHELASTIC_RUN_ID" in process.environ


def rank_of(process: Process) -> int | None:
    """Return the process's rank; None if its environment has none."""
    place = launchers.rank_identity(process.environ)
    return place.rank if place else None


def is_supervisor(process: Process) -> bool:
    """Return whether this is one of the supervisors of mpirun's daemon (start_daemon.py)."""
    program = "/" + START_DAEMON_PATH
    return is_python(process) and any(word.endswith(program) for word in process.argv[1:3])


def is_train_sh(process: Process) -> bool:
    """Return whether this is train.sh or a script like it. They exec a Python program that runs
    before, between and after their mpirun lines."""
    return is_python(process) and process.argv[1:2] != [] and process.argv[1].endswith(TRAIN_SH)


def job_processes(
    processes: dict[int, Process],
    own: int,
    job: str | None = None,
    all_python: bool = False,
    sessions: Collection[int] = (),
    any_launcher: bool = False,
) -> list[Process]:
    """Return those of one user's processes on a node that belong to MPI jobs, with their roles.

    `own` is the calling process. It and its ancestors are left out. `sessions` are known to be the
    job's. `any_launcher`: see `role_of`; also torchrun and the like, as launchers.
    """
    for process in processes.values():
        process.role = role_of(process, any_launcher)
    wanted = {pid for pid, one in processes.items() if one.role}
    if job is not None:
        wanted = of_job(os.fsencode(job), processes, wanted)
    wanted |= descendants(wanted, processes)
    # Those of mpirun's daemons, which lack the variable: a job's, whichever it is.
    supervisors = {pid for pid, one in processes.items() if is_supervisor(one)}
    if any_launcher:
        supervisors.clear()
    elif job is None:
        wanted |= supervisors
    wanted |= of_sessions(processes, wanted, job, sessions, supervisors)
    for pid in wanted:
        processes[pid].role = processes[pid].role or "child"
    if all_python:
        wanted |= {pid for pid, one in processes.items() if one.is_of_login and is_python(one)}
    wanted -= ancestors(processes, own)
    if any_launcher:
        # torchrun and the like, which would start their ranks again. What has written a title over
        # its environment is known as theirs only by its parent, and not whose job it is.
        above = {pid for one in wanted for pid in ancestors(processes, one)}
        if job is None:
            above |= {one.ppid for one in processes.values() if one.is_unreadable} & {*processes}
        above -= wanted | ancestors(processes, own)
        starters = {pid for pid in above if is_starter(processes[pid])}
        if job is None:
            others = {*processes} - wanted - ancestors(processes, own)
            starters |= {pid for pid in others if starts_ranks(processes[pid])}
        for pid in starters:
            processes[pid].role = "launcher"
        for pid in descendants(starters, processes) - ancestors(processes, own):
            processes[pid].role = processes[pid].role or "child"
            wanted.add(pid)
        wanted |= starters
    found = [processes[pid] for pid in sorted(wanted)]
    mark_jobs(found)
    return found


def mark_jobs(found: list[Process]) -> None:
    """Give daemons, and what has started them, their job's ID. One on another node was started over
    SSH and has none, but its ranks have it."""
    by_pid = {one.pid: one for one in found}
    for one in found:
        mark = one.environ.get(JOB)
        above = by_pid.get(one.ppid)
        while mark and above and JOB not in above.environ:
            above.environ[JOB] = mark
            above = by_pid.get(above.ppid)


def find_any() -> list[Process]:
    """Return this user's processes of jobs of any launcher on this node; as root every user's."""
    processes = all_processes(everyone=os.geteuid() == 0)
    return job_processes(processes, os.getpid(), any_launcher=True)


def find(query: ProcessQuery = EVERY_JOB, agent: int | None = None) -> list[Process]:
    """Return this user's processes of MPI jobs on this node; see `job_processes`. `agent` is the
    process whose children read facts, this one among them. Raises ValueError for a session that is
    none."""
    everyone = query.any_launcher and os.geteuid() == 0
    processes, boot = all_processes(everyone), boot_id()
    for reader in descendants({agent}, processes) if agent else ():
        del processes[reader]
    known = [JobSession.of_text(one) for _, one in query.sessions]
    sessions = {
        one.number for one in known if one.boot == boot and one.is_still(start_of(one.number))
    }
    sessions |= recorded_sessions(processes, query.job_id, boot)
    own = agent or os.getpid()
    jobs = (query.job_id, query.all_python, sessions, query.any_launcher)
    found = job_processes(processes, own, *jobs)
    if query.any_launcher:
        groups = groups_of(found, {query.launcher: query.group})
        for one in found:
            one.group = groups.get(one.pid, "")
    return [one for one in found if query.group in ("", one.group) or one.session in sessions]


def recorded_sessions(processes: dict[int, Process], job: str | None, boot: str) -> set[int]:
    """Return the sessions whose leader has ended and was a job's runner, by the job's record on
    this node (folder.py). A process of that job is still in each."""
    found = set()
    for process in processes.values():
        name = text(process.environ.get(JOB, b""))
        if not is_of_any_job(process, job) or not re.fullmatch(r"[\w-]+", name, re.ASCII):
            continue
        runner = JobFolder(JOBS / name).holder()
        if runner == (process.session, boot) and not lives(process.session):
            found.add(process.session)
    return found


def of_sessions(
    processes: dict[int, Process],
    wanted: set[int],
    job: str | None,
    known: Collection[int],
    supervisors: Collection[int] = (),
) -> set[int]:
    """Return the processes in the sessions of jobs, and their descendants, and mark those sessions.

    A process with a job's variable, and what it starts, are in sessions that were made for the job:
    by `submit` of jobs.py, by sshd for mpirun's daemon, or by themselves. A run that was typed by
    hand is in the session of the user's shell, which is no job's. A user may set the variable in a
    shell, too: a session is the job's only if its leader is, or is one of the `supervisors`. Once
    the leader has ended, nothing in the session shows whose it was: then it has to be among the
    `known` ones.
    """
    marked = {pid for pid in wanted if is_of_any_job(processes[pid], job)}
    marked |= descendants(marked, processes) & wanted
    # mpirun's daemons lack the variable.
    marked |= {pid for pid in wanted if processes[pid].role == "daemon"}
    sessions = {processes[pid].session for pid in marked} & marked.union(supervisors) | {*known}
    found = set()
    for pid, process in processes.items():
        process.is_session_of_job = process.session in sessions
        has_other_job = JOB in process.environ and not is_of_any_job(process, job)
        if process.is_session_of_job and not has_other_job:
            found.add(pid)
    return found | descendants(found, processes)


def is_of_any_job(process: Process, job: str | None) -> bool:
    """Return whether a process has the variable of this job; for None, of any."""
    mark = process.environ.get(JOB)
    return mark is not None if job is None else mark == os.fsencode(job)


def of_job(job: bytes, processes: dict[int, Process], wanted: set[int]) -> set[int]:
    """Return those of the processes `wanted` that belong to this job."""
    marked = {pid for pid in wanted if processes[pid].environ.get(JOB) == job}
    # A daemon on another node was started over SSH and lacks the variable, but its ranks have it.
    # prted runs as two processes, parent and child.
    while above := {processes[pid].ppid for pid in marked} & wanted - marked:
        above = {pid for pid in above if processes[pid].role == "daemon"}
        if not above:
            break
        marked |= above
    return marked


def descendants(roots: set[int], processes: dict[int, Process]) -> set[int]:
    """Return the children of `roots`, their children and so on."""
    found: set[int] = set()
    edge = set(roots)
    while edge:
        edge = {pid for pid, process in processes.items() if process.ppid in edge} - found
        found |= edge
    return found


def job_of_proxy(one: Process, by_pid: dict[int, Process]) -> str:
    """Return what identifies the job of a hydra proxy that started a process; empty if none did."""
    line = sorted(ancestors(by_pid, one.pid), reverse=True)
    return next(filter(None, (launchers.job_of_daemon(by_pid[pid].argv) for pid in line)), "")


# An address by which each host means itself, in what identifies a job.
_OWN_ADDRESS = re.compile(
    r"(?i)(?:^|:|\[)(?:(?:ip6-)?localhost[\w.]*|127(?:\.\d+){3}|0\.0\.0\.0|::1\]?):"
)


def groups_of(found: list[Process], known: Mapping[int, str] = {}) -> dict[int, str]:
    """Return what identifies the job of each process, the same on all hosts, by process ID.
    `known` is that of launchers which have no rank here.

    A rank's environment has it, or the command line of a proxy above it. A launcher has that of
    what it started here. A process of which it is not known is left out.
    """
    by_pid = {one.pid: one for one in found}
    groups: dict[int, str] = {}
    for one in found:
        is_of_rank = one.role in ("rank", "orphan")
        place = launchers.rank_identity(one.environ) if is_of_rank else None
        group = (place.job if place else "") or launchers.job_of_daemon(one.argv)
        if _OWN_ADDRESS.search(group):
            group += f"@{boot_id()}"  # other hosts may have a job at the same address of theirs
        if group:
            for pid in ancestors(by_pid, one.pid):
                if by_pid[pid].role in ("launcher", "daemon") or pid == one.pid:
                    groups.setdefault(pid, group)
    for one in found:
        if one.role == "launcher" and one.pid in known:
            groups.setdefault(one.pid, known[one.pid])
    for one in found:
        if one.role == "rank" and one.is_unreadable and one.pid not in groups:
            for pid in ancestors(by_pid, one.pid) if one.ppid not in groups else ():
                if by_pid[pid].role == "launcher":
                    groups.setdefault(pid, f"{pid}@{boot_id()}")
    for one in found:
        above = by_pid.get(one.ppid)
        while above and one.pid not in groups:
            if above.pid in groups:
                groups[one.pid] = groups[above.pid]
            above = by_pid.get(above.ppid)
    return groups


def is_python(process: Process) -> bool:
    return "python" in process.name or process.program.startswith("python")


def describe(process: Process, ended: str = "") -> NodeProcess:
    """Return the record of a process."""
    uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    return NodeProcess(
        host="",
        pid=process.pid,
        rank=rank_of(process),
        role=process.role or "python",
        job_id=text(process.environ[JOB]) if JOB in process.environ else None,
        age_s=round(max(0.0, uptime_s - process.started_ticks / TICKS), 1),
        argv=tuple(process.argv or [f"[{process.name}]"]),
        ended=ended,
        session=str(session_of(process)) if process.is_session_of_job else "",
        group=process.group,
        parent=process.ppid,
    )


def session_of(process: Process) -> JobSession:
    """Return the session that a process is in."""
    return JobSession(boot_id(), process.session, start_of(process.session))


def lives(pid: int) -> bool:
    """Return whether the process exists and is no zombie, of which no thread goes on."""
    try:
        return read_stat(f"/proc/{pid}")[1][0] not in "ZX"
    except OSError:
        return False


def start_of(pid: int) -> int:
    """Return when a process started, in ticks, whoever's it is; 0 if there is none. A zombie is
    one."""
    try:
        return int(read_stat(f"/proc/{pid}")[1][19])
    except OSError:
        return 0


def send(processes: list[Process], number: signal.Signals, grace_s: float) -> list[Process]:
    """Send a signal to processes. Return those that are still there after `grace_s` seconds."""
    for process in processes:
        if not process.has_ended():
            with contextlib.suppress(OSError):
                os.kill(process.pid, number)
    deadline = time.monotonic() + grace_s
    left = [process for process in processes if not process.has_ended()]
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = [process for process in left if not process.has_ended()]
    return left


def stop_processes(request: ProcessQuery) -> tuple[NodeProcess, ...]:
    """End the processes with TERM, then KILL. Return what was found, and how each ended."""
    processes = find(request)
    found = tuple(describe(process) for process in processes)
    stubborn = send(processes, signal.SIGTERM, TERM_GRACE_S)
    # A launcher may have started processes while it was being stopped. They get KILL at once.
    had = {process.identity for process in processes}
    again = find(request.after(found))
    fresh = [process for process in again if process.identity not in had]
    found += tuple(describe(process) for process in fresh)
    left = {process.identity for process in send(stubborn + fresh, signal.SIGKILL, KILL_GRACE_S)}
    forced = {process.identity for process in stubborn + fresh}

    def how(process: Process) -> str:
        if process.identity in left:
            return ""
        return "killed" if process.identity in forced else "terminated"

    return tuple(replace(one, ended=how(process)) for one, process in zip(found, processes + fresh))
