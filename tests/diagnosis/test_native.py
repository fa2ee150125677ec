"""Verdicts from the calls of ranks in C, and which of them are stopped to read these."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.diagnosis.bundle import load, save
from clusterctl.diagnosis.case import Scene
from clusterctl.diagnosis.evidence import Evidence, OpenFile, Partner, ProcessEvidence, Socket
from clusterctl.diagnosis.native import MOST, native_of
from clusterctl.diagnosis.rules.native import COLLECTIVE
from clusterctl.diagnosis.selection import to_read
from clusterctl.diagnosis.tree import merge, tree_lines
from clusterctl.diagnosis.verdict import diagnose, not_seen
from clusterctl.domain.errors import HostError
from clusterctl.node.diagnosis.job import JobOutput
from clusterctl.node.facts.native import MISSING, NativeCalls, NativeFrame
from clusterctl.operations import native_frames
from clusterctl.transport.dial import Target
from tests.diagnosis.made_up import (
    job_of,
    own,
    samples,
    used,
    with_host,
    with_job,
    with_processes,
    with_rank,
)


class Silent:
    def run(self, target, command, *, timeout_s, stdin):
        raise HostError(target.host, "no SSH session")


RECV = "MPI_Recv(&x, 1, MPI_INT, peer, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE)"
LIBC, MPI = "/lib/libc.so.6", "/mpi/libmpi.so.40"


def in_c(hosts: int = 4, per_host: int = 1, **native: NativeCalls) -> Evidence:
    """Return a job in C whose ranks poll; `r0=…` are the calls of rank 0."""
    evidence = job_of(hosts, per_host, (), log=())
    found = []
    for host in evidence.hosts:
        processes = tuple(
            replace(
                one,
                argv=("./ring",),
                samples=samples((), state="R"),
                native=native.get(f"r{one.rank}"),
            )
            if one.role == "rank"
            else one
            for one in host.processes
        )
        found.append(replace(host, processes=processes))
    return replace(evidence, hosts=tuple(found))


def calls(mpi: str, peer: int | None = None, same: bool | None = True, call: str = RECV):
    inner = (NativeFrame(f"P{mpi}", MPI), NativeFrame("opal_progress", MPI)) if mpi else ()
    frames = (
        NativeFrame("_start", "/home/u/ring"),
        NativeFrame("main", "/home/u/ring.c", 23),
        NativeFrame("trade", "/home/u/ring.c", 7),
        *inner,
    )
    arguments = {} if peer is None else {"3": peer}
    return NativeCalls(5, frames, "gdb", held_s=0.4, call=call, arguments=arguments, same=same)


def test_a_circle_of_three():
    found = diagnose(
        in_c(r0=calls("MPI_Recv", 1), r1=calls("MPI_Recv", 3), r3=calls("MPI_Send", 0))
    )
    assert (found.check, found.findings[0].ranks) == ("mpi.cycle", (0, 1, 3))
    assert "waits for rank 3 in MPI_Recv, called at trade ring.c:7" in found.verdict


@pytest.mark.parametrize(
    "back",
    [
        calls("MPI_Recv", 0, same=False),
        calls("MPI_Recv", 0, same=None),
        calls("MPI_Recv"),
        calls("MPI_Recv", -1),
        calls("MPI_Recv", 0, call=RECV.replace("MPI_COMM_WORLD", "row")),
        calls("MPI_Barrier", 0),
    ],
    ids=["it goes on", "not compared", "no debug info", "any source", "other ranks", "not of one"],
)
def test_what_is_no_circle(back):
    assert diagnose(in_c(r0=calls("MPI_Recv", 3), r3=back)).check != "mpi.cycle"


def test_a_long_exchange_is_no_circle():
    over_tcp = {}
    ends = ("10.0.0.4:9", "10.0.0.5:7")
    for rank, (local, peer) in enumerate([ends, ends[::-1]]):
        first = Socket(local, peer, "ESTAB", acked_bytes=1, received_bytes=1)
        last = replace(first, acked_bytes=5 << 20, received_bytes=5 << 20)
        over_tcp[rank] = tuple(
            replace(one, sockets=(first if at == 0 else last,))
            for at, one in enumerate(samples((), state="R"))
        )
    evidence = in_c(r0=calls("MPI_Recv", 1), r1=calls("MPI_Recv", 0))
    assert diagnose(evidence).check == "mpi.cycle"
    for rank, shown in over_tcp.items():
        evidence = with_rank(evidence, rank, samples=shown)
    # The other ranks move nothing, so that the job as a whole is not known to work.
    assert diagnose(evidence).check not in ("mpi.cycle", "healthy")


def exchanging(*ranks: int, per_host: int = 1, log: tuple[str, ...] = (), **native) -> Evidence:
    """Return a job in C in which these ranks exchange data over TCP."""
    evidence = with_job(in_c(4 // per_host, per_host, **native), log=log)
    for rank, peer in zip(ranks, (*ranks[1:], *ranks[:1])):
        over = [Socket(f"10.0.9.{a}:7", f"10.0.9.{b}:7", "ESTAB") for a, b in ((rank, peer),)]
        over += [Socket(one.peer, one.local, "ESTAB") for one in over]
        looks = tuple(
            replace(one, sockets=tuple(replace(end, acked_bytes=at << 20) for end in over))
            for at, one in enumerate(samples((), state="R"))
        )
        evidence = with_rank(evidence, rank, samples=looks)
    return evidence


@pytest.mark.parametrize(
    ("working", "asleep", "status", "named"),
    [
        ((), (), 2, (0, 1)),
        ((0, 1), (), 3, ()),
        ((0, 2), (), 3, ()),
        ((0, 2), (1,), 1, (1,)),
    ],
)
def test_a_rank_that_is_read_in_its_own_work_while_data_go_on_keeps_nobody_waiting(
    working, asleep, status, named
):
    """Its log is silent, since what reads its output is stopped. One that sleeps is another."""
    log = tuple(f"step {number}" for number in range(90))
    read = {"r0": calls(""), "r1": calls(""), "r2": calls("MPI_Allreduce")}
    evidence = exchanging(*working, log=log, r3=calls("MPI_Allreduce"), **read)
    nap = used(samples((), syscall="clock_nanosleep"), 0.0)
    found = diagnose(with_rank(evidence, *asleep, samples=nap))
    assert found.exit_status == status
    assert (found.findings[0].ranks if found.findings else ()) == named


@pytest.mark.parametrize("mpi", ["MPI_Allreduce", "MPI_Barrier", "MPI_Recv", ""])
def test_a_rank_in_a_collective_need_not_wait_for_one_of_its_host_that_works(mpi):
    """It may wait in another communicator for one that does not."""
    evidence = exchanging(0, 2, 3, per_host=2, r1=calls(mpi), r0=calls("MPI_Barrier"))
    assert diagnose(evidence).exit_status == 3


def test_a_rank_that_sleeps_while_a_monitor_repeats_the_step_is_an_error():
    asleep = samples((), syscall="pause")
    for lines, status in ((["step 42"] * 20, 2), ([f"step 42, 3.{one} GB" for one in range(9)], 3)):
        log = (*(f"step {step}" for step in range(43)), *lines)
        evidence = with_job(in_c(), log=log, log_added=log[-2:], log_silent_s=0.1)
        found = diagnose(with_rank(evidence, 2, samples=asleep))
        assert found.exit_status == status
        assert [one.ranks for one in found.findings] == ([(2,)] if status == 2 else [])


def test_a_rank_that_has_replaced_its_program():
    asleep = samples((), syscall="clock_nanosleep")
    found = diagnose(with_rank(in_c(), 2, samples=asleep, argv=("sleep", "1000")))
    runs = "is alone in clock_nanosleep, and runs `sleep 1000`, where the others run ring"
    assert runs in found.verdict


@pytest.mark.parametrize(
    "argv",
    [("/opt/new/ring",), ("bash", "-c", "./ring; date"), ("numactl", "-N0", "./ring")],
)
def test_a_wrapper_is_no_other_program(argv):
    asleep = samples((), syscall="clock_nanosleep")
    evidence = with_rank(in_c(), 2, samples=asleep, argv=argv)
    [at] = [host for host in evidence.hosts if host.ranks[0].rank == 2]
    child = replace(at.ranks[0], pid=77, parent=at.ranks[0].pid, role="child", rank=None)
    evidence = with_host(evidence, at.index, processes=(*at.processes, child))
    assert "and runs" not in diagnose(evidence).verdict


def test_a_send_and_its_receive_are_no_circle():
    over_memory = in_c(r0=calls("MPI_Ssend", 1), r1=calls("MPI_Recv", 0))
    assert diagnose(over_memory).check != "mpi.cycle"


def test_a_peer_that_is_not_known_is_not_guessed():
    found = diagnose(in_c(2, r0=calls("MPI_Recv", call="")))
    assert "in MPI_Recv, called at trade ring.c:7, peer not known" in found.verdict


def test_a_rank_that_is_awaited_and_in_no_call_of_mpi():
    found = diagnose(in_c(r0=calls("MPI_Recv", 2), r2=calls("")))
    assert (found.check, found.findings[0].ranks) == ("mpi.awaited", (2,))
    assert "is in trade ring.c:7, not in MPI, and rank 0" in found.verdict


@pytest.mark.parametrize(
    ("function", "call"), [("__GI___semtimedop", "semtimedop"), ("__libc_pause", "pause")]
)
def test_a_call_of_the_program_is_named_with_that_of_the_c_library_within(function, call):
    program = (NativeFrame("_start", "/home/u/ring"), NativeFrame("fault", "/home/u/ring"))
    frames = (*program, NativeFrame("", LIBC), NativeFrame(function, LIBC))
    read = NativeCalls(5, frames, "eu-stack")
    evidence = with_rank(in_c(r2=read), 2, samples=samples((), syscall=call))
    found = diagnose(evidence)
    assert f"is alone in {call} (in {call}, called at fault [ring])" in found.verdict


def test_few_ranks_are_stopped():
    evidence = in_c(32, 8)
    assert [one.number for one in to_read(evidence)] == [0]
    read: dict[str, NativeCalls] = {}
    while chosen := to_read(in_c(32, 8, **read)):
        read |= {f"r{one.number}": calls("MPI_Barrier") for one in chosen}
    assert len(read) == MOST
    follows = to_read(in_c(r0=calls("MPI_Recv", 3)))
    assert [one.number for one in follows] == [3]
    rest = to_read(in_c(3, r0=calls("MPI_Barrier")))
    assert [one.number for one in rest] == [1, 2], "any of them may be in another collective"
    last = to_read(in_c(3, r0=calls("MPI_Recv", 1), r1=calls("MPI_Allreduce")))
    assert [one.number for one in last] == [2], "for which rank 1 may wait"
    assert not to_read(job_of()), "Python's calls say what these ranks do"


@pytest.mark.parametrize(("read", "says"), [((3, 4), True), ((3,), False)])
def test_ranks_in_one_call_are_one_finding_though_only_one_of_them_was_read(read, says):
    evidence = in_c(8, **{f"r{rank}": calls("") for rank in read})
    asleep = samples((), syscall="clock_nanosleep")
    found = diagnose(with_rank(evidence, 3, 4, samples=asleep))
    assert (found.check, found.findings[0].ranks) == ("rank.apart", (3, 4))
    assert ("trade" in found.verdict) == says


def test_the_tree_has_native_branches_and_bundles_keep_them(tmp_path):
    evidence = in_c(2, r0=calls("MPI_Barrier"))
    save(evidence, tmp_path / "b.gz")
    loaded = load(tmp_path / "b.gz")
    lines = tree_lines(merge(one for host in loaded.hosts for one in host.ranks))
    assert [line.strip() for line in lines if "ring.c" in line or "MPI" in line] == [
        "main ring.c:23",
        "trade ring.c:7",
        "PMPI_Barrier [libmpi.so.40]",
    ]


def test_reading_that_fails_is_told():
    evidence = in_c(2)

    targets = [Target(host.host, host.address, "") for host in evidence.hosts]
    found = native_frames.with_native_frames(Silent(), targets, evidence)
    assert "the calls of ranks 0-1: no SSH session" in list(not_seen(Scene(found)))
    without = NativeCalls(5, error=MISSING)
    assert f"the calls of ranks 0-1: {MISSING}" in list(not_seen(Scene(in_c(2, r0=without))))


@pytest.mark.parametrize(
    ("later", "status"),
    [
        (JobOutput(), 2),
        (JobOutput(log_added=("step 90 loss 0.1",)), 3),
        (JobOutput(log_added=("no step yet, waiting",)), 2),
        (JobOutput(log_name="/another/log", log_added=("step 90",)), 2),
        (JobOutput(metrics=({"step": 20, "time": 90.0},), metrics_silent_s=0.3), 3),
        (HostError("demo-0", "no SSH session"), 2),
    ],
)
def test_who_was_read_while_the_job_made_a_step_is_not_accused(monkeypatch, later, status):
    evidence = standing_still(in_c(3, **all_of("MPI_Allreduce", (0, 2), r1=calls("MPI_Bcast"))))

    def answer(*_):
        if isinstance(later, HostError):
            raise later
        return later

    monkeypatch.setattr(native_frames, "call", answer)
    targets = [Target(host.host, host.address, "") for host in evidence.hosts]
    found = diagnose(native_frames.with_later_output(Silent(), targets, evidence))
    assert found.exit_status == status, found.verdict
    assert (status == 2) != ("a step was recorded after the samples of its ranks" in found.verdict)


def test_a_rank_in_a_call_of_mpi_is_not_called_computing():
    """It may have computed between the looks. Where it was seen, it was not."""
    evidence = in_c(r1=calls("MPI_Allreduce"))
    for rank in range(4):
        looks = tuple(
            replace(one, main_cpu_s=float(at), main_system_s=at * (0.01 if rank == 1 else 0.5))
            for at, one in enumerate(samples((), state="R"))
        )
        evidence = with_rank(evidence, rank, samples=looks)
    assert "computing" not in diagnose(evidence).verdict
    alone = with_rank(evidence, 1, native=None)
    assert "rank 1 on demo-1 (10.0.0.6) is alone computing" in diagnose(alone).verdict


def standing_still(evidence: Evidence) -> Evidence:
    """Return the evidence with a step in each second, and none for a minute."""
    rows = tuple({"kind": "train", "step": at, "time": float(at)} for at in range(20))
    job = replace(evidence.job, metrics=rows, metrics_silent_s=60.0, log_silent_s=60.0, age_s=90.0)
    return replace(evidence, job=job)


def all_of(mpi, ranks, **more):
    return {**{f"r{rank}": calls(mpi) for rank in ranks}, **more}


@pytest.mark.parametrize(
    ("stack", "where"),
    [((), "alone "), (own("start"), "alone in start train.py:30, ")],
)
def test_the_process_for_which_a_rank_alone_waits_is_named(stack, where):
    """In C, or in Python with mpi4py, whose calls do not tell who waits for messages."""
    child = Partner(77, "T", "child", ("sh", "-c", "convert"), waiter=1001, call="call 62")
    waits = samples(stack, syscall="wait4", wait_channel="do_wait")
    log = tuple(f"step {number}" for number in range(90))
    evidence = with_job(in_c(3), log=log)
    found = diagnose(with_rank(evidence, 1, samples=waits, partners=(child,)))
    what = "waiting for a process that it has started: pid 77 (sh -c convert, stopped)"
    assert f"rank 1 on demo-1 (10.0.0.6) is {where}{what}" in found.verdict
    assert (found.exit_status, "kill -CONT 77" in found.findings[0].hint) == (2, True)
    # What its child has started may be a compiler, unless that takes too long.
    works = used(samples((), state="R"))
    below = [(77, 1001, waits), (78, 77, tuple(replace(x, cpu_s=x.main_cpu_s) for x in works))]
    more = [ProcessEvidence(pid=x, parent=y, role="child", samples=z) for x, y, z in below]
    evidence = with_host(evidence, 1, processes=(*evidence.hosts[1].processes, *more))
    for since_s, status in ((214.0, 1), (700.0, 2)):
        late = with_job(evidence, log_silent_s=since_s, age_s=since_s + 26.0)
        assert diagnose(with_rank(late, 1, samples=waits)).exit_status == status


def test_a_rank_in_another_collective():
    other = in_c(3, **all_of("MPI_Allreduce", (0, 2), r1=calls("MPI_Bcast")))
    found = diagnose(standing_still(other))
    assert (found.check, found.findings[0].ranks) == ("ranks.differ", (1,))
    assert "rank 1 on demo-1 (10.0.0.6) in MPI_Bcast, called at trade ring.c:7; " in found.verdict
    assert diagnose(other).check == "unknown", "a moment later all may be in another one"
    waits = in_c(3, **all_of("MPI_Allreduce", (0, 2), r1=calls("MPI_Wait")))
    assert diagnose(standing_still(waits)).findings[0].ranks == (1,)
    receives = in_c(3, **all_of("MPI_Allreduce", (1, 2), r0=calls("MPI_Recv", 1)))
    assert diagnose(standing_still(receives)).findings[0].ranks == (0,)
    unread = in_c(3, **all_of("MPI_Allreduce", (0,), r1=calls("MPI_Bcast")))
    assert diagnose(standing_still(unread)).check == "unknown"


@pytest.mark.parametrize(
    ("written", "quiet_s", "status"), [(1 << 20, 60.0, 1), (100, 60.0, 2), (1 << 20, 900.0, 2)]
)
def test_a_rank_that_writes_a_file_and_naps_meanwhile_may_save(written, quiet_s, status):
    looks = tuple(
        replace(one, files=(OpenFile(5, "/data/checkpoint", at * written),))
        for at, one in enumerate(samples((), syscall="clock_nanosleep"))
    )
    steps = tuple(f"step {number} loss 0.1" for number in range(90))
    found = with_job(in_c(3), log=steps, log_silent_s=quiet_s, age_s=quiet_s + 60.0)
    found = diagnose(with_rank(found, 0, samples=looks))
    assert (found.check, found.exit_status) == ("rank.apart", status)


@pytest.mark.parametrize(
    ("sent", "check"),
    [
        ((1 << 20, 65600), "healthy"),
        ((1 << 20, 65536), "unknown"),  # as heartbeats of threads beside those that wait
        ((1 << 20, None), "unknown"),
    ],
)
def test_ranks_that_send_to_each_other_through_memory_make_progress(sent, check):
    """But not once a job that printed steps is silent for ten of them: it may wait in a loop."""
    looks = [replace(one, other_runs=5) for one in used(samples((), state="R"))]
    evidence = with_rank(in_c(1, 2), 0, 1, samples=tuple(looks))
    for rank, one in enumerate(sent):
        evidence = with_rank(evidence, rank, shared_bytes=one)
    found = diagnose(evidence)
    assert (found.check, "0-1 worked between" in found.verdict) == (check, check == "healthy")
    python = with_processes(evidence, lambda one: replace(one, argv=("python3", "train.py")))
    assert (diagnose(python).check == "healthy") == (check == "healthy"), "with mpi4py"
    assert any("what rank 1 sends through" in one for one in found.unseen) == (sent[1] is None)
    assert diagnose(standing_still(evidence)).check == "unknown"
    asleep = with_rank(evidence, 0, samples=samples((), syscall="pause"))
    assert diagnose(asleep).exit_status != 0, "other threads send"
    for others in (
        [replace(one, other_runs=100 * at) for at, one in enumerate(looks)],
        [replace(one, cpu_s=2 * one.cpu_s) for one in looks],  # one that keeps its processor
        [replace(one, other_runs=9 - at) for at, one in enumerate(looks)],  # one has ended
        [replace(one, other_runs=None) for one in looks],
    ):
        found = diagnose(with_rank(evidence, 0, samples=tuple(others)))
        assert found.check == "unknown", "other threads may send"


def test_who_rests_is_named_though_threads_of_all_ranks_send_heartbeats():
    evidence = with_rank(in_c(1, 3), 0, 1, 2, shared_bytes=1216)
    found = diagnose(with_rank(evidence, 2, samples=samples((), syscall="pause")))
    assert (found.check, found.findings[0].ranks) == ("rank.apart", (2,))
    assert found.exit_status != 0


@pytest.mark.parametrize(
    ("positions", "read_bytes", "check"),
    [
        ((0, 1 << 20, 2 << 20), 1 << 20, "healthy"),
        ((0, 1 << 20), 1 << 20, "healthy"),  # a busy host has two looks
        ((0, 1 << 20), 3 << 20, "unknown"),  # it began again
        ((0, 1 << 20, 2 << 20), 1 << 30, "unknown"),  # again and again
        ((0, 1 << 20, 2 << 20), 0, "unknown"),  # it writes
        ((0, 2 << 20, 1 << 20), 1 << 20, "unknown"),
        ((0, 100, 200), 100, "unknown"),
    ],
)
def test_ranks_that_all_read_a_file_make_progress(positions, read_bytes, check):
    looks = tuple(
        replace(one, files=(OpenFile(5, "/data/train", at),), main_read_bytes=read_bytes * number)
        for number, (one, at) in enumerate(
            zip(samples((), state="R", syscall="read /data/train"), positions)
        )
    )
    assert diagnose(with_rank(in_c(2), 0, 1, samples=looks)).check == check
    assert diagnose(with_rank(in_c(2), 0, samples=looks)).check != "healthy", "the other may wait"
    ahead = tuple(replace(one, main_read_bytes=0, read_bytes=1 << 20) for one in looks)
    assert diagnose(with_rank(in_c(2), 0, 1, samples=ahead)).check == "unknown", "or a thread reads"


def test_a_rank_that_polls_outside_of_mpi_while_the_others_wait_in_a_collective():
    """Over shared memory nobody asks the kernel: neither who waits nor who computes."""
    found = diagnose(standing_still(in_c(3, **all_of("MPI_Allreduce", (0, 2), r1=calls("")))))
    assert (found.check, found.findings[0].ranks) == ("mpi.awaited", (1,))
    assert "is in trade ring.c:7, not in MPI: " in found.verdict
    assert "ranks 0,2 wait in MPI_Allreduce, called at trade ring.c:7" in found.verdict


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        *[(f"MPI_{name}", True) for name in ("Bcast", "Iallreduce", "Alltoallw", "Reduce_scatter")],
        *[(f"MPI_{name}", True) for name in ("Comm_split", "Comm_dup_with_info", "Cart_create")],
        *[(f"MPI_{name}", True) for name in ("Win_fence", "File_open", "File_write_at_all")],
        *[(name, True) for name in ("mpi_allgatherv_", "MPI_Ineighbor_alltoallw")],
        *[(f"MPI_{name}", False) for name in ("Recv", "Wait", "Sendrecv", "Reduce_local")],
        *[(f"MPI_{name}", False) for name in ("Win_lock", "File_write_at", "Comm_create_group")],
    ],
)
def test_collectives_of_mpi(name, is_one):
    assert bool(COLLECTIVE.fullmatch(name)) == is_one


@pytest.mark.parametrize(
    ("quiet_s", "call", "state", "severity"),
    [(60.0, "clock_nanosleep", "S", "error"), (60.0, "", "R", "warning"), (4.0, "", "S", None)],
)
def test_a_rank_of_two_outside_a_collective(quiet_s, call, state, severity):
    """Its few steps took a second at most each; the log has no times of them."""
    evidence = in_c(2, r0=calls("MPI_Allreduce"), r1=calls(""))
    evidence = with_rank(evidence, 1, samples=samples((), state=state, syscall=call))
    log = tuple(f"step {number} loss 0.1" for number in range(4))
    evidence = with_job(evidence, log=log, log_silent_s=quiet_s, age_s=quiet_s + 4)
    found = [one for one in diagnose(evidence).findings if one.check == "mpi.awaited"]
    assert [(one.severity.value, one.ranks) for one in found] == [(severity, (1,))] * bool(severity)
    for one in found:
        assert "is in trade ring.c:7, not in MPI: rank 0 waits in " in one.message
        assert one.message.endswith("; no step was shown for 1 min 00 s")


@pytest.mark.parametrize(
    ("age_s", "state", "status"),
    [(240.0, "S", 1), (900.0, "S", 2), (20.0, "S", 3), (900.0, "R", 3)],
)
def test_a_rank_that_sleeps_before_it_calls_mpi_init(age_s, state, status):
    """Whoever waits in MPI_Init sleeps a little, again and again. Who works may be on its way."""
    inside = calls("MPI_Init")
    evidence = with_job(in_c(3, r0=inside, r1=inside, r2=calls("")), age_s=age_s)
    for rank in range(3):
        own = "R" if state == "R" and rank == 2 else "S"
        looks = used(samples((), state=own, syscall="clock_nanosleep"), 1.0 if own == "R" else 0.0)
        evidence = with_rank(evidence, rank, samples=looks, age_s=age_s)
    found = diagnose(evidence)
    assert found.exit_status == status
    if status < 3:
        assert (found.check, found.findings[0].ranks) == ("mpi.awaited", (2,))
        assert "not in MPI: ranks 0-1 wait in MPI_Init, called at trade ring.c:7" in found.verdict


def jumped(function: str) -> NativeCalls:
    """Return the calls of a rank whose call of MPI has left no frame of its own."""
    frames = (NativeFrame("main", "/home/u/ring.c", 20), NativeFrame(function, MPI))
    return NativeCalls(5, (*frames, NativeFrame("usleep", LIBC)), "gdb", held_s=0.4, same=True)


@pytest.mark.parametrize(
    ("mpi", "per_host", "shared", "check", "status"),
    [
        ("MPI_Allreduce", 1, None, "mpi.standing", 2),  # perhaps of another communicator
        ("MPI_Send", 1, None, "mpi.standing", 2),
        ("MPI_Allreduce", 2, 0, "mpi.standing", 2),
        ("MPI_Allreduce", 2, None, "unknown", 3),  # what is sent in memory is not known
        ("MPI_Allreduce", 2, 1 << 20, "unknown", 3),
        ("", 1, None, "mpi.awaited", 2),
    ],
)
def test_all_ranks_in_calls_of_mpi_while_no_data_move(mpi, per_host, shared, check, status):
    own = all_of("MPI_Recv" if mpi == "MPI_Send" else "MPI_Allreduce", (0, 2, 3), r1=calls(mpi))
    evidence = with_rank(in_c(4 // per_host, per_host, **own), *range(4), shared_bytes=shared)
    if not mpi:
        evidence = with_rank(evidence, 1, samples=used(samples((), syscall="pause"), 0.0))
    found = diagnose(standing_still(evidence))
    assert (found.check, found.exit_status) == (check, status) or (mpi, status) == ("", 2)
    assert diagnose(evidence).exit_status == 3 or not mpi, "a moment later they may go on"


def test_calls_in_c_of_python_without_py_spy_follow_those_of_its_samples():
    """eu-stack reads the interpreter's own calls."""
    names = ("_start", "/usr/bin/python3.11"), ("Py_RunMain", "/usr/lib/libpython3.11.so.1.0")
    names += ("?", "/x/mpi4py/MPI.abi3.so"), ("MPI_Allreduce", MPI), ("opal_progress", MPI)
    read = NativeCalls(5, tuple(NativeFrame(*one) for one in names), "eu-stack")
    evidence = with_rank(job_of(3, 1, own("main", 86), log=()), 1, native=read)
    [rank] = evidence.hosts[1].ranks
    assert native_of(rank).where == "in MPI_Allreduce, called at main train.py:86"
    # They wait for the one that tries again and again, and tells it in the log.
    tries = samples(own("download", 12), syscall="clock_nanosleep")
    log = (*(f"step {n}" for n in range(40)), *["GET shard 7 failed, next try in 2 s"] * 9)
    for all_wait in (True, False):
        stuck = with_job(evidence, log=log, log_silent_s=0.3, log_added=log[-2:])
        stuck = with_rank(stuck, 0, 1, samples=used(samples(own("main", 86), state="R")))
        stuck = stuck if all_wait else with_rank(stuck, 1, native=None)
        found = diagnose(with_rank(stuck, 2, samples=tries))
        [apart] = [one for one in found.findings if one.check == "rank.apart"]
        assert "rank 2 on demo-2 (10.0.0.7) is alone in download" in apart.message
        assert (found.check == apart.check, found.exit_status == 2) == (all_wait, all_wait)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("ompi_mpi_finalize", "MPI_Finalize"),
        ("internal_Finalize", "MPI_Finalize"),
        ("ompi_request_default_wait", ""),
        ("MPIR_Wait_impl", ""),
    ],
)
def test_a_rank_in_a_call_of_mpi_without_a_frame_of_its_own_is_in_mpi(function, words):
    steps = tuple(f"step {n} loss 0.1" for n in range(90))
    evidence = in_c(3, r0=calls("MPI_Allreduce"), r1=jumped(function), r2=calls("MPI_Allreduce"))
    found = diagnose(with_job(evidence, log=steps, log_silent_s=200.0, age_s=900.0))
    assert "not in MPI" not in " ".join(one.message for one in found.findings)
    assert not words or (found.exit_status == 2 and words in found.verdict)


@pytest.mark.parametrize(
    ("call", "read", "grows_s", "status"),
    [
        ("pause", True, 0.0, 2),
        ("wait4", True, 0.0, 1),
        ("clock_nanosleep", True, 0.0, 1),
        ("futex", True, 0.0, 2),
        ("futex", "pthread_join", 0.0, 1),
        ("futex", "pthread_join", 0.5, 3),
        ("futex", False, 0.0, 3),
        ("pause", True, 0.5, 3),
        ("poll", True, 0.0, 3),
    ],
)
@pytest.mark.parametrize("ranks", [1, 3])
def test_all_ranks_that_rest_are_named_once_the_job_stands_still(
    call, read, grows_s, status, ranks
):
    """Also one that is alone. A library may wait in poll or a futex, threads may work, and of the
    child that is waited for nothing was read."""
    nap = used(samples((), syscall=call), 0.0)
    looks = tuple(replace(one, cpu_s=grows_s * at) for at, one in enumerate(nap))
    one = calls("")
    if isinstance(read, str):
        one = replace(one, frames=(*one.frames, NativeFrame(read, LIBC)))
    own = {f"r{rank}": one for rank in range(ranks)} if read else {}
    evidence = with_rank(in_c(ranks, **own), *range(ranks), samples=looks)
    found = diagnose(standing_still(evidence))
    assert found.exit_status == status
    assert diagnose(evidence).exit_status == 3, "its next step may come"
    if call == "clock_nanosleep":
        sends = with_rank(evidence, 0, shared_bytes=4096)
        assert diagnose(standing_still(sends)).exit_status == 3, "it goes on, and naps"
    if status < 3:
        assert (found.check, found.findings[0].ranks) == ("ranks.resting", (*range(ranks),))
        assert "ring.c:7) for 1 min 00 s" in found.verdict
        alone = "none of their threads works" if read == "pthread_join" else "no rank waits for"
        is_told = ranks > 1 and call != "clock_nanosleep"  # who naps may ask for others between
        assert (f"and {alone}" in found.verdict) == is_told


def test_a_job_of_one_rank_is_not_told_as_of_several():
    assert "rank 0 is there" in diagnose(in_c(1)).clean
    assert "ranks 0-1 (2): all there" in diagnose(in_c(2)).clean


def test_ranks_that_wait_for_what_their_shell_has_started_do_not_rest():
    nap = used(samples((), syscall="wait4"), 0.0)
    resting = with_rank(in_c(1), 0, samples=tuple(replace(one, cpu_s=1.0) for one in nap))
    shell = ProcessEvidence(
        pid=50, parent=1000, role="child", samples=resting.hosts[0].ranks[0].samples
    )
    # What it waits for may wake by itself.
    for call, status in (("pause", 2), ("clock_nanosleep 0x0", 1), ("ppoll 0x5", 1)):
        child = Partner(50, "S", "child", ("ssh", "store"), resting.hosts[0].ranks[0].pid, call)
        waits = with_rank(resting, 0, partners=(child,))
        assert diagnose(standing_still(waits)).exit_status == status, call
    works = replace(shell, pid=51, parent=50, samples=samples((), state="R"))
    for more, check in (((shell,), "ranks.resting"), ((shell, works), "unknown")):
        processes = (*resting.hosts[0].processes, *more)
        assert diagnose(standing_still(with_host(resting, 0, processes=processes))).check == check
