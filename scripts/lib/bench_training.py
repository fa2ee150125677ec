"""Shared parts of the benchmarks of data and training: the environment and running its programs."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench_lab import quiet

# Environment of peers: TensorFlow prints nothing and computes on the CPU, as in our programs.
PEERS = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}


def training_env() -> Path:
    """Return the folder of the training environment. End the program if there is none."""
    env = Path(os.environ.get("CLUSTERCTL_TRAINING_ENV", "/opt/clusterctl/training"))
    if not all((env / "bin" / name).exists() for name in ("python", "mpirun")):
        sys.exit(f"error: no training environment at {env}: run scripts/training-env")
    return env


def training_python() -> str:
    return str(training_env() / "bin" / "python")


def run(argv: Sequence[object], environ: Mapping[str, str] | None = None) -> str:
    """Run a command and return its standard output. End the program if the command fails."""
    return quiet(*map(str, argv), environ=environ)


def told(argv: Sequence[object], environ: Mapping[str, str] | None = None) -> Any:
    """Run a program and return the JSON value in its last line of output."""
    return json.loads(run(argv, environ).splitlines()[-1])


def seconds_of(argv: Sequence[object]) -> float:
    """Return the seconds of the whole command."""
    began = time.monotonic()
    run(argv)
    return time.monotonic() - began


def report_rates(rates: Mapping[str, Sequence[float]]) -> None:
    """Print the median images/s of each way, and its ratio to the first one's."""
    base = statistics.median(next(iter(rates.values())))
    for title, found in rates.items():
        median = statistics.median(found)
        spread = f"{min(found):,.0f}-{max(found):,.0f}"
        print(f"  {title:38} {median:8,.0f} images/s ({spread}), {median / base:5.2f} x")
