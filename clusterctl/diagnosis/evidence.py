"""The evidence about a job: its record and log, and the state of its hosts and of its ranks.

It has only observations; `rules` and `verdict` draw the conclusions. A bundle stores it, so that
another machine or a later version can draw them again: unknown keys are ignored, and missing ones
are the defaults. What a node sends may be damaged: then that part is left out, and told.

Durations are in seconds, sizes in bytes. Times of a host are by its own clock.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field, replace
from typing import Any, Optional

from clusterctl.node.diagnosis.job import JobOutput
from clusterctl.node.facts.disks import MountedFileSystem
from clusterctl.node.facts.flight import FlightDump
from clusterctl.node.facts.native import NativeCalls
from clusterctl.node.facts.network import ConnectAttempt, EfaCard, Interface
from clusterctl.node.jobs.processes import LAUNCHERS, OTHER_LAUNCHERS, STARTERS
from clusterctl.node.jobs.spec import JobState
from clusterctl.node.record import finite, salvage
from clusterctl.node.untrusted import legible

# Launchers of MPI that are called by the names of their programs.
NAMED = {*LAUNCHERS, *OTHER_LAUNCHERS} - {"ompirun_wrapper"}


@dataclass(frozen=True)
class Frame:
    """A call on a stack. For a native one, `file` is the library and `line` is 0."""

    function: str = ""
    file: str = ""
    line: int = 0
    native: bool = False


@dataclass(frozen=True)
class ThreadStack:
    """The calls of one thread, the outermost first."""

    thread: str = ""
    os_thread_id: int = 0
    frames: tuple[Frame, ...] = ()


@dataclass(frozen=True)
class Socket:
    """A TCP connection of a rank. `timer` is the kernel's: on, keepalive, timewait or persist.

    `acked_bytes` have reached the peer since the connection was opened, and `received_bytes` came,
    in so many segments with data: `sent_segments` and `received_segments` (0: not known).
    During `sending_s` of that time there were data to send and room in the peer's window. `rtt_s`
    is the smoothed round trip.
    """

    local: str = ""
    peer: str = ""
    state: str = ""
    send_queue_bytes: int = 0
    receive_queue_bytes: int = 0
    timer: str = ""
    retransmits: int = 0
    rtt_s: float = 0.0
    acked_bytes: int = 0
    sending_s: float = 0.0
    received_bytes: int = 0
    sent_segments: int = 0
    received_segments: int = 0


@dataclass(frozen=True)
class OpenFile:
    """An open file, pipe or device of a rank. A changing `position` shows that it is read."""

    fd: int = 0
    path: str = ""
    position: int = 0


@dataclass(frozen=True)
class Sample:
    """A snapshot of a process, taken `at_s` after the host's first one.

    `state` is the kernel's letter (R S D T t Z X), or F if its cgroup has frozen it,
    `wait_channel` the kernel function that it waits
    in. `syscall` is the system call of the main thread; if the first argument is a file descriptor,
    its path follows, as in `read /data/train-00017`. `cpu_s` and `run_wait_s` (ready to run, but
    without a processor) are totals of all threads since the process started, `main_cpu_s` is the
    main thread's part, `main_system_s` what of that was spent in the kernel, `main_runs` and
    `other_runs` how often it and all others got a processor, `main_read_bytes` and
    `main_written_bytes` its own part of these bytes, `throttled_s` how long its cgroup had used up
    its share of the processors (None: unknown). `descriptors` is the number of open
    descriptors, `files` are the first of those on files. `stacks` are from `stack_source` (py-spy,
    faulthandler, gdb); if there are none, `stack_error` is the reason.
    """

    at_s: float = 0.0
    state: str = ""
    wait_channel: str = ""
    syscall: str = ""
    cpu_s: float = 0.0
    main_cpu_s: Optional[float] = None
    main_system_s: Optional[float] = None
    main_runs: Optional[int] = None
    other_runs: Optional[int] = None
    main_read_bytes: Optional[int] = None
    main_written_bytes: Optional[int] = None
    throttled_s: Optional[float] = None
    run_wait_s: float = 0.0
    virtual_bytes: int = 0
    rss_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    threads: int = 0
    descriptors: int = 0
    files: tuple[OpenFile, ...] = ()
    sockets: tuple[Socket, ...] = ()
    stacks: tuple[ThreadStack, ...] = ()
    stack_source: str = ""
    stack_error: str = ""


@dataclass(frozen=True)
class Partner:
    """A process for which the process `waiter` waits: the other end of its pipe, socket or
    terminal, the holder of its lock, its child, its debugger. `relation` says which: reads, writes,
    collects, locks, child, traces. `call` and `wait_channel` are what it is in itself. `waiter` is
    0 in bundles of older versions: there it is the process that has this partner."""

    pid: int = 0
    state: str = ""
    relation: str = ""
    argv: tuple[str, ...] = ()
    waiter: int = 0
    call: str = ""
    wait_channel: str = ""


@dataclass(frozen=True)
class OtherProcess:
    """A busy process of another user. `share` is the part of a processor that it used."""

    pid: int = 0
    user: str = ""
    share: float = 0.0
    argv: tuple[str, ...] = ()


# Variables of the address and the port at which the ranks of a job meet at its start.
MEET_AT = (
    ("MASTER_ADDR", "MASTER_PORT"),
    ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"),
)


@dataclass(frozen=True)
class ProcessEvidence:
    """A process of the job. `role` is rank, launcher (mpirun), daemon (prted), child or job, or
    orphan: what `rank`, which has ended, has left running.

    `gpus` are those that the rank may use (CUDA_VISIBLE_DEVICES or its local rank), numbered as by
    nvidia-smi. `launcher` is what has started a rank, as node/jobs/launchers.py names it; `group`
    is the same for all processes of a job, and `slurm_job` is the ID of Slurm's job; empty if
    unknown. `variables` are the environment variables for communication: MASTER_*, HOROVOD_*,
    NCCL_* and OMPI_MCA_*, without secrets. `sources` are digests, by name, of the process's script
    and of the modules beside it that the script imports. Files newer than the process are left out:
    it runs the older version.

    `limits` are its soft limits by name: of open files, threads (of its user), memory in bytes and
    more, as far as it has one, and `cgroup` the threads that its cgroup may have, if it has them.

    `native` are its calls in C, if they were read: few ranks are stopped for that. `rendezvous` is
    what came of connecting from its host to where the job's ranks meet, if it waits for that.

    `shared_bytes` are those that changed, from the first sample to the last, of the memory from
    which it sends messages to ranks of its host; None if that is not known.

    `glances` are states of the main thread, taken ten times a second between the samples, a letter
    each: w if it waits for other threads, z if it sleeps, else the kernel's letter.
    """

    pid: int = 0
    parent: int = 0
    role: str = ""
    rank: Optional[int] = None
    local_rank: Optional[int] = None
    size: Optional[int] = None
    job_id: Optional[str] = None
    launcher: str = ""
    group: str = ""
    slurm_job: str = ""
    gpus: tuple[int, ...] = ()
    argv: tuple[str, ...] = ()
    cwd: str = ""
    age_s: float = 0.0
    variables: dict[str, str] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    shared_bytes: Optional[int] = None
    glances: str = ""
    samples: tuple[Sample, ...] = ()
    partners: tuple[Partner, ...] = ()
    native: Optional[NativeCalls] = None
    rendezvous: Optional[ConnectAttempt] = None

    @property
    def last(self) -> Sample:
        """The last sample; an empty one without any."""
        return self.samples[-1] if self.samples else Sample()

    @property
    def launcher_name(self) -> str:
        """What a launcher is called, such as torchrun; empty for other processes."""
        names = [word.rpartition("/")[2] for word in self.argv[:4]]
        known = (one for one in names if STARTERS.fullmatch(one) or one in NAMED)
        return next(known, "mpirun") if self.role == "launcher" else ""

    @property
    def meets_at(self) -> str:
        """Return `ADDRESS:PORT` at which the job's ranks meet at its start; empty if unknown."""
        pairs = ([self.variables.get(name, "") for name in pair] for pair in MEET_AT)
        return next((":".join(pair) for pair in pairs if all(pair)), "")


@dataclass(frozen=True)
class GpuProcess:
    """A process that uses a GPU, with its memory on it. None: nvidia-smi has N/A."""

    pid: Optional[float] = None
    memory_mib: Optional[float] = None


@dataclass(frozen=True)
class GpuFacts:
    """What nvidia-smi reports about a GPU. `bus` is its PCI address, such as 00000000:00:1e.0.

    `throttled` are the active reasons for a lower clock. `recovery_action` is what the driver
    recommends for a broken GPU.
    """

    bus: str = ""
    recovery_action: str = ""
    remap_failed: bool = False
    throttled: tuple[str, ...] = ()
    clock_mhz: Optional[float] = None
    processes: tuple[GpuProcess, ...] = ()


@dataclass(frozen=True)
class KernelMessage:
    """A line of the kernel log, `age_s` old; None if that is unknown."""

    age_s: Optional[float] = None
    text: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", legible(self.text))


@dataclass(frozen=True)
class SystemFacts:
    """The name by which a host calls itself, empty if unknown, and the seconds since its start."""

    hostname: str = ""
    uptime_s: Optional[float] = None


@dataclass(frozen=True)
class GpusOfHost:
    gpus: tuple[GpuFacts, ...] = ()


@dataclass(frozen=True)
class KnownFacts:
    """The facts that rules use, of a host's report. `errors` is why facts are missing, by name."""

    filesystems: tuple[MountedFileSystem, ...] = ()
    gpus: Optional[GpusOfHost] = None
    kernel_log: tuple[KernelMessage, ...] = ()
    system: SystemFacts = SystemFacts()
    limits: dict[str, Optional[int]] = field(default_factory=dict)
    flight_dumps: tuple[FlightDump, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    errors: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class HostEvidence:
    """The evidence of one host. If it did not answer, `error` is why and `ec2` its state in EC2.

    `quarantined` is the time and the reason, if the host is in quarantine. `facts` are those of
    its report by name (node/facts): disks, memory, kernel messages, GPUs and more. `efa` are its
    EFA cards, with what their counters have grown from the first sample to the last. `ras` is the
    answer of NCCL's RAS as JSON or text; empty if it is not running. `clock_offset_s` is this
    host's clock minus that of the machine that runs `diagnose`, with an error of up to
    `clock_error_s`.
    `hidden` are the users who may have a job there whose processes the login may not read.
    `problems` list what could not be observed.
    """

    index: int = 0
    host: str = ""
    address: str = ""
    slots: int = 0
    error: str = ""
    ec2: str = ""
    quarantined: str = ""
    clock_offset_s: Optional[float] = None
    clock_error_s: Optional[float] = None
    processes: tuple[ProcessEvidence, ...] = ()
    others: tuple[OtherProcess, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    efa: tuple[EfaCard, ...] = ()
    ras: str = ""
    hidden: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def names(self) -> set[str]:
        """The names by which logs may call the host."""
        return {self.host, self.address, self.hostname} - {""}

    @property
    def addresses(self) -> set[str]:
        """The addresses by which others may call the host: that of SSH need not be that of MPI."""
        own = {one.address.partition("/")[0] for one in self.known.interfaces if one.name != "lo"}
        return {self.host, self.address, *own} - {""}

    @property
    def ranks(self) -> tuple[ProcessEvidence, ...]:
        return tuple(process for process in self.processes if process.role == "rank")

    @functools.cached_property
    def _read(self) -> tuple[KnownFacts, tuple[str, ...]]:
        known, problems = salvage(KnownFacts, self.facts)
        return known or KnownFacts(), problems

    @property
    def known(self) -> KnownFacts:
        return self._read[0]

    @property
    def unseen(self) -> tuple[str, ...]:
        """What could not be observed, damaged facts included."""
        damaged = (f"unexpected value: {problem}" for problem in self._read[1])
        return (*self.problems, *damaged)

    @property
    def gpus(self) -> tuple[GpuFacts, ...]:
        return self.known.gpus.gpus if self.known.gpus else ()

    @property
    def hostname(self) -> str:
        """The name by which the host calls itself; empty if unknown."""
        return self.known.system.hostname


@dataclass(frozen=True)
class JobEvidence(JobOutput):
    """The job's record on the head node. `state` is None if it is not known.

    For a job that was started by hand, `job_id` is empty and `line` is that of its mpirun. `hosts`
    are the hosts of the job's hosts file with their slots. `others` are the ids of other running
    jobs, which matter unless this one `is_chosen` by its name. `retries_left` is the number of
    times that the head node will start the job again after a lost node. `reason` is the runner's
    word on the job's end, and `messages` are the watchdog's (`train --watchdog`). When its record
    was read, that was `ended_s` seconds ago; None if that is not known. `log_kept_bytes` is how
    much of the log the lines of `log` were before what cannot be read was taken out of them. It
    `went_on` if a step was recorded after the samples, while the calls of ranks in C were read.
    """

    job_id: str = ""
    state: Optional[JobState] = None
    exit_status: Optional[int] = None
    started_at: str = ""
    age_s: float = 0.0
    size: int = 0
    line: str = ""
    hosts: dict[str, int] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    is_chosen: bool = False
    retries_left: int = 0
    reason: str = ""
    messages: tuple[str, ...] = ()
    ended_s: Optional[float] = None
    log_kept_bytes: int = 0
    went_on: bool = False

    def __post_init__(self) -> None:
        """Keep of the lines and rows what can be read: the job, or a bundle, may have any."""
        kept = self.log_kept_bytes or sum(len(line) + 1 for line in self.log)
        object.__setattr__(self, "log_kept_bytes", kept)
        for name in ("log_first", "log", "log_added", "own_added", "messages"):
            object.__setattr__(self, name, tuple(map(legible, getattr(self, name))))
        logs = {rank: tuple(map(legible, lines)) for rank, lines in self.rank_logs.items()}
        object.__setattr__(self, "rank_logs", logs)
        object.__setattr__(self, "metrics", tuple(map(finite, self.metrics)))


@dataclass(frozen=True)
class Evidence:
    """All evidence of one `diagnose`, taken at `taken_at` (UTC), during `took_s` seconds.

    Without a cluster, `source` is the options that named the hosts: "--hosts FILE" or "--local".
    `user` is the login there, if it was named, and `as_root` is whether sudo was used.
    `job` is None if the head node has no job. `problems` are the damaged parts of a bundle.
    """

    cluster: str = ""
    source: str = ""
    user: str = ""
    as_root: bool = False
    taken_at: str = ""
    took_s: float = 0.0
    version: str = ""
    job: Optional[JobEvidence] = None
    hosts: tuple[HostEvidence, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def holes(self) -> tuple[str, ...]:
        """The damaged parts without which a rank, or the job itself, seems not to be there."""
        of_hosts = (f"{host.host}: {text}" for host in self.hosts for text in host.problems)
        return tuple(text for text in (*self.problems, *of_hosts) if _HOLE.search(text))


# The paths of such parts, as `salvage` tells them: of a bundle, and of what a node has sent.
_HOLE = re.compile(
    r"^(?:job|hosts)(?:\[\d+\])?(?:\.(?:state|job_id|size|hosts))?: "
    r"|\bprocesses(?:\[\d+\](?:\.(?:role|rank|job_id|samples(?:\[\d+\])?))?)?: "
)


def evidence_in(data: Any) -> Evidence:
    """Return the evidence in the data of a bundle."""
    found, problems = salvage(Evidence, data)
    found = found or Evidence()
    return replace(found, problems=(*found.problems, *problems))
