"""A cluster's network: who is measured with whom and when, and which node or link is slow.

Rates are in bytes a second and of one direction, as links are; times are in seconds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from clusterctl.domain.findings import Finding, Severity
from clusterctl.domain.units import count, format_bytes, format_link

Pair = tuple[str, str]

# What lies further from the median than so many robust standard deviations is no noise, if it is
# also a part of the median that somebody would notice. 1.4826 x MAD is a normal one's deviation.
SIGMAS, MAD_TO_SIGMA = 4.0, 1.4826
SLOWER_BY = 0.15
LATER_BY = 1.0
# Rates of the two ways between two nodes that have no third one to be compared with.
ONE_WAY_BY = 0.5
MOST_LINKS = 10
PARTNERS_AGAIN = 3


def rounds(names: Sequence[str]) -> list[list[Pair]]:
    """A tournament: each meets each other once, in rounds in which nobody waits for two.

    The circle method: one stays, the others move on by one place. n - 1 rounds of n / 2 pairs; of
    an odd number of nodes one sits out in each of n rounds.
    """
    seats: list[str | None] = [*names, *([None] if len(names) % 2 else [])]
    made = []
    for _ in range(len(seats) - 1):
        facing = zip(seats[: len(seats) // 2], reversed(seats))
        made.append([(one, other) for one, other in facing if one and other])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return made


def disjoint(pairs: Iterable[Pair]) -> list[list[Pair]]:
    """These pairs in few rounds, in none of which a node has two."""
    made: list[list[Pair]] = []
    for pair in pairs:
        free = (one for one in made if not {*pair} & {name for each in one for name in each})
        place = next(free, None)
        if place is None:
            made.append(place := [])
        place.append(pair)
    return made


@dataclass(frozen=True)
class Allreduce:
    """One size of an allreduce. `busbw` is nccl-tests' bus bandwidth (doc/PERFORMANCE.md): what the
    link of each rank carries, whatever the number of ranks. `expected`: where it is known."""

    bytes: int
    seconds: float
    busbw: float
    expected: float | None = None


@dataclass(frozen=True)
class AllreduceTable:
    """What a program found. `error` says why there are no rows."""

    program: str
    ranks: int
    rows: tuple[Allreduce, ...] = ()
    source: str = ""
    error: str = ""


@dataclass(frozen=True)
class NetworkFigures:
    """What was measured. `many`, `one`: rates by (from, to), over `streams` connections and over
    one; `rtt`, `rtt_p99`: a small message's way there and back, the same for (a, b) and (b, a).

    `failures`: nodes that did not answer; `broken`: pairs of others that were not measured. `link`
    is the rate that the type always carries, 0 where EC2 does not say.
    """

    nodes: tuple[str, ...]
    streams: int
    seconds: float
    many: Mapping[Pair, float] = field(default_factory=dict)
    one: Mapping[Pair, float] = field(default_factory=dict)
    rtt: Mapping[Pair, float] = field(default_factory=dict)
    rtt_p99: Mapping[Pair, float] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    broken: Mapping[Pair, str] = field(default_factory=dict)
    instance_types: tuple[str, ...] = ()
    link: float = 0.0
    measured_at: str = ""
    took_s: float = 0.0
    allreduce: tuple[AllreduceTable, ...] = ()

    def as_data(self) -> dict[str, Any]:
        """For `--json`: pairs as a list, rates in bytes a second."""
        return {
            "nodes": list(self.nodes),
            "instance_types": list(self.instance_types),
            "measured_at": self.measured_at,
            "took_s": self.took_s,
            "streams": self.streams,
            "seconds": self.seconds,
            "link_bytes_s": self.link or None,
            "links": [
                {
                    "from": pair[0],
                    "to": pair[1],
                    "one_stream_bytes_s": round(self.one[pair]),
                    "streams_bytes_s": round(self.many[pair]),
                    "rtt_p50_s": self.rtt[pair],
                    "rtt_p99_s": self.rtt_p99[pair],
                }
                for pair in self.many
            ],
            "failures": dict(self.failures),
            "not_measured": [{"pair": list(pair), "why": why} for pair, why in self.broken.items()],
            "allreduce": [
                {
                    "program": table.program,
                    "ranks": table.ranks,
                    "error": table.error or None,
                    "expected_by": table.source or None,
                    "rows": [
                        {
                            "bytes": row.bytes,
                            "seconds": row.seconds,
                            "busbw_bytes_s": round(row.busbw),
                            "expected_busbw_bytes_s": row.expected,
                        }
                        for row in table.rows
                    ],
                }
                for table in self.allreduce
            ],
        }


@dataclass(frozen=True)
class Outliers:
    """The nodes and links that fall behind: what each reaches, and what the others do.

    A node falls behind if most of its links do: its rate is the upper quartile of them. A link
    falls behind what both of its nodes reach with others; those of a slow node are not told.
    """

    sends: Mapping[str, tuple[float, float]]
    receives: Mapping[str, tuple[float, float]]
    links: Mapping[Pair, tuple[float, float]]
    late_nodes: Mapping[str, tuple[float, float]]
    late_links: Mapping[Pair, tuple[float, float]]

    def again(self, report: NetworkFigures) -> list[Pair]:
        """What to measure a second time before anybody is blamed: each link that falls behind, and
        of each node the links that were its best. The worst first, twice the nodes at most."""
        worst = sorted(self.links, key=lambda pair: self.links[pair][0] / self.links[pair][1])
        worst += sorted(self.late_links, key=lambda pair: -self.late_links[pair][0])
        for node in {**self.sends, **self.receives, **self.late_nodes}:
            own = (pair for pair in report.many if pair[0] == node)
            worst += sorted(own, key=lambda pair: -report.many[pair])[:PARTNERS_AGAIN]
        found = dict.fromkeys((min(pair), max(pair)) for pair in worst)
        return list(found)[: 2 * len(report.nodes)]


def outliers(report: NetworkFigures) -> Outliers:
    """Who falls behind whom. Of two nodes only a way that is slower than the way back is told."""
    many, rtt = report.many, report.rtt
    sends, receives = _reached(many, 0), _reached(many, 1)
    if len(sends) == 2:
        ways = {pair: (rate, many[pair[::-1]]) for pair, rate in many.items()}
        slow = {pair: way for pair, way in ways.items() if way[0] < way[1] * (1 - ONE_WAY_BY)}
        return Outliers({}, {}, slow, {}, {})
    near = {node: -took for node, took in _reached(_negative(rtt), 0).items()}
    slow_out, slow_in = _behind(sends, SLOWER_BY), _behind(receives, SLOWER_BY)
    late = _behind(_negative(near), LATER_BY)
    links = {
        (one, other): (rate, min(sends[one], receives[other]))
        for (one, other), rate in many.items()
        if one not in slow_out and other not in slow_in
    }
    delays = {
        (one, other): (took, max(near[one], near[other]))
        for (one, other), took in rtt.items()
        if one < other and not late.keys() & {one, other}
    }
    slow_links = _behind({pair: rate / best for pair, (rate, best) in links.items()}, SLOWER_BY)
    late_links = _behind({pair: -took / best for pair, (took, best) in delays.items()}, LATER_BY)
    return Outliers(
        slow_out,
        slow_in,
        {pair: links[pair] for pair in slow_links},
        {node: (-own, -others) for node, (own, others) in late.items()},
        {pair: delays[pair] for pair in late_links},
    )


def _negative(values: Mapping[Any, float]) -> dict[Any, float]:
    return {key: -value for key, value in values.items()}


def _reached(values: Mapping[Pair, float], end: int) -> dict[str, float]:
    """What each node reaches at that end of its links: their upper quartile, the best of 4."""
    by_node: dict[str, list[float]] = {}
    for pair, value in values.items():
        by_node.setdefault(pair[end], []).append(value)
    return {
        node: sorted(own)[math.ceil(0.75 * (len(own) - 1))] for node, own in sorted(by_node.items())
    }


def _behind(values: Mapping[Any, float], by: float) -> dict[Any, tuple[float, float]]:
    """Those that are far below the median, with it."""
    if len(values) < 3:
        return {}
    middle = median(values.values())
    sigma = MAD_TO_SIGMA * median(abs(value - middle) for value in values.values())
    limit = middle - max(SIGMAS * sigma, abs(middle) * by)
    return {key: (value, middle) for key, value in values.items() if value < limit}


def findings(report: NetworkFigures, cluster: str) -> list[Finding]:
    """What is wrong, worst first: who does not answer, slow nodes, slow links."""
    behind = outliers(report)
    two = len({pair[0] for pair in report.many}) == 2
    found = [
        Finding("bench.no-answer", Severity.ERROR, why, node, f"clusterctl diagnose {cluster}")
        for node, why in report.failures.items()
    ]
    found += [
        Finding("bench.not-measured", Severity.ERROR, f"its way to {pair[1]}: {why}", pair[0])
        for pair, why in report.broken.items()
    ]
    advice = {
        node: "run it again; if it stays, put another machine in its place: "
        f"clusterctl replace {cluster} {node.rpartition('-')[2]}"
        for node in report.nodes
    }
    ways = (("sends", behind.sends), ("receives", behind.receives))
    for node in sorted({**behind.sends, **behind.receives}):
        said = [
            f"{word} {format_link(slow[node][0])} at best, the others {format_link(slow[node][1])}"
            for word, slow in ways
            if node in slow
        ]
        found.append(
            Finding("bench.slow-node", Severity.WARNING, "; ".join(said), node, advice[node])
        )
    for node, (own, others) in behind.late_nodes.items():
        text = (
            f"a message there and back takes {microseconds(own)}, to others {microseconds(others)}"
        )
        found.append(Finding("bench.late-node", Severity.WARNING, text, node, advice[node]))
    found += _link_findings(
        "bench.slow-link",
        behind.links,
        lambda pair, own, best: (
            f"sends {pair[1]} {format_link(own)}, where "
            f"{'the way back carries' if two else 'both reach'} {format_link(best)}"
        ),
        lambda link: link[0] / link[1],
    )
    found += _link_findings(
        "bench.late-link",
        behind.late_links,
        lambda pair, own, best: (
            f"messages to {pair[1]} and back take {microseconds(own)}, to others "
            f"{microseconds(best)}"
        ),
        lambda link: -link[0] / link[1],
    )
    return found


def _link_findings(
    check_id: str,
    links: Mapping[Pair, tuple[float, float]],
    text: Callable[[Pair, float, float], str],
    order: Callable[[tuple[float, float]], float],
) -> list[Finding]:
    worst = sorted(links, key=lambda pair: order(links[pair]))
    found = [
        Finding(check_id, Severity.WARNING, text(pair, *links[pair]), pair[0])
        for pair in worst[:MOST_LINKS]
    ]
    if len(worst) > MOST_LINKS:
        more = f"and {count(len(worst) - MOST_LINKS, 'more link')} like these (see --json)"
        found.append(Finding(check_id, Severity.WARNING, more))
    return found


def microseconds(seconds: float) -> str:
    """`87 µs`."""
    return f"{seconds * 1e6:.0f} µs"


# GB/s of nccl-tests' all_reduce_perf over all GPUs, by type and nodes: MiB -> bus bandwidth. AWS's
# own (awslabs/awsome-distributed-ai, micro-benchmarks/nccl-tests/README.md) and a user's
# (NVIDIA/nccl#235). Where none is known, none is told.
AWS_SAMPLES = "awslabs/awsome-distributed-ai, micro-benchmarks/nccl-tests"
EXPECTED: dict[tuple[str, int], tuple[str, dict[float, float]]] = {
    ("p4de.24xlarge", 2): (
        AWS_SAMPLES,
        {1: 6.35, 4: 14.7, 16: 26.4, 64: 47.6, 128: 64.3, 256: 69.9, 1024: 76.8},
    ),
    ("p5.48xlarge", 2): (
        AWS_SAMPLES,
        {1: 16, 4: 46.6, 16: 105, 64: 209, 128: 289, 256: 343, 1024: 437},
    ),
    ("p3dn.24xlarge", 2): ("NVIDIA/nccl#235", {1024: 10}),
}


def expected_busbw(instance_type: str, nodes: int, size: int) -> tuple[float | None, str]:
    """Bytes a second of an allreduce by NCCL, and who measured it; None: not known."""
    source, known = EXPECTED.get((instance_type, nodes), ("", {}))
    rate = known.get(size / 2**20)
    return (rate * 1e9, source) if rate else (None, "")


def allreduce_of_mpi(text: str, ranks: int) -> tuple[Allreduce, ...]:
    """The rows of OSU's osu_allreduce, `size  microseconds`, which our own program prints too."""
    found = re.findall(r"(?m)^(\d+)\s+([\d.]+)\s*$", text)
    return tuple(
        Allreduce(int(size), float(took) / 1e6, _busbw(int(size), float(took) / 1e6, ranks))
        for size, took in found
        if float(took)
    )


def _busbw(size: int, seconds: float, ranks: int) -> float:
    return size / seconds * 2 * (ranks - 1) / ranks


def allreduce_of_nccl(text: str, instance_type: str, nodes: int) -> tuple[Allreduce, ...]:
    """The rows of nccl-tests' all_reduce_perf, out of place: size, count, type, redop, root, then
    microseconds, algbw and busbw in GB/s."""
    row = r"(?m)^\s*(\d+)\s+\d+\s+\w+\s+\w+\s+-?\d+\s+([\d.]+)\s+[\d.]+\s+([\d.]+)\s"
    return tuple(
        Allreduce(
            int(size),
            float(took) / 1e6,
            float(rate) * 1e9,
            expected_busbw(instance_type, nodes, int(size))[0],
        )
        for size, took, rate in re.findall(row, text)
    )


def matrix(report: NetworkFigures, values: Mapping[Pair, float]) -> list[list[float]]:
    """Rows send, columns receive; NaN where nothing was measured."""
    return [[values.get((one, other), math.nan) for other in report.nodes] for one in report.nodes]


def summary(report: NetworkFigures) -> list[str]:
    """The figures of all pairs together, a line each."""
    if not report.many:
        return []
    always = f"; the type always carries {format_link(report.link)}" if report.link else ""
    return [
        _spread(f"{count(report.streams, 'stream')} at once", report.many, format_link) + always,
        _spread("one stream", report.one, format_link),
        _spread("there and back", report.rtt, microseconds)
        + f"; 99 % within {microseconds(median(report.rtt_p99.values()))}",
    ]


def _spread(what: str, values: Mapping[Pair, float], shown: Callable[[float], str]) -> str:
    low, high = min(values.values()), max(values.values())
    middle = median(values.values())
    return f"{what}: {shown(middle)} in the middle, {shown(low)} to {shown(high)}"


def allreduce_lines(table: AllreduceTable) -> list[tuple[str, ...]]:
    """Cells of a table: size, time, bus bandwidth, and what is expected of it."""
    return [
        (
            format_bytes(row.bytes),
            microseconds(row.seconds),
            format_link(row.busbw),
            format_link(row.expected) if row.expected else "",
        )
        for row in table.rows
    ]
