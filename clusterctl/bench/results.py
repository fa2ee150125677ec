"""The results of a benchmark's runs by size, with intervals, and the comparison of benchmarks."""

from __future__ import annotations

import functools
import itertools
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Optional

from clusterctl.bench.model import MeasuredNetwork, Model, fit
from clusterctl.bench.network import NetworkFigures, step_allreduce
from clusterctl.bench.plan import REAL, START_UP_S, SYNTHETIC, BenchSettings, RunKey
from clusterctl.bench.statistics import LEVEL, Estimate, independent, mean, ratio, welch
from clusterctl.domain.ranges import grouped
from clusterctl.domain.units import count
from clusterctl.jobs.metrics.flops import utilization
from clusterctl.jobs.metrics.logs import TrainingRow
from clusterctl.jobs.metrics.runs import Run, throughput
from clusterctl.jobs.trainer import EPOCHS, PARAMETERS
from clusterctl.node.record import RecordError, from_data


@dataclass(frozen=True)
class _NodeFacts:
    """What reports read of a node in a job's record."""

    versions: Optional[Mapping[str, Any]] = None


@dataclass(frozen=True)
class _JobFacts:
    """What reports read of a job's record."""

    nodes: tuple[_NodeFacts, ...] = ()
    job_id: str = ""
    preset: str = ""
    line: str = ""
    started_at: str = ""
    list_hourly_usd: Optional[float] = None


@dataclass(frozen=True)
class AboutCluster:
    """The cluster whose speed was measured. `per_node` are GPUs, or ranks without GPUs.
    `hourly_usd` has the price of each node; None if it is unknown. `local`: the nodes are hosts of
    the local EC2, which all have this machine's speed."""

    cluster: str = ""
    region: str = ""
    zones: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    nodes: int = 0
    per_node: int = 1
    gpu: str = ""
    market: tuple[str, ...] = ()
    placement_group: tuple[str, ...] = ()
    network_gbps: float = 0.0
    efa_interfaces: int = 0
    images: tuple[str, ...] = ()
    hourly_usd: tuple[Optional[float], ...] = ()
    local: bool = False
    price: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError for a node of no GPU or rank."""
        if self.per_node < 1:
            raise ValueError(f"per_node: expected at least 1, got {self.per_node}")


@dataclass(frozen=True)
class MeasuredRun:
    """One finished run, as it is kept in the benchmark's folder.

    `rows` are pairs of step and images/s, of the measured part. `batch` is the number of images per
    step of all GPUs, `images` that of an epoch. `nodes` is the number of nodes with ranks, and
    `hourly_usd` what they cost together; None if the price is unknown. `duration_s` is the time of
    the whole run. `job` is the job's record, with its command line and versions. The next four are
    what was trained, and on what (jobs/metrics/flops.py); None where the log lacks it. `odd_rows`
    is the number of rows that were left out, since their speed was no number.
    """

    gpus: int
    data: str
    repeat: int
    rows: tuple[tuple[int, float], ...]
    images_per_s: float
    batch: int
    images: int
    nodes: int
    hourly_usd: Optional[float]
    duration_s: float
    job: Mapping[str, Any] = field(default_factory=dict)
    model: Optional[str] = None
    image_size: Optional[int] = None
    precision: Optional[str] = None
    gpu: Optional[str] = None
    odd_rows: int = 0

    def __post_init__(self) -> None:
        """Raise ValueError for what no run can have measured, or a job's record that is none."""
        for name in ("gpus", "batch", "images", "nodes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if not 0 < self.images_per_s < math.inf:
            raise ValueError(f"images_per_s: not a speed: {self.images_per_s}")
        if not self.rows or not all(0 <= speed < math.inf for _, speed in self.rows):
            raise ValueError("rows: expected rows with speeds")
        try:
            _ = self.facts
        except RecordError as error:
            raise RecordError(error.problem, "job", *error.keys) from None

    @functools.cached_property
    def facts(self) -> _JobFacts:
        return from_data(_JobFacts, self.job)

    @property
    def key(self) -> RunKey:
        return RunKey(self.gpus, self.data, self.repeat)

    @property
    def step_s(self) -> float:
        return self.batch / self.images_per_s


@dataclass(frozen=True)
class Benchmark:
    """The content of a benchmark's folder.

    `network` has figures of the network benchmark; None if it was not made. `damaged` has a message
    for each run that is in the folder and cannot be read.
    """

    name: str
    settings: BenchSettings
    seed: int
    about: AboutCluster
    runs: tuple[MeasuredRun, ...] = ()
    network: NetworkFigures | None = None
    damaged: tuple[str, ...] = ()

    @property
    def on_cpus(self) -> bool:
        """Whether CPUs computed: on machines without GPUs, and always in the local EC2."""
        ran_on_cpus = any(run.facts.preset == "cpu" for run in self.runs)
        return ran_on_cpus or self.about.local


def measured(rows: Iterable[TrainingRow], warmup: int) -> tuple[tuple[TrainingRow, ...], float]:
    """Return the rows after the warm-up and their images/s: all images by all seconds.

    Rows whose speed is no number do not count in it. Without other rows the speed is 0.
    """
    kept = tuple(row for row in rows if row.step > warmup and not row.startup)
    return kept, throughput(kept) or 0.0


@dataclass(frozen=True)
class Shares:
    """Shares of a step's time from 0 to 1, computed by comparing runs (docs/benchmarks.md).

    `allreduce` is the part that the backward pass does not hide, and includes waiting for the
    slowest rank. `input` is None for synthetic data.
    """

    compute: float
    allreduce: float
    input: float | None


@dataclass(frozen=True)
class SizeResult:
    """The result of all runs of one size on one kind of data.

    `per_gpu` is images/s per GPU, `tflops_per_gpu` and `mfu` are its utilization. `efficiency` and
    `efficiency_vs_node` are compared with one GPU and with one full node; None if that size was not
    run. `shares` are None without the runs on synthetic data that they are computed from.
    `hourly_usd` is that of all nodes with ranks, `list_hourly_usd` AWS's price for them on demand;
    None if unknown.
    """

    gpus: int
    data: str
    runs: int
    step_s: Estimate
    images_per_s: Estimate
    per_gpu: float
    efficiency: Estimate | None
    efficiency_vs_node: Estimate | None
    shares: Shares | None
    epoch_s: float
    nodes: int
    hourly_usd: float | None
    list_hourly_usd: float | None = None
    tflops_per_gpu: float | None = None
    mfu: float | None = None

    @property
    def epoch_images(self) -> int:
        """The images of an epoch: the data set's, or ImageNet's for synthetic data."""
        return round(self.epoch_s * self.images_per_s.value)

    @property
    def epoch_usd(self) -> float | None:
        """The cost of an epoch in US dollars; None if the price is unknown."""
        return None if self.hourly_usd is None else self.hourly_usd * self.epoch_s / 3600

    @property
    def images_per_s_per_hourly_usd(self) -> float | None:
        """Speed by price: images/s for each dollar an hour on demand; None if that is unknown."""
        usd = self.list_hourly_usd
        return self.images_per_s.value / usd if usd else None

    def as_data(self) -> dict[str, Any]:
        """Return the values for JSON and CSV, without nesting."""
        shares = self.shares
        flat: dict[str, Any] = {
            "gpus": self.gpus,
            "nodes": self.nodes,
            "data": self.data,
            "runs": self.runs,
        }
        for name in ("step_s", "images_per_s", "efficiency", "efficiency_vs_node"):
            value = getattr(self, name) or Estimate(None)  # type: ignore[arg-type]
            # Student's t knows nothing of the sign: of few repeats that differ it goes below zero.
            low = value.low and max(0.0, value.low)
            flat.update({name: value.value, f"{name}_low": low, f"{name}_high": value.high})
        return {
            **flat,
            "images_per_s_per_gpu": self.per_gpu,
            "tflops_per_gpu": self.tflops_per_gpu,
            "mfu": self.mfu,
            "images_per_s_per_hourly_usd": self.images_per_s_per_hourly_usd,
            "share_compute": shares and shares.compute,
            "share_allreduce": shares and shares.allreduce,
            "share_input": shares and shares.input,
            "epoch_s": self.epoch_s,
            "epoch_usd": self.epoch_usd,
            "epochs_90_s": EPOCHS * self.epoch_s,
            "epochs_90_usd": None if self.epoch_usd is None else EPOCHS * self.epoch_usd,
        }


def by_size(benchmark: Benchmark) -> list[SizeResult]:
    """Return the results by size and data, the smallest size first."""
    steps = _steps(benchmark.runs)
    return [_size_result(benchmark, steps, gpus, data) for gpus, data in sorted(steps)]


def _steps(runs: Iterable[MeasuredRun]) -> dict[tuple[int, str], list[float]]:
    """Return the seconds of a step of each run, by size and data."""
    return grouped(((run.gpus, run.data), run.step_s) for run in runs)


def _size_result(
    benchmark: Benchmark, steps: Mapping[tuple[int, str], list[float]], gpus: int, data: str
) -> SizeResult:
    runs = [run for run in benchmark.runs if (run.gpus, run.data) == (gpus, data)]
    first, ours, step_s = runs[-1], steps[gpus, data], mean(steps[gpus, data])
    speed = step_s.inverse(first.batch)

    def against(size: int) -> Estimate | None:
        if size == gpus:
            return Estimate(1.0)
        # With weak scaling the batch per GPU is the same at all sizes, so the ratio of speeds per
        # GPU is the inverse ratio of the steps' times.
        return ratio(steps[size, data], ours) if (size, data) in steps else None

    epoch_s = first.images / speed.value
    used = utilization(speed.value / gpus, first)
    per_node = benchmark.about.per_node
    return SizeResult(
        gpus=gpus,
        data=data,
        runs=len(runs),
        step_s=step_s,
        images_per_s=speed,
        per_gpu=speed.value / gpus,
        efficiency=against(1),
        efficiency_vs_node=against(per_node) if gpus >= per_node else None,
        shares=_shares(steps, gpus, data),
        epoch_s=epoch_s,
        nodes=first.nodes,
        hourly_usd=first.hourly_usd,
        list_hourly_usd=first.facts.list_hourly_usd,
        tflops_per_gpu=used.tflops,
        mfu=used.mfu,
    )


def _shares(steps: Mapping[tuple[int, str], list[float]], gpus: int, data: str) -> Shares | None:
    """Return the shares of a step, or None without one GPU and this size on synthetic data.

    One GPU on synthetic data only computes. More GPUs add the exposed allreduce, and real data adds
    the time of waiting for input. A difference below zero is noise and counts as 0.
    """
    single, here = steps.get((1, SYNTHETIC)), steps.get((gpus, SYNTHETIC))
    if not (single and here):
        return None
    whole, synthetic = mean(steps[gpus, data]).value, mean(here).value
    waited = max(0.0, whole - synthetic) if data == REAL else None
    busy = whole - (waited or 0.0)
    exposed = max(0.0, min(busy, synthetic) - mean(single).value)
    return Shares(
        compute=(busy - exposed) / whole,
        allreduce=exposed / whole,
        input=None if waited is None else waited / whole,
    )


def model_of(benchmark: Benchmark, data: str) -> Model | None:
    """Return the model of one kind of data; None if too few sizes were measured, or on CPUs.

    If both kinds were run, the model of real data is that of synthetic data and the speed of
    reading. It is None, too, if that of synthetic data does not explain what was measured.
    """
    if benchmark.on_cpus:
        return None
    steps, per_node = _steps(benchmark.runs), benchmark.about.per_node
    table = {gpus: mean(v).value for (gpus, kind), v in steps.items() if kind == data}
    if len(table) < 2:
        return None
    network = measured_network(benchmark)
    if data != REAL:
        return fit(table, per_node, network)
    if max(table) <= per_node:
        network = None  # it does not show how several nodes read
    if not benchmark.settings.synthetic:
        return fit(table, per_node, network)
    base = model_of(benchmark, SYNTHETIC)
    if base is None or base.misfits:
        return None
    waiting = [gpus for gpus in table if _waits(steps, gpus, base)]
    return replace(base.with_reading(table, waiting), network=network)


def _waits(steps: Mapping[tuple[int, str], list[float]], gpus: int, base: Model) -> bool:
    """Return whether a size is slower on real data by more than the noise.

    Without repeats the noise is unknown, and the difference counts as it is.
    """
    real, synthetic = steps[gpus, REAL], steps.get((gpus, SYNTHETIC), [base.step_s(gpus)])
    chance, step_s = welch(real, synthetic), mean(real).value
    if step_s <= mean(synthetic).value:
        return False
    return chance is None or chance < 1 - LEVEL or step_s > base.interval(gpus)[1]


# Horovod's default, 128 MiB, if no run has another.
FUSION = re.compile(r"\bHOROVOD_FUSION_THRESHOLD=(\d+)")
FUSION_BYTES = 128 * 2**20


def measured_network(benchmark: Benchmark) -> MeasuredNetwork | None:
    """Return the allreduce of a step by the network benchmark; None without one of such machines.

    The gradients are those of the trainer's model, in single precision unless --fp16_allreduce.
    """
    types = benchmark.about.types
    if not benchmark.network or tuple(benchmark.network.instance_types) != types:
        return None
    words = [word.rpartition("=")[2] for word in benchmark.settings.arguments]
    model = next((word for word in reversed(words) if word in PARAMETERS), "resnet50")
    line = benchmark.runs[-1].facts.line if benchmark.runs else ""
    fusion = FUSION.search(line)
    each = 2 if "--fp16_allreduce" in line else 4
    message_bytes = int(fusion[1]) if fusion else FUSION_BYTES
    return step_allreduce(benchmark.network, each * PARAMETERS[model], max(1, message_bytes))


def estimate_s(benchmark: Benchmark, keys: Sequence[RunKey], guess: float | None) -> float | None:
    """Return how many seconds these runs will take, or None if nothing is known.

    The estimate is from finished runs, or else from `guess`, the seconds of a step. A size that was
    not run is expected to take as long as the next smaller one that was, or else the smallest.
    """
    settings, known = benchmark.settings, sorted(benchmark.runs, key=lambda run: run.gpus)
    total = 0.0
    for key in keys:
        like = [run for run in known if run.gpus <= key.gpus] or known[:1]
        if like:
            total += like[-1].duration_s
        elif guess is not None:
            total += START_UP_S + (settings.warmup + settings.steps + 1) * guess
        else:
            return None
    return total


@dataclass(frozen=True)
class Difference:
    """One size in two benchmarks.

    `gpus` and `data` are None if no log has them; without `gpus`, images/s are those of all ranks.
    `percent` is how much faster `other` is than `base`. `chance` is the p-value of the
    difference; None without repeats. `beyond`: the difference is beyond the noise. `same_types`:
    both ran on the same instance types; on other types, slower is no regression.
    """

    gpus: Optional[int]
    data: Optional[str]
    base: Estimate
    other: Estimate
    percent: float
    chance: Optional[float]
    beyond: bool
    same_types: bool = True
    json_names = (
        *("gpus", "data", "base", "other", "percent", "chance", "beyond", "same_types", "verdict"),
    )

    @property
    def is_regression(self) -> bool:
        return self.beyond and self.percent < 0 and self.same_types

    @property
    def verdict(self) -> str:
        if self.chance is None:
            return "not known: repeats are missing"
        if not self.beyond:
            return "within the noise"
        return "REGRESSION" if self.is_regression else "faster" if self.percent > 0 else "slower"


# Seconds of GPU time per image, by size and data, with a value for each run. Of a log without the
# size, seconds per image.
Speeds = Mapping[tuple[Optional[int], Optional[str]], Sequence[float]]


def compare(base: Benchmark, other: Benchmark) -> list[Difference]:
    """Compare the sizes that both have, by images/s per GPU, since their batches may differ."""
    same_types = base.about.types == other.about.types

    def speeds(benchmark: Benchmark) -> Speeds:
        runs = benchmark.runs
        return grouped(((run.gpus, run.data), run.gpus / run.images_per_s) for run in runs)

    found = differences(speeds(base), speeds(other))
    return [replace(each, same_types=same_types) for each in found]


def differences(ours: Speeds, theirs: Speeds) -> list[Difference]:
    """Compare the sizes that both have, by Welch's t-test.

    With k sizes a difference counts if its p-value is below (1 - LEVEL)/k (Bonferroni): otherwise,
    with many sizes, one of them would differ by chance.
    """
    both = sorted(ours.keys() & theirs.keys(), key=lambda size: (size[0] or 0, size[1] or ""))
    found = []
    for gpus, data in both:
        one, two = ours[gpus, data], theirs[gpus, data]
        chance = welch(one, two)
        before, after = mean(one).inverse(1.0), mean(two).inverse(1.0)
        percent = 100 * (after.value / before.value - 1)
        beyond = chance is not None and chance < (1 - LEVEL) / len(both)
        found.append(Difference(gpus, data, before, after, percent, chance, beyond))
    return found


def speeds_of_logs(runs: Iterable[Run]) -> Speeds:
    """Return the speeds of runs in logs.

    If there is only one run of a size, batches of its rows stand for repeats. They show the noise
    within the run, not that between launches.
    """
    by_size = grouped(
        ((run.facts.gpus, run.facts.data_kind), run) for run in runs if run.images_per_s
    )
    return {
        (gpus, data): (
            [(gpus or 1) / (run.images_per_s or 1) for run in alike]
            if len(alike) > 1
            else independent(
                [
                    (gpus or 1) / row.images_per_s
                    for row in alike[0].rows_alike
                    if not row.startup and 0 < row.images_per_s < math.inf
                ]
            )
        )
        for (gpus, data), alike in by_size.items()
    }


def versions(runs: Iterable[MeasuredRun]) -> dict[str, list[str]]:
    """Return the versions of programs and libraries on the nodes of these runs, by name.

    There are several versions of a name if nodes or runs differed.
    """
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        for node in run.facts.nodes:
            for name, value in (node.versions or {}).items():
                found.setdefault(str(name), {})[str(value)] = None
    return {name: list(values) for name, values in sorted(found.items())}


def configuration_differences(base: Benchmark, other: Benchmark) -> list[str]:
    """Return what differs between two benchmarks besides speed: options, machines, versions.

    The result has a line for each difference.
    """
    differences = []
    ours, theirs = versions(base.runs), versions(other.runs)
    pairs = itertools.chain(
        ((f.name, getattr(base.settings, f.name), getattr(other.settings, f.name))
         for f in fields(BenchSettings) if f.name != "cluster"),
        ((key, getattr(base.about, key), getattr(other.about, key))
         for key in sorted(one.name for one in fields(AboutCluster))
         if key != "cluster"),
        ((name, sorted(ours.get(name, ())), sorted(theirs.get(name, ())))
         for name in sorted({*ours, *theirs})),
    )  # fmt: skip
    for name, one, two in pairs:
        if one != two:
            differences.append(
                f"{name.replace('_', ' ')}: {value_in_words(one)} and {value_in_words(two)}"
            )
    return differences


def value_in_words(value: object) -> str:
    """Return a setting's value for a message: words as a command line, `none` for an empty one."""
    if isinstance(value, (list, tuple)):
        return shlex.join(map(str, value)) or "none"
    return "none" if value is None or value == "" else str(value)


def in_words(run: MeasuredRun) -> str:
    """Return a run's speed in words, such as `19702.0 images/s, 615.7 of each GPU`."""
    words = f"{run.images_per_s:.1f} images/s, {run.images_per_s / run.gpus:.1f} of each GPU"
    odd = f", without {count(run.odd_rows, 'row')} whose speed is no number"
    return words + odd if run.odd_rows else words
