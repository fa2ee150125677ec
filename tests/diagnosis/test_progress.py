"""When a job is called healthy: what counts as progress of a rank, and what does not."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.diagnosis.case import Scene, numbered
from clusterctl.diagnosis.evidence import OpenFile, Sample
from clusterctl.diagnosis.repeats import Sign
from clusterctl.diagnosis.verdict import diagnose
from clusterctl.domain.findings import Severity
from tests.diagnosis.made_up import (
    ALLREDUCE,
    IMPORTS,
    INIT,
    INNER,
    NEXT,
    QUICK,
    SHUTDOWN,
    STEP,
    job_of,
    own,
    samples,
    socket_to,
    used,
    with_job,
    with_other_ends,
    with_processes,
    with_rank,
)

STEPS = tuple(f"step {n} loss 0.1" for n in range(90))


def in_program(taken):
    """Return the looks at a program in C to which bytes come. It takes them, or it sleeps."""
    return tuple(
        replace(
            look,
            sockets=(socket_to(9, received_bytes=came, received_segments=came >> 16, **left),),
            main_read_bytes=came if taken else 0,
        )
        for look, came in zip(samples((), syscall="poll"), (0, 1 << 16, 1 << 17))
        for left in ({} if taken else {"receive_queue_bytes": came},)
    )


@pytest.mark.parametrize("segment_bytes, status", [(1400, 0), (300, 3), (0, 3)])
def test_bytes_between_ranks_of_horovod_show_progress_if_they_are_of_tensors(segment_bytes, status):
    """Its threads never rest: they send short messages while the ranks stand still."""
    sent = 1 << 20
    segments = sent // segment_bytes if segment_bytes else 0
    evidence = job_of(8, 1, log=(), quiet_s=90.0, line="mpirun python train.py")
    for rank in range(8):
        to = (rank + 1) % 8
        looks = tuple(
            replace(
                one,
                sockets=(socket_to(to, rank, acked_bytes=sent * at, sent_segments=segments * at),),
            )
            for at, one in enumerate(samples(own("pause"), syscall="clock_nanosleep"))
        )
        evidence = with_rank(evidence, rank, samples=looks)
    assert diagnose(with_other_ends(evidence)).exit_status == status
    # What monitors and databases get is no progress, however much it is.
    assert diagnose(evidence).exit_status == 3


def test_bytes_that_a_rank_has_not_taken_are_no_progress():
    """The kernel takes data for a rank that sleeps, until its buffer is full."""
    evidence = job_of(stack=(), log=(), quiet_s=600.0)
    evidence = with_rank(evidence, *range(8), samples=in_program(taken=True))
    assert diagnose(with_other_ends(evidence)).exit_status == 0
    evidence = with_rank(evidence, 0, samples=in_program(taken=False))
    assert diagnose(with_other_ends(evidence)).exit_status == 3


@pytest.mark.parametrize(
    "a_look, segments, itself, system_share, status",
    [
        (10, 1, True, 0.0, 3),
        (1 << 16, 640, True, 0.5, 3),  # it agrees with others again and again whether to stop
        (1 << 16, 8, True, 0.0, 0),
        (1 << 16, 8, False, 0.0, 3),  # another thread sends, and the main one is in an endless loop
        (1 << 16, 8, False, 0.3, 0),  # sendmsg(2) is not counted as written
    ],
)
def test_what_a_program_in_c_sends_shows_progress_if_it_is_large_and_of_its_main_thread(
    a_look, segments, itself, system_share, status
):
    """Heartbeats are short, and of a thread beside it."""
    evidence = job_of(stack=(), log=(), quiet_s=600.0)
    looks = tuple(
        replace(
            one,
            sockets=(socket_to(1, acked_bytes=a_look * at, sent_segments=segments * at),),
            main_written_bytes=a_look * at * itself,
            main_system_s=system_share * at,
        )
        for at, one in enumerate(used(samples((), state="R")))
    )
    evidence = with_other_ends(with_rank(evidence, *range(8), samples=looks))
    assert diagnose(evidence).exit_status == status
    naps = with_rank(evidence, 5, glances="Rzw" * 10)
    assert diagnose(naps).exit_status == 3, "what it sends then may be of another thread"


@pytest.mark.parametrize("runs, small, status", [(3, True, 0), (0, True, 3), (0, False, 0)])
def test_what_ranks_of_torch_send_while_no_main_thread_runs_is_of_other_threads(
    runs, small, status
):
    """They may send heartbeats while all main threads wait in a collective that never ends."""
    evidence = job_of(8, 1, log=(), quiet_s=90.0, line="python -m torch.distributed.run train.py")
    for rank in range(8):
        to = socket_to((rank + 1) % 8, rank)
        looks = tuple(
            replace(
                one,
                main_runs=9 + runs * at,
                sockets=(replace(to, acked_bytes=at * (4096 if small else 1 << 20)),),
            )
            for at, one in enumerate(samples(ALLREDUCE))
        )
        evidence = with_rank(evidence, rank, samples=looks)
    assert diagnose(with_other_ends(evidence)).exit_status == status


def test_who_waits_for_data_is_named_though_another_thread_of_it_logs():
    looks = tuple(
        replace(one, files=(OpenFile(3, "/tmp/trace", at << 20),), main_read_bytes=7)
        for at, one in enumerate(samples(own("get")))
    )
    for first in (looks, looks[:1] + tuple(replace(one, main_read_bytes=99) for one in looks[1:])):
        found = diagnose(with_rank(job_of(), 5, samples=first))
        assert (found.check == "rank.blocked") == (first is looks)
        assert found.findings[0].ranks == (5,)
    stacks = samples(ALLREDUCE)[0].stacks
    waits = tuple(replace(one, stacks=stacks) for one in looks)
    found = diagnose(with_rank(with_rank(job_of(), *range(8), samples=waits), 5, samples=looks))
    assert (found.check, found.findings[0].ranks) == ("rank.blocked", (5,))


@pytest.mark.parametrize(("quiet_s", "status"), [(214.0, 3), (900.0, 2)])
def test_who_waits_for_a_thread_that_reads_data_is_an_error_once_a_step_is_overdue(quiet_s, status):
    looks = tuple(
        replace(
            one,
            files=(OpenFile(3, "/data/train-00017", at << 20),),
            read_bytes=at << 20,
            main_read_bytes=7,
            cpu_s=10.0,
        )
        for at, one in enumerate(samples(own("get")))
    )
    evidence = job_of(quiet_s=quiet_s, age_s=quiet_s + 60.0)
    found = diagnose(with_rank(evidence, 5, samples=looks))
    assert (found.exit_status, found.findings[0].ranks) == (status, (5,))


@pytest.mark.parametrize(
    "a_look, main_read, function, status",
    [(70, 70, "read", 3), (1 << 20, 1 << 20, "read", 0), (1 << 20, 0, "read", 3)]
    + [(1 << 20, 0, "save", 0)],
)
def test_a_file_shows_progress_of_who_reads_or_saves_it(a_look, main_read, function, status):
    """Its own log grows by a line at each look, or another thread logs much. TensorFlow saves in
    threads of its own."""
    calls = samples(own(function, 3), own("exists", 4), own("sleep", 3))
    looks = tuple(
        replace(
            one,
            files=(OpenFile(3, "/home/ubuntu/rank0.log", 100 + a_look * at),),
            main_read_bytes=main_read * at,
        )
        for at, one in enumerate(used(calls, 0.01))
    )
    evidence = with_rank(job_of(log=(), quiet_s=600.0), *range(8), samples=looks)
    assert diagnose(evidence).exit_status == status


@pytest.mark.parametrize(
    ("function", "line", "status"),
    [
        ("connect", "", 3),
        ("connect", "no shard 7", 3),
        ("evaluate", "", 0),
        ("evaluate", "evaluates shard 7", 0),
        ("evaluate", "retry 7 of the rendezvous", 3),
    ],
)
def test_ranks_that_use_the_processor_may_only_try_again(function, line, status):
    """They are in other calls at each look, without a nap, as in work that prints nothing."""
    busy = used(samples(own(function, 3), own("log", 4), own(function, 3)))
    log = tuple(filter(None, (line,)))
    evidence = job_of(log=log, log_added=log, quiet_s=0.1)
    found = diagnose(with_rank(evidence, *range(8), samples=busy))
    assert found.exit_status == status
    assert all(one.severity is Severity.INFO for one in found.findings)


@pytest.mark.parametrize(
    ("before", "added", "status"),
    [
        ("read 11 of 90 files, 3.1 MB", "read 17 of 90 files, 8.0 MB", 0),
        ("[1/8] opens a", "[1/8] opens a", 3),  # a rank's number
        ("7/9 shards", "3/9 shards", 3),
        ("attempt 7/9", "attempt 8/9", 3),
        ("Map: 12%|█▏  | 12/90 [00:02<00:20]", "Map: 50%|██▌| 45/90 [00:09<00:09]", 0),
        ("", "8/9 shards", 3),
        ("at 2026/11/28", "at 2026/11/29", 3),
        ("8/9 shards", "10/9 shards", 3),
    ],
)
def test_ranks_that_use_the_processor_work_if_the_log_counts_on_to_a_total(before, added, status):
    busy = used(samples(own("load", 3), own("log", 4), own("load", 3)))
    log = tuple(filter(None, (before, added)))
    evidence = job_of(log=log, log_added=(added,), quiet_s=0.1)
    found = diagnose(with_rank(evidence, *range(8), samples=busy))
    assert found.exit_status == status, found.verdict
    assert diagnose(with_rank(evidence, *range(7), samples=busy)).exit_status != 0


@pytest.mark.parametrize("quiet_s, status", [(300.0, 0), (700.0, 3)])
def test_a_rank_that_validates_alone_for_long_is_not_called_healthy(quiet_s, status):
    written = tuple((quiet_s + 2.0 * n, 1) for n in reversed(range(60)))
    evidence = job_of(quiet_s=quiet_s, log=STEPS[:60], log_writes=written, age_s=900.0)
    works = used(samples(own("validate", 3), own("validate", 4), own("validate", 5)), 0.5)
    assert diagnose(with_rank(evidence, 0, samples=works)).exit_status == status


@pytest.mark.parametrize("state, main_s, status", [("R", 0.05, 3), ("S", 0.5, 3), ("S", 0.0, 2)])
def test_a_rank_that_validates_alone_at_one_line_is_not_known_if_it_uses_the_processor(
    state, main_s, status
):
    looks = used(samples(own("validate"), state=state), main_s)
    assert diagnose(with_rank(job_of(), 0, samples=looks)).exit_status == status
    two = diagnose(with_rank(job_of(2, 1), 0, samples=looks))
    assert status < 3 or ", rank 1 waits in Horovod's allreduce" in two.verdict
    # With mpi4py the others do not wait in a call that is known.
    mpi4py = with_rank(job_of(), *range(8), samples=used(samples(own("main"), state="R"), 0.5))
    assert diagnose(with_rank(mpi4py, 0, samples=looks)).exit_status == status


def test_who_is_ready_to_run_at_nearly_all_glances_works_though_it_slept_at_one_sample():
    looks = used(samples(own("evaluate"), own("evaluate", 31), own("evaluate", 30)), 0.05)
    looks = (looks[0], *(replace(one, state="R") for one in looks[1:]))
    evidence = with_rank(job_of(log=(), quiet_s=30.0, age_s=30.0), *range(8), samples=looks)
    for glances, status in (("R" * 20, 0), ("RRzzw" * 4, 3), ("R" * 30 + "z" * 5, 3)):
        assert diagnose(with_rank(evidence, *range(8), glances=glances)).exit_status == status


def test_an_import_that_does_not_end_long_after_the_last_step_is_named():
    held = samples((*IMPORTS, *own("<module>", 7)))
    found = diagnose(with_rank(job_of(), 5, samples=held))
    assert (found.check, found.exit_status, found.findings[0].ranks) == ("rank.blocked", 2, (5,))
    turns = used(samples(IMPORTS, (*IMPORTS, QUICK), IMPORTS, state="R"))
    for quiet_s, status in ((300.0, 3), (700.0, 2)):
        evidence = job_of(log=STEPS, quiet_s=quiet_s, age_s=quiet_s + 90.0)
        assert diagnose(with_rank(evidence, 5, samples=turns)).exit_status == status
    young = job_of(log=("starts",), quiet_s=30.0, age_s=40.0)
    assert diagnose(with_rank(young, 5, samples=held)).exit_status == 3


def test_a_name_of_a_library_is_no_evaluation():
    looks = used(samples((*own("build"), replace(INNER[0], function="init_val")), state="R"))
    found = diagnose(with_rank(job_of(), 0, samples=looks))
    assert (found.exit_status, found.check) == (2, "rank.busy")
    looks = used(samples((*own("score_val"), INNER[0]), state="R"))
    assert diagnose(with_rank(job_of(), 0, samples=looks)).exit_status == 3


def test_a_rank_that_only_tries_again_makes_no_progress():
    """It is in other calls at each look, and uses the processor a little."""
    tries = used(samples(own("wait", 3), own("wait", 4), own("wait", 3)), 0.02)
    evidence = job_of(log=(), quiet_s=600.0)
    assert diagnose(with_rank(evidence, *range(8), samples=tries)).exit_status == 3
    tries = used(samples(own("validate_inputs", 3), own("exists", 4), own("sleep", 3)), 0.02)
    assert diagnose(with_rank(job_of(), 0, samples=tries)).exit_status == 2


def test_who_gets_little_of_a_busy_processor_works_if_it_is_ready_at_all_looks():
    imports = (IMPORTS, (*IMPORTS, QUICK), IMPORTS)
    for state, status in (("R", 0), ("S", 3)):
        looks = used(samples(*imports, state=state), 0.05)
        evidence = with_rank(job_of(log=(), quiet_s=30.0, age_s=30.0), *range(8), samples=looks)
        assert diagnose(evidence).exit_status == status


def test_a_look_without_a_stack_shows_no_other_call():
    looks = used(samples(own("wait"), (), own("wait")))
    evidence = with_rank(job_of(log=(), quiet_s=600.0), *range(8), samples=looks)
    assert diagnose(evidence).exit_status == 3


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("batch 3 is not ready yet", 3),
        ("iteration 7: attempt 12 of 100", 3),
        ("epoch 2 pending, sleeping 5 s", 3),
        ("step 7: reconnecting to the store", 3),
        ("[monitor] iteration 7: 3.1 GB", 3),
        ("step 8 loss 0.1, 0 writes pending", 0),
        ("step 8", 0),
    ],
)
def test_a_line_that_says_that_a_program_waits_is_no_step(line, status):
    assert (
        diagnose(job_of(stack=STEP, quiet_s=0.5, log=(line,), log_added=(line,))).exit_status
        == status
    )


class Does(NamedTuple):
    """What a rank may do at three looks, and whether that is progress, or waiting for others."""

    looks: tuple[Sample, ...]
    gets_on: bool = False
    waits: bool = False


DOES = (
    Does(samples(own("augment"), STEP, own("augment", 31)), gets_on=True),
    Does(used(samples(own("augment"), own("augment", 31), own("augment", 30))), gets_on=True),
    Does(used(samples(IMPORTS, (*IMPORTS, QUICK), IMPORTS)), gets_on=True),
    Does(in_program(taken=True), gets_on=True),
    Does(samples(ALLREDUCE), waits=True),
    Does(samples(STEP), waits=True),
    Does(samples(INIT), waits=True),
    Does(used(samples(ALLREDUCE)), waits=True),
    Does(in_program(taken=False)),
    Does(samples((), state="R")),
    Does(samples(own("load"))),
    Does(used(samples(own("load")))),
    Does(used(samples(own("wait", 3), own("wait", 4), own("wait", 3)), 0.01)),
    Does(used(samples(own("wait"), (), own("wait")))),
    Does(samples(NEXT)),
    Does(samples(SHUTDOWN)),
    Does(samples(ALLREDUCE, state="T")),
    Does(samples(own("load"), state="D")),
    Does(samples((), state="Z")),
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(DOES), min_size=1, max_size=6),
    st.sampled_from(((), STEPS, STEPS[:3], ("starts",))),
    st.sampled_from((None, 3.0, 12.0, 60.0, 2000.0)),
    st.sampled_from(("python train.py", "python -m torch.distributed.run train.py")),
    st.booleans(),
)
def test_no_job_is_healthy_of_which_a_rank_neither_makes_progress_nor_waits_for_one_that_does(
    ranks, log, quiet_s, line, is_missing
):
    evidence = job_of(len(ranks), 1, log=log, quiet_s=quiet_s, line=f"mpirun {line}", age_s=900.0)
    for number, does in enumerate(ranks):
        evidence = with_rank(evidence, number, samples=does.looks)
    if len(ranks) > 1:
        evidence = with_other_ends(evidence)
    if is_missing:
        evidence = with_processes(evidence, lambda one: None if one.rank == 0 else one)
    found = diagnose(evidence)
    if found.exit_status != 0:
        return
    steps_s = 900.0 / 90
    if log == STEPS and quiet_s is not None and quiet_s <= 1.5 * steps_s:
        return  # within the usual time of a step
    assert not is_missing
    assert any(one.gets_on for one in ranks), found.verdict
    assert all(one.gets_on or one.waits for one in ranks), found.verdict


# What ranks of a healthy job may do on a busy machine, where some get hardly any processor: a call
# in C that takes 0.3 s of it takes longer than three samples.
STARVED = (
    samples(STEP),
    used(samples(STEP, state="R"), 0.05),
    used(samples(own("decode"), state="R"), 0.05),
    used(samples(own("augment"), own("augment", 31), own("augment", 30), state="R"), 0.05),
    used(samples((*own("batch"), INNER[0]), state="R"), 0.05),
    used(samples(IMPORTS, (*IMPORTS, QUICK), IMPORTS, state="R"), 0.05),
    samples(NEXT),
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(STARVED), min_size=1, max_size=6),
    st.sampled_from(((), STEPS, ("Epoch 1/100",), ("loads its data",))),
    st.sampled_from((None, 3.0, 12.0, 20.0)),
    st.sampled_from((60.0, 900.0)),
)
def test_no_rank_that_works_is_an_error_before_a_step_is_overdue(ranks, log, quiet_s, age_s):
    if log == STEPS:
        age_s = 900.0
    elif log:
        age_s = 60.0
    evidence = job_of(len(ranks), 1, log=log, quiet_s=quiet_s, age_s=min(age_s, 599.0))
    for number, looks in enumerate(ranks):
        evidence = with_rank(evidence, number, samples=looks)
    found = diagnose(evidence)
    assert found.exit_status != 2, found.verdict


def test_metrics_that_an_earlier_job_has_left_tell_nothing_of_this_one():
    rows = tuple({"run": "a", "step": n, "time": 100.0 + n} for n in range(9))
    young = job_of(log=("starts",), quiet_s=5.0, age_s=12.0, metrics=rows, metrics_silent_s=1700.0)
    working = used(samples(own("load"), own("load", 31), own("load"), state="R"))
    starting = used(samples(IMPORTS, own("load", 31), own("load"), state="R"))
    for ranks, looks, status in (((5,), working, 3), (range(8), starting, 0)):
        found = diagnose(with_rank(young, *ranks, samples=looks))
        assert found.exit_status == status and "no step for 28 min" not in found.verdict
    old = with_job(young, age_s=1900.0)
    assert diagnose(with_rank(old, 5, samples=working)).exit_status == 2


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"step": 9}, 1),
        ({"step": 8}, 2),  # a monitor repeats the last step, or writes rows of its own
        ({}, 2),
        ({"step": 8, "kind": "eval"}, 1),
    ],
)
def test_rows_of_metrics_show_progress_if_they_are_of_a_new_step(more, status):
    rows = [{"step": n, "kind": "train", "time": 100.0 + n} for n in range(9)]
    rows += [{"kind": "train", "time": 109.0 + n, **more} for n in range(60 if status == 2 else 1)]
    evidence = job_of(log=("starts",), quiet_s=300.0, age_s=400.0, metrics=tuple(rows))
    evidence = with_rank(with_job(evidence, metrics_silent_s=0.5), 5, samples=samples(own("nap")))
    found = diagnose(evidence)
    assert (found.exit_status, found.findings[0].ranks) == (status, (5,))


def test_a_row_without_a_time_does_not_tell_how_old_the_row_of_a_step_is():
    rows = tuple({"step": n, "time": 100.0 + n} for n in range(9))
    for more, status in ((), 0), (({"memory": 3.1},), 3):
        evidence = job_of(log=("starts",), quiet_s=300.0, age_s=400.0, metrics=(*rows, *more))
        assert diagnose(with_job(evidence, metrics_silent_s=0.5)).exit_status == status


@pytest.mark.parametrize(("rows", "status"), [(2, 2), (0, 3)])
def test_rows_of_metrics_do_not_come_in_the_blocks_of_a_log(rows, status):
    """How many lines a block has tells nothing of the rows."""
    metrics = tuple({"step": n, "time": 100.0 + n} for n in range(rows))
    evidence = job_of(log=STEPS[:15], log_is_cut=True, quiet_s=300.0, age_s=400.0)
    evidence = with_job(evidence, metrics=metrics, metrics_silent_s=300.0)
    works = used(samples(own("augment"), own("augment", 31), own("augment", 30), state="R"))
    assert diagnose(with_rank(evidence, 5, samples=works)).exit_status == status


def test_a_mean_since_the_start_calls_nobody_healthy_for_long():
    """Reading took an hour, and each step then a second, of which the log has no times."""
    for quiet_s, status in ((5.0, 0), (90.0, 3)):
        evidence = job_of(log=STEPS[:30], quiet_s=quiet_s, age_s=3600.0)
        assert diagnose(evidence).exit_status == status
    ended = tuple((90.0 + 60.0 * n, 1) for n in reversed(range(30)))
    evidence = job_of(log=STEPS[:30], quiet_s=90.0, age_s=3600.0, log_writes=ended)
    assert diagnose(evidence).exit_status == 0, "within a step of a minute"


@pytest.mark.parametrize(
    ("after", "status"), [((), 0), (("memory 3.1 GB",) * 4, 0), (("memory 3.1 GB",) * 30, 3)]
)
def test_a_block_of_old_lines_that_a_buffer_kept_back_shows_no_step(after, status):
    block = (*STEPS[50:80], *after)
    for log, is_older in ((block, True), ((*STEPS[:50], *block), False)):
        evidence = job_of(log=log, log_added=block, quiet_s=0.5, log_is_older=is_older)
        found = diagnose(evidence)
        assert found.exit_status == status
        assert ("may be of long ago" in found.verdict) == (status == 3)


@pytest.mark.parametrize(
    ("stack", "runs", "children", "status"),
    [
        (ALLREDUCE, (5, 5, 5), (), 3),
        (ALLREDUCE, (5, 6, 9), (), 0),
        (ALLREDUCE, (None,) * 3, (), 0),
        (STEP, (5, 5, 5), (), 0),  # TensorFlow may print in a compiled step
        (own("join"), (5, 5, 5), used(samples(STEP)), 0),  # a process that it has started trains
        (own("join"), (5, 5, 5), (), 3),
    ],
)
def test_new_steps_in_the_log_while_no_rank_runs_are_of_something_else(
    stack, runs, children, status
):
    """A monitor's, whose lines have numbers of their own."""
    log = tuple(f"[stats] iteration {n}: 3.1 GB" for n in range(90))
    looks = tuple(replace(one, main_runs=run) for one, run in zip(samples(stack), runs))
    evidence = with_rank(job_of(log=log, log_added=log[-3:], quiet_s=0.5), *range(8), samples=looks)
    if children:
        evidence = replace(evidence, hosts=tuple(map(with_workers, evidence.hosts)))
    found = diagnose(evidence)
    assert found.exit_status == status
    assert status == 0 or "no main thread has run meanwhile" in found.verdict
    spins = with_rank(evidence, 0, samples=used(looks))
    assert diagnose(spins).exit_status == 0, "who keeps its processor is not given it again"
    unnumbered = with_processes(evidence, lambda one: replace(one, rank=None, samples=()))
    assert "no main thread" not in diagnose(unnumbered).verdict


def test_new_steps_while_a_rank_in_c_sleeps_may_be_a_monitors():
    log = tuple(f"[stats] iteration {n}: 3.1 GB" for n in range(90))
    evidence = job_of(stack=(), log=log, log_added=log[-3:], quiet_s=0.5)
    evidence = with_rank(evidence, *range(8), argv=("ring",), samples=samples((), state="R"))
    for runs, status in ((0, 3), (1, 0)):
        looks = samples((), syscall="pause")
        looks = tuple(replace(one, main_runs=7 + runs * at) for at, one in enumerate(looks))
        found = diagnose(with_rank(evidence, 5, samples=looks))
        assert found.exit_status == status
    assert "the main thread of rank 5 has not run meanwhile" in found.verdict or status == 0
    # What it has started may work, and print such lines: it does not wait for that in a file.
    for call, status in (("wait4", 0), ("openat /data/fifo", 3)):
        still = tuple(replace(one, main_runs=7) for one in samples((), syscall=call))
        held = with_rank(evidence, 5, samples=still)
        held = replace(held, hosts=tuple(map(with_workers, held.hosts)))
        assert diagnose(held).exit_status == status


@pytest.mark.parametrize(
    ("written", "far", "lines", "stack", "status"),
    [
        (0, 0, 4, (), 3),  # all are in endless loops, and another thread or program counts
        (0, 0, 1, (), 3),
        (2, 0, 4, (), 3),  # one that tries again logs it
        (80, 0, 4, (), 0),
        (None, 0, 4, (), 0),
        (0, 0, 4, STEP, 0),  # TensorFlow may print in a compiled step
        (0, 0, 4, own("spin"), 3),
        (0, 20, 4, (), 0),  # a rank on another host prints
        (0, 0, 0, (), 0),
    ],
)
@pytest.mark.parametrize("hosts", [1, 4])
def test_new_steps_that_no_main_thread_has_written_may_be_of_another_writer(
    written, far, lines, stack, status, hosts
):
    log = tuple(f"iteration {n} loss 0.12{n}" for n in range(90))
    evidence = job_of(hosts, 8 // hosts, stack=(), log=log, quiet_s=0.5)
    here = [one.pid for one in evidence.hosts[0].ranks]
    wrote = {str(pid): written for pid in here if written is not None}
    if hosts == 1 and far:
        wrote[str(here[0])] = 16 * far
    evidence = with_job(evidence, log_added=log[90 - lines :], written_bytes=wrote)
    loops = used(samples(stack, state="R"))
    for rank in range(8):
        spins = (replace(x, main_written_bytes=far * at) for at, x in enumerate(loops))
        evidence = with_rank(evidence, rank, samples=tuple(spins))
    found = diagnose(evidence)
    # Of a single line it is not known whether a rank elsewhere has printed it.
    assert found.exit_status == (0 if hosts > 1 and lines == 1 else status)
    assert not found.exit_status or "main thread of its ranks has written them" in found.verdict
    spins = evidence.hosts[-1].ranks[-1].samples
    short = with_rank(evidence, 7, samples=spins[:2])
    assert hosts == 1 or diagnose(short).exit_status == 0, "too short to see all that it writes"
    evidence = replace(evidence, hosts=tuple(map(with_workers, evidence.hosts)))
    for of_child, state, its_status in (
        (1.0, "S", 0),  # a process that a rank has started prints, and trains
        (1.0, "R", found.exit_status),  # the rank runs itself, and does not wait for that
        (1.0, "SR", found.exit_status),  # one rank does: only it waits for one that counts
        (0.0, "S", found.exit_status),
    ):
        its = tuple(
            replace(one, written_bytes=50 * at, cpu_s=of_child * at, state="S")
            for at, one in enumerate(spins)
        )
        changed = with_processes(
            evidence,
            lambda one, its=its, state=state: replace(
                one,
                samples=its
                if one.parent > 999
                else tuple(replace(x, state=state[-(one.rank != 3)]) for x in one.samples),
            ),
        )
        assert diagnose(changed).exit_status == its_status


def test_a_log_that_another_job_writes_too_neither_clears_nor_accuses_anybody():
    for log_added, quiet_s in ((STEPS[-3:], 0.5), ((), 900.0)):
        log = (*STEPS, "RuntimeError: Could not find any suitable endpoint")
        evidence = job_of(2, 1, log=log, log_added=log_added, quiet_s=quiet_s, log_name="/x/log")
        assert diagnose(evidence).exit_status != 3
        found = diagnose(with_job(evidence, log_is_shared=True))
        assert (found.exit_status, found.findings) == (3, ())
        assert "its log, /x/log: another job writes into it, too" in found.unseen


def with_workers(host):
    """Return the host with a process that each rank has started, and that works."""
    workers = (
        replace(one, pid=5000 + one.pid, parent=one.pid, role="child", rank=None)
        for one in host.ranks
    )
    busy = (replace(one, samples=used(samples(STEP, state="R"))) for one in workers)
    return replace(host, processes=(*host.processes, *busy))


def test_a_rank_that_works_is_an_error_once_a_step_is_overdue():
    looks = used(samples(own("spin", 3), own("spin", 4), own("spin", 3), state="R"))
    for quiet_s, log, status in (
        (15.0, STEPS, 3),
        (100.0, STEPS, 2),
        (100.0, ("Epoch 1/9",), 3),
        (700.0, ("Epoch 1/9",), 2),
        (100.0, ("Epoch 2/9",), 3),  # the first took longer
        (800.0, ("Epoch 2/9",), 2),
    ):
        evidence = with_rank(job_of(quiet_s=quiet_s, log=log, age_s=900.0), 5, samples=looks)
        evidence = evidence if quiet_s > 600 else with_job(evidence, age_s=500.0)
        found = diagnose(evidence)
        assert (found.exit_status, found.findings[0].ranks) == (status, (5,)), (quiet_s, log)
    gets = tuple(
        replace(one, files=(OpenFile(3, "/data/shard", at << 20),), main_read_bytes=at << 20)
        for at, one in enumerate(looks)
    )
    evidence = with_rank(job_of(quiet_s=100.0, log=STEPS, age_s=500.0), 5, samples=gets)
    assert diagnose(evidence).exit_status == 1, "it may download"
    evidence = with_rank(job_of(quiet_s=15.0, log=STEPS), 5, samples=looks)
    naps = with_rank(
        evidence, 5, samples=used(samples(own("spin", 3), own("spin", 4), own("spin", 3)), 0.0)
    )
    assert diagnose(with_rank(naps, 5, glances="z" * 20)).exit_status == 2, "it only tries again"


def test_ranks_of_one_host_share_memory_and_their_host_shows_their_progress():
    """Of Horovod's ranks on a host, only some have connections to other hosts."""
    evidence = job_of(2, 2, stack=STEP, log=("Epoch 1/9",), quiet_s=40.0)
    to, back = socket_to(1, 0), socket_to(0, 1)
    for rank, end, other in ((0, to, back), (2, back, to)):
        far = replace(end, local=other.peer, peer=other.local)
        looks = tuple(
            replace(one, sockets=(replace(end, acked_bytes=at << 20, sent_segments=at), far))
            for at, one in enumerate(samples(STEP))
        )
        evidence = with_rank(evidence, rank, samples=looks)
    assert diagnose(evidence).exit_status == 0
    assert diagnose(with_rank(evidence, 3, samples=samples(own("sleep")))).exit_status != 0
    assert diagnose(with_rank(evidence, 2, 3, samples=samples(STEP))).exit_status == 3


def numbers(text: str, most: int = 42, each: int = 1) -> list[str]:
    """Return the lines of the steps up to `most`, each printed so many times."""
    return [text.format(step) for step in range(1, most + 1) for _ in range(each)]


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        # The same line again and again, speeds and clocks aside.
        ([*numbers("step {}"), *["step 42"] * 20], 2),
        ([*numbers("step {} loss 0.5"), *["step 42 loss 0.5"] * 20], 2),
        ([*numbers("step {} 9.1 images/s"), *["step 42 0.0 images/s"] * 20], 2),
        ([*numbers("{}/100 [01:10<02:00, 1.5s/it]"), *["42/100 [01:59<9:00, 2.5s/it]"] * 20], 2),
        ([*numbers("[1,0]<stdout>:step {}"), *["[1,0]<stdout>:step 42"] * 20], 2),
        ([*numbers("step {}", each=8), *["step 42"] * 40], 2),
        # Something else changes, or it is not known what counts: that may be a monitor, or not.
        ([*numbers("step {}, 3.1 GB"), *(f"step 42, 3.{one} GB" for one in range(20))], 3),
        ([*numbers("step {}"), *["epoch 3, GPU 0 %"] * 20], 3),
        (["throughput 0.0 samples/s"] * 20, 3),
        ([*numbers("step {}"), *["step 42"] * 3], 3),
        (["step 42"] * 20, 3),
        # Somebody tries something again and again.
        ([*numbers("step {}"), *["fetching shard 7 of train"] * 9], 2),
        ([*numbers("step {}"), *(f"{9 * one} files failed, trying again" for one in range(9))], 2),
        ([*numbers("step {}"), *(f"tokenized {9 * one} files" for one in range(9))], 1),
        # It has hung for longer than the log reaches back.
        ([f"step 42 elapsed {one} s, GPU 100 %" for one in range(400)], 3),
        ([f"step 42, {812 - one / 10:.1f} samples/s" for one in range(400)], 3),
        (
            [
                *numbers("step {}, 9.1 samples/s"),
                *(f"step 42, {9 - i / 4} samples/s" for i in range(20)),
            ],
            2,
        ),
        ([*numbers("step {}", each=8), *["step 42"] * 12], 3),
    ],
)
def test_lines_that_may_repeat_a_step_never_clear_ranks_that_stand_still(lines, status):
    evidence = job_of(log=tuple(lines), log_added=tuple(lines[-2:]), quiet_s=0.1)
    found = diagnose(with_rank(evidence, 5, samples=samples(own("nap"))))
    assert (found.exit_status, found.check) == (
        status,
        "rank.blocked" if status < 3 else "unknown",
    )


@pytest.mark.parametrize(
    "lines",
    [
        [f"batch=32 {12 + one % 3}.5 images/s" for one in range(40)],
        [f"step 0.{60 + one % 5} s" for one in range(40)],
        [f"epoch 1 batch_size=32, {one % 3}0.0 images/s" for one in range(40)],
        [f"step {one // 16} loss 0.{one:03}" for one in range(80)],
        [f"step {one // 16} micro {one % 16}" for one in range(80)],
        numbers("step {}", each=8),
        numbers("step {} loss 0.5", each=8)[:-5],
        [f"[1,{one % 8}]<stdout>:step {(one + 3 * (one % 8)) // 8}" for one in range(200)],
        [f"step {(one + 3 * (one % 8)) // 8}, rank {one % 8}" for one in range(200)],
        numbers("step {} 0.0 images/s"),
        [f"epoch {epoch} step {step}" for epoch in range(9) for step in (1, 2)],
        [*numbers("step {}"), *(f"step 42: evaluation, batch {one}" for one in range(50))],
        [line for step in range(9) for line in [f"{step}/100 [{step}:07, 1.5s/it]"] * 9],
        ["step 42"],
    ],
)
def test_lines_of_a_healthy_log_repeat_no_step(lines):
    evidence = job_of(stack=STEP, log=tuple(lines), log_added=tuple(lines[-2:]), quiet_s=0.1)
    assert diagnose(evidence).exit_status == 0


def speeds(text: str, lines: int) -> list[str]:
    """Return so many lines, each with another speed."""
    return [f"{text} {800 + one % 13}.{one % 10} images/s" for one in range(lines)]


BY_BATCH = [f"batch {one % 5 * 100} {800 + one % 13}.{one % 10} images/s" for one in range(98)]


@pytest.mark.parametrize(
    "lines",
    [
        # A job that was resumed in its epoch, or whose epochs have become longer.
        [*speeds("Epoch 7:", 5), *speeds("Epoch 8:", 60)],
        [*speeds("Epoch 7:", 3), *speeds("Epoch 8:", 20)],
        [
            *(line for epoch in range(3) for line in speeds(f"Epoch {epoch}:", 10)),
            *speeds("Epoch 3:", 60),
        ],
        # A mean since the start gets better after a slow beginning.
        [f"Epoch 8: {900 - 900 / one:.1f} images/s" for one in range(1, 60)],
        # Of speeds that are rounded, some are the same.
        [f"Epoch 8: {one // 3 % 2 + 812} images/s" for one in range(60)],
        # A counter that begins again with each epoch.
        BY_BATCH,
        [f"step {one % 4 * 100 + 100}/400" for one in range(63)],
        [f"batch {one % 2 * 100} {800 + one % 13} images/s" for one in range(61)],
    ],
)
@pytest.mark.parametrize("is_timed", [False, True])
def test_lines_without_a_number_of_their_own_are_steps(lines, is_timed):
    """A rank that is slow is a warning, as beside numbered steps."""
    writes = tuple((0.1 + 5.0 * one, 1) for one in reversed(range(len(lines)))) if is_timed else ()
    kept = {"log": tuple(lines), "log_added": tuple(lines[-2:]), "log_writes": writes}
    evidence = job_of(quiet_s=0.1, age_s=5.0 * len(lines) + 30.0, **kept)
    assert diagnose(evidence).exit_status == 0
    found = diagnose(with_rank(evidence, 5, samples=samples(own("nap"))))
    assert (found.exit_status, found.check) == (1, "rank.straggler")


@pytest.mark.parametrize(
    "lines",
    [
        # After its epochs a monitor repeats the last batch, or ranks in two of them do.
        [*BY_BATCH[:93], *["batch 200 0.0 images/s"] * 20],
        [*(f"batch {one % 5}" for one in range(53)), *["batch 1", "batch 2"] * 10],
        [*speeds("Epoch 7:", 20), *["Epoch 7: 0.0 images/s"] * 20],
        [*speeds("Epoch 7:", 20), *["Epoch 7: 812.3 images/s"] * 20],
        [*speeds("Epoch 7:", 20), *["epoch 7, GPU 0 %"] * 20],
        [*speeds("Epoch 7:", 20), *(f"epoch 7, GPU {one % 3} %" for one in range(20))],
        # The loss of a model that learns nothing, or the last one, printed again and again.
        [*["epoch 0 loss 2.303"] * 5, *["epoch 1 loss 2.303"] * 60],
        # A speed since the start, or a time, which a monitor measures while the job stands.
        [*speeds("Epoch 7:", 20), *(f"Epoch 7: {9e4 / n:.1f} images/s" for n in range(111, 140))],
        [*speeds("Epoch 7:", 20), *(f"Epoch 7: {n} s, {900 / n:.1f} it/s" for n in range(9, 40))],
        [f"Epoch 7: loss 0.61, {n / 7:.2f} s/it, {n % 3} GB" for n in range(40)],
    ],
)
def test_lines_without_a_number_of_their_own_that_repeat_clear_nobody(lines):
    evidence = job_of(log=tuple(lines), log_added=tuple(lines[-2:]), quiet_s=0.1)
    found = diagnose(with_rank(evidence, 5, samples=samples(own("nap"))))
    assert found.exit_status in (2, 3)


@pytest.mark.parametrize(
    "lines",
    [
        [*numbers("step {}"), *["step 42 saved"] * 8],
        [f"step {one}" for _ in range(20) for one in (1, 2)],
        [*numbers("step {}"), *["step 42: saving"] * 300],
        ["step 1"] * 8,
    ],
)
def test_whoever_repeats_a_step_is_not_accused_of_it(lines):
    """What ranks do at the samples is as in any step: all are in it, or work."""
    evidence = job_of(stack=STEP, log=tuple(lines), log_added=tuple(lines[-2:]), quiet_s=0.1)
    assert diagnose(evidence).exit_status in (0, 3)
    works = used(samples(own("augment"), STEP, own("augment", 31)))
    assert diagnose(with_rank(evidence, *range(8), samples=works)).exit_status == 0


@pytest.mark.parametrize(
    ("own_added", "log", "status"),
    [
        (("step 7 loss 0.1", "step 8 loss 0.1"), (), 0),
        (("step 7 loss 0.1", "step 8 loss 0.1"), ("[n1] mca: no openib",), 0),
        (("step 7, 3.1 GB", "step 7, 3.1 GB", "step 7, 3.2 GB"), (), 3),
        (("[monitor] step 59 loss 0.5, idle 120 s",), (), 3),
        (("step 59, loss=0.31", "step 59, loss=0.32"), (), 0),
        (("[0] step 7, 3.1 GB", "[1] step 8, 3.1 GB"), (), 3),
        (("alive", "alive"), (), 3),
        (("step 7 loss 0.1", "step 8 loss 0.1"), ("step 5 loss 0.1",), 3),
    ],
)
def test_steps_that_a_rank_adds_to_a_log_of_its_own(own_added, log, status):
    """They tell nothing of a job whose log has steps: another rank may have stopped."""
    evidence = job_of(2, 2, log=log, quiet_s=30.0, own_added=own_added)
    found = diagnose(evidence)
    assert found.exit_status == status
    assert not any("what its log had before" in one for one in found.unseen)


def test_of_a_log_without_a_past_lines_that_repeat_their_first_one_are_no_steps():
    """As the file of a job that appends to it, or of script(1), from a look on."""
    repeats = ["step 7, 3.1 GB", "step 7, 3.2 GB", "step 7, 3.4 GB"]
    loss = ["step 7 loss 0.5, 3.1 GB"]
    found = {0: (["step 7", "step 8"],), 3: (repeats, ["step 7, 3.1 GB"] * 3, loss, loss * 3)}
    for status, lines in (
        (status, lines) for status, several in found.items() for lines in several
    ):
        evidence = job_of(2, 2, log=(), log_added=tuple(lines), log_is_older=True)
        assert diagnose(with_job(evidence, log=tuple(lines))).exit_status == status


def turns(*texts: str, steps: int = 60, each: tuple[int, ...] = ()) -> list[str]:
    """Return the lines of these forms in turns. `each`: how many steps a line of a form has."""
    every = each or (1,) * len(texts)
    return [
        text.format(n=n, x=f"0.{7 * n % 89 + 10}")
        for n in range(steps)
        for text, one in zip(texts, every)
        if n % one == 0
    ]


def goes_on(text: str, lines: int, start: int = 60) -> list[str]:
    return [text.format(n=n, x=f"0.{7 * n % 89 + 10}") for n in range(start, start + lines)]


REAL, DATA = "step {n} loss {x}", "step {n} done by data thread"


@pytest.mark.parametrize(
    "lines",
    [
        # A prefetcher, a logger or a monitor goes on counting while the job stands.
        [*turns(REAL, DATA, each=(1, 3)), *goes_on(DATA, 12)],
        [*turns(REAL, DATA), *goes_on(DATA, 12)],
        [*turns(DATA, REAL, each=(1, 2)), *goes_on(DATA, 30)],
        [
            *turns("[1,0]<stdout>:" + REAL, "[1,0]<stdout>:" + DATA),
            *goes_on("[1,0]<stdout>:" + DATA, 15),
        ],
        [*turns("rank 0: " + REAL, "rank 1: " + REAL, DATA), *goes_on(DATA, 40)],
        [*turns("step {n}", "batch {n} read ahead"), *goes_on("batch {n} read ahead", 15)],
        [*turns("{n}/100 [00:10<00:20, 3.1it/s]", DATA), *goes_on(DATA, 15)],
        # One line of another form has followed since.
        [*turns(REAL, DATA), "step 60 begins a checkpoint", *goes_on(DATA, 40)],
    ],
)
@pytest.mark.parametrize("first", [0, 40])
def test_steps_that_have_stopped_while_another_thread_counts_are_not_known(lines, first):
    """With `first`, the hang has lasted for longer than the log's end reaches back."""
    log = lines + goes_on(DATA if DATA[-6:] in lines[-1] else "batch {n} read ahead", 200, 100)
    kept = {"log": tuple(log[-200:] if first else lines), "log_first": tuple(lines[:first])}
    evidence = job_of(log_added=(lines[-1],), quiet_s=0.1, age_s=400.0, **kept)
    evidence = with_rank(evidence, 5, samples=samples(own("nap")))
    found = diagnose(evidence)
    assert found.exit_status == 3
    assert "have stopped in its log, while others go on" in found.verdict


@pytest.mark.parametrize(
    "lines",
    [
        # Lines of another form follow the first ones, or come between them.
        [*turns("warm-up step {n}", DATA), *turns(REAL, DATA, steps=90)],
        [*turns("warm-up step {n}", DATA), *turns("epoch {n} loss {x}", steps=90)],
        [*turns(REAL, DATA), *goes_on("evaluation, batch {n}", 50, 0)],
        [*turns(REAL, "step {n}: saved", each=(1, 10)), *goes_on("evaluation, batch {n}", 50, 0)],
        (turns(REAL, steps=20) + goes_on("evaluation, batch {n}", 30, 0)) * 5,
        [*(turns(REAL, steps=20) + goes_on("evaluation, batch {n}", 30, 0)) * 5, *goes_on(REAL, 4)],
        # Some lines come more often than others.
        turns("step {n}", REAL, each=(1, 10)),
        [*turns(REAL, "step {n}", each=(10, 1)), *goes_on("step {n}", 9, 61)],
        turns(REAL, "step {n} checkpoint saved", steps=90, each=(1, 25)),
        turns("rank 0 step {n} loss {x}", "rank 1 step {n} loss {x}", "rank 2 step {n} loss {x}"),
        [f"[1,{(5 * n) % 8}]<stdout>:step {n // 8} loss 0.{n % 7}" for n in range(300)],
        [f"step {n} {('cat', 'dog', 'bird', 'fox')[n * n % 4]} loss 0.{n % 7}" for n in range(200)],
        # The last line of an epoch is another one.
        (
            turns("{n}/50 [==>...] - ETA: 3s - loss: {x}", steps=50)
            + ["50/50 [=====] - 9s 12ms/step - loss: 0.5 - val_loss: 0.6"]
        )
        * 4,
        # Bars, colours, and numbers that are written otherwise.
        [f"\x1b[32mstep {n}\x1b[0m loss {'1e-05' if n > 30 else 0.01}" for n in range(90)],
        [f"{n}/90 [01:00<00:20, {'1.5s/it' if n > 30 or n % 3 else '1.5it/s'}]" for n in range(90)],
        [f" {n}%|{'█' * (n // 9)}| {n}/90 [{n}:07, 1.5it/s]" for n in range(90)],
        [f"step {n} loss {'nan' if n > 40 or n % 5 == 0 else 0.5}" for n in range(90)],
        # A prefetcher that has read all.
        [*turns(REAL, "batch {n} read ahead"), *goes_on(REAL, 80)],
        # Each host writes its output in blocks.
        [
            line
            for at in range(0, 90, 30)
            for text in ("step {n} loss {x}", "step {n} at 9 img/s")
            for line in goes_on(text, 30, at)
        ],
    ],
)
def test_a_healthy_log_of_several_kinds_of_lines_shows_its_steps(lines):
    evidence = job_of(stack=STEP, log=tuple(lines), log_added=tuple(lines[-2:]), quiet_s=0.1)
    assert diagnose(evidence).exit_status == 0


def test_ranks_that_are_seen_to_work_are_healthy_though_some_lines_have_stopped():
    lines = (
        *turns("step {n} of the teacher", "step {n} of the student"),
        *goes_on("step {n} of the student", 90),
    )
    evidence = job_of(stack=STEP, log=lines, log_added=lines[-2:], quiet_s=0.1)
    assert diagnose(evidence).exit_status == 3
    works = used(samples(own("augment"), STEP, own("augment", 31)))
    assert diagnose(with_rank(evidence, *range(8), samples=works)).exit_status == 0


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(("", "[1,{rank}]<stdout>:", "rank {rank} ", "[{step}/90] ", "{rank}: ")),
    st.sampled_from(("step {step}", "step {step} loss 0.5", "iteration {step}: 1.5 s", "batch=32")),
    st.sampled_from((1, 2, 8)),
    st.sampled_from((1, 4)),
    st.sampled_from((0, 2, 3, 10)),
    st.integers(3, 60),
    st.randoms(),
)
def test_no_healthy_log_surely_repeats_a_step(tag, text, ranks, parts, epoch, steps, random):
    """Ranks print in any order, some are a step behind, and steps may begin again with an epoch."""
    lines = []
    for step in range(steps):
        for _ in range(parts):
            for rank in random.sample(range(ranks), ranks):
                late = max(0, step - random.randint(0, ranks > 1))
                number = late % epoch if epoch else late
                lines.append((tag + text).format(rank=rank, step=number + 1))
    del lines[len(lines) - random.randint(0, ranks * parts - 1) :]
    assert Scene(job_of(log=tuple(lines[-400:]), quiet_s=0.5)).repeats is not Sign.REPEATED


@pytest.mark.parametrize(("of_a_step_s", "status"), [(1.0, 2), (4.0, 2), (30.0, 0)])
def test_for_how_long_a_step_is_repeated_counts_if_it_is_known(of_a_step_s, status):
    """The hang has lasted for 40 s, in which a monitor printed a line each second."""
    lines = (*numbers("step {}"), *["step 42"] * 40)
    steps = [(40.0 + (42 - step) * of_a_step_s, 1) for step in range(1, 43)]
    writes = (*steps, *((float(40 - one), 1) for one in range(1, 41)))
    evidence = job_of(log=lines, log_added=lines[-2:], quiet_s=0.1, log_writes=writes, age_s=4e3)
    found = diagnose(with_rank(evidence, 5, samples=samples(own("nap"))))
    assert (found.exit_status, "for 40 s" in found.verdict) in ((2, True), (1, False), (0, False))
    assert (found.exit_status == 2) == (status == 2)


def test_how_long_steps_take_is_not_known_of_two():
    """Then nothing follows from how long a line is repeated: a mean of all lines is of no step."""
    lines = ("step 1", "step 2", *["step 2"] * 60)
    writes = tuple((0.1 + 5.0 * one, 1) for one in reversed(range(len(lines))))
    evidence = job_of(log=lines, log_added=lines[-2:], quiet_s=0.1, log_writes=writes, age_s=340.0)
    found = diagnose(with_rank(evidence, 5, samples=samples(own("nap"))))
    assert found.exit_status == 3 and "its log may repeat one step" in found.verdict


def test_ranks_without_readable_variables_have_the_numbers_that_are_missing_on_their_host():
    whole = job_of()
    for hidden in ((2,), (2, 3), range(8)):
        assert numbered(with_rank(whole, *hidden, rank=None)).hosts[1].ranks == whole.hosts[1].ranks
    # Of the one that is left of two it is not known which it is.
    gone = with_processes(whole, lambda one: None if one.rank == 3 else one)
    gone = numbered(with_rank(gone, 2, rank=None))
    assert [one.rank for one in gone.hosts[1].ranks] == [None]
    assert diagnose(gone).check != "rank.missing"
    assert any("which ranks processes 1002 on demo-1" in one for one in diagnose(gone).unseen)


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("hidden", [(1,), (0, 1), range(4)])
def test_a_rank_of_a_job_by_hand_that_was_seen_without_its_number_is_not_missing(hosts, hidden):
    """Where its ranks run is not known: it was started without a file of hosts."""
    by_hand = with_job(job_of(hosts, 4 // hosts), line="python run.py", hosts={})
    by_hand = replace(by_hand, source="-w n[0-1]")
    blank = numbered(with_rank(by_hand, *hidden, rank=None))
    found = diagnose(blank)
    assert not any(one.check in ("rank.missing", "ranks.none") for one in found.findings)
    if hosts == 1:
        assert blank.hosts[0].ranks == by_hand.hosts[0].ranks
    else:
        assert any("which ranks processes" in one for one in found.unseen)
    gone = with_processes(by_hand, lambda one: None if one.rank in hidden else one)
    assert any(one.check in ("rank.missing", "ranks.none") for one in diagnose(gone).findings)


@pytest.mark.parametrize(
    ("age_s", "last"),
    [(240.0, "ValueError: bad batch"), (20.0, "ValueError: x"), (240.0, "KeyboardInterrupt")],
)
def test_a_rank_whose_python_has_ended_by_an_exception_is_named(age_s, last):
    """mpi4py: MPI_Finalize waits for the others, which wait for this rank."""
    error = "Error: Failed to find a python interpreter in the .data section"
    ended = samples((), state="S", syscall="clock_nanosleep", stack_error=error)
    evidence = job_of(stack=own("reduce"), log=(*STEPS, last))
    evidence = with_rank(evidence, *range(8), argv=("python",), age_s=age_s)
    found = diagnose(with_rank(evidence, 5, samples=ended))
    bad = [one for one in found.findings if one.severity is not Severity.INFO]
    assert [(one.check, one.ranks) for one in bad] == [("rank.exception", (5,))]
    assert "rank 5 on demo-2 (10.0.0.7) has left the program" in found.verdict
    assert last in found.verdict


def test_what_the_job_did_not_survive_is_not_told_as_earlier():
    found = diagnose(job_of(stack=own("reduce"), log=(*STEPS, "KeyboardInterrupt")))
    told = [one.message for one in found.findings if one.check == "python.interrupted"]
    assert told and told[0].startswith("the log has: ")


def test_who_was_at_another_line_at_another_look_waits_for_nobody():
    """mpi4py without a line of output: all nap and reduce in turn."""
    looks = samples(*(own("main", line) for line in (37, 37, 40)))
    evidence = with_rank(job_of(log=(), quiet_s=56.0), *range(8), samples=looks, argv=("python",))
    assert diagnose(with_rank(evidence, 5, samples=samples(own("main", 37)))).exit_status == 3


@pytest.mark.parametrize(
    ("log", "changed"),
    [
        ((), {}),  # before the first step, its interpreter may not have begun
        (STEPS, {"age_s": 4.0}),  # started again
        (STEPS, {"argv": ("/opt/python-tools/solve",)}),
    ],
)
def test_a_rank_without_an_interpreter_need_not_have_left_its_program(log, changed):
    error = "Error: Failed to find a python interpreter in the .data section"
    blank = samples((), state="S", syscall="read", stack_error=error)
    evidence = with_rank(job_of(log=log, quiet_s=20.0), *range(8), argv=("python", "train.py"))
    found = diagnose(with_rank(evidence, 5, samples=blank, **changed))
    assert not any(one.check in ("rank.left", "rank.exception") for one in found.findings)


@pytest.mark.parametrize("line", ["step {} loss 0.5", "loss 0.5 {}/9", "batch 7 {} s"])
def test_a_number_that_is_too_long_to_be_read_ends_nothing(line):
    evidence = job_of(log=(*STEPS, line.format("1" * 5000)))
    assert diagnose(evidence).exit_status == diagnose(job_of(log=STEPS)).exit_status


@pytest.mark.parametrize("log, quiet_s", [(STEPS, 12.0), (("batch 1",), 5.0)])
def test_a_worker_that_has_done_its_part_is_no_fault(log, quiet_s):
    """mpi4py: it waits in MPI_Finalize, and others work on."""
    error = "Error: Failed to find a python interpreter in the .data section"
    blank = samples((), state="S", syscall="futex", stack_error=error)
    works = used(samples(own("compute"), own("compute", 31), own("reduce", 40), state="R"))
    evidence = job_of(log=log, stack=own("recv"), quiet_s=quiet_s, age_s=400.0)
    evidence = with_rank(evidence, *range(8), argv=("python", "farm.py"))
    found = diagnose(with_rank(with_rank(evidence, 0, samples=works), 4, 5, samples=blank))
    assert not any(one.check == "rank.left" for one in found.findings)
    assert found.exit_status != 2


def test_a_rank_that_has_ended_is_an_error_though_a_step_was_printed_a_moment_ago():
    evidence = job_of(log=STEPS, log_added=STEPS[-1:], quiet_s=0.5)
    gone = with_processes(evidence, lambda one: None if one.rank == 5 else one)
    assert (diagnose(gone).check, diagnose(gone).exit_status) == ("rank.missing", 2)


@pytest.mark.parametrize("log, named", [((), False), (STEPS, True)])
def test_who_hands_out_work_and_rests_between_is_no_fault_of_a_program_that_prints_no_steps(
    log, named
):
    """In C. Of one that printed steps before, it tries something again and again."""
    looks = used(samples((), state="R"), 0.0)
    rests = replace(looks[1], syscall="clock_nanosleep", state="S")
    busy = used(samples((), state="R"), 1.0)
    evidence = with_rank(job_of(log=log, quiet_s=600.0, age_s=900.0), *range(8), samples=busy)
    found = diagnose(with_rank(evidence, 0, samples=(looks[0], rests, looks[2])))
    assert any(one.check == "rank.apart" for one in found.findings) == named
    assert found.exit_status == (2 if named else 3)


def test_who_keeps_its_lines_back_for_a_block_is_no_error_between_two_blocks():
    """200 lines come at once, a step takes 0.5 s, and the last line is cut off by the block."""
    lines = tuple(f"step {number:3} loss 0.{number % 9:018} of an epoch" for number in range(400))
    works = used(samples(own("augment"), own("augment", 31), own("augment", 30), state="R"))
    for is_cut, quiet_s, status in ((True, 60.0, 3), (False, 60.0, 2), (True, 900.0, 2)):
        evidence = job_of(log=lines, log_is_cut=is_cut, quiet_s=quiet_s, age_s=quiet_s + 200.0)
        assert diagnose(with_rank(evidence, 5, samples=works)).exit_status == status


@pytest.mark.parametrize("text", ["step {} loss 0.5", "\x1b[32mINFO\x1b[0m step {} loss 0.5\x1b[K"])
def test_the_usual_time_of_a_step_is_that_of_the_log_as_it_was_written(text):
    """Whose lines have no times: the job's age over the steps of the whole log."""
    lines = tuple(text.format(number) for number in range(1000))
    bytes_ = sum(len(line) + 1 for line in lines)
    job = {"log_bytes": bytes_, "age_s": 60_250.0, "quiet_s": 250.0}
    evidence = job_of(log=lines[-100:], log_first=lines[:1], **job)
    assert Scene(evidence).rhythm_s == pytest.approx(60, rel=0.03)
