"""`scripts/bench logs`: fetching a job's log of 100 MB by `clusterctl logs -f` and by `ssh cat`.

The ways run in turn, and ratios are taken within each round, since they depend less on the
machine's changing load than the times. The time until the first byte does not depend on the log's
size and is shown too. The third way, `clusterctl ssh HOST -- cat LOG`, is the same login without a
call to EC2.
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

from bench_lab import cluster, cores, quiet, running_lab

USAGE = "usage: scripts/bench logs [PAIRS]"
PAIRS = 9
SIZE = 100_000_000


@dataclass(frozen=True)
class Reading:
    """Seconds of the whole command, and until its first byte."""

    wall_s: float
    first_s: float


def bench_logs(words: list[str]) -> None:
    """Make a job with a log of SIZE bytes, and fetch it in each way in every round."""
    if len(words) > 1 or not all(one.isdigit() and int(one) for one in words):
        sys.exit(USAGE)
    pairs = int(words[0]) if words else PAIRS
    print(f"{cores()} cores; {SIZE // 1_000_000} MB of log; {pairs} rounds, by turns")
    with tempfile.TemporaryDirectory() as folder, running_lab(Path(folder)), cluster(2) as name:
        head = ["ssh", "-F", str(Path(folder) / name / "ssh_config"), f"{name}-0"]
        job_id = job_of_little(name)
        log = f".clusterctl/jobs/{job_id}/log"
        quiet(*head, f"yes 'a line of a log, as long as lines are' | head -c {SIZE} >{log}")
        ways = {
            "ssh cat": [*head, f"cat {log}"],
            "clusterctl logs -f": ["clusterctl", "logs", name, job_id, "-f"],
            "clusterctl ssh -- cat": ["clusterctl", "ssh", name, "--", "cat", log],
        }
        readings: dict[str, list[Reading]] = {title: [] for title in ways}
        for number in range(pairs + 1):
            turn = list(ways.items())
            for title, argv in turn if number % 2 else reversed(turn):
                reading = read_all(argv)
                if number:  # the first round warms the caches
                    readings[title].append(reading)
    report(readings)


def job_of_little(name: str) -> str:
    """Run a short job and return its id. The log is then put into the job's folder.

    The job is a copy to the second node.
    """
    quiet("clusterctl", "copy", name, "--detach", __file__, "~/bench")
    [job] = json.loads(quiet("clusterctl", "jobs", name, "--json"))
    quiet("clusterctl", "wait", name, job["job_id"])
    return str(job["job_id"])


def read_all(argv: list[str]) -> Reading:
    """Run a command and read its output. End the program unless it is SIZE bytes."""
    began = time.monotonic()
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout
    first_s, size = 0.0, 0
    while chunk := os.read(process.stdout.fileno(), 1 << 20):
        first_s = first_s or time.monotonic() - began
        size += len(chunk)
    said = process.communicate()[1]
    if process.returncode or size != SIZE:
        sys.exit(f"error: {argv[0]} gave {size} bytes and {process.returncode}: {said.decode()}")
    return Reading(time.monotonic() - began, first_s)


def report(readings: dict[str, list[Reading]]) -> None:
    theirs = readings["ssh cat"]
    for title, ours in readings.items():
        ratios = sorted(cat.wall_s / one.wall_s for cat, one in zip(theirs, ours))
        print(
            f"  {title:22} {statistics.median(one.wall_s for one in ours):5.2f} s,"
            f" first byte after {statistics.median(one.first_s for one in ours):4.2f} s,"
            f" {statistics.median(ratios):4.2f} of ssh cat's throughput"
            f" ({ratios[0]:.2f}-{ratios[-1]:.2f})"
        )
