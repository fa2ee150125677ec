"""Run a scaling benchmark: one training job after another, each result saved when it ends.

The benchmark's folder on this machine holds `benchmark.json` (settings, seed, machines),
`runs.jsonl` (one line per run) and `logs/`, and `network.json` if the network was measured. While a
run is in progress it also holds `under-way.json`, from which an interrupted benchmark resumes.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from clusterctl.bench.chart import Chart, svg
from clusterctl.bench.network import NetworkFigures
from clusterctl.bench.plan import REAL, SYNTHETIC, BenchSettings, RunKey, order
from clusterctl.bench.report import as_csv, as_data, blocks, html, markdown, published_like
from clusterctl.bench.results import (
    AboutCluster,
    Benchmark,
    MeasuredRun,
    by_size,
    estimate_s,
    measured,
    value_in_words,
)
from clusterctl.domain.errors import AwsError, ClusterctlError, HostError, UsageError
from clusterctl.domain.files import Lock, append_line, file_lock, read_file, write_file
from clusterctl.domain.findings import Finding
from clusterctl.ec2.machines import find_machine_type
from clusterctl.ec2.money.prices import find_prices, list_prices, price_key
from clusterctl.ec2.session import is_local
from clusterctl.jobs.detached import LogFollower, list_jobs
from clusterctl.jobs.mpirun import Variable
from clusterctl.jobs.plan import JobPlan, JobRequest
from clusterctl.jobs.trainer import IMAGENET_IMAGES
from clusterctl.node.jobs.spec import JobRecord, JobState
from clusterctl.node.record import (
    Rows,
    from_json,
    pick,
    read_rows,
    to_data,
    to_json,
)
from clusterctl.operations.access import Access
from clusterctl.operations.kill import cancel
from clusterctl.operations.logs import follow
from clusterctl.operations.results import results_of_cluster, state_phrase, write_result
from clusterctl.operations.train import (
    TrainingPlan,
    live_hosts,
    machines_of,
    plan_training,
    start_training,
)

if TYPE_CHECKING:
    from clusterctl.ec2.money.prices import Prices
    from clusterctl.ec2.session import Clients
    from clusterctl.operations.status import ClusterStatus

Machines = Mapping[str, Mapping[str, Any]]
ABOUT, RUNS, UNDER_WAY = "benchmark.json", "runs.jsonl", "under-way.json"
NETWORK = "network.json"
# Keys of `about`. Runs on clusters that differ in one of them are not comparable. The number of
# nodes is not among them: nodes may be added to the cluster later.
MACHINES = ("region", "types", "per_node", "efa_interfaces", "images")


@dataclass(frozen=True)
class _About:
    """The content of `benchmark.json`."""

    settings: BenchSettings
    seed: int
    about: AboutCluster


def read_benchmark(folder: Path) -> Benchmark:
    """Read the benchmark in a folder. Raise UsageError if the folder does not hold one, and
    ClusterctlError if it cannot be read."""
    again = "measure again into another folder: clusterctl bench NAME --out DIR; runs.jsonl is kept"
    about = partial(from_json, _About)
    found = read_file(folder / ABOUT, about, again) if folder.is_dir() else None
    if found is None:
        raise UsageError(
            f"there is no benchmark in {folder}", "make one: clusterctl bench NAME --gpus 1,8"
        )
    parse = partial(read_rows, MeasuredRun, is_whole=True)  # a line is one write
    lines = read_file(folder / RUNS, parse, "make it readable")
    runs, name = lines or Rows[MeasuredRun](), folder.resolve().name
    again = "measure it again: clusterctl bench NAME --network --out DIR; or delete it"
    network = read_file(folder / NETWORK, partial(from_json, NetworkFigures), again)
    # The last line of a run wins.
    last = {run.key: run for run in runs.rows}
    damaged = tuple(f"{folder / RUNS}, {text}" for text in runs.damaged)
    return Benchmark(
        *(name, found.settings, found.seed, found.about), *(tuple(last.values()), network, damaged)
    )


def write_network(folder: Path, figures: NetworkFigures) -> None:
    """Write the network's figures, a prior of the scaling model. Raise UsageError."""
    _write(folder / NETWORK, to_json(figures))


def _write(path: Path, text: str) -> None:
    try:
        (path.parent / "logs").mkdir(parents=True, exist_ok=True)
        write_file(path, text + "\n")
    except OSError as error:
        raise UsageError(
            f"cannot write {error.filename}: {error.strerror}", "choose another: --out DIR"
        ) from None


def open_benchmark(
    folder: Path, settings: BenchSettings, seed: int, about: AboutCluster
) -> Benchmark:
    """Return the benchmark in a folder with `about` replaced by the given one, or a new benchmark,
    which is not written to disk yet.

    Raise UsageError if the folder holds a benchmark with other settings or machines, because their
    runs are not comparable.
    """
    if not (folder / ABOUT).exists():
        return Benchmark(folder.resolve().name, settings, seed, about)
    kept = read_benchmark(folder)
    differing = [
        f"{name.replace('_', ' ')} was {value_in_words(one)}, now {value_in_words(other)}"
        for name, one in to_data(kept.settings).items()
        if one != (other := to_data(settings)[name])
    ]
    differing += [
        f"{name.replace('_', ' ')} of the machines: {value_in_words(one)}, "
        f"now {value_in_words(other)}"
        for name in MACHINES
        if (one := getattr(kept.about, name)) != (other := getattr(about, name))
    ]
    if differing:
        raise UsageError(
            f"{folder} holds another benchmark: {'; '.join(differing)}",
            "give the same options to go on with it, or another folder: --out DIR",
        )
    # The cluster may have grown and prices may have changed since the last run.
    return replace(kept, about=about)


def write_benchmark(folder: Path, benchmark: Benchmark) -> None:
    """Write the benchmark's settings, seed and machines. `run_benchmark` adds the runs.

    Raise UsageError if the folder cannot be written.
    """
    about = _About(benchmark.settings, benchmark.seed, benchmark.about)
    _write(folder / ABOUT, to_json(about))


def about_cluster(
    clients: Clients, status: ClusterStatus, access: Access, prices: Prices
) -> AboutCluster:
    """Describe the cluster's machines. Raise HostError, AwsError."""
    nodes = access.cluster.in_service
    types = sorted({node.instance_type for node in nodes})
    machines = []
    for name in types:
        with suppress(AwsError):  # AWS has retired the type, but such instances still run
            machines.append(find_machine_type(clients.ec2, name))
    by_id = {one.node.instance_id: one for one in status.instances}
    own = [by_id[node.instance_id] for node in nodes if node.instance_id in by_id]
    found = [prices[price_key(one)] for one in own]
    local = is_local(clients.ec2.meta.endpoint_url)
    if local:
        # GPU, network and price are those of a type that was not measured here.
        machines, found = [], [None for _ in found]
    return AboutCluster(
        cluster=access.cluster.name,
        region=access.cluster.region,
        zones=_each(node.zone for node in nodes),
        types=tuple(types),
        nodes=len(nodes),
        per_node=live_hosts(access).entries[0].slots,
        gpu=", ".join(_each(m.gpu_name for m in machines)),
        market=_each(one.market.value for one in own),
        placement_group=_each(one.placement_group for one in own),
        network_gbps=sum(m.link_gbps * m.network_cards for m in machines[:1]),
        efa_interfaces=max((one.efa_interfaces for one in own), default=0),
        images=_each(one.image_id for one in own),
        hourly_usd=tuple(price.hourly_usd if price else None for price in found),
        price=_each(f"{price.source}, {price.as_of}" for price in found if price),
        local=local,
    )


def _each(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(filter(None, texts))))


def hourly_usd(about: AboutCluster) -> float | None:
    """Return US dollars per hour of all nodes together, or None if any price is unknown."""
    known = [one for one in about.hourly_usd if one is not None]
    return sum(known) if known and len(known) == len(about.hourly_usd) else None


def guess_step_s(about: AboutCluster, job: JobPlan) -> float | None:
    """Guess the seconds per training step before any run: from the slowest published run, per GPU,
    on the same GPU model in the same precision.

    Return None for a job on CPUs, for work other than ResNet-50 on 224 pixels, and for a GPU model
    without a published run in that precision.
    """
    run = job.run
    if run is None or job.preset == "cpu":
        return None
    speeds = [
        speed / int(gpus)
        for each in published_like(about.gpu, run.model, run.image_size, run.fp16)
        for gpus, speed in each.images_per_s.items()
        if each.fp16 is not None
    ]
    return run.batch_size / min(speeds) if speeds else None


def write_report(folder: Path, predicted: Sequence[int] = ()) -> list[str]:
    """Write the report's files into the benchmark's folder and return their names.

    `predicted` are the sizes, in GPUs, for which the report predicts the speed. Raise UsageError.
    """
    benchmark = read_benchmark(folder)
    report = blocks(benchmark, predicted)
    data = as_data(benchmark, predicted)
    files = {
        "report.html": html(report, data).encode(),
        "report.md": markdown(report, "scaling.svg").encode(),
        "report.csv": as_csv(by_size(benchmark)).encode(),
        "report.json": (json.dumps(data, indent=1) + "\n").encode(),
    }
    for chart in (block for block in report if isinstance(block, Chart)):
        files["scaling.svg"] = svg(chart).encode()
    for name, content in files.items():
        write_result(folder / name, content)
    return list(files)


def request_of(
    settings: BenchSettings, gpus: int, data: str, variables: Sequence[Variable]
) -> JobRequest:
    """Return the training job of one run on `gpus` GPUs. `data` is SYNTHETIC or REAL.

    `variables` carry the values of private variables, which the saved settings must not contain.
    """
    return JobRequest(
        ranks=gpus,
        synthetic=data == SYNTHETIC,
        data_dir=settings.data_dir if data == REAL else None,
        preset=settings.preset,
        recipe=settings.recipe,
        arguments=settings.flags(),
        evaluate=False,
        variables=tuple(variables),
        mpi_arguments=settings.mpi_arguments,
    )


@dataclass(frozen=True)
class BenchRequest:
    """The measurements requested: what each run trains, on which numbers of GPUs, how many times.

    `variables` carry the values of private variables, which the saved settings must not contain.
    With `force`, runs start although something else uses the nodes.
    """

    settings: BenchSettings
    sizes: tuple[int, ...]
    repeats: int = 3
    seed: int = 0
    variables: tuple[Variable, ...] = ()
    force: bool = False


@dataclass(frozen=True)
class BenchPlan:
    """The benchmark as its folder has it, the runs that it lacks, in their order, and for each kind
    of data the plan of its largest run. `machines` describes the nodes (see `machines_of`)."""

    benchmark: Benchmark
    keys: tuple[RunKey, ...]
    largest: Mapping[str, TrainingPlan]
    machines: Machines


def plan_benchmark(
    clients: Clients, status: ClusterStatus, access: Access, request: BenchRequest, folder: Path
) -> BenchPlan:
    """Plan the runs that `folder` lacks. The largest is planned as a job, so that problems show
    before any run starts.

    Raise NotEnoughGpus, UsageError, MissingTool, HostError.
    """
    settings, largest = request.settings, max(request.sizes)
    plans = {data: _plan_run(access, request, largest, data) for data in settings.kinds}
    prices = find_prices(clients, status.instances)
    about = about_cluster(clients, status, access, prices)
    benchmark = open_benchmark(folder, settings, request.seed, about)
    done = {run.key for run in benchmark.runs}
    keys = order(settings, request.sizes, request.repeats, benchmark.seed, done)
    machines = machines_of(status.instances, prices, list_prices(clients, status.instances))
    return BenchPlan(benchmark, tuple(keys), plans, machines)


def _plan_run(access: Access, request: BenchRequest, gpus: int, data: str) -> TrainingPlan:
    job = request_of(request.settings, gpus, data, request.variables)
    plan = plan_training(access, job, request.force)
    return replace(plan, findings=findings_of_run(plan.findings))


def findings_of_run(found: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings on a run as a job that hold for one of `bench`: it empties a folder of
    its own, and sets itself how often it saves."""
    room = "clusterctl disk NAME shows what takes it, and --grow GIB enlarges the disk"
    return tuple(
        replace(one, hint=f"make room: {room}") if one.check == "disk.checkpoints" else one
        for one in found
        if one.check not in ("log.finished", "log.unfinished")
    )


@dataclass(frozen=True)
class RunWatch:
    """Callbacks of a benchmark: a run starts (its key, its job id), the connection is lost (the
    error, seconds until the next attempt), a run has ended (with about the seconds that the other
    runs take)."""

    starts: Callable[[RunKey, str], None]
    lost: Callable[[HostError, float], None]
    ended: Callable[[MeasuredRun, float], None]


def run_benchmark(
    access: Access, plan: BenchPlan, request: BenchRequest, folder: Path, watch: RunWatch
) -> Benchmark:
    """Make the plan's runs in their order, save each result, and return the benchmark with them.

    A run that was in progress when an earlier benchmark was interrupted is finished first.

    Raise ClusterctlError when a run fails; the results before it are kept. Ctrl-C cancels the
    current run on all nodes.
    """
    benchmark = plan.benchmark
    with locked_folder(folder):
        rest = list(plan.keys)
        try:
            going = _under_way(access, folder, {run.key for run in benchmark.runs})
            while going or rest:
                if going is None:
                    going = _start(access, plan, request, folder, rest[0])
                run = _finish(access, benchmark, folder, going, watch)
                append_line(folder / RUNS, to_json(run))
                (folder / UNDER_WAY).unlink()
                benchmark = replace(benchmark, runs=(*benchmark.runs, run))
                rest = [key for key in rest if key != run.key]
                watch.ended(run, estimate_s(benchmark, rest, None) or 0.0)
                going = None
        except KeyboardInterrupt:
            if (noted := _noted(folder)) and list_jobs(
                access.connections, access.head, noted.job_id
            ):  # it is noted before its job starts, which may not exist yet
                cancel(access, noted.job_id)
            # Without the message: it may say that a job still runs, which is cancelled by now.
            raise KeyboardInterrupt from None
    return benchmark


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Lock a benchmark's folder for the block. Raise ClusterctlError if another process holds it.

    Two benchmarks in one folder would share `under-way.json`: each would follow, count and cancel
    the other's run.
    """
    with file_lock(folder) as lock:
        if lock is Lock.BUSY:
            raise ClusterctlError(
                f"another clusterctl bench is at work in {folder}", "wait for it to end"
            )
        yield


@dataclass(frozen=True)
class _Going:
    """A run in progress, with the part of its result that is known at its start.

    `batch` is the global batch size in images, `nodes` the number of nodes with ranks, and
    `hourly_usd` their price, None if unknown.
    """

    job_id: str
    gpus: int
    data: str
    repeat: int
    batch: int
    nodes: int
    hourly_usd: Optional[float]

    def __post_init__(self) -> None:
        """Raise ValueError for what no run can have."""
        for name in ("gpus", "batch", "nodes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")

    @property
    def key(self) -> RunKey:
        return RunKey(self.gpus, self.data, self.repeat)


def _start(
    access: Access, plan: BenchPlan, request: BenchRequest, folder: Path, key: RunKey
) -> _Going:
    """Write `under-way.json` and start the job of one run. Raise ClusterctlError."""
    about = plan.benchmark.about
    training = _plan_run(access, request, key.gpus, key.data)
    training.check()
    nodes = sum(ranks > 0 for ranks in training.hosts.fill(key.gpus))
    prices = about.hourly_usd[:nodes]
    is_known = len(prices) == nodes and not about.local
    usd = hourly_usd(replace(about, hourly_usd=prices)) if is_known else None
    batch = training.job.run.global_batch if training.job.run else 0
    going = _Going(training.job.job_id, **vars(key), batch=batch, nodes=nodes, hourly_usd=usd)
    # Write this before the start: if the connection is lost during the start, the job may run.
    write_file(folder / UNDER_WAY, to_json(going) + "\n")
    how = "force" if request.force else "refuse"
    start_training(access, training, how, machines=plan.machines)
    return going


def _under_way(access: Access, folder: Path, kept: Collection[RunKey]) -> _Going | None:
    """Return the run that an interrupted benchmark started, if it still runs or has succeeded, else
    None. `kept` are the runs that are saved already.

    Its size need not be among the sizes of this invocation: the run has been paid for.
    """
    going = _noted(folder)
    if going is None or going.key in kept:
        return None
    jobs = list_jobs(access.connections, access.head, going.job_id)
    alive = [job for job in jobs if job.state in (JobState.RUNNING, JobState.SUCCEEDED)]
    return going if alive else None


def _noted(folder: Path) -> _Going | None:
    """Read `under-way.json`. Return None if it is missing. Raise ClusterctlError: a run that may be
    in progress is neither started again nor left running unnoticed."""
    hint = "a run may be in progress: see `clusterctl jobs NAME`, cancel it, and delete the file"
    return read_file(folder / UNDER_WAY, partial(from_json, _Going), hint)


def _finish(
    access: Access, benchmark: Benchmark, folder: Path, going: _Going, watch: RunWatch
) -> MeasuredRun:
    """Follow a run to its end, save its log, and return its result. Raise ClusterctlError."""
    watch.starts(going.key, going.job_id)
    log = folder / "logs" / f"{going.gpus}-{going.data}-{going.repeat}.log"
    with log.open("wb") as file:

        def take(chunk: bytes) -> None:
            file.write(chunk)

        job = follow(access, going.job_id, LogFollower(take, watch.lost))
    if job.state is not JobState.SUCCEEDED:
        failed = ClusterctlError(
            f"the run of {going.key} {state_phrase(job)}",
            f"why: clusterctl explain {shlex.quote(str(log))}",
        )
        failed.exit_status = job.exit_status or 1
        raise failed
    return _result(access, benchmark.settings, folder, going, job)


def _result(
    access: Access, settings: BenchSettings, folder: Path, going: _Going, job: JobRecord
) -> MeasuredRun:
    """Read a finished run's result.

    Raise ClusterctlError if it has no row after the warm-up; the run is then made again next time.
    """
    found = results_of_cluster(access)
    if found.job is None or found.job.job_id != going.job_id:
        # Another training ran meanwhile. Without an id, the rows come from the trainer's log
        # folder; with one, from the copy that the job keeps.
        found = results_of_cluster(access, going.job_id)
    run = found.runs[-1] if found.runs else None
    rows, speed = measured(run.rows if run else (), settings.warmup)
    if run is None or not speed:
        # Otherwise each later benchmark in this folder would resume this run, and fail again.
        (folder / UNDER_WAY).unlink()
        raise ClusterctlError(
            f"the run of {going.key} has no row after its warm-up",
            f"its log: clusterctl logs {settings.cluster} {job.job_id}",
        )
    finite = [row for row in rows if 0 <= row.images_per_s < math.inf]
    return pick(
        *(MeasuredRun, going, run.facts),
        rows=tuple((row.step, row.images_per_s) for row in finite),
        images_per_s=speed,
        images=run.facts.training_samples or IMAGENET_IMAGES,
        duration_s=job.duration_s,
        job=to_data(job.report()),
        odd_rows=len(rows) - len(finite),
    )
