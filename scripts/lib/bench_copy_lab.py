"""The cluster for benchmarks of copies: node 0 has the data sets, nodes 1.. receive them."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from bench_lab import (
    COMMANDS,
    INTERRUPTS,
    available_bytes,
    cluster,
    cores,
    ending,
    machine_cpu_s,
    quiet,
    start,
)
from bench_peers import PYTHON, Job
from bench_scale import DataSet, fitting
from bench_tables import Sample, plan_of

PROGRAMS = ("bench_swarm.py", "bench_socket.py", "bench_digest.py")
DESTINATION = "/data/out"
# Prints when the last file was renamed. The hosts share this machine's clock.
LAST_CHANGE = "find {folder} -type f -printf '%C@\\n' | sort -n | tail -n 1"


class CopyLab:
    """A cluster named bench, and scripts that run on its nodes."""

    def __init__(self, home: Path, nodes: int) -> None:
        self.config = home / "bench" / "ssh_config"
        self.nodes = nodes
        self.digests: dict[str, str] = {}

    def ssh(self, node: int, script: str) -> list[str]:
        """Return the command that runs a bash script on a node."""
        command = shlex.join(["bash", "-o", "pipefail", "-c", script])
        return ["ssh", "-F", str(self.config), "-o", "LogLevel=ERROR", f"bench-{node}", command]

    def on(self, nodes: Sequence[int], script: str) -> list[str]:
        """Run a script on several nodes at the same time, and return its outputs."""
        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(lambda node: quiet(*self.ssh(node, script)), nodes))

    def prepare(self) -> None:
        """Copy the peers' programs to every node, and the head node's SSH keys to the others."""
        keys = "~/.ssh/clusterctl_mpi ~/.ssh/config ~/.ssh/clusterctl_known_hosts"
        for node in range(self.nodes):
            target = f"bench-{node}:/tmp/"
            programs = [str(Path(__file__).with_name(name)) for name in PROGRAMS]
            quiet("scp", "-q", "-F", str(self.config), *programs, target)
            if node:
                self.on([0], f"scp -q {keys} bench-{node}:.ssh/")

    def make(self, data: DataSet, torrent: bool = False) -> None:
        """Make a data set on node 0, and its torrent if it is needed."""
        self.on([0], data.script())
        self.digests[data.folder] = self.digest([0], data.folder, data.name)[0]
        if torrent:
            self.on([0], f"{PYTHON} /tmp/bench_swarm.py torrent {data.folder}")

    def digest(self, nodes: Sequence[int], folder: str, name: str) -> list[str]:
        """Return the digest of a copy on each of these nodes."""
        return self.on(nodes, f"{PYTHON} -IS /tmp/bench_digest.py {folder} {name}")

    def check(self, nodes: Sequence[int], data: DataSet, who: str) -> None:
        """Compare every byte of every copy with node 0. End the program if one differs."""
        found = self.digest(nodes, DESTINATION, data.name)
        wrong = [node for node, digest in zip(nodes, found) if digest != self.digests[data.folder]]
        if wrong:
            sys.exit(f"error: {who}: nodes {wrong} have not what node 0 has")

    def clear(self, nodes: Sequence[int]) -> None:
        """Remove the copies on these nodes."""
        self.on(nodes, f"rm -rf {DESTINATION} {DESTINATION}.*")

    def last_changes(self, nodes: Sequence[int]) -> list[float]:
        """Return when each of these nodes was complete, in seconds since 1970."""
        return list(map(float, self.on(nodes, LAST_CHANGE.format(folder=DESTINATION))))

    def instance_ids(self) -> list[str]:
        nodes = json.loads(quiet("clusterctl", "status", "bench", "--json"))["nodes"]
        return [node["instance_id"] for node in sorted(nodes, key=lambda node: node["index"])]


@contextmanager
def copy_lab(home: Path, nodes: int, data_bytes: int) -> Iterator[CopyLab]:
    """Yield a cluster with a source and `nodes` other nodes.

    Ends the program if `data_bytes` on each of them do not fit into memory.
    """
    if not fitting([nodes], data_bytes, available_bytes()):
        sys.exit(f"error: {nodes} copies of {data_bytes >> 20} MiB do not fit into memory")
    with cluster(nodes + 1):
        lab = CopyLab(home, nodes + 1)
        lab.prepare()
        yield lab


@contextmanager
def shaped(rate_mbit: int, instance: str = "all") -> Iterator[None]:
    """Limit the rate of the links of one instance or of all."""
    quiet("clusterctl", "lab", "fault", "shape", instance, "--rate", f"{rate_mbit}mbit")
    try:
        yield
    finally:
        quiet("clusterctl", "lab", "fault", "clear", instance)


def job_of(data: DataSet, nodes: Sequence[int]) -> Job:
    return Job(data.folder, DESTINATION, tuple(f"bench-{node}" for node in nodes))


def ours(data: DataSet, nodes: Sequence[int], rate_mbit: int | None) -> list[str]:
    """Return the command line of `clusterctl copy`. A `rate_mbit` of None leaves out the rate."""
    known = ["--link-rate", f"{rate_mbit}mbit"] if rate_mbit else []
    chosen = ",".join(map(str, nodes))
    options = ["--from", "0", "--nodes", chosen, *known, "--json"]
    return ["clusterctl", "copy", "bench", *options, f"{data.folder}/", f"{DESTINATION}/"]


def timed_run(argv: Sequence[str], may_fail: bool = False) -> Sample:
    """Run one copy to its end. The sample's `began` is in seconds since 1970."""
    fields = (*COMMANDS, *INTERRUPTS)
    cpu, began, start_s = machine_cpu_s(fields), time.time(), time.monotonic()
    process = start(argv)
    with ending(process):
        out, err = process.communicate()
    wall_s = time.monotonic() - start_s
    if process.returncode and not may_fail:
        sys.exit(f"error: {shlex.join(argv)} ended with {process.returncode}: {err or out}")
    cpu_s = machine_cpu_s(fields) - cpu
    plan = plan_of(out)
    busy = cpu_s / wall_s / cores()
    return Sample(wall_s, cpu_s, busy, began, plan.get("predicted_s"), plan.get("streams", 0))
