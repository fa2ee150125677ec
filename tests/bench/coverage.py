"""How often the scaling model's intervals hold: on simulated clusters, and on public series.

`python -m tests.bench.coverage` prints both tables of docs/benchmarks.md. It takes some minutes.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from clusterctl.bench.model import Model, Prediction
from clusterctl.bench.plan import REAL, SYNTHETIC, BenchSettings
from clusterctl.bench.results import AboutCluster, Benchmark, MeasuredRun, model_of
from tests.bench.machines import Machine

# What is measured: sizes, and GPUs of a node. The size to predict is twice the largest one.
MEASURED = (
    ((1, 2, 4, 8, 16, 32), 8),
    ((1, 4, 8, 16, 32, 64), 8),
    ((1, 8, 16, 32), 8),
    ((1, 8, 16), 8),
    ((8, 16, 32), 8),
    ((1, 2, 4, 8, 16), 4),
    ((1, 2, 4, 8), 1),
)
KINDS = {
    "nothing hides": (0.0, 0.0),
    "a part hides; exposed from 2 nodes on": (0.2, 0.95),
    "exposed from a measured size on": (1.0, 2.0),
    "exposed at twice the largest size only": (2.0, 3.0),
    "hidden there, too": (3.2, 3.2),
    "exposed from anywhere on, hinge rounded": (1.0, 3.0),
    "a slow node from a measured size on": (0.0, 0.9),
    "input and compute near their balance": (0.0, 2.0),
    "input limits, each node reads alike": (0.0, 2.0),
    "input limits, the nodes share a storage": (0.0, 2.0),
    "input limits, one node reads slowly": (0.0, 2.0),
}
NOISES = (0.004, 0.015)  # of the mean of a size's runs
REPEATS = 3


def draw(rnd: random.Random, kind: str, per_node: int, largest: int) -> Machine:
    """Return a random machine of a kind; `largest` is the number of nodes that are measured.

    The ranges of KINDS are the overlap: 1 is the allreduce on two nodes, 2 on `largest`, 3 on twice
    as many. It is at most 60 % of the compute time: for more, the network is made faster.
    """
    compute_s = math.exp(rnd.uniform(math.log(0.06), math.log(0.5)))
    latency_s = math.exp(rnd.uniform(math.log(5e-6), math.log(2e-4))) * rnd.choice([1, 1, 4, 8])
    algorithm = rnd.choice(["ring of GPUs", "ring of nodes", "tree"])
    machine = Machine(
        per_node,
        compute_s,
        gradient_bytes=rnd.choice([51e6, 102e6, 178e6, 440e6, 550e6]),
        local_rate=100e9,
        network_rate=math.exp(rnd.uniform(math.log(1e9), math.log(40e9))),
        latency_s=latency_s,
        straggler_s=compute_s * rnd.choice([0, 0.003, 0.01]),
        hierarchical=algorithm == "ring of nodes",
        tree=algorithm == "tree",
    )
    at = [0.0, *(machine.allreduce_s(n * per_node) for n in (2, largest, 2 * largest)), 0.0]
    at[4] = 2 * at[3]
    where = rnd.uniform(*KINDS[kind])
    low = int(where)
    overlap_s = at[low] + (where - low) * (at[low + 1] - at[low])
    faster = min(1.0, 0.6 * rnd.uniform(0.3, 1) * compute_s / overlap_s) if overlap_s else 1.0
    machine = replace(
        machine,
        gradient_bytes=machine.gradient_bytes * faster,
        latency_s=latency_s * faster,
        overlap_s=overlap_s * faster,
        soft=rnd.choice([0.01, 0.03]) if "rounded" in kind else 0.0,
    )
    if "slow node" in kind:
        first, slower = rnd.randint(2, largest), rnd.uniform(0.02, 0.15)
        machine = replace(machine, slow_from=first, slower=slower)
    if "input" in kind:
        machine = replace(machine, soft=0.01, **_input(rnd, kind, machine, largest))
    return machine


def _input(rnd: random.Random, kind: str, machine: Machine, largest: int) -> dict[str, Any]:
    """Return the limits of reading of a kind; `largest` is the number of nodes measured."""
    longest_s = machine.step_s(2 * largest * machine.gpus_per_node)
    if "balance" in kind:
        return {"input_s": longest_s * rnd.uniform(0.85, 1.02)}
    if "share" in kind:
        # It limits the largest measured size, the second largest, or all.
        return {"shared_input_s": longest_s * rnd.uniform(1.1, 4.0) / largest}
    if "slowly" in kind:
        first, slower = rnd.randint(2, largest), rnd.uniform(0.05, 1.0)
        input_s = longest_s * rnd.uniform(0.85, 1.5)
        return {"input_s": input_s, "reads_slowly_from": first, "slower": slower}
    return {"input_s": longest_s * rnd.uniform(1.05, 2.0)}


@dataclass(frozen=True)
class Outcome:
    """A prediction, which is None if nothing was predicted, and the step of a run of that size."""

    said: Prediction | None
    step_s: float

    @property
    def is_known(self) -> bool:
        return self.said is not None and self.said.low_s is not None

    @property
    def holds(self) -> bool:
        return self.is_known and self.said.low_s <= self.step_s <= self.said.high_s

    @property
    def percent(self) -> tuple[float, float, float]:
        """The error, and the interval's lower and upper end, in percent of the prediction."""
        step_s = self.said.step_s
        return tuple(
            100 * (t / step_s - 1) for t in (self.step_s, self.said.low_s, self.said.high_s)
        )


# What a benchmark says of one kind of data.
ModelOf = Callable[[Benchmark, str], "Model | None"]


def benchmark_of(steps: dict[str, dict[int, list[float]]], per_node: int) -> Benchmark:
    """Return a benchmark with a run for each of these seconds, by kind of data and size."""
    runs = [
        MeasuredRun(gpus, kind, i + 1, ((1, gpus / t),), gpus / t, gpus, 1, 1, None, 1.0)
        for kind, sizes in steps.items()
        for gpus, repeats in sizes.items()
        for i, t in enumerate(repeats)
    ]
    data_dir = "~/data" if REAL in steps else ""
    settings = BenchSettings("demo", synthetic=SYNTHETIC in steps, data_dir=data_dir)
    return Benchmark("b", settings, 1, AboutCluster(per_node=per_node), tuple(runs))


def runs_of(
    machine: Machine, sizes: Sequence[int], noise: float, rnd: random.Random
) -> dict[int, list[float]]:
    """Return the seconds of the repeats of each size; `noise` is that of their mean."""
    each = noise * math.sqrt(REPEATS)
    return {n: [machine.step_s(n) * rnd.gauss(1, each) for _ in range(REPEATS)] for n in sizes}


def simulated(
    kind: str, sizes: Sequence[int], per_node: int, machines: int, said: ModelOf = model_of
) -> Iterator[Outcome]:
    """Yield the outcomes at twice the largest size, for some machines of a kind, noisy and less."""
    rnd = random.Random(f"{kind}{sizes}{per_node}")
    for _ in range(machines):
        machine = draw(rnd, kind, per_node, max(sizes) // per_node)
        for noise in NOISES:
            unread = replace(machine, input_s=0.0, shared_input_s=0.0)
            steps = {SYNTHETIC: runs_of(unread, sizes, noise, rnd)}
            if machine != unread:
                steps[REAL] = runs_of(machine, sizes, noise, rnd)
            model = said(benchmark_of(steps, per_node), list(steps)[-1])
            twice = 2 * max(sizes)
            run = machine.step_s(twice) * rnd.gauss(1, noise)
            yield Outcome(model and model.predict(twice), run)


def series() -> list[dict[str, Any]]:
    """Return the public series, each with its source."""
    path = Path(__file__).with_name("public_series.json")
    return list(json.loads(path.read_text())["series"])


def left_out(one: dict[str, Any], said: ModelOf = model_of) -> Iterator[tuple[str, Outcome]]:
    """Leave out each size of a public series but the smallest, and yield its outcome and where it
    is. Only series of four sizes or more have three left.
    """
    steps = {int(gpus): int(gpus) / speed for gpus, speed in one["speeds"].items()}
    largest, per_node = max(steps), one["per_node"]
    for gpus in sorted(steps)[1:] if len(steps) > 3 else ():
        known = {n: t for n, t in steps.items() if n != gpus}
        runs = {SYNTHETIC: {n: [t] for n, t in known.items()}}
        model = said(benchmark_of(runs, per_node), SYNTHETIC)
        several = sum(n > per_node for n in known)
        where = "in a node" if gpus <= per_node else f"{several} other sizes on several nodes"
        place = "the largest" if gpus == largest else "between two"
        yield f"{place}, {where}", Outcome(model and model.predict(gpus), steps[gpus])


def row(outcomes: Sequence[Outcome]) -> str:
    """Return how many hold of those that are known, and the medians of error and interval."""
    known = [one for one in outcomes if one.is_known]
    if not known:
        return f"0 of {len(outcomes)} known"
    errors, lows, highs = zip(*(one.percent for one in known))
    return (
        f"{sum(one.holds for one in known)} of {len(known)} hold "
        f"({100 * sum(one.holds for one in known) / len(known):.0f} %), "
        f"{len(outcomes) - len(known)} not known; error {median(map(abs, errors)):.1f} %, "
        f"interval {median(lows):+.1f} to {median(highs):+.1f} %"
    )


def main(machines: int = 15, said: ModelOf = model_of) -> None:
    """Print both tables."""
    print(f"{machines} machines x noise of {' and '.join(f'{n:.1%}' for n in NOISES)}")
    for kind in KINDS:
        found = {
            f"{','.join(map(str, sizes))} of {per_node}": list(
                simulated(kind, sizes, per_node, machines, said)
            )
            for sizes, per_node in MEASURED
        }
        print(f"{kind}: {row([one for some in found.values() for one in some])}")
        for measured, some in found.items():
            print(f"    {measured}: {row(some)}")
    places: dict[str, list[Outcome]] = {}
    for one in series():
        for place, outcome in left_out(one, said):
            places.setdefault(place, []).append(outcome)
    print("left out of public series")
    for place, some in sorted(places.items()):
        print(f"    {place}: {row(some)}")


if __name__ == "__main__":
    main()
