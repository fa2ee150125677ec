"""`clusterctl bench NAME --network` on four hosts of the lab, whose links have a limited rate."""

from __future__ import annotations

import signal

import pytest

from clusterctl.bench.network import findings
from clusterctl.domain.errors import HostError
from clusterctl.domain.results import CommandResult
from clusterctl.operations import bench_network
from clusterctl.operations.bench_network import measure_network
from tests.pair import LabCluster, eventually

pytestmark = [pytest.mark.lab, pytest.mark.train]

MBIT = 1e6 / 8


@pytest.fixture(scope="module")
def quad(lab):
    cluster = LabCluster(lab, "quad")
    cluster.ok("up", "--nodes", "4", "--instance-type", "p3.2xlarge")
    # A rate that this machine can carry under any load.
    cluster.lab_fault("shape", "all", "--rate", "100mbit")
    yield cluster
    cluster.lab_fault("clear", "all")
    cluster.ctl("down", "--yes", "--discard-results")


def measured(cluster, watch=lambda step: None):
    with cluster.access() as access:
        return measure_network(access, streams=3, seconds=0.3, watch=watch)


def left_on(cluster, node):
    """Return the relays, ranks and listeners on a node, without those of sshd."""
    left = "pgrep -af 'clusterctl:|[m]pirun|MPI_Allreduce' | grep -v pgrep; "
    return cluster.on(node, left + "ss -Hltn | grep -v ':22 '; :")


def blamed(report):
    return [(one.check, one.host) for one in findings(report, "quad")]


@pytest.mark.all
def test_a_slow_link_is_named(quad):
    """On an idle machine no other link is named: tests/bench/test_network.py shows that."""
    with quad.fault(2, "shape", "--rate", "10mbit"):
        report = measured(quad)
    assert ("bench.slow-node", "quad-2") in blamed(report)
    assert len(report.many) == len(report.one) == len(report.rtt) == 12
    for pair, rate in report.many.items():
        # On a busy machine, what waits in the buffers makes a rate look higher than the link's.
        assert 0 < rate / MBIT < 3 * (10 if "quad-2" in pair else 100), pair
    [table] = report.allreduce
    assert (table.program, table.ranks, table.error) == ("MPI_Allreduce", 4, None)
    assert [row.bytes for row in table.rows][:3] == [8, 1024, 65536]
    # No rank's link carries more than the slowest one, except for a burst.
    assert table.rows[3].busbw_bytes_s < 1.1 * 10 * MBIT
    assert [left_on(quad, node) for node in range(4)] == [""] * 4


@pytest.mark.all
def test_a_node_that_freezes_in_the_middle_is_a_row(quad):
    frozen = []

    def freeze(step):
        if step.done == 2 and not frozen:
            frozen.append(quad.fault(3, "freeze"))
            frozen[0].__enter__()

    try:
        report = measured(quad, freeze)
    finally:
        frozen[0].__exit__(None, None, None)
    assert [one.host for one in report.failures] == ["quad-3"]
    assert blamed(report)[0] == ("bench.no-answer", "quad-3")
    met = {pair for pair in report.many if "quad-3" not in pair}
    assert len(met) == 6
    assert [table.ranks for table in report.allreduce] == [3]
    eventually(lambda: not any(left_on(quad, node) for node in range(4)), "relays to be gone")


@pytest.mark.all
def test_a_head_node_lost_behind_the_pairs_takes_no_figure_along(quad, monkeypatch):
    def lost(access):
        raise HostError(access.head.host, "connection lost")

    monkeypatch.setattr(bench_network, "head_facts", lost)
    report = measured(quad)
    assert (len(report.many), report.allreduce) == (12, ())
    assert [(one.host, one.message) for one in report.failures] == [("quad-0", "connection lost")]


@pytest.mark.all
def test_its_command_with_nccl_tests_where_they_are(quad):
    # There is no GPU: replacements print one row like nccl-tests, one of them with wrong values.
    row = "1073741824 268435456 float sum -1 4605 233.16 437.18 0 4600 233.4 437.6 0"
    said = "# nccl-tests version 2.19.6 nccl-headers=22105 nccl-library=22105"
    shown = f'[ "$OMPI_COMM_WORLD_RANK" != 0 ] || printf "{said}\\n  {row}\\n"'
    # mpirun may wait for ever for ranks that end while it still launches others.
    program = f"#!/bin/sh\nsleep 1\n{shown}\n"
    folder = "nccl-tests/build"
    for node in range(4):
        quad.on(node, f"mkdir -p {folder}; cat >{folder}/all_reduce_perf", program.encode())
        quad.on(node, f"cd {folder}; cp all_reduce_perf all_gather_perf")
        quad.on(node, f"cd {folder}; cp all_reduce_perf reduce_scatter_perf")
        quad.on(node, f"cd {folder}; sed 's/437.18 0/437.18 7/' all_reduce_perf >alltoall_perf")
        quad.on(node, f"chmod +x {folder}/*")
    options = ("--network", "--streams", "3", "--seconds", "0.2")
    status, out, err = quad.ctl("bench", *options)
    for node in range(4):
        quad.on(node, "rm -r nccl-tests")
    assert status == 1, err
    assert "error: alltoall_perf (nccl-tests): 7 wrong values in 1.0 GiB" in err
    header, *rows = [line.split() for line in out.partition("\n\n")[0].splitlines()]
    assert header == ["GBIT/S,", "3", "STREAMS,", "TO", "0", "1", "2", "3"]
    assert [row[0] for row in rows] == [f"quad-{index}" for index in range(4)]
    assert [row.index("-") for row in rows] == [1, 2, 3, 4]
    assert "the type always carries 2.5 Gbit/s" in out
    assert "allreduce by MPI_Allreduce, 4 ranks" in out
    for operation, name in {
        "allreduce": "all_reduce",
        "allgather": "all_gather",
        "reduce-scatter": "reduce_scatter",
    }.items():
        assert f"{operation} by {name}_perf (nccl-tests), NCCL 2.21.5, 4 ranks" in out, err
    assert "alltoall_perf" not in out
    assert out.splitlines()[-1].split() == ["1.0", "GiB", "4605", "µs", "3497", "Gbit/s"]


@pytest.mark.parametrize(
    ("out", "err", "said"),
    [
        # Printed by nccl-tests 2.19.6 on a machine without a GPU.
        (
            "# Using devices\nvm: Test CUDA failure util.cu:674 'CUDA driver version is "
            "insufficient for CUDA runtime version'\n .. vm pid 1: Test failure common.cu:1454\n",
            "-----\nprterun detected that one or more processes exited with non-zero status\n",
            ": Test CUDA failure util.cu:674 'CUDA driver version is insufficient for CUDA runtime "
            "version'",
        ),
        ("rows", "----\n no such file \n\n----\n", ": no such file"),
        ("", " --\n", ""),
    ],
)
def test_why_a_program_failed(out, err, said):
    result = CommandResult("a-0", "mpirun", 2, out, err, 1.0)
    assert bench_network._causes(result) == said


def test_ctrl_c_in_the_middle_leaves_nothing(quad):
    process = quad.start("bench", "--network", "--seconds", "5")
    eventually(lambda: left_on(quad, 1), "the measurement to begin")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=240)
    assert (process.returncode, "Traceback" in err) == (130, False)
    eventually(lambda: not any(left_on(quad, node) for node in range(4)), "relays to be gone")


def test_it_does_not_disturb_a_run(quad):
    mpirun = "/opt/clusterctl/training/bin/mpirun --host localhost -np 1 sleep 600"
    quad.on(0, f"setsid {mpirun} </dev/null >/dev/null 2>&1 & echo")
    status, _, err = quad.ctl("bench", "--network")
    quad.ctl("kill")
    assert (status, "--force" in err) == (1, True)
