"""Copies with a slow or a killed node: the time of the other nodes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench_copy_lab import CopyLab, copy_lab, job_of, ours, shaped, timed_run
from bench_copy_shaped import OURS, describe, lines, note, whole
from bench_lab import lab_ec2
from bench_peers import one_rsync
from bench_scale import Scale
from bench_tables import Goal, Sample, median_s, prediction_goal, table

# Factor by which one link is slower.
SLOWER = 10
# Goal for the other nodes' time, as a multiple of T1.
MOST = 1.25


@dataclass(frozen=True)
class Fault:
    """One copy with a fault. `others_s` is the time until the last unaffected node is complete."""

    others_s: float
    sample: Sample


def bench_faults(home: Path, scale: Scale) -> list[Goal]:
    """Measure copies without a fault, with a slow link and with a killed node.

    A killed node is gone, so the cluster has a spare node for each round.
    """
    count, data, rate = scale.fault_nodes, scale.large, scale.rate_mbit
    with copy_lab(home, count + scale.rounds, data.bytes) as lab, shaped(rate):
        lab.make(data)
        ids = lab.instance_ids()
        nodes = list(range(1, count + 1))
        rsync = lab.ssh(0, one_rsync(job_of(data, [1])))
        healthy = ours(data, nodes, rate)
        ones, wholes, killed = [], [], []
        for _ in range(scale.rounds):
            ones.append(whole(lab, rsync, data, [1], "one rsync"))
            wholes.append(whole(lab, healthy, data, nodes, f"{OURS}, {count} nodes"))
        slow = with_slow(lab, scale, nodes, ids)
        for spare in range(count + 1, count + 1 + scale.rounds):
            killed.append(with_killed(lab, scale, nodes, ids, median_s(wholes) / 2))
            nodes = sorted({*nodes, spare} - {middle(nodes)})
    return show(scale, ones, wholes, slow, killed)


def middle(nodes: Sequence[int]) -> int:
    """Return the node with half of the others after it."""
    return nodes[len(nodes) // 2]


def with_slow(lab: CopyLab, scale: Scale, nodes: Sequence[int], ids: Sequence[str]) -> Fault:
    """Copy with one slow node, until that node is complete too."""
    slow = middle(nodes)
    with shaped(scale.rate_mbit // SLOWER, ids[slow]):
        sample = timed_run(ours(scale.large, nodes, scale.rate_mbit))
    lab.check(nodes, scale.large, "a slow node")
    return others(lab, nodes, slow, sample, f"node {slow} {SLOWER} times slower")


def with_killed(
    lab: CopyLab, scale: Scale, nodes: Sequence[int], ids: Sequence[str], after_s: float
) -> Fault:
    """Copy and kill one node after `after_s`. It falls silent without closing its connections."""
    victim = middle(nodes)
    ec2 = lab_ec2()
    timer = threading.Timer(after_s, ec2.terminate_instances, kwargs={"InstanceIds": [ids[victim]]})
    timer.start()
    try:
        sample = timed_run(ours(scale.large, nodes, scale.rate_mbit), may_fail=True)
    finally:
        timer.cancel()
        timer.join()
    alive = [node for node in nodes if node != victim]
    lab.check(alive, scale.large, "a killed node")
    return others(lab, alive, victim, sample, f"node {victim} killed after {after_s:.1f} s")


def others(lab: CopyLab, nodes: Sequence[int], odd: int, sample: Sample, title: str) -> Fault:
    """Return the time of all `nodes` but `odd`, and remove their copies."""
    unhurt = [node for node in nodes if node != odd]
    others_s = max(lab.last_changes(unhurt)) - sample.began
    lab.clear(nodes)
    note(f"{title}: the others {others_s:.2f} s, the command {sample.wall_s:.2f} s")
    return Fault(others_s, sample)


def show(
    scale: Scale,
    ones: Sequence[Sample],
    wholes: Sequence[Sample],
    slow: Fault,
    killed: Sequence[Fault],
) -> list[Goal]:
    """Print the table, and return the goals."""
    one_s = median_s(ones)
    worst = max(killed, key=lambda fault: fault.others_s)
    print(f"\nfaults: {describe(scale.large)} to {scale.fault_nodes} nodes, T1 {one_s:.2f} s")
    rows = [row("nothing befalls them", median_s(wholes), median_s(wholes), one_s)]
    for title, fault in (
        (f"one node's link {SLOWER} times slower", slow),
        (f"one node killed at half (worst of {len(killed)})", worst),
    ):
        rows.append(row(title, fault.others_s, fault.sample.wall_s, one_s))
    lines(table(["", "the others, s", "T/T1", "the command, s"], rows))
    return [
        Goal(f"a link {SLOWER} times slower: the others' T/T1", slow.others_s / one_s, MOST),
        Goal("a node killed at half: the others' T/T1", worst.others_s / one_s, MOST),
        prediction_goal("nothing befalls them", wholes),
    ]


def row(title: str, others_s: float, wall_s: float, one_s: float) -> list[str]:
    return [title, f"{others_s:.2f}", f"{others_s / one_s:.2f}", f"{wall_s:.2f}"]
