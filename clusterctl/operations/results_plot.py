"""Results as a picture: a chart for loss, learning rate, speed, top-1, and for each metric."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from clusterctl.bench.chart import Chart, ChartCurve, flat
from clusterctl.domain.errors import UsageError
from clusterctl.domain.units import count
from clusterctl.jobs.metrics.logs import MetricSeries, TrainingRow
from clusterctl.jobs.metrics.reference import Reference
from clusterctl.jobs.metrics.runs import Run

# The most metrics in one picture.
MOST_METRICS = 24
# Rows that are further apart than this many times the median distance are not connected.
WIDEST_GAPS = 3.0


def check_picture(path: Path) -> None:
    """Raise UsageError unless the file's name ends in .svg."""
    if path.suffix.lower() != ".svg":
        raise UsageError(f"cannot draw {path.name}", "the file's name ends in .svg")


def run_charts(runs: Sequence[Run], reference: Reference | None = None) -> list[Chart]:
    """Return charts with loss, learning rate, speed and top-1 of the runs over epochs.

    `reference` is the tutorial's run to compare with. If a run is too short to count the steps
    of an epoch, the charts are over steps, without the reference. The reference is also left out if
    a run trained on images other than ImageNet's. A synthetic reference is shown in any case, but
    only in the chart of speed.
    """
    over_epochs = all(run.epochs_per_step for run in runs if run.rows)
    shown = [_Shown(_label(number, run, len(runs)), run) for number, run in enumerate(runs, 1)]
    # Losses on different images cannot be compared.
    other_data = any(run.facts.other_data for run in runs)
    synthetic = reference is not None and reference.synthetic
    if reference and over_epochs and (synthetic or not other_data):
        # First, so that it is drawn behind the others.
        shown.insert(0, _Shown(f"tutorial, {reference.gpus} GPUs", reference.run, reference=True))
    alike = [each for each in shown if not (each.reference and synthetic)]
    per_gpu = all(each.run.facts.gpus for each in shown if each.run.rows)
    axis = "epoch" if over_epochs else "step"
    speed = "images/s per GPU" if per_gpu else "images/s"
    return [
        Chart("loss", _curves(alike, axis, lambda run, row: row.loss), axis),
        Chart("learning rate", _curves(alike, axis, lambda run, row: row.learning_rate), axis),
        Chart(speed, _curves(shown, axis, partial(_speed, per_gpu=per_gpu)), axis),
        Chart("top-1 in %", _accuracies(alike, axis), axis),
    ]


@dataclass(frozen=True)
class _Shown:
    label: str
    run: Run
    reference: bool = False

    def curve(self, points: Sequence[tuple[float, float]]) -> ChartCurve:
        kind = "reference" if self.reference else "training"
        return ChartCurve(self.label, kind, [flat(x, y) for x, y in points])


def _speed(run: Run, row: TrainingRow, per_gpu: bool) -> float:
    gpus = run.facts.gpus if per_gpu else None
    # Of rows on other GPUs, the number that would divide the speed is not in the run's facts.
    other = row.startup or (per_gpu and row.step < run.alike_from)
    return math.nan if other else row.images_per_s / (gpus or 1)


def _curves(
    shown: Sequence[_Shown], axis: str, value: Callable[[Run, TrainingRow], float]
) -> list[ChartCurve]:
    made = []
    for each in shown:
        per_step = (each.run.epochs_per_step or 0.0) if axis == "epoch" else 1.0
        points = [(row.step * per_step, value(each.run, row)) for row in each.run.rows]
        made.append(each.curve(_with_holes(points)))
    return [curve for curve in made if curve.points]


def _with_holes(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Insert a NaN point where rows are missing, so that no line is drawn there."""
    gaps = sorted(after[0] - before[0] for before, after in zip(points, points[1:]))
    widest = WIDEST_GAPS * gaps[len(gaps) // 2] if gaps else 0.0
    broken = list(points[:1])
    for before, after in zip(points, points[1:]):
        if after[0] - before[0] > widest:
            broken.append((before[0], math.nan))
        broken.append(after)
    return broken


def _accuracies(shown: Sequence[_Shown], axis: str) -> list[ChartCurve]:
    made = [
        each.curve([(float(getattr(row, axis)), row.top1) for row in each.run.evaluations])
        for each in shown
    ]
    return [curve for curve in made if curve.points]


def metric_charts(metrics: Sequence[MetricSeries]) -> list[Chart]:
    """Return a chart for each of the first MOST_METRICS metrics, with the values in the order of
    the log."""
    charts = []
    for series in metrics[:MOST_METRICS]:
        points = [flat(number, point.value) for number, point in enumerate(series.points, 1)]
        charts.append(
            Chart(series.name, [ChartCurve(series.name, "training", points)], "number of the value")
        )
    return charts


def _label(number: int, run: Run, runs: int) -> str:
    name = f"run {number}" if runs > 1 else "this run"
    return f"{name}, {count(run.facts.gpus, 'GPU')}" if run.facts.gpus else name
