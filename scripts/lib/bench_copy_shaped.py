"""Copies over links of a limited rate: how the time grows with the number of nodes."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from bench_copy_lab import CopyLab, copy_lab, job_of, ours, shaped, timed_run
from bench_lab import available_bytes
from bench_peers import LIBTORRENT, SHAPED, Peer, one_rsync
from bench_scale import DataSet, Scale, fitting
from bench_tables import (
    Goal,
    Sample,
    busy_cell,
    growth,
    median_s,
    prediction_cell,
    prediction_goal,
    ratio_cell,
    spread_cell,
    table,
)

OURS = "clusterctl copy"
# Goals: by the number of nodes, the time as a multiple of T1, one rsync to one node.
MOST = {8: 1.10, 16: 1.15}
Samples = dict[tuple[str, int], list[Sample]]


def bench_shaped(home: Path, scale: Scale) -> list[Goal]:
    """Measure `clusterctl copy` and its peers for several numbers of nodes."""
    both = scale.large.bytes + scale.reduced.bytes
    counts = fitting(scale.nodes, both, available_bytes()) or (min(scale.nodes),)
    for count in set(scale.nodes) - set(counts):
        note(f"{count} nodes: left out, their copies do not fit into this machine's memory")
    samples: Samples = defaultdict(list)
    with copy_lab(home, max(counts), both) as lab, shaped(scale.rate_mbit):
        peers = [] if scale.without_peers else there(SHAPED)
        lab.make(scale.large, torrent=LIBTORRENT in peers)
        lab.make(scale.reduced)
        for _ in range(scale.rounds):
            measure_ours(lab, scale, counts, samples)
        measure_peers(lab, scale, counts, peers, samples)
    show(scale, counts, samples)
    return goals(scale, counts, samples)


def measure_ours(lab: CopyLab, scale: Scale, counts: Sequence[int], samples: Samples) -> None:
    """Measure one round: T1 of both data sets, and `clusterctl copy` to each number of nodes."""
    for data in (scale.large, scale.reduced):
        argv = lab.ssh(0, one_rsync(job_of(data, [1])))
        samples["T1", data.files].append(whole(lab, argv, data, [1], f"one rsync of {data.name}"))
    for count in counts:
        nodes = range(1, count + 1)
        argv = ours(scale.large, nodes, scale.rate_mbit)
        samples[OURS, count].append(whole(lab, argv, scale.large, nodes, f"{OURS}, {count} nodes"))


def measure_peers(
    lab: CopyLab, scale: Scale, counts: Sequence[int], peers: Sequence[Peer], samples: Samples
) -> None:
    """Measure each peer once for each number of nodes that it is meant for."""
    for peer in peers:
        for count in counts:
            if peer.measured_with(count):
                data = set_of(peer, scale)
                nodes = range(1, count + 1)
                argv = lab.ssh(0, peer.script(job_of(data, nodes)))
                title = f"{peer.name}, {count} nodes"
                samples[peer.name, count].append(whole(lab, argv, data, nodes, title))


def there(peers: Sequence[Peer]) -> list[Peer]:
    """Return the peers whose program this machine, and so every host, has. Name the others."""
    found = []
    for peer in peers:
        try:
            subprocess.run(peer.needs, capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            note(f"{peer.name}: left out, the package {peer.package} is not installed")
        else:
            found.append(peer)
    return found


def set_of(peer: Peer, scale: Scale) -> DataSet:
    """Return the data set that a peer copies."""
    return scale.reduced if peer.each else scale.large


def whole(
    lab: CopyLab, argv: Sequence[str], data: DataSet, nodes: Sequence[int], title: str
) -> Sample:
    """Run and time one copy. Then compare every byte of it, and remove it."""
    sample = timed_run(argv)
    lab.check(nodes, data, title)
    lab.clear(nodes)
    note(f"{title}: {sample.wall_s:.2f} s")
    return sample


def note(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def show(scale: Scale, counts: Sequence[int], samples: Samples) -> None:
    large, rate = scale.large, scale.rate_mbit
    print(f"\nshaped: every host's link carries {rate} Mbit/s each way")
    print(f"  the set: {describe(large)}, limit (bytes / rate) {large.limit_s(rate):.2f} s")
    print(f"  T1, one rsync of it: {spread_cell(samples['T1', large.files])}")
    print("  T/T1, and T/limit in brackets:")
    header = ["", *(f"N={count}" for count in counts)]
    peers = [] if scale.without_peers else SHAPED
    names = [(OURS, large)] + [(peer.name, set_of(peer, scale)) for peer in peers]
    rows = []
    for name, data in names:
        one_s, limit_s = median_s(samples["T1", data.files]), data.limit_s(rate)
        cells = [
            ratio_cell(samples[name, count], one_s, limit_s) if samples[name, count] else "-"
            for count in counts
        ]
        rows.append([name + ("" if data is large else " *"), *cells])
    lines(table(header, rows))
    print(f"  *: a set of {describe(scale.reduced)}, against T1 and limit of that")
    print(f"\n  {OURS}:")
    ran = [samples[OURS, count] for count in counts]
    rows = [
        ["seconds", *(spread_cell(one) for one in ran)],
        ["predicted / measured", *(prediction_cell(one) for one in ran)],
        ["all cores in use", *(busy_cell(one) for one in ran)],
    ]
    lines(table(header, rows))


def describe(data: DataSet) -> str:
    return f"{data.bytes >> 20} MiB in {data.files} files"


def lines(text: Sequence[str]) -> None:
    print("\n".join(text), flush=True)


def goals(scale: Scale, counts: Sequence[int], samples: Samples) -> list[Goal]:
    one_s = median_s(samples["T1", scale.large.files])
    took = {count: median_s(samples[OURS, count]) for count in counts}
    found = [
        Goal(f"N={count}: T/T1", took[count] / one_s if count in took else None, most)
        for count, most in MOST.items()
    ]
    found.append(Goal("growth for each node more", growth(took), 1.0, " %"))
    every = [sample for count in counts for sample in samples[OURS, count]]
    return [*found, prediction_goal("shaped", every)]
