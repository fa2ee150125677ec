"""The output of benchmarks of copies: functions from samples to lines of text."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

GAP = "  "


@dataclass(frozen=True)
class Sample:
    """The measurement of one copy.

    `busy` is the used share of all cores, `began` the start in seconds since 1970. `predicted_s`
    and `streams` are from the copy's own plan; other programs have none.
    """

    wall_s: float
    cpu_s: float
    busy: float
    began: float
    predicted_s: float | None = None
    streams: int = 0


@dataclass(frozen=True)
class Goal:
    """A goal: at most `most`. `measured` is None if this run did not measure it."""

    what: str
    measured: float | None
    most: float
    unit: str = ""

    def line(self) -> str:
        most = f"{self.what}: at most {self.most:.2f}{self.unit}"
        if self.measured is None:
            return f"  goal   not measured  {most}"
        verdict = "met" if self.measured <= self.most else "MISSED"
        return f"  goal   {verdict:12}  {most}, measured {self.measured:.3f}{self.unit}"


def plan_of(out: str) -> dict[str, Any]:
    """Return the plan in the last line of `clusterctl copy --json`, or {} for other programs."""
    lines = out.splitlines()
    try:
        report = json.loads(lines[-1]) if lines else None
    except ValueError:
        return {}
    return report["plan"] if isinstance(report, dict) else {}


def median_s(samples: Sequence[Sample]) -> float:
    return statistics.median(sample.wall_s for sample in samples)


def ratio_cell(samples: Sequence[Sample], one_s: float, limit_s: float) -> str:
    """Return T/T1 and, in brackets, T/limit."""
    took_s = median_s(samples)
    return f"{took_s / one_s:.2f} ({took_s / limit_s:.2f})"


def spread_cell(samples: Sequence[Sample]) -> str:
    walls = [sample.wall_s for sample in samples]
    spread = f" ({min(walls):.2f}-{max(walls):.2f})" if len(walls) > 1 else ""
    return f"{statistics.median(walls):.2f} s{spread}"


def busy_cell(samples: Sequence[Sample]) -> str:
    return f"{statistics.median(sample.busy for sample in samples):.0%}"


def prediction(samples: Sequence[Sample]) -> float | None:
    """Return the median of predicted over measured time, or None without a prediction."""
    ratios = [one.predicted_s / one.wall_s for one in samples if one.predicted_s]
    return statistics.median(ratios) if ratios else None


def prediction_cell(samples: Sequence[Sample]) -> str:
    ratio = prediction(samples)
    return "-" if ratio is None else f"{ratio:.2f}"


def prediction_goal(what: str, samples: Sequence[Sample]) -> Goal:
    """Return the goal for the prediction that was off by most, in percent."""
    off = [abs(one.predicted_s / one.wall_s - 1) for one in samples if one.predicted_s]
    return Goal(f"{what}: predicted off by", max(off) * 100 if off else None, 15, " %")


def growth(seconds_by_nodes: dict[int, float]) -> float | None:
    """Return by how many percent each further node lengthens the time, or None for one number.

    It is the mean from the smallest to the largest number of nodes.
    """
    if len(seconds_by_nodes) < 2:
        return None
    few, many = min(seconds_by_nodes), max(seconds_by_nodes)
    more = seconds_by_nodes[many] / seconds_by_nodes[few] - 1
    return more / (many - few) * 100


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table's lines, with the first column aligned left and the others right."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    return ["  " + _line(row, widths) for row in [header, *rows]]


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = zip(row, widths)
    cells = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
    return GAP.join(cells).rstrip()
