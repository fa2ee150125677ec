"""Metrics by definitions: a name, and an expression whose group is the value.

Lines of Keras are read by built-in definitions (those that the SageMaker example of CIFAR-10
gives, written for every number that Keras prints); users add their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from clusterctl.domain.errors import UsageError

_NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|-?inf)"
_EPOCH = re.compile(r"^\s*Epoch (\d{1,9})/\d{1,9}\b")
_BAR = re.compile(r"^\s*(\d{1,9})/(\d{1,9})(?= )")
_UNITS_S = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6}


@dataclass(frozen=True)
class MetricDefinition:
    """A metric is what the expression's first group holds; a group `unit` (s, ms, us) scales it.

    `of_epochs`: whether a value belongs to the epoch in which it is printed.
    """

    name: str
    regex: re.Pattern[str]
    of_epochs: bool = True

    def value(self, line: str) -> float | None:
        """The metric in that line; None where there is none, or no number."""
        match = self.regex.search(line)
        if not match:
            return None
        try:
            value = float(match[1])
        except (TypeError, ValueError):
            return None
        return value * _UNITS_S.get(match.groupdict().get("unit") or "", 1.0)


@dataclass(frozen=True)
class MetricPoint:
    """One value: in which of Keras's epochs, and in which line, redrawn bars counting as lines."""

    line: int
    epoch: int | None
    value: float


@dataclass(frozen=True)
class MetricSeries:
    """All values of one metric, in the order of the log."""

    name: str
    points: tuple[MetricPoint, ...]

    @property
    def per_epoch(self) -> dict[int, float]:
        """The last value of each epoch."""
        return {point.epoch: point.value for point in self.points if point.epoch is not None}


def parse_definition(text: str) -> MetricDefinition:
    """`NAME=REGEX` with a group in it. Raises UsageError."""
    name, found, regex = text.partition("=")
    example = "for example --metric 'train:loss=loss: ([0-9.]+)'"
    if not (name.strip() and found and regex):
        raise UsageError(f"not a metric: {text!r}", f"write NAME=REGEX, {example}")
    try:
        pattern = re.compile(regex)
    except (re.error, RecursionError, OverflowError) as error:
        message = f"metric {name.strip()}: not a regular expression: {error}"
        raise UsageError(message, example) from None
    if not pattern.groups:
        raise UsageError(
            f"metric {name.strip()}: the expression has no group (...) for the value", example
        )
    return MetricDefinition(name.strip(), pattern)


def _keras(name: str, regex: str, of_epochs: bool = True) -> MetricDefinition:
    return MetricDefinition(name, re.compile(regex), of_epochs)


# Keras has its metrics at a line's start, or behind a bar, a time or another metric and a dash:
# `Validation loss: 0.5` is a program's own line, and so is all that it says behind that.
_TRAINED = (
    r"^(?!.*[^\W\d_] (?:loss|acc(?:uracy)?): )"
    r"(?:.*?(?:[\d.\]]|\d[mu\u00b5\u03bc]?s|/(?:step|sample|epoch)|nan|inf) - |\s*(?:- )?)"
)
# What Keras's own examples print of `evaluate`.
_TESTED = r"(?<!\w)(?<![^\W\d_] )Test "
# The step's time may stand behind the metrics (one line per epoch) or before them (the bar).
KERAS = (
    _keras("train:loss", rf"{_TRAINED}loss: {_NUMBER}(?= - |\s|$)"),
    _keras("train:accuracy", rf"{_TRAINED}acc(?:uracy)?: {_NUMBER}(?= - |\s|$)"),
    _keras("validation:loss", rf"\bval_loss: {_NUMBER}(?= - |\s|$)"),
    _keras("validation:accuracy", rf"\bval_acc(?:uracy)?: {_NUMBER}(?= - |\s|$)"),
    _keras("sec/steps", r"\b(\d+(?:\.\d+)?)(?P<unit>[mu\u00b5\u03bc]?s)/(?:step|sample)\b"),
    _keras("test:loss", rf"{_TESTED}loss: {_NUMBER}(?=[,;\s]|$)", of_epochs=False),
    _keras("test:accuracy", rf"{_TESTED}acc(?:uracy)?: {_NUMBER}(?=[,;\s]|$)", of_epochs=False),
)


def read_metrics(
    lines: Iterable[str], definitions: Sequence[MetricDefinition] = KERAS
) -> list[MetricSeries]:
    """One series per definition, also where it is empty; two of one name are one series."""
    points: dict[str, list[MetricPoint]] = {each.name: [] for each in definitions}
    epochs = _Epochs()
    for number, line in enumerate(lines, 1):
        epochs.read(line)
        for definition in definitions:
            value = definition.value(line)
            if value is not None:
                epoch = epochs.current if definition.of_epochs else None
                points[definition.name].append(MetricPoint(number, epoch, value))
    return [MetricSeries(name, tuple(found)) for name, found in points.items()]


class _Epochs:
    """Which epoch a line of Keras belongs to: none after its bar was full, as in an evaluation."""

    def __init__(self) -> None:
        self.current: int | None = None
        self._full: str | None = None

    def read(self, line: str) -> None:
        begins = _EPOCH.match(line)
        if begins:
            self.current, self._full = int(begins[1]), None
            return
        bar = _BAR.match(line)
        if not bar:
            return
        if self._full is not None and self._full != bar[0].strip():
            self.current = None
        elif bar[1] == bar[2] and "ETA:" not in line:
            self._full = bar[0].strip()
