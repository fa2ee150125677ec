"""What the benchmarks of data and training share: the training environment, and its programs."""

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

# A peer's TensorFlow says nothing, and computes where ours does.
PEERS = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}


def training_env() -> Path:
    """The folder of the training environment; ends the program where there is none."""
    env = Path(os.environ.get("CLUSTERCTL_TRAINING_ENV", "/opt/clusterctl/training"))
    if not all((env / "bin" / name).exists() for name in ("python", "mpirun")):
        sys.exit(f"error: no training environment at {env}: run scripts/training-env")
    return env


def training_python() -> str:
    return str(training_env() / "bin" / "python")


def run(argv: Sequence[object], environ: Mapping[str, str] | None = None) -> str:
    """The standard output of a command, which has to succeed."""
    return quiet(*map(str, argv), environ=environ)


def told(argv: Sequence[object], environ: Mapping[str, str] | None = None) -> Any:
    """What a program prints as JSON in its last line."""
    return json.loads(run(argv, environ).splitlines()[-1])


def seconds_of(argv: Sequence[object]) -> float:
    """Seconds of the whole command."""
    began = time.monotonic()
    run(argv)
    return time.monotonic() - began


def report_rates(rates: Mapping[str, Sequence[float]]) -> None:
    """A row each, with its ratio to the first: medians of images a second."""
    base = statistics.median(next(iter(rates.values())))
    for title, found in rates.items():
        median = statistics.median(found)
        spread = f"{min(found):,.0f}-{max(found):,.0f}"
        print(f"  {title:38} {median:8,.0f} images/s ({spread}), {median / base:5.2f} x")
