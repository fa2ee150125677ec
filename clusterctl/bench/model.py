"""The scaling model: the time of a step on n GPUs, from the sizes that were measured.

A step of n GPUs on N nodes with g GPUs each, l of them on a node that has ranks, at weak scaling:

    step(n)   = max(input, compute + node(l) + slow(N) + sigma E[max of n normals] + exposed(N))
    input     = c l/g   each node reads at a speed of its own; or c n/g, from a storage they share
    exposed   = max(0, allreduce(N) - overlap)   overlap: what hides behind the backward pass
    node      = p (l - 1)/l + q (l - 1)/(g - 1) + r [l > g/2]       ring, shared bus, two sockets
    slow      = s [N >= K]                          all wait for a slow node, as soon as it is used
    E         = inverse normal of (n - 3/8)/(n + 1/4)             Blom, Statistical Estimates, 1958

and the allreduce, in Hockney's t = alpha + m/beta for m bytes (Parallel Computing 20, 1994):

    ring of the nodes   2(N-1) alpha + 2(N-1)/N m/beta      Patarasuk & Yuan, JPDC 69, 2009
    tree of the nodes   2 log2(N) alpha + 2 m/beta [N > 1]  NCCL's double tree, after Sanders, Speck
                                                            & Traeff, Parallel Computing 35, 2009
    ring of the GPUs    2(n-1) alpha + 2(n-1)/n m/beta: as a tree's m/beta with a ring's alpha

Which terms there are, which allreduce, its ratio of alpha to m/beta, and from how many nodes on it
is exposed, the measurements rarely determine. So the model is an average over all these hypotheses,
weighted by how well each explains the measurements: linear regression with conjugate priors, and
averaging by marginal likelihood (Raftery, Madigan & Hoeting, JASA 92, 1997). The constants below
are the priors. They are assumptions, which the page docs/benchmarks.md states and checks.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist

from clusterctl.bench.statistics import (
    LEVEL,
    Part,
    Regression,
    mixture_quantiles,
    regression,
    t_quantile,
)

# A prediction beyond this many times the largest measured size is called a guess.
FARTHEST = 2.0
# Fewer sizes than this say nothing about the error of a prediction.
FEWEST_SIZES = 3

# Noise of a size, as a part of its step: it counts as much as this many measurements.
NOISE, NOISE_COUNTS = 0.02, 3.0
# Standard deviations of the terms, as parts of the step of the smallest size.
COMPUTE, STRAGGLER, NODE, SLOW, ALL_EXPOSED = 10.0, 0.01, 0.1, 0.1, 5.0
# What hides: half-normal, in 95 % of cases less than two thirds of the compute time. The backward
# pass is about that: it has two products for each one of the forward pass.
OVERLAP = 1 / 3
SLOW_CHANCE = 0.4
# The chance that GPUs of the second half of a node, if none was measured, lengthen the step; and
# the standard deviation of that.
SECOND_HALF, SECOND_HALF_BY = 0.3, 0.15
# The allreduce at N nodes by the network benchmark: it may be this much of itself off.
NETWORK_OFF = 0.5
NETWORK_TRUSTED = 0.8  # the chance that this network, not one unknown, is what the training uses
# Near the balance of input and compute both vary, and steps wait for either: the upper bound is
# (input^p + compute^p)^(1/p), which is 3.5 % above both where they are equal.
BALANCE = 20
POSITIONS = 2  # hypotheses for each doubling of the nodes from which on the allreduce is exposed
STRATA = 6  # values that stand for a prior of which nothing was measured
LEAST_LIKELY = 7.0  # hypotheses whose likelihood is e^-7 of the best one's are dropped

_NORMAL = NormalDist()


def slowest_of(ranks: int) -> float:
    """Return the expected maximum of that many standard normal values (Blom 1958, see above)."""
    return _NORMAL.inv_cdf((ranks - 0.375) / (ranks + 0.25)) if ranks > 1 else 0.0


@dataclass(frozen=True)
class MeasuredNetwork:
    """An allreduce of a step's gradients on `nodes` nodes, as the network benchmark measured it.

    The seconds are of all messages together: `latency_s` does not depend on their bytes,
    `transfer_s` does.
    """

    nodes: int
    latency_s: float
    transfer_s: float

    def ring_s(self, nodes: float) -> float:
        """Return the seconds of a ring of that many nodes; 0 for one."""
        hops = (nodes - 1) / (self.nodes - 1)
        return hops * (self.latency_s + self.transfer_s * self.nodes / nodes)

    def tree_s(self, nodes: float) -> float:
        """Return the seconds of a tree of that many nodes; 0 for one."""
        hops = math.log2(nodes) / math.log2(self.nodes)
        return hops * self.latency_s + self.transfer_s * (nodes > 1)


@dataclass(frozen=True)
class Curve:
    """How an allreduce grows with the nodes, a real number from 1 on, where it is 0.

    The unit is any, unless it `is_measured`: then it is a second. A curve that `jumps` with the
    second node is exposed from there on: what is hidden of it is a part of that jump.
    """

    name: str
    at: Callable[[float], float]
    chance: float
    jumps: bool = False
    is_measured: bool = False


def _curves(network: MeasuredNetwork | None) -> list[Curve]:
    """Return the hypotheses about the allreduce. Their chances add up to 1.

    The numbers are the nodes at which a ring's latency is as long as its transfer.
    """
    share = 1.0 if network is None else 1 - NETWORK_TRUSTED

    def ring(knee: float, nodes: float) -> float:
        return 1 - 1 / nodes + (nodes - 1) / knee

    def jump(knee: float, nodes: float) -> float:
        return 1 + (nodes - 1) / knee if nodes > 1 else 0.0

    growing: list[tuple[str, Callable[[float], float]]] = [
        ("ring", functools.partial(ring, knee)) for knee in (math.inf, 32.0, 4.0)
    ]
    growing += [("latency, ring", lambda nodes: nodes - 1), ("latency, tree", math.log2)]
    jumping = [
        ("tree, or ring of GPUs", functools.partial(jump, knee))
        for knee in (math.inf, 256.0, 32.0, 4.0)
    ]
    found = [Curve(name, at, share / 2 / len(growing)) for name, at in growing]
    found += [Curve(name, at, share / 2 / len(jumping), jumps=True) for name, at in jumping]
    if network is not None:
        for name, at in (("ring", network.ring_s), ("tree", network.tree_s)):
            found.append(Curve(f"measured {name}", at, NETWORK_TRUSTED / 2, is_measured=True))
    return found


@dataclass(frozen=True)
class Term:
    """A term that is fitted: its `unit` for GPUs and GPUs of a node is multiplied with seconds.

    The prior of these seconds is normal, with `expected` and `deviation`, in seconds.
    """

    name: str
    unit: Callable[[int, int], float]
    deviation: float
    expected: float = 0.0


@dataclass(frozen=True)
class Hidden:
    """An allreduce that no measured size exposes, of `seconds` a unit; `hides` units are hidden.

    `chance` is its probability, if none is exposed up to there.
    """

    curve: Curve
    hides: float
    seconds: float
    chance: float

    def exposed_s(self, nodes: int) -> float:
        """Return what is exposed of it on that many nodes."""
        return self.seconds * max(0.0, self.curve.at(nodes) - self.hides)


@dataclass(frozen=True)
class Fit:
    """One hypothesis, fitted. `exposes`: with it, the measured sizes expose some allreduce.

    `weight` is its probability within a model, and a logarithm before it is in one.
    """

    terms: tuple[Term, ...]
    regression: Regression
    weight: float
    exposes: bool


@dataclass(frozen=True)
class Prediction:
    """The predicted seconds of a step on `gpus` GPUs.

    The mean of as many runs of that size as of the measured ones lies from `low_s` to `high_s` with
    95 % certainty; both are None if too few sizes were measured, and never below 0. `percent` is
    the distance of the farther one from `step_s`. `far`: the size is beyond FARTHEST, and the
    prediction is a guess.
    """

    gpus: int
    step_s: float
    low_s: float | None
    high_s: float | None
    percent: float | None
    far: bool


@dataclass(frozen=True)
class Reading:
    """How long reading the images of a step takes, fitted to `waiting` sizes that wait for it.

    Each node reads at a speed of its own, or all of them at one that is `shared`: the unit of the
    regression is then a full node's images.
    """

    shared: bool
    regression: Regression
    waiting: int

    @property
    def full_node_s(self) -> float:
        """The seconds in which the images of a full node's step are read."""
        return self.regression.coefficients[0]

    def seconds(self, gpus: int, per_node: int) -> tuple[float, float]:
        """Return the seconds of a size, and half of the width of their interval."""
        step_s, lever = self.regression.at([_read(gpus, per_node, self.shared)])
        scale = self.regression.noise * math.sqrt(step_s**2 + lever)
        return step_s, t_quantile(NOISE_COUNTS + self.waiting) * scale


def _read(gpus: int, per_node: int, shared: bool) -> float:
    """Return how many full nodes' images a size reads from one place."""
    return (gpus if shared else min(gpus, per_node)) / per_node


@dataclass(frozen=True)
class Model:
    """The hypotheses that explain the measurements, as `fits`.

    What may be exposed beyond the measured sizes, `hidden`, is added to fits that expose nothing.
    `measured` are the seconds of a step by size, `fitted` the sizes that determine the fits: of a
    model of real data those of synthetic data. `reading` is None if no size waits for it.
    """

    per_node: int
    fits: tuple[Fit, ...]
    hidden: tuple[Hidden, ...]
    measured: Mapping[int, float]
    fitted: tuple[int, ...]
    network: MeasuredNetwork | None = None
    reading: Reading | None = None
    # The model of real data has the same bounds as that of synthetic data, and takes them from it.
    _known_bounds: dict[int, tuple[float, float, float]] = field(default_factory=dict)

    @property
    def seconds(self) -> dict[str, float]:
        """The likeliest hypothesis: seconds by term, to be multiplied with the term's units."""
        best = max(self.fits, key=lambda fit: fit.weight)
        return dict(zip((term.name for term in best.terms), best.regression.coefficients))

    @property
    def exposed(self) -> float:
        """The probability that the largest measured size exposes some of the allreduce."""
        return sum(fit.weight for fit in self.fits if fit.exposes)

    def step_s(self, gpus: int) -> float:
        """Return the seconds of a step on that many GPUs: the median over all hypotheses."""
        reading_s = self.reading.seconds(gpus, self.per_node)[0] if self.reading else 0.0
        return max(self._bounds(gpus)[1], reading_s)

    @functools.cached_property
    def residuals(self) -> dict[int, float]:
        """The model's relative error at each measured size."""
        return {gpus: self.step_s(gpus) / step_s - 1 for gpus, step_s in self.measured.items()}

    @functools.cached_property
    def misfits(self) -> tuple[int, ...]:
        """The measured sizes that the model does not explain: it predicts nothing if there are any.

        They lie outside their own interval, or that interval includes a step of no time. A speed
        of reading must explain them within the noise of synthetic data: one that is fitted to
        sizes that read at different speeds has an interval so wide that it holds them all.
        """
        bounds = {gpus: self.interval(gpus, self._noise_band) for gpus in self.measured}
        return tuple(
            gpus
            for gpus, (low, high) in sorted(bounds.items())
            if not 0 < low <= self.measured[gpus] <= high
        )

    def with_reading(self, steps_s: Mapping[int, float], waiting: Collection[int]) -> Model:
        """Return the model of real data, of which `steps_s` were measured; `self` is of synthetic.

        The sizes that are `waiting` for reading show its speed: each node's own, if all sizes
        fit that, else that of a storage that the nodes share. Its misfits are those of the
        former if neither explains what was measured.
        """
        own, shared = (self._reading(steps_s, waiting, shared) for shared in (False, True))
        return shared if own.misfits and shared.reading and not shared.misfits else own

    def _reading(
        self, steps_s: Mapping[int, float], waiting: Collection[int], shared: bool
    ) -> Model:
        """Return the model with the reading that explains most, by the least squared errors."""

        def units(gpus: int) -> float:
            return _read(gpus, self.per_node, shared)

        unread = replace(self, measured=steps_s, reading=None)
        found = []
        # Whatever the speed is, those that wait are the ones that compute least for what they read.
        order = sorted(waiting, key=lambda gpus: self.step_s(gpus) / units(gpus))
        for several in range(1, len(order) + 1):
            sizes = order[:several]
            if shared and len({_nodes(gpus, self.per_node) for gpus in sizes}) < 2:
                continue  # one size would be explained as well by one node that reads slowly
            column = [units(gpus) / steps_s[gpus] for gpus in sizes]
            prior = (0.0, COMPUTE / NOISE * max(steps_s.values()) / min(map(units, sizes)))
            fitted = regression([column], [prior], NOISE, NOISE_COUNTS)
            found.append(replace(unread, reading=Reading(shared, fitted, several)))
        squares = [sum(math.log1p(off) ** 2 for off in one.residuals.values()) for one in found]
        return found[squares.index(min(squares))] if found else unread

    def predict(self, gpus: int) -> Prediction | None:
        """Predict the step of a size. Return None for several nodes if only one was measured.

        Nothing is known of the network then, unless the network benchmark measured it; its line
        rate is no substitute (arXiv 2006.10103). Return None, too, if there are misfits.
        """
        largest = max(self.measured)
        if self.misfits or (gpus > self.per_node >= largest and self.network is None):
            return None
        step_s, far = self.step_s(gpus), gpus > FARTHEST * largest
        if min(len(self.fitted), len(self.measured)) < FEWEST_SIZES:
            return Prediction(gpus, step_s, None, None, None, far)
        low, high = self.interval(gpus)
        percent = 100 * max(high / step_s - 1, 1 - low / step_s)
        return Prediction(gpus, step_s, low, high, percent, far)

    def interval(self, gpus: int, reading_within: float = math.inf) -> tuple[float, float]:
        """Return the ends of the interval of a size, of any number of measured sizes.

        Those of reading are at most the part `reading_within` off.
        """
        low, _, high = self._bounds(gpus)
        if self.reading:
            wait, half = self.reading.seconds(gpus, self.per_node)
            half = min(half, wait * reading_within)
            low, wait = max(low, wait - half), wait + half
            high = max(high, wait) * (1 + (min(high, wait) / max(high, wait)) ** BALANCE) ** (
                1 / BALANCE
            )
        return max(0.0, low), high

    @property
    def _noise_band(self) -> float:
        return t_quantile(self._freedom) * min(fit.regression.noise for fit in self.fits)

    @property
    def _freedom(self) -> float:
        return NOISE_COUNTS + len(self.fitted)

    def _bounds(self, gpus: int) -> tuple[float, float, float]:
        """Return the lower end, the median and the upper end, without reading."""
        if gpus not in self._known_bounds:
            shares = (1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2
            low, middle, high = mixture_quantiles(self._parts(gpus), self._freedom, shares)
            self._known_bounds[gpus] = low, middle, high
        return self._known_bounds[gpus]

    def _computed(self, gpus: int) -> list[Part]:
        """Return the weight of each hypothesis and its t distribution of the seconds of a size."""
        exposed = self._exposed_beyond(_nodes(gpus, self.per_node))
        parts = []
        for one in self.fits:
            step_s, lever = one.regression.at([t.unit(gpus, self.per_node) for t in one.terms])
            for more, chance in [(0.0, 1.0)] if one.exposes else exposed:
                scale = one.regression.noise * math.sqrt((step_s + more) ** 2 + lever)
                parts.append((one.weight * chance, step_s + more, scale))
        return parts

    def _exposed_beyond(self, nodes: int) -> list[tuple[float, float]]:
        """Return what may be exposed, if nothing is up to the measured sizes: seconds, chances."""
        least = self.fits[0].regression.coefficients[0]
        alike: dict[int, float] = {}
        for one in self.hidden:
            # To 0.2 % of a step: a few tens instead of hundreds.
            value = round(500 * one.exposed_s(nodes) / least)
            alike[value] = alike.get(value, 0.0) + one.chance
        return [(value * least / 500, chance) for value, chance in alike.items()]

    def _parts(self, gpus: int) -> list[Part]:
        parts = self._computed(gpus)
        half = self.per_node / 2
        if min(gpus, self.per_node) <= half or max(self.fitted) > half or self.per_node == 1:
            return parts
        # More than half of a node, of which at most half was measured: the way from one half to
        # the other (a second socket) may be slow.
        slower = [1.0, *(1 + SECOND_HALF_BY * value for value in _half_normal())]
        chances = [1 - SECOND_HALF, *[SECOND_HALF / STRATA] * STRATA]
        return [
            (weight * chance, step_s * by, scale * by)
            for chance, by in zip(chances, slower)
            for weight, step_s, scale in parts
        ]


def fit(
    steps_s: Mapping[int, float], per_node: int, network: MeasuredNetwork | None = None
) -> Model | None:
    """Fit the model to a table of GPUs -> seconds of a step. Return None for fewer than two sizes.

    `network` is what the network benchmark measured.
    """
    # A report needs the same fit several times.
    return _fit(tuple(steps_s.items()), per_node, network) if len(steps_s) > 1 else None


@functools.lru_cache(maxsize=16)
def _fit(
    sizes: tuple[tuple[int, float], ...], per_node: int, network: MeasuredNetwork | None
) -> Model:
    steps_s = dict(sizes)
    curves = _curves(network)
    largest = max(_nodes(n, per_node) for n in steps_s)
    fits = _likely(_fits(steps_s, per_node, curves))
    hidden = _beyond(curves, largest, min(steps_s.values()))
    return Model(per_node, fits, hidden, steps_s, tuple(steps_s), network)


def _fits(steps_s: Mapping[int, float], per_node: int, curves: Sequence[Curve]) -> list[Fit]:
    """Fit every combination of terms that has no negative seconds. Their weights are logarithms."""
    least = min(steps_s.values())
    nodes = sorted({_nodes(n, per_node) for n in steps_s})
    choices = itertools.product(
        _node_terms(steps_s, per_node, least),
        _slow_nodes([n for n in nodes if n > 1], least),
        [(0.5, ()), (0.5, (Term("straggler", lambda n, g: slowest_of(n), STRAGGLER * least),))],
        _exposures(curves, nodes[-1], least),
    )
    compute = Term("compute", lambda n, g: 1.0, COMPUTE * least)
    columns: dict[Term, list[float]] = {}
    fits = []
    for choice in choices:
        terms = (compute, *(term for _, some in choice for term in some))
        for term in terms:
            if term not in columns:
                columns[term] = [term.unit(n, per_node) / t for n, t in steps_s.items()]
        # The priors are relative to the noise, as the conjugate prior wants it.
        priors = [(term.expected, term.deviation / NOISE) for term in terms]
        found = regression([columns[term] for term in terms], priors, NOISE, NOISE_COUNTS)
        if min(found.coefficients) >= 0:
            weight = found.log_likelihood + sum(math.log(chance) for chance, _ in choice)
            fits.append(Fit(terms, found, weight, exposes=bool(choice[-1][1])))
    return fits


Choice = tuple[float, Sequence[Term]]  # a chance, and the terms


def _node_terms(sizes: Collection[int], per_node: int, least: float) -> list[Choice]:
    """Return the hypotheses about the GPUs of a node; only one if all sizes have as many."""
    if len({min(n, per_node) for n in sizes}) == 1:
        return [(1.0, ())]

    def on_node(n: int, g: int) -> int:
        return min(n, g)

    ring = Term("ring in a node", lambda n, g: 1 - 1 / on_node(n, g), 2 * NODE * least)
    bus = Term("shared in a node", lambda n, g: (on_node(n, g) - 1) / max(g - 1, 1), NODE * least)
    half = Term("second half of a node", lambda n, g: float(2 * on_node(n, g) > g), NODE * least)
    return [(0.4, ()), (0.2, (ring,)), (0.15, (bus,)), (0.15, (half,)), (0.1, (bus, half))]


def _slow_nodes(several: Sequence[int], least: float) -> list[Choice]:
    """Return the hypotheses about a slow node: none, or in each of the sizes but not before."""
    if not several:
        return [(1.0, ())]
    none: Choice = (1 - SLOW_CHANCE, ())
    return [none] + [
        (
            SLOW_CHANCE / len(several),
            (
                Term(
                    f"slow node, from {first} on",
                    lambda n, g, first=first: float(_nodes(n, g) >= first),  # type: ignore[misc]
                    SLOW * least,
                ),
            ),
        )
        for first in several
    ]


def _exposures(curves: Sequence[Curve], largest: int, least: float) -> list[Choice]:
    """Return the hypotheses about what is exposed, up to `largest` nodes.

    The chance that all is hidden on N nodes is 1/N: if it is on N, it is on 2N by even odds.
    """
    found: list[Choice] = [(1 / largest, ())]
    for curve in curves if largest > 1 else ():
        if curve.jumps:
            chance = curve.chance * (1 - 1 / largest)
            found.append((chance, (_exposed(curve, 1.0, ALL_EXPOSED * least),)))
            continue
        first = 1.0
        while first < largest * (1 - 1e-9):
            following = min(first * 2 ** (1 / POSITIONS), largest)
            hides = curve.at(first)
            deviation = ALL_EXPOSED if not hides else OVERLAP / hides
            chance = curve.chance * (1 / first - 1 / following)
            if curve.is_measured:
                chance *= _hides_so_much(hides, least)
                deviation = NETWORK_OFF / least
            found.append((chance, (_exposed(curve, first, deviation * least),)))
            first = following
    return found


def _exposed(curve: Curve, first: float, deviation: float) -> Term:
    """Return the term of what is exposed of a curve from `first` nodes on."""
    hidden = curve.at(first)
    name = f"exposed {curve.name}" + (f", from {first:.1f} nodes on" if first > 1 else "")
    return Term(
        name,
        lambda n, g: max(0.0, curve.at(_nodes(n, g)) - hidden),
        deviation,
        expected=float(curve.is_measured),
    )


def _hides_so_much(hidden_s: float, least: float) -> float:
    """Return the density of the prior of the overlap, relative to that of no overlap."""
    return math.exp(-((hidden_s / (OVERLAP * least)) ** 2) / 2)


def _beyond(curves: Sequence[Curve], largest: int, least: float) -> tuple[Hidden, ...]:
    """Return what may be exposed beyond `largest` nodes, if nothing is up to there.

    Only the priors say what hides then: for each curve, some equally likely values of the nodes
    from which on it is exposed, and of the overlap or, of a measured network, its error.
    """
    found = []
    growing = [curve for curve in curves if not curve.jumps]
    for curve, stratum in itertools.product(growing, range(STRATA)):
        hides = curve.at(largest * STRATA / (stratum + 0.5))
        chance = curve.chance
        seconds = [OVERLAP * least * value / hides for value in _half_normal()]
        if curve.is_measured:
            chance *= _hides_so_much(hides, least)
            values = ((one + 0.5) / STRATA for one in range(STRATA))  # equally likely ones
            seconds = [math.exp(NETWORK_OFF * _NORMAL.inv_cdf(value)) for value in values]
        found += [Hidden(curve, hides, each, max(chance, 1e-12)) for each in seconds]
    total = sum(one.chance for one in found)
    return tuple(replace(one, chance=one.chance / total) for one in found)


def _half_normal() -> list[float]:
    """Return equally likely values of the absolute value of a standard normal distribution."""
    return [_NORMAL.inv_cdf(0.5 + (stratum + 0.5) / STRATA / 2) for stratum in range(STRATA)]


def _likely(fits: Sequence[Fit]) -> tuple[Fit, ...]:
    """Return the likely ones, the likeliest first, with probabilities instead of logarithms."""
    best = max(one.weight for one in fits)
    kept = [one for one in fits if one.weight > best - LEAST_LIKELY]
    kept.sort(key=lambda one: -one.weight)
    weights = [math.exp(one.weight - best) for one in kept]
    total = sum(weights)
    return tuple(replace(fit, weight=one / total) for fit, one in zip(kept, weights))


def _nodes(gpus: int, per_node: int) -> int:
    return -(-gpus // per_node)
