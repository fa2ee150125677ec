"""The network benchmark: which pairs are measured in which round, and which nodes are slow.

Rates are in bytes per second and of one direction. A link is a direction, too. Times are in
seconds.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, ClassVar, Optional, TypedDict

from clusterctl.bench.model import MeasuredNetwork
from clusterctl.domain.findings import Finding
from clusterctl.domain.ranges import grouped
from clusterctl.domain.results import HostFailure
from clusterctl.domain.units import count, format_bytes, format_link

Pair = tuple[str, str]

# A value is an outlier if it is this many robust standard deviations from the median, and also the
# part of the median given below. For normal values, 1.4826 x MAD (median absolute deviation) is the
# standard deviation.
SIGMAS, MAD_TO_SIGMA = 4.0, 1.4826
SLOWER_BY = 0.15  # of the median rate
LATER_BY = 1.0  # of the median round trip
# With only two nodes, a direction is slow if its rate is this part below that of the way back.
ONE_WAY_BY = 0.5
MOST_LINKS = 10  # findings about links of one kind
PARTNERS_AGAIN = 3  # links of a slow node that are measured again
# Smaller messages are sent by other protocols, with another bandwidth.
FEWEST_BYTES = 2**20


def rounds(names: Sequence[str]) -> list[list[Pair]]:
    """Return a round-robin tournament: every pair once, and every node in at most one pair a round.

    This is the circle method: one node stays in its place, the others move on by one each round.
    There are n - 1 rounds of n / 2 pairs; for odd n, n rounds in each of which one node pauses.
    """
    seats: list[str | None] = [*names, *([None] if len(names) % 2 else [])]
    made = []
    for _ in range(len(seats) - 1):
        facing = zip(seats[: len(seats) // 2], reversed(seats))
        made.append([(one, other) for one, other in facing if one and other])
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return made


def disjoint(pairs: Iterable[Pair]) -> list[list[Pair]]:
    """Arrange pairs in few rounds, in each of which a node has at most one partner."""
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
    """The result of an allreduce, or another collective operation, of one size in bytes.

    `busbw_bytes_s` is the bus bandwidth as in nccl-tests (doc/PERFORMANCE.md): what the link of
    each rank carries, independent of the number of ranks. `expected_busbw_bytes_s` is a published
    one; None if there is none.
    """

    bytes: int
    seconds: float
    busbw_bytes_s: float = 0.0
    expected_busbw_bytes_s: Optional[float] = None


@dataclass(frozen=True)
class AllreduceTable:
    """The results of a program that measures a collective operation.

    `expected_by` is the source of the expected figures. `error` is the reason if there are no rows.
    `nccl` is the version of NCCL that the program used; None if it used none or did not print it.
    """

    program: str
    ranks: int
    rows: tuple[Allreduce, ...] = ()
    expected_by: Optional[str] = None
    error: Optional[str] = None
    operation: str = "allreduce"
    nccl: Optional[str] = None

    @property
    def large(self) -> list[Allreduce]:
        """The rows of large messages, where the rate counts more than the latency."""
        return [row for row in self.rows if row.bytes >= FEWEST_BYTES and row.seconds > 0]


# A direction between two nodes, in JSON. `from` is a word of Python's.
LinkData = TypedDict(
    "LinkData",
    {
        "from": str,
        "to": str,
        "one_stream_bytes_s": int,
        "streams_bytes_s": int,
        "rtt_p50_s": float,
        "rtt_p99_s": float,
    },
)


class BrokenPair(TypedDict):
    pair: tuple[str, str]
    message: str


@dataclass(frozen=True)
class NetworkFigures:
    """All measurements of a network benchmark.

    `many` and `one` are rates by (from, to), over `streams` connections and over one. `rtt` and
    `rtt_p99` are the median and the 99th percentile of a small message's round trip, the same for
    (a, b) and (b, a). `seconds` is the duration of each measurement, `duration_s` that of all.
    `failures` has the nodes that did not answer, `broken` the pairs of other nodes that
    were not measured and why. `allreduce` has the allreduces by MPI and by NCCL, `collectives` the
    other operations by NCCL. `lacks_nccl_tests` has the programs that would measure NCCL on the
    GPUs, and are not there. `link_bytes_s` is the rate that the instance type always carries; None
    if EC2 has no such rate.
    """

    nodes: tuple[str, ...]
    streams: int
    seconds: float
    many: Mapping[Pair, float] = field(default_factory=dict)
    one: Mapping[Pair, float] = field(default_factory=dict)
    rtt: Mapping[Pair, float] = field(default_factory=dict)
    rtt_p99: Mapping[Pair, float] = field(default_factory=dict)
    failures: tuple[HostFailure, ...] = ()
    broken: Mapping[Pair, str] = field(default_factory=dict)
    instance_types: tuple[str, ...] = ()
    link_bytes_s: Optional[float] = None
    measured_at: str = ""
    duration_s: float = 0.0
    allreduce: tuple[AllreduceTable, ...] = ()
    collectives: tuple[AllreduceTable, ...] = ()
    lacks_nccl_tests: tuple[str, ...] = ()
    json_names: ClassVar[Sequence[str]] = (
        *(
            "nodes",
            "instance_types",
            "measured_at",
            "duration_s",
            "streams",
            "seconds",
            "link_bytes_s",
        ),
        *("links", "failures", "not_measured", "allreduce", "collectives"),
    )

    @property
    def links(self) -> Sequence[LinkData]:
        """The figures of each direction."""
        return [
            {
                "from": pair[0],
                "to": pair[1],
                "one_stream_bytes_s": round(self.one[pair]),
                "streams_bytes_s": round(self.many[pair]),
                "rtt_p50_s": self.rtt[pair],
                "rtt_p99_s": self.rtt_p99[pair],
            }
            for pair in self.many
        ]

    @property
    def not_measured(self) -> Sequence[BrokenPair]:
        """The broken pairs."""
        return [{"pair": pair, "message": why} for pair, why in self.broken.items()]


@dataclass(frozen=True)
class Outliers:
    """The slow nodes and links. Each has its own value and the one that it is compared with.

    A node's rate is the upper quartile of its links' rates, so a node is slow only if most of its
    links are. A link is slow compared with what both of its nodes reach with others. The links of a
    slow node are not listed. `sends`, `receives` and `links` are rates, `late_nodes` and
    `late_links` are round trips.
    """

    sends: Mapping[str, tuple[float, float]]
    receives: Mapping[str, tuple[float, float]]
    links: Mapping[Pair, tuple[float, float]]
    late_nodes: Mapping[str, tuple[float, float]]
    late_links: Mapping[Pair, tuple[float, float]]

    def again(self, report: NetworkFigures) -> list[Pair]:
        """Return the pairs to measure a second time, before they are reported.

        These are the slow links, the worst first, and the best links of each slow node: at most
        twice as many pairs as there are nodes.
        """
        worst = sorted(self.links, key=lambda pair: self.links[pair][0] / self.links[pair][1])
        worst += sorted(self.late_links, key=lambda pair: -self.late_links[pair][0])
        for node in {**self.sends, **self.receives, **self.late_nodes}:
            own = (pair for pair in report.many if pair[0] == node)
            worst += sorted(own, key=lambda pair: -report.many[pair])[:PARTNERS_AGAIN]
        found = dict.fromkeys((min(pair), max(pair)) for pair in worst)
        return list(found)[: 2 * len(report.nodes)]


def outliers(report: NetworkFigures) -> Outliers:
    """Return the slow nodes and links. With two nodes, compare only the two directions."""
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
    """Return the upper quartile of each node's values, of up to four values the best.

    `end` is the node's place in a pair: 0 for what it sends, 1 for what it receives.
    """
    by_node = sorted(grouped((pair[end], value) for pair, value in values.items()).items())
    return {node: sorted(own)[math.ceil(0.75 * (len(own) - 1))] for node, own in by_node}


def _behind(values: Mapping[Any, float], by: float) -> dict[Any, tuple[float, float]]:
    """Return the values far below the median, each with the median. Fewer than three have none."""
    if len(values) < 3:
        return {}
    middle = median(values.values())
    sigma = MAD_TO_SIGMA * median(abs(value - middle) for value in values.values())
    limit = middle - max(SIGMAS * sigma, abs(middle) * by)
    return {key: (value, middle) for key, value in values.items() if value < limit}


def findings(report: NetworkFigures, cluster: str) -> list[Finding]:
    """Return what is wrong: nodes that do not answer, then slow nodes, then slow links."""
    behind = outliers(report)
    two = len({pair[0] for pair in report.many}) == 2
    see_why = f"see why: clusterctl doctor {cluster}"
    found = [
        Finding.error("bench.no-answer", one.message, one.hint, one.host) for one in report.failures
    ]
    found += [
        Finding.error(
            "bench.not-measured",
            f"its link to {pair[1]} was not measured: {why}",
            see_why,
            pair[0],
        )
        for pair, why in report.broken.items()
    ]
    again = "run it again; if it stays, put another machine in"
    advice = {
        node: f"{again} its place: clusterctl replace {cluster} {node.rpartition('-')[2]}"
        for node in report.nodes
    }
    of_link = f"{again} the place of one of the two: clusterctl replace {cluster} INDEX"
    found += _node_findings(behind, advice)
    found += _collective_findings(report, see_why)
    found += _link_findings(
        "bench.slow-link",
        behind.links,
        lambda pair, own, best: (
            f"sends {pair[1]} {format_link(own)}, where "
            f"{'the way back carries' if two else 'both reach'} {format_link(best)}"
        ),
        lambda link: link[0] / link[1],
        of_link,
    )
    found += _link_findings(
        "bench.late-link",
        behind.late_links,
        lambda pair, own, best: (
            f"messages to {pair[1]} and back take {microseconds(own)}, to others "
            f"{microseconds(best)}"
        ),
        lambda link: -link[0] / link[1],
        of_link,
    )
    return found


def _node_findings(behind: Outliers, advice: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the nodes whose every link is slow, then those whose every message is late."""
    ways = (("sends", behind.sends), ("receives", behind.receives))
    for node in sorted({**behind.sends, **behind.receives}):
        texts = [
            f"{word} {format_link(slow[node][0])} at best, the others {format_link(slow[node][1])}"
            for word, slow in ways
            if node in slow
        ]
        yield Finding.warning("bench.slow-node", "; ".join(texts), advice[node], node)
    for node, (own, others) in behind.late_nodes.items():
        text = (
            f"a message there and back takes {microseconds(own)}, to others {microseconds(others)}"
        )
        yield Finding.warning("bench.late-node", text, advice[node], node)


def _collective_findings(report: NetworkFigures, hint: str) -> list[Finding]:
    """Return an error for each program that failed, and where nccl-tests are to be had."""
    found = [
        Finding.error(
            "bench.nccl" if NCCL_TESTS in table.program else "bench.mpi",
            f"{table.program}: {table.error}",
            hint,
        )
        for table in (*report.allreduce, *report.collectives)
        if table.error and table.program != NO_MPI
    ]
    if report.lacks_nccl_tests:
        lacks = ", ".join(report.lacks_nccl_tests)
        text = f"NCCL was not measured with {lacks} of {NCCL_TESTS}: not on the head node"
        found.append(Finding.info("bench.nccl-tests", text, GET_NCCL_TESTS))
    return found


def _link_findings(
    check_id: str,
    links: Mapping[Pair, tuple[float, float]],
    text: Callable[[Pair, float, float], str],
    order: Callable[[tuple[float, float]], float],
    hint: str,
) -> list[Finding]:
    worst = sorted(links, key=lambda pair: order(links[pair]))
    found = [
        Finding.warning(check_id, text(pair, *links[pair]), hint, pair[0])
        for pair in worst[:MOST_LINKS]
    ]
    if len(worst) > MOST_LINKS:
        more = f"and {count(len(worst) - MOST_LINKS, 'more link')} like these (see --json)"
        found.append(Finding.warning(check_id, more, hint))
    return found


def microseconds(seconds: float) -> str:
    """Return a time as text, such as `87 µs`."""
    return f"{seconds * 1e6:.0f} µs"


# Published results of nccl-tests' all_reduce_perf over all GPUs, by type and number of nodes: the
# source, and MiB -> bus bandwidth in GB/s. They are by AWS (awslabs/awsome-distributed-ai,
# micro-benchmarks/nccl-tests/README.md) and by a user (NVIDIA/nccl#235).
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


def table_of_mpi(text: str, exit_status: int, program: str, ranks: int) -> AllreduceTable:
    """Return the results of OSU's osu_allreduce: lines of `size  microseconds`.

    Our own program, node/jobs/allreduce.py, prints the same format. There are no rows but an error
    if a time is zero or no number, or the program failed.
    """
    rows, error = [], ""
    for size, cell in re.findall(r"(?m)^[ \t]*(\d{1,15})[ \t]+(\S+)[ \t]*\r?$", text):
        took = _number(cell) / 1e6
        if not 0 < took < math.inf:
            error = f"no time for {format_bytes(int(size))}, but {cell[:20]!r}"
            break
        rate = int(size) / took * 2 * (ranks - 1) / ranks
        rows.append(Allreduce(int(size), took, round(rate)))
    error = error or _failure(exit_status) or ("" if rows else "it printed no figures")
    return AllreduceTable(program, ranks, () if error else tuple(rows), error=error or None)


def _failure(exit_status: int) -> str:
    """Return the meaning of an exit status that is not 0; that of timeout(1) is 124."""
    if not exit_status:
        return ""
    why = "it did not end in time" if exit_status == 124 else "it failed"
    return f"{why} (exit status {exit_status})"


NO_MPI = "MPI"  # stands for the program where there is no Open MPI
NCCL_TESTS = "nccl-tests"
# The operations of nccl-tests that are measured, by program.
NCCL_PROGRAMS = {
    "all_reduce_perf": "allreduce",
    "all_gather_perf": "allgather",
    "reduce_scatter_perf": "reduce-scatter",
    "alltoall_perf": "all-to-all",
}
GET_NCCL_TESTS = (
    "the Deep Learning AMIs with EFA's software have them (/usr/local/cuda-*/efa); else build "
    "NVIDIA's with MPI, as in their README (github.com/NVIDIA/nccl-tests), and put them into "
    "~/nccl-tests/build of every node with `clusterctl copy`"
)
# A smaller rate may be printed as 0.00 GB/s.
LEAST_PRINTED = 0.01e9
# One half of a row: time in microseconds, algbw and busbw in GB/s, and the number of wrong values,
# which is N/A where nccl-tests does not check them, and in old versions the largest rounding error.
_HALF = r"\s+(\S+)\s+(\S+)\s+(\S+)\s+(\S+)"
_NCCL_ROW = re.compile(rf"(?m)^\s*(\d+)\s+\d+\s+\w+\s+\w+\s+-?\d+{_HALF}(?:{_HALF})?\s*$")
_NCCL_VERSION = re.compile(r"nccl-library=(\d+)|NCCL version (\d[\d.]*)")


def table_of_nccl(
    text: str, exit_status: int, program: str, ranks: int, instance_type: str, nodes: int
) -> AllreduceTable:
    """Return the out-of-place results of a program of nccl-tests, with the published ones.

    Its columns are size, count, type, redop, root; then microseconds, algbw and busbw in GB/s, and
    the number of wrong values, once out of place and once in place. There are no rows but an error
    if a value was wrong, a rate is zero, or the program failed.
    """
    rows, error = [], ""
    source, known = EXPECTED.get((instance_type, nodes), ("", {}))
    for size, *cells in _NCCL_ROW.findall(text):
        wrong = [cell for cell in cells[3::4] if _number(cell) >= 1]
        took, rate = _number(cells[0]), _number(cells[2])
        if wrong:
            error = f"{wrong[0]} wrong values in {format_bytes(int(size))}: the data were corrupted"
            break
        if took and not rate and int(size) / took * 1e6 >= LEAST_PRINTED:
            error = (
                "the bus bandwidth is zero: the ranks did not find each other, as with a program "
                "that was built for another MPI"
            )
            break
        if not took or not rate >= 0:
            error = f"no rate for {format_bytes(int(size))}"
            break
        expected = known.get(int(size) / 2**20) if program == "all_reduce_perf" else None
        published = expected and expected * 1e9
        rows.append(Allreduce(int(size), took / 1e6, round(rate * 1e9), published))
    error = error or _failure(exit_status)
    found = _NCCL_VERSION.search(text)
    return AllreduceTable(
        f"{program} ({NCCL_TESTS})",
        ranks,
        () if error else tuple(rows),
        expected_by=source if any(row.expected_busbw_bytes_s for row in rows) else None,
        error=error or (None if rows else "it printed no figures"),
        operation=NCCL_PROGRAMS[program],
        nccl=_version(found[1] or found[2]) if found else None,
    )


def _number(text: str) -> float:
    """Return the number in a cell; NaN if it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _version(text: str) -> str:
    """Return a version of NCCL that is written as 2.21.5 or as NCCL_VERSION_CODE, 22105."""
    if not text.isdigit():
        return text.rstrip(".")
    code = int(text)
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}"


def step_allreduce(
    figures: NetworkFigures, gradient_bytes: float, message_bytes: float
) -> MeasuredNetwork | None:
    """Return the allreduce of a step's gradients.

    The gradients are sent in messages of `message_bytes` at most. An allreduce takes alpha + bytes
    / rate, fitted to the times of messages of 1 MiB or more; those of NCCL, if it was measured,
    else those of MPI. None if there are fewer than two such times.
    """
    tables = [table for table in figures.allreduce if len(table.large) >= 2]
    nodes = len(figures.nodes) - len(figures.failures)
    if not tables or nodes < 2:
        return None
    table = next((one for one in tables if "nccl" in one.program), tables[0])
    rows = [(row.bytes, row.seconds) for row in table.large]
    # Least squares of the relative errors: the smallest message counts as much as the largest.
    one, size = [1 / took for _, took in rows], [sent / took for sent, took in rows]
    aa, ab, bb = (sum(map(operator.mul, *pair)) for pair in ((one, one), (one, size), (size, size)))
    per_byte = max(0.0, (sum(size) * aa - sum(one) * ab) / (aa * bb - ab * ab))
    latency_s = max(0.0, (sum(one) - per_byte * ab) / aa)
    if not latency_s:
        per_byte = sum(size) / bb
    messages = max(1, math.ceil(gradient_bytes / message_bytes))
    return MeasuredNetwork(nodes, messages * latency_s, gradient_bytes * per_byte)


def matrix(report: NetworkFigures, values: Mapping[Pair, float]) -> list[list[float]]:
    """Return values as a matrix: rows send, columns receive; NaN if there is no value."""
    return [[values.get((one, other), math.nan) for other in report.nodes] for one in report.nodes]


def summary(report: NetworkFigures) -> list[str]:
    """Return the median and the range over all pairs, a line for each kind of figure."""
    if not report.many:
        return []
    link = report.link_bytes_s
    always = f"; the type always carries {format_link(link)}" if link else ""
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
    """Return the cells of a table: size, time, bus bandwidth, expected bus bandwidth."""
    return [
        (
            format_bytes(row.bytes),
            microseconds(row.seconds),
            format_link(row.busbw_bytes_s),
            format_link(row.expected_busbw_bytes_s) if row.expected_busbw_bytes_s else "",
        )
        for row in table.rows
    ]
