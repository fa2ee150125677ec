"""Results as a picture. matplotlib is imported only while drawing, since it is optional."""

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
# The most metrics in one picture; more would be too small to read.
MOST_PANELS = 24
# A curve with fewer points shows each of them as a dot.
FEW = 20
# Rows that are further apart than this many times the median distance are not connected.
WIDEST_GAPS = 3.0


@dataclass(frozen=True)
class PlotLine:
    """One line of a panel. `dots` marks its points. A `reference` is drawn in grey.

    `spreads` has the lowest and highest value at each point, drawn as bars; empty for none.
    """

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    dots: bool = False
    reference: bool = False
    spreads: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Panel:
    """One diagram of the picture. `x_marks` are the numbers at its x axis; empty for any."""

    title: str
    x_label: str
    curves: tuple[PlotLine, ...]
    x_marks: tuple[float, ...] = ()


def picture_format(path: Path) -> str:
    """Return the picture's format from the file's ending: png, svg or pdf.

    Raise UsageError for another ending, and MissingTool if matplotlib is not installed.
    """
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
    """Return panels with loss, learning rate, speed and top-1 of the runs over epochs.

    `reference` is the tutorial's run to show beside them. If a run is too short to tell the steps
    of an epoch, the panels are over steps, without the reference. The reference is also left out if
    a run trained on images other than ImageNet's. A synthetic reference is shown in any case, but
    only in the panel of speed.
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
) -> tuple[PlotLine, ...]:
    made = []
    for each in shown:
        per_step = (each.run.epochs_per_step or 0.0) if axis == "epoch" else 1.0
        points = [(row.step * per_step, value(each.run, row)) for row in each.run.rows]
        x, y = zip(*_with_holes(points)) if points else ((), ())
        made.append(PlotLine(each.label, x, y, each.reference or len(x) < FEW, each.reference))
    return tuple(curve for curve in made if curve.x)


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


def _accuracies(shown: Sequence[_Shown], axis: str) -> tuple[PlotLine, ...]:
    made = []
    for each in shown:
        x = tuple(float(getattr(row, axis)) for row in each.run.evaluations)
        y = tuple(row.top1 for row in each.run.evaluations)
        made.append(PlotLine(each.label, x, y, dots=True, reference=each.reference))
    return tuple(curve for curve in made if curve.x)


def metric_panels(metrics: Sequence[MetricSeries]) -> list[Panel]:
    """Return a panel for each of the first MOST_PANELS metrics, with the values in the order of the
    log."""
    panels = []
    for series in metrics[:MOST_PANELS]:
        values = tuple(point.value for point in series.points)
        curve = PlotLine(series.name, tuple(map(float, range(1, len(values) + 1))), values)
        panels.append(Panel(series.name, "number of the value", (curve,) if values else ()))
    return panels


def _label(number: int, run: Run, runs: int) -> str:
    name = f"run {number}" if runs > 1 else "this run"
    return f"{name}, {count(run.facts.gpus, 'GPU')}" if run.facts.gpus else name


def draw(panels: Sequence[Panel], ending: str, title: str = "") -> bytes:
    """Draw the panels and return the bytes of the picture. `ending` is its format, such as png.

    Panels with the same x axis show the same range of it.
    """
    import matplotlib
    from matplotlib.figure import Figure

    columns = min(COLUMNS, len(panels))
    lines = -(-len(panels) // columns)
    size = (PANEL_INCHES[0] * columns, PANEL_INCHES[1] * lines)
    out = io.BytesIO()
    # A `$` in a metric's name must not start a formula. A fixed salt makes SVG files reproducible.
    with matplotlib.rc_context({"text.parse_math": False, "svg.hashsalt": "clusterctl"}):
        figure = Figure(figsize=size, layout="constrained")
        figure.suptitle(title)
        axes = list(figure.subplots(lines, columns, squeeze=False).flat)
        drawn = list(zip(axes, panels))
        for place, panel in drawn:
            _draw_panel(place, panel)
        for label in {panel.x_label for panel in panels}:
            alike = [one for one, panel in drawn if panel.x_label == label and panel.curves]
            limits = [place.get_xlim() for place in alike]
            for place in alike:
                place.set_xlim(min(low for low, _ in limits), max(high for _, high in limits))
        for unused in axes[len(panels) :]:
            unused.set_visible(False)
        figure.savefig(out, format=ending, dpi=120)
    return out.getvalue()


def _draw_panel(axes: Any, panel: Panel) -> None:
    for curve in panel.curves:
        style = {"color": "0.6"} if curve.reference else {}
        marker = "o" if curve.dots else None
        # Measured points lie above the line of a model.
        order = {"zorder": 3.0} if curve.spreads else {}
        (line,) = axes.plot(
            curve.x, curve.y, marker=marker, markersize=3, label=curve.label, **style, **order
        )
        if curve.spreads:
            low, high = zip(*curve.spreads)
            axes.vlines(curve.x, low, high, colors=line.get_color(), **order)
    axes.set_title(panel.title)
    axes.set_xlabel(panel.x_label)
    if panel.x_marks:
        axes.set_xticks(panel.x_marks, [f"{one:g}" for one in panel.x_marks])
    axes.grid(True, alpha=0.3)
    if len(panel.curves) > 1:
        axes.legend(fontsize="small")
    if not panel.curves:
        axes.text(0.5, 0.5, "nothing in the log", ha="center", transform=axes.transAxes)
