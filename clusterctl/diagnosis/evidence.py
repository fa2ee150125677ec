"""What was seen of a job: by the head node's record and log, by each host, by each of its ranks.

A value, and nothing but what was seen: conclusions are drawn in `verdict`. It is what a bundle
holds, so that the same screen can be made from it on another machine and by a later version:
`decode` ignores keys it does not know and gives missing ones their defaults. Durations are in
seconds, sizes in bytes. Times of a host are by its own clock.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from dataclasses import dataclass, field
from typing import Any, Optional, TypeVar, Union, cast

T = TypeVar("T")
# Looked up once for each class: a bundle of 4,096 ranks has hundreds of thousands of values.
_HINTS: dict[type[Any], dict[str, Any]] = {}


@dataclass(frozen=True)
class Frame:
    """A call. `file` is a source file, or the library of a native frame, whose `line` is 0."""

    function: str = ""
    file: str = ""
    line: int = 0
    native: bool = False


@dataclass(frozen=True)
class ThreadStack:
    """One thread's calls, outermost first."""

    thread: str = ""
    os_thread_id: int = 0
    frames: tuple[Frame, ...] = ()
    owns_gil: bool = False
    active: bool = False


@dataclass(frozen=True)
class Socket:
    """A TCP connection of a rank. `timer` is the kernel's: on, keepalive, timewait, persist.

    Since it was opened `acked_bytes` have reached the peer. For `sending_s` of that time there was
    something to send that the peer's window had room for. `rtt_s` is the smoothed round trip.
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


@dataclass(frozen=True)
class OpenFile:
    """A file, pipe or device that a rank has open; `position` shows whether it is being read."""

    fd: int = 0
    path: str = ""
    position: int = 0


@dataclass(frozen=True)
class Sample:
    """One look at a process. `at_s` is since the host's first look.

    `state` is the kernel's letter (R S D T t Z X), `wait_channel` where the kernel waits, `syscall`
    the call the main thread is in with its first argument's path where that is a descriptor, as
    `read /data/train-00017`. `cpu_s` and `run_wait_s` (wanted a processor and had none) are sums
    since the process started. `threads_running` counts threads in state R or D. `stacks` came from
    `stack_source` (py-spy, faulthandler, gdb), or `stack_error` says why there are none.
    """

    at_s: float = 0.0
    state: str = ""
    wait_channel: str = ""
    syscall: str = ""
    cpu_s: float = 0.0
    run_wait_s: float = 0.0
    rss_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    context_switches: int = 0
    threads_running: int = 0
    threads: int = 0
    files: tuple[OpenFile, ...] = ()
    sockets: tuple[Socket, ...] = ()
    stacks: tuple[ThreadStack, ...] = ()
    stack_source: str = ""
    stack_error: str = ""


@dataclass(frozen=True)
class ProcessEvidence:
    """A process of the job: `role` is rank, launcher (mpirun), daemon (prted), child or job.

    `gpus` are those the rank may use (CUDA_VISIBLE_DEVICES or its local rank), as nvidia-smi counts
    them. `variables` are those of its environment that say how it communicates: HOROVOD_*, NCCL_*,
    OMPI_MCA_*, without secrets. `sources` are digests of its script and of the modules beside it
    that the script imports, by name, as far as they are older than the process.

    Between the samples a rank is glanced at ten times a second. `glances` has a letter for each:
    w where the main thread waits for other threads, z where it sleeps, else its state.
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
    glances: str = ""
    samples: tuple[Sample, ...] = ()


@dataclass(frozen=True)
class HostEvidence:
    """What one host said, or why it did not: `error`. `ec2` is what EC2 knows of a silent one.

    `facts` is what `node/diagnosis/host.py` answers: disks, memory, kernel lines, GPUs and more.
    `ras` is the answer of NCCL's RAS, as JSON or text, empty where nobody listens. `clock_offset_s`
    is this host's clock less the clock of the machine that asked, known to `clock_error_s`.
    `network_bytes_s` is what it sent and received while it was looked at.
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
    network_bytes_s: Optional[float] = None
    asked_s: float = 0.0
    processes: tuple[ProcessEvidence, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    ras: str = ""
    problems: tuple[str, ...] = ()

    @property
    def names(self) -> set[str]:
        """What logs may call it."""
        system = self.facts.get("system")
        own = system.get("hostname") if isinstance(system, dict) else ""
        return {self.host, self.address, str(own)} - {""}

    @property
    def ranks(self) -> tuple[ProcessEvidence, ...]:
        return tuple(process for process in self.processes if process.role == "rank")


@dataclass(frozen=True)
class JobEvidence:
    """The job as the head node's record has it; `state` as in `clusterctl logs`.

    Of one that was started by hand, `job_id` is empty and `line` is its mpirun's. `log` are the
    log's last lines, `log_first` its first, `log_silent_s` how long nothing was written to it.
    `metrics` are the last lines of the trainer's metrics.jsonl, `metrics_silent_s` likewise.
    `hosts` are those of the job's hosts file, with their slots. `retries_left`: so often the head
    node starts it again after a lost node.
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
    metrics: tuple[dict[str, Any], ...] = ()
    metrics_silent_s: Optional[float] = None
    hosts: dict[str, int] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    retries_left: int = 0


@dataclass(frozen=True)
class Evidence:
    """All that one `diagnose` saw. `taken_at` is UTC, `took_s` how long it took."""

    cluster: str = ""
    taken_at: str = ""
    took_s: float = 0.0
    version: str = ""
    job: Optional[JobEvidence] = None
    hosts: tuple[HostEvidence, ...] = ()

    def as_data(self) -> dict[str, Any]:
        """For a bundle and for `--json`."""
        return dataclasses.asdict(self)


def decode(kind: type[T], data: Any) -> T:
    """A value of dataclass `kind` from JSON's objects. What has another type than the field's is
    left at its default: a node may say anything."""
    if kind not in _HINTS:
        _HINTS[kind] = typing.get_type_hints(kind)
    values = {}
    for name, wanted in _HINTS[kind].items():
        if isinstance(data, dict) and name in data:
            value = _decoded(wanted, data[name])
            if value is not _WRONG:
                values[name] = value
    return kind(**values)


_WRONG = object()


def _decoded(wanted: Any, value: Any) -> Any:
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
    # `X | None` cannot be evaluated by Python 3.9, so that fields have Optional.
    if origin is Union:
        if value is None:
            return None
        return _decoded(next(one for one in arguments if one is not type(None)), value)
    if wanted is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value) if math.isfinite(value) else _WRONG
    if isinstance(value, bool) is not (wanted is bool):
        return _WRONG
    return value if isinstance(value, wanted) else _WRONG
