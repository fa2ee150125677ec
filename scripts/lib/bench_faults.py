"""How often `diagnose` is right: faults in real jobs on three hosts of the lab, and healthy jobs.

./scripts/bench faults --results FILE [--kinds horovod,torch,c] [--only NAME,…] [--looks N]

Each fault is injected into a running job, which is then diagnosed by the command itself, and once
more if the first look does not know it.
Results are appended to FILE, one JSON object a line, and the evidence is saved beside it. A run
goes on where the last one stopped. What is printed is the table of all results in FILE.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench_lab import cluster, quiet, running_lab

from clusterctl.cli.app_context import AppContext
from clusterctl.config import load_settings
from clusterctl.diagnosis import bundle
from clusterctl.diagnosis.verdict import diagnose
from clusterctl.domain.errors import ClusterctlError
from clusterctl.domain.timeouts import Timeouts
from clusterctl.operations.access import Access

HERE = Path(__file__).parent
KINDS = ("horovod", "torch", "c")
PYTHON = ("horovod", "torch")
# Seconds from the fault to the first look, and from that to the second. A job is called stuck after
# 10 s without a step.
QUIET_S, AGAIN_S = 11.0, 3.0
START_S, STEP_S = 150.0, 12.0


@dataclass(frozen=True)
class Fault:
    """A fault and the truth about it.

    `order` is the word for `rank`, or a shell command of `do` is run on the host of the rank, with
    {pid}, {own}, {head} and {other} filled in, and `undo` afterwards. `lab` is a pair of the lab's
    own faults. The verdict has to name `ranks` (empty: none) and one of `hosts`, and `cause` has to
    be in the finding. `level` is the exit status, of which several may be right.
    """

    name: str
    cause: str
    order: str = ""
    rank: int = 1
    ranks: tuple[int, ...] | None = None
    hosts: tuple[int, ...] = ()
    do: str = ""
    undo: str = ""
    lab: str = ""
    kinds: tuple[str, ...] = KINDS
    level: tuple[int, ...] = (2,)
    again: tuple[int, ...] = ()
    # A word with which the job is started for this fault.
    start: str = ""

    @property
    def hangs(self) -> bool:
        return self.level == (2,) and not self.lab and "pkill" not in self.do

    @property
    def truth(self) -> tuple[set[int] | None, set[str]]:
        ranks = {self.rank, *self.again} if self.ranks is None else set(self.ranks)
        at = {f"bench-{one}" for one in (self.hosts or ranks)}
        return (ranks or None), at


def word(
    order: str, name: str, cause: str, kinds: tuple[str, ...] = KINDS, do: str = "", **more: object
) -> Fault:
    return Fault(name, cause, order, kinds=kinds, do=do, **more)  # type: ignore[arg-type]


SCRATCH = (
    "sudo -n mkdir -p /data/scratch; sudo -n mount -t tmpfs -o size=512k,mode=1777 x /data/scratch"
)
LOCK_DB = (
    'setsid python3 -c \'import sqlite3,time; one=sqlite3.connect("/data/cache.db"); '
    'one.execute("begin exclusive"); time.sleep(600)\' </dev/null >/dev/null 2>&1 & '
    "echo $! >/data/db.pid"
)
HOLD_LOCK = (
    "setsid flock -o /data/job.lock sleep 600 </dev/null >/dev/null 2>&1 & "
    "echo $! >/data/lock.pid; sleep 0.3"
)
DUTY = (
    "setsid sh -c 'while kill -STOP {pid}; do sleep 0.9; kill -CONT {pid}; sleep 0.1; done' "
    "</dev/null >/dev/null 2>&1 & echo $! >/data/duty.pid"
)
END_DUTY = "kill $(cat /data/duty.pid); kill -CONT {pid}"
NOWHERE = "echo {nowhere} >/data/nowhere; sudo -n ip route add blackhole 198.51.100.9/32 || true"
# Addresses of TEST-NET are dropped by a neighbour that does not exist.
ABSENT = (
    "echo 10.255.255.9 >/data/nowhere; sudo -n ip route replace 10.255.255.9/32 dev eth0; "
    "sudo -n ip neigh replace 10.255.255.9 lladdr 02:00:00:00:00:01 dev eth0 nud permanent"
)
ABSENT_V6 = (
    "sudo -n ip -6 addr replace 2001:db8::1/64 dev eth0 nodad; "
    "sudo -n ip -6 neigh replace 2001:db8::9 lladdr 02:00:00:00:00:01 dev eth0 nud permanent"
)
# Of the connections of the rank to the other host, one loses what the rank sends.
ONE_PORT = (
    "ss -Htnp dst {other} | grep pid={pid}, | tail -n 1 | awk '{{print $4, $5}}' | tr : ' ' "
    "| (read -r _ from to port; echo to $to ipproto tcp sport $from dport $port >/data/rule); "
    "sudo -n ip rule add $(cat /data/rule) blackhole"
)
FAULTS = (
    word("pool", "a thread pool's only thread waits for its own task", "in pool", PYTHON),
    word("fork_with_lock", "a fork while a thread holds a lock", "process that it has", PYTHON),
    word("loader", "a DataLoader's worker hangs", "__getitem__", ("torch",)),
    word("two_locks", "two threads, each with the other's lock", r"two_locks|futex"),
    word("kept_lock", "a lock whose holder sleeps", r"kept_lock|futex"),
    word("ignore_signals", "a rank in pause(), signals ignored", "ignore_signals|pause"),
    word("no_descriptors", "RLIMIT_NOFILE: open fails and is tried again", "descriptor|files open"),
    word("no_threads", "RLIMIT_NPROC: no thread can be started", "no_threads|limit allows", PYTHON),
    word("no_memory", "RLIMIT_AS: no memory can be had", "no_memory|address space", PYTHON),
    word("write_fifo", "a FIFO that is opened for writing", "/data/fifo"),
    word("own_pipe", "a pipe that nobody reads", "pipe"),
    word("child_stopped", "a child that is stopped is waited for", "process that it has"),
    word(
        "database_locked",
        "a database that another process has locked",
        "database_locked",
        PYTHON,
        LOCK_DB,
        undo="kill $(cat /data/db.pid)",
    ),
    word("backtrack", "a regular expression without an end", "backtrack", PYTHON),
    word("remote_debugger", "a debugger that waits for its user", "accept"),
    word("no_name_server", "a name server that does not answer", "recv"),
    word("connect_nowhere", "a connection to a machine that is not there", "connect", do=ABSENT),
    word(
        "no_ports",
        "no free port for a connection",
        "no_ports|nanosleep|port",
        do=(
            ABSENT.replace("10.255.255.9", "{other}").partition(";")[0]
            + "; sudo -n sysctl -qw net.ipv4.ip_local_port_range='60000 60000'"
        ),
        undo="sudo -n sysctl -qw net.ipv4.ip_local_port_range='32768 60999'",
    ),
    word("wait_for_file", "a file that never comes", "wait_for_file|nanosleep"),
    word("full_shm", "full /dev/shm", "/dev/shm", undo="rm -f /dev/shm/part"),
    word(
        "full_scratch",
        "a full mount below /data",
        "/data/scratch",
        do=SCRATCH,
        undo="sudo -n umount -l /data/scratch",
    ),
    word("flood", "an endless log", "flood|write|output|/log|busy", level=(1, 2)),
    word("hold_gil", "a call in C that keeps Python's lock", "hold_gil", PYTHON),
    word("event_loop", "an event loop with nothing to do", "event_loop|never|run", PYTHON),
    word("full_queue", "a full multiprocessing.Queue", "full_queue", PYTHON),
    word("fetch_again", "a download that is refused and tried again", "fetch_again", PYTHON),
    word("sleep_long", "two of three ranks asleep", "sleep", again=(2,)),
    word("sleep_long", "rank 0 asleep", "sleep", rank=0),
    word(
        "other_call",
        "a rank in another collective",
        "differ|other|gather|broadcast|apart|alone|skip",
    ),
    word("leave", "a rank exits, status 0, without finalize", "exit|left|gone|ended|end"),
    word("spin", "an endless loop", "computing", kinds=("c",)),
    word("slow", "a rank with a second of own work per step", "slow", level=(1,)),
    word("terminal", "a terminal at which nobody types", r"terminal|/dev/pt", PYTHON),
    word(
        "file_lock",
        "a file's lock that another process holds",
        "lock on /data/job.lock|flock /data/job.lock",
        do=HOLD_LOCK,
        undo="kill $(cat /data/lock.pid)",
    ),
    word("in_handler", "a signal's handler that sleeps", "in_handler|<lambda>|nanosleep"),
    word("child_reads", "a child that reads a pipe is waited for", "process that it has"),
    word("child_writes", "a child's full pipe is not read", "process that it has", PYTHON),
    word("barrier", "a barrier of threads, one too few", "barrier|futex"),
    word("select_nothing", "select() of a pipe without data", "select_nothing|select"),
    word("semaphore", "a semaphore at zero", "semaphore|futex"),
    word("join_thread", "a thread that sleeps is joined", "futex", ("c",)),
    word("socket_pair", "a read of a socket pair", "socket|read", ("c",)),
    word("no_message", "MPI_Recv of a message that is not sent", "Recv|message", ("c",)),
    word("finalize", "a rank in MPI_Finalize early", "Finalize|end", ("c",)),
    word("busy_thread", "a thread that computes without end is joined", "busy_thread", PYTHON),
    word("mute_server", "an HTTP server that does not answer", "mute_server", PYTHON),
    word("process_pool", "a process of a pool hangs", "process_pool", PYTHON),
    word("exit_kept", "sys.exit, kept by another thread", "left|ended|end", PYTHON),
    word("new_group", "a group that one rank makes alone", "new_group|group|differ", ("torch",)),
    word("generator", "a tf.data generator that sleeps", "rows|generator", ("horovod",)),
    word("semaphore_set", "a System V semaphore at zero", "semop|semtimedop", ("c",)),
    word("message_queue", "a System V queue without a message", "msgrcv", ("c",)),
    word("posix_queue", "a POSIX queue without a message", "mq_timedreceive", ("c",)),
    word("wait_signal", "a signal that nobody sends", "rt_sigtimedwait", ("c",)),
    word("wait_id", "waitid() for a child that sleeps", "process that it has", ("c",)),
    word("watch_folder", "inotify on a folder where nothing happens", "inotify", ("c",)),
    word("timer", "a timer that ends in an hour", "timerfd", ("c",)),
    word("event_counter", "an eventfd at zero", "eventfd", ("c",)),
    word("splice_pipe", "splice() from a pipe that nobody writes to", "splice|pipe", ("c",)),
    word("datagrams", "recvmmsg() without a datagram", "recvmmsg", ("c",)),
    word("worker_killed", "a pool's process is killed at its task", "worker_killed|pool", PYTHON),
    word("late_import", "an import within a step does not end", "late_module|import", PYTHON),
    word(
        "read_only",
        "a disk that has become read-only",
        "[Rr]ead-only|/data/scratch",
        PYTHON,
        SCRATCH.replace("size=512k", "ro"),
        undo="sudo -n umount -l /data/scratch",
    ),
    word("drip", "an HTTP answer of one byte a second", "drip|recv|tcp", PYTHON),
    word("quiet_exit", "a rank exits, status 3, without a line", "status 3", PYTHON),
    word("held_semaphore", "a lock of a process that was killed", "held_semaphore|futex", PYTHON),
    word("handler_lock", "a signal's handler wants a lock that is held", "<lambda>|futex", PYTHON),
    word("full_log_pipe", "a pipe whose reader is stopped", "pipe.*stopped", PYTHON),
    word("file_limit", "RLIMIT_FSIZE: no file may be larger", "file_limit|too large", PYTHON),
    word("cpu_limit", "RLIMIT_CPU: a signal ends the rank", "SIGXCPU|signal 24|CPU", ("c",)),
    word("shared_mutex", "a lock in shared memory, of a dead process", "futex", ("c",)),
    word("truncate", "a message longer than its buffer", "TRUNCATE|truncat", ("c",)),
    word("unix_backlog", "connect() to a full queue of a Unix socket", "connect", ("c",)),
    word("at_exit", "out of data; a function at exit waits", "mute_server|left|exit", ("horovod",)),
    word(
        "connect_v6",
        "an IPv6 address that drops packets",
        "connect",
        ("torch",),
        ABSENT_V6,
        undo="sudo -n ip -6 addr del 2001:db8::1/64 dev eth0",
    ),
    word(
        "timer_storm", "a timer's handler slower than the timer", "timer_storm|<lambda>", ("torch",)
    ),
    word("save_and_wait", "rank 0 alone saves, with a barrier", "barrier", ("torch",), rank=0),
    word(
        "sleep_long",
        "asleep, trains in a thread",
        "sleep_long|sleep",
        ("torch",),
        start="in_thread",
    ),
    word(
        "sleep_long", "asleep, below a wrapper", "sleep_long|sleep", ("horovod",), start="wrapped"
    ),
    word(
        "",
        "a rank with another world size",
        "init_process_group|WORLD_SIZE|size",
        ("torch",),
        start="world",
    ),
    word("open_together", "MPI_File_open by one rank", "File_open", ("c",)),
    Fault(
        "one of two connections loses packets",
        "packets are lost",
        do=ONE_PORT,
        undo="sudo -n ip rule del $(cat /data/rule) blackhole",
        ranks=(),
        hosts=(1, 2),
        kinds=("c",),
    ),
    word("fails", "a rank fails", "bad row 7|SIGSEGV|signal 11|Segmentation", again=()),
    Fault("a rank killed by SIGKILL", "SIGKILL|signal 9|killed", do="kill -9 {pid}"),
    Fault("a rank stopped by SIGSTOP", "stopped", do="kill -STOP {pid}", undo="kill -CONT {pid}"),
    Fault(
        "a rank stopped for 0.9 of each second",
        "stopped|slow",
        do=DUTY,
        undo=END_DUTY,
        level=(1, 2),
    ),
    Fault(
        "packets over 600 bytes are lost on the way in",
        "packets are lost",
        undo=("sudo -n ip link set eth0 mtu 9001"),
        do="sudo -n ip link set eth0 mtu 600",
        ranks=(),
        hosts=(0, 1, 2),
    ),
    Fault(
        "no route to another host",
        "packets are lost|lost|route",
        do=("sudo -n ip route add blackhole {other}/32"),
        undo="sudo -n ip route del {other}/32",
        ranks=(),
        hosts=(1, 2),
    ),
    Fault(
        "another host's address too",
        "address|lost|duplicate",
        do=("sudo -n ip addr add {other}/32 dev eth0"),
        undo="sudo -n ip addr del {other}/32 dev eth0",
        ranks=(),
        hosts=(1, 2),
    ),
    Fault("a host paused", "not answer|silent|frozen", lab="freeze", ranks=(), hosts=(1,)),
    Fault("a host's cable pulled", "not answer|silent|cut", lab="cut", ranks=(), hosts=(1,)),
    Fault(
        "mpirun stopped",
        "stopped",
        do="pkill -STOP -x '(mpirun|prterun)'",
        rank=0,
        ranks=(),
        undo="pkill -CONT -x '(mpirun|prterun)'",
        hosts=(0,),
    ),
    Fault(
        "mpirun's daemon stopped",
        "stopped",
        do="pkill -STOP -x prted",
        ranks=(),
        undo="pkill -CONT -x prted",
        hosts=(1,),
    ),
    word(
        "validate",
        "rank 0 validates alone (healthy)",
        "",
        rank=0,
        ranks=(),
        level=(0,),
        kinds=PYTHON,
    ),
    word(
        "save_checkpoint",
        "rank 0 saves alone (healthy)",
        "",
        rank=0,
        ranks=(),
        level=(0,),
        kinds=PYTHON,
    ),
    word(
        "close_output", "a rank's output closed (healthy)", "", ranks=(), level=(0,), kinds=PYTHON
    ),
)


class Job:
    """The running job on the cluster `bench`, shared until a fault ends it."""

    def __init__(self, access: Access) -> None:
        self.access, self.kind, self.runs = access, "", False
        access.connections  # noqa: B018
        self.addresses = [node.private_ip for node in access.cluster.nodes]

    def on(self, node: int, command: str, stdin: bytes = b"") -> str:
        """Run a command on a node. A host that a fault has silenced gives an empty output."""
        with contextlib.suppress(ClusterctlError):
            target = self.access.all_targets[node]
            done = self.access.connections.run(target, command, stdin=stdin, timeout_s=20)
            if done.exit_status and done.stderr:
                print(f"bench-{node}: {command[:200]}: {done.stderr.strip()[:300]}", flush=True)
            return done.stdout
        return ""

    def log(self) -> str:
        return self.on(0, 'tail -c 20000 "$(ls -td ~/.clusterctl/jobs/2* | head -n 1)"/log')

    def steps(self, within_s: float) -> bool:
        """Return whether the job makes a step."""
        before, until = re.findall(r"step \d+", self.log())[-1:], time.monotonic() + within_s
        while time.monotonic() < until:
            if re.findall(r"step \d+", self.log())[-1:] != before:
                return True
            time.sleep(0.4)
        return False

    def start(self, kind: str, *words: str, wait: bool = True) -> None:
        self.end()
        options = ("--launcher", "torchrun") if kind == "torch" else ()
        environ = ("-x", "HOROVOD_CYCLE_TIME=10")
        quiet(
            "clusterctl",
            "train",
            "bench",
            "3",
            "--detach",
            "--force",
            *options,
            *environ,
            "--script",
            "~/faults_job.py",
            "--",
            kind,
            *words,
        )
        self.kind, self.runs = kind, not words
        if wait and not self.steps(START_S):
            raise SystemExit(f"error: the {kind} job does not start: {self.log()[-2000:]}")

    def end(self) -> None:
        self.runs = False
        clean = "rm -f /data/order.* /data/fifo /data/never /dev/shm/part; mkfifo /data/fifo"
        for node in range(3):
            self.on(node, clean)
        subprocess.run(["clusterctl", "kill", "bench"], check=False, capture_output=True)

    def ready(self, kind: str) -> None:
        if not (self.runs and self.kind == kind and self.steps(STEP_S)):
            self.start(kind)

    @contextlib.contextmanager
    def fault(self, fault: Fault) -> Iterator[None]:
        ranks = [fault.rank, *fault.again]
        pid = self.on(fault.rank, f"cat /data/pid.{fault.rank}").strip()
        fill = {"pid": pid, "other": self.addresses[2 if fault.rank != 2 else 0], "nowhere": ""}

        def shell(text: str) -> str:
            return self.on(fault.rank, re.sub(r"\{(\w+)\}", lambda m: fill[m[1]], text))

        for rank in range(3):
            self.on(rank, "test -p /data/fifo || mkfifo /data/fifo")
        if fault.lab:
            self.lab(fault.lab, fault.rank)
        if fault.do:
            shell(fault.do)
        for rank in ranks:
            if fault.order:
                self.on(rank, f"echo {fault.order} >/data/order.{rank}")
        try:
            yield
        finally:
            if fault.lab:
                self.lab("clear", fault.rank)
            for rank in ranks:
                if fault.order:
                    self.on(rank, f"rm -f /data/order.{rank}; kill -USR1 $(cat /data/pid.{rank})")
            if fault.undo:
                # A rank that fills a disk notices within a second that its order is withdrawn.
                time.sleep(1.0 if fault.order else 0.0)
                shell(fault.undo)

    def lab(self, fault: str, node: int) -> None:
        quiet("clusterctl", "lab", "fault", fault, self.access.cluster.nodes[node].instance_id)


def look(save: Path) -> tuple[dict[str, object], float]:
    """Run `clusterctl diagnose bench --json`. Return what it printed, and its seconds."""
    began = time.monotonic()
    argv = ["clusterctl", "diagnose", "bench", "--json", "--save", str(save)]
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    took_s = time.monotonic() - began
    try:
        return json.loads(done.stdout), took_s
    except ValueError:
        return {"verdict": f"no JSON: {done.stderr[-500:]}", "exit_status": done.returncode}, took_s


def look_again(row: dict[str, object], folder: Path) -> dict[str, object]:
    """Judge the saved evidence of a result by the rules of today."""
    fault = next(one for one in FAULTS if one.name == row["fault"])
    for number, one in enumerate(row["looks"], 1):  # type: ignore[arg-type]
        path = saved(folder, row["kind"], fault, number)  # type: ignore[arg-type]
        if not path.exists():
            continue
        seen = diagnose(bundle.load(path)).as_data()
        one |= {
            "is": judge(fault, seen),
            "check": seen["check"],
            "status": seen["exit_status"],
            "said": str(seen["verdict"])[:300],
        }
    return row


def saved(folder: Path, kind: str, fault: Fault, number: int) -> Path:
    return folder / f"{kind}-{re.sub(r'[^a-z0-9]+', '-', fault.name)}-{number}.json.gz"


def judge(fault: Fault, seen: dict[str, object]) -> str:
    """Return right, partly (the place, or a part of it), not known, or wrong."""
    status, ranks, hosts = seen["exit_status"], *fault.truth
    if fault.level == (0,):
        return "right" if status == 0 else "not known" if status == 3 else "wrong"
    if status == 3:
        return "not known"
    if status == 0 or "findings" not in seen:
        return "wrong"
    lead = seen["findings"][0]  # type: ignore[index]
    text = json.dumps([lead["message"], lead["evidence"], lead["hint"]])
    # The host of the finding, and for a pair of hosts those that its message names.
    named = {lead["host"]} if lead["host"] else set()
    if ranks is None or not named:
        named |= {at for at in ("bench-0", "bench-1", "bench-2") if at in lead["message"]}
    if ranks is None:
        rank_right = True
    else:
        rank_right = set(lead["ranks"]) == ranks
    host_right = bool(named & hosts) and (named <= hosts or ranks is None)
    cause_right = bool(re.search(fault.cause, text))
    level_right = status in fault.level
    if rank_right and host_right and cause_right and level_right:
        return "right"
    if (rank_right and host_right) or (cause_right and host_right):
        return "partly"
    return "wrong"


def run_fault(job: Job, kind: str, fault: Fault, folder: Path) -> dict[str, object]:
    if fault.start:
        job.start(kind, fault.start, wait=bool(fault.order))
        time.sleep(0.0 if fault.order else QUIET_S)
    else:
        job.ready(kind)
    rows = []
    with job.fault(fault):
        began = time.monotonic()
        time.sleep(QUIET_S)
        if fault.hangs and job.steps(1.5):
            job.runs = False
            return {"not injected": fault.name, "kind": kind}
        for number in (1, 2):
            seen, took_s = look(saved(folder, kind, fault, number))
            verdict = judge(fault, seen)
            rows.append(
                {
                    "is": verdict,
                    "took_s": round(took_s, 1),
                    "check": seen.get("check"),
                    "status": seen["exit_status"],
                    "said": str(seen["verdict"])[:300],
                }
            )
            rows[-1]["after_s"] = round(time.monotonic() - began, 1)
            if verdict == "right":
                break
            time.sleep(AGAIN_S if number == 1 else 0)
    return {"fault": fault.name, "kind": kind, "looks": rows}


def healthy(job: Job, kind: str, looks: int, folder: Path) -> Iterator[dict[str, object]]:
    """Look at healthy jobs: from their start on, with steps, and without output."""
    for words in ((), ("quiet",)):
        job.start(kind, *words, wait=False)
        for number in range(looks):
            seen, took_s = look(folder / f"healthy-{kind}-{''.join(words)}-{number}.json.gz")
            state = "without output" if words else "with steps"
            yield {
                "healthy": state,
                "kind": kind,
                "status": seen["exit_status"],
                "check": seen.get("check"),
                "said": str(seen["verdict"])[:300],
                "took_s": round(took_s, 1),
            }


def table(rows: list[dict[str, object]]) -> str:
    """Return the tables of docs/diagnose.md: a line for each fault, and the counts."""
    latest = {(one["fault"], one["kind"]): one["looks"] for one in rows if "fault" in one}
    known = {fault.name: fault for fault in FAULTS}
    lines = ["| fault | Horovod | torch | C |", "|---|---|---|---|"]
    total = {"right": 0, "partly": 0, "not known": 0, "wrong": 0}
    zero = 0
    for name in dict.fromkeys(fault.name for fault in FAULTS):
        cells = []
        for kind in KINDS:
            looks = latest.get((name, kind))
            last = looks[-1] if looks else None  # type: ignore[index]
            cells.append(f"{last['is']}, {last['took_s']} s" if last else "-")
            if last and known[name].level != (0,):
                total[last["is"]] += 1
                zero += sum(one["status"] == 0 for one in looks)  # type: ignore[union-attr]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    said = total["right"] + total["partly"] + total["wrong"]
    every = said + total["not known"]
    lines += [
        "",
        f"{every} faults: {total}; exit status 0 over a hung job: {zero}",
        f"precision {total['right'] / max(1, said):.2f}, "
        f"recall {total['right'] / max(1, every):.2f}",
    ]
    well = [one for one in rows if "healthy" in one]
    counts = {status: sum(one["status"] == status for one in well) for status in (0, 1, 2, 3)}
    lines.append(f"{len(well)} looks at healthy jobs, by exit status: {counts}")
    return "\n".join(lines)


def bench_faults(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="bench faults")
    parser.add_argument("--results", type=Path, default=Path("faults.jsonl"))
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument(
        "--only", default="", help="names of orders, or beginnings of faults' names"
    )
    parser.add_argument("--looks", type=int, default=17, help="at each healthy job; 0: none")
    parser.add_argument("--again", action="store_true", help="also those that have a result")
    parser.add_argument("--judge", action="store_true", help="only the saved evidence, again")
    given = parser.parse_args(words)
    given.results.touch()
    folder = given.results.with_suffix("")
    folder.mkdir(exist_ok=True)
    rows = [json.loads(line) for line in given.results.read_text().splitlines()]

    if given.judge:
        rows = [look_again(one, folder) if "fault" in one else one for one in rows]
        for one in rows:
            if "fault" in one and one["looks"][-1]["is"] != "right":
                print(one["kind"], one["fault"], [(x["is"], x["said"]) for x in one["looks"]])
        print(table(rows))
        return

    def keep(row: dict[str, object]) -> None:
        rows.append(row)
        with given.results.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)

    done = {(one["fault"], one["kind"]) for one in rows if "fault" in one and not given.again}
    only = tuple(filter(None, given.only.split(",")))
    with contextlib.ExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(running_lab(Path(home)))
        stack.enter_context(cluster(3))
        context = AppContext(load_settings(os.environ), Timeouts())
        with context.open("bench") as access:
            job = Job(access)
            program = f"{home}/faults_c"
            quiet(
                "/opt/clusterctl/training/bin/mpicc",
                "-O1",
                "-pthread",
                "-o",
                program,
                str(HERE / "faults_job.c"),
            )
            for node in range(3):
                for name, file in (
                    ("faults_c", Path(program)),
                    ("faults_job.py", HERE / "faults_job.py"),
                ):
                    job.on(node, f"cat >{name} && chmod +x {name}", file.read_bytes())
            for kind in given.kinds.split(","):
                for fault in FAULTS:
                    listed = not only or fault.order in only or fault.name.startswith(only)
                    if kind in fault.kinds and (fault.name, kind) not in done and listed:
                        keep(run_fault(job, kind, fault, folder))
                have = sum(one.get("healthy") is not None and one["kind"] == kind for one in rows)
                if given.looks and have < 2 * given.looks:
                    for row in healthy(job, kind, given.looks, folder):
                        keep(row)
    print(table(rows))
