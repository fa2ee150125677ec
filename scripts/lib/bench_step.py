"""`scripts/bench step`: the trainer's step and a bare Keras step, in turn in one process."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from bench_training import run, training_env

CHECKOUT = Path(__file__).parents[2]
EXAMPLES = CHECKOUT / "examples" / "horovod" / "tensorflow"
RACE = Path(__file__).with_name("step_race.py")
ALLOWED_SHARE = 0.03
USAGE = "usage: scripts/bench step [--quick]"


def bench_step(words: list[str]) -> None:
    if words not in ([], ["--quick"]):
        sys.exit(USAGE)
    rounds, steps = (2, 2) if words else (12, 8)
    env = training_env()
    print(f"ResNet-50, 64 pixels, 8 images per process; {rounds} rounds of {steps} steps each")
    for ranks in (1, 2):
        report(ranks, race(env, ranks, rounds, steps))


def race(env: Path, ranks: int, rounds: int, steps: int) -> dict[str, Any]:
    """Run step_race.py on so many ranks of this machine, and return what it measured."""
    command = [env / "bin" / "python", RACE, EXAMPLES, rounds, steps]
    mpirun = [env / "bin" / "mpirun", "-np", ranks, "-H", f"localhost:{ranks}"]
    settings = ["--bind-to", "none", "-x", "OMPI_MCA_mpi_yield_when_idle=1"]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    printed = run([*mpirun, *settings, *command], root)
    times: dict[str, Any] = json.JSONDecoder().raw_decode(printed.partition("TIMES ")[2])[0]
    return times


def report(ranks: int, times: dict[str, Any]) -> None:
    """Print a row for each, and how much longer the trainer's step takes (median of all rounds)."""
    print(f"\n{ranks} process{'es' * (ranks > 1)}: median seconds per step, images/s, first step")
    for name, seconds in times["seconds"].items():
        median = statistics.median(seconds)
        rate = times["images_per_step"] / median
        print(f"  {name:12} {median:8.4f} s {rate:8.1f} {times['first'][name]:8.1f} s")
    pairs = zip(times["seconds"]["trainer"], times["seconds"]["bare Keras"])
    more = statistics.median(ours / bare for ours, bare in pairs) - 1
    verdict = "met" if more <= ALLOWED_SHARE else "missed"
    print(f"  the trainer's step takes {more:+.1%}; asked for at most +3 %: {verdict}")
