"""Runs on a node: prints a line of JSON about the node and its ranks every few seconds, until stdin
ends.

    watch INTERVAL_S HEAD JOB     HEAD is 1 on the head node, whose lines also have the record of
                                  JOB; if that is empty, of the job that runs, or the latest

Rates are means since the line before: bytes per second, and processor seconds per second.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from functools import partial
from pathlib import Path

from clusterctl.node.diagnosis import job, sampler
from clusterctl.node.facts import disks, gpus, network, system
from clusterctl.node.facts.report import FactReport, Question, questions_of, read, request_of
from clusterctl.node.jobs import processes
from clusterctl.node.procfs import TICKS, read_stat
from clusterctl.node.record import from_data

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LOG_LINES = 200  # of the job's log, in each line
# Of each EFA card, beside its bytes.
TROUBLES = (network.IMPAIRED, network.UNRESPONSIVE, network.TIMEOUTS, network.DROPS)
SECTOR = 512  # bytes; /proc/diskstats counts in these, whatever the disk's own size is
# Block devices made of other disks: their bytes would count twice.
MADE_OF_OTHERS = ("loop", "ram", "dm-", "md", "zram")


def main() -> None:
    interval_s, is_head, job_id = float(sys.argv[1]), sys.argv[2] == "1", sys.argv[3]
    with contextlib.suppress(OSError):
        os.nice(sampler.NICENESS)
    # Facts are read in forks, and a fork copies only the calling thread. So the second thread does
    # nothing but end the program.
    threading.Thread(target=end_with_stdin, daemon=True).start()
    before = counters()
    pause_s = min(1.0, interval_s)
    while True:
        time.sleep(pause_s)
        now = counters()
        now["efa"], slow = slow_facts(is_head, job_id, interval_s)
        line = line_of(before, now, slow)
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()
        before = now
        pause_s = max(0.1, now["at"] + interval_s - time.monotonic())


def end_with_stdin() -> None:
    """End the program when stdin ends: the connection is closed."""
    while os.read(0, 1 << 16):
        pass
    os._exit(0)


def counters() -> dict[str, Any]:
    """Return the counters of the node and of its ranks. They only grow, except the ranks' state."""
    busy = [int(word) for word in sampler.text_of("/proc/stat").split("\n")[0].split()[1:9]]
    net = sampler.network_bytes()
    disk = [0, 0]
    for words in map(str.split, sampler.text_of("/proc/diskstats").splitlines()):
        if not words[2].startswith(MADE_OF_OTHERS) and Path("/sys/block", words[2]).exists():
            disk = [disk[0] + int(words[5]) * SECTOR, disk[1] + int(words[9]) * SECTOR]
    ranks = {}
    found = processes.find_any()
    sampler.mark_ranks(found)
    groups = processes.groups_of(found)
    for one in found:
        rank = processes.rank_of(one)
        if one.role == "rank" and rank is not None:
            with contextlib.suppress(OSError, ValueError, IndexError):  # the process has ended
                ranks[one.identity] = {**_rank(one, rank), "group": groups.get(one.pid, "")}
    return {
        "at": time.monotonic(),
        "cpu": [sum(busy), sum(busy) - busy[3] - busy[4]],
        "net": net,
        "disk": disk,
        "efa": (),
        "ranks": ranks,
    }


def _rank(one: processes.Process, rank: int) -> dict[str, Any]:
    folder = f"/proc/{one.pid}"
    fields = read_stat(folder)[1]
    channel = sampler.text_of(f"{folder}/wchan")
    return {
        "rank": rank,
        "pid": one.pid,
        "state": fields[0],
        "wait_channel": "" if channel == "0" else channel,
        "rss_bytes": int(fields[21]) * sampler.PAGE,
        "cpu_s": (int(fields[11]) + int(fields[12])) / TICKS,
    }


def slow_facts(
    is_head: bool, job_id: str, interval_s: float
) -> tuple[tuple[network.EfaCard, ...], dict[str, Any]]:
    """Return the EFA cards, and the other facts that may hang: a dead mount, a lost GPU. `errors`
    has the reason for each that is missing."""
    within_s = max(1.0, interval_s)
    facts = (gpus.gpus, system.memory, disks.mount, network.efa_cards)
    questions = questions_of(request_of(facts, within_s))
    if is_head:
        look = partial(job.collect, job_id or None, LOG_LINES)
        questions.append(Question(":job", "job", look, within_s))
    report = FactReport(0.0, 0.0, tuple(read(questions)))
    cards = report.get(network.efa_cards) or ()
    slow = report.without(network.efa_cards).as_data()
    return tuple(from_data(network.EfaCard, one) for one in cards), slow


def line_of(before: dict[str, Any], now: dict[str, Any], slow: dict[str, Any]) -> dict[str, Any]:
    """Return the line for two readings of the counters and the slow facts."""
    passed_s = max(0.001, now["at"] - before["at"])

    def rates(name: str) -> list[float]:
        return [round((b - a) / passed_s) for a, b in zip(before[name], now[name])]

    ticks = [b - a for a, b in zip(before["cpu"], now["cpu"])]
    ranks = []
    for identity, rank in now["ranks"].items():
        last = before["ranks"].get(identity, rank)
        cpu = (rank["cpu_s"] - last["cpu_s"]) / passed_s
        ranks.append({**rank, "cpu": round(cpu, 2)})
    return {
        "cpu": round(ticks[1] / ticks[0], 3) if ticks[0] else 0.0,
        "net": rates("net"),
        "disk": rates("disk"),
        **efa_of(network.grown_since(before["efa"], now["efa"])),
        "ranks": sorted(ranks, key=lambda rank: rank["rank"]),
        **slow,
    }


def efa_of(cards: tuple[network.EfaCard, ...]) -> dict[str, Any]:
    """Return what each EFA card counted in `span_s` seconds, by its name; nothing without cards. A
    counter that is not there is not known."""
    grown = {
        one.name: {
            name: one.grown[name] for name in (*network.BYTES, *TROUBLES) if name in one.grown
        }
        for one in cards
    }
    return {"efa": {"span_s": cards[0].span_s, "cards": grown}} if cards else {}
