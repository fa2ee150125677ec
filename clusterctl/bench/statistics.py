"""Means with their intervals, and whether two of them differ: Student's t and Welch's.

What is averaged is the seconds of a step, in runs of equally many steps: the speed of that mean is
all images by all seconds (Hoefler & Belli, Scientific Benchmarking, SC'15, rules 3, 5 and 7).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.95
FEWEST_BATCHES, MOST_BATCHES = 5, 20


@dataclass(frozen=True)
class Estimate:
    """A value and the interval in which it lies with LEVEL's certainty; None from a single run.

    `high` alone is None where the interval has no end.
    """

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def percent(self) -> float | None:
        """Half the interval's width, in percent of the value."""
        if self.low is None or not self.value:
            return None
        if self.high is None:
            return math.inf
        return 50 * (self.high - self.low) / abs(self.value)

    def inverse(self, numerator: float) -> Estimate:
        """`numerator` by this: images a second of the seconds of a step. Never below zero."""
        if self.low is None or self.high is None:
            return Estimate(numerator / self.value)
        # Not infinity, which JSON does not have.
        high = numerator / self.low if self.low > 0 else None
        return Estimate(numerator / self.value, numerator / self.high, high)


def mean(values: Sequence[float]) -> Estimate:
    """The mean with Student's t-interval over repeats."""
    middle = statistics.fmean(values)
    if len(values) < 2:
        return Estimate(middle)
    error = statistics.stdev(values) / math.sqrt(len(values))
    half = t_quantile(len(values) - 1) * error
    return Estimate(middle, middle - half, middle + half)


def independent(series: Sequence[float]) -> list[float]:
    """Batch means that stand for repeats, where a series has neighbours that are alike, as a run's
    rows: 5 to 20 batches (Schmeiser, Operations Research 30, 1982), as long as it takes for their
    lag-1 autocorrelation to fall to 0.1. The mean of all where it does not."""
    size = max(1, -(-len(series) // MOST_BATCHES))
    while len(series) // size >= FEWEST_BATCHES:
        # From the end: the first values are the likeliest to be of the start.
        kept = series[len(series) % size :]
        means = [statistics.fmean(kept[at : at + size]) for at in range(0, len(kept), size)]
        middle = statistics.fmean(means)
        apart = [value - middle for value in means]
        together = sum(one * other for one, other in zip(apart, apart[1:]))
        if together <= 0.1 * sum(one * one for one in apart):
            return means
        size *= 2
    return [statistics.fmean(series)] if series else []


def ratio(above: Sequence[float], below: Sequence[float]) -> Estimate:
    """mean(above) / mean(below), by the delta method: the relative variances add up, with the
    degrees of freedom of Welch and Satterthwaite (Biometrics Bulletin 2, 1946)."""
    value = statistics.fmean(above) / statistics.fmean(below)
    if min(len(above), len(below)) < 2:
        return Estimate(value)
    parts = [statistics.variance(v) / len(v) / statistics.fmean(v) ** 2 for v in (above, below)]
    freedom = _freedom(parts, (len(above), len(below)))
    half = value * t_quantile(freedom) * math.sqrt(sum(parts)) if sum(parts) else 0.0
    return Estimate(value, value - half, value + half)


def welch(one: Sequence[float], other: Sequence[float]) -> float | None:
    """How likely so great a difference of means is by chance, by Welch's t-test (Biometrika 34,
    1947: the variances need not be equal); None where one of them has fewer than two values."""
    if min(len(one), len(other)) < 2:
        return None
    parts = [statistics.variance(values) / len(values) for values in (one, other)]
    difference = statistics.fmean(one) - statistics.fmean(other)
    if not sum(parts):
        return 1.0 if not difference else 0.0
    freedom = _freedom(parts, (len(one), len(other)))
    return t_tails(difference / math.sqrt(sum(parts)), freedom)


def _freedom(parts: Sequence[float], sizes: Sequence[int]) -> float:
    below = sum(part**2 / (size - 1) for part, size in zip(parts, sizes))
    return sum(parts) ** 2 / below if below else float(min(sizes) - 1)


def t_tails(t: float, freedom: float) -> float:
    """P(|T| > |t|): I_x(freedom/2, 1/2) at x = freedom/(freedom + t²) (DLMF 8.17, 26.7.27 of
    Abramowitz & Stegun)."""
    return _beta(freedom / (freedom + t * t), freedom / 2, 0.5)


def t_quantile(freedom: float, level: float = LEVEL) -> float:
    """The t with P(|T| <= t) = level."""
    low, high = 0.0, 1.0
    while t_tails(high, freedom) > 1 - level:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if t_tails(middle, freedom) > 1 - level else (low, middle)
    return (low + high) / 2


def _beta(x: float, a: float, b: float) -> float:
    """The regularized incomplete beta function, by its continued fraction (DLMF 8.17.22) with
    Lentz's method."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta(1 - x, b, a)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    result = d
    for m in range(1, 500):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            c, d = 1 + term / c, 1 / (1 + term * d)
            result *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return front * result / a
