"""Images/s of utils/tensorflow_image_resizer.py, beside one record per session call.

The other one is how the tutorial's resizer works, for all its thread flags: a TensorFlow graph
that reads, resizes and codes one record per call, with the threads of the tutorial's line. It gets
its loop timed alone; ours is timed whole, from outside, its start included.

    ./scripts/bench resize [--quick]
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
RESIZER = HERE.parents[1] / "utils" / "tensorflow_image_resizer.py"
THREADS = ("--num_intra_threads", "2", "--num_inter_threads", "2")  # the tutorial's


@dataclass(frozen=True)
class Scale:
    shards: int
    images_per_shard: int
    rounds: int


FULL = Scale(shards=8, images_per_shard=250, rounds=3)
QUICK = Scale(shards=4, images_per_shard=20, rounds=1)


def bench_resize(words: list[str]) -> None:
    if set(words) - {"--quick"}:
        sys.exit(f"error: resize takes --quick alone, not {' '.join(words)}")
    scale = QUICK if words else FULL
    python = training_python()
    with tempfile.TemporaryDirectory(prefix="bench-resize-") as name:
        folder = Path(name)
        source = folder / "imagenet"
        made = program(python, "make", source, scale.shards, scale.images_per_shard)
        images = scale.shards * scale.images_per_shard
        print(
            f"{os.cpu_count()} cores; {images:,} images, {made['bytes'] / images / 1e3:,.0f} kB and"
            f" {made['pixels'] / images / 1e3:,.0f} kpixels each, to a shorter side of 480;"
            f" median of {scale.rounds} rounds"
        )
        rates: dict[str, list[float]] = {}
        for round_number in range(scale.rounds):
            out = folder / f"out-{round_number}"
            one = program(python, "one_by_one", source, out / "one")
            rates.setdefault("one record per session call", []).append(one["images_per_s"])
            for processes in sorted({1, os.cpu_count() or 1}):
                whole_s = ours(python, source, out / str(processes), processes)
                title = f"ours, {processes} process{'es' if processes > 1 else ''}"
                rates.setdefault(title, []).append(images / whole_s)
    report(rates)


def training_python() -> str:
    env = Path(os.environ.get("CLUSTERCTL_TRAINING_ENV", "/opt/clusterctl/training"))
    if not (env / "bin" / "python").exists():
        sys.exit(f"error: no training environment at {env}: run scripts/training-env")
    return str(env / "bin" / "python")


def program(python: str, *argv: object) -> dict[str, float]:
    """What a part of bench_resize_peer.py prints."""
    command = [python, str(HERE / "bench_resize_peer.py"), *map(str, argv)]
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"error: {' '.join(command)}: {done.stderr}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def ours(python: str, source: Path, out: Path, processes: int) -> float:
    """Seconds of the whole command."""
    flags = ["-d", "imagenet", "-i", str(source), "-o", str(out), *THREADS]
    command = [python, str(RESIZER), *flags, "--num_preprocess_threads", str(processes)]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    took = time.monotonic() - began
    if done.returncode:
        sys.exit(f"error: {' '.join(command)}: {done.stderr}")
    return took


def report(rates: dict[str, list[float]]) -> None:
    base = statistics.median(next(iter(rates.values())))
    for name, values in rates.items():
        median = statistics.median(values)
        spread = f"{min(values):,.0f}-{max(values):,.0f}"
        print(f"  {name:28} {median:8,.0f} images/s ({spread}), {median / base:5.2f} x")
