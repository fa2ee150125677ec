"""What each command prints with `--json`, as types: mypy checks the commands against them, and
`clusterctl config schema COMMAND` prints their JSON Schema. docs/exit-status.md has the errors.

A type's name is that of the option's `result` (`json_option` in params.py). A dataclass is printed
as it is: `clusterctl.node.record.to_data`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Optional, TypedDict, Union

from clusterctl.bench.plan import BenchSettings
from clusterctl.bench.results import MeasuredRun
from clusterctl.configuration.yaml_tree import Problem
from clusterctl.copy.plan import SourceSummary
from clusterctl.ec2.launch.capacity import Place
from clusterctl.ec2.network.stack import Network
from clusterctl.ec2.tags import Unfinished
from clusterctl.jobs.metrics.logs import EvaluationRow, MetricPoint, TrainingRow
from clusterctl.jobs.metrics.reference import ComparedRow
from clusterctl.operations.disk import GrownDisk
from clusterctl.operations.kill import HeldMemory


class FindingData(TypedDict):
    check: str
    severity: str
    host: Optional[str]
    message: str
    hint: str


class FailureData(TypedDict, total=False):
    """A host without a result. After a timeout it has the output so far."""

    host: str
    exit_status: None
    error: str
    message: str
    hint: str
    stdout: str
    stderr: str


class NodeData(TypedDict):
    index: int
    name: str
    instance_id: str
    state: str
    quarantined: Optional[str]
    instance_type: str
    gpus: int
    private_ip: Optional[str]
    public_ip: Optional[str]
    availability_zone: str
    launched_at: str


class ClusterData(TypedDict):
    name: str
    region: str
    ssh_user: str
    nodes: Sequence[NodeData]


Clusters = list[ClusterData]


class ReadyData(ClusterData):
    launched: Sequence[int]
    hosts_file: str


class StepData(TypedDict):
    operation: str
    arguments: Mapping[str, Any]
    summary: str
    hourly_usd: Optional[float]


class CostPart(TypedDict):
    what: str
    count: int
    hourly_usd_each: Optional[float]
    hourly_usd: Optional[float]


class PlanData(TypedDict):
    """With --dry-run."""

    launch_id: str
    wanted: Sequence[int]
    missing: Sequence[int]
    findings: Sequence[FindingData]
    steps: Sequence[StepData]
    places: Sequence[Place]
    hourly_usd: Optional[float]
    cost: Sequence[CostPart]
    once_usd: float
    price_source: str


Launch = Union[ReadyData, PlanData]


class RemovedData(ClusterData):
    removed: Sequence[str]


class StoppedData(ClusterData):
    stopped: Sequence[str]


class Down(TypedDict):
    name: str
    nodes: Sequence[str]
    addresses: Sequence[str]
    security_groups: Sequence[str]
    placement_groups: Sequence[str]
    key_pairs: Sequence[str]
    roles: Sequence[str]
    folder: bool


class Quarantine(ClusterData):
    """`job_id`: the training that runs on these nodes, too."""

    slots: int
    job_id: Optional[str]


class ReachedNode(NodeData):
    reachable: Optional[bool]
    unreachable_because: Optional[str]


class GoneNode(TypedDict):
    index: int
    name: str
    instance_id: Optional[str]
    by: Optional[str]
    at: Optional[str]
    ec2_reason: Optional[str]


class SpendingData(TypedDict):
    """`spent_usd` is exact if `complete`, else a lower bound."""

    hourly_usd: Optional[float]
    spent_usd: Optional[float]
    complete: bool
    price_source: str
    since: str
    limits: Mapping[str, Any]
    ends_in_s: Optional[int]
    ended_by: Optional[str]
    findings: Sequence[FindingData]


class Status(TypedDict):
    name: str
    region: str
    ssh_user: str
    nodes: Sequence[ReachedNode]
    state: str
    missing: Sequence[int]
    gone: Sequence[GoneNode]
    leaving: Sequence[str]
    unfinished: Unfinished
    instance_profiles: Mapping[str, Optional[str]]
    findings: Sequence[FindingData]
    costs: SpendingData


class HostSlotsData(TypedDict):
    host: str
    slots: int


HostsFile = list[HostSlotsData]


class Back(TypedDict):
    """`back_after_s` is null with --no-wait."""

    host: str
    back_after_s: Optional[float]


Rebooted = list[Union[Back, FailureData]]


class OutputData(TypedDict):
    host: str
    exit_status: int
    stdout: str
    stderr: str
    duration_s: float
    truncated: bool


Outputs = list[Union[OutputData, FailureData]]


class _Error(TypedDict, total=False):
    error: str
    message: str
    hint: str


class CopyGap(TypedDict):
    files: int
    bytes: int
    delete: int
    delete_names: Sequence[str]
    free_bytes: int
    writable: bool
    missing: int
    missing_names: Sequence[str]
    elsewhere: int
    full: str


class _CopiedNode(TypedDict):
    host: str
    ok: bool
    files: int
    bytes: int
    deleted: int
    duration_s: float
    rate: int
    gap: Optional[CopyGap]
    warnings: Sequence[str]
    moves: Sequence[str]
    limits: Mapping[str, float]
    verified: bool


class CopiedNode(_CopiedNode, _Error):
    """It has an error only if it failed."""


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
    plan: Mapping[str, Any]
    missing: Sequence[str]
    findings: Sequence[FindingData]


class CopyReport(_CopyReport, _Error):
    """The last event. It has an error only if the copy failed."""


class CopyingNode(TypedDict):
    host: str
    stage: str
    bytes: int
    needed_bytes: int
    rate: int
    upstream: str
    note: str
    silent: bool
    slow: bool
    files: Optional[int]
    needed_files: Optional[int]


class NodeEvent(CopyingNode):
    event: Literal["node"]
    elapsed_s: float


class ProgressEvent(TypedDict):
    event: Literal["progress"]
    elapsed_s: float
    left_s: Optional[float]
    slowest_link: Optional[float]
    source: Optional[Mapping[str, Any]]
    nodes: Sequence[CopyingNode]


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


class SyncOnNode(TypedDict):
    host: str
    job_id: str
    state: str
    sources: Sequence[str]
    destination: str
    how: str
    duration_s: float
    exit_status: Optional[int]
    files: Optional[int]
    total_files: Optional[int]
    bytes: Optional[int]
    total_bytes: Optional[int]
    present_files: Optional[int]
    left_out: int
    message: str
    hint: str


Sync = Union[SyncStarted, list[SyncOnNode]]


class GroupData(TypedDict):
    hosts: Sequence[str]
    digest: str
    files: int
    folders: int
    links: int
    others: int
    bytes: int
    read_bytes: int
    duration_s: float


class DiscrepancyData(TypedDict):
    kind: str
    path: str
    message: str
    hosts: Sequence[str]


class Verified(TypedDict):
    path: str
    same: bool
    compared: Mapping[str, bool]
    groups: Sequence[GroupData]
    findings: Sequence[DiscrepancyData]
    findings_left_out: int
    failures: Sequence[FailureData]


class DiskData(TypedDict):
    host: str
    mount: str
    size_bytes: int
    free_bytes: int
    used_percent: int
    inodes_percent: int
    grows: float
    fills: Sequence[tuple[str, int]]
    whole: bool
    full_in_s: Optional[float]


class PartsOnHost(TypedDict):
    host: str
    path: str
    size_bytes: int
    age_s: float
    in_use: bool
    failed: str


class DiskReportData(TypedDict):
    disks: Sequence[DiskData]
    copies: Sequence[PartsOnHost]
    findings: Sequence[FindingData]
    failures: Sequence[FailureData]


class Grown(TypedDict):
    """With --grow."""

    grown: Sequence[GrownDisk]
    failures: Sequence[FailureData]


Disks = Union[DiskReportData, Grown]


class Cleaned(TypedDict):
    host: str
    freed_bytes: int
    folders: Mapping[str, int]
    checkpoints: Mapping[str, int]


Cleanings = list[Union[Cleaned, PartsOnHost, FailureData]]


class NodeEnvironment(TypedDict):
    host: str
    state: str
    key: Optional[str]
    python: Optional[str]
    installed: Mapping[str, str]


class Environments(TypedDict):
    folder: str
    nodes: Sequence[NodeEnvironment]
    findings: Sequence[FindingData]
    failures: Sequence[FailureData]


class InstallationSteps(TypedDict):
    """With --dry-run."""

    steps: Sequence[str]


Installed = Union[Environments, InstallationSteps]


class _Job(TypedDict):
    job_id: str
    state: str
    exit_status: Optional[int]
    waits_for: Sequence[str]
    head_rebooted: bool
    started_at: str
    ended_at: Optional[str]
    duration_s: float
    usd: Optional[float]
    hourly_usd: Optional[float]
    list_hourly_usd: Optional[float]
    step: Optional[int]
    images_per_s: Optional[float]
    hosts: Sequence[str]
    argv: Sequence[str]
    git: Any
    attempts: Sequence[Mapping[str, Any]]
    gpus: int
    preset: str
    line: str
    evaluation: str
    recipe: Any
    variables: Mapping[str, Any]
    mpi_arguments: Sequence[str]
    log_dir: Optional[str]
    sources: Sequence[str]
    destination: Optional[str]
    model_dir: Optional[str]
    watchdog: Sequence[str]
    log_bytes: Optional[int]


class Job(_Job, total=False):
    nodes: Sequence[Mapping[str, Any]]


Jobs = list[Job]


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
    findings: Sequence[FindingData]


class TrainingPlanData(_TrainingPlan, total=False):
    """With --dry-run."""

    recipe: Mapping[str, Any]
    tf_config: Mapping[str, Any]


Training = Union[Job, Started, TrainingPlanData]


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
    failures: Sequence[FailureData]


class CancelledData(Killed):
    jobs: Sequence[Job]


class RunComparison(TypedDict):
    reference: str
    images_per_s_per_gpu: Optional[float]
    reference_images_per_s_per_gpu: Optional[float]
    speed_ratio: Optional[float]
    top1_difference: Optional[float]
    top5_difference: Optional[float]
    rows: Sequence[ComparedRow]


class RunData(TypedDict):
    gpus: Optional[int]
    data: Optional[str]
    training_samples: Optional[int]
    validation_samples: Optional[int]
    peak_learning_rate: Optional[float]
    tensorflow: Optional[str]
    resumed_from: Optional[int]
    finished_in_s: Optional[float]
    last_part_s: Optional[float]
    model: Optional[str]
    image_size: Optional[int]
    precision: Optional[str]
    gpu: Optional[str]
    synthetic: bool
    images_per_s: Optional[float]
    images_per_s_per_gpu: Optional[float]
    tflops_per_gpu: Optional[float]
    mfu: Optional[float]
    images_per_s_per_hourly_usd: Optional[float]
    resumed_at: Sequence[int]
    not_a_number_from: Optional[int]
    rows: Sequence[TrainingRow]
    evaluations: Sequence[EvaluationRow]
    comparison: Optional[RunComparison]


class ResultsData(TypedDict):
    sources: Sequence[str]
    job: Optional[Job]
    runs: Sequence[RunData]
    metrics: Mapping[str, Sequence[MetricPoint]]
    findings: Sequence[FindingData]


# With --follow, one a line: `kind` is train, eval or metric, and the rest that of the row.
LogRow = Mapping[str, Any]


class _SpeedComparison(TypedDict):
    base: str
    other: str
    unlike: Sequence[str]
    sizes: Sequence[Mapping[str, Any]]


class SpeedComparison(_SpeedComparison, total=False):
    """With --compare."""

    choices: Sequence[Mapping[str, Any]]


RunResults = Union[ResultsData, LogRow, list[SpeedComparison]]


class TuningData(TypedDict):
    job_id: str
    files: Sequence[str]
    timeline: Optional[Mapping[str, Any]]
    autotune: Optional[Mapping[str, Any]]
    findings: Sequence[FindingData]


class BenchReport(TypedDict):
    name: str
    settings: BenchSettings
    seed: int
    on_cpus: bool
    local_ec2: bool
    about: Mapping[str, Any]
    sizes: Sequence[Mapping[str, Any]]
    models: Mapping[str, Optional[Mapping[str, Any]]]
    imagenet_images: int
    runs: Sequence[MeasuredRun]


class PlannedRun(TypedDict):
    gpus: int
    data: str
    repeat: int


class BenchPlanData(TypedDict):
    """With --dry-run."""

    runs: Sequence[PlannedRun]
    seed: int
    estimate_s: Optional[float]
    estimate_usd: Optional[float]
    hourly_usd: Optional[float]
    lines: Mapping[str, str]


class NetworkReportData(TypedDict):
    """With --network; rates in bytes a second."""

    nodes: Sequence[str]
    instance_types: Sequence[str]
    measured_at: str
    took_s: float
    streams: int
    seconds: float
    link_bytes_s: Optional[float]
    links: Sequence[Mapping[str, Any]]
    failures: Sequence[Mapping[str, str]]
    not_measured: Sequence[Mapping[str, Any]]
    allreduce: Sequence[Mapping[str, Any]]
    collectives: Sequence[Mapping[str, Any]]
    findings: Sequence[FindingData]


Benchmarks = Union[BenchReport, BenchPlanData, NetworkReportData, list[SpeedComparison]]


class ServedModel(TypedDict):
    model: str
    node: str
    port: int
    public: bool
    folder: str
    job_id: str
    duration_s: float


class ReadyModel(ServedModel):
    server: str
    version: int


class ModelState(ServedModel):
    state: str
    version: Any


Serving = Union[list[ModelState], ReadyModel, ServedModel]


class CauseData(TypedDict):
    check: str
    severity: str
    host: Optional[str]
    ranks: Sequence[int]
    message: str
    evidence: Sequence[str]
    hint: str


class Diagnosed(TypedDict):
    """`tree` has the stacks: a call, the ranks in it, those that moved, and the calls below."""

    cluster: Optional[str]
    hosts: Optional[str]
    job_id: Optional[str]
    taken_at: str
    took_s: float
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
    tree: Mapping[str, Any]


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
    text: str
    kind: str
    time: str
    raised_at: str
    by_words: str
    cause: str
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


class CheckedNode(TypedDict):
    """`odd` names the values in which the node differs; `facts` are all that it reported."""

    host: str
    values: Mapping[str, str]
    odd: Sequence[str]
    clock_offset_s: float
    clock_error_s: float
    facts: Mapping[str, Any]


class Checked(TypedDict):
    nodes: Sequence[CheckedNode]
    norms: Mapping[str, str]
    findings: Sequence[FindingData]
    failures: Sequence[FailureData]


class Watched(TypedDict):
    """One a line and interval; `stuck` is null if that is not known."""

    cluster: Optional[str]
    hosts: Optional[str]
    job: Optional[Mapping[str, Any]]
    last_stall: str
    stuck: Optional[bool]
    nodes: Sequence[Mapping[str, Any]]


class SelftestStepData(TypedDict):
    name: str
    title: str
    needs: Sequence[str]


class SelftestPlan(TypedDict):
    """With --dry-run."""

    estimate: str
    steps: Sequence[SelftestStepData]


class SelftestResult(TypedDict):
    version: str
    machine: str
    began: str
    place: str
    estimate: str
    spent: str
    summary: str
    versions: Mapping[str, str]
    steps: Sequence[Mapping[str, Any]]
    file: str


Selftested = Union[SelftestResult, SelftestPlan]


class _RunningCosts(SpendingData):
    name: str
    region: str
    nodes: int
    states: str
    type: str
    market: str


class EndedCosts(TypedDict):
    name: str
    region: str
    nodes: int
    type: str
    market: str
    since: str
    ended_at: str
    spent_usd: float
    complete: bool


class TotalCosts(TypedDict):
    hourly_usd: float
    spent_usd: float
    complete: bool


class EndedByLimit(TypedDict):
    name: str
    message: str


class FailedRegion(TypedDict):
    region: str
    message: str
    hint: str


class Costs(TypedDict):
    clusters: Sequence[_RunningCosts]
    ended: Sequence[EndedCosts]
    total: TotalCosts
    ended_by_limit: Sequence[EndedByLimit]
    failures: Sequence[FailedRegion]


class ResourceData(TypedDict):
    kind: str
    id: str
    name: str
    cluster: Optional[str]
    network: Optional[str]
    region: str
    state: str
    made_at: Optional[str]


class FoundResource(ResourceData):
    age_s: Optional[float]
    hourly_usd: Optional[float]
    verdict: str
    reason: str


class LeftResource(ResourceData):
    message: str
    hint: str


class FailedListing(FailedRegion):
    kind: str


class SweepData(TypedDict):
    regions: Sequence[str]
    found: Sequence[FoundResource]
    orphans: int
    orphans_hourly_usd: Optional[float]
    failures: Sequence[FailedListing]


class RemovalData(TypedDict):
    """With --delete."""

    removed: Sequence[ResourceData]
    left: Sequence[LeftResource]
    failures: Sequence[FailedListing]


Leftovers = Union[SweepData, RemovalData]


class MadeNetwork(TypedDict):
    network: Network
    done: str


class NetworkPlanData(TypedDict):
    """With --dry-run."""

    name: str
    action: str
    parameters: Mapping[str, Any]


NetworkUp = Union[MadeNetwork, NetworkPlanData]


class NetworkDown(TypedDict):
    name: str
    removed: bool


class NetworkStatusData(TypedDict):
    """`network` is null until its stack is complete; `instances` are counted by cluster."""

    name: str
    network: Optional[Network]
    stack_status: str
    reason: str
    ssh_from: str
    instances: Mapping[str, int]


class S3Endpoint(TypedDict):
    endpoint_id: Optional[str]
    request: Mapping[str, Any]


# By the name of who gets them.
Policies = Mapping[str, Any]


class SettingsData(TypedDict):
    file: Optional[str]
    environment: Sequence[str]
    cluster: Optional[str]
    clusters: Sequence[str]
    settings: Mapping[str, Any]


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
