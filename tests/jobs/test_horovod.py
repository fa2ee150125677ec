"""Horovod's settings as variables, and its timeline and autotuner log."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.domain.errors import UsageError
from clusterctl.jobs.horovod import HorovodTuning, SizeRow, Timeline, read_autotune, read_timeline

PRESET = {"HOROVOD_FUSION_THRESHOLD": "16777216", "HOROVOD_HIERARCHICAL_ALLREDUCE": "1", "X": "y"}


@pytest.mark.parametrize(
    ("tuning", "changes"),
    [
        (HorovodTuning(), {}),
        (
            HorovodTuning(32 << 20, 0.0025, False, stall_check_s=0),
            {
                "HOROVOD_FUSION_THRESHOLD": "33554432",
                "HOROVOD_CYCLE_TIME": "2.5",
                "HOROVOD_HIERARCHICAL_ALLREDUCE": "0",
                "HOROVOD_STALL_CHECK_DISABLE": "1",
            },
        ),
        (HorovodTuning(hierarchical_allreduce=True, stall_check_s=30, stall_shutdown_s=600),
         {"HOROVOD_STALL_CHECK_TIME_SECONDS": "30", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "600"}),
        # Horovod does not tune what has a variable: the preset's are dropped, the user's stay.
        (
            HorovodTuning(fusion_threshold_bytes=1 << 40, autotune=True, timeline=True),
            {
                "HOROVOD_FUSION_THRESHOLD": "1099511627776",
                "HOROVOD_HIERARCHICAL_ALLREDUCE": None,
                "HOROVOD_AUTOTUNE": "1",
                "HOROVOD_AUTOTUNE_LOG": "/jobs/x/autotune.csv",
                "HOROVOD_TIMELINE": "/jobs/x/timeline.json",
            },
        ),
    ],
)  # fmt: skip
def test_tuning_is_variables(tuning, changes):
    expected = {name: value for name, value in {**PRESET, **changes}.items() if value is not None}
    assert tuning.environment(PRESET, "/jobs/x") == expected


@pytest.mark.parametrize(
    ("tuning", "says"),
    [
        (HorovodTuning(stall_shutdown_s=30), "30 s comes before the check, after 1 min 00 s"),
        (HorovodTuning(stall_check_s=0, stall_shutdown_s=30), "turns off"),
        (HorovodTuning(stall_check_s=0.1), "--stall-check 0.1s: Horovod reads whole seconds only"),
        (HorovodTuning(stall_shutdown_s=90.5), "--stall-shutdown 90.5s: Horovod reads whole"),
    ],
)
def test_a_time_that_horovod_would_ignore_is_refused(tuning, says):
    HorovodTuning(stall_check_s=10, stall_shutdown_s=30).check()
    with pytest.raises(UsageError, match=says):
        tuning.check()


def event(kind, pid, at, name=None, **args):
    return {"ph": kind, "pid": pid, "ts": at, **({"name": name} if name else {}), "args": args}


def reduced(pid, starts, shape, *phases):
    """Return the events of a tensor that is ready at starts[0] on rank 0 and starts[1] on rank 1.

    The ranks agree on it 10 us later.
    """
    first, last = starts
    yield event("B", pid, first, "NEGOTIATE_ALLREDUCE")
    yield event("X", pid, first, "0")
    yield event("X", pid, last, "1")
    yield event("E", pid, last + 10)
    yield event("B", pid, last + 30, "ALLREDUCE")
    for name, began, ended in phases:
        yield event("B", pid, began, name)
        yield event("E", pid, ended)
    yield event("E", pid, 1000, dtype="float32", shape=shape)


# Two tensors in one fused buffer, sent from 500 to 900.
TRACE = sorted(
    [
        *reduced(1, (100, 300), "[10, 10]", ("MEMCPY_IN_FUSION_BUFFER", 340, 350),
                 ("MPI_ALLREDUCE", 500, 900)),
        *reduced(2, (200, 300), "[1024, 1024]", ("WAIT_FOR_DATA", 340, 400),
                 ("MPI_ALLREDUCE", 500, 900)),
    ],
    key=lambda record: record["ts"],
)  # fmt: skip


def test_the_timelines_phases_are_added_up():
    head = [{"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time": 1}}]
    text = "[\n" + ",".join(json.dumps(record) for record in [*head, *TRACE])
    timeline = read_timeline([text + "]"])
    both = {"queue": 20e-6, "allreduce": 400e-6}
    assert timeline == Timeline(
        span_s=900e-6,
        phases={
            "negotiate": 210e-6,
            "wait for data": 60e-6,
            "queue": 20e-6,
            "copy": 10e-6,
            "allreduce": 400e-6,
            "none of these": pytest.approx(210e-6),
        },
        sizes=(
            SizeRow(1024, 1, 400, pytest.approx({"negotiate": 210e-6, "copy": 10e-6, **both})),
            SizeRow(1 << 23, 1, 4 << 20,
                    pytest.approx({"negotiate": 110e-6, "wait for data": 60e-6, **both})),
        ),
        waited_for={"1": 300e-6},
    )  # fmt: skip
    # The text is read in pieces, and truncated as by a killed job.
    assert read_timeline([text[at : at + 7] for at in range(0, len(text), 7)]) == timeline
    assert read_timeline([text[:-30]]).sizes == timeline.sizes[:1]
    with pytest.raises(UsageError, match="no operation that ended"):
        read_timeline(["[\n"])


def tensors(timeline):
    return sum(row.tensors for row in timeline.sizes)


def lines(*, steps=10):
    """Return a trace, a record per line as Horovod before 0.21 wrote it: two tensors each step."""
    records = [
        {**record, "ts": record["ts"] + 1000 * step} for step in range(steps) for record in TRACE
    ]
    return ["[\n", *(json.dumps(record) + ",\n" for record in records)]


@pytest.mark.parametrize("one_line", [False, True])
@pytest.mark.parametrize(
    "damage",
    [
        lambda record: record[: len(record) // 2],  # a line that was cut, and the next one follows
        lambda record: record[: len(record) // 2] + ",\n",
        lambda record: "\0" * len(record),
        lambda record: record.replace('"ts"', '"ts'),
        lambda record: record.replace('"ts": ', '"ts": x'),
        lambda record: record.replace('"ph": "', '"ph": "ü'),
        lambda record: record.replace('"pid": ', '"pid": -1.5e'),
        lambda record: "{" * 5000 + ",\n",
        lambda record: '"text",\n',
    ],
)
def test_one_bad_record_costs_itself_and_is_counted(damage, one_line):
    whole = lines()
    at = 5 * len(TRACE) + 3  # in the sixth step
    text = [*whole[:at], damage(whole[at]), *whole[at + 1 :]]
    text = "".join(text).replace("\n", "") if one_line else "".join(text)
    timeline = read_timeline([text[:4000], text[4000:]])
    assert timeline.unread
    assert len("".join(whole[: at - 1])) - at < timeline.unread_at
    assert timeline.unread_at < len("".join(whole[: at + len(TRACE)]))
    assert tensors(timeline) >= 19
    # What the lost record left open does not count on and on.
    assert timeline.phases["allreduce"] == pytest.approx(10 * 400e-6, abs=1e-3)


@given(at=st.integers(0), length=st.integers(1, 300), junk=st.text('\0"', min_size=1))
def test_a_damaged_timeline_is_read_as_before_or_what_it_lacks_is_counted(at, length, junk):
    text = "".join(lines(steps=3))
    at %= len(text)
    damaged = text[:at] + (junk * length)[:length] + text[at + length :]
    try:
        timeline = read_timeline([damaged])
    except UsageError as error:
        assert "cannot be read" in error.message
    else:
        assert timeline.unread or timeline == read_timeline([text])


def test_a_bad_record_takes_no_more_memory_than_the_others():
    record = json.dumps(TRACE[0]) + ",\n"
    chunk = record * (1 + (1 << 16) // len(record))
    chunks = ['[\n{"name": ', *[chunk] * 20, "".join(lines())]
    tracemalloc.start()
    try:
        timeline = read_timeline(chunks)
        assert tracemalloc.get_traced_memory()[1] < 10 * len(chunk)
    finally:
        tracemalloc.stop()
    assert timeline.unread
    assert tensors(timeline) == 20


def test_activities_within_an_operation_are_not_its_end_of_waiting():
    allocating = [
        *reduced(1, (100, 300), "[10]", ("ALLOCATE_OUTPUT", 340, 350), ("MPI_ALLGATHER", 500, 900))
    ]
    timeline = read_timeline([json.dumps(allocating)])
    assert timeline.phases["queue"] == pytest.approx(20e-6)
    assert timeline.sizes[0].seconds["queue"] == pytest.approx(20e-6)


HEADER = (
    "hierarchical_allreduce,hierarchical_allgather,torus_allreduce,cache_enabled,"
    "cycle_time_ms,tensor_fusion_threshold,score\n"
)


@pytest.mark.parametrize(
    ("rows", "options", "tried", "finished"),
    [
        # Shortened lines of a real Horovod with two ranks.
        (
            ("0,0,0, 0,5,4,0.769379", "0,1,0, 1,10,8,7.73", "0,0,0, 1,10,8,7.86914",
             "0,0,0, 1,10,8,7.86914"),
            "--fusion-threshold 8MiB --cycle-time 10ms --no-hierarchical-allreduce",
            3,
            True,
        ),
        (
            ("1,1,0, 0,2.5,32.25,9", "0,0,0, 1,50,32,1.6", "0,0,0, 1,5"),
            "--fusion-threshold 32.25MiB --cycle-time 2.5ms --hierarchical-allreduce "
            "-x HOROVOD_HIERARCHICAL_ALLGATHER=1 -x HOROVOD_CACHE_CAPACITY=0",
            2,
            False,
        ),
    ],
)  # fmt: skip
def test_the_autotuners_best_is_offered_as_options(rows, options, tried, finished):
    tuned = read_autotune(HEADER + "\n".join(rows))
    assert (" ".join(tuned.options), tuned.tried, tuned.finished) == (options, tried, finished)
    assert tuned.unread == (0 if finished else 1)
    assert read_autotune(HEADER) is None
    assert read_autotune("") is None


@pytest.mark.parametrize(
    ("text", "options", "unread"),
    [
        # Versions of Horovod differ in the columns. What a log lacks is not offered.
        ("cycle_time_ms,tensor_fusion_threshold,score\n5,4,345\n", "4MiB --cycle-time 5ms", 0),
        ("hierarchical_allreduce,cycle_time_ms,tensor_fusion_threshold,score\n0,5,4,345\n",
         "4MiB --cycle-time 5ms --no-hierarchical-allreduce", 0),
        # Scores that are no numbers do not win, and bad lines are counted.
        ("cycle_time_ms,tensor_fusion_threshold,score\n1,2,nan\n1,2,inf\n5,4,3\n\0\0\n9,9,9,9\n",
         "4MiB --cycle-time 5ms", 4),
    ],
)  # fmt: skip
def test_an_autotuners_log_of_other_columns_or_with_bad_lines(text, options, unread):
    tuned = read_autotune(text)
    assert " ".join(tuned.options) == f"--fusion-threshold {options}"
    assert tuned.unread == unread


@pytest.mark.parametrize("text", ["0,0,0,1,5,4,0.7\n0,0,0,1,5,4,0.8\n", "cycle_time_ms,score\n1"])
def test_an_autotuners_log_without_a_header_is_named_as_such(text):
    with pytest.raises(UsageError, match="has no column tensor_fusion_threshold: its first line"):
        read_autotune(text)


@given(st.text('0123456789.,\n"naife-\0 '))
def test_any_lines_of_an_autotuners_log_are_samples_or_counted(text):
    tuned = read_autotune(HEADER + "0,0,0,0,5,4,1\n" + text)
    written = 1 + sum(1 for line in text.splitlines() if line.strip())
    assert tuned.tried + tuned.finished + tuned.unread == written
