"""The evidence about a job: its record and log, and the state of its hosts and of its ranks.

It has only observations; `rules` and `verdict` draw the conclusions. A bundle stores it, so that
another machine or a later version can draw them again: `decode` ignores unknown keys and gives
missing ones their defaults. Durations are in seconds, sizes in bytes. Times of a host are by its
own clock.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import typing
from dataclasses import dataclass, field
from typing import Any, Optional, TypeVar, Union, cast

T = TypeVar("T")
# A cache of type hints by class: a bundle of 4,096 ranks has hundreds of thousands of values.
_HINTS: dict[type[Any], dict[str, Any]] = {}


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

    `acked_bytes` have reached the peer since the connection was opened, and `received_bytes` came.
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


@dataclass(frozen=True)
class OpenFile:
    """An open file, pipe or device of a rank. A changing `position` shows that it is read."""

    fd: int = 0
    path: str = ""
    position: int = 0


@dataclass(frozen=True)
class Sample:
    """A snapshot of a process, taken `at_s` after the host's first one.

    `state` is the kernel's letter (R S D T t Z X), `wait_channel` the kernel function that it waits
    in. `syscall` is the system call of the main thread; if the first argument is a file descriptor,
    its path follows, as in `read /data/train-00017`. `cpu_s` and `run_wait_s` (ready to run, but
    without a processor) are totals of all threads since the process started, `main_cpu_s` is the
    main thread's part, `throttled_s` how long its cgroup had used up its share of the processors
    (None: unknown). `descriptors` is the number of open
    descriptors, `files` are the first of those on files. `stacks` are from `stack_source` (py-spy,
    faulthandler, gdb); if there are none, `stack_error` is the reason.
    """

    at_s: float = 0.0
    state: str = ""
    wait_channel: str = ""
    syscall: str = ""
    cpu_s: float = 0.0
    main_cpu_s: Optional[float] = None
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
    """A process that another one waits for: the other end of its pipe or terminal, the holder of
    its lock, its debugger. `relation` says which: reads, writes, collects, locks, traces."""

    pid: int = 0
    state: str = ""
    relation: str = ""
    argv: tuple[str, ...] = ()


@dataclass(frozen=True)
class OtherProcess:
    """A busy process of another user. `share` is the part of a processor that it used."""

    pid: int = 0
    user: str = ""
    share: float = 0.0
    argv: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProcessEvidence:
    """A process of the job. `role` is rank, launcher (mpirun), daemon (prted), child or job.

    `gpus` are those that the rank may use (CUDA_VISIBLE_DEVICES or its local rank), numbered as by
    nvidia-smi. `variables` are the environment variables for communication: HOROVOD_*, NCCL_* and
    OMPI_MCA_*, without secrets. `sources` are digests, by name, of the process's script and of the
    modules beside it that the script imports. Files newer than the process are left out: it runs
    the older version.

    `limits` are its soft limits of open files, threads (of its user) and memory in bytes, as far as
    it has one.

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
    gpus: tuple[int, ...] = ()
    argv: tuple[str, ...] = ()
    cwd: str = ""
    age_s: float = 0.0
    variables: dict[str, str] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    glances: str = ""
    samples: tuple[Sample, ...] = ()
    partners: tuple[Partner, ...] = ()


@dataclass(frozen=True)
class FileSystemFacts:
    """A mounted file system of a host. None: unknown."""

    path: str = ""
    size_bytes: int = 0
    free_bytes: Optional[int] = None
    inodes: int = 0
    inodes_free: Optional[int] = None
    readonly: bool = False


@dataclass(frozen=True)
class GpuProcess:
    """A process that uses a GPU, with its memory on it."""

    pid: float = 0.0
    memory_mib: float = 0.0


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


@dataclass(frozen=True)
class HostEvidence:
    """The evidence of one host. If it did not answer, `error` is why and `ec2` its state in EC2.

    `quarantined` is the time and the reason, if the host is in quarantine. `facts` are those of
    its report by name (node/facts): disks, memory, kernel messages, GPUs and more. The properties
    have those of its values that are of the right type. `ras` is the answer of
    NCCL's RAS as JSON or text; empty if it is not running. `clock_offset_s` is this host's clock
    minus that of the machine that runs `diagnose`, with an error of up to `clock_error_s`.
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
    ras: str = ""
    problems: tuple[str, ...] = ()

    @property
    def names(self) -> set[str]:
        """The names by which logs may call the host."""
        return {self.host, self.address, self.hostname} - {""}

    @property
    def ranks(self) -> tuple[ProcessEvidence, ...]:
        return tuple(process for process in self.processes if process.role == "rank")

    @functools.cached_property
    def filesystems(self) -> tuple[FileSystemFacts, ...]:
        return self._fact(tuple[FileSystemFacts, ...], "filesystems")

    @functools.cached_property
    def gpus(self) -> tuple[GpuFacts, ...]:
        return self._fact(tuple[GpuFacts, ...], "gpus", "gpus")

    @functools.cached_property
    def kernel_log(self) -> tuple[KernelMessage, ...]:
        return self._fact(tuple[KernelMessage, ...], "kernel_log")

    @property
    def errors(self) -> dict[str, str]:
        """Why facts are missing, by the name of the fact."""
        return self._fact(dict[str, str], "errors") or {}

    @property
    def hostname(self) -> str:
        """The name by which the host calls itself; empty if unknown."""
        return self._fact(str, "system", "hostname") or ""

    @property
    def uptime_s(self) -> Optional[float]:
        """Seconds since the host was started; None if unknown."""
        return self._fact(float, "system", "uptime_s")

    @property
    def most_files(self) -> Optional[int]:
        """The limit of open files of a process; None without a limit."""
        return self._fact(int, "limits", "nofile")

    def _fact(self, wanted: Any, *path: str) -> Any:
        """Return a fact as a value of type `wanted`; None if it is missing or of another type."""
        found: Any = self.facts
        for name in path:
            found = found.get(name) if isinstance(found, dict) else None
        value = _decoded(wanted, found)
        return None if value is _WRONG else value


@dataclass(frozen=True)
class JobEvidence:
    """The job's record on the head node. `state` is as in `clusterctl logs`.

    For a job that was started by hand, `job_id` is empty and `line` is that of its mpirun.
    `log_first` and `log` are the first and the last lines of the log; `log_silent_s` is the time
    since it was last written. `log_added` are lines that were written during the samples.
    `rank_logs` are the last lines of the ranks' own logs, by rank, of a job that has ended.
    `metrics` are the last lines of the trainer's metrics.jsonl, and `metrics_silent_s` the time
    since that was last written. `hosts` are the hosts of the job's hosts file with their slots.
    `others` are the ids of other running jobs. `retries_left` is the number of times that the head
    node will start the job again after a lost node.
    """

    job_id: str = ""
    state: str = ""
    exit_status: Optional[int] = None
    started_at: str = ""
    age_s: float = 0.0
    size: int = 0
    line: str = ""
    log_dir: str = ""
    log_bytes: int = 0
    log_silent_s: Optional[float] = None
    log_first: tuple[str, ...] = ()
    log: tuple[str, ...] = ()
    log_added: tuple[str, ...] = ()
    rank_logs: dict[str, tuple[str, ...]] = field(default_factory=dict)
    metrics: tuple[dict[str, Any], ...] = ()
    metrics_silent_s: Optional[float] = None
    hosts: dict[str, int] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    retries_left: int = 0


@dataclass(frozen=True)
class Evidence:
    """All evidence of one `diagnose`, taken at `taken_at` (UTC), during `took_s` seconds.

    `job` is None if the head node has no job.
    """

    cluster: str = ""
    taken_at: str = ""
    took_s: float = 0.0
    version: str = ""
    job: Optional[JobEvidence] = None
    hosts: tuple[HostEvidence, ...] = ()

    def as_data(self) -> dict[str, Any]:
        """Return the evidence for a bundle and for `--json`."""
        return dataclasses.asdict(self)


def decode(kind: type[T], data: Any) -> T:
    """Return a value of dataclass `kind` from JSON data.

    A value of the wrong type is ignored, and the field has its default: nodes are not trusted to
    send correct data.
    """
    if kind not in _HINTS:
        _HINTS[kind] = typing.get_type_hints(kind)
    values = {}
    for name, wanted in _HINTS[kind].items():
        if isinstance(data, dict) and name in data:
            value = _decoded(wanted, data[name])
            if value is not _WRONG:
                values[name] = value
    return kind(**values)


_WRONG = object()  # result of _decoded for a value of the wrong type


def _decoded(wanted: Any, value: Any) -> Any:
    """Return a value converted to a type; _WRONG if it is of another type."""
    if wanted is Any:
        return value
    if dataclasses.is_dataclass(wanted):
        return decode(cast("type[Any]", wanted), value) if isinstance(value, dict) else _WRONG
    origin, arguments = typing.get_origin(wanted), typing.get_args(wanted)
    if origin is tuple:
        items = value if isinstance(value, (list, tuple)) else ()
        return tuple(
            item for item in (_decoded(arguments[0], one) for one in items) if item is not _WRONG
        )
    if origin is dict:
        if not isinstance(value, dict):
            return _WRONG
        pairs = ((str(key), _decoded(arguments[1], one)) for key, one in value.items())
        return {key: one for key, one in pairs if one is not _WRONG}
    # Fields are declared as Optional, since Python 3.9 cannot evaluate `X | None`.
    if origin is Union:
        if value is None:
            return None
        return _decoded(next(one for one in arguments if one is not type(None)), value)
    if wanted is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value) if math.isfinite(value) else _WRONG
    if isinstance(value, bool) is not (wanted is bool):
        return _WRONG
    return value if isinstance(value, wanted) else _WRONG
