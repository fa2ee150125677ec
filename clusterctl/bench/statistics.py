"""Means with intervals (Student's t), and whether two means differ (Welch's t-test).

The values that are averaged are the seconds of a step, of runs with equally many steps. The speed
that follows from their mean is all images by all seconds (Hoefler & Belli, Scientific Benchmarking,
SC'15, rules 3, 5 and 7).
"""

from __future__ import annotations

import functools
import math
import operator
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

LEVEL = 0.95  # confidence level of all intervals
FEWEST_BATCHES, MOST_BATCHES = 5, 20
INTERVALS = 200  # of Simpson's rule; even


@dataclass(frozen=True)
class Estimate:
    """A value and the interval in which it lies at the confidence level LEVEL.

    `low` and `high` are None for a single run. Only `high` is None if the interval is unbounded.
    """

    value: float
    low: Optional[float] = None
    high: Optional[float] = None

    @property
    def percent(self) -> float | None:
        """Half the interval's width in percent of the value; None without an interval."""
        if self.low is None or not self.value:
            return None
        if self.high is None:
            return math.inf
        return 50 * (self.high - self.low) / abs(self.value)

    def inverse(self, numerator: float) -> Estimate:
        """Return `numerator` / this, for example images per second from the seconds of a step.

        The bounds are never below zero.
        """
        if self.low is None or self.high is None:
            return Estimate(numerator / self.value)
        # None instead of infinity, which JSON does not have.
        high = numerator / self.low if self.low > 0 else None
        return Estimate(numerator / self.value, numerator / self.high, high)


def mean(values: Sequence[float]) -> Estimate:
    """Return the mean of repeats with Student's t-interval."""
    middle = statistics.fmean(values)
    if len(values) < 2:
        return Estimate(middle)
    error = statistics.stdev(values) / math.sqrt(len(values))
    half = t_quantile(len(values) - 1) * error
    return Estimate(middle, middle - half, middle + half)


def independent(series: Sequence[float]) -> list[float]:
    """Return means of batches of a series, which are nearly independent and can stand for repeats.

    The rows of one run are not independent: neighbours are alike. There are 5 to 20 batches
    (Schmeiser, Operations Research 30, 1982), long enough for their lag-1 autocorrelation to be at
    most 0.1. If 5 batches are still too short, the result is the mean of the whole series. It is
    empty for an empty series.
    """
    size = max(1, -(-len(series) // MOST_BATCHES))
    while len(series) // size >= FEWEST_BATCHES:
        # The remainder is dropped at the front, where values of the start-up are likeliest.
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
    """Return mean(above) / mean(below) with its interval, by the delta method.

    The relative variances add up. The degrees of freedom are those of Welch and Satterthwaite
    (Biometrics Bulletin 2, 1946).
    """
    value = statistics.fmean(above) / statistics.fmean(below)
    if min(len(above), len(below)) < 2:
        return Estimate(value)
    parts = [statistics.variance(v) / len(v) / statistics.fmean(v) ** 2 for v in (above, below)]
    freedom = _freedom(parts, (len(above), len(below)))
    half = value * t_quantile(freedom) * math.sqrt(sum(parts)) if sum(parts) else 0.0
    return Estimate(value, value - half, value + half)


def welch(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return the two-sided p-value of Welch's t-test: how likely chance makes means differ so much.

    The variances need not be equal (Biometrika 34, 1947). None if either has fewer than two values.
    """
    if min(len(one), len(other)) < 2:
        return None
    parts = [statistics.variance(values) / len(values) for values in (one, other)]
    difference = statistics.fmean(one) - statistics.fmean(other)
    if not sum(parts):
        return 1.0 if not difference else 0.0
    freedom = _freedom(parts, (len(one), len(other)))
    return t_tails(difference / math.sqrt(sum(parts)), freedom)


def _freedom(parts: Sequence[float], sizes: Sequence[int]) -> float:
    """Return the degrees of freedom by Welch and Satterthwaite; `parts` are variances of means."""
    below = sum(part**2 / (size - 1) for part, size in zip(parts, sizes))
    return sum(parts) ** 2 / below if below else float(min(sizes) - 1)


def t_tails(t: float, freedom: float) -> float:
    """Return P(|T| > |t|) of Student's t distribution, within 1e-4.

    More than 1000 degrees of freedom count as 1000.

    With t = sqrt(freedom) tan(x), its density is in proportion to cos(x)**(freedom - 1). That is
    integrated by Simpson's rule. A table has no quantiles for the levels of several comparisons.
    """
    freedom = min(freedom, 1000.0)
    begin = math.atan(abs(t) / math.sqrt(freedom))
    step = (math.pi / 2 - begin) / INTERVALS
    heights = [
        max(0.0, math.cos(begin + at * step)) ** (freedom - 1) for at in range(INTERVALS + 1)
    ]
    area = step / 3 * (heights[0] + 4 * sum(heights[1::2]) + 2 * sum(heights[2:-1:2]) + heights[-1])
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2))
    return 2 * scale / math.sqrt(math.pi) * area


@functools.lru_cache
def t_quantile(freedom: float) -> float:
    """Return the t with P(|T| <= t) = LEVEL, found by bisection."""
    low, high = 0.0, 1.0
    while t_tails(high, freedom) > 1 - LEVEL:
        high *= 2
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if t_tails(middle, freedom) > 1 - LEVEL else (low, middle)
    return (low + high) / 2


def t_cdf(t: float, freedom: float) -> float:
    """Return P(T <= t) of Student's t distribution, within 0.001.

    By Wallace's transformation to a normal distribution (Annals of Mathematical Statistics 30,
    1959), which needs one logarithm, not INTERVALS cosines.
    """
    z = math.sqrt(freedom * math.log1p(t * t / freedom)) * (8 * freedom + 1) / (8 * freedom + 3)
    return 0.5 * (1 + math.erf(math.copysign(z, t) / math.sqrt(2)))


# A part of a mixture of t distributions: its probability, its centre and its scale.
Part = tuple[float, float, float]


def mixture_quantiles(
    parts: Sequence[Part], freedom: float, shares: Sequence[float]
) -> tuple[float, ...]:
    """Return for each of `shares` the value below which that share of a mixture of t lies.

    The centres are positive. Found by Newton's method, kept between bounds, within 0.002 % of their
    distance.
    """
    # Parts that are alike within 0.1 % (of the scale: 4 %) are one: hundreds become some tens.
    alike: dict[tuple[int, int], Part] = {}
    for weight, centre, scale in parts:
        key = round(1000 * math.log(centre)), round(25 * math.log(scale))
        before = alike.get(key, (0.0, centre, scale))
        alike[key] = (before[0] + weight, *before[1:])
    merged = tuple(alike.values())
    return tuple(_mixture_quantile(merged, freedom, share) for share in shares)


def _mixture_quantile(parts: Sequence[Part], freedom: float, share: float) -> float:
    low = min(centre - 12 * scale for _, centre, scale in parts)
    high = max(centre + 12 * scale for _, centre, scale in parts)
    within = 2e-5 * (high - low)
    height = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2))
    height /= math.sqrt(math.pi * freedom)
    value, before = sum(weight * centre for weight, centre, _ in parts), math.inf
    while abs(value - before) > within:
        below = density = 0.0
        for weight, centre, scale in parts:
            t = (value - centre) / scale
            below += weight * t_cdf(t, freedom)
            density += weight / scale * (1 + t * t / freedom) ** (-(freedom + 1) / 2)
        low, high = (value, high) if below < share else (low, value)
        before, value = value, value + (share - below) / (height * density)
        if not low < value < high:
            value = (low + high) / 2
    return value


@dataclass(frozen=True)
class Regression:
    """A linear regression with a normal prior: the expected coefficients, and the inverse of their
    covariance.

    `precision` is that inverse, for a noise of 1. `log_likelihood` is the logarithm of the marginal
    likelihood, but for what is the same for all regressions on the same values.
    """

    coefficients: tuple[float, ...]
    precision: tuple[tuple[float, ...], ...]
    noise: float
    log_likelihood: float

    # Only of those few of hundreds that are likely.
    @functools.cached_property
    def covariance(self) -> Sequence[Sequence[float]]:
        """The covariance of the coefficients, in units of `noise` squared."""
        size = len(self.coefficients)
        unit = [[float(i == j) for j in range(size)] for i in range(size)]
        return _solved(self.precision, unit)[0]

    def at(self, units: Sequence[float]) -> tuple[float, float]:
        """Return the value at `units`, and the part of its variance that is the coefficients'."""
        value = sum(unit * c for unit, c in zip(units, self.coefficients))
        lever = sum(
            a * b * v for a, line in zip(units, self.covariance) for b, v in zip(units, line)
        )
        return value, lever


def regression(
    columns: Sequence[Sequence[float]],
    priors: Sequence[tuple[float, float]],
    noise: float,
    noise_counts: float,
) -> Regression:
    """Return the regression of ones on `columns`: Gelman et al., Bayesian Data Analysis, 14.

    `priors` are the expected value of each coefficient, and its deviation in units of the noise.
    The prior of the noise counts as much as `noise_counts` measurements.
    """
    rows, size = len(columns[0]), len(columns)
    precisions = [1 / deviation**2 for _, deviation in priors]
    squares = [[0.0] * size for _ in columns]
    for i, one in enumerate(columns):
        for j in range(i + 1):
            squares[i][j] = squares[j][i] = sum(map(operator.mul, one, columns[j]))
        squares[i][i] += precisions[i]
    sums = [sum(one) + p * prior[0] for one, p, prior in zip(columns, precisions, priors)]
    solved, log_determinant = _solved(squares, [[value] for value in sums])
    coefficients = tuple(value for [value] in solved)
    left = rows + sum(p * prior[0] ** 2 for p, prior in zip(precisions, priors))
    left -= sum(map(operator.mul, coefficients, sums))
    freedom = noise_counts + rows
    squared = noise_counts * noise**2 + max(left, 0.0)
    likelihood = sum(map(math.log, precisions)) - log_determinant - freedom * math.log(squared)
    return Regression(
        coefficients, tuple(map(tuple, squares)), math.sqrt(squared / freedom), likelihood / 2
    )


def _solved(
    matrix: Sequence[Sequence[float]], right: Sequence[Sequence[float]]
) -> tuple[list[list[float]], float]:
    """Return X of `matrix` X = `right`, and the logarithm of the matrix's determinant.

    By Gauss-Jordan elimination; a positive definite matrix needs no pivots.
    """
    log_determinant = 0.0
    rows = [[*line, *values] for line, values in zip(matrix, right)]
    for i in range(len(matrix)):
        # What stands before the pivot is 0 by now, and left out.
        first = rows[i][0]
        log_determinant += math.log(first)
        pivot = rows[i] = [value / first for value in rows[i][1:]]
        for j, line in enumerate(rows):
            if j != i:
                by = line[0]
                rows[j] = [a - by * b for a, b in zip(line[1:], pivot)]
    return rows, log_determinant
