"""Results as a picture. The only module that knows matplotlib, and only while it draws."""

from __future__ import annotations

import importlib.util
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterctl.domain.errors import MissingTool, UsageError
from clusterctl.domain.units import count
from clusterctl.jobs.metrics.logs import MetricSeries, TrainingRow
from clusterctl.jobs.metrics.reference import Reference
from clusterctl.jobs.metrics.runs import Run

FORMATS = ("png", "svg", "pdf")
PANEL_INCHES = (5.5, 3.2)
COLUMNS = 2
# More metrics than that are no picture any more.
MOST_PANELS = 24
# Fewer points than that are marked, not only joined.
FEW = 20
# Rows further apart than that many usual distances are not joined.
WIDEST_GAPS = 3.0


@dataclass(frozen=True)
class Curve:
    """One line of a panel; `dots` marks its points, as few of them would be no line."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    dots: bool = False
    reference: bool = False


@dataclass(frozen=True)
class Panel:
    """One diagram of the picture."""

    title: str
    x_label: str
    curves: tuple[Curve, ...]


def picture_format(path: Path) -> str:
    """By the file's ending. Raises UsageError, and MissingTool where matplotlib is not there."""
    ending = path.suffix[1:].lower()
    if ending not in FORMATS:
        raise UsageError(
            f"cannot draw {path.name}", f"the file's name ends in .{', .'.join(FORMATS)}"
        )
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingTool(
            "drawing needs matplotlib, which is not installed",
            "pip install matplotlib; --csv writes the numbers without it",
        )
    return ending


def run_panels(runs: Sequence[Run], reference: Reference | None = None) -> list[Panel]:
    """Loss, learning rate, speed and top-1 over epochs, with the tutorial's run beside.

    Over steps, and without the tutorial's, where a run's epochs are too short to be measured.
    """
    over_epochs = all(run.epochs_per_step for run in runs if run.rows)
    shown = [_Shown(_label(number, run, len(runs)), run) for number, run in enumerate(runs, 1)]
    # The loss of some images has nothing to do with that of others.
    other_data = any(run.facts.other_data for run in runs)
    synthetic = reference is not None and reference.synthetic
    if reference and over_epochs and (synthetic or not other_data):
        # Behind the others.
        shown.insert(0, _Shown(f"tutorial, {reference.gpus} GPUs", reference.run, reference=True))
    alike = [each for each in shown if not (each.reference and synthetic)]
    per_gpu = all(each.run.facts.gpus for each in shown if each.run.rows)
    axis = "epoch" if over_epochs else "step"
    speed = "images/s per GPU" if per_gpu else "images/s"
    return [
        Panel("loss", axis, _curves(alike, axis, lambda run, row: row.loss)),
        Panel("learning rate", axis, _curves(alike, axis, lambda run, row: row.learning_rate)),
        Panel(speed, axis, _curves(shown, axis, _speed_per_gpu if per_gpu else _speed)),
        Panel("top-1 in %", axis, _accuracies(alike, axis)),
    ]


@dataclass(frozen=True)
class _Shown:
    label: str
    run: Run
    reference: bool = False


def _speed(run: Run, row: TrainingRow) -> float:
    return math.nan if row.startup else row.images_per_s


def _speed_per_gpu(run: Run, row: TrainingRow) -> float:
    return _speed(run, row) / (run.facts.gpus or 1)


def _curves(
    shown: Sequence[_Shown], axis: str, value: Callable[[Run, TrainingRow], float]
) -> tuple[Curve, ...]:
    made = []
    for each in shown:
        per_step = (each.run.epochs_per_step or 0.0) if axis == "epoch" else 1.0
        points = [(row.step * per_step, value(each.run, row)) for row in each.run.rows]
        x, y = zip(*_with_holes(points)) if points else ((), ())
        made.append(Curve(each.label, x, y, each.reference or len(x) < FEW, each.reference))
    return tuple(curve for curve in made if curve.x)


def _with_holes(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """With a break where rows are missing: a line there would be invented."""
    gaps = sorted(after[0] - before[0] for before, after in zip(points, points[1:]))
    widest = WIDEST_GAPS * gaps[len(gaps) // 2] if gaps else 0.0
    broken = list(points[:1])
    for before, after in zip(points, points[1:]):
        if after[0] - before[0] > widest:
            broken.append((before[0], math.nan))
        broken.append(after)
    return broken


def _accuracies(shown: Sequence[_Shown], axis: str) -> tuple[Curve, ...]:
    made = []
    for each in shown:
        x = tuple(float(getattr(row, axis)) for row in each.run.evaluations)
        y = tuple(row.top1 for row in each.run.evaluations)
        made.append(Curve(each.label, x, y, dots=True, reference=each.reference))
    return tuple(curve for curve in made if curve.x)


def metric_panels(metrics: Sequence[MetricSeries]) -> list[Panel]:
    """A panel for each metric: its values in the order of the log."""
    panels = []
    for series in metrics[:MOST_PANELS]:
        values = tuple(point.value for point in series.points)
        curve = Curve(series.name, tuple(map(float, range(1, len(values) + 1))), values)
        panels.append(Panel(series.name, "value", (curve,) if values else ()))
    return panels


def _label(number: int, run: Run, runs: int) -> str:
    name = f"run {number}" if runs > 1 else "this run"
    return f"{name}, {count(run.facts.gpus, 'GPU')}" if run.facts.gpus else name


def draw(panels: Sequence[Panel], ending: str) -> bytes:
    """The picture's bytes, in that format."""
    import matplotlib
    from matplotlib.figure import Figure

    columns = min(COLUMNS, len(panels))
    lines = -(-len(panels) // columns)
    size = (PANEL_INCHES[0] * columns, PANEL_INCHES[1] * lines)
    out = io.BytesIO()
    # `$` in a metric's name is no formula.
    with matplotlib.rc_context({"text.parse_math": False, "svg.hashsalt": "clusterctl"}):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(lines, columns, squeeze=False).flat
        for place, panel in zip(axes, panels):
            _draw_panel(place, panel)
        for unused in list(axes)[len(panels) :]:
            unused.set_visible(False)
        figure.savefig(out, format=ending, dpi=120)
    return out.getvalue()


def _draw_panel(axes: Any, panel: Panel) -> None:
    for curve in panel.curves:
        style = {"color": "0.6"} if curve.reference else {}
        marker = "o" if curve.dots else None
        axes.plot(curve.x, curve.y, marker=marker, markersize=3, label=curve.label, **style)
    axes.set_title(panel.title)
    axes.set_xlabel(panel.x_label)
    axes.grid(True, alpha=0.3)
    if len(panel.curves) > 1:
        axes.legend(fontsize="small")
    if not panel.curves:
        axes.text(0.5, 0.5, "nothing in the log", ha="center", transform=axes.transAxes)
