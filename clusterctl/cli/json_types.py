"""What each command prints with `--json`, as types: mypy checks the commands against them, and
`clusterctl config schema COMMAND` prints their JSON Schema. docs/exit-status.md has the errors.

The name of a type here is that of an option's `result` (`json_option` in params.py). A dataclass is
printed as it is (`clusterctl.node.record.to_data`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Optional, TypedDict, Union

from clusterctl.bench.plan import BenchSettings, RunKey
from clusterctl.bench.results import AboutCluster, Difference, MeasuredRun
from clusterctl.cli.bench_network import CheckedNetwork
from clusterctl.cli.cluster import ReadyCluster
from clusterctl.cli.copy.view import NodeEvent, ProgressEvent
from clusterctl.cli.disk import CleanedNode
from clusterctl.cli.gc import SweepReport
from clusterctl.cli.quarantine import Service
from clusterctl.cli.status import Status
from clusterctl.configuration.yaml_tree import Problem
from clusterctl.copy.plan import SourceSummary
from clusterctl.domain.cluster import Cluster
from clusterctl.domain.findings import Finding
from clusterctl.domain.hostsfile import HostSlots
from clusterctl.domain.results import CommandResult, HostFailure, HostOutcome
from clusterctl.ec2.launch.plan import LaunchPlan
from clusterctl.jobs.horovod import Timeline, Tuned
from clusterctl.node.facts.disks import MountedFileSystem, mount
from clusterctl.node.facts.gpus import GpusOfNode
from clusterctl.node.facts.network import unreached
from clusterctl.node.facts.processes import job_processes
from clusterctl.node.facts.software import data, versions
from clusterctl.node.jobs.spec import JobReport, JobState, RecipeData
from clusterctl.node.record import hints_of
from clusterctl.node.relay.messages import Gap
from clusterctl.operations.costs import CostReport
from clusterctl.operations.disk import DiskReport, GrownDisk, PartsOnHost
from clusterctl.operations.doctor import FACTS
from clusterctl.operations.down import RemovedCluster
from clusterctl.operations.environment import EnvReport
from clusterctl.operations.gc import GcReport
from clusterctl.operations.kill import HeldMemory
from clusterctl.operations.members import ReducedCluster
from clusterctl.operations.network import NetworkPlan, NetworkReport, NetworkStatus
from clusterctl.operations.power import StoppedCluster
from clusterctl.operations.reboot import Rebooted
from clusterctl.operations.results import Results
from clusterctl.operations.s3sync import SyncNode
from clusterctl.operations.selftest import SelftestStep
from clusterctl.operations.selftest_report import SelftestReport
from clusterctl.operations.serving import Served
from clusterctl.operations.verify import VerifyReport

Costs = CostReport
ClusterStatus = Status
Down = RemovedCluster
InNetwork = NetworkStatus
InService = Service
Reduced = ReducedCluster
Stopped = StoppedCluster
Verified = VerifyReport
Clusters = list[Cluster]
# The second with --dry-run.
Launch = Union[ReadyCluster, LaunchPlan]
HostsFile = list[HostSlots]


class _Error(TypedDict, total=False):
    error: str
    message: str
    hint: str


class _OnHosts(TypedDict):
    failures: Sequence[HostFailure]


class Reboots(_OnHosts):
    nodes: Sequence[Rebooted]


class Outputs(_OnHosts):
    nodes: Sequence[CommandResult]


class CopiedNode(TypedDict):
    host: str
    ok: bool
    files: int
    links: int
    bytes: int
    deleted: int
    duration_s: float
    rate: int
    gap: Optional[Gap]
    warnings: Sequence[str]
    moves: Sequence[str]
    limits: Mapping[str, float]
    verified: bool


class FailedNode(CopiedNode):
    """What it got before it failed, and why it failed."""

    error: str
    message: str
    hint: str


class CopyPlanData(TypedDict, total=False):
    """`reasons` are sentences. A copy from S3 has a tool, and neither order nor blocks."""

    way: Literal["chain", "tool"]
    reasons: Sequence[str]
    predicted_s: Optional[float]
    tool: str
    order: Sequence[str]
    block_bytes: int
    streams: int
    phases: Mapping[str, float]
    limited_by: str


class _CopyReport(TypedDict):
    event: Literal["report"]
    ok: bool
    exit_status: int
    dry_run: bool
    duration_s: float
    one_copy_s: Optional[float]
    limited_by: str
    source: Optional[SourceSummary]
    nodes: Sequence[CopiedNode]
    failures: Sequence[FailedNode]
    plan: CopyPlanData
    missing: Sequence[str]
    findings: Sequence[Finding]


class CopyReport(_CopyReport, _Error):
    """The last event. It has an error only if the copy failed."""


class JobEventData(TypedDict):
    """With --detach."""

    event: Literal["job"]
    job_id: str
    nodes: Sequence[str]
    line: str


# One a line.
CopyEvent = Union[CopyReport, NodeEvent, ProgressEvent, JobEventData]


class SyncStarted(TypedDict):
    job_id: str
    how: str
    hosts: Sequence[str]
    failures: Sequence[Union[SyncNode, HostFailure]]


class SyncedNodes(TypedDict):
    """With --status or --follow."""

    nodes: Sequence[SyncNode]
    failures: Sequence[SyncNode]


class GrownDisks(_OnHosts):
    """With --grow."""

    nodes: Sequence[GrownDisk]


class CleanedNodes(_OnHosts):
    nodes: Sequence[CleanedNode]


class DiscardedCopies(_OnHosts):
    """With --copies."""

    copies: Sequence[PartsOnHost]


Sync = Union[SyncStarted, SyncedNodes]
Disks = Union[DiskReport, GrownDisks]
Cleanings = Union[CleanedNodes, DiscardedCopies]


class InstallationSteps(TypedDict):
    """With --dry-run."""

    steps: Sequence[str]


Installed = Union[EnvReport, InstallationSteps]
Jobs = list[JobReport]


class LinesData(TypedDict):
    line: str
    evaluation: str


class Started(LinesData):
    """With --detach."""

    job_id: str


class _TrainingPlan(LinesData):
    workdir: str
    preset: str
    gpus: int
    findings: Sequence[Finding]


class TrainingPlanData(_TrainingPlan, total=False):
    """With --dry-run."""

    recipe: RecipeData
    # TensorFlow's own.
    tf_config: Mapping[str, Any]


Training = Union[JobReport, Started, TrainingPlanData]


class ProcessData(TypedDict):
    host: str
    pid: int
    rank: Optional[int]
    role: str
    job_id: Optional[str]
    age_s: float
    argv: Sequence[str]
    ended: Optional[str]


class Killed(TypedDict):
    processes: Sequence[ProcessData]
    left: Sequence[ProcessData]
    gpu_memory_held: Optional[Sequence[HeldMemory]]
    failures: Sequence[HostOutcome[Any]]


class CancelledData(Killed):
    jobs: Sequence[JobReport]


# With --follow, one a line: `kind` is train, eval or metric, and the rest that of the row.
LogRow = Mapping[str, Union[str, float, None]]


# The figures of a size, by name.
Figures = Mapping[str, Union[str, float, None]]


class _SpeedComparison(TypedDict):
    base: str
    other: str
    unlike: Sequence[str]
    sizes: Sequence[Difference]


class SpeedComparison(_SpeedComparison, total=False):
    """With --compare."""

    choices: Sequence[Figures]


RunResults = Union[Results, LogRow, list[SpeedComparison]]


class TuningData(TypedDict):
    job_id: str
    files: Sequence[str]
    timeline: Optional[Timeline]
    autotune: Optional[Tuned]
    findings: Sequence[Finding]


class PredictedStep(TypedDict):
    gpus: int
    step_s: float
    low_s: Optional[float]
    high_s: Optional[float]
    percent: Optional[float]
    far: bool
    measured_s: Optional[float]


class ModelData(TypedDict):
    """A model of the seconds of a step. `residuals` are by GPUs."""

    seconds: Mapping[str, float]
    input_s: float
    input_is_shared: bool
    misfits: Sequence[int]
    residuals: Mapping[int, float]
    exposed: float
    predictions: Sequence[PredictedStep]


class BenchReport(TypedDict):
    name: str
    settings: BenchSettings
    seed: int
    on_cpus: bool
    local_ec2: bool
    about: AboutCluster
    sizes: Sequence[Figures]
    models: Mapping[str, Optional[ModelData]]
    imagenet_images: int
    runs: Sequence[MeasuredRun]


class BenchPlanData(TypedDict):
    """With --dry-run."""

    runs: Sequence[RunKey]
    seed: int
    estimate_s: Optional[float]
    estimate_usd: Optional[float]
    hourly_usd: Optional[float]
    lines: Mapping[str, str]


Benchmarks = Union[BenchReport, BenchPlanData, CheckedNetwork, list[SpeedComparison]]
Serving = Union[list[Served], Served]


class CauseData(TypedDict):
    check: str
    severity: str
    host: Optional[str]
    ranks: Sequence[int]
    message: str
    evidence: Sequence[str]
    hint: str


class Calls(TypedDict):
    """A call on the stacks, the ranks in it (`0-7`), those that moved, and the calls below."""

    call: str
    ranks: str
    moved: str
    children: Sequence[Calls]


class Diagnosed(TypedDict):
    """`tree` has the stacks of all ranks."""

    cluster: Optional[str]
    hosts: Optional[str]
    job_id: Optional[str]
    taken_at: str
    duration_s: float
    verdict: str
    check: str
    severity: str
    host: Optional[str]
    ranks: Sequence[int]
    findings: Sequence[CauseData]
    clean: Sequence[str]
    not_seen: Sequence[str]
    next: str
    exit_status: int
    tree: Calls


class LogFindingData(TypedDict):
    signature: str
    role: str
    severity: str
    file: str
    part: str
    line: int
    lines: Sequence[int]
    time: str
    count: int
    text: str
    raised_at: str
    values: Mapping[str, str]
    ranks: Sequence[int]
    hosts: Sequence[str]
    cause: str
    hint: str
    remedies: Sequence[Mapping[str, str]]
    mistaken_for: str
    source: str


class UnknownLine(TypedDict):
    file: str
    part: str
    line: int
    rank: str
    host: str
    text: str
    kind: str
    time: str
    raised_at: str
    by_words: str
    cause: str
    advice: str
    hint: str


class FirstLine(TypedDict):
    file: str
    part: str
    line: int
    time: str


class Explained(TypedDict):
    severity: str
    lines: int
    lead: Optional[LogFindingData]
    is_certain: bool
    findings: Sequence[LogFindingData]
    unknown: Sequence[UnknownLine]
    failing: Sequence[UnknownLine]
    firsts: Sequence[FirstLine]


class _NodeFacts(TypedDict, total=False):
    """What a node reported; null where it has no such thing. `errors` are why a fact is missing."""

    filesystems: Sequence[MountedFileSystem]
    errors: Mapping[str, str]
    memory: Mapping[str, int]
    gpus: Optional[GpusOfNode]


# What a node reports to `doctor`: each fact by the name of its function.
_DOCTOR_FACTS = (*FACTS, versions, data, unreached, job_processes)
_FACT_TYPES = {one.__name__: hints_of(one)["return"] for one in _DOCTOR_FACTS if one is not mount}
_FACT_TYPES.update(hints_of(_NodeFacts))
CheckedFacts = TypedDict("CheckedFacts", _FACT_TYPES, total=False)  # type: ignore[misc]


class CheckedNode(TypedDict):
    """`odd` names the values in which the node differs; `facts` are all that it reported."""

    host: str
    values: Mapping[str, str]
    odd: Sequence[str]
    clock_offset_s: float
    clock_error_s: float
    facts: CheckedFacts


class Checked(TypedDict):
    nodes: Sequence[CheckedNode]
    norms: Mapping[str, str]
    findings: Sequence[Finding]
    failures: Sequence[HostOutcome[Any]]


class WatchedJob(TypedDict):
    """`metrics` is the trainer's last row."""

    job_id: str
    state: Optional[JobState]
    size: int
    age_s: float
    log_silent_s: Optional[float]
    metrics: Optional[Mapping[str, Any]]


class WatchedRank(TypedDict):
    """`state` is Linux's letter; `cpu` the processors that it uses."""

    rank: int
    pid: int
    state: str
    wait_channel: str
    rss_bytes: int
    cpu_s: float
    cpu: float


class WatchedEfa(TypedDict):
    """What each card counted in `span_s` seconds, by its name."""

    span_s: float
    cards: Mapping[str, Mapping[str, int]]


class _WatchedHost(TypedDict):
    host: str
    seen_s: Optional[float]
    error: str


class WatchedNodeData(_WatchedHost, _NodeFacts, total=False):
    """`seen_s` is the age of the report, null before the first; the rest is missing then. `error`
    is why the node has no connection, else empty. `cpu` is a share; `net` and `disk` are bytes a
    second, in and out."""

    cpu: float
    net: Sequence[float]
    disk: Sequence[float]
    efa: WatchedEfa
    ranks: Sequence[WatchedRank]


class Watched(TypedDict):
    """One a line and interval; `stuck` is null if that is not known."""

    cluster: Optional[str]
    hosts: Optional[str]
    job: Optional[WatchedJob]
    last_stall: str
    stuck: Optional[bool]
    nodes: Sequence[WatchedNodeData]


class SelftestPlan(TypedDict):
    """With --dry-run."""

    estimate: str
    steps: Sequence[SelftestStep]


Selftested = Union[SelftestReport, SelftestPlan]
# The second with --delete.
Leftovers = Union[SweepReport, GcReport]
# The second with --dry-run.
NetworkUp = Union[NetworkReport, NetworkPlan]


class NetworkDown(TypedDict):
    name: str
    removed: bool


class S3Endpoint(TypedDict):
    """`request` has boto3's arguments."""

    endpoint_id: Optional[str]
    request: Mapping[str, Any]


# Of IAM, by the name of who gets them.
Policies = Mapping[str, Any]


class SettingsData(TypedDict):
    file: Optional[str]
    environment: Sequence[str]
    cluster: Optional[str]
    clusters: Sequence[str]
    settings: Mapping[str, Union[str, float, bool, Sequence[str], None]]


class CheckedFile(TypedDict):
    file: str
    clusters: Sequence[str]
    problems: Sequence[Problem]


Variables = Mapping[str, str]


class FaultsData(TypedDict):
    faults: Sequence[Mapping[str, Any]]
    visibility_s: float
    console_delay_s: float


# The lab's record and its instances.
LabStatus = Mapping[str, Any]
