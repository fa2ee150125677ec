"""Verdicts about ranks that wait for processes that are no ranks, and these for others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.diagnosis.evidence import Partner, ProcessEvidence
from clusterctl.diagnosis.selection import to_read
from clusterctl.diagnosis.verdict import diagnose
from clusterctl.node.facts.native import NativeCalls, NativeFrame
from tests.diagnosis.made_up import JOB, job_of, own, samples, with_host, with_processes, with_rank

PTY = "write /dev/pts/3"


def in_c(size=4, per_host=2):
    """Return a job in C without a log whose ranks poll."""
    evidence = job_of(size // per_host, per_host, (), log=(), quiet_s=None)
    return with_rank(evidence, *range(size), argv=("./chat",), samples=samples((), state="R"))


def held(*partners, size=4, per_host=2, call=PTY):
    """Return a job all of whose ranks wait in a call for these."""
    looks = samples((), syscall=call, wait_channel="wait_woken")
    changed = {"samples": looks, "partners": partners}
    return with_rank(in_c(size, per_host), *range(size), **changed)


def writes(call, state="S"):
    """Return mpirun as the collector of a terminal, which is in this call."""
    return Partner(900, state, "collects", ("mpirun", "-np", "2"), 0, call)


READER = Partner(77, "S", "reads", ("sleep", "600"), 900, "clock_nanosleep")


@pytest.mark.parametrize(
    ("partners", "words", "hint"),
    [
        (
            (writes("write pipe:[9]"), READER),
            "blocked writing its output, which pid 900 (mpirun -np 2) collects; pid 900 itself is "
            "blocked writing a pipe, which pid 77 (sleep 600) reads",
            "see it: clusterctl run demo --nodes 0 'ps -fp 77'",
        ),
        (
            (writes("write /tmp/fifo"), replace(READER, state="T", argv=("tee", "log"))),
            "blocked writing /tmp/fifo, which pid 77 (tee log, stopped) reads",
            "clusterctl run demo --nodes 0 'kill -CONT 77'",
        ),
        (
            (writes("write socket:[9]"), READER),
            "blocked writing a socket, which pid 77 (sleep 600) reads",
            "see it: clusterctl run demo --nodes 0 'ps -fp 77'",
        ),
        (
            (writes("write /nfs/log", "D"),),
            "collects; pid 900 itself is blocked writing /nfs/log (state D)",
            "see it: clusterctl run demo --nodes 0 'ps -fp 900'",
        ),
        (
            (writes("write /dev/pts/0"),),
            "collects; pid 900 itself is blocked writing /dev/pts/0",
            "if Ctrl-S has stopped its terminal, Ctrl-Q lets it go on",
        ),
    ],
    ids=["pipe", "stopped", "socket", "file system", "terminal"],
)
def test_ranks_whose_collector_waits_for_another_process(partners, words, hint):
    found = diagnose(held(*partners, size=2))
    assert (found.check, found.findings[0].ranks, found.exit_status) == ("rank.io", (0, 1), 2)
    assert words in found.verdict
    assert hint in found.findings[0].hint
    assert [one.check for one in found.findings] == ["rank.io"]


def test_a_collector_on_another_host_sends_to_mpirun():
    evidence = held(Partner(900, "S", "collects", ("prted",), 0, "epoll_wait"), per_host=2)
    looks = samples((), syscall="write pipe:[9]", wait_channel="pipe_write")

    def of_mpirun(one):
        mpirun = one.role == "launcher"
        return replace(one, samples=looks, partners=(READER,)) if mpirun else one

    own = replace(evidence, hosts=evidence.hosts[1:])
    found = diagnose(with_processes(evidence, of_mpirun))
    assert (
        "ranks 2-3 on demo-1 (10.0.0.6) are blocked writing its output, which pid 900 (prted) "
        "collects; mpirun on demo-0 (10.0.0.5), which gets it from there, is blocked writing a "
        "pipe, which pid 77 (sleep 600) reads"
    ) in [one.message for one in found.findings]
    assert found.exit_status == 2
    assert "mpirun on" not in diagnose(own).verdict


def test_a_rank_whose_child_does_not_get_to_its_program():
    child = Partner(78, "S", "child", ("./s", "vfork"), 1001, "pause")
    looks = samples((), state="D", syscall="vfork", wait_channel="kernel_clone")
    evidence = with_rank(in_c(), 1, samples=looks, partners=(child,))
    found = diagnose(evidence)
    assert found.verdict == (
        "rank 1 on demo-0 (10.0.0.5) is waiting in vfork for its child to execute its program: "
        "pid 78 (./s vfork, in pause)"
    )
    [lead] = found.findings
    assert (lead.check, lead.severity.value) == ("rank.uninterruptible", "error")
    assert lead.hint.startswith("see it: clusterctl run demo --nodes 0 'ps -fp 78'; if it is stuck")
    unseen = diagnose(with_rank(evidence, 1, partners=())).findings[0]
    assert "ps -f --ppid 1001" in unseen.hint
    assert "file system" not in unseen.hint


def wrapped(*children, age_s=600.0, per_host=4):
    """Return a job whose rank 1 is a shell script that has started these at each look."""
    shell = {"argv": ("/bin/bash", "./wrap.sh"), "age_s": age_s}
    evidence = with_rank(in_c(per_host=per_host), 1, **shell, samples=samples((), syscall="wait4"))
    looks = samples((), syscall="clock_nanosleep")
    own = [
        ProcessEvidence(pid, 1001, "child", 1, job_id=JOB, argv=argv, samples=looks[at : at + 1])
        for at, (pid, *argv) in enumerate(children)
    ]
    return with_host(evidence, 0, processes=(*evidence.hosts[0].processes, *own))


SLEEPS = ((71, "sleep", "1"), (72, "sleep", "1"), (73, "sleep", "1"))


def test_a_rank_whose_script_has_not_started_its_program():
    evidence = wrapped(*SLEEPS)
    init = (NativeFrame("main", "/home/u/s.c", 9), NativeFrame("PMPI_Init", "/mpi/libmpi.so.40"))
    # The shell's own calls tell nothing.
    assert 1 not in [one.number for one in to_read(evidence)]
    evidence = with_rank(evidence, 0, 2, 3, native=NativeCalls(5, init, "gdb"))
    found = diagnose(evidence)
    assert found.verdict == (
        "rank 1 on demo-0 (10.0.0.5) is still the shell script wrap.sh, which has not started its "
        "program: it runs `sleep 1` again and again; ranks 0,2-3 wait in MPI_Init"
    )
    assert (found.exit_status, [one.check for one in found.findings]) == (2, ["rank.unstarted"])
    assert diagnose(wrapped(*SLEEPS, age_s=9.0)).exit_status == 1


def test_a_script_that_waits_for_its_program_is_no_finding():
    """All ranks are shells that wait for what they have started, of which MPI is not seen."""
    evidence = with_rank(wrapped((71, "./s")), 0, 2, 3, argv=("sh", "./wrap.sh"))
    assert "rank.unstarted" not in [one.check for one in diagnose(evidence).findings]


def test_a_rank_that_asks_its_user_for_input():
    """Nobody but the user writes there: who collects what the terminal shows is no cause."""
    looks = samples(own("<module>", 18), syscall="read /dev/pts/3", wait_channel="wait_woken")
    asks = with_rank(job_of(2, 1), 0, samples=looks, partners=(writes("poll"),))
    found = diagnose(asks)
    assert found.verdict.startswith(
        "rank 0 on demo-0 (10.0.0.5) is waiting for input on its terminal in <module> train.py:18"
    )
    [lead] = found.findings
    assert lead.check == "rank.io"
    assert lead.hint == (
        "attach to its terminal, /dev/pts/3, and answer, or start the job with < /dev/null"
    )


def test_a_rank_of_three_that_reads_from_its_child():
    looks = samples((), syscall="read pipe:[9]", wait_channel="anon_pipe_read")
    child = Partner(78, "S", "writes", ("sleep", "600"), 1001, "clock_nanosleep")
    [lead] = diagnose(with_rank(in_c(3, 3), 1, samples=looks, partners=(child,))).findings
    assert lead.message == (
        "rank 1 on demo-0 (10.0.0.5) is alone in read a pipe, blocked reading a pipe, which "
        "pid 78 (sleep 600) writes: the others are running or polling"
    )
