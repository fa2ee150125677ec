"""`scripts/bench launch`: a training by `clusterctl train`, and by the same line typed by hand.

Both run in turn on two hosts of the local EC2: the job that clusterctl starts, detached and
followed, and its exact mpirun line over ssh. The seconds of a step, once training runs, and of the
whole command are compared. Two successive runs make a pair, since their ratio depends less on the
machine's changing load than each of them. The interval is Student's, for the mean of the ratios'
logarithms.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench_lab import cluster, cores, quiet, running_lab

from clusterctl.bench.statistics import mean

USAGE = "usage: scripts/bench launch [--quick] [PAIRS]"
ALLOWED_SHARE = 0.01
RANKS = 2
BATCH = 8
ROW = re.compile(r"^ *(\d+) +\d+\.\d +(\d+\.\d) ", re.MULTILINE)


@dataclass(frozen=True)
class Scale:
    """Number of pairs, and the trainer's flags."""

    pairs: int
    flags: tuple[str, ...]


FULL = Scale(5, ("--num_batches", "160", "--display_every", "10"))
QUICK = Scale(
    2, ("-m", "resnet18", "--image_size", "32", "--num_batches", "100", "--display_every", "10")
)


@dataclass(frozen=True)
class Run:
    """Seconds of one step, the first steps excluded, and of the whole command."""

    step_s: float
    wall_s: float


def bench_launch(words: list[str]) -> None:
    """Run the pairs, and print the result."""
    scale = QUICK if words[:1] == ["--quick"] else FULL
    numbers = words[1:] if scale is QUICK else words
    if len(numbers) > 1 or not all(one.isdigit() and int(one) for one in numbers):
        sys.exit(USAGE)
    pairs = int(numbers[0]) if numbers else scale.pairs
    flags = (*scale.flags, "-b", str(BATCH))
    print(f"{cores()} cores; {RANKS} hosts of a rank each; {pairs} pairs, by turns")
    print(f"  {shlex.join(flags)}")
    with tempfile.TemporaryDirectory() as folder, running_lab(Path(folder)), cluster(RANKS) as name:
        ours = ["clusterctl", "train", name, str(RANKS), "--synthetic", "--", *flags]
        plan = json.loads(quiet(*ours[:4], "--synthetic", "--dry-run", "--json", "--", *flags))
        typed = f"cd {shlex.quote(plan['workdir'])} && {plan['line']}"
        config = Path(folder) / name / "ssh_config"
        hand = ["ssh", "-F", str(config), f"{name}-0", typed]
        runs: dict[str, list[Run]] = {"typed by hand": [], "clusterctl train": []}
        for number in range(pairs):
            pair = list(zip(runs, (hand, ours)))
            # The second run finds warm caches. Each of the two is second in half of the pairs.
            for title, argv in pair if number % 2 == 0 else reversed(pair):
                runs[title].append(measured(argv))
            shown = ", ".join(f"{title} {each[-1].step_s:.4f} s" for title, each in runs.items())
            print(f"  pair {number + 1}: a step of {shown}", flush=True)
    report(runs)


def measured(argv: list[str]) -> Run:
    began = time.monotonic()
    out = quiet(*argv)
    return Run(step_seconds(out), time.monotonic() - began)


def step_seconds(out: str) -> float:
    """Return the mean seconds of a step over all rows of the log but the first two.

    Steps 0 and 1 include the start.
    """
    rows = [(int(step), float(speed)) for step, speed in ROW.findall(out)]
    seconds = steps = 0.0
    for (before, _), (step, speed) in zip(rows[1:], rows[2:]):
        steps += step - before
        seconds += (step - before) * BATCH * RANKS / speed
    if not steps:
        sys.exit(f"error: no rows to measure in\n{out}")
    return seconds / steps


def report(runs: dict[str, list[Run]]) -> None:
    """Print both ways, their ratio with its interval, and whether the goal is met."""
    print("\n                     a step (of all rounds)        the whole command")
    for title, each in runs.items():
        steps, walls = [run.step_s for run in each], [run.wall_s for run in each]
        spread = f"{min(steps):.4f}-{max(steps):.4f}"
        print(
            f"  {title:18} {statistics.median(steps):.4f} s ({spread})"
            f"  {statistics.median(walls):7.2f} s ({min(walls):.2f}-{max(walls):.2f})"
        )
    hand, ours = runs.values()
    logs = mean([math.log(b.step_s / a.step_s) for a, b in zip(hand, ours)])
    more = math.expm1(logs.value)
    start = statistics.median(b.wall_s - a.wall_s for a, b in zip(hand, ours))
    if logs.low is None or logs.high is None:
        told = "one pair shows nothing"
    else:
        low, high = math.expm1(logs.low), math.expm1(logs.high)
        verdict = "met" if high <= ALLOWED_SHARE else "not shown"
        if low > ALLOWED_SHARE:
            verdict = "missed"
        told = f"{low:+.2%} to {high:+.2%} (95 %); asked for at most +1 %: {verdict}"
    print(f"  a step takes {more:+.2%}, {told}")
    print(f"  once for each job, whatever its length: {start:+.2f} s")
