"""Runs on a node: samples the processes of MPI jobs a few times, and collects facts about the node.
The JSON has the shape of `clusterctl/diagnosis/evidence.py`.

Each part that may hang is read in a process of its own (facts/report.py) with a deadline, which
also ends it after the connection is lost. No process is continued, and none that is stopped is
attached to.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import select
import struct
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator, Optional

from clusterctl.node import untrusted
from clusterctl.node.diagnosis import job, partners, ras, shared, sockets, stacks
from clusterctl.node.facts import disks, flight, gpus, network, system
from clusterctl.node.facts.processes import hidden_users, user_name
from clusterctl.node.facts.report import FactReport, Question, questions_of, read, request_of
from clusterctl.node.jobs import launchers, processes
from clusterctl.node.procfs import TICKS, living_thread, read_stat
from clusterctl.node.record import to_data

NICENESS = 5
GLANCE_S = 0.1
MOST_SOURCES = 32
MOST_GPUS = 1024  # of a host
MOST_WORDS = 256  # of a command line
SCRIPTS = "the ranks' scripts"
SHARED = "messages in shared memory"
MOST_FILES = 64
MOST_SOCKETS = 256
MOST_THREADS = 1024
MOST_STACKS = 256  # processes of one sample; a stack takes 10 ms of processor time
MOST_OTHERS = 5
BUSY_SHARE = 0.3  # of a processor
PAGE = os.sysconf("SC_PAGE_SIZE")


def named(text: str) -> dict[int, str]:
    """Parse a text of numbers and names in turn."""
    words = text.split()
    return dict(zip(map(int, words[::2]), words[1::2]))


# System calls by architecture, grouped by their first argument: a descriptor, the address of a path
# ("at": the second argument), or neither.
CALLS = {
    "x86_64": {
        "fd": named(
            "0 read 1 write 8 lseek 16 ioctl 17 pread64 18 pwrite64 19 readv 20 writev "
            "42 connect 43 accept 44 sendto 45 recvfrom 46 sendmsg 47 recvmsg 72 fcntl "
            "73 flock 74 fsync 75 fdatasync 77 ftruncate 3 close 5 fstat 217 getdents64 "
            "285 fallocate 40 sendfile 138 fstatfs 275 splice 288 accept4 295 preadv 296 pwritev "
            "299 recvmmsg 307 sendmmsg 326 copy_file_range"
        ),
        "path": named("2 open 4 stat 6 lstat 21 access 82 rename 83 mkdir 87 unlink"),
        "at": named(
            "257 openat 258 mkdirat 262 newfstatat 263 unlinkat 264 renameat 316 renameat2 "
            "332 statx 437 openat2"
        ),
        "": named(
            "7 poll 23 select 24 sched_yield 35 nanosleep 61 wait4 130 rt_sigsuspend "
            "202 futex 230 clock_nanosleep 232 epoll_wait 271 ppoll 281 epoll_pwait "
            "34 pause 56 clone 57 fork 58 vfork 435 clone3 "
            "162 sync 9 mmap 26 msync 65 semop 70 msgrcv 128 rt_sigtimedwait "
            "208 io_getevents 220 semtimedop 243 mq_timedreceive 247 waitid 270 pselect6 "
            "426 io_uring_enter 441 epoll_pwait2 449 futex_waitv"
        ),
    },
    "aarch64": {
        "fd": named(
            "63 read 64 write 62 lseek 29 ioctl 67 pread64 68 pwrite64 65 readv 66 writev "
            "203 connect 202 accept 206 sendto 207 recvfrom 211 sendmsg 212 recvmsg "
            "25 fcntl 32 flock 82 fsync 83 fdatasync 46 ftruncate 57 close 80 fstat "
            "61 getdents64 47 fallocate 71 sendfile 44 fstatfs 76 splice 242 accept4 69 preadv "
            "70 pwritev 243 recvmmsg 269 sendmmsg 285 copy_file_range"
        ),
        "path": {},
        "at": named(
            "56 openat 34 mkdirat 79 newfstatat 35 unlinkat 38 renameat 276 renameat2 291 statx "
            "437 openat2"
        ),
        "": named(
            "220 clone 435 clone3 "
            "73 ppoll 124 sched_yield 101 nanosleep 260 wait4 133 rt_sigsuspend 98 futex "
            "115 clock_nanosleep 22 epoll_pwait 81 sync 222 mmap 227 msync 193 semop 188 msgrcv "
            "137 rt_sigtimedwait 4 io_getevents 192 semtimedop 163 mq_timedreceive 95 waitid "
            "72 pselect6 426 io_uring_enter 441 epoll_pwait2 449 futex_waitv"
        ),
    },
}
# Calls in which a main thread waits for the threads of a library.
WAITS = (
    *("futex", "futex_waitv", "poll", "ppoll", "select", "pselect6"),
    *("epoll_wait", "epoll_pwait", "epoll_pwait2"),
)
# What a process may wait to read from. A library's threads poll its devices all the time.
POLLED = re.compile(r"/dev/(?:pts/|tty|console)|(?:socket|pipe):|/(?!dev/)")
# Beginnings of the environment variables that are reported.
VARIABLES = (
    *("MASTER_", "HOROVOD_", "NCCL_", "OMPI_MCA_", "PRTE_MCA_"),
    *("CUDA_VISIBLE_DEVICES", "FI_", "TF_"),
)
# Beginnings of paths of open files that tell nothing.
UNINTERESTING_PATHS = ("/dev/null", "/dev/urandom", "/dev/random", "/dev/pts/", "/proc/", "/sys/")


@dataclass(frozen=True)
class SamplerRequest:
    """What to collect: `samples` of each process, `spacing_s` apart, all within `within_s`.

    `py_spy` is the name of the py-spy to use; empty if there is none, for the reason
    `py_spy_missing`. On the `head` node also the record of `job` (None: the running or the latest),
    with the last `log_lines` lines of its log. Unless the node `keeps_py_spy`, it is only in
    memory. Root looks at the processes of all users.
    """

    samples: int = 3
    spacing_s: float = 1.5
    within_s: float = 6.0  # time for the stacks of the last sample, and the facts of a slow node
    py_spy: str = ""
    py_spy_missing: str = ""
    head: bool = False
    job: Optional[str] = None
    log_lines: int = 2000
    keeps_py_spy: bool = True


@dataclass(frozen=True)
class SamplerResponse:
    """Data of a HostEvidence, and on the head node the job's record (job.py)."""

    host: dict[str, Any]
    job: Optional[dict[str, Any]] = None


HOST_FACTS = (
    *(system.system, system.memory, system.limits, system.kernel_log),
    *(network.interfaces, network.efa, gpus.gpus, gpus.nvlink, gpus.fabric_manager, disks.mount),
    flight.flight_dumps,
)


def sample(request: SamplerRequest, attachment: bytes = b"") -> SamplerResponse:
    """Collect the evidence of this node. `attachment` is py-spy compressed by zlib, if the node
    lacks it. `problems` has the reason for each part that is missing."""
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    spy = stacks.PySpy(request.py_spy, request.py_spy_missing)
    if attachment:
        spy.put(zlib.decompress(attachment), request.keeps_py_spy)
    within_s, began_s = request.within_s, time.time()

    def looks() -> dict[str, Any]:
        seen, others, problems = look(request, spy)
        return {"processes": seen, "others": others, "problems": problems}

    watched_s = (request.samples - 1) * request.spacing_s
    parts: dict[str, Callable[[], Any]] = {
        "processes": looks,
        "EFA's counters": lambda: [to_data(one) for one in network.efa_cards(watched_s)],
        "NCCL's RAS": lambda: ras.ask_ras(ras_addresses(), min(3.0, within_s - 0.5)),
        "jobs of other users": lambda: [*hidden_users()],
        SCRIPTS: scripts,
        SHARED: lambda: shared.sent_bytes(watched_s),
    }
    if request.head:
        parts["the job's record"] = lambda: job.collect(request.job, request.log_lines, watched_s)
    own = [Question("", name, part, within_s) for name, part in parts.items()]
    asked = questions_of(request_of(HOST_FACTS, within_s - 0.5))
    readings = read([*own, *asked])
    said = {one.label: one.value for one in readings[: len(own)] if not one.error}
    seen = said.get("processes", {})
    for entry in seen.get("processes", ()):
        entry["sources"] = said.get(SCRIPTS, {}).get(str(entry["pid"]), {})
        entry["shared_bytes"] = said.get(SHARED, {}).get(str(entry["pid"]))
    errors = [f"{one.label}: {one.error}" for one in readings[: len(own)] if one.error]
    host = {
        "processes": seen.get("processes", []),
        "others": seen.get("others", []),
        "hidden": said.get("jobs of other users", []),
        "facts": FactReport(began_s, time.time(), tuple(readings[len(own) :])).as_data(),
        "efa": said.get("EFA's counters", []),
        "ras": said.get("NCCL's RAS", ""),
        "problems": [*errors, *seen.get("problems", ())],
    }
    return SamplerResponse(host, said.get("the job's record"))


def ras_addresses() -> list[str]:
    """Return the addresses of NCCL's RAS here: those of the ranks' variable, or NCCL's default."""
    ranks = [one for one in processes.find_any() if one.role == "rank"]
    told = {one.environ.get(b"NCCL_RAS_ADDR", b"localhost:28028") for one in ranks}
    return sorted(map(processes.text, told))


def look(
    request: SamplerRequest, spy: stacks.PySpy
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]]:
    """Sample the processes of jobs, including those that come or go meanwhile. Return each process
    with its samples, the busiest processes of other users, and the reason if TCP connections
    cannot be read. On a machine that is too busy for a third sample there are two."""
    samples, spacing_s = request.samples, request.spacing_s
    began, took_s = time.monotonic(), 0.0
    parent = os.getppid()
    known: dict[tuple[int, int], dict[str, Any]] = {}
    problems: list[str] = []
    began_others, others = other_users(), []
    for number in range(samples):
        if number and not known:
            break  # no job runs here
        glance(known, began + number * spacing_s)
        started = time.monotonic()
        if os.getppid() != parent:
            break  # the program that waits for this process has ended
        if number > 1 and started + 2 * took_s > began + request.within_s:
            break  # what was seen would be lost
        listed = processes.all_processes(everyone=os.geteuid() == 0)
        found = processes.job_processes(listed, parent, any_launcher=True)
        mark_ranks(found)
        groups = processes.groups_of(found)
        others_ranks = ranks_of_others(found, groups, request.job or "")
        tables: dict[str, Any] = {}
        if found and not problems:
            try:
                tables = sockets.tcp_sockets()
            except OSError as error:  # some containers do not permit netlink
                problems.append(f"TCP connections: {error}")
        taken = []
        for one in found:
            with contextlib.suppress(OSError, ValueError, IndexError):  # the process has ended
                sample = sample_of(one, round(time.monotonic() - began, 3), tables)
                entry = known.setdefault(one.identity, describe(one))
                entry["group"] = entry["group"] or groups.get(one.pid, "")
                entry["samples"].append(sample)
                # Of a rank's own processes, such as a data loader's, the last look is enough.
                is_worker = one.role == "child" and processes.is_python(one)
                is_read = one.role == "rank" and one.pid not in others_ranks
                if is_read or (number == samples - 1 and is_worker):
                    taken.append((one, sample))
        stacks.add_stacks(taken[:MOST_STACKS], spy)
        took_s = time.monotonic() - started
    if known:
        others = busier(began_others, other_users(), time.monotonic() - began)
        partners.add(known.values(), wait_of)
    return list(known.values()), others, problems


def ranks_of_others(found: list[processes.Process], groups: dict[int, str], job: str) -> set[int]:
    """Return the ranks of other jobs than the requested one, whose stacks nobody needs; none if
    that job has no ranks here, or is known by its name on another host only."""
    launcher = int(job) if job.isdecimal() else 0
    ranks = {one.pid for one in found if one.role == "rank"}
    own = {pid for pid in ranks if groups.get(pid) in (job, groups.get(launcher, job))}
    return ranks - own if own else set()


def other_users() -> dict[tuple[int, str], tuple[int, float]]:
    """Return the user and the processor seconds of each process that is not this user's, by its
    process ID and start time."""
    found = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        with contextlib.suppress(OSError, ValueError, IndexError):
            if name.isdigit() and (user := os.stat(f"/proc/{name}").st_uid) != os.geteuid():  # noqa: PTH116
                fields = read_stat(f"/proc/{name}")[1]
                used_s = (int(fields[11]) + int(fields[12])) / TICKS
                found[int(name), fields[19]] = (user, used_s)
    return found


def busier(
    before: dict[tuple[int, str], tuple[int, float]],
    after: dict[tuple[int, str], tuple[int, float]],
    passed_s: float,
) -> list[dict[str, Any]]:
    """Return the busiest processes of other users, with the part of a processor that they used."""
    found: list[dict[str, Any]] = []
    for key, (user, used_s) in after.items():
        share = (used_s - before.get(key, (user, used_s))[1]) / max(passed_s, 0.1)
        if share >= BUSY_SHARE:
            argv = text_of(f"/proc/{key[0]}/cmdline").split("\0")[:4]
            found.append({"pid": key[0], "user": user_name(user), "share": share, "argv": argv})
    return sorted(found, key=lambda one: -one["share"])[:MOST_OTHERS]


def glance(known: dict[tuple[int, int], dict[str, Any]], until: float) -> None:
    """Record what the ranks' main threads do, ten times a second until `until` (`glances` of
    `evidence.py` has the letters). It only reads two small files of each."""
    ranks = [one for one in known.values() if one["role"] == "rank"]
    calls = CALLS.get(os.uname().machine, {}).get("", {})
    names = {str(number): name for number, name in calls.items()}
    while True:
        time.sleep(max(0.0, min(GLANCE_S, until - time.monotonic())))
        if time.monotonic() >= until:
            return
        for one in ranks:
            state = state_of(f"/proc/{one['pid']}")
            if not state:
                continue  # the process has ended
            call = names.get(text_of(f"/proc/{one['pid']}/syscall").partition(" ")[0], "")
            if state == "S":
                state = "w" if call in WAITS else "z" if "sleep" in call else "S"
            one["glances"] += state


def network_bytes() -> list[int]:
    """Return the bytes received and sent by all interfaces but the loopback."""
    net = [0, 0]
    for line in text_of("/proc/net/dev").splitlines()[2:]:
        name, _, rest = line.partition(":")
        if name.strip() != "lo":
            words = rest.split()
            net = [net[0] + int(words[0]), net[1] + int(words[8])]
    return net


def scripts() -> dict[str, dict[str, str]]:
    """Return what `sources` finds for each rank here, by process ID. These files may be on a mount
    that is dead: so nothing else waits for them."""
    found = processes.find_any()
    mark_ranks(found)
    return {str(one.pid): sources(describe(one)) for one in found if one.role == "rank"}


def sources(told: dict[str, Any]) -> dict[str, str]:
    """Return hashes, by name, of a rank's script and of the modules beside it that it imports. A
    file changed after the start of the process is left out: the process runs an older version."""
    named = [word for word in told["argv"][1:] if word.endswith(".py")]
    if not named:
        return {}
    script = Path(told["cwd"], named[0])
    imported = re.findall(r"(?m)^[ \t]*(?:from|import) (\w+)", text_of(str(script)))
    beside = [script.with_name(f"{name}.py") for name in sorted(set(imported))]
    started = time.time() - told["age_s"]
    found = {}
    for path in [script, *beside][:MOST_SOURCES]:
        with contextlib.suppress(OSError):
            if path.stat().st_ctime < started:
                found[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    return found


def mark_ranks(found: list[processes.Process]) -> None:
    """Give each rank's other processes the role "child".

    What a rank starts inherits its variables, and a script may have started the rank. So the rank
    is the first process of these that has loaded a library by which ranks communicate: a Python
    one, unless a shell or a Python without such a library has started another. If none has loaded
    one, it is the first Python process, or else the first. A torchrun whose ranks are here is a
    child, too: it is a rank only to mpirun. What has written its title over its environment is a
    rank if a launcher's daemon has started it, or a rank's script. What a rank that has ended has
    left running gets the role "orphan".
    """
    by_pid = {one.pid: one for one in found}
    for one in (one for one in found if one.role == "child" and one.is_unreadable):
        if {one.name, one.program} & launchers.REMOTE_SHELLS:
            continue
        above = by_pid.get(one.ppid)
        if above and above.role in ("launcher", "daemon"):
            one.role = "rank"  # its number is not known
        elif above and above.role == "rank" and launchers.rank_identity(above.environ):
            one.role, one.environ = "rank", above.environ
    by_rank: dict[tuple[str, str, int], list[processes.Process]] = {}
    ranks = [
        (place, one)
        for one in found
        if one.role == "rank" and (place := launchers.rank_identity(one.environ))
    ]
    torchruns = {
        one.environ.get(b"PMIX_NAMESPACE", b"") for _, one in ranks if processes.is_of_torchrun(one)
    }
    # What a task of one launcher started by another one is a rank of the latter.
    starts = {
        above
        for place, one in ranks
        for above in processes.ancestors(by_pid, one.pid)
        if (other := launchers.rank_identity(by_pid[above].environ))
        and other.launcher != place.launcher
    }
    for place, one in ranks:
        is_agent = place.launcher == "Open MPI" and (
            one.environ.get(b"PMIX_NAMESPACE", b"") in torchruns
        )
        if is_agent or one.pid in starts or processes.is_starter(one):
            one.role = "child"
        else:
            job = place.job or processes.job_of_proxy(one, by_pid)
            by_rank.setdefault((place.launcher, job, place.rank), []).append(one)
    for several in by_rank.values():
        left = orphans(several, by_pid)
        for one in left:
            is_first = all(one.ppid != other.pid for other in left)
            one.role = "orphan" if is_first and len(left) == len(several) else "child"
        others = [one for one in several if one not in left]
        if not others:
            continue
        ordered = sorted(others, key=lambda one: (one.started_ticks, one.pid))
        own = next(filter(processes.is_python, ordered), ordered[0])
        if len(others) > 1 and not communicates(own):
            own = next(filter(communicates, ordered), own)
        for one in others:
            one.role = "rank" if one is own else "child"


def orphans(
    several: list[processes.Process], by_pid: dict[int, processes.Process]
) -> list[processes.Process]:
    """Return those of a rank's processes whose parent has ended, and what these have started, while
    the launcher runs: the rank itself would be the launcher's child. One that communicates is a
    rank whatever has started it."""
    own = {one.pid: one for one in several}
    left = {one.pid for one in several if one.ppid not in own and is_adopted(one, by_pid)}
    if not left or any(map(communicates, several)):
        return []
    return [own[pid] for pid in sorted(left | processes.descendants(left, own))]


def is_adopted(one: processes.Process, by_pid: dict[int, processes.Process]) -> bool:
    """Return whether init, or a supervisor, has become the parent of a process, while a launcher
    that may have started its job runs below that supervisor, or in its session."""
    above = by_pid.get(one.ppid)
    running = [x for x in by_pid.values() if x.role in ("launcher", "daemon")]
    if one.ppid == 1 or text_of(f"/proc/{one.ppid}/comm") == "systemd\n":
        with contextlib.suppress(OSError):
            # Open MPI makes each rank the leader of a process group, which init adopts, too.
            in_group = os.getpgid(one.pid) != one.pid
            return in_group and any(x.session == one.session for x in running)
        return False
    if above is None:
        with contextlib.suppress(OSError):
            above = processes.read_process(one.ppid)
    if above is None or not (above.role == "job" or processes.is_supervisor(above)):
        return False
    lines = (processes.ancestors(by_pid, x.pid) for x in running)
    return any(one.ppid in {by_pid[pid].ppid for pid in line} for line in lines)


# MPI and PMI, torch with gloo and NCCL, and Horovod.
COMMUNICATION = re.compile(r"/(?:lib(?:mpi|pmi|torch|nccl)|mpi_lib)[\w.-]*\.so")


def communicates(one: processes.Process) -> bool:
    """Return whether a process has loaded a library by which ranks communicate."""
    return bool(COMMUNICATION.search(text_of(f"/proc/{one.pid}/maps")))


def describe(one: processes.Process) -> dict[str, Any]:
    """Return the evidence about a process, without samples."""
    told = processes.describe(one)
    environ = {processes.text(name): processes.text(value) for name, value in one.environ.items()}
    place = launchers.rank_identity(one.environ)
    local, size = (place.local_rank, place.size) if place else (None, None)
    if local is None:
        local = launchers.number_in(one.environ, (b"PMIX_LOCAL_RANK", b"HOROVOD_LOCAL_RANK"))
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    gpus = [] if local is None else [local]
    if visible is not None:
        numbered = (untrusted.whole(word.strip(), MOST_GPUS) for word in visible.split(","))
        listed = [number for number in numbered if number is not None]
        # If the ranks here see the same several GPUs, each uses that of its local rank.
        gpus = listed[local : local + 1] if local is not None and len(listed) > 1 else listed
    cwd = ""
    with contextlib.suppress(OSError):
        cwd = os.readlink(f"/proc/{one.pid}/cwd")  # noqa: PTH115
    return {
        "pid": one.pid,
        # systemd adopts the orphans of a user's session, as init does those of others.
        "parent": 1 if text_of(f"/proc/{one.ppid}/comm") == "systemd\n" else one.ppid,
        "role": told.role,
        "rank": told.rank if one.role in ("rank", "orphan") else None,
        "local_rank": local if one.role == "rank" else None,
        "size": size or launchers.number_in(one.environ, (b"HOROVOD_SIZE",)),
        "job_id": told.job_id,
        "launcher": place.launcher if place and one.role == "rank" else "",
        "group": "",
        "slurm_job": environ.get("SLURM_JOB_ID", ""),
        "gpus": gpus if one.role == "rank" else [],
        # A command line may have megabytes, and there may be many ranks.
        "argv": [word[: untrusted.LONGEST_LINE] for word in told.argv[:MOST_WORDS]],
        "cwd": cwd,
        "age_s": told.age_s,
        "variables": {name: value for name, value in environ.items() if name.startswith(VARIABLES)},
        "limits": limits(one.pid),
        "sources": {},
        "glances": "",
        "samples": [],
        "partners": [],
    }


def sample_of(one: processes.Process, at_s: float, tables: dict[str, Any]) -> dict[str, Any]:
    """Return one sample of a process, without stacks. Raises OSError if it has ended."""
    folder = f"/proc/{one.pid}"
    fields = read_stat(folder)[1]
    paths = descriptors(one.pid)
    tasks = tasks_of(one.pid)
    telling = most_relevant_thread(one.pid, tasks, paths)
    user_s, system_s = main_cpu_s(one.pid, tasks[0] if tasks else one.pid)
    counts = [numbers(f"{folder}/task/{task}/schedstat") for task in tasks]
    moved = io_of(folder)
    main_runs, *other_runs = [count[2] for count in counts if len(count) > 2] or [0]
    main_moved = io_of(f"{folder}/task/{tasks[0] if tasks else one.pid}")
    return {
        "at_s": at_s,
        "state": or_frozen(one.pid, fields[0], telling[1]),
        "wait_channel": telling[1],
        "syscall": with_ends(telling[2], tables),
        "cpu_s": (int(fields[11]) + int(fields[12])) / TICKS,
        "main_cpu_s": None if user_s is None or system_s is None else user_s + system_s,
        "main_system_s": system_s,
        # A kernel that does not count has 0.
        "main_runs": main_runs or None,
        "other_runs": sum(other_runs) if main_runs else None,
        "main_read_bytes": main_moved.get("rchar"),
        "main_written_bytes": main_moved.get("wchar"),
        "throttled_s": throttled_s(one.pid),
        "run_wait_s": round(sum(count[1] for count in counts if len(count) > 2) / 1e9, 4),
        "virtual_bytes": int(fields[20]),
        "rss_bytes": int(fields[21]) * PAGE,
        "read_bytes": moved.get("rchar", 0),
        "written_bytes": moved.get("wchar", 0),
        "threads": int(fields[17]),
        "descriptors": len(paths),
        "files": files(one.pid, paths),
        "sockets": [
            tables[inode]
            for inode in (path[8:-1] for path in paths.values() if path.startswith("socket:["))
            if inode in tables
        ][:MOST_SOCKETS],
        "stacks": [],
        "stack_source": "",
        "stack_error": "",
    }


def io_of(folder: str) -> dict[str, int]:
    """Return the bytes that a process or a thread has read and written; nothing if unknown. Reads
    from the page cache count: progress, wherever the bytes come from."""
    pairs = (line.split(": ") for line in text_of(f"{folder}/io").splitlines()[:2])
    return {name: int(value) for name, value in pairs}


LIMITS = {
    "Max open files": "files",
    "Max processes": "threads",
    "Max address space": "memory",
    "Max file size": "bytes in a file",
    "Max cpu time": "seconds of a processor",
    "Max locked memory": "bytes of locked memory",
}


def limits(pid: int) -> dict[str, int]:
    """Return the soft limits of a process that it has; one may have lowered its own. The threads
    that its cgroup may have are there if it has them."""
    found = {}
    for line in text_of(f"/proc/{pid}/limits").splitlines():
        words = line[26:].split()
        if line[:26].rstrip() in LIMITS and words and words[0].isdigit():
            found[LIMITS[line[:26].rstrip()]] = int(words[0])
    most = most_tasks(pid)
    return found if most is None else {**found, "cgroup": most}


def main_cpu_s(pid: int, thread: int) -> tuple[float | None, float | None]:
    """Return the processor seconds of a thread of a process, outside and inside the kernel; None
    if it has ended."""
    try:
        fields = read_stat(f"/proc/{pid}/task/{thread}")[1]
        return int(fields[11]) / TICKS, int(fields[12]) / TICKS
    except (OSError, IndexError):
        return None, None


def throttled_s(pid: int, cgroups: str = "/sys/fs/cgroup") -> float | None:
    """Return the seconds for which a process's cgroup was throttled; None if that is not known.

    Version 2 has `throttled_usec`, version 1 `throttled_time` in nanoseconds (cgroups(7), the
    kernel's sched-bwc.rst).
    """
    found = []
    for said in in_cgroups(pid, "cpu", "cpu.stat", cgroups):
        counts = dict(line.split() for line in said.splitlines() if len(line.split()) == 2)
        if "throttled_usec" in counts:
            found.append(int(counts["throttled_usec"]) / 1e6)
        elif "throttled_time" in counts:
            found.append(int(counts["throttled_time"]) / 1e9)
    return max(found) if found else None


def most_tasks(pid: int, cgroups: str = "/sys/fs/cgroup") -> int | None:
    """Return how many threads the cgroup of a process may have, if it has as many; else None."""
    names = ("pids.current", "pids.max")
    for now, most in zip(*(in_cgroups(pid, "pids", name, cgroups) for name in names)):
        if now.strip().isdigit() and most.strip().isdigit() and int(now) >= int(most):
            return int(most)
    return None


def in_cgroups(pid: int, controller: str, name: str, cgroups: str) -> Iterator[str]:
    """Yield the text of a controller's file in the cgroup of a process, and in those above it:
    their limits are its limits."""
    for line in text_of(f"/proc/{pid}/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = f"{cgroups}/{controllers}" if controllers else cgroups
        parts = [part for part in path.split("/") if part]
        for depth in range(len(parts) + 1):
            yield text_of("/".join((top, *parts[:depth], name)))


def with_ends(call: str, tables: dict[str, Any]) -> str:
    """Return `connect socket:[77]` as `connect tcp 10.0.0.5:4000 - 10.0.0.6:9999 SYN-SENT`."""
    name, _, inode = call.partition(" socket:[")
    one = tables.get(inode.rstrip("]")) if inode else None
    return f"{name} tcp {one['local']} - {one['peer']} {one['state']}" if one else call


def text_of(path: str) -> str:
    """Return the text of a file; empty if it cannot be read."""
    try:
        with open(path, "rb", 0) as file:  # noqa: PTH123 - a Path would double what this costs
            return file.read().decode(errors="backslashreplace")
    except (OSError, ValueError):
        return ""


def numbers(path: str) -> list[int]:
    """Return the whole numbers in a file."""
    return [int(word) for word in text_of(path).split() if word.isdigit()]


def state_of(folder: str) -> str:
    """Return the state of a process or thread, a letter; empty if it has ended."""
    try:
        return read_stat(folder)[1][0]
    except (OSError, IndexError):
        return ""


def or_frozen(pid: int, state: str, channel: str) -> str:
    """Return the state of a process, or F if its cgroup keeps it from running, as that of a paused
    container. For version 2 only then the kernel waits in do_freezer_trap, which may be inlined
    into get_signal. In version 1 the process stays where it was, in state D."""
    lines = text_of(f"/proc/{pid}/cgroup").splitlines() if state == "D" else []
    paths = [line.split(":", 2)[2] for line in lines if ":freezer:" in line]
    states = [text_of(f"/sys/fs/cgroup/freezer{path}/freezer.state") for path in paths]
    is_trapped = state == "S" and channel in ("get_signal", "do_freezer_trap")
    is_frozen = is_trapped or any(one.startswith(("FROZEN", "FREEZING")) for one in states)
    return "F" if is_frozen else state


def tasks_of(pid: int) -> list[int]:
    """Return the IDs of a process's threads, the main thread first unless it has ended."""
    try:
        found = sorted(map(int, os.listdir(f"/proc/{pid}/task")))  # noqa: PTH208
        has_main = living_thread(f"/proc/{pid}") == f"/proc/{pid}"
    except (OSError, IndexError):
        return []
    return found[0 if has_main else 1 : MOST_THREADS]


def descriptors(pid: int) -> dict[int, str]:
    """Return what each descriptor is open on; empty if that is not permitted."""
    found = {}
    with contextlib.suppress(OSError, IndexError):
        folder = living_thread(f"/proc/{pid}")
        for name in os.listdir(f"{folder}/fd"):  # noqa: PTH208
            with contextlib.suppress(OSError):
                found[int(name)] = os.fsencode(
                    os.readlink(f"{folder}/fd/{name}")  # noqa: PTH115
                ).decode(errors="backslashreplace")
    return found


def files(pid: int, paths: dict[int, str]) -> list[dict[str, Any]]:
    """Return the open files of a process that may tell something, with their positions."""
    found = []
    for fd, path in sorted(paths.items()):
        if path.startswith("/") and not path.startswith(UNINTERESTING_PATHS):
            words = text_of(f"/proc/{pid}/fdinfo/{fd}").split()
            position = int(words[1]) if words[:1] == ["pos:"] else 0
            found.append({"fd": fd, "path": path, "position": position})
    return found[:MOST_FILES]


def most_relevant_thread(pid: int, tasks: list[int], paths: dict[int, str]) -> tuple[int, str, str]:
    """Return thread, wait channel and system call of the main thread, or of another thread that
    waits for a file while the main thread waits for threads."""
    chosen, call = tasks[0] if tasks else pid, ""
    for task in tasks:
        folder = f"/proc/{pid}/task/{task}"
        state = state_of(folder)
        if task != tasks[0] and state == "R":
            continue
        its = call_of(pid, text_of(f"{folder}/syscall"), paths)
        if task == tasks[0]:
            call = its
            if state in ("R", "T", "t") or " /" in call:
                break
        elif state == "D" or " /" in its:
            chosen, call = task, its
            break
    channel = text_of(f"/proc/{pid}/task/{chosen}/wchan")
    return chosen, "" if channel == "0" else channel, call


def wait_of(pid: int) -> tuple[str, str, str]:
    """Return state, wait channel and system call of a process."""
    _, channel, call = most_relevant_thread(pid, tasks_of(pid), descriptors(pid))
    return or_frozen(pid, state_of(f"/proc/{pid}"), channel), channel, call


def call_of(pid: int, said: str, paths: dict[int, str]) -> str:
    """Return the call of a thread, such as `read /data/train-00017` or `futex`; `running` if it is
    in none; empty if that is not permitted, or if it waits outside of any, as for a page of memory.
    `said` is /proc/PID/syscall."""
    words = said.split()
    if not words or words == ["running"] or not words[0].isdigit():
        return "running" if words == ["running"] else ""
    number = int(words[0])
    for kind, names in CALLS.get(os.uname().machine, {}).items():
        name = names.get(number)
        if name is None:
            continue
        if kind == "fd":
            fd = int(words[1], 16) & 0xFFFFFFFF
            return f"{name} {paths.get(fd, fd)}"
        if kind in ("path", "at"):
            path = string_at(pid, int(words[1 if kind == "path" else 2], 16))
            with contextlib.suppress(OSError):
                if path[:1] not in ("", "/"):
                    folder = paths.get(int(words[1], 16)) if kind == "at" else None
                    folder = folder or os.readlink(f"/proc/{pid}/cwd")  # noqa: PTH115
                    path = os.path.join(folder, path)  # noqa: PTH118
            return f"{name} {path}".strip()
        path = paths.get(polled(pid, name, words), "")
        return f"{name} {path}" if POLLED.match(path) else name
    return f"call {number}"


def polled(pid: int, name: str, words: list[str]) -> int:
    """Return the descriptor from which a call waits to read, if that is the only one; else -1.

    `input()` of a Python with readline waits in select(2), and sockets with a timeout in poll(2).
    """
    if name in ("select", "pselect6"):
        return 0 if int(words[1], 16) == 1 else -1  # of the descriptors below 1
    if name in ("poll", "ppoll") and int(words[2], 16) == 1:
        with contextlib.suppress(struct.error):
            fd, events = struct.unpack("=ih", memory_at(pid, int(words[1], 16), 6))
            return fd if events & select.POLLIN else -1
    return -1


def string_at(pid: int, address: int) -> str:
    """Return the path at an address in a process's memory; empty if that is not permitted."""
    return memory_at(pid, address, 256).partition(b"\0")[0].decode(errors="backslashreplace")


def memory_at(pid: int, address: int, size: int) -> bytes:
    """Return the content of a process's memory; empty if that is not permitted."""
    try:
        with open(f"/proc/{pid}/mem", "rb", 0) as memory:  # noqa: PTH123
            memory.seek(address)
            return memory.read(size)
    except (OSError, ValueError, OverflowError):
        return b""
