"""Pictures of measurements as SVG: curves over GPUs, epochs or steps.

Text and axes have the colour of the surrounding text, so a picture follows light and dark mode.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

# Size of a chart without its legend, its margins, the height of a row of the legend, and that of
# the title of each chart in a picture, in SVG units.
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 760, 380, 70, 40, 12
LEGEND_ROW, TITLE_ROW = 17, 30
# A training curve with fewer points shows each of them as a dot.
FEW = 20
# Values beyond it are not drawn: they are no measurements, and would overflow the arithmetic.
LARGEST = 1e100
# The same in light and dark mode.
_COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#805ad5", "#b83280", "#718096", "#975a16", "#285e61")
_STYLES = {
    "measured": 'stroke-width="2"',
    "model": 'stroke-width="1.5" stroke-dasharray="6 4"',
    "ideal": 'stroke-width="1" stroke-dasharray="2 4" opacity=".6"',
    "published": 'stroke-width="1" opacity=".5"',
    "training": 'stroke-width="1.5"',
    "reference": 'stroke-width="1" opacity=".5"',
}
# What XML does not allow in a text: control characters, and bytes that are no UTF-8.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

# x, y, and the ends of the interval of y.
Point = tuple[float, float, float, float]


@dataclass(frozen=True)
class ChartCurve:
    """A curve of points by rising x. A point whose y is NaN or infinite interrupts it.

    `kind` is measured, model, ideal or published of a benchmark; training, or the reference next
    to it.
    """

    label: str
    kind: str
    points: Sequence[Point]


@dataclass(frozen=True)
class Chart:
    """Curves over `x_label`. The y axis begins at 0, or, if values are negative, at the lowest.

    `logarithmic` is for numbers of GPUs: both axes are then logarithmic, with a mark at each power
    of two, and the y axis begins below the lowest value.
    """

    title: str
    curves: Sequence[ChartCurve] = ()
    x_label: str = "GPUs"
    logarithmic: bool = False


def flat(x: float, y: float) -> Point:
    """Return a point whose interval is empty."""
    return x, y, y, y


def svg(chart: Chart) -> str:
    """Return a chart as SVG; empty for one without points."""
    body = _body(chart)
    return _document(body, _height(chart), chart.title) if body else ""


def picture(charts: Sequence[Chart], title: str) -> str:
    """Return the charts, one below the other, each under its own title."""
    parts, top = [], 0
    for chart in charts:
        body = _body(chart) or (
            f'<text x="{WIDTH / 2}" y="{HEIGHT / 2}" text-anchor="middle">nothing in the log</text>'
        )
        parts.append(
            f'<g transform="translate(0 {top + TITLE_ROW})">'
            f'<text x="{WIDTH / 2}" y="-8" text-anchor="middle" font-weight="bold">'
            f"{_text(chart.title)}</text>{body}</g>"
        )
        top += TITLE_ROW + _height(chart)
    return _document("".join(parts), top, title)


def _document(body: str, height: float, title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{_text(title)}" font-family="system-ui, sans-serif" font-size="13" '
        f'fill="currentColor">{body}</svg>'
    )


def _text(text: str) -> str:
    return escape(_NOT_XML.sub("\ufffd", text))


def _height(chart: Chart) -> int:
    return HEIGHT + 14 + len(chart.curves) * LEGEND_ROW


def _drawn(point: Point) -> bool:
    return all(abs(value) <= LARGEST for value in point)  # not of NaN


@dataclass(frozen=True)
class _Axis:
    """A range of values, and the pixels of its ends."""

    low: float
    high: float
    begin: float
    end: float
    logarithmic: bool

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        low, high, value = map(
            math.log2 if self.logarithmic else float, (self.low, self.high, value)
        )
        share = (value - low) / (high - low) if high > low else 0.5
        return self.begin + (self.end - self.begin) * share


def _axes(chart: Chart, points: Sequence[Point]) -> tuple[_Axis, _Axis]:
    xs = [point[0] for point in points]
    low, high = min(point[2] for point in points), max(point[3] for point in points)
    if not chart.logarithmic:
        low, high = min(low, 0.0), max(high, 0.0)
        high = low + 1.08 * (high - low) or 1.0
    return (
        _Axis(min(xs), max(xs), LEFT + 10, WIDTH - 20, chart.logarithmic),
        _Axis(low, high, HEIGHT - BOTTOM, TOP, chart.logarithmic),
    )


def _body(chart: Chart) -> str:
    points = [point for curve in chart.curves for point in curve.points if _drawn(point)]
    if not points:
        return ""
    x_axis, y_axis = _axes(chart, points)
    parts = [
        f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{y_axis.at(v):.1f}" y2="{y_axis.at(v):.1f}" '
        f'stroke="currentColor" opacity=".15"/>'
        f'<text x="{LEFT - 8}" y="{y_axis.at(v) + 4:.1f}" text-anchor="end">{v:,g}</text>'
        for v in _marks(y_axis)
    ]
    if chart.logarithmic:
        powers = range(math.ceil(math.log2(x_axis.low)), math.floor(math.log2(x_axis.high)) + 1)
        marks = [2.0**k for k in powers] or sorted({point[0] for point in points})
    else:
        marks = _marks(x_axis)
    parts += [
        f'<text x="{x_axis.at(n):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{n:g}</text>'
        for n in marks
    ]
    label = f'<text x="{WIDTH / 2}" y="{HEIGHT - 4}" text-anchor="middle">{chart.x_label}</text>'
    curves = (_curve(one, number, x_axis, y_axis) for number, one in enumerate(chart.curves))
    return "".join([*parts, label, *itertools.chain.from_iterable(curves)])


def _curve(curve: ChartCurve, number: int, x_axis: _Axis, y_axis: _Axis) -> Iterator[str]:
    """Yield the line of a curve, its points with their intervals, and its row of the legend."""
    grey = curve.kind in ("ideal", "reference")
    colour = "currentColor" if grey else _COLOURS[number % len(_COLOURS)]
    style = _STYLES[curve.kind]
    for drawn, part in itertools.groupby(curve.points, _drawn):
        if drawn:
            path = " ".join(f"{x_axis.at(x):.1f},{y_axis.at(y):.1f}" for x, y, *_ in part)
            yield f'<polyline points="{path}" fill="none" stroke="{colour}" {style}/>'
    dots = curve.kind in ("measured", "published") or (
        curve.kind in ("training", "reference") and len(curve.points) < FEW
    )
    for x, y, bottom, top in filter(_drawn, curve.points if dots else ()):
        size = 4 if curve.kind == "measured" else 2.5
        at = f"{x_axis.at(x):.1f}"
        yield f'<circle cx="{at}" cy="{y_axis.at(y):.1f}" r="{size}" fill="{colour}"/>'
        if top > bottom:
            bar = f'y1="{y_axis.at(bottom):.1f}" y2="{y_axis.at(top):.1f}" stroke="{colour}"'
            yield f'<line x1="{at}" x2="{at}" {bar}/>'
    row = HEIGHT + 12 + number * LEGEND_ROW
    yield (
        f'<line x1="{LEFT}" x2="{LEFT + 26}" y1="{row - 4}" y2="{row - 4}" '
        f'stroke="{colour}" {style}/>'
        f'<text x="{LEFT + 34}" y="{row}">{_text(curve.label)}</text>'
    )


def _marks(axis: _Axis) -> list[float]:
    """Return round values for the marks of an axis: 1, 2 and 5 times powers of ten."""
    low, high = axis.low, axis.high
    if axis.logarithmic:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        return [m * 10.0**k for k in powers for m in (1, 2, 5) if low <= m * 10.0**k <= high]
    span = high - low
    if span < 1 / LARGEST:
        return [low]
    step = 10.0 ** math.floor(math.log10(span / 2))
    step = next(step * m for m in (1, 2, 5, 10) if span / (step * m) <= 6)
    return [step * k for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
