"""The scaling model: the time of a step on n GPUs, fitted to the sizes that were measured.

A step of n GPUs on N nodes with g GPUs each, m bytes of gradients, at weak scaling:

    step(n)   = max(input(n), compute + exposed(n) + straggler(n))
    input(n)  = g * batch / rate                 rate: images a second that one node can read
    exposed   = max(0, allreduce(n) - overlap)   overlap: what hides behind the backward pass
    straggler = sigma * E[max of n normals]      all wait for the slowest; E by Blom, Statistical
                                                 Estimates, 1958: inverse normal of
                                                 (n - 3/8) / (n + 1/4)

and the allreduce, in Hockney's t = alpha + m/beta (Parallel Computing 20, 1994):

    ring          2(n-1) alpha + 2(n-1)/n m/beta          Patarasuk & Yuan, JPDC 69, 2009
    tree          2 log2(n) alpha + 2 m/beta              NCCL's double tree, after Sanders, Speck
                                                          & Traeff, Parallel Computing 35, 2009
    hierarchical  2(g-1)/g m/local + ring or tree of N    Horovod, HIERARCHICAL_ALLREDUCE

The formulas are linear in 1/beta, 1/local, alpha and sigma, so least squares finds these. As few of
them are fitted as explain the measurements, none below zero. A constant overlap is part of the
compute term. One alpha and one beta do not fit all message sizes; here there is only one size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

from clusterctl.bench.statistics import t_quantile

# A prediction beyond this many times the largest measured size is called a guess.
FARTHEST = 2.0


def slowest_of(ranks: int) -> float:
    """Return the expected maximum of that many standard normal values (Blom 1958, see above)."""
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) if ranks > 1 else 0.0


Term = Callable[[int, int, int], float]  # of GPUs, nodes, GPUs in a node
# The terms that may be fitted. Each returns the factor by which the fitted seconds are multiplied.
# If two terms explain the measurements equally well, the first is preferred.
TERMS: Mapping[str, Term] = {
    "compute": lambda gpus, nodes, local: 1.0,
    "network bandwidth, ring": lambda gpus, nodes, local: 2 * (nodes - 1) / nodes,
    "straggler": lambda gpus, nodes, local: slowest_of(gpus),
    "network bandwidth, tree": lambda gpus, nodes, local: 2.0 * (nodes > 1),
    "network latency, tree": lambda gpus, nodes, local: 2 * math.log2(nodes),
    "network latency, ring": lambda gpus, nodes, local: 2.0 * (nodes - 1),
    "bandwidth within a node": lambda gpus, nodes, local: 2 * (local - 1) / local,
}


@dataclass(frozen=True)
class Prediction:
    """The predicted seconds of a step on `gpus` GPUs.

    `percent` is half of the interval in which a new run of that size lies with 95 % certainty,
    widened by the predictions of rival terms; None if too few sizes were measured. `far`: the size
    is beyond FARTHEST, and the prediction is a guess.
    """

    gpus: int
    step_s: float
    percent: float | None
    far: bool


@dataclass(frozen=True)
class Model:
    """A fitted model. `seconds` are by term, to be multiplied with the factors of TERMS.

    `per_node` is the number of GPUs of a node. `residuals` are relative errors by size. `freedom`
    is the number of sizes minus that of the parameters fitted to them. `input_s` is how long a full
    node takes to read a step's images; 0 if unknown. `inverse` is that of the normal equations'
    matrix. `rivals` are models with other terms that explain the sizes equally well.
    """

    per_node: int
    seconds: Mapping[str, float]
    residuals: Mapping[int, float]
    freedom: int
    input_s: float
    inverse: tuple[tuple[float, ...], ...]
    rivals: tuple[Model, ...] = ()

    @property
    def squares(self) -> float:
        """The sum of the squared residuals."""
        return sum(error * error for error in self.residuals.values())

    @property
    def spread(self) -> float | None:
        """The residuals' standard deviation; None without a degree of freedom: the fit is exact."""
        return math.sqrt(self.squares / self.freedom) if self.freedom > 0 else None

    @property
    def unexplained(self) -> float:
        """The measure by which fits are compared: smaller is better."""
        return math.sqrt(self.squares / max(self.freedom, 1))

    def step_s(self, gpus: int) -> float:
        """Return the seconds of a step on that many GPUs."""
        units = _units(gpus, self.per_node, self.seconds)
        computed = sum(u * s for u, s in zip(units, self.seconds.values()))
        return max(computed, _input_share(gpus, self.per_node) * self.input_s)

    def reading(self, input_s: float, steps_s: Mapping[int, float]) -> Model:
        """Return this model for real data, with residuals for the measured `steps_s`.

        A full node reads the images of a step in `input_s` seconds.
        """
        freedom = len(steps_s) - bool(input_s)
        rivals = tuple(replace(one, input_s=input_s) for one in self.rivals)
        read = replace(self, input_s=input_s, freedom=freedom, rivals=rivals)
        return replace(read, residuals=read.off(steps_s))

    def off(self, steps_s: Mapping[int, float]) -> dict[int, float]:
        """Return the model's relative error at each size of a table of GPUs -> seconds."""
        return {gpus: self.step_s(gpus) / step_s - 1 for gpus, step_s in steps_s.items()}

    def predict(self, gpus: int) -> Prediction | None:
        """Predict the step of a size. Return None for several nodes if only one was measured.

        Nothing is known of the network then, and its line rate is no substitute (arXiv 2006.10103).
        """
        largest = max(self.residuals)
        if gpus > self.per_node >= largest:
            return None
        step_s, percent = self.step_s(gpus), None
        if self.spread is not None:
            # The variance of a prediction by least squares: 1 + row x inverse x row.
            row = [unit / step_s for unit in _units(gpus, self.per_node, self.seconds)]
            lever = sum(a * b * v for a, line in zip(row, self.inverse) for b, v in zip(row, line))
            apart = max((abs(one.step_s(gpus) / step_s - 1) for one in self.rivals), default=0.0)
            noise = t_quantile(self.freedom) * self.spread * math.sqrt(1 + lever)
            percent = 100 * (noise + apart)
        return Prediction(gpus, step_s, percent, gpus > FARTHEST * largest)


def fit(steps_s: Mapping[int, float], per_node: int, input_s: float = 0.0) -> Model | None:
    """Fit the model to a table of GPUs -> seconds of a step. Return None for fewer than two sizes.

    `input_s` is how long a full node takes to read a step's images; 0 if unknown. Sizes that are
    limited by reading are left out, since they tell nothing about the other terms. The sum of the
    squared relative errors is minimized, with up to three terms for five or more sizes, and up to
    two terms for fewer.
    """
    bound = {n for n, t in steps_s.items() if t <= 1.05 * input_s * _input_share(n, per_node)}
    free = {n: t for n, t in steps_s.items() if n not in bound}
    if len(free) < 2:
        return None
    most = 3 if len(free) >= 5 else 2
    others = [name for name in TERMS if name != "compute"]
    choices = [
        ("compute", *more) for size in range(most) for more in itertools.combinations(others, size)
    ]
    found = [m for names in choices if (m := _solve(free, steps_s, per_node, names, input_s))]
    # If two explain the sizes equally well, take the first: it has fewer terms, or likelier ones.
    best = min(found, key=lambda model: round(model.unexplained, 6), default=None)
    if best is None or best.freedom < 1:
        return best
    # The choice of terms is uncertain, too: a model that an F test of one term cannot tell from the
    # best one may be the true one. Without these rivals, where latency counts, only 9 to 52 % of
    # new runs were within the 95 % interval.
    limit = best.squares * (1 + t_quantile(best.freedom) ** 2 / best.freedom)
    return replace(best, rivals=tuple(model for model in found if model.squares <= limit))


def _solve(
    free: Mapping[int, float],
    steps_s: Mapping[int, float],
    per_node: int,
    names: Sequence[str],
    input_s: float,
) -> Model | None:
    """Solve the normal equations for these terms and the sizes `free`, weighted by 1 / seconds.

    Return None if a result is negative, or if the sizes do not determine all terms.
    """
    rows = [[u / t for u in _units(n, per_node, names)] for n, t in free.items()]
    size = len(names)
    if len(rows) < size:
        return None
    squares = [[sum(r[i] * r[j] for r in rows) for j in range(size)] for i in range(size)]
    inverse = _inverted(squares)
    if inverse is None:
        return None
    sums = [sum(r[i] for r in rows) for i in range(size)]
    seconds = [sum(v * s for v, s in zip(line, sums)) for line in inverse]
    if min(seconds) < 0:
        return None
    fitted, lines = dict(zip(names, seconds)), tuple(map(tuple, inverse))
    model = Model(per_node, fitted, {}, len(steps_s) - size - bool(input_s), input_s, lines)
    return replace(model, residuals=model.off(steps_s))


def _units(gpus: int, per_node: int, names: Sequence[str] | Mapping[str, float]) -> list[float]:
    nodes, local = -(-gpus // per_node), min(gpus, per_node)
    return [TERMS[name](gpus, nodes, local) for name in names]


def _input_share(gpus: int, per_node: int) -> float:
    """Return the part of a full node's images that a node reads in a step."""
    return min(gpus, per_node) / per_node


def _inverted(matrix: Sequence[Sequence[float]]) -> list[list[float]] | None:
    """Invert a matrix by Gauss-Jordan elimination with pivots; return None if it is singular."""
    size = len(matrix)
    rows = [[*line, *(float(i == j) for j in range(size))] for i, line in enumerate(matrix)]
    scale = max(abs(v) for line in matrix for v in line)
    for i in range(size):
        pivot = max(range(i, size), key=lambda row: abs(rows[row][i]))
        if abs(rows[pivot][i]) < 1e-10 * scale:
            return None
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [value / rows[i][i] for value in rows[i]]
        for j in range(size):
            if j != i:
                rows[j] = [a - rows[j][i] * b for a, b in zip(rows[j], rows[i])]
    return [line[size:] for line in rows]
