"""`./scripts/bench copy [PART...]`: `clusterctl copy` and its peers, on hosts of the lab."""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench_copy_faults import bench_faults
from bench_copy_shaped import bench_shaped
from bench_copy_unshaped import bench_chain, bench_cpu, bench_hop, bench_small
from bench_lab import cores, quiet, running_lab
from bench_scale import FULL, QUICK, Scale
from bench_tables import Goal

DATA_SIZE = "5GiB"
PARTS: dict[str, Callable[[Path, Scale], list[Goal]]] = {
    "shaped": bench_shaped,
    "faults": bench_faults,
    "cpu": bench_cpu,
    "hop": bench_hop,
    "chain": bench_chain,
    "small": bench_small,
}


def bench_copy(arguments: Sequence[str]) -> None:
    """Run the parts of the benchmark that are named in `arguments`, or all."""
    options = parse(arguments)
    began = time.monotonic()
    goals: list[Goal] = []
    print(f"copies on one machine with {cores()} cores; every copy is compared byte for byte")
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        with running_lab(home, "--data-size", DATA_SIZE):
            status = json.loads(quiet("clusterctl", "lab", "status", "--json"))
            print(f"the hosts' TCP is {status['tcp']}")
            for part in options.parts or PARTS:
                goals += PARTS[part](home, options.scale)
    print("\n" + "\n".join(goal.line() for goal in goals))
    print(f"  it took {(time.monotonic() - began) / 60:.1f} minutes in all")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench copy",
        description="Our copy beside its peers. The parts: " + ", ".join(PARTS) + " (all).",
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="one of them, or several")
    parser.add_argument(
        "--quick", action="store_true", help="fewer nodes, smaller sets, one round: 5 minutes"
    )
    parser.add_argument("--nodes", type=counts, help="for `shaped`, such as 2,4,8,16,32")
    parser.add_argument("--rounds", type=int, help="how often ours is measured")
    parser.add_argument("--rate", type=int, help="Mbit/s of each shaped link")
    parser.add_argument("--no-peers", action="store_true", help="for `shaped`: T1 and ours alone")
    options = parser.parse_args(arguments)
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"no such part: {' '.join(unknown)} (there are {', '.join(PARTS)})")
    rounds = options.rounds
    asked = {
        "nodes": options.nodes,
        "rounds": rounds,
        "unshaped_rounds": rounds,
        "rate_mbit": options.rate,
        "without_peers": options.no_peers,
    }
    given = {name: value for name, value in asked.items() if value}
    options.scale = dataclasses.replace(QUICK if options.quick else FULL, **given)
    return options


def counts(text: str) -> tuple[int, ...]:
    """Parse a list of numbers of nodes."""
    found = tuple(sorted({int(word) for word in text.split(",")}))
    if found[0] < 1:
        raise argparse.ArgumentTypeError("at least one node")
    return found
