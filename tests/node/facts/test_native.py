"""Calls of programs in C, read from real processes, and the verdicts on real jobs of MPI."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.diagnosis.evidence import Evidence, HostEvidence, JobEvidence
from clusterctl.diagnosis.selection import to_read
from clusterctl.diagnosis.verdict import diagnose
from clusterctl.node.diagnosis import sampler, stacks
from clusterctl.node.facts import native
from clusterctl.node.facts.native import NativeCalls, NativeFrame, native_calls, read_eu_stack
from clusterctl.node.jobs.processes import read_process
from clusterctl.node.jobs.spec import JobState
from clusterctl.node.record import salvage
from tests.lab.running import wait_until

LOOKS = sampler.SamplerRequest(samples=2, spacing_s=0.3, within_s=600.0)
TRAINING = Path("/opt/clusterctl/training")
PROGRAM = r"""
#include <mpi.h>
#include <string.h>
#include <unistd.h>
static void trade(int peer) {
    int x = 0;
    MPI_Recv(&x, 1, MPI_INT, peer, 7,
             MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}
static void rally(int rank, int peer) {
    int x = 0;
    for (int i = 0;; i++) {
        if (rank == 0) { MPI_Send(&x, 1, MPI_INT, peer, 7, MPI_COMM_WORLD); }
        MPI_Recv(&x, 1, MPI_INT, peer, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (rank != 0) { usleep(5000); MPI_Send(&x, 1, MPI_INT, peer, 7, MPI_COMM_WORLD); }
    }
}
int main(int argc, char **argv) {
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int peer = size - 1 - rank;
    if (peer != rank && !strcmp(argv[1], "cycle")) trade(peer);
    if (peer != rank && !strcmp(argv[1], "rally")) rally(rank, peer);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    return 0;
}
"""


def test_eu_stack_with_and_without_sources():
    text = """PID 5 - process
TID 5:
#0  0x00007f9dacd0c017 __sched_yield - /lib/libc.so.6
    ../sysdeps/unix/syscall-template.S:120:1
#1  0x00007f9dacecb357 - 1 PMPI_Recv - /mpi/libmpi.so.40
#2  0x0000556a2f5e6214 - 1 trade - /home/u/ring
    /home/u/ring.c:7:5
#3  0x00007f9dac91f288 - 1
eu-stack: dwfl_thread_getframes tid 5: no matching address range
"""
    assert read_eu_stack(text) == (
        NativeFrame(),
        NativeFrame("trade", "/home/u/ring.c", 7),
        NativeFrame("PMPI_Recv", "/mpi/libmpi.so.40"),
        NativeFrame("__sched_yield", "/lib/libc.so.6"),
    )


def test_what_is_stopped_or_traced_is_left_alone(monkeypatch):
    monkeypatch.setattr(native.shutil, "which", lambda name: None)
    with subprocess.Popen(["sleep", "600"]) as process:
        [found] = native_calls((process.pid,))
        assert (found.frames, found.error) == ((), native.MISSING)
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: read_process(process.pid).state == "T", "the stop")
        [found] = native_calls((process.pid,))
        assert found == NativeCalls(process.pid, error="it is in state T: skipped")
        assert read_process(process.pid).state == "T"
        process.kill()
    [found] = native_calls((process.pid,))
    assert found.error


def test_a_process_goes_on_if_what_stopped_it_was_killed():
    with subprocess.Popen(["sleep", "600"]) as process:

        def killed() -> NativeCalls:
            process.send_signal(signal.SIGSTOP)
            wait_until(lambda: read_process(process.pid).state == "T", "the stop")
            raise OSError("gdb took more than 2 s")

        found = native._held(process.pid, killed)
        assert (found.frames, found.error) == ((), "gdb took more than 2 s")
        wait_until(lambda: read_process(process.pid).state == "S", "that it goes on")
        process.kill()


@pytest.fixture
def job(tmp_path):
    """Return a function that starts the program with three ranks and returns a function that looks
    at them."""
    source, program = tmp_path / "ring.c", tmp_path / "ring"
    source.write_text(PROGRAM)
    flags = [f"-I{TRAINING}/include", f"-L{TRAINING}/lib", f"-Wl,-rpath,{TRAINING}/lib"]
    subprocess.run(["gcc", "-g", "-o", program, source, *flags, "-lmpi"], check=True)
    started = []

    def start(kind: str):
        argv = [TRAINING / "bin/mpirun", "--oversubscribe", "-np", "3"]
        argv += ["--mca", "mpi_yield_when_idle", "1", program, kind]
        root = {f"{name}_ALLOW_RUN_AS_ROOT{end}": "1" for name in ("OMPI", "PRTE")
                for end in ("", "_CONFIRM")}  # fmt: skip
        process = subprocess.Popen(argv, env=os.environ | root, start_new_session=True)
        started.append(process)

        # gdb may be late on a busy machine; who exchanges messages is elsewhere now and then.
        arrived: set[int] = set()

        def ours() -> list:
            seen, _, _ = sampler.look(LOOKS, stacks.PySpy(""))
            return [one for one in seen if one["role"] == "rank" and one["argv"][0] == str(program)]

        def inside() -> bool:
            left = [one["pid"] for one in ours() if one["pid"] not in arrived]
            read = native_calls(tuple(left))
            arrived.update(one.pid for one in read if "MPI_" in str(one.frames))
            return len(arrived) == 3

        wait_until(inside, "ranks in calls of MPI")
        host = salvage(HostEvidence, {"processes": ours()})[0]
        host = replace(host, host="demo-0", address="10.0.0.4")
        return Evidence(
            cluster="demo", job=JobEvidence(state=JobState.RUNNING, size=3), hosts=(host,)
        )

    yield start
    for process in started:
        with process:
            os.killpg(process.pid, signal.SIGTERM)


def read_chosen(evidence: Evidence) -> tuple[Evidence, list[int]]:
    """Read the calls of the ranks that are chosen, as the operation does."""
    read: list[int] = []
    for _ in range(3):
        chosen = {one.process.pid: one.number for one in to_read(evidence)}
        read += chosen.values()
        calls = {}
        for pid in chosen:
            # gdb may have no time on a busy machine.
            calls[pid] = wait_until(lambda pid=pid: with_gdb(pid), "calls with arguments")
        [host] = evidence.hosts
        processes = [replace(one, native=calls.get(one.pid, one.native)) for one in host.processes]
        evidence = replace(evidence, hosts=(replace(host, processes=tuple(processes)),))
    return evidence, read


def with_gdb(pid: int) -> NativeCalls | None:
    [found] = native_calls((pid,))
    is_whole = found.frames and (found.source == "gdb" or "Barrier" in str(found.frames))
    return found if is_whole else None


needs_tools = pytest.mark.skipif(
    not (shutil.which("gdb") and shutil.which("gcc")), reason="gdb or gcc is not installed"
)


@needs_tools
@pytest.mark.train
@pytest.mark.all
def test_two_ranks_in_c_that_wait_for_each_other(job):
    evidence, read = read_chosen(job("cycle"))
    found = diagnose(evidence)
    assert sorted(read) == [0, 2], "rank 1, which waits for all, is not stopped"
    assert (found.check, found.exit_status) == ("mpi.cycle", 2)
    assert found.verdict == (
        "ranks wait for each other in a circle: "
        "rank 0 on demo-0 (10.0.0.4) waits for rank 2 in MPI_Recv, called at trade ring.c:7, and "
        "rank 2 on demo-0 (10.0.0.4) waits for rank 0 in MPI_Recv, called at trade ring.c:7"
    )
    assert "read by gdb, which held it for" in " ".join(found.findings[0].evidence)


@needs_tools
@pytest.mark.train
@pytest.mark.all
def test_two_ranks_in_c_that_send_each_other_messages_are_no_circle(job):
    evidence = job("rally")
    until = time.monotonic() + 3
    while time.monotonic() < until:
        found, _ = read_chosen(evidence)
        assert diagnose(found).check != "mpi.cycle"
