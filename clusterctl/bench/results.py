"""What a benchmark's runs came to: by size, with intervals; and two benchmarks side by side."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from clusterctl.bench.model import Model, fit
from clusterctl.bench.plan import REAL, START_UP_S, SYNTHETIC, BenchSettings, RunKey
from clusterctl.bench.statistics import LEVEL, Estimate, independent, mean, ratio, welch
from clusterctl.jobs.metrics.logs import TrainingRow
from clusterctl.jobs.metrics.runs import Run, throughput

EPOCHS = 90


@dataclass(frozen=True)
class MeasuredRun:
    """One finished run, as it is kept.

    `rows` are step and images/s of the measured part. `batch` is images a step of all GPUs,
    `images` an epoch. `nodes` had ranks and cost `hourly_usd` together; None where nobody knows the
    price. `job` is the job's record, with its line and versions.
    """

    gpus: int
    data: str
    repeat: int
    rows: tuple[tuple[int, float], ...]
    images_per_s: float
    batch: int
    images: int
    nodes: int
    hourly_usd: float | None
    wall_s: float
    job: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> RunKey:
        return RunKey(self.gpus, self.data, self.repeat)

    @property
    def step_s(self) -> float:
        return self.batch / self.images_per_s

    @staticmethod
    def of(said: Mapping[str, Any]) -> MeasuredRun:
        """From JSON; keys of other versions are passed over. Raises KeyError, TypeError."""
        known = {each.name: said[each.name] for each in fields(MeasuredRun) if each.name in said}
        return MeasuredRun(**{**known, "rows": tuple((s, v) for s, v in said["rows"])})


@dataclass(frozen=True)
class Benchmark:
    """What a benchmark's folder holds. `about`: cluster and machines, as they were seen."""

    name: str
    settings: BenchSettings
    seed: int
    about: Mapping[str, Any]
    runs: tuple[MeasuredRun, ...] = ()

    @property
    def per_node(self) -> int:
        """GPUs, or ranks, of one node."""
        return int(self.about.get("per_node") or 1)


def measured(rows: Iterable[TrainingRow], warmup: int) -> tuple[tuple[TrainingRow, ...], float]:
    """The rows behind the warm-up, and their speed: all images by all seconds. 0 without any."""
    kept = tuple(row for row in rows if row.step > warmup and not row.startup)
    return kept, throughput(kept) or 0.0


@dataclass(frozen=True)
class Shares:
    """Where a step's time went, each from 0 to 1, by difference between runs (docs/benchmarks.md).

    `allreduce` is what is not hidden behind the backward pass, waiting for the slowest included.
    None: the runs that would tell it were not made.
    """

    compute: float
    allreduce: float
    input: float | None


@dataclass(frozen=True)
class SizeResult:
    """All runs of one size on one kind of data. An efficiency is None without its base case."""

    gpus: int
    data: str
    runs: int
    step_s: Estimate
    images_per_s: Estimate
    per_gpu: float
    against_gpu: Estimate | None
    against_node: Estimate | None
    shares: Shares | None
    epoch_s: float
    nodes: int
    hourly_usd: float | None

    @property
    def epoch_usd(self) -> float | None:
        return None if self.hourly_usd is None else self.hourly_usd * self.epoch_s / 3600

    def as_data(self) -> dict[str, Any]:
        """For JSON and CSV, one level deep."""
        shares = self.shares
        flat: dict[str, Any] = {
            "gpus": self.gpus,
            "nodes": self.nodes,
            "data": self.data,
            "runs": self.runs,
        }
        for name in ("step_s", "images_per_s", "against_gpu", "against_node"):
            value = getattr(self, name) or Estimate(None)  # type: ignore[arg-type]
            flat.update({name: value.value, f"{name}_low": value.low, f"{name}_high": value.high})
        return {
            **flat,
            "images_per_s_per_gpu": self.per_gpu,
            "share_compute": shares and shares.compute,
            "share_allreduce": shares and shares.allreduce,
            "share_input": shares and shares.input,
            "epoch_s": self.epoch_s,
            "epoch_usd": self.epoch_usd,
            "epochs_90_s": EPOCHS * self.epoch_s,
            "epochs_90_usd": None if self.epoch_usd is None else EPOCHS * self.epoch_usd,
        }


def by_size(benchmark: Benchmark) -> list[SizeResult]:
    """The results, smallest first."""
    steps = _steps(benchmark.runs)
    return [_size_result(benchmark, steps, gpus, data) for gpus, data in sorted(steps)]


def _steps(runs: Iterable[MeasuredRun]) -> dict[tuple[int, str], list[float]]:
    """The seconds of a step of each run, by size and data."""
    found: dict[tuple[int, str], list[float]] = {}
    for run in runs:
        found.setdefault((run.gpus, run.data), []).append(run.step_s)
    return found


def _size_result(
    benchmark: Benchmark, steps: Mapping[tuple[int, str], list[float]], gpus: int, data: str
) -> SizeResult:
    runs = [run for run in benchmark.runs if (run.gpus, run.data) == (gpus, data)]
    first, ours, step_s = runs[-1], steps[gpus, data], mean(steps[gpus, data])
    speed = step_s.inverse(first.batch)

    def against(size: int) -> Estimate | None:
        if size == gpus:
            return Estimate(1.0)
        # Weak scaling: the batch of a GPU is the same, so speeds per GPU are as steps to steps.
        return ratio(steps[size, data], ours) if (size, data) in steps else None

    epoch_s = first.images / speed.value
    return SizeResult(
        gpus=gpus,
        data=data,
        runs=len(runs),
        step_s=step_s,
        images_per_s=speed,
        per_gpu=speed.value / gpus,
        against_gpu=against(1),
        against_node=against(benchmark.per_node) if gpus >= benchmark.per_node else None,
        shares=_shares(steps, gpus, data),
        epoch_s=epoch_s,
        nodes=first.nodes,
        hourly_usd=first.hourly_usd,
    )


def _shares(steps: Mapping[tuple[int, str], list[float]], gpus: int, data: str) -> Shares | None:
    """By difference: one GPU on synthetic data has nothing but compute; more of them add the
    allreduce, and real data adds what is waited for. Below zero is noise, and counts as none."""
    alone, here = steps.get((1, SYNTHETIC)), steps.get((gpus, SYNTHETIC))
    if not (alone and here):
        return None
    whole, synthetic = mean(steps[gpus, data]).value, mean(here).value
    waited = max(0.0, whole - synthetic) if data == REAL else None
    busy = whole - (waited or 0.0)
    exposed = max(0.0, min(busy, synthetic) - mean(alone).value)
    return Shares(
        compute=(busy - exposed) / whole,
        allreduce=exposed / whole,
        input=None if waited is None else waited / whole,
    )


def model_of(benchmark: Benchmark, data: str) -> Model | None:
    """The model of that kind of data. Where both kinds were run, real data is synthetic data and
    what a node can read, by the sizes where it is slower by more than the noise."""
    steps, per_node = _steps(benchmark.runs), benchmark.per_node
    table = {gpus: mean(v).value for (gpus, kind), v in steps.items() if kind == data}
    if data != REAL or not benchmark.settings.synthetic:
        return fit(table, per_node)
    full_node_s = []
    for gpus, step_s in table.items():
        synthetic = steps.get((gpus, SYNTHETIC), ())
        chance = welch(steps[gpus, REAL], synthetic)
        if chance is not None and chance < 1 - LEVEL and step_s > mean(synthetic).value:
            full_node_s.append(step_s * per_node / min(gpus, per_node))
    base = model_of(benchmark, SYNTHETIC)
    return base and base.reading(min(full_node_s, default=0.0), table)


def estimate_s(benchmark: Benchmark, keys: Sequence[RunKey], guess: float | None) -> float | None:
    """Seconds that these runs will take: from runs that were made, else `guess` seconds of a step.

    None where neither is there. A size that was not run takes as long as the largest that was.
    """
    settings, known = benchmark.settings, sorted(benchmark.runs, key=lambda run: run.gpus)
    total = 0.0
    for key in keys:
        like = [run for run in known if run.gpus <= key.gpus] or known[:1]
        if like:
            total += like[-1].wall_s
        elif guess is not None:
            total += START_UP_S + (settings.warmup + settings.steps + 1) * guess
        else:
            return None
    return total


@dataclass(frozen=True)
class Difference:
    """One size in two benchmarks. `percent`: how much faster the other is; `chance`: how likely so
    great a difference is without a cause, None where repeats are lacking. `beyond`: the noise.
    `same_types`: on machines of other types slower is a choice, no regression."""

    gpus: int
    data: str
    base: Estimate
    other: Estimate
    percent: float
    chance: float | None
    beyond: bool
    same_types: bool = True

    @property
    def is_regression(self) -> bool:
        return self.beyond and self.percent < 0 and self.same_types

    @property
    def verdict(self) -> str:
        if self.chance is None:
            return "not told: repeats are lacking"
        if not self.beyond:
            return "within the noise"
        return "REGRESSION" if self.is_regression else "faster" if self.percent > 0 else "slower"

    def as_data(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict}


# Seconds of GPU time an image, by size and data: a value for each run.
Speeds = Mapping[tuple[int, str], Sequence[float]]


def compare(base: Benchmark, other: Benchmark) -> list[Difference]:
    """The sizes that both have, by images a second of a GPU: batches may differ."""
    same_types = base.about.get("types") == other.about.get("types")
    found = differences(_per_image(base.runs), _per_image(other.runs))
    return [replace(each, same_types=same_types) for each in found]


def differences(ours: Speeds, theirs: Speeds) -> list[Difference]:
    """Those of the sizes that both have.

    Welch's t-test; with k sizes a difference counts below (1 - LEVEL)/k, as Bonferroni has it, so
    that many sizes do not make one of them differ by chance.
    """
    both = sorted(ours.keys() & theirs.keys())
    found = []
    for gpus, data in both:
        one, two = ours[gpus, data], theirs[gpus, data]
        chance = welch(one, two)
        before, after = mean(one).inverse(1.0), mean(two).inverse(1.0)
        percent = 100 * (after.value / before.value - 1)
        beyond = chance is not None and chance < (1 - LEVEL) / len(both)
        found.append(Difference(gpus, data, before, after, percent, chance, beyond))
    return found


def _per_image(runs: Iterable[MeasuredRun]) -> Speeds:
    found: dict[tuple[int, str], list[float]] = {}
    for run in runs:
        found.setdefault((run.gpus, run.data), []).append(run.gpus / run.images_per_s)
    return found


def speeds_of_logs(runs: Iterable[Run]) -> Speeds:
    """Those of runs in logs. Where there is one of a size, batches of its rows stand for repeats:
    they tell the noise within it, not that from launch to launch."""
    found: dict[tuple[int, str], list[Run]] = {}
    for run in runs:
        if run.images_per_s:
            data = SYNTHETIC if run.facts.synthetic else REAL
            found.setdefault((run.facts.gpus or 1, data), []).append(run)
    return {
        (gpus, data): (
            [gpus / (run.images_per_s or 1) for run in alike]
            if len(alike) > 1
            else independent(
                [
                    gpus / row.images_per_s
                    for row in alike[0].rows
                    if not row.startup and 0 < row.images_per_s < math.inf
                ]
            )
        )
        for (gpus, data), alike in found.items()
    }


def versions(runs: Iterable[MeasuredRun]) -> dict[str, list[str]]:
    """What was installed on the nodes of these runs, by name: more than one version where they
    differed."""
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        for node in run.job.get("nodes", ()):
            for name, value in (node.get("versions") or {}).items():
                found.setdefault(str(name), {})[str(value)] = None
    return {name: list(values) for name, values in sorted(found.items())}


def unlike(base: Benchmark, other: Benchmark) -> list[str]:
    """What differs between two benchmarks beside their speed: the versions, machines, options."""
    said = []
    ours, theirs = versions(base.runs), versions(other.runs)
    pairs = itertools.chain(
        ((f.name, getattr(base.settings, f.name), getattr(other.settings, f.name))
         for f in fields(BenchSettings) if f.name != "cluster"),
        ((key, base.about.get(key), other.about.get(key))
         for key in sorted({*base.about, *other.about})
         if key != "cluster"),
        ((name, sorted(ours.get(name, ())), sorted(theirs.get(name, ())))
         for name in sorted({*ours, *theirs})),
    )  # fmt: skip
    for name, one, two in pairs:
        if one != two:
            said.append(f"{name.replace('_', ' ')}: {one or '-'} and {two or '-'}")
    return said


def in_words(run: MeasuredRun) -> str:
    """`19702.0 images/s, 615.7 of each GPU`."""
    return f"{run.images_per_s:.1f} images/s, {run.images_per_s / run.gpus:.1f} of each GPU"
