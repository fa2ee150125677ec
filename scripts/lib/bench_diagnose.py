"""`scripts/bench diagnose`: what `diagnose` takes of a large stuck job, on real hosts of the lab.

    ./scripts/bench diagnose [--hosts 32] [--ranks 8] [--looks 4] [--open]

The job is real processes under the real mpirun (stand_in_rank.py), of which one rank is stuck; with
--open nothing tells which. The lab's hosts share the processors with the command, whereas real ones
have their own. So the processor seconds of both are printed, and the command's alone are what a
laptop spends.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import tempfile
import time
from pathlib import Path

from bench_lab import cores, lab_cpu_s, quiet, running_lab, undisturbed

RANK = Path(__file__).with_name("stand_in_rank.py")
START_S = 180.0


def bench_diagnose(words: list[str]) -> None:
    """Launch the cluster, start the job, and diagnose it several times."""
    parser = argparse.ArgumentParser(prog="bench diagnose")
    parser.add_argument("--hosts", type=int, default=32)
    parser.add_argument("--ranks", type=int, default=8, help="on each host")
    parser.add_argument("--looks", type=int, default=4)
    parser.add_argument("--open", action="store_true", help="no rank shows the cause")
    given = parser.parse_args(words)
    size = given.hosts * given.ranks
    print(f"{cores()} cores; {given.hosts} hosts with {given.ranks} ranks each")
    with tempfile.TemporaryDirectory() as folder, running_lab(Path(folder)):
        options = ("--nodes", str(given.hosts), "--instance-type", "p3.16xlarge")
        quiet("clusterctl", "up", "bench", *options)
        try:
            quiet("clusterctl", "copy", "bench", str(RANK), "~/")
            hosts = [line.split()[0] for line in quiet("clusterctl", "hosts", "bench").splitlines()]
            stuck = str(-1 if given.open else size // 2)
            command = ("--script", "~/stand_in_rank.py", "--", stuck, *hosts)
            quiet("clusterctl", "train", "bench", str(size), "--detach", "--force", *command)
            await_steps()
            for number in range(1, given.looks + 1):
                print(f"  look {number}: {look()}", flush=True)
        finally:
            with undisturbed():
                quiet("clusterctl", "down", "bench", "--yes", "--discard-results")


def await_steps() -> None:
    """Wait until the job has stopped making steps."""
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        log = subprocess.run(
            ["clusterctl", "logs", "bench"], check=False, capture_output=True, text=True
        )
        if re.search(r"^.*step 10\b", log.stdout, re.M):
            time.sleep(12)  # one is overdue then
            return
        time.sleep(2)
    raise SystemExit(f"error: the job makes no steps: {log.stdout[-2000:]}{log.stderr[-500:]}")


def look() -> str:
    """Diagnose the job, and return the times and the verdict."""
    began, before, theirs = time.monotonic(), own_s(), lab_cpu_s()
    argv = ["clusterctl", "diagnose", "bench", "--json"]
    done = subprocess.run(argv, check=False, capture_output=True)
    took_s, own, theirs = time.monotonic() - began, own_s() - before, lab_cpu_s() - theirs
    found = json.loads(done.stdout)
    unseen = ", ".join(found["not_seen"][:2])
    return (
        f"{took_s:.1f} s by the clock; processor seconds: {own:.1f} of the command, {theirs:.1f} of"
        f" the hosts; status {done.returncode}: {found['verdict'][:160]}"
        + (f" (not seen: {unseen})" if unseen else "")
    )


def own_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
