"""Images/s of utils/tensorflow_image_resizer.py, and of one record per session call.

The latter is how the tutorial's resizer works, whatever its thread flags: a TensorFlow graph reads,
resizes and encodes one record per call, with the threads of the tutorial's line. Only its loop is
timed; ours is timed as a whole, including its start.

    ./scripts/bench resize [--quick]
"""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench_training import PEERS, report_rates, seconds_of, told, training_python

HERE = Path(__file__).parent
PEER = HERE / "bench_resize_peer.py"
RESIZER = HERE.parents[1] / "utils" / "tensorflow_image_resizer.py"
THREADS = ("--num_intra_threads", "2", "--num_inter_threads", "2")  # the tutorial's


@dataclass(frozen=True)
class Scale:
    """Size of the data set, and number of rounds."""

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
        peer = [python, PEER]
        made = told([*peer, "make", source, scale.shards, scale.images_per_shard], PEERS)
        images = scale.shards * scale.images_per_shard
        print(
            f"{os.cpu_count()} CPUs; {images:,} images, {made['bytes'] / images / 1e3:,.0f} kB and"
            f" {made['pixels'] / images / 1e3:,.0f} kpixels each, to a shorter side of 480;"
            f" median of {scale.rounds} rounds"
        )
        rates: dict[str, list[float]] = {}
        for round_number in range(scale.rounds):
            out = folder / f"out-{round_number}"
            one = told([*peer, "one_by_one", source, out / "one"], PEERS)
            rates.setdefault("one record per session call", []).append(one["images_per_s"])
            for processes in sorted({1, os.cpu_count() or 1}):
                whole_s = ours(python, source, out / str(processes), processes)
                title = f"ours, {processes} process{'es' if processes > 1 else ''}"
                rates.setdefault(title, []).append(images / whole_s)
    report_rates(rates)


def ours(python: str, source: Path, out: Path, processes: int) -> float:
    """Return the seconds of the whole command."""
    flags = ["-d", "imagenet", "-i", source, "-o", out, *THREADS]
    return seconds_of([python, RESIZER, *flags, "--num_preprocess_threads", processes])
