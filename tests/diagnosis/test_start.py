"""Jobs that hang before their first step: what each waits for, by evidence as values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.diagnosis.evidence import Evidence, Frame, Partner, Socket, ThreadStack
from clusterctl.diagnosis.verdict import diagnose
from clusterctl.node.facts.network import Interface
from clusterctl.node.record import to_data
from tests.diagnosis.made_up import (
    ALLREDUCE,
    IMPORTS,
    INIT,
    SHUTDOWN,
    facts,
    job_of,
    own,
    samples,
    socket_to,
    with_host,
    with_job,
    with_processes,
    with_rank,
)

IN_INIT = job_of(3, 1, INIT, log=("starting",))
MANAGED = ("198.51.100.1", "198.51.100.2", "198.51.100.3")


def checks(evidence: Evidence) -> list[str]:
    return [one.check for one in diagnose(evidence).findings]


def behind_other_addresses(evidence: Evidence) -> Evidence:
    """Return the evidence of hosts that SSH reaches at other addresses than MPI does."""
    for index, host in enumerate(evidence.hosts):
        own_address = {
            "lo": "127.0.0.1/8",
            "docker0": "172.17.0.1/16",
            "eth1": f"{host.address}/16",
        }
        found = [Interface(name, 1500, "up", one, "", 0, 0) for name, one in own_address.items()]
        there = facts(host.host, interfaces=to_data(found))
        evidence = with_host(evidence, index, address=MANAGED[index], facts=there)
    return evidence


def test_a_daemon_that_cannot_call_back_on_another_network_than_that_of_ssh():
    """And whose host has no rank yet, though the others have."""
    lost = socket_to(0, 2, timer="on", retransmits=7)
    lost = replace(lost, state="SYN-SENT")
    evidence = with_processes(
        behind_other_addresses(IN_INIT), lambda one: None if one.rank == 2 else one
    )
    daemon = replace(evidence.hosts[2].processes[0], samples=samples((), sockets=(lost,)))
    evidence = with_job(with_host(evidence, 2, processes=(daemon,)), line="", hosts={})
    found = diagnose(evidence)
    assert found.verdict.startswith(
        "mpirun's daemon on demo-2 (198.51.100.3) cannot connect to demo-0 (198.51.100.1) "
        "(port 1024): no answer to its packets, sent 8 times"
    )
    assert "'ping -c 3 10.0.0.5'" in found.findings[0].hint


def test_an_address_that_several_hosts_have_names_none():
    to_docker = Socket("10.0.0.7:40000", "172.17.0.1:1024", "SYN-SENT", timer="on", retransmits=7)
    evidence = with_rank(
        behind_other_addresses(IN_INIT), 2, samples=samples(INIT, sockets=(to_docker,))
    )
    assert "link.connect" not in checks(evidence)


def test_a_program_on_a_mount_whose_server_is_gone():
    looks = samples(IMPORTS, syscall="newfstatat /nfs/lib/x.py", wait_channel="request_wait_answer")
    evidence = with_rank(IN_INIT, 1, samples=looks)
    dead = facts("demo-1", errors={"mount /nfs": "no answer within 5 s"})
    found = diagnose(with_host(evidence, 1, facts=dead))
    assert found.verdict.startswith(
        "/nfs on demo-1 (10.0.0.6) does not answer (no answer within 5 s), and rank 1 waits for it "
        "in newfstatat of /nfs/lib/x.py; 2 ranks wait for it in the start of Horovod"
    )
    assert [(one.check, one.ranks) for one in found.findings] == [("mount.dead", (1,))]
    for other in ("PermissionError: [Errno 13] not permitted", "OSError: [Errno 38] no function"):
        refused = with_host(evidence, 1, facts=facts("demo-1", errors={"mount /nfs": other}))
        assert "mount.dead" not in checks(refused)


ASKED = Socket("10.0.0.5:41000", "10.0.0.5:27000", "ESTAB", acked_bytes=81)


@pytest.mark.parametrize(
    ("ends", "is_told"),
    [
        ([ASKED, ASKED, ASKED], True),
        ([ASKED, ASKED, replace(ASKED, received_bytes=9)], False),
        ([replace(ASKED, peer="203.0.113.9:514")] * 3, False),
        ([ASKED, ASKED, replace(ASKED, local="10.0.0.5:27000", peer="10.0.0.6:41000")], False),
    ],
    ids=["silent", "it has answered one", "it takes logs", "it is of the job"],
)
def test_another_program_has_the_port_where_the_ranks_meet(ends, is_told):
    meets = ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "10.0.0.5"), ("HOROVOD_GLOO_RENDEZVOUS_PORT", "27000")
    evidence = with_rank(IN_INIT, 0, 1, 2, variables=dict(meets))
    for rank, one in enumerate(ends):
        evidence = with_rank(evidence, rank, samples=samples(INIT, sockets=(one,)))
    found = diagnose(evidence)
    assert ("rendezvous.unreached" in checks(evidence)) is is_told
    assert not is_told or found.verdict.startswith(
        "ranks 0-2 wait in the start of Horovod for an answer of 10.0.0.5:27000 on demo-0 "
        "(10.0.0.5), which has taken 81 B of each and sent nothing for 3 min 34 s"
    )


@pytest.mark.parametrize(
    ("call", "log", "is_input"),
    [
        ("read pipe:[9]", (), True),
        ("read pipe:[9]", [*(f"step {step}" for step in range(40)), "continue? "], True),
        ("read socket:[9]", (), False),
    ],
)
def test_a_rank_that_reads_its_standard_input(call, log, is_input):
    """MPI's start reads answers of the launcher, too: from a socket. A log that ends within a line
    comes in blocks otherwise."""
    mpirun = Partner(900, "S", "writes", ("mpirun", "train.py"), 1000, "poll")
    looks = samples(own("<module>", 4), syscall=call, wait_channel="anon_pipe_read")
    evidence = job_of(2, 1, own("bcast", 5), log=tuple(log), quiet_s=30.0, log_is_cut=bool(log))
    evidence = with_rank(evidence, 0, samples=looks, partners=(mpirun,))
    found = diagnose(evidence)
    assert ("standard input" in found.verdict) is is_input
    if is_input:
        assert (found.exit_status, found.findings[0].ranks) == (2, (0,))
        prompt = " (the log ends with the prompt `continue?`)" * bool(log)
        assert found.verdict.startswith(
            "rank 0 on demo-0 (10.0.0.5) is waiting for its standard input (from its launcher)"
            f"{prompt} in <module> train.py:4"
        )
        # Below torchrun, the pipe is that of torchrun's own input.
        waits = with_rank(evidence, 1, samples=samples(ALLREDUCE))
        other = replace(mpirun, pid=901, argv=("sleep", "9"))
        found = diagnose(with_rank(waits, 0, partners=(other,)))
        assert found.exit_status == 2
        assert f"which pid 901 (sleep 9) writes{prompt} in <module>" in found.verdict


SHELL = "did not end within 4 s: echo; its login shell has not started it"


@pytest.mark.parametrize(("error", "status"), [(SHELL, 2), (SHELL.partition(";")[0], 3)])
def test_a_login_file_that_waits_keeps_a_rank_from_starting(error, status):
    none_runs = with_processes(
        job_of(3, 1, log=("",)), lambda one: None if one.rank is not None else one
    )
    evidence = with_host(none_runs, 1, error=error, processes=(), facts={})
    evidence = replace(evidence, cluster="", source="--hosts hosts")
    found = diagnose(evidence)
    assert found.exit_status == status
    assert status == 3 or found.verdict == (
        "demo-1 (10.0.0.6) lets the login in, and its login shell starts no command in time: a "
        "login file of its user waits for something, or it is too busy; rank 1 is to run there, "
        "and the job has made no step for 3 min 34 s"
    )


@pytest.mark.parametrize(
    "error",
    ["looking at it failed: python3 is not installed there"]
    + ["its login shell ended before the command, with 1", "the output of the command broke off"],
)
def test_a_host_that_lets_the_login_in_and_runs_nothing_is_not_called_silent(error):
    evidence = with_host(job_of(3, 1, log=("",)), 1, error=error, processes=(), facts={})
    found = diagnose(replace(evidence, cluster="", source="--hosts hosts"))
    begin = "demo-1 (10.0.0.6) lets the login in, and cannot be examined: "
    assert found.verdict.startswith(begin + error)


def test_ranks_that_were_started_for_different_numbers_of_ranks():
    found = diagnose(with_rank(IN_INIT, 2, size=4))
    assert found.verdict.startswith(
        "rank 2 on demo-2 (10.0.0.7) was started as of 4 ranks, the others as of 3"
    )
    assert (found.check, found.exit_status) == ("ranks.size", 2)
    # An elastic launcher starts ranks later, for more.
    elastic = with_rank(with_rank(IN_INIT, 2, size=4), 1, samples=samples(own("load", 7)))
    assert "ranks.size" not in checks(elastic)


def test_a_job_whose_main_threads_have_returned():
    """Its other threads keep it, and wait; one that works is no finding."""
    keeps = ThreadStack("Uploader", 2, own("push", 41))
    stuck = samples(SHUTDOWN)
    stuck = tuple(replace(one, cpu_s=1.0, stacks=(*one.stacks, keeps)) for one in stuck)
    evidence = with_rank(job_of(4, 1), 0, 1, 2, 3, samples=stuck)
    found = diagnose(evidence)
    assert found.verdict == (
        "ranks 0-3 on 4 hosts have no main thread any more, and are kept by another thread, "
        "Uploader, in push train.py:41"
    )
    works = tuple(replace(one, cpu_s=float(at)) for at, one in enumerate(stuck))
    assert "rank.left" not in checks(with_rank(evidence, 1, samples=works))


def test_what_is_stopped_since_it_reads_its_terminal_in_the_background():
    looks = samples(own("<module>", 4), state="T", syscall="read /dev/pts/3")
    [lead, *_] = diagnose(with_rank(IN_INIT, 0, samples=looks)).findings
    assert (
        "is stopped (state T) in reading its terminal, as a job in the background" in lead.message
    )
    assert lead.hint.startswith("start it with < /dev/null, or run it in the foreground (fg)")


@pytest.mark.parametrize("call", ["read /dev/pts/3", "pselect6 /dev/pts/3", "poll /dev/pts/3"])
def test_a_question_to_the_user_however_the_program_waits_for_the_answer(call):
    looks = samples((*own("<module>", 4), Frame("ask", "/home/u/t.py", 9)), syscall=call)
    assert (
        "waiting for input on its terminal"
        in diagnose(with_rank(IN_INIT, 0, samples=looks)).verdict
    )


@pytest.mark.parametrize(
    ("call", "channel", "words"),
    [
        ("write /mnt/a", "percpu_rwsem_wait", "its file system is frozen (fsfreeze), as for a"),
        ("ioctl", "percpu_rwsem_wait", "(percpu_rwsem_wait)"),
        ("", "mem_cgroup_handle_over_high", "its cgroup has more memory than memory.high"),
        ("", "mem_cgroup_oom_synchronize", "its cgroup has no memory left"),
        ("read /nfs/a", "rpc_wait_bit_killable", "a remote file system does not answer"),
        ("openat /a", "fanotify_get_response", "as a virus scanner, does not answer"),
    ],
)
def test_what_the_kernel_waits_for_is_told_as_far_as_its_function_tells_it(call, channel, words):
    looks = samples((), state="D", syscall=call, wait_channel=channel)
    found = diagnose(with_rank(job_of(), 5, samples=looks))
    assert (found.check, found.findings[0].ranks) == ("rank.uninterruptible", (5,))
    assert words in found.verdict
