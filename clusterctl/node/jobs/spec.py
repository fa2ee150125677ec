"""What a job is (JobSpec), what became of it (JobStatus), and both with what it writes (JobRecord).

The specification is written once, when the job is submitted, and never changes. These classes are
the file spec.json in the job's folder, what the head node sends about a job, and what every command
reads.
"""

from __future__ import annotations

import enum
import shlex
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any, Optional, TypedDict

from clusterctl.node.record import pick

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

COPY, SERVE = "copy", "serve"  # presets of jobs that are no training
GPUS = "gpus"  # what every training claims
LOG_NAME = "hvd_train.log"  # the trainer's default


class JobState(enum.Enum):
    """The state of a job (docs/jobs.md)."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    # The job's process is gone without a recorded end: a reboot, or a kill -9.
    LOST = "lost"

    def __str__(self) -> str:
        return self.value


class When(enum.Enum):
    """When a step runs: the work, again after a lost node; then the steps that follow its success,
    and those that follow it in any case."""

    WORK = "work"
    SUCCESS = "success"
    ALWAYS = "always"


@dataclass(frozen=True)
class JobStep:
    """A command line that the head node runs for a job."""

    argv: tuple[str, ...]
    when: When = When.WORK


@dataclass(frozen=True)
class WatchedHost:
    """A node of the job's cluster. `address` is its private one."""

    index: int = 0
    name: str = ""
    address: str = ""
    gpus: int = 0


@dataclass(frozen=True)
class Watchdog:
    """`train --watchdog`: diagnose the job after `after_s` seconds without a step, on `hosts`; then
    cancel it if `cancels`."""

    cluster: str = ""
    user: str = ""
    after_s: float = 0.0
    cancels: bool = False
    hosts: tuple[WatchedHost, ...] = ()


@dataclass(frozen=True)
class JobSpec:
    """A job as it was accepted; never changed. Its steps run in the folder `workdir`.

    Two jobs with a common claim do not run together, unless that was requested. `log_dir` is the
    trainer's log folder on the head node, `log_name` the name of the log in it. `variables` and
    `mpi_arguments` are the user's; the value of a private variable is None, and in no file.
    `sources` are a copy's, `destination` is where it puts its data, or the model that is served.
    `tag_end` and `torchrun` say how output is split by rank (output.py). `per_host` is the most
    ranks that a host gets, with torchrun the number on each; None for as many as it has slots.
    `maps_ranks`: the user's options for mpirun place the ranks. `batch_size` is the trainer's, of
    each rank. `output` is the folder that the program writes into. `recipe` is the trainer's recipe
    (recipe.JobRecipe.as_data), None for any other job. `hosts` are the names of the nodes with
    ranks, the head node first; `hourly_usd` is what they cost together when the job began,
    `list_hourly_usd` AWS's price for their types on demand; None if unknown. `git` is None if the
    program's folder is no git work tree. After a lost node the job is started again up to `retries`
    times, on `min_ranks` ranks or more. `model_dir` is where the model of a script-mode program is
    uploaded; empty if it stays on the head node, None for any other job. `metric_definitions` are
    those of a script-mode program. `grace_s` is how long a command may take to end after TERM, as
    mpirun that ends the ranks of all nodes. What does not apply is empty.

    `nodes` are the nodes with processes of the job (JobNode), the head node first (of a served
    model, also if it has none). `code` is the program that
    was shipped: folder, script, files, commit, changed. A list of jobs has neither.
    """

    job_id: str
    preset: str = ""
    steps: tuple[JobStep, ...] = ()
    workdir: str = ""
    ranks: int = 0
    claims: tuple[str, ...] = (GPUS,)
    destination: str = ""
    sources: tuple[str, ...] = ()
    log_dir: str = ""
    log_name: str = LOG_NAME
    variables: dict[str, Optional[str]] = field(default_factory=dict)
    mpi_arguments: tuple[str, ...] = ()
    tag_end: str = ""
    torchrun: bool = False
    per_host: Optional[int] = None
    maps_ranks: bool = False
    batch_size: Optional[int] = None
    output: str = ""
    recipe: Optional[dict[str, Any]] = None
    hosts: tuple[str, ...] = ()
    hourly_usd: Optional[float] = None
    list_hourly_usd: Optional[float] = None
    git: Optional[dict[str, Any]] = None
    retries: int = 0
    min_ranks: int = 0
    model_dir: Optional[str] = None
    metric_definitions: dict[str, str] = field(default_factory=dict)
    watchdog: Optional[Watchdog] = None
    grace_s: float = 15.0
    nodes: tuple[dict[str, Any], ...] = ()
    code: Optional[dict[str, Any]] = None

    @property
    def argv(self) -> tuple[str, ...]:
        """The command line of the work."""
        return next((one.argv for one in self.steps if one.when is When.WORK), ())

    @property
    def line(self) -> str:
        """The command line of the work, as a shell reads it."""
        return shlex.join(self.argv)

    @property
    def evaluation(self) -> str:
        """The line that evaluates a training afterwards; empty if there is none."""
        return next((shlex.join(one.argv) for one in self.steps if one.when is When.SUCCESS), "")

    @property
    def is_training(self) -> bool:
        """Whether the job uses the GPUs as trainings do: it is no copy and serves no model."""
        return GPUS in self.claims


@dataclass(frozen=True)
class JobEvent:
    """A line of events.jsonl: what happened to a job, at `at` by the head node's clock, which may
    be set, and at `boot_s` by that of its boot.

    submitted  {"after": [JOB_ID], "boot_id"}
    running    {"before": {NAME: STAMP}}: its turn has come, and the log folder has these files of
               an earlier job
    attempt    {"argv", "ranks", "hosts": [NAME], "hourly_usd"}: the work is started. The price is
               that of these hosts, None if unknown
    failed     an attempt has failed: see recovery.py. {"rates": [TIME, USD]} are the times at which
               EC2 took nodes of it, and what the others cost from then on
    cancel     {"by", "why"}: a user has requested the job's end
    message    {"text"}: from the watchdog
    ended      {"state", "exit_status", "reason", "cleanup", "lost_bytes"}. `cleanup` is the proof:
               {"ended": N, "left": [PID], "silent": [NAME]}, or {"problem"}: why there is none.
               Of a job without a runner also {"heartbeat_at", "rebooted"}: its last heartbeat, and
               whether the head node was rebooted
    """

    kind: str
    at: float
    data: dict[str, Any] = field(default_factory=dict)
    boot_s: Optional[float] = None


NOT_RECORDED = "its end was not recorded (runner killed or crashed, or the disk is read-only)"
STILL_RUN = "; its processes still run, until `clusterctl cancel` ends them"
REBOOTED = "the head node was rebooted"
AT_SHUTDOWN = ", as at a shutdown"


@dataclass(frozen=True)
class JobStatus:
    """What became of a job: what `fold` makes of its events. Times are seconds since 1970 by the
    head node's clock.

    `exit_status` is None for a job that has not ended, that never began, or that is lost.
    `waits_for` are the jobs before this one in the queue. `ranks`, `hosts` and `argv` are those of
    the latest attempt, `ran_on` the hosts of all. `attempts` describes the failed ones. `rates` has
    the time and the hourly price in US dollars of each attempt, and of what was left of its nodes
    when EC2 had taken some. `messages` are the watchdog's. `cancel`
    is the first request to end the job. `rebooted`: the head node was, since the job was submitted.
    `before` are the files of an earlier job that the log folder had at the start, with what shows
    that they were written since. `began_boot_s` is when it began by the clock of the head node's
    boot, and `ran_s` how long it has run by that clock, which nobody sets. `lost_bytes` are those
    that the log lacks at its end, of a full disk.
    """

    state: JobState = JobState.LOST
    submitted_at: float = 0.0
    started_at: Optional[float] = None
    ended_at: Optional[float] = None
    has_ended: bool = False
    exit_status: Optional[int] = None
    reason: str = ""
    boot_id: str = ""
    waits_for: tuple[str, ...] = ()
    ranks: int = 0
    hosts: tuple[str, ...] = ()
    ran_on: tuple[str, ...] = ()
    rebooted: bool = False
    attempts: tuple[dict[str, Any], ...] = ()
    rates: tuple[tuple[float, Optional[float]], ...] = ()
    argv: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()
    cancel: Optional[dict[str, Any]] = None
    cleanup: dict[str, Any] = field(default_factory=dict)
    before: dict[str, str] = field(default_factory=dict)
    began_boot_s: Optional[float] = None
    ran_s: Optional[float] = None
    lost_bytes: int = 0

    def is_before(self, boot_id: str) -> bool:
        """Return whether the job was submitted in an earlier boot of the head node."""
        return bool(self.boot_id) and self.boot_id != boot_id

    def ran_until(self, boot_s: float | None) -> JobStatus:
        """Return the status of a job that has run until this time of the boot in which it began."""
        if boot_s is None or self.began_boot_s is None:
            return self
        return replace(self, ran_s=boot_s - self.began_boot_s)

    def read_in(self, boot_id: str) -> JobStatus:
        """Return the status of a job with a recorded end. The record of one that a signal has
        ended lacks that a reboot follows."""
        if self.state is JobState.LOST and self.reason.endswith(AT_SHUTDOWN):
            return replace(self, rebooted=self.is_before(boot_id))
        return self

    def lost(self, heartbeat_at: float | None, boot_id: str) -> JobStatus:
        """Return the status of a job without a runner and without a recorded end."""
        rebooted = self.is_before(boot_id)
        state = JobState.CANCELLED if self.cancel else JobState.LOST
        reason = REBOOTED if rebooted else NOT_RECORDED
        return replace(
            self,
            state=state,
            ended_at=heartbeat_at if self.started_at else None,
            reason=reason,
            waits_for=(),
            rebooted=rebooted,
        )

    def end_after(self, number: int) -> tuple[JobState, str]:
        """Return state and reason of the end after a signal to the runner."""
        if self.cancel is None:
            return JobState.LOST, f"ended by signal {number}{AT_SHUTDOWN}"
        why = self.cancel.get("why")
        return JobState.CANCELLED, f"by {self.cancel.get('by')}" + (f": {why}" if why else "")


def fold(events: Iterable[JobEvent]) -> JobStatus:
    """Return the status after these events. Pure. Nothing after `ended` changes the state."""
    status = JobStatus()
    for event in events:
        try:
            status = _after(status, event)
        except (AttributeError, KeyError, TypeError, ValueError):  # no event of a runner's
            continue
    return status


def _unset(status: JobStatus, event: JobEvent) -> float:
    """Return when it was by the clock as it was at the job's beginning, if that was set since."""
    if None in (event.boot_s, status.began_boot_s, status.started_at):
        return event.at
    return status.started_at + event.boot_s - status.began_boot_s  # type: ignore[operator]


def _after(status: JobStatus, event: JobEvent) -> JobStatus:
    kind, at, data = event.kind, event.at, event.data
    if kind == "message":
        return replace(status, messages=(*status.messages, str(data["text"])))
    if status.has_ended:
        return status
    if kind == "submitted":
        after, boot = tuple(map(str, data["after"])), str(data["boot_id"])
        return JobStatus(JobState.QUEUED, submitted_at=at, waits_for=after, boot_id=boot)
    if kind == "running":
        before = {str(name): str(stamp) for name, stamp in data.get("before", {}).items()}
        began = replace(status, state=JobState.RUNNING, started_at=at, waits_for=(), before=before)
        return replace(began, began_boot_s=event.boot_s)
    if kind == "attempt":
        ranks, hosts = int(data["ranks"]), tuple(map(str, data["hosts"]))
        rates = ((_unset(status, event), data["hourly_usd"]),) if "hourly_usd" in data else ()
        rates = (*status.rates, *rates)
        ran_on = tuple(dict.fromkeys((*status.ran_on, *hosts)))
        argv = tuple(map(str, data["argv"]))
        status = replace(status, ranks=ranks, hosts=hosts, argv=argv)
        return replace(status, ran_on=ran_on, rates=rates)
    if kind == "failed":
        attempt = {name: value for name, value in data.items() if name != "rates"}
        moved_s = _unset(status, event) - at
        later = ((float(taken) + moved_s, usd) for taken, usd in data.get("rates", ()))
        return replace(status, attempts=(*status.attempts, attempt), rates=(*status.rates, *later))
    if kind == "cancel":
        return replace(status, cancel=status.cancel or data)
    if kind == "ended":
        # The end of a job without a runner is recorded later, perhaps after a reboot.
        return replace(
            status if "heartbeat_at" in data else status.ran_until(event.boot_s),
            state=JobState(data["state"]),
            ended_at=data.get("heartbeat_at") or at,
            has_ended=True,
            exit_status=data.get("exit_status"),
            reason=str(data.get("reason", "")),
            cleanup=dict(data.get("cleanup") or {}),
            rebooted=bool(data.get("rebooted")),
            waits_for=(),
            lost_bytes=int(data.get("lost_bytes") or 0),
        )
    return status


@dataclass(frozen=True)
class CopyNode:
    """How far a copy is on one node. `stage` is connecting, comparing, copying, done or failed.

    `tool` fetches from S3 there. Of `needed_files`, `files` have come; `present_files` were there
    before. What is not known is None. `duration_s` is how long the node has taken. `exit_status`,
    None until its end, `message` and `hint` are those of the error.
    """

    host: str
    stage: str
    tool: str = ""
    files: Optional[int] = None
    needed_files: Optional[int] = None
    present_files: Optional[int] = None
    bytes: Optional[int] = None
    needed_bytes: Optional[int] = None
    left_out: int = 0
    duration_s: float = 0.0
    exit_status: Optional[int] = None
    message: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Row:
    """A row of the trainer's metrics, written at `time`. A step of a training has the kind `train`.
    Only the `begin` of an evaluation has `validation_samples`."""

    kind: str = ""
    time: float = 0.0
    step: Optional[int] = None
    images_per_s: Optional[float] = None
    validation_samples: Optional[int] = None


@dataclass(frozen=True)
class JobRecord:
    """A job as the head node describes it at the time `now`.

    `problem` is why the specification cannot be read; then it has the job's ID only. `by_rank`:
    each rank has a log of its own. `copied` is how far a copy is on each node.
    """

    spec: JobSpec
    status: JobStatus
    now: float = 0.0
    log_bytes: int = 0
    by_rank: bool = False
    row: Row = Row()
    problem: str = ""
    copied: tuple[CopyNode, ...] = ()

    @property
    def job_id(self) -> str:
        return self.spec.job_id

    @property
    def ranks(self) -> int:
        """The number of ranks of the latest attempt; before the first, the one requested."""
        return self.status.ranks or self.spec.ranks

    @property
    def state(self) -> JobState:
        return self.status.state

    @property
    def exit_status(self) -> int | None:
        return self.status.exit_status

    @property
    def is_active(self) -> bool:
        """Whether the job is running or queued."""
        return self.state in (JobState.RUNNING, JobState.QUEUED)

    @property
    def started_at(self) -> datetime:
        """When the job began; for one that has not started, when it was submitted."""
        at = self.status.started_at or self.status.submitted_at or self.now
        return datetime.fromtimestamp(at, timezone.utc)

    @property
    def ended_at(self) -> datetime:
        """When the job ended. For a job that has not ended, the time of the query."""
        ended = (self.now if self.is_active else self.status.ended_at) or 0.0
        return max(self.started_at, datetime.fromtimestamp(ended, timezone.utc))

    @property
    def duration_s(self) -> float:
        """How long the job has run, or has waited if it is queued; 0 if it never began."""
        if not (self.is_active or self.status.started_at):
            return 0.0
        if self.status.ran_s is not None:
            return self.status.ran_s
        began = self.started_at.timestamp()
        ended = self.now if self.is_active else self.status.ended_at or began
        return max(0.0, ended - began)

    @property
    def usd(self) -> float | None:
        """The cost of the job's nodes while it ran, in US dollars; None if a price is unknown.

        After a retry on other nodes, these count from then on. A node that EC2 has taken, with
        notice, counts until then."""
        if self.spec.hourly_usd is None:
            return None
        if self.state is JobState.QUEUED:
            return 0.0
        began = self.started_at.timestamp()
        rates = self.status.rates[1:]
        times = [began, *(at for at, _ in rates), began + self.duration_s]
        total = 0.0
        for rate, at, until in zip(self._rates, times, times[1:]):
            if rate is None:
                return None
            total += rate * max(0.0, until - at) / 3600
        return total

    @property
    def hourly_usd(self) -> float | None:
        """What the nodes of the latest attempt cost, without those that EC2 has taken, in US
        dollars; None if that is unknown."""
        return self._rates[-1]

    @property
    def _rates(self) -> tuple[float | None, ...]:
        return (self.spec.hourly_usd, *(rate for _, rate in self.status.rates[1:]))

    @property
    def why_lost(self) -> str:
        return REBOOTED if self.status.rebooted else self.status.reason

    def report(self) -> JobReport:
        argv = self.status.argv or self.spec.argv
        return pick(
            *(JobReport, self.spec, self.status, self.row, self),
            argv=argv,
            line=shlex.join(argv),
            hosts=self.status.hosts or self.spec.hosts,
            started_at=self.started_at,
            ended_at=None if self.is_active else self.ended_at,
            duration_s=round(self.duration_s, 1),
            usd=None if self.usd is None else round(self.usd, 4),
            head_rebooted=self.status.rebooted,
            nodes=self.spec.nodes or None,
            copied=self.copied or None,
            gpus=self.ranks,
            watchdog=self.status.messages,
        )


class JobNode(TypedDict, total=False):
    """A node of a job (JobSpec). That of a served model has a name and an address only."""

    name: str
    address: str
    instance_id: str
    slots: int
    ranks: int
    instance_type: str
    zone: str
    image: str
    market: str
    efa: bool
    placement_group: str
    hourly_usd: Optional[float]
    list_hourly_usd: Optional[float]
    versions: dict[str, str]


class AttemptData(TypedDict, total=False):
    """An attempt that failed. `rebooted` are nodes that have booted since it began: at their
    address may be another machine. `machines` are the ids of the instances that these and the
    silent nodes were, `notices` those that EC2 gave of silent ones. `killed` is the number of
    processes by node. `reasons` are added where a job is shown (operations/logs.py)."""

    ended_at: float
    exit_status: int
    ranks: int
    lost: bool
    silent: list[str]
    machines: dict[str, str]
    rebooted: list[str]
    notices: dict[str, dict[str, str]]
    killed: dict[str, int]
    retried: bool
    message: str
    reasons: dict[str, str]


class GitState(TypedDict):
    """The commit of a program's folder, and the number of files that differ from it."""

    commit: str
    changed: int


class RecipeData(TypedDict):
    name: str
    flags: list[str]
    variables: dict[str, str]
    batch: Optional[int]
    largest_step: Optional[int]


@dataclass(frozen=True)
class JobReport:
    """A job in `--json`, and in the record that `fetch` copies. `watchdog` has its messages.

    `nodes` and `copied` are None if the job has none, or as in a list of jobs they are not read.
    """

    job_id: str
    state: JobState
    exit_status: Optional[int]
    waits_for: tuple[str, ...]
    head_rebooted: bool
    started_at: datetime
    ended_at: Optional[datetime]
    duration_s: float
    usd: Optional[float]
    hourly_usd: Optional[float]
    list_hourly_usd: Optional[float]
    step: Optional[int]
    images_per_s: Optional[float]
    hosts: tuple[str, ...]
    argv: tuple[str, ...]
    git: Optional[GitState]
    attempts: tuple[AttemptData, ...]
    nodes: Optional[tuple[JobNode, ...]]
    gpus: int
    preset: str
    line: str
    evaluation: str
    recipe: Optional[RecipeData]
    variables: dict[str, Optional[str]]
    mpi_arguments: tuple[str, ...]
    log_dir: str
    sources: tuple[str, ...]
    destination: str
    copied: Optional[tuple[CopyNode, ...]]
    model_dir: Optional[str]
    watchdog: tuple[str, ...]
    log_bytes: int
