"""Each rule of diagnosis: the evidence of a healthy job with one fault, and the verdict."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from clusterctl.diagnosis.case import WARNING, Scene
from clusterctl.diagnosis.evidence import (
    Frame,
    OpenFile,
    OtherProcess,
    Partner,
    ProcessEvidence,
    ThreadStack,
)
from clusterctl.diagnosis.verdict import _open, diagnose, not_seen
from clusterctl.domain.findings import Severity
from clusterctl.node.facts.native import NativeCalls, NativeFrame
from clusterctl.node.jobs.spec import JobState
from tests.diagnosis.made_up import (
    ALLREDUCE,
    IMPORTS,
    INIT,
    INNER,
    JOB,
    MAIN,
    NEXT,
    QUICK,
    SCRIPT,
    SHUTDOWN,
    STEP,
    TF,
    facts,
    file_system,
    job_of,
    own,
    samples,
    socket_to,
    used,
    with_host,
    with_job,
    with_other_ends,
    with_processes,
    with_rank,
)

STUCK = job_of()
RUNS = job_of(quiet_s=1.0)
STALL = (
    "[2026-11-23 00:51:01.  1234: W horovod/common/stall_inspector.cc:107] One or more tensors "
    "were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for "
    "remainder of ranks for more than 60 seconds. ",
    "Missing ranks:",
)


def stalled(*lines):
    return with_job(job_of(stack=STEP), log=("step 7", *STALL, *lines))


def rank_5(*frames, evidence=STUCK, **more):
    """Return a job whose rank 5, on demo-2, has a different stack."""
    return with_rank(evidence, 5, samples=samples(*frames, **more))


def gone(evidence=STUCK):
    return with_processes(evidence, lambda one: None if one.rank == 5 else one)


def stopped(role, **more):
    state = samples((), state="T")
    return with_processes(
        STUCK, lambda one: replace(one, samples=state, **more) if one.role == role else one
    )


def silent(error, ec2="", **sockets):
    evidence = with_host(STUCK, 3, error=error, ec2=ec2, processes=(), facts={})
    if sockets:
        last = samples(ALLREDUCE, sockets=(socket_to(3, **sockets),))
        evidence = with_rank(evidence, 0, samples=last)
    return evidence


def on_host_2(evidence=STUCK, **more):
    return with_host(evidence, 2, facts=facts("demo-2", **more))


def full(path):
    return on_host_2(filesystems=[file_system(path, 0)])


def failed(*log):
    return with_job(ENDED, log=("step 7", *log))


ENDED = with_processes(
    job_of(state=JobState.FAILED, exit_status=137, log=("step 7",)), lambda one: None
)
KILLED = [
    {"age_s": 3000.0, "text": "Out of memory: Killed process 1004 (python)"},
    {"age_s": 30.0, "text": "Out of memory: Killed process 1005 (python) total-vm:9kB"},
]
EXITED = "  Process name: [prterun-demo-0-77@1,5] Exit code: 1"
RAISED = (
    "Traceback (most recent call last):",
    '  File "train.py", line 3, in main',
    "MyError: no such thing",
)
NO_ROOM = "OSError: [Errno 28] No space left on device: '/dev/shm/x'"
FULL_SHM = file_system("/dev/shm", 0)
XID = [{"age_s": 9.0, "text": "NVRM: Xid (PCI:0000:00:1e): 79, GPU has fallen off the bus."}]
GPUS = {"gpus": [{"bus": "00000000:00:1d.0"}, {"bus": "00000000:00:1e.0"}]}
RAS = """\
#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  7 ranks have launched up to operation 6650
  Rank 5 has launched up to operation 6649 -- GPU 1 managed by process 1005 on node 10.0.0.7
"""
SPINS = (own("spin", 3), own("spin", 4), own("spin", 3))


BEGINS = ("Horovod size: 8", "Epoch 1/100000")
# TensorFlow makes a graph of a step: an allreduce in it is not waited for, and the file that it
# makes of the user's function is not the user's.
GRAPHED = (
    *MAIN,
    Frame("trace_function", f"{TF}/eager/polymorphic_function/tracing_compilation.py", 178),
    Frame("func_graph_from_py_func", f"{TF}/framework/func_graph.py", 1059),
    Frame("tf__train_function", "/tmp/__autograph_generated_filejqx8.py", 15),
)
TRACES = (
    (*GRAPHED, Frame("horovod_allreduce", "<string>", 110), Frame("op", f"{TF}/framework/ops.py")),
    (*GRAPHED, Frame("get_attr", f"{TF}/framework/ops.py", 9)),
    (*GRAPHED, Frame("visit", "/usr/lib/python3.12/ast.py", 407)),
)


def signalled(rank, host, number):
    ended = f"process rank {rank} with PID 1005 on node demo-{host} exited on signal {number}"
    return on_host_2(with_job(ENDED, log=(ended,)), kernel_log=KILLED)


# Faults of rank 5 on demo-2: the evidence, and the verdict's check.
SICK_RANK = {
    "stopped": (rank_5((), state="T"), "rank.stopped"),
    "frozen, as in a paused container": (rank_5((), state="F"), "rank.stopped"),
    "stopped in a step": (
        rank_5(STEP, evidence=job_of(stack=STEP, quiet_s=3), state="T"),
        "rank.stopped",
    ),
    "traced": (rank_5((), state="t"), "rank.traced"),
    "a zombie": (rank_5((), state="Z"), "rank.exited"),
    "in the kernel": (rank_5((), state="D", syscall="read /data/x"), "rank.uninterruptible"),
    "gone": (gone(), "rank.missing"),
    "gone before init": (gone(job_of(stack=INIT)), "rank.missing"),
    "a loop": (rank_5(*SPINS, state="R"), "rank.busy"),
    "a loop in C": (rank_5(own("spin"), state="R"), "rank.busy"),
    "a pipe": (
        rank_5(own("load"), syscall="openat /data/fifo", wait_channel="wait_for_partner"),
        "rank.io",
    ),
    "a full disk": (
        rank_5(own("save"), evidence=full("/data"), state="D", syscall="fsync /data/model.ckpt"),
        "disk.full",
    ),
    "no data": (rank_5(NEXT), "rank.data"),
    "blocked in a library": (
        rank_5((*own("load"), *INNER[:1]), syscall="recvfrom socket:[9]"),
        "rank.blocked",
    ),
    "an exception beside a thread": (
        rank_5(
            SHUTDOWN,
            evidence=with_job(STUCK, log=("step 7", "RuntimeError: loss is NaN at step 7")),
        ),
        "rank.exception",
    ),
    "left": (rank_5(SHUTDOWN), "rank.left"),
    "skipped": (stalled("5: [grads/conv2, grads/dense]"), "rank.skipped"),
    "skipped, and then another": (
        stalled(*(f"{rank}: [grads/dense]" for rank in range(8) if rank != 5), "5: [grads/conv2]"),
        "rank.skipped",
    ),
    "killed for memory": (on_host_2(gone(), kernel_log=KILLED), "rank.oom"),
    "killed for memory, and ended": (signalled(5, 2, 9), "rank.oom"),
    "a corrupted record": (
        failed("DataLossError: corrupted record at 0", EXITED),
        "tf.data-loss",
    ),
    "an exception": (failed(*RAISED, EXITED), "log.exception"),
    "an exception while mpirun ends": (
        with_job(failed(*RAISED, EXITED), state=JobState.RUNNING, exit_status=None),
        "log.exception",
    ),
    "full shared memory": (
        on_host_2(failed(NO_ROOM, EXITED), filesystems=[FULL_SHM]),
        "shm.full",
    ),
    "it outlives the others": (
        with_processes(
            with_job(STUCK, state=JobState.FAILED, exit_status=1),
            lambda one: one if one.rank == 5 else None,
        ),
        "ranks.leftover",
    ),
    "behind, NCCL says": (with_host(STUCK, 0, ras=RAS), "nccl.behind"),
    "a GPU fell off": (on_host_2(kernel_log=XID, gpus=GPUS), "xid.79"),
}
TEE = (Partner(77, "T", "reads", ("tee", "log"), 900, "read pipe:[5]"),)
# Other faults: the evidence, the check, its host, its ranks.
SICK = {
    "daemon stopped": (stopped("daemon", pid=1), "daemon.stopped", 1, ()),
    "mpirun stopped": (stopped("launcher"), "launcher.stopped", 0, ()),
    "mpirun | tee, which is stopped": (
        with_processes(
            STUCK,
            lambda one: replace(one, partners=TEE) if one.role == "launcher" else one,
        ),
        "launcher.stopped",
        0,
        (),
    ),
    "frozen": (
        silent("takes connections and answers none in time at 10.0.0.8: frozen or too busy"),
        "host.silent",
        3,
        (6, 7),
    ),
    "cut": (silent("did not answer in time", retransmits=7, timer="on"), "host.silent", 3, (6, 7)),
    "off": (silent("its instance is i-0 stopped", "EC2 has i-0 as stopped"), "host.off", 3, (6, 7)),
    "missed by several": (stalled("2: [grads/a]", "3: [grads/a]"), "rank.missed", 1, (2, 3)),
    "killed for memory, a victim on another host has the number": (
        signalled(1, 0, 6),
        "kernel.oom",
        2,
        (),
    ),
    "same name": (with_host(STUCK, 3, facts=facts("demo-2")), "host.name", 3, ()),
    **{name: (*sick, 2, (5,)) for name, sick in SICK_RANK.items()},
}


def test_processes_that_were_not_read_are_no_all_clear_and_a_warning_beside_them_is_no_verdict():
    unread = with_host(STUCK, 2, processes=(), problems=("processes: no answer within 6 s",))
    for evidence in (unread, with_host(unread, 1, clock_offset_s=90.0)):
        found = diagnose(evidence)
        assert (found.check, found.exit_status) == ("unknown", 3), found
        assert "demo-2: processes: no answer within 6 s" in found.verdict
        assert found.as_data()["not_seen"] == ["demo-2: processes: no answer within 6 s"]
        assert "no rank of another job of this user" not in found.clean


@pytest.mark.parametrize(
    ("error", "words", "step"),
    [
        ("its host key is unknown: n3 is not in known_hosts", "no known_hosts file", "fingerprint"),
        ("its host key is not the one in known_hosts", "another host key", "another machine may"),
        ("refused every key that was offered", "refuses each key", "-u USER"),
        ("looking at it failed: sudo: a password is required", "sudo refuses it", "NOPASSWD"),
        ("there is no key to offer to root@n3", "was not contacted", "-u USER"),
        ("its ProxyCommand ended: closed by proxy", "not contacted: its Pr", "diagnose again"),
        ("cannot be reached through b: refused every key", "not contacted: cannot be", "-u USER"),
        ("cannot be reached through b: its instance is stopped", "not contacted: ca", "diagnose"),
        ("`python3 -` did not end within 4 s", "ended no command in time", "diagnose again"),
    ],
)
def test_why_a_host_without_a_cluster_could_not_be_looked_at(error, words, step):
    evidence = replace(silent(error), source="-w n[0-3]", cluster="")
    [host] = [one for one in diagnose(evidence).findings if one.host == "demo-3"]
    assert words in host.message and step in host.hint, host
    assert "cluster" not in host.message


@pytest.mark.parametrize("name", SICK)
def test_what_is_wrong_is_named(name):
    evidence, check, host, ranks = SICK[name]
    found = diagnose(evidence)
    assert (found.check, found.findings[0].ranks) == (check, ranks), found
    assert found.findings[0].host == f"demo-{host}"
    assert found.exit_status == 2


@pytest.mark.parametrize(
    ("host", "commands"),
    [
        (3, ["clusterctl replace demo 3"]),
        (0, ["clusterctl stop demo --force", "clusterctl start demo", "clusterctl replace demo 0"]),
    ],
)
@pytest.mark.parametrize("error", ["did not answer in time", "it answers none in time: frozen"])
def test_a_silent_host_is_not_told_to_reboot(host, commands, error):
    evidence = with_host(STUCK, host, error=error, processes=(), facts={})
    [silent] = [one for one in diagnose(evidence).findings if one.check == "host.silent"]
    assert "reboot" not in silent.hint
    assert [one for one in commands if one not in silent.hint] == []


@pytest.mark.parametrize(
    ("address", "error", "is_seen"),
    [
        ("10.0.0.8", "did not answer in time", True),
        ("n3", "did not answer in time", True),
        ("n3", "its name is not known: n3", False),
        ("::1", "did not answer in time", False),
        ("fe80::1%eth0", "did not answer in time", False),
    ],
)
def test_another_host_pings_only_an_address_that_means_the_same_there(address, error, is_seen):
    evidence = with_host(STUCK, 3, error=error, address=address, processes=(), facts={})
    [silent] = [one for one in diagnose(evidence).findings if one.host == "demo-3"]
    assert ("ping -c 3" in silent.hint) == is_seen


@pytest.mark.parametrize(
    ("path", "cwd", "check"),
    [
        ("/mnt/other", "/home/u", "unknown"),
        ("/mnt/other", "/mnt/other/run", "disk.full"),
        ("/data", "/home/u", "disk.full"),
    ],
)
def test_a_full_mount_of_hosts_that_no_rank_uses_is_not_why_a_job_is_stuck(path, cwd, check):
    evidence = with_rank(replace(full(path), source="--hosts h", cluster=""), *range(8), cwd=cwd)
    found = diagnose(evidence)
    assert found.check == check
    assert "disk.full" in [one.check for one in found.findings]


def test_a_silent_host_may_have_the_ranks_whose_host_is_not_known():
    by_hand = with_job(STUCK, hosts={}, line="mpirun ./model")
    evidence = with_host(by_hand, 3, error="did not answer in time", processes=())
    found = diagnose(evidence)
    assert (found.check, found.exit_status) == ("host.silent", 2)
    assert "ranks 6-7 were not observed: running, or ended, and the job has made no step" in (
        found.verdict
    )


@pytest.mark.parametrize("came", [True, False])
def test_a_host_that_only_this_machine_cannot_reach(came):
    looks = samples(ALLREDUCE)
    ends = (socket_to(3, received_bytes=700 * came * at) for at in range(3))
    # What a port has accepted from another port there.
    other = replace(socket_to(3, received_bytes=90), peer=f"{socket_to(3).peer}1")
    orders = ((0, 1), (1, 0), (1, 0))
    looks = tuple(
        replace(look, sockets=tuple((end, other)[one] for one in order))
        for look, end, order in zip(looks, ends, orders)
    )
    cut = with_host(RUNS, 3, error="did not answer in time", processes=())
    found = diagnose(with_rank(cut, 0, samples=looks))
    [silent] = [one for one in found.findings if one.check == "host.silent"]
    why = ", while data come from it to other hosts of the job" if came else ": its link is cut"
    assert f"cannot be reached from here{why}" in silent.message
    assert "; the job goes on: a step was printed 1.0 s ago" in silent.message
    assert (found.exit_status, "replace" in silent.hint) == (1, False)


def test_the_output_of_a_job_whose_head_node_is_silent_was_not_seen():
    """It may print a step a second."""
    evidence = with_host(RUNS, 0, error="no answer", processes=())
    evidence = with_job(evidence, log=(), log_silent_s=None, size=6)
    scene = Scene(evidence)
    assert "prints no steps" not in _open(scene)
    assert "its output was not read: demo-0" in _open(scene)
    nowhere = Scene(with_job(RUNS, log=(), log_silent_s=None))
    assert _open(nowhere).startswith("no step was observed")
    assert "its log and its metrics: none was found" in list(not_seen(nowhere))
    empty = Scene(with_job(RUNS, log=(), log_silent_s=9.0))
    assert "its log and its metrics: it has written nothing" in list(not_seen(empty))
    assert _open(Scene(with_job(RUNS, log=("starts",)))).startswith("it prints no steps")
    flooded = with_job(RUNS, log=("starts",), log_first=("step 7",))
    assert _open(Scene(flooded)).startswith("the end of its log has no steps")
    appended = Scene(with_job(RUNS, log=(), log_silent_s=9.0, log_is_older=True))
    assert [one for one in not_seen(appended) if "its log" in one] == [
        "what its log had before: that may be an earlier job's, or its lines come late"
    ]


def test_ranks_of_another_job_are_no_leftovers_while_the_head_node_is_silent():
    """It alone knows which jobs run."""
    stranger = ProcessEvidence(
        pid=77, role="rank", rank=0, job_id="20261122-1", samples=samples(STEP)
    )
    both = (*STUCK.hosts[2].processes, stranger)
    evidence = with_host(with_host(STUCK, 2, processes=both), 0, error="no answer", processes=())
    [one] = [one for one in diagnose(evidence).findings if one.check == "ranks.leftover"]
    assert "is not known" in one.message and not one.blocks and "kill" not in one.hint
    [one] = [
        one
        for one in diagnose(with_host(STUCK, 2, processes=both)).findings
        if one.check == "ranks.leftover"
    ]
    assert "kill demo --nodes 2" in one.hint


@pytest.mark.parametrize(("job", "are"), [(STUCK, "are"), (ENDED, "were")])
def test_ranks_of_an_ended_job_are_not_on_a_silent_host_any_more(job, are):
    evidence = with_host(job, 3, error="did not answer in time", processes=(), facts={})
    [silent] = [one for one in diagnose(evidence).findings if one.check == "host.silent"]
    assert f"ranks 6-7 {are} there" in silent.message


def glanced(evidence, letters, *ranks):
    """Return evidence whose samples show nothing. The ranks have these states between samples."""
    evidence = with_rank(evidence, *range(8), glances="wwwwwwwwwz" * 3)
    return with_rank(evidence, *ranks, glances=letters)


WELL, CRAWLING, DELAYED = (20e6, 0.02, 0.001), (1e5, 0.8, 0.3), (1e6, 0.6, 0.04)


def sends(evidence, links):
    """Return the evidence with network traffic of ranks.

    `links` has, by the hosts at both ends, the bytes/s of a rank, the share of the time in which it
    sends, and the round-trip time.
    """
    for host in {one for one, _ in links}:

        def at(look, host=host):
            return tuple(
                socket_to(
                    to,
                    host,
                    rtt_s=rtt_s,
                    acked_bytes=int(bytes_s * share * look.at_s),
                    sending_s=share * look.at_s,
                )
                for (one, to), (bytes_s, share, rtt_s) in links.items()
                if one == host
            )

        looks = tuple(replace(look, sockets=at(look)) for look in samples(ALLREDUCE))
        evidence = with_rank(evidence, 2 * host, samples=looks)
    return evidence


def exchanging(evidence):
    """Return the evidence of ranks in C that send data to the next host."""
    for rank in range(8):
        to = socket_to((rank // 2 + 1) % 4, rank // 2)
        looks = tuple(
            replace(
                look,
                sockets=(replace(to, acked_bytes=sent, sent_segments=sent >> 16),),
                main_written_bytes=sent,
            )
            for look in samples((), state="R")
            for sent in (int(look.at_s) << 17,)
        )
        evidence = with_rank(evidence, rank, samples=looks, argv=("/home/ubuntu/ring",))
    return with_other_ends(evidence)


def scripted(evidence, **sources):
    evidence = with_rank(evidence, *range(8), sources={"train.py": "aa", "data.py": "dd"})
    return with_rank(evidence, 4, 5, sources={"train.py": "aa", "data.py": "dd", **sources})


HEALTHY = {
    "steps, seen by the log": job_of(quiet_s=1.0),
    "steps, seen by its rows": with_job(
        job_of(stack=STEP, quiet_s=40),
        metrics=tuple({"kind": "train", "step": n, "time": 100.0 + 20 * n} for n in range(5)),
        metrics_silent_s=30.0,
    ),
    "rank 0 saves, seen between the looks": glanced(
        with_rank(job_of(quiet_s=1.0), 0, samples=samples((*own("save"), *INNER, QUICK))),
        "R" * 30,
        0,
    ),
    "all work": glanced(job_of(quiet_s=1.0), "RRRRRRRwRR" * 3, *range(8)),
    "links that are full": sends(
        job_of(quiet_s=1.0), {(0, 1): (1e9, 1.0, 0.06), (1, 2): (9e8, 1.0, 0.08)}
    ),
    "acknowledgements are delayed": sends(job_of(quiet_s=1.0), {(0, 1): WELL, (0, 2): DELAYED}),
    "all links are slow": sends(
        job_of(quiet_s=1.0), {(0, 1): CRAWLING, (1, 2): (2e5, 0.7, 0.2), (0, 2): CRAWLING}
    ),
    "the same scripts": scripted(job_of(quiet_s=1.0)),
    "another's process was killed for memory": on_host_2(
        job_of(quiet_s=1.0),
        kernel_log=[{"age_s": 30.0, "text": "Out of memory: Killed process 99 (python)"}],
    ),
    "importing": with_rank(
        job_of(quiet_s=20.0, log=(), age_s=10.0), *range(8), samples=samples(IMPORTS, INIT, STEP)
    ),
    "rank 0 validates, and its calls change": with_rank(
        STUCK, 0, samples=used(samples(own("validate", 3), own("validate", 4), own("validate", 5)))
    ),
    "rank 0 validates, and reads": with_rank(
        STUCK,
        0,
        samples=tuple(
            replace(one, read_bytes=at << 20, main_cpu_s=float(at))
            for at, one in enumerate(samples(own("validate", 3), STEP, own("validate", 5)))
        ),
    ),
    "all at their own work": with_rank(
        job_of(quiet_s=60.0), *range(8), samples=samples(own("augment"), STEP, own("augment", 31))
    ),
    "in C, and bytes move": exchanging(job_of(stack=(), log=(), quiet_s=600.0)),
    "two ranks still trace the first step": with_rank(
        job_of(stack=STEP, log=BEGINS, quiet_s=24.0, age_s=40.0),
        *(0, 1),
        samples=used(samples(*TRACES, state="R"), 0.1),
    ),
    "rank 0 evaluates, and the others are at their end": with_rank(
        job_of(stack=SHUTDOWN, quiet_s=20.0),
        0,
        samples=used(samples(own("evaluate"), (*own("evaluate", 31), QUICK), own("evaluate"))),
    ),
    "ended": with_processes(job_of(state=JobState.SUCCEEDED), lambda _: None),
    "a stall that passed": with_job(
        job_of(quiet_s=1.0), log=(*STALL, "5: [grads/conv2]", "step 8 loss 0.1")
    ),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_job_has_no_error_as_its_verdict(name):
    found = diagnose(HEALTHY[name])
    assert found.exit_status == 0, found
    assert found.check in ("healthy", "starting")


SPIN = samples((), state="R")
CHATTER = tuple(f"worker 3: still waiting, {n} s" for n in range(9))
ROWS = tuple({"kind": "train", "step": n, "time": 100.0 + 0.06 * n} for n in range(90))
# Jobs of which neither a step nor a cause was seen, and words of the verdict.
NOT_KNOWN = {
    "importing, and nothing moves": (job_of(stack=IMPORTS, age_s=10.0), "importing modules"),
    "the first step is compiled": (job_of(stack=STEP, age_s=40.0), "a compiled step"),
    "rank 0 saves, and nothing moves yet": (
        with_rank(job_of(quiet_s=8.0), 0, samples=samples((*own("save"), *INNER, QUICK))),
        "a compiled step",
    ),
    "a long evaluation": (job_of(stack=STEP, quiet_s=300.0), "for 5 min 00 s"),
    "no output at all": (job_of(stack=STEP, log=(), quiet_s=600.0), "8 ranks were found"),
    "all at their own work, on one line": (job_of(stack=own("augment")), "augment train.py:30"),
    "all wait in allreduce": (STUCK, "wait in Horovod's allreduce"),
    "ranks in C that spin": (with_rank(STUCK, *range(8), samples=SPIN), "ranks 0-7 in running"),
    "ninety steps, then silence": (
        with_job(job_of(stack=STEP), metrics=ROWS, metrics_silent_s=300.0, age_s=900.0),
        "no step for 5 min 00 s, and one came every 0.1 s before",
    ),
    "steps in the log, then silence": (
        job_of(
            stack=STEP,
            quiet_s=540.0,
            log=tuple(f"step {n} loss 0.1" for n in range(90)),
            age_s=600.0,
        ),
        "no step for 9 min 00 s, and one came every 0.7 s before",
    ),
    "all work on, long after the last step": (
        with_rank(
            with_job(job_of(), metrics=ROWS, metrics_silent_s=300.0, age_s=900.0),
            *range(8),
            samples=samples(own("augment"), STEP, own("augment", 31)),
        ),
        "no step for 5 min 00 s",
    ),
    "only a thread says that it waits": (job_of(quiet_s=0.5, log=CHATTER), "no step"),
    "chatter while it is looked at": (job_of(log_added=CHATTER), "no step"),
    "Horovod's threads spin under ranks that sleep": (
        with_rank(
            STUCK,
            *range(8),
            samples=tuple(replace(one, main_cpu_s=1.0) for one in samples(ALLREDUCE)),
        ),
        "wait in Horovod's allreduce",
    ),
    "a rank is not there yet": (
        with_processes(
            job_of(stack=IMPORTS, age_s=2.0),
            lambda one: None if one.rank == 7 else replace(one, age_s=1.0),
        ),
        "7 of its 8 ranks were found",
    ),
}


@pytest.mark.parametrize("name", NOT_KNOWN)
def test_what_is_not_known_is_not_called_well(name):
    evidence, words = NOT_KNOWN[name]
    found = diagnose(evidence)
    assert (found.check, found.exit_status) == ("unknown", 3), found
    assert words in found.verdict
    assert found.unseen
    assert "clusterctl diagnose demo --tree" in found.next_step


def test_a_watcher_is_told_whether_the_job_stands_still():
    silent = NOT_KNOWN["ninety steps, then silence"][0]
    told = [RUNS, silent, job_of(log=(), quiet_s=600.0), stalled("5: [grads/a]"), ENDED]
    assert [Scene(one).is_stuck for one in told] == [False, True, None, True, None]


def test_without_a_job_nothing_is_known():
    found = diagnose(replace(STUCK, job=None, hosts=()))
    assert (found.check, found.exit_status) == ("idle", 3)


def test_what_a_kernel_killed_for_memory_is_told_where_no_job_is_found():
    """A job by hand that has ended has no record: it may have ended so."""
    evidence = with_processes(on_host_2(kernel_log=KILLED), lambda one: None)
    found = diagnose(replace(evidence, job=None, source="--hosts hosts"))
    assert (found.check, found.exit_status) == ("idle", 3)
    [told] = found.findings
    assert told.message == (
        "the kernel of demo-2 (10.0.0.7) killed python (pid 1005) for want of memory 30 s ago"
    )
    long_ago = [{**one, "age_s": 1e5} for one in KILLED]
    evidence = with_processes(on_host_2(kernel_log=long_ago), lambda one: None)
    assert not diagnose(replace(evidence, job=None, source="--hosts hosts")).findings


def test_a_gpu_that_is_missing_or_in_the_kernels_messages_is_not_told_to_be_clean():
    """A GPU that has fallen off the bus is in no list of nvidia-smi."""
    of_two = replace(on_host_2(gpus={"gpus": GPUS["gpus"][:1]}), job=None)
    found = diagnose(with_host(of_two, 2, slots=2))
    [told] = [one for one in found.findings if one.check == "gpu.count"]
    assert told.message == "nvidia-smi sees 1 GPU on demo-2 (10.0.0.7), its type has 2"
    assert told.hint.startswith("clusterctl reboot ")
    assert not any("GPUs" in text for text in found.clean)
    in_kernel = diagnose(replace(on_host_2(kernel_log=XID, gpus=GPUS), job=None))
    assert "xid.79" in [one.check for one in in_kernel.findings]
    assert not any("GPUs" in text for text in in_kernel.clean)
    ageless = {**KILLED[0], "text": XID[0]["text"], "age_s": None}
    idle = with_processes(on_host_2(kernel_log=[ageless]), lambda one: None)
    found = diagnose(replace(idle, job=None, source="--hosts hosts"))
    assert (found.check, found.exit_status) == ("idle", 3), "it may be years old"


def test_a_gpu_is_reset_by_a_reboot_before_its_disk_is_given_up():
    def told(**gpu):
        evidence = on_host_2(gpus={"gpus": [{**GPUS["gpus"][0], **gpu}]})
        [found] = [one for one in diagnose(evidence).findings if one.check == "gpu.broken"]
        return found.message, found.hint

    message, hint = told(recovery_action="Reset")
    assert message == "GPU 0 on demo-2 (10.0.0.7) needs Reset"
    assert hint.startswith("clusterctl reboot ")
    message, hint = told(recovery_action="Reset", remap_failed=True)
    assert message.endswith("has a bad memory row that could not be remapped")
    assert hint.startswith("clusterctl replace ")


def test_what_was_not_looked_at_is_told():
    dark = with_rank(STUCK, *range(8), samples=SPIN)
    dark = with_host(dark, 3, error="did not answer in time", processes=(), quarantined="x")
    found = diagnose(with_job(dark, line="", size=6, log=()))
    assert found.check in ("unknown", "host.silent")
    spin = diagnose(with_rank(STUCK, *range(8), samples=SPIN))
    assert any("ranks 0-7: no Python programs" in text for text in spin.unseen)
    assert "gdb -p 1000" in spin.next_step


@pytest.mark.parametrize(
    ("status", "words"),
    [(129, "SIGHUP"), (137, "mpirun or a rank got signal 9"), (255, "a daemon is lost"), (3, "")],
)
def test_an_exit_status_is_told_and_no_more(status, words):
    """Open MPI ends with the status of a rank, too, so that a signal need not be mpirun's own."""
    verdict = diagnose(with_job(ENDED, exit_status=status)).verdict
    assert words in verdict and "its log does not say why" in verdict
    assert "restarted" not in verdict


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("ended by signal 15, as at a shutdown", "its processes were killed (ended by signal 15)"),
        ("its end was not recorded (runner killed or crashed)", "runner killed or crashed"),
    ],
)
@pytest.mark.parametrize("log", [("step 7",), ("OSError: [Errno 28] No space left on device",)])
def test_a_job_that_was_killed_is_said_to_be(reason, said, log):
    evidence = with_job(ENDED, state=JobState.LOST, exit_status=None, reason=reason, log=log)
    assert said in diagnose(evidence).verdict


@pytest.mark.parametrize(
    ("reason", "status", "words"),
    [
        ("by watchdog: it made no step", 2, "cancelled by its watchdog: no step for 20 s: rank 1"),
        ("by ubuntu", 0, f"job {JOB} was cancelled"),
    ],
)
def test_what_the_watchdog_saw_is_why_it_cancelled_the_job(reason, status, words):
    said = ("no step for 20 s: rank 1 on demo-1 waits for a pipe", "all observations: clusterctl")
    messages = tuple(f"2026-11-29 12:53:58 UTC: {one}" for one in said)
    ended = with_job(ENDED, state=JobState.CANCELLED, reason=reason, messages=messages)
    found = diagnose(ended)
    assert (found.exit_status, words in found.verdict) == (status, True), found
    assert status == 0 or found.findings[0].hint == said[1]


def test_a_head_node_that_was_restarted_is_told():
    up = facts("demo-0", system={"hostname": "demo-0", "cpus": 64, "uptime_s": 90.0})
    verdict = diagnose(with_host(with_job(ENDED, exit_status=137), 0, facts=up)).verdict
    assert "demo-0 (10.0.0.5), on which mpirun ran, was restarted 1 min 30 s ago" in verdict


def test_a_ranks_own_log_says_who_failed_first():
    """mpirun names the rank that it saw end first, which may be another."""
    error = "MyError: no such thing"
    log = ("Traceback (most recent call last):", '  File "train.py", line 3, in main', error)
    killed = "process rank 6 with PID 7 on node demo-3 exited on signal 15"
    logs = {str(rank): (error,) if rank == 2 else ("step 7",) for rank in range(8)}
    found = diagnose(with_job(ENDED, exit_status=1, log=(*log, killed), rank_logs=logs))
    assert (found.findings[0].ranks, found.findings[0].host) == ((2,), "demo-1")


def test_most_ranks_may_be_the_cause():
    naps = with_rank(STUCK, 0, 1, 2, 3, 4, 5, samples=samples(own("nap")))
    found = diagnose(naps)
    assert found.exit_status == 2
    assert "nap train.py:30" in found.verdict
    assert "2 ranks wait for it in Horovod's allreduce" in found.verdict
    assert found.findings[0].ranks == (0, 1, 2, 3, 4, 5)


GATHER = (*MAIN, Frame("step", SCRIPT, 79), *INNER, Frame("horovod_allgather", "<string>", 1))


def test_ranks_in_different_collectives_are_named_at_the_first_look():
    found = diagnose(with_rank(STUCK, 5, samples=samples(GATHER)))
    assert (found.check, found.exit_status) == ("ranks.differ", 2)
    assert (found.findings[0].ranks, found.findings[0].host) == ((5,), "demo-2")
    assert "rank 5 on demo-2 (10.0.0.7) in Horovod's allgather" in found.verdict
    assert "ranks 0-4,6-7 on 4 hosts in Horovod's allreduce" in found.verdict
    other = (*MAIN, Frame("step", SCRIPT, 80), *INNER, ALLREDUCE[-1])
    assert diagnose(with_rank(STUCK, 5, samples=samples(other))).findings[0].ranks == (5,)


@pytest.mark.parametrize(
    ("place", "log", "check"),
    [
        (own("other_step", 31), tuple(f"step {n} loss 0.1" for n in range(90)), "ranks.differ"),
        (own("validate", 31), tuple(f"step {n} loss 0.1" for n in range(90)), "unknown"),
        (own("other_step", 31), (), "unknown"),
        (MAIN, (), "unknown"),
    ],
)
def test_ranks_in_different_compiled_steps_are_named_once_ten_steps_are_missing(place, log, check):
    step = samples((*own("one_step"), *INNER, QUICK))
    evidence = with_rank(job_of(log=log), *range(8), samples=step)
    found = diagnose(with_rank(evidence, 5, samples=samples((*place, *INNER, QUICK))))
    assert found.check == check
    if check == "ranks.differ":
        assert (found.findings[0].ranks, found.findings[0].host) == ((5,), "demo-2")
        assert "other_step train.py:31" in found.verdict


def test_ranks_that_came_to_one_line_by_other_calls_of_the_library_are_named_once_stuck():
    # A rank's first call of a compiled function lacks a frame that later calls have.
    log = tuple(f"step {n} loss 0.1" for n in range(90))
    later, first = ((*own("one_step"), *inner, QUICK) for inner in (INNER, INNER[1:]))
    for lines, check in ((log, "ranks.differ"), ((), "unknown")):
        evidence = with_rank(job_of(log=lines), *range(8), samples=samples(later))
        assert diagnose(evidence).check == "unknown"
        found = diagnose(with_rank(evidence, 5, samples=samples(first)))
        assert found.check == check
    found = diagnose(with_rank(with_rank(evidence, *range(4), samples=samples(first))))
    assert found.check == "unknown"


def between(evidence, start, end, *, state="ESTAB", roles=("rank",), **more):
    """Return the evidence with a connection from a process of a host to another host."""
    more = {"timer": "on", **more}
    socket = replace(socket_to(end, start), state=state, **more)

    def change(one):
        looks = tuple(replace(look, sockets=(*look.sockets, socket)) for look in one.samples)
        return replace(one, samples=looks)

    host = evidence.hosts[start]
    changed = tuple(change(one) if one.role in roles else one for one in host.processes)
    return with_host(evidence, start, processes=changed)


def far_end(evidence, start, end, **more):
    """The same connection at its other end."""
    near = socket_to(end, start)
    socket = replace(near, local=near.peer, peer=near.local, timer="on", **more)
    [*_, rank] = evidence.hosts[end].ranks
    looks = tuple(replace(look, sockets=(socket,)) for look in rank.samples)
    return with_rank(evidence, rank.rank, samples=looks)


LOST = {"send_queue_bytes": 131072, "retransmits": 8}


def test_packets_that_are_lost_name_the_pair_of_hosts():
    found = diagnose(between(STUCK, 2, 0, **LOST))
    assert (found.check, found.exit_status, found.findings[0].host) == ("link.lost", 2, "demo-2")
    assert "between demo-2 (10.0.0.7) and demo-0 (10.0.0.5) (port 1024)" in found.verdict
    assert "sent again 8 times without success for 3 min 34 s" in found.verdict
    assert "ping -c 3 -M do -s 1472 10.0.0.5" in found.findings[0].hint


def test_packets_that_are_lost_are_told_before_a_step_is_overdue():
    found = diagnose(between(RUNS, 2, 0, **{**LOST, "retransmits": 3}))
    assert (found.check, found.exit_status) == ("link.lost", 1)


def test_the_direction_is_told_by_what_arrived():
    """The data of the other end arrive here, and its kernel does not get to know."""
    evidence = between(STUCK, 2, 0, received_bytes=500, **LOST)
    evidence = far_end(evidence, 2, 0, acked_bytes=100, send_queue_bytes=400, retransmits=8)
    verdict = diagnose(evidence).verdict
    assert "packets are lost demo-2 (10.0.0.7) → demo-0 (10.0.0.5)" in verdict
    assert verdict.startswith("rank 1 waits for data of ranks 4-5: ")


@pytest.mark.parametrize(("untaken", "check"), [(0, "link.lost"), (9000, "unknown")])
def test_who_sends_nothing_though_the_other_end_has_taken_all_loses_packets(untaken, check):
    """As if its window were closed: a rule or a route of its own host drops them."""
    evidence = between(STUCK, 2, 0, **LOST, timer="persist")
    assert diagnose(evidence).check == "unknown", "the other end was not seen"
    found = diagnose(far_end(evidence, 2, 0, receive_queue_bytes=untaken))
    assert found.check == check
    assert untaken or "a rule or a route of demo-2 itself" in found.findings[0].hint


def test_who_cannot_connect_is_told():
    found = diagnose(between(STUCK, 2, 0, state="SYN-SENT", roles=("daemon",), retransmits=4))
    assert found.check == "link.connect"
    assert found.verdict.startswith("mpirun's daemon on demo-2 (10.0.0.7) cannot connect to demo-0")
    assert "sent 5 times" in found.verdict


@pytest.mark.parametrize(
    ("evidence", "more"),
    [
        (STUCK, {"send_queue_bytes": 10, "retransmits": 1}),
        (STUCK, {"retransmits": 8}),
        (RUNS, LOST),
        (silent("did not answer in time"), LOST),
    ],
)
def test_a_connection_that_is_only_slow_or_idle_is_no_finding(evidence, more):
    end = 3 if evidence is not STUCK else 0
    checks = [one.check for one in diagnose(between(evidence, 2, end, **more)).findings]
    assert "link.lost" not in checks


def test_who_submitted_what_no_other_did_is_not_called_innocent():
    """All others are missing, and wait in another call: they are no more the cause than it is."""
    rest = tuple(f"{rank}: [gathered]" for rank in range(8) if rank != 5)
    found = diagnose(stalled(*rest))
    assert (found.check, found.findings[0].ranks) == ("ranks.order", (5,))
    assert "rank 5 on demo-2 (10.0.0.7) has submitted `gathered`" in found.verdict


def test_a_rank_in_c_that_is_alone_is_named():
    spins = with_rank(STUCK, *range(8), samples=SPIN)
    found = diagnose(with_rank(spins, 5, samples=samples((), syscall="pause")))
    assert (found.check, found.findings[0].ranks) == ("rank.apart", (5,))
    assert "alone in pause" in found.verdict


def in_c(evidence, *ranks, call, **more):
    return with_rank(evidence, *ranks, samples=samples((), syscall=call, **more))


@pytest.mark.parametrize(
    ("ranks", "call", "words"),
    [
        ((5,), "futex", "alone in futex"),
        (
            (1, 2, 3, 4, 5),
            "clock_nanosleep",
            "are in clock_nanosleep for 3 min 34 s, and ranks 0,6-7 are running or polling",
        ),
        ((5,), "wait4", "alone waiting for a process that it has started"),
    ],
)
def test_who_polls_in_c_waits_for_those_that_do_not(ranks, call, words):
    """A lock is the program's own, and a sleep is nobody's wait, be it of most ranks."""
    found = diagnose(in_c(with_rank(STUCK, *range(8), samples=SPIN), *ranks, call=call))
    assert (found.check, found.findings[0].ranks) == ("rank.apart", ranks)
    assert words in found.verdict
    assert "gdb -p" in found.findings[0].hint


def test_who_computes_and_sleeps_in_turn_is_not_called_alone():
    """So do those who get work from a rank that polls for their results."""
    evidence = in_c(with_rank(STUCK, *range(8), samples=SPIN), 5, call="clock_nanosleep")
    asleep = samples((), syscall="clock_nanosleep")
    ran = (asleep[0], replace(asleep[1], syscall="running", state="R"), asleep[2])
    for cpu_s, check in ((0.02, "rank.apart"), (0.5, "unknown")):
        found = diagnose(with_rank(evidence, 5, samples=used(ran, cpu_s)))
        assert found.check == check


def test_of_many_in_a_lock_and_one_that_polls_it_is_not_known_who_waits():
    """MPI of several threads may wait for messages in a lock."""
    found = diagnose(in_c(with_rank(STUCK, *range(8), samples=SPIN), *range(5), call="futex"))
    assert "rank.apart" not in {one.check for one in found.findings if set(one.ranks) & {0, 1}}


@pytest.mark.parametrize(
    ("limits", "held", "words"),
    [
        ({"files": 8}, {"descriptors": 22}, "has 22 files open of the 8"),
        ({"threads": 25}, {"threads": 30}, "has 30 threads, and its limit allows its user 25"),
        ({"memory": 4 << 30}, {"virtual_bytes": 4 << 30}, "4.0 GiB of address space"),
        ({"cgroup": 64}, {}, "is in a cgroup that has all 64 threads that it may have"),
    ],
)
def test_a_limit_that_a_rank_has_reached_is_in_the_verdict(limits, held, words):
    busy = samples(own("load"), state="R")
    looks = tuple(replace(one, **held) for one in busy)
    found = diagnose(with_rank(STUCK, 5, samples=looks, limits=limits))
    assert (found.check, found.findings[0].ranks) == ("rank.busy", (5,))
    assert words in found.verdict
    not_reached = {} if "cgroup" in limits else limits
    assert words not in diagnose(with_rank(STUCK, 5, samples=busy, limits=not_reached)).verdict


def test_a_cgroup_that_may_have_no_more_threads_is_told_of_all_its_ranks():
    """Others may be in one that has room."""
    found = diagnose(with_rank(STUCK, *range(8), limits={"cgroup": 64}))
    [limit] = [one for one in found.findings if one.check == "rank.threads"]
    assert "are in a cgroup that has all 64 threads" in limit.message
    assert len(limit.ranks) == 8 and limit.severity.value == "warning"


def test_a_limit_that_few_ranks_have_is_told_with_them_and_is_no_finding_of_its_own():
    low = {"bytes in a file": 1 << 20}
    found = diagnose(with_rank(rank_5(own("save_it"), state="R"), 5, limits=low))
    assert found.check == "rank.busy"
    assert "has a limit of 1048576 bytes in a file, and most have none" in found.verdict
    assert diagnose(with_rank(STUCK, 5, limits=low)).exit_status == 3
    assert not diagnose(with_rank(STUCK, *range(8), limits=low)).findings
    assert not diagnose(with_rank(RUNS, 5, limits=low)).findings


def test_a_file_system_that_is_read_only_on_few_hosts_is_told_with_the_rank_there():
    def mounted(*hosts):
        evidence = rank_5(own("save_it"), state="R")
        for at in hosts:
            disk = {**file_system("/data/scratch"), "readonly": True}
            found = facts(f"demo-{at}", filesystems=[disk])
            evidence = with_host(evidence, at, facts=found)
        return diagnose(evidence)

    assert mounted(2).check == "rank.busy"
    assert "; /data/scratch on demo-2 (10.0.0.7) is mounted read-only" in mounted(2).verdict
    assert "read-only" not in mounted(2, 3).verdict, "as it is meant to be"


@pytest.mark.parametrize("why", [{"by_kernel": True}, {"needed": ["~"]}])
def test_a_local_file_system_that_is_read_only_is_told_wherever_it_is(why):
    """Also on every host, and while the job makes steps: a disk that fails becomes so, or the home
    folder is on it."""
    disk = {**file_system("/data"), "readonly": True, "kind": "ext4", **why}
    evidence = RUNS
    for at in range(4):
        evidence = with_host(evidence, at, facts=facts(f"demo-{at}", filesystems=[disk]))
    found = diagnose(evidence)
    told = [one for one in found.findings if one.check == "disk.readonly"]
    assert [(one.host, one.severity) for one in told] == [
        (f"demo-{at}", WARNING) for at in range(4)
    ]
    assert found.exit_status == 1
    assert not any("disks" in one for one in found.clean)


def test_an_entry_of_a_thread_that_could_not_be_started_does_not_hide_the_main_thread():
    looks = tuple(
        replace(one, stacks=(ThreadStack("MainThread", 1, ()), *one.stacks))
        for one in samples(own("load"), state="R")
    )
    found = diagnose(with_rank(STUCK, 5, samples=looks))
    assert "rank 5 on demo-2 (10.0.0.7) is busy in load train.py:30" in found.verdict


JOIN = tuple(
    Frame(name, "/usr/lib/python3.12/threading.py", 9) for name in ("join", "_wait_for_tstate_lock")
)


def in_thread(*frames, used_s=0.0, feeder_id=4):
    """Return looks at a program whose main thread waits for one that trains, with a helper."""
    main = ThreadStack("MainThread", 1, (*MAIN, *JOIN))
    feeder = ThreadStack("", feeder_id, own("feed"))
    stacks = (main, feeder, ThreadStack("trainer", 3, frames))
    return tuple(
        replace(one, stacks=stacks, cpu_s=used_s * at, main_cpu_s=1.0)
        for at, one in enumerate(samples(frames))
    )


def test_who_trains_in_a_thread_for_which_the_main_one_waits_is_seen():
    evidence = with_rank(STUCK, *range(8), samples=in_thread(*ALLREDUCE))
    found = diagnose(with_rank(evidence, 5, samples=in_thread(*own("load"))))
    assert (found.check, found.findings[0].ranks) == ("rank.blocked", (5,))
    assert "in load train.py:30; 7 ranks wait for it in Horovod's allreduce" in found.verdict
    assert "rank 5, thread trainer: load train.py:30" in found.findings[0].evidence
    # A helper that was started before it hides no collective.
    evidence = with_rank(STUCK, *range(8), samples=in_thread(*ALLREDUCE, feeder_id=2))
    found = diagnose(with_rank(evidence, 5, samples=in_thread(*own("load"), feeder_id=2)))
    assert (found.check, found.findings[0].ranks) == ("rank.blocked", (5,))
    evidence = with_rank(STUCK, *range(8), samples=in_thread(*ALLREDUCE))
    # What that thread uses of a processor is not the main thread's.
    found = diagnose(with_rank(evidence, 5, samples=in_thread(*own("load"), used_s=1.0)))
    assert (found.check, found.findings[0].ranks) == ("rank.busy", (5,))
    assert "rank 5: 100% of a processor by all its threads" in found.findings[0].evidence


def test_steps_that_became_four_times_slower_are_a_warning_in_any_language():
    """2,000 steps in 200 s, and then 3 in the 2 s of the samples: in C the others only poll."""
    log = tuple(f"step {n} loss 0.5" for n in (*range(0, 2001, 40), 2001, 2002, 2003))

    def look(count):
        added = {"log_added": log[-count:], "log": log, "age_s": 200.0, "quiet_s": 0.1}
        return diagnose(with_rank(job_of(**added), *range(8), samples=SPIN))

    found = look(3)
    assert (found.exit_status, found.findings[0].check) == (1, "job.slower")
    assert look(20).exit_status == 0


def timed(*written):
    """Return the log of a job that wrote so many steps at once, so many seconds ago."""
    log = tuple(f"step {n} loss 0.5" for n in range(sum(lines for _, lines in written)))
    return {"log": log, "log_writes": written, "quiet_s": written[-1][0], "age_s": 900.0}


QUICK_STEPS = tuple((20.0 + 0.2 * n, 1) for n in reversed(range(60)))
WITH_A_HANG = tuple((at_s + 300.0 * (at_s > 24), lines) for at_s, lines in QUICK_STEPS)
TWO_HANGS = tuple((at_s + 200.0 * (at_s > 28), lines) for at_s, lines in WITH_A_HANG)
# Three ranks print each step of 9 s, and are read at once or one after the other.
SLOW_STEPS = tuple((20.0 + 9 * n + at, 1) for n in reversed(range(10)) for at in (0.1, 0.05, 0.0))
BY_HALVES = tuple((20.0 + 9 * n + at, 5) for n in reversed(range(10)) for at in (0.1, 0.0))


@pytest.mark.parametrize(
    ("written", "step_s", "status"),
    [
        (QUICK_STEPS, 0.2, 2),
        (WITH_A_HANG, 0.2, 2),
        (TWO_HANGS, 0.2, 2),
        (SLOW_STEPS, 8.9, 1),
        (BY_HALVES, 8.9, 1),
        (QUICK_STEPS[:20] + QUICK_STEPS[-3:], 0.2, 2),
    ],
)
def test_the_usual_time_of_a_step_is_that_of_most_steps_lately(written, step_s, status):
    """After an earlier hang the mean is too long, and a rank that sleeps was only a warning."""
    evidence = with_rank(
        job_of(**timed(*written)), 5, samples=samples(own("load"), syscall="clock_nanosleep")
    )
    assert Scene(evidence).rhythm_s == pytest.approx(step_s)
    found = diagnose(evidence)
    assert (found.check, found.findings[0].ranks) == ("rank.blocked", (5,))
    assert found.exit_status == status


def test_steps_that_became_slower_after_a_hang_are_a_warning():
    """The mean since the start, 60 steps in 900 s, is slower than the steps now."""
    written = tuple((at_s - 17, lines) for at_s, lines in WITH_A_HANG)
    now = ((1.5, 1), (0.1, 1))
    job = timed(*written, *now)
    looks = with_rank(job_of(**job, log_added=job["log"][-2:]), *range(8), samples=SPIN)
    found = diagnose(looks)
    assert (found.exit_status, found.findings[0].check) == (1, "job.slower")
    assert "made 5 before" in found.findings[0].message


def c_ranks(evidence, computes=(), **more):
    """Return a job of a program in C in which these ranks compute, and the rest asks for data."""

    def looks(rank):
        share = 0.01 if rank in computes else 0.5
        used = ((float(at), share * at) for at in range(3))
        return tuple(replace(one, main_cpu_s=a, main_system_s=b) for one, (a, b) in zip(SPIN, used))

    for rank in range(8):
        evidence = with_rank(evidence, rank, samples=looks(rank), argv=("./model",), **more)
    return evidence


def test_a_rank_in_c_that_computes_while_the_others_ask_for_data_is_named():
    at = [NativeFrame("main", "/opt/model"), NativeFrame("spin", "/opt/model")]
    for frames, status in ((at, 2), (at[:1], 1)):  # nothing tells that it does not evaluate
        read = NativeCalls(5, tuple(frames), "eu-stack")
        found = diagnose(with_rank(c_ranks(STUCK, [5]), 5, native=read))
        assert (found.check, found.exit_status) == ("rank.apart", status)
    found = diagnose(c_ranks(STUCK, [5]))
    assert "rank 5 on demo-2 (10.0.0.7) is alone computing for 3 min 34 s" in found.verdict
    assert "the others are running or polling" in found.verdict
    steps = {"log_added": ("step 8 loss 0.1",), "quiet_s": 0.1}
    slow = diagnose(c_ranks(job_of(**steps), [5]))
    assert [(one.check, one.ranks) for one in slow.findings] == [("rank.straggler", (5,))]
    for computes in ((), range(8), range(5)):
        assert diagnose(c_ranks(STUCK, computes)).check == "unknown"
        assert diagnose(c_ranks(job_of(**steps), computes)).exit_status == 0


def test_ranks_in_c_that_poll_now_and_then_are_not_slow():
    """What was seen of a healthy job in C: its ranks sleep in each step, and ask for messages."""
    glances = ("RzzRzRRRRRRzzRRzRzRRRz", "zzRzzzzzzzzzzzRzRzzRzR", "zzzzzzzRzzRzzRzzzRzzzR")
    evidence = c_ranks(job_of(log_added=("step 8 loss 0.1",), quiet_s=0.1))
    for rank in range(8):
        evidence = with_rank(evidence, rank, glances=glances[min(rank, 2)])
    assert diagnose(evidence).exit_status == 0
    sleeps = with_rank(with_rank(evidence, *range(8), glances="R" * 20), 5, glances="z" * 18 + "RR")
    found = diagnose(sleeps)
    assert (found.check, found.findings[0].ranks, found.exit_status) == ("rank.straggler", (5,), 1)


def test_a_rank_that_three_samples_meet_at_its_own_work_is_not_slow():
    """What was seen of a healthy job of Horovod: its ranks sleep in each step, and as often."""
    seen = "wzzzzzzwwwwzzwzzzwzzwwww"
    evidence = job_of(log_added=("step 8 loss 0.1",), quiet_s=0.1)
    own_work = samples(own("load"), syscall="clock_nanosleep")
    evidence = with_rank(evidence, 3, samples=own_work)
    assert diagnose(evidence).check == "rank.straggler"
    assert diagnose(with_rank(evidence, *range(8), glances=seen)).check == "healthy"


def test_a_slow_rank_that_also_waits_for_a_processor_is_named_with_its_call():
    looks = samples(own("load"), state="R")
    looks = tuple(replace(one, run_wait_s=3.0 * at) for at, one in enumerate(looks))
    found = diagnose(with_rank(RUNS, 5, samples=looks)).findings[0]
    assert "it is in load train.py:30, and waiting for a processor: too much" in found.message


def torch_job(carried, line="mpirun sh -c 'python -m torch.distributed.run' train.py", **job):
    """Return a job of torch without output whose ranks sleep, with the bytes that each sent."""
    evidence = job_of(8, 1, log=(), quiet_s=90.0, line=line, **job)
    for rank, sent in enumerate(carried):
        looks = tuple(
            replace(one, sockets=(socket_to((rank + 1) % 8, rank, acked_bytes=9 + sent * at),))
            for at, one in enumerate(samples(own("pause"), syscall="clock_nanosleep"))
        )
        evidence = with_rank(evidence, rank, samples=looks)
    return with_other_ends(evidence)


def test_bytes_between_all_ranks_of_torch_show_progress():
    found = diagnose(torch_job([1 << 20] * 8))
    assert (found.check, found.exit_status) == ("healthy", 0)
    assert "ranks 0-7 worked between the samples" in found.verdict
    for carried in ([0] * 8, [1 << 20] * 7 + [0], [99] * 8):
        assert diagnose(torch_job(carried)).check == "unknown"


def test_bytes_are_no_progress_if_the_job_printed_steps_and_is_silent():
    job = timed(*QUICK_STEPS)
    silent_s = job.pop("quiet_s")
    evidence = with_job(torch_job([1 << 20] * 8), **job, log_silent_s=silent_s)
    assert diagnose(evidence).check == "unknown"


def test_who_complains_of_another_host_is_its_victim():
    said = """An MPI communication peer process has unexpectedly disconnected.  This
usually indicates a failure in the peer process (e.g., a crash or
  Local host: demo-0
  Peer host:  demo-2
[demo-0:00000] *** An error occurred in Socket closed
[demo-0:00000] *** Unknown error
prterun has exited due to process rank 0 with PID 0 on node demo-0 calling
"abort". This may have caused other processes in the application to be"""
    failed = {"state": JobState.FAILED, "exit_status": 14, "log": tuple(said.splitlines())}
    found = diagnose(with_processes(job_of(4, 1, **failed), lambda one: None))
    assert (found.check, found.findings[0].ranks) == ("mpi.tcp-peer-hung-up", (2,))
    assert found.findings[0].host == "demo-2"
    assert "rank 0 end first" not in found.verdict
    assert "at the other end was rank 2 on demo-2 (10.0.0.7)" in found.verdict


def test_who_gloo_names_as_gone_is_told_and_not_who_complained_first():
    said = """RuntimeError: [./gloo/transport/tcp/pair.cc:589] Read error [10.0.0.6]:42215: \
Connection reset by peer
   Process name: [prterun-ip-10-0-0-4-11251@1,2]
   Exit code:    1"""
    failed = {"state": JobState.FAILED, "exit_status": 1, "log": tuple(said.splitlines())}
    found = diagnose(with_processes(job_of(4, 1, **failed), lambda one: None))
    assert (found.check, found.findings[0].ranks) == ("horovod.gloo-peer", (1,))
    assert found.findings[0].host == "demo-1"
    assert "at the other end was rank 1 on demo-1 (10.0.0.6)" in found.verdict


@pytest.mark.parametrize(
    "said",
    [
        "PRTE has lost communication with a remote daemon.\n\n"
        "  HNP daemon   : [prterun-demo-0-7@0,0] on node demo-0\n"
        "  Remote daemon: [prterun-demo-0-7@0,1] on node demo-1",
        "A daemon failed to report back after being spawned. This could\n"
        "back to prterun:\n\n  Local host:    demo-0\n  Remote host:   demo-1\n"
        "  Daemon exit status: 255",
    ],
)
def test_who_lost_mpiruns_daemon_is_the_host(said):
    """mpirun says the one or the other, as it notices the loss."""
    failed = {"state": JobState.FAILED, "exit_status": 255, "log": tuple(said.splitlines())}
    found = diagnose(with_processes(job_of(2, 1, **failed), lambda one: None))
    assert (found.check, found.findings[0].host) in (
        ("mpi.daemon-lost", "demo-1"),
        ("mpi.daemon-silent", "demo-1"),
    )


def test_a_verdict_says_who_waits_and_since_when():
    evidence = with_rank(STUCK, 5, samples=samples((), state="T"))
    assert diagnose(evidence).verdict == (
        "rank 5 on demo-2 (10.0.0.7) is stopped (state T); 7 ranks wait for it in Horovod's "
        "allreduce for 3 min 34 s"
    )


def partner(call, relation, state="S", channel="", **more):
    """Return a job whose rank 5 waits in a system call for another process."""
    looks = samples(own("load"), syscall=call, wait_channel=channel, **more)
    with_call = with_rank(STUCK, 5, samples=looks)
    other = Partner(77, state, relation, ("python3", "other.py"))
    return diagnose(with_rank(with_call, 5, partners=(other,) if relation else ()))


PARTNERS = [
    (("flock /data/lock", "locks"), "waiting for the lock on /data/lock, which pid 77 (python3 o"),
    (("flock /data/lock", ""), "waiting for the lock on /data/lock in load"),
    (("write /dev/pts/0", "collects", "T"), "writing its output, which pid 77 (python3 other.py, "),
    (("write pipe:[9]", "reads"), "blocked writing a pipe, which pid 77 (python3 other.py) reads"),
    (("write /data/fifo", "reads", "S", "pipe_write"), "/data/fifo, which pid 77"),
    (("connect tcp 10.0.0.7:1 - 10.9.9.9:9999 SYN-SENT", ""), "10.9.9.9:9999 SYN-SENT"),
    (("clock_nanosleep", ""), "is asleep in load train.py:30"),
    (("wait4", ""), "waiting for a process that it has started in load"),
]


@pytest.mark.parametrize(("case", "words"), PARTNERS)
def test_who_is_at_the_other_end_is_told(case, words):
    found = partner(*case)
    assert words in found.verdict
    assert found.exit_status == 2
    assert "7 ranks wait for it in Horovod's allreduce" in found.verdict
    assert "a loop" not in found.findings[0].hint
    if "T" in case:
        assert found.findings[0].hint == "clusterctl run demo --nodes 2 'kill -CONT 77'"


def test_another_rank_at_the_other_end_is_told_by_its_number():
    """The process with its ID on another host is none."""
    holds = Partner(1004, "S", "locks", ("python3", "train.py"))
    looks = samples(own("load"), syscall="flock /data/lock")
    found = diagnose(with_rank(STUCK, 5, samples=looks, partners=(holds,)))
    assert "the lock on /data/lock, which rank 4 (pid 1004) holds" in found.verdict
    elsewhere = replace(holds, pid=1007)
    found = diagnose(with_rank(STUCK, 5, samples=looks, partners=(elsewhere,)))
    assert "which pid 1007 (python3 train.py) holds" in found.verdict


def test_the_threads_and_processes_of_a_rank_that_waits_are_shown():
    looks = samples(NEXT)
    feeder = ThreadStack("feeder", 7, own("generate", 12))
    looks = tuple(replace(one, stacks=(*one.stacks, feeder)) for one in looks)
    child = ProcessEvidence(
        pid=78, parent=1005, role="child", job_id=JOB, samples=samples(own("fetch", 13))
    )
    evidence = with_rank(STUCK, 5, samples=looks)
    evidence = with_host(evidence, 2, processes=(*evidence.hosts[2].processes, child))
    found = diagnose(evidence)
    assert found.check == "rank.data"
    assert "7 ranks wait for it" in found.verdict
    assert "rank 5, thread feeder: generate train.py:12" in found.findings[0].evidence
    assert any("process 78 (state S): fetch train.py:13" in x for x in found.findings[0].evidence)


def test_a_debugger_is_named():
    gdb = (Partner(77, "S", "traces", ("gdb", "-p", "1005")),)
    found = diagnose(with_rank(rank_5((), state="t"), 5, partners=gdb))
    assert "held by pid 77 (gdb -p 1005) (state t)" in found.verdict


def test_another_user_who_is_busy_is_a_warning_and_the_system_is_not():
    bob = OtherProcess(9, "bob", 1.9, ("./spin",))
    found = diagnose(with_host(RUNS, 1, others=(bob, OtherProcess(8, "root", 1.0))))
    assert [one.check for one in found.findings] == ["host.shared"]
    assert "1 process of bob on demo-1 (10.0.0.6) uses 1.9 processors" in found.findings[0].message


def test_what_others_left_is_a_warning():
    extra = replace(STUCK.hosts[1].ranks[0], job_id="20261101-000000-dead", pid=77)
    healthy = job_of(quiet_s=1.0)
    evidence = with_host(healthy, 1, processes=(*healthy.hosts[1].processes, extra))
    found = diagnose(evidence)
    assert (found.check, found.exit_status) == ("healthy", 1)
    assert [one.check for one in found.findings] == ["ranks.leftover"]
    assert JOB not in found.findings[0].message


def test_ranks_that_end_one_by_one_are_neither_missing_nor_left_over():
    saves = used(samples((*own("evaluate"), INNER[0]), (*own("save", 31), INNER[0]), state="R")[:2])
    last = with_rank(gone(job_of(quiet_s=20.0)), 0, samples=saves)
    alone = with_processes(last, lambda one: one if one.rank in (None, 0) else None)
    assert "rank.missing" not in [one.check for one in diagnose(alone).findings]
    assert "rank.missing" in [one.check for one in diagnose(last).findings]  # others wait
    overdue = diagnose(with_job(alone, log_silent_s=900.0))
    assert "rank.missing" in [one.check for one in overdue.findings]
    ended = with_job(alone, state=JobState.SUCCEEDED, ended_s=1.0)
    assert diagnose(ended).exit_status == 0
    no_launcher = with_processes(ended, lambda one: one if one.rank == 0 else None)
    assert diagnose(no_launcher).check == "ranks.leftover"


@pytest.mark.parametrize(
    ("ended", "cpu_s", "status", "words"),
    [
        ((5,), 0.0, 2, "rank 5 has ended, and what it started still runs: sleep (pid 1005) on d"),
        (range(8), 0.0, 2, "ranks 0-7 have ended, and what they started still runs: sleep (pid 1"),
        (range(8), 1.0, 1, "ranks 0-7 have ended"),  # it may copy a checkpoint
    ],
)
def test_a_rank_that_has_ended_is_not_what_it_has_left_running(ended, cpu_s, status, words):
    looks = [replace(one, cpu_s=cpu_s * at) for at, one in enumerate(samples(()))]
    left = {"role": "orphan", "argv": ("/bin/sleep", "400"), "samples": tuple(looks)}
    found = diagnose(with_rank(STUCK, *ended, **left))
    assert found.findings[0].message.startswith(words), found
    assert (found.check, found.exit_status) == ("rank.missing", status)
    assert not [one for one in found.clean if "rank" in one and "another job" not in one]


@pytest.mark.parametrize(
    "state", [JobState.SUCCEEDED, JobState.CANCELLED, JobState.FAILED, JobState.LOST]
)
@pytest.mark.parametrize("ended_s", [None, 60.0])
def test_ranks_that_outlive_their_job_with_its_launcher_are_left_over(state, ended_s):
    found = diagnose(with_job(RUNS, state=state, ended_s=ended_s))
    assert found.exit_status == 2
    assert "ranks.leftover" in [one.check for one in found.findings]


@pytest.mark.parametrize("function", ["evaluate", "save_checkpoint"])
@pytest.mark.parametrize("quiet_s", [20.0, 60.0, 300.0, 3600.0])
def test_who_waits_for_a_rank_that_has_left_is_not_excused_by_what_calls_the_collective(
    function, quiet_s
):
    waits = samples((*own(function), *ALLREDUCE[1:]))
    evidence = with_rank(job_of(quiet_s=quiet_s), *range(8), samples=waits)
    assert diagnose(gone(evidence)).check == "rank.missing"
    assert diagnose(rank_5(SHUTDOWN, evidence=evidence)).check == "rank.left"


def test_beside_a_job_that_runs_one_in_the_queue_and_one_that_ended_leave_nothing():
    for state, check in ((JobState.QUEUED, "queued"), (JobState.SUCCEEDED, "healthy")):
        other = replace(
            STUCK.job, job_id="20261101-000000-dead", state=state, others=(JOB,), log=()
        )
        found = diagnose(replace(STUCK, job=other))
        assert (found.check, found.exit_status, found.findings) == (check, 0, ())
        assert not any("no rank of another job" in text for text in found.clean)


def test_what_is_clean_names_the_hosts_if_some_were_not_read():
    cut = {"error": "did not answer in time", "clock_offset_s": None}
    found = diagnose(with_host(STUCK, 3, processes=(), facts={}, **cut))
    assert found.clean == (
        "ranks 0-5 (6): none is stopped or dead",
        "mpirun and its daemons on demo-[0-2]",
        "no stall report of Horovod is open",
        "disks, /dev/shm and mounts on demo-[0-2]",
        "hostnames on demo-[0-2]",
        "clocks on demo-[0-2]",
    )


def test_without_stacks_what_the_kernel_says_is_enough():
    waits = with_rank(STUCK, *range(8), argv=("python", "train.py"), samples=samples(()))
    opens = samples((), syscall="openat /data/fifo", wait_channel="wait_for_partner")
    found = diagnose(with_rank(waits, 5, samples=opens))
    assert (found.check, found.findings[0].ranks) == ("rank.io", (5,))
    path = "/data/it's; reboot"
    named = samples((), syscall=f"openat {path}", wait_channel="wait_for_partner")
    hint = diagnose(with_rank(waits, 5, samples=named)).findings[0].hint
    command = shlex.split(hint[hint.index("clusterctl run ") :])[-1]
    assert shlex.split(command) == ["ls", "-l", path]
    found = diagnose(with_rank(waits, 5, samples=samples((), state="R")))
    assert (found.check, found.findings[0].ranks, found.exit_status) == ("rank.busy", (5,), 1)
    assert diagnose(waits).exit_status == 3


def test_how_long_is_said_by_all_reports_since_the_last_step():
    later = tuple(line.replace("00:51:01", "00:53:01") for line in STALL)
    one = "5: [grads/conv2]"
    log = (*STALL, one, "step 7", *STALL, one, *later, one)
    found = diagnose(with_job(job_of(stack=STEP, quiet_s=20.0), log=log))
    assert "has not entered allreduce `grads/conv2` for 3 min 20 s" in found.verdict


def test_a_report_of_horovod_is_told_with_the_rank_that_it_is_about():
    loop = samples(own("f", 3), own("f", 4), own("f", 3), state="R")
    found = diagnose(with_rank(stalled("5: [grads/conv2]"), 5, samples=loop))
    assert [one.check for one in found.findings] == ["rank.busy"]
    assert "7 ranks wait for it in allreduce `grads/conv2`" in found.verdict
    assert "Horovod: missing rank 5: grads/conv2" in found.findings[0].evidence


def test_a_report_of_horovod_does_not_accuse_a_rank_that_is_seen_to_validate():
    turns = used(samples(own("validate", 3), own("validate", 4), own("validate", 5)), 0.5)
    one_line = used(samples(own("validate"), state="R"), 0.05)
    for looks, status in ((turns, 0), (one_line, 3)):
        found = diagnose(with_rank(stalled("5: [grads/conv2]"), 5, samples=looks))
        assert [(one.check, one.severity.value) for one in found.findings] == [
            ("rank.busy", "info")
        ]
        assert found.exit_status == status
    for log in (("step 7", *STALL, "5: [grads/conv2]"), (*STALL, "5: [grads/conv2]"), ("step 7",)):
        hour = with_job(job_of(stack=STEP, quiet_s=3600.0, age_s=3800.0), log=log)
        assert diagnose(with_rank(hour, 5, samples=turns)).exit_status == 3
    asleep = rank_5(own("validate"), evidence=stalled("5: [grads/conv2]"))
    assert (diagnose(asleep).check, diagnose(asleep).exit_status) == ("rank.blocked", 2)


SLOW_LINK = sends(RUNS, {(0, 1): WELL, (0, 2): CRAWLING})

WARNED = {
    "a straggler": (with_rank(RUNS, 5, samples=samples(own("load"))), "rank.straggler", "demo-2"),
    "a slow link": (SLOW_LINK, "link.slow", "demo-2"),
    "a slow link in a ring": (
        sends(RUNS, {(0, 1): WELL, (1, 2): CRAWLING, (2, 3): CRAWLING, (3, 0): WELL}),
        "link.slow",
        "demo-2",
    ),
    "a link so slow that nothing else passes": (
        with_host(SLOW_LINK, 2, error="did not end within 7.5 s: python3", processes=()),
        "link.slow",
        "demo-2",
    ),
    "a slow link between two": (sends(RUNS, {(0, 2): CRAWLING}), "link.slow", None),
    "a straggler, between the looks": (
        glanced(RUNS, "RRRRRRRwRR" * 3, 5),
        "rank.straggler",
        "demo-2",
    ),
    "a straggler at its disk": (glanced(RUNS, "DDDDDDDwRR" * 3, 5), "rank.straggler", "demo-2"),
    "another module": (scripted(RUNS, **{"data.py": "ee"}), "script.differs", "demo-2"),
    "a cgroup that is throttled": (
        with_rank(
            RUNS,
            5,
            samples=tuple(replace(x, throttled_s=0.95 * x.at_s) for x in samples(ALLREDUCE)),
        ),
        "rank.throttled",
        "demo-2",
    ),
    "rows that come eight times slower": (
        with_job(
            RUNS,
            metrics=tuple({"step": n, "time": 9.0 + n + 7 * max(0, n - 20)} for n in range(25)),
            metrics_silent_s=3.0,
        ),
        "job.slower",
        None,
    ),
    "in quarantine": (
        with_host(RUNS, 2, quarantined="2026-11-22 its GPU is slow"),
        "host.quarantined",
        "demo-2",
    ),
    "few descriptors left": (
        with_rank(RUNS, 5, samples=samples(ALLREDUCE, descriptors=1000)),
        "rank.descriptors",
        "demo-2",
    ),
    "a clock": (with_host(RUNS, 2, clock_offset_s=-90.0), "clock.skew", "demo-2"),
    "a mount": (
        with_host(RUNS, 2, facts=facts("demo-2", errors={"mount /nfs": "no answer"})),
        "mount.dead",
        "demo-2",
    ),
}


@pytest.mark.parametrize("name", WARNED)
def test_a_job_that_goes_on_is_warned_of(name):
    evidence, check, host = WARNED[name]
    found = diagnose(evidence)
    assert found.exit_status == 1, found
    assert [(one.check, one.host) for one in found.findings] == [(check, host)]


@pytest.mark.parametrize(
    ("offsets_s", "off"),
    [
        ((0, 0, 5, 5), [2, 3]),
        ((90, 0, 90, 90), [1]),
        ((90, 90, 90, 90), []),
        ((5, 0, -5, 0), [0, 2]),
    ],
)
def test_a_clock_is_compared_with_that_of_most(offsets_s, off):
    evidence = RUNS
    for index, offset_s in enumerate(offsets_s):
        evidence = with_host(evidence, index, clock_offset_s=offset_s)
    assert [one.host for one in diagnose(evidence).findings] == [f"demo-{one}" for one in off]


FULL_DISK = with_job(
    with_host(STUCK, 2, facts=full("/data").hosts[2].facts),
    log=("step 7", "rank 5: cannot save, trying again: [Errno 28] No space left on device"),
)
RETRIES = samples(own("save", 3), own("save", 4), own("save", 3), state="R")


def test_a_rank_that_retries_on_a_full_disk_has_it_as_its_cause():
    found = diagnose(with_rank(FULL_DISK, 5, samples=RETRIES))
    assert [(one.check, one.host, one.ranks) for one in found.findings] == [
        ("disk.full", "demo-2", (5,))
    ]
    # A full disk on another rank's host is not the cause.
    found = diagnose(with_rank(FULL_DISK, 3, samples=RETRIES))
    assert (found.check, found.findings[0].ranks) == ("rank.busy", (3,))


@pytest.mark.parametrize("state", ["R", "S", "D"])
def test_a_checkpoint_that_grows_is_no_hang(state):
    frozen = samples(own("save_model", 3), state=state)
    saves = tuple(replace(one, written_bytes=at << 20) for at, one in enumerate(frozen))
    assert diagnose(with_rank(STUCK, 5, samples=saves)).exit_status == 1
    assert diagnose(with_rank(STUCK, 5, samples=frozen)).exit_status == 2


def test_a_checkpoint_that_gets_on_is_healthy_and_bytes_of_sockets_prove_nothing():
    """The process's counters include the sockets of Horovod's threads, which never stand still."""
    calls = samples(own("save_model", 3), own("save_model", 4), own("save_model", 5))
    noise = tuple(replace(one, read_bytes=at << 20) for at, one in enumerate(calls))
    assert diagnose(with_rank(STUCK, 5, samples=noise)).exit_status == 1
    files = [(OpenFile(3, "/data/model.ckpt", at << 20),) for at in range(3)]
    gets_on = tuple(replace(one, files=file) for one, file in zip(noise, files))
    found = diagnose(with_rank(STUCK, 5, samples=gets_on))
    assert (found.check, found.exit_status) == ("healthy", 0)


def test_an_error_that_the_job_survived_is_told_below_the_verdict():
    log = ("rank 5: [Errno 28] No space left on device", "step 8 loss 0.1", "step 9 loss 0.1")
    loop = with_rank(with_job(STUCK, log=log), 5, samples=RETRIES)
    found = diagnose(loop)
    assert [(one.check, one.severity.value) for one in found.findings] == [
        ("rank.busy", "error"),
        ("system.no-space", "info"),
    ]
    assert diagnose(with_job(NOT_KNOWN["a long evaluation"][0], log=log)).exit_status == 3


def test_a_host_that_is_off_is_why_the_job_has_failed():
    end = ("client_loop: send disconnect: Broken pipe", "Daemon exit status: 255")
    log = failed(*STALL, "5: [grads/a]", "step 7", *end)
    off = with_host(log, 3, error="its instance is stopped", facts={})
    found = diagnose(off)
    assert [(one.check, one.host, one.ranks) for one in found.findings] == [
        ("host.off", "demo-3", (6, 7))
    ]
    assert any("client_loop" in line for line in found.findings[0].evidence)
    assert "has to be started again" in found.findings[0].hint
    waits = with_host(with_job(STUCK, retries_left=1), 3, error="its instance is stopped", facts={})
    assert "the job is started again by itself" in diagnose(waits).findings[0].hint
    for job in (None, replace(STUCK.job, state=JobState.SUCCEEDED)):
        idle = diagnose(replace(off, job=job)).findings[0]
        assert (idle.check, "started again" in idle.hint) == ("host.off", False)
    # The host was stopped later; the job had failed for its own reason.
    own_reason = with_job(off, log=("DataLossError: corrupted record at 0", EXITED))
    assert diagnose(own_reason).check == "tf.data-loss"


ODD = [5, "x", None, [1], {"gpus": {"gpus": [3]}}]


@pytest.mark.parametrize("odd", ODD)
def test_facts_of_a_wrong_type_are_ignored(odd):
    names = ("filesystems", "kernel_log", "gpus", "limits", "system", "errors")
    inner = {
        "filesystems": [{**file_system("/"), name: odd} for name in file_system("/")],
        "kernel_log": [{"text": odd, "age_s": odd}],
        "gpus": {"gpus": [{"throttled": odd, "processes": odd, "bus": odd, "clock_mhz": odd}]},
        "limits": {"nofile": odd},
        "system": {"hostname": odd},
        "errors": {"mount /data": odd},
    }
    ended = with_job(STUCK, state=JobState.FAILED, log=(NO_ROOM,))
    for facts_of in (dict.fromkeys(names, odd), inner):
        assert diagnose(on_host_2(rank_5(own("save"), evidence=ended), **facts_of)).findings
        found = diagnose(on_host_2(rank_5((), state="T"), **facts_of))
        assert (found.check, found.findings[0].ranks) == ("rank.stopped", (5,))


def test_a_job_without_ranks_is_judged_by_its_log_only_if_all_hosts_were_seen():
    ending = with_job(failed(*RAISED), state=JobState.RUNNING, exit_status=None)
    assert diagnose(ending).check == "log.exception"
    unread = with_host(ending, 2, problems=("processes: no answer within 6 s",))
    for unseen in (unread, with_host(ending, 2, error="did not answer in time", processes=())):
        assert "no rank of" not in diagnose(unseen).verdict
    assert diagnose(with_job(ending, log=("step 7",))).check == "ranks.none"


def test_a_rank_that_strace_follows_is_not_held():
    looks = (replace(one, main_runs=900 * at) for at, one in enumerate(samples((), state="t")))
    found = diagnose(with_rank(STUCK, 5, samples=tuple(looks)))
    assert "rank.traced" not in [one.check for one in found.findings]


def test_of_several_jobs_on_hosts_all_is_well_only_if_one_was_chosen():
    evidence = replace(HEALTHY["steps, seen by the log"], source="--hosts h", cluster="")
    on_cluster = with_job(HEALTHY["steps, seen by the log"], others=("77",))
    assert diagnose(on_cluster).next_step == "clusterctl diagnose demo 77"
    both = with_job(evidence, others=("77",))
    found = diagnose(both)
    assert found.exit_status == 3 and "; 1 other job (77) there was not diagnosed" in found.verdict
    assert found.next_step == "clusterctl diagnose --hosts h --launcher 77"
    assert diagnose(with_job(both, is_chosen=True)).exit_status == 0
    stuck = replace(with_job(rank_5(own("load")), others=("77",)), source="--hosts h")
    assert f"diagnose --hosts h --launcher {JOB} --tree" in diagnose(stuck).findings[0].hint
    of_cluster = replace(stuck, source="", cluster="demo")
    assert f"clusterctl diagnose demo {JOB} --tree" in diagnose(of_cluster).findings[0].hint


@pytest.mark.parametrize(("nodes", "said"), [("2", True), ("1", False)])
def test_a_torchrun_whose_nodes_have_not_come_tells_where_it_waits_for_them(nodes, said):
    line = f"python3 -m torch.distributed.run --nnodes {nodes} --rdzv-endpoint=n1:29400 train.py"
    evidence = with_processes(
        job_of(1, 2, log=(), line=line), lambda one: None if one.role == "rank" else one
    )
    evidence = with_processes(evidence, lambda one: replace(one, argv=tuple(line.split())))
    verdict = diagnose(replace(evidence, source="--local")).verdict
    assert ("it starts them once 2 nodes have joined at n1:29400" in verdict) is said


@pytest.mark.parametrize(("apart", "check"), [((), "mpi.cycle"), ((5,), "ranks.differ")])
def test_all_ranks_wait_to_receive(apart, check):
    receive, reduce = (
        (*own("main"), Frame(name, "/x/site-packages/torch/distributed/distributed_c10d.py", 9))
        for name in ("recv", "all_reduce")
    )
    evidence = job_of(stack=receive, log=tuple(f"step {n} loss 0.{n}" for n in range(90)))
    found = diagnose(with_rank(evidence, *apart, samples=samples(reduce)))
    assert (found.check, found.exit_status) == (check, 2)


def test_a_daemon_and_its_parent_are_one_finding():
    daemon = replace(STUCK.hosts[1].processes[0], samples=samples((), state="T"))
    child = replace(daemon, pid=901, parent=900)
    hosts = (daemon, child, *STUCK.hosts[1].processes[1:])
    [found] = diagnose(with_host(STUCK, 1, processes=hosts)).findings
    assert (found.check, len(found.evidence)) == ("daemon.stopped", 2)
    assert found.hint.endswith("'kill -CONT 900 901'")


def test_another_script_is_why_a_rank_skips():
    found = diagnose(scripted(stalled("4: [grads/a]", "5: [grads/a]"), **{"train.py": "bb"}))
    assert (found.check, found.findings[0].host) == ("script.differs", "demo-2")
    assert found.findings[0].ranks == (4, 5)


STEPPED = {"log_added": ("step 8 loss 0.1", "step 9 loss 0.1")}


@pytest.mark.parametrize("others", ["make steps", "do something of their own", "wait"])
@pytest.mark.parametrize(
    ("call", "channel", "said"),
    [
        ("openat /data/fifo", "wait_for_partner", "opening /data/fifo (a pipe: no process"),
        ("openat /data/a", "__break_lease", "opening /data/a (another process has a lease"),
        ("flock /data/lock", "locks_lock_inode_wait", "the lock on /data/lock"),
        ("write /data/fifo", "pipe_write", "writing /data/fifo"),
    ],
)
def test_a_rank_that_waits_for_a_file_is_named_whatever_the_others_do(call, channel, said, others):
    evidence = with_job(RUNS, **STEPPED) if others == "make steps" else STUCK
    if others == "do something of their own":
        moving = samples(own("work", 1), own("work", 2), own("work", 3), state="R")
        evidence = with_rank(evidence, *range(8), samples=moving)
    held = samples(own("load"), syscall=call, wait_channel=channel)
    found = diagnose(with_rank(evidence, 5, samples=held))
    assert (found.check, found.findings[0].ranks) == ("rank.io", (5,)), found
    assert said in found.verdict
    assert [one.check for one in found.findings if 5 in one.ranks] == ["rank.io"]
    assert found.exit_status == (1 if others == "make steps" else 2)
    # Not if it was elsewhere at one of the looks, or waits for its own workers, or a device.
    for other in (
        (*held[:2], *samples(own("load"))[2:]),
        samples(own("load"), syscall="read pipe:[17]", wait_channel="pipe_read"),
        samples(own("load"), syscall="ioctl /dev/nvidia0"),
    ):
        found = diagnose(with_rank(with_job(RUNS, **STEPPED), 5, samples=other))
        assert "rank.io" not in [one.check for one in found.findings]


def test_steps_of_others_do_not_hide_a_rank_that_tries_again_on_a_full_disk():
    steps = ("step 8 loss 0.1", "step 9 loss 0.1")
    evidence = with_job(FULL_DISK, log=(*FULL_DISK.job.log, *steps), log_silent_s=1.0, **STEPPED)
    found = diagnose(with_rank(evidence, 5, samples=RETRIES))
    assert (found.check, found.findings[0].ranks) == ("disk.full", (5,))
    assert found.exit_status == 1 and "healthy" not in found.verdict
    # The log names rank 5.
    assert not diagnose(with_rank(evidence, 4, samples=RETRIES)).findings[0].ranks


def test_a_server_of_nfs_that_a_kernel_finds_silent_is_the_cause_of_a_job_that_stands_still():
    silent = [{"age_s": 30.0, "text": "nfs: server 10.0.0.9 not responding, still trying"}]
    found = diagnose(on_host_2(STUCK, kernel_log=silent))
    assert (found.check, found.exit_status) == ("kernel.nfs", 2)


@pytest.mark.parametrize(
    ("killed", "ranks", "check", "severity"),
    [
        ("clusterctl", 8, "rank.busy", Severity.WARNING),
        ("python3", 8, "kernel.oom", Severity.ERROR),  # it may be a rank's data loader
        ("clusterctl", 7, "kernel.oom", Severity.ERROR),
        ("train.py", 8, "kernel.oom", Severity.ERROR),  # the kernel's name of a script that is run
    ],
)
def test_what_was_killed_for_memory_is_no_cause_if_it_was_not_of_the_job(
    killed, ranks, check, severity
):
    text = f"Out of memory: Killed process 77 ({killed}) total-vm:9kB"
    run = ("/usr/bin/python3", "./train.py")
    evidence = with_processes(rank_5(*SPINS, state="R"), lambda one: replace(one, argv=run))
    evidence = on_host_2(evidence, kernel_log=[{"age_s": 30.0, "text": text}])
    if ranks < 8:
        evidence = with_processes(evidence, lambda one: None if one.rank == 0 else one)
    found = diagnose(evidence)
    assert check in [one.check for one in found.findings]
    assert {one.severity for one in found.findings if one.check == "kernel.oom"} == {severity}
    assert (found.check == "kernel.oom") == (check == "kernel.oom")


@pytest.mark.parametrize(
    ("others", "status"),
    [
        (samples(ALLREDUCE), 1),
        (samples(own("next"), syscall="futex"), 0),  # each waits for a process of its own
        (samples((), stack_error="Failed to find a python interpreter"), 1),  # or sleeps in a lock
        (
            samples(
                (), syscall="clock_nanosleep", stack_error="Failed to find a python interpreter"
            ),
            0,
        ),
    ],
)
def test_a_rank_is_slow_only_if_the_others_were_seen_to_wait_for_it(others, status):
    """It may ask for a message in mpi4py, whose calls are in C. Others may have done their part."""
    python = ("/usr/bin/python3", "train.py")
    evidence = with_rank(RUNS, *range(8), samples=others, glances="w" * 20, argv=python)
    evidence = with_rank(evidence, 5, samples=samples(own("step"), state="R"), glances="R" * 20)
    found = diagnose(evidence)
    assert (found.exit_status, found.check == "rank.straggler") == (status, status == 1)


@pytest.mark.parametrize(("glances", "status"), [("wRwRwwwwwwww", 1), ("zzzzzzzzzzwz", 0)])
def test_who_naps_may_have_done_its_part_and_waits_in_finalize(glances, status):
    evidence = with_rank(RUNS, *range(8), argv=("ring",))
    for rank in range(8):
        looks = tuple(
            replace(one, main_cpu_s=float(at), main_system_s=at * 0.5 * (rank != 5))
            for at, one in enumerate(samples((), state="R"))
        )
        evidence = with_rank(evidence, rank, samples=looks, glances=glances)
    found = diagnose(with_rank(evidence, 5, glances="R" * 12))
    assert (found.exit_status, found.check == "rank.straggler") == (status, status == 1)
