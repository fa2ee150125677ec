"""The pairs of a network benchmark, and which nodes and links it calls slow."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.bench.network import (
    AWS_SAMPLES,
    NetworkFigures,
    disjoint,
    findings,
    rounds,
    table_of_mpi,
    table_of_nccl,
)
from clusterctl.domain.findings import Severity

GBIT = 1e9 / 8


def names(number):
    return [f"demo-{index}" for index in range(number)]


@given(st.integers(2, 65))
def test_each_node_meets_each_other_once_and_never_two_at_a_time(number):
    played = rounds(names(number))
    assert len(played) == number - 1 + number % 2
    assert {len(games) for games in played} == {number // 2}
    for games in played:
        busy = [name for pair in games for name in pair]
        assert len(busy) == len(set(busy))
    met = [frozenset(pair) for games in played for pair in games]
    assert len(met) == len(set(met)) == number * (number - 1) // 2


@given(st.sets(st.sampled_from(list(itertools.combinations(names(9), 2)))))
def test_what_is_measured_again_is_disjoint_and_whole(pairs):
    again = disjoint(pairs)
    assert {pair for games in again for pair in games} == pairs
    for games in again:
        assert len({name for pair in games for name in pair}) == 2 * len(games)


def measured(number, rate, rtt=lambda one, other: 50e-6, noise=0.02, seed=1):
    """Return the report of a network. `rate(sender, receiver)` is in Gbit/s, by index."""
    varied = random.Random(seed)
    pairs = list(itertools.permutations(range(number), 2))
    node = names(number)
    many = {
        (node[a], node[b]): rate(a, b) * GBIT * varied.uniform(1 - noise, 1 + noise)
        for a, b in pairs
    }
    took = {(node[a], node[b]): rtt(min(a, b), max(a, b)) for a, b in pairs}
    return NetworkFigures(
        tuple(node), 8, 1.0, many=many, one=many, rtt=took, rtt_p99=took, instance_types=("x",)
    )


def blamed(report):
    return {(one.check, one.host) for one in findings(report, "demo")}


@pytest.mark.parametrize("number", [3, 4, 5, 8, 32])
@pytest.mark.parametrize(
    ("rate", "rtt", "expected"),
    [
        (lambda a, b: 10, None, set()),
        # One node is slow, in both directions or in one. Its links are not named as well.
        (lambda a, b: 1 if 2 in (a, b) else 10, None, {("bench.slow-node", "demo-2")}),
        (lambda a, b: 1 if b == 2 else 10, None, {("bench.slow-node", "demo-2")}),
        (lambda a, b: 1 if a == 2 else 10, None, {("bench.slow-node", "demo-2")}),
        # One link is slow, in one direction.
        (lambda a, b: 5 if (a, b) == (0, 1) else 10, None, {("bench.slow-link", "demo-0")}),
        (lambda a, b: 10, lambda a, b: 900e-6 if 2 in (a, b) else 50e-6,
         {("bench.late-node", "demo-2")}),
        (lambda a, b: 10, lambda a, b: 900e-6 if (a, b) == (0, 1) else 50e-6,
         {("bench.late-link", "demo-0")}),
    ],
)  # fmt: skip
def test_a_slow_node_or_link_is_named(number, rate, rtt, expected):
    assert blamed(measured(number, rate, rtt or (lambda a, b: 50e-6))) == expected


@given(st.integers(3, 40), st.floats(0, 0.07), st.integers(0, 99))
def test_noise_alone_names_no_node(number, noise, seed):
    assert blamed(measured(number, lambda a, b: 10, noise=noise, seed=seed)) == set()


@given(st.integers(6, 40), st.floats(0, 0.1), st.integers(0, 99), st.floats(0.05, 0.5))
def test_a_node_of_half_the_rate_or_less_is_named_through_noise(number, noise, seed, share):
    report = measured(
        number, lambda a, b: 10 * share if 5 in (a, b) else 10, noise=noise, seed=seed
    )
    assert ("bench.slow-node", "demo-5") in blamed(report)


def test_of_two_nodes_only_the_slower_direction_is_named():
    assert blamed(measured(2, lambda a, b: 1 if a else 10)) == {("bench.slow-link", "demo-1")}
    assert blamed(measured(2, lambda a, b: 1)) == set()


OSU = """
# OSU MPI Allreduce Latency Test v7.3
# Datatype: MPI_CHAR.
# Size       Avg Latency(us)
8                      52.41
1048576              1843.20
"""
# The columns of the in-place runs are left out. The bandwidths are AWS's for two p5.48xlarge.
NCCL = """\
#                                                              out-of-place
#       size         count      type   redop    root     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)
           8             2     float     sum      -1    69.07    0.00    0.00      0
     1048576        262144     float     sum      -1    122.8    8.54   16.01      0
  1073741824     268435456     float     sum      -1     4605  233.16  437.18      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 106.213
"""


def test_allreduces_are_read():
    osu = table_of_mpi(OSU, 0, "osu_allreduce", 4)
    assert (osu.program, osu.ranks, osu.error) == ("osu_allreduce", 4, None)
    [small, large] = osu.rows
    assert (small.bytes, small.seconds) == (8, pytest.approx(52.41e-6))
    assert large.busbw_bytes_s == pytest.approx(1048576 / 1843.2e-6 * 1.5)
    table = nccl(NCCL)
    assert (table.program, table.operation) == ("all_reduce_perf (nccl-tests)", "allreduce")
    assert (table.nccl, table.error, table.expected_by) == (None, None, AWS_SAMPLES)
    assert [
        (row.bytes, row.busbw_bytes_s / 1e9, row.expected_busbw_bytes_s) for row in table.rows
    ] == [(8, 0.0, None), (1048576, 16.01, 16e9), (1073741824, 437.18, 437e9)]
    assert nccl(NCCL, type_="g5.48xlarge").rows[-1].expected_busbw_bytes_s is None
    # Published are only allreduces.
    gathered = nccl(NCCL, program="all_gather_perf")
    assert (gathered.operation, gathered.expected_by) == ("allgather", None)
    assert {row.expected_busbw_bytes_s for row in gathered.rows} == {None}


def nccl(text, status=0, program="all_reduce_perf", type_="p5.48xlarge"):
    return table_of_nccl(text, status, program, 16, type_, 2)


# In the format of nccl-tests 2.13 and 2.19 (src/all_to_all.cu, src/util.cu), made by hand.
WHOLE = """\
# nccl-tests version 2.19.6 nccl-headers=22809 nccl-library=22707
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time
  1073741824  16777216 float none -1  1.1e+06  233.16  218.58       0  46050.1  233.16  218.58  N/A
# Out of bounds values : 0 OK
# Collective test concluded: alltoall_perf
"""


def test_all_of_nccl_tests_columns_are_read():
    table = nccl(WHOLE, program="alltoall_perf")
    assert (table.operation, table.nccl, table.error) == ("all-to-all", "2.27.7", None)
    assert [(row.bytes, row.seconds, row.busbw_bytes_s) for row in table.rows] == [
        (1 << 30, 1.1, 218.58e9)
    ]
    assert nccl(WHOLE.replace("N/A", "5e-07")).error is None
    older = f"demo-0: NCCL version 2.21.5+cuda12.4\n{NCCL}"
    assert nccl(older).nccl == "2.21.5"


@pytest.mark.parametrize(
    ("text", "status", "error"),
    [
        # Wrong values, out of place and in place.
        (WHOLE.replace("218.58       0", "218.58     512"), 0, "512 wrong values in 1.0 GiB"),
        (WHOLE.replace("N/A", "1e+06"), 0, "1e+06 wrong values in 1.0 GiB"),
        # Each rank alone: the factor (n - 1) / n of the bus bandwidth is zero.
        (WHOLE.replace("218.58", "  0.00"), 0, "the ranks did not find each other"),
        (WHOLE.replace("1.1e+06  233.16  218.58", "   0.00     inf     inf"), 0,
         "no rate for 1.0 GiB"),
        (WHOLE.replace("1.1e+06  233.16  218.58", "    nan     nan     nan"), 0,
         "no rate for 1.0 GiB"),
        # All figures, and then it fails.
        (WHOLE, 1, "it failed (exit status 1)"),
        (WHOLE, 124, "it did not end in time (exit status 124)"),
        ("", 0, "it printed no figures"),
        ("# Out of bounds values : 0 OK\n", 0, "it printed no figures"),
        ("mpirun: cannot execute", 127, "it failed (exit status 127)"),
    ],
)  # fmt: skip
def test_figures_that_count_for_nothing(text, status, error):
    table = nccl(text, status, program="alltoall_perf")
    assert (error in table.error, table.rows) == (True, ()), table.error
    report = NetworkFigures(("a-0", "a-1"), 4, 1.0, collectives=(table,))
    [found] = findings(report, "a")
    assert (found.check, found.severity) == ("bench.nccl", Severity.ERROR)
    assert found.message == f"alltoall_perf (nccl-tests): {table.error}"


@pytest.mark.parametrize(
    ("text", "status", "error"),
    [
        # All figures, and then it fails.
        (OSU, 1, "it failed (exit status 1)"),
        (OSU, 124, "it did not end in time (exit status 124)"),
        (OSU.replace("1843.20", "0.00"), 0, "no time for 1.0 MiB, but '0.00'"),
        (OSU.replace("1843.20", "nan"), 0, "no time for 1.0 MiB, but 'nan'"),
        (OSU.replace("1843.20", "inf"), 0, "no time for 1.0 MiB, but 'inf'"),
        (OSU.replace("1843.20", "1843.2.0"), 0, "no time for 1.0 MiB, but '1843.2.0'"),
        (OSU.replace("52.41", "-52.41"), 0, "no time for 8 B, but '-52.41'"),
        ("", 0, "it printed no figures"),
        ("This test requires at least two processes\n", 1, "it failed (exit status 1)"),
    ],
)
def test_figures_of_mpi_that_count_for_nothing(text, status, error):
    table = table_of_mpi(text, status, "osu_allreduce", 4)
    assert (table.error, table.rows) == (error, ())
    [found] = findings(NetworkFigures(("a-0", "a-1"), 4, 1.0, allreduce=(table,)), "a")
    assert (found.check, found.severity) == ("bench.mpi", Severity.ERROR)
    assert found.message == f"osu_allreduce: {error}"
