"""`scripts/bench input`: batches of images, beside a plain tf.data pipeline and beside Pillow."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench_tables import table
from bench_training import told, training_python

HERE = Path(__file__).parent
GOAL = 1.5  # multiple of the plain pipeline's rate
# What the tutorial's machine needs: 8 V100s with 750 images/s each, on 32 cores with two
# hyperthreads, which EC2 counts as 64 vCPUs (EC2's "CPU options", p3.16xlarge).
P3_IMAGES_PER_S, P3_CORES, P3_VCPUS = 8 * 750, 32, 64
BASE = "plain"
WAYS = {
    "levels": "ours, levels for the device",
    "colors": "ours, levels, --increased_aug",
    "ours": "ours, float32 made here",
    BASE: "plain tf.data, decode then crop",
    "pillow": "Pillow in a process pool",
}


@dataclass(frozen=True)
class Rate:
    """Images per second and processor, by the clock and by the CPU time used."""

    by_clock: float
    by_cpu: float


def bench_input(arguments: Sequence[str]) -> None:
    options = parse(arguments)
    cores = len(os.sched_getaffinity(0))
    rounds, images = (1, 256) if options.quick else (3, 4096)
    python = training_python()
    rates: dict[str, list[Rate]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory(prefix="bench-input-") as folder:
        size = told([python, HERE / "input_images.py", folder, 256 if options.quick else 4096])
        print(
            f"{cores} processors of {model_name()}; 224 x 224 from JPEGs of {size / 1e3:.0f} kB, "
            f"{images:,} images a run; median of {rounds} rounds, each runs every way once"
        )
        for _ in range(rounds):
            for way, found in rates.items():
                found.append(one_run(python, way, folder, images, cores))
    report(rates)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench input", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round: does it work?")
    return parser.parse_args(arguments)


def one_run(python: str, way: str, folder: str, images: int, cores: int) -> Rate:
    done = told([python, HERE / "input_peers.py", way, folder, images, cores])
    return Rate(done["images"] / done["wall_s"] / cores, done["images"] / done["cpu_s"])


def report(rates: dict[str, list[Rate]]) -> None:
    base = statistics.median(rate.by_clock for rate in rates[BASE])
    rows = []
    for way, found in rates.items():
        clock = [rate.by_clock for rate in found]
        median = statistics.median(clock)
        cpu = statistics.median(rate.by_cpu for rate in found)
        spread = f"{min(clock):.0f}-{max(clock):.0f}"
        rows.append([WAYS[way], f"{median:.0f}", spread, f"{cpu:.0f}", f"{median / base:.2f} x"])
    print("\n".join(table(["images/s per processor", "clock", "spread", "CPU", "to plain"], rows)))
    ours = statistics.median(rate.by_clock for rate in rates["levels"])
    verdict = "met" if ours >= GOAL * base else "MISSED"
    print(f"  goal: {GOAL} x the plain pipeline, by the clock: {verdict} ({ours / base:.2f} x)")
    core, vcpu = P3_IMAGES_PER_S / P3_CORES, P3_IMAGES_PER_S / P3_VCPUS
    print(
        f"  a p3.16xlarge needs {core:.0f} per core, {vcpu:.0f} per vCPU (half of a core); its "
        "cores are others than these, and how many images they do is not known"
    )


def model_name() -> str:
    """Return the processor's name. A virtual machine may not tell whether two share a core."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "an unknown model"


if __name__ == "__main__":
    bench_input(sys.argv[1:])
