"""Copies over links without a limit: CPU time, one hop, a chain of nodes, many small files."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench_copy_lab import CopyLab, copy_lab, job_of, ours, timed_run
from bench_copy_shaped import OURS, Samples, describe, lines, whole
from bench_lab import available_bytes, cores
from bench_peers import CPU, SMALL, SOCKET, TAR, Peer, one_rsync
from bench_scale import DataSet, Scale, fitted
from bench_tables import Goal, Sample, median_s, spread_cell, table

HOPS = 2
# Goals for CPU time and time of one hop, as multiples of a plain socket's.
CPU_RATIO, HOP_RATIO = 1.0, 1 / 0.8
# Goals for small files: by the number of nodes, the time as a multiple of tar through ssh.
SMALL_RATIO = {1: 1.0, 8: 1 / 1.5}
GIB = 1 << 30


def bench_cpu(home: Path, scale: Scale) -> list[Goal]:
    """Measure the whole machine's CPU seconds for each GiB that goes from one host to another."""
    samples, starts = large_and_tiny(home, scale, scale.unshaped, HOPS, CPU)
    amount = HOPS * scale.unshaped.bytes / GIB
    costs = {
        name: (median_cpu_s(ran) - median_cpu_s(starts[name, count])) / amount
        for (name, count), ran in samples.items()
    }
    print(f"\ncpu: {describe(scale.unshaped)} to {HOPS} nodes over links without a rate;")
    print("  of the whole machine, so nothing else may run beside this")
    header = ["", "CPU s per GiB and hop", "to the socket's", "CPU s of a tiny set", "seconds"]
    base = costs[SOCKET.name]
    rows = [
        [
            name,
            f"{cost:.2f}",
            f"{cost / base:.2f}",
            f"{median_cpu_s(starts[name, HOPS]):.2f}",
            spread_cell(samples[name, HOPS]),
        ]
        for name, cost in costs.items()
    ]
    lines(table(header, rows))
    return [Goal("CPU s per GiB and hop, to a plain socket's", costs[OURS] / base, CPU_RATIO)]


def bench_hop(home: Path, scale: Scale) -> list[Goal]:
    """Measure GiB a second over one link, and of a plain socket with as many connections."""
    data = fitted(scale.hop, available_bytes())
    samples, starts = large_and_tiny(home, scale, data, 1, (SOCKET,), None)
    print(f"\nhop: {describe(data)} to one node over a link without a rate")
    took = {
        name: median_s(ran) - median_s(starts[name, count])
        for (name, count), ran in samples.items()
    }
    rows = [
        [
            name,
            str(samples[name, 1][0].streams or samples[OURS, 1][0].streams),
            f"{data.bytes / GIB / seconds:.2f}",
            spread_cell(samples[name, 1]),
            spread_cell(starts[name, 1]),
        ]
        for name, seconds in took.items()
    ]
    lines(table(["", "connections", "GiB/s", "seconds", "of a tiny set"], rows))
    ratio = took[OURS] / took[SOCKET.name]
    return [Goal("one hop: T less that of a tiny set, to a plain socket's", ratio, HOP_RATIO)]


def bench_chain(home: Path, scale: Scale) -> list[Goal]:
    """Measure how long a block takes from one host to the next, and a set to the last host."""
    data, tiny, nodes = scale.chain, scale.tiny, range(1, scale.chain_nodes + 1)
    ones, wholes, fills = [], [], []
    with copy_lab(home, len(nodes), data.bytes) as lab:
        lab.make(data)
        lab.make(tiny)
        for _ in range(scale.unshaped_rounds):
            rsync = lab.ssh(0, one_rsync(job_of(data, [1])))
            ones.append(whole(lab, rsync, data, [1], "one rsync"))
            wholes.append(whole(lab, ours(data, nodes, None), data, nodes, OURS))
            timed_run(ours(tiny, nodes, None))
            came = lab.last_changes(nodes)
            lab.clear(nodes)
            fills.append((came[-1] - came[0]) / (len(nodes) - 1))
    print(f"\nchain: {describe(data)} to {len(nodes)} nodes, which share {cores()} cores")
    rows = [
        ["T1, one rsync", spread_cell(ones)],
        ["T", spread_cell(wholes)],
        ["T/T1", f"{median_s(wholes) / median_s(ones):.2f}"],
        ["fill time per hop, of one small block", f"{statistics.median(fills) * 1000:.1f} ms"],
    ]
    lines(table(["", ""], rows))
    return []


def large_and_tiny(
    home: Path,
    scale: Scale,
    data: DataSet,
    count: int,
    peers: Sequence[Peer],
    connections: int | None = 1,
) -> tuple[Samples, Samples]:
    """Return samples of a data set, and of a tiny one, which cost what does not depend on size."""
    samples: Samples = defaultdict(list)
    starts: Samples = defaultdict(list)
    with copy_lab(home, count, data.bytes) as lab:
        lab.make(data)
        lab.make(scale.tiny)
        # A first round that is not counted: memory pages that are used for the first time are slow.
        one_round(lab, data, count, peers, defaultdict(list), connections)
        for _ in range(scale.unshaped_rounds):
            one_round(lab, data, count, peers, samples, connections)
            one_round(lab, scale.tiny, count, peers, starts)
    return samples, starts


def median_cpu_s(samples: Sequence[Sample]) -> float:
    return statistics.median(sample.cpu_s for sample in samples)


def bench_small(home: Path, scale: Scale) -> list[Goal]:
    """Measure copies of many small files, and tar and rsync through ssh."""
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
    lab: CopyLab,
    data: DataSet,
    count: int,
    peers: Sequence[Peer],
    samples: Samples,
    connections: int | None = 1,
) -> None:
    """Measure `clusterctl copy` and the peers once.

    `connections` is the number of a plain socket's connections; None takes as many as
    `clusterctl copy` has.
    """
    nodes = range(1, count + 1)
    title = f"{OURS}, {data.name}, {count} nodes"
    mine = whole(lab, ours(data, nodes, None), data, nodes, title)
    samples[OURS, count].append(mine)
    job = replace(job_of(data, nodes), connections=connections or mine.streams)
    for peer in peers:
        argv = lab.ssh(0, peer.script(job))
        title = f"{peer.name}, {data.name}, {count} nodes"
        samples[peer.name, count].append(whole(lab, argv, data, nodes, title))
