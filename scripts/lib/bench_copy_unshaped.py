"""Copies over links without a rate: what the processors do, and many small files."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from bench_copy_lab import CopyLab, copy_lab, job_of, ours
from bench_copy_shaped import OURS, Samples, describe, lines, whole
from bench_peers import CPU, SMALL, SOCKET, TAR, Peer
from bench_scale import DataSet, Scale
from bench_tables import Goal, Sample, median_s, spread_cell, table

HOPS = 2
CPU_RATIO = 1.0
# By how much tar through ssh may be faster, or has to be slower, at so many nodes.
SMALL_RATIO = {1: 1.0, 8: 1 / 1.5}
GIB = 1 << 30


def bench_cpu(home: Path, scale: Scale) -> list[Goal]:
    """CPU seconds of the whole machine for each GiB that goes from one host to another."""
    samples: Samples = defaultdict(list)
    data = scale.unshaped
    with copy_lab(home, HOPS, data.bytes) as lab:
        lab.make(data)
        one_round(lab, data, HOPS, CPU, defaultdict(list))  # memory never used before is dear
        for _ in range(scale.unshaped_rounds):
            one_round(lab, data, HOPS, CPU, samples)
    amount = HOPS * data.bytes / GIB
    costs = {
        name: statistics.median(sample.cpu_s for sample in ran) / amount
        for (name, _), ran in samples.items()
    }
    print(f"\ncpu: {describe(data)} to {HOPS} nodes over links without a rate;")
    print("  of the whole machine, so nothing else may run beside this")
    header = ["", "CPU s per GiB and hop", "to the socket's", "seconds"]
    base = costs[SOCKET.name]
    rows = [
        [name, f"{cost:.2f}", f"{cost / base:.2f}", spread_cell(samples[name, HOPS])]
        for name, cost in costs.items()
    ]
    lines(table(header, rows))
    return [Goal("CPU s per GiB and hop, to a plain socket's", costs[OURS] / base, CPU_RATIO)]


def bench_small(home: Path, scale: Scale) -> list[Goal]:
    samples: Samples = defaultdict(list)
    data = scale.small
    with copy_lab(home, max(scale.small_nodes), data.bytes) as lab:
        lab.make(data)
        one_round(lab, data, max(scale.small_nodes), SMALL, defaultdict(list))
        for _ in range(scale.unshaped_rounds):
            for count in scale.small_nodes:
                one_round(lab, data, count, SMALL, samples)
    print(f"\nsmall: {describe(data)} over links without a rate; seconds")
    header = ["", *(f"N={count}" for count in scale.small_nodes)]
    names = [OURS, *(peer.name for peer in SMALL)]
    rows = [
        [name, *(spread_cell(samples[name, count]) for count in scale.small_nodes)]
        for name in names
    ]
    lines(table(header, rows))
    return [
        small_goal(count, samples[OURS, count], samples[TAR.name, count])
        for count in scale.small_nodes
    ]


def small_goal(count: int, ours_: Sequence[Sample], tar: Sequence[Sample]) -> Goal:
    ratio = median_s(ours_) / median_s(tar)
    return Goal(f"small files, N={count}: T to that of tar | ssh", ratio, SMALL_RATIO[count])


def one_round(
    lab: CopyLab, data: DataSet, count: int, peers: Sequence[Peer], samples: Samples
) -> None:
    nodes = range(1, count + 1)
    title = f"{OURS}, {data.name}, {count} nodes"
    samples[OURS, count].append(whole(lab, ours(data, nodes, None), data, nodes, title))
    for peer in peers:
        argv = lab.ssh(0, peer.script(job_of(data, nodes)))
        title = f"{peer.name}, {data.name}, {count} nodes"
        samples[peer.name, count].append(whole(lab, argv, data, nodes, title))
