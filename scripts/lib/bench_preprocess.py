"""Images/s of utils/preprocess_imagenet.py, and of the original's way with a single process.

The original decodes every image in one process, one image per session call, and writes it
unchanged. Of the original only the loop is timed, without TensorFlow's start; ours is timed as a
whole.

    ./scripts/bench preprocess [--quick]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench_training import PEERS, report_rates, seconds_of, told, training_python

HERE = Path(__file__).parent
PEER = HERE / "bench_preprocess_peer.py"
PREPROCESS = HERE.parents[1] / "utils" / "preprocess_imagenet.py"
SHARDS = 8
GOAL = 1.8  # multiple of the original's rate


@dataclass(frozen=True)
class Scale:
    """Number of images, and of rounds."""

    images: int
    rounds: int


FULL = Scale(images=4000, rounds=5)
QUICK = Scale(images=64, rounds=1)
ORIGINAL = "one image per session call, 1 process"


def bench_preprocess(words: list[str]) -> None:
    if set(words) - {"--quick"}:
        sys.exit(f"error: preprocess takes --quick alone, not {' '.join(words)}")
    scale = QUICK if words else FULL
    python = training_python()
    with tempfile.TemporaryDirectory(prefix="bench-preprocess-") as name:
        raw = Path(name) / "raw"
        size = told([python, PEER, "make", raw, scale.images], PEERS)["bytes"] / scale.images
        print(
            f"{os.cpu_count()} CPUs; {scale.images:,} images of 500x375, {size / 1e3:,.0f} kB"
            f" each; median of {scale.rounds} rounds"
        )
        rates: dict[str, list[float]] = {}
        for round_number in range(-1, scale.rounds):
            for title, rate in one_round(python, raw, Path(name) / f"{round_number}", scale):
                if round_number >= 0:  # the first round brings the files into memory
                    rates.setdefault(title, []).append(rate)
    report_rates(rates)
    print(f"  goal: 2 processes at {GOAL} x the original's way")


def one_round(python: str, raw: Path, out: Path, scale: Scale) -> list[tuple[str, float]]:
    """Return the images/s of each way, and remove their results."""
    original = told([python, PEER, "original", raw, out / "original"], PEERS)
    rows = [(ORIGINAL, original["images_per_s"])]
    for processes in (1, 2):
        whole_s = ours(python, raw, out / str(processes), processes)
        title = f"ours, {processes} process{'es' if processes > 1 else ''}"
        rows.append((title, scale.images / whole_s))
    subprocess.run(["rm", "-rf", str(out)], check=True)
    return rows


def ours(python: str, raw: Path, out: Path, processes: int) -> float:
    """Return the seconds of the whole command."""
    argv = [python, PREPROCESS, "--raw_data_dir", raw, "--output_dir", out]
    argv += ["--train_shards", SHARDS, "--validation_shards", 1, "--num_processes", processes]
    return seconds_of(argv)


if __name__ == "__main__":
    bench_preprocess(sys.argv[1:])
