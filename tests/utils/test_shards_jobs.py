"""Making shards in several processes: resuming, refusing, and the files after a failure."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import signal
import subprocess
import sys
import time

import pytest
import shard_jobs
import shard_work
from progress import Progress, describe, duration
from shard_jobs import Job, make_shards
from shards import ShardError, shard_name

from tests.clock import FakeClock

from .conftest import HERE


def jobs(folder, *tasks, made_with="with", made_from="from", subset="train"):
    return [
        Job(folder / shard_name(subset, index, len(tasks)), 1, made_with, made_from + task, task)
        for index, task in enumerate(tasks)
    ]


def texts(folder):
    return {path.name[6:11]: path.read_text() for path in sorted(folder.glob("train-*"))}


def hidden(folder):
    return sorted(path.name for path in folder.glob(".*"))


@pytest.mark.parametrize("processes", [1, 2, 9])
def test_all_shards_are_made_and_later_skipped(tmp_path, processes):
    folder = tmp_path / "new, ü/x"
    wanted = jobs(folder, "a", "b", "c")
    summary = make_shards(wanted, shard_work.write_text, processes=processes)
    assert texts(folder) == {"00000": "a", "00001": "b", "00002": "c"}
    assert (summary.made, summary.skipped, summary.records) == (3, 0, 3)
    assert [line.shard for line in summary.lines] == [job.shard.name for job in wanted]
    assert hidden(folder) == [".shards.jsonl"]
    times = [job.shard.stat().st_mtime_ns for job in wanted]
    again = make_shards(wanted, shard_work.fail, processes=processes)
    assert (again.made, again.skipped, again.records) == (0, 3, 3)
    assert [job.shard.stat().st_mtime_ns for job in wanted] == times


def test_only_what_is_missing_shorter_or_of_other_input_is_made_again(tmp_path):
    make_shards(jobs(tmp_path, "a", "b", "c", "d"), shard_work.write_text, processes=1)
    (tmp_path / "train-00000-of-00004").unlink()
    (tmp_path / "train-00001-of-00004").write_text("")
    summary = make_shards(jobs(tmp_path, "a", "b", "C", "d"), shard_work.write_text, processes=1)
    assert (summary.made, summary.skipped) == (3, 1)
    assert "".join(texts(tmp_path).values()) == "abCd"


def test_shards_of_other_programs_or_settings_are_kept_unless_forced(tmp_path):
    (tmp_path / "train-00001-of-00002").write_text("precious")
    with pytest.raises(ShardError, match=r"train-00001-of-00002 is there.*--force"):
        make_shards(jobs(tmp_path, "a", "b"), shard_work.write_text, processes=1)
    assert list(texts(tmp_path).values()) == ["precious"]
    make_shards(jobs(tmp_path, "a", "b"), shard_work.write_text, processes=1, force=True)
    other = jobs(tmp_path, "a", "b", made_with="other settings")
    with pytest.raises(ShardError, match="--force"):
        make_shards(other, shard_work.write_text, processes=1)
    assert make_shards(other, shard_work.write_text, processes=1, force=True).made == 2


def test_two_sets_in_one_folder_are_refused_even_if_forced(tmp_path):
    make_shards(jobs(tmp_path, "a", "b"), shard_work.write_text, processes=1)
    make_shards(jobs(tmp_path, "v", subset="validation"), shard_work.write_text, processes=1)
    with pytest.raises(ShardError, match="another set of train shards"):
        make_shards(jobs(tmp_path, "a"), shard_work.write_text, processes=1, force=True)


def test_what_is_left_out_is_told_and_remembered(tmp_path):
    wanted = jobs(tmp_path, "drop", "also drop"[5:])
    summary = make_shards(wanted, shard_work.leave_one_out, processes=1)
    assert summary.left_out == (("a cat.JPEG", "no \N{CAT FACE}"),) * 2
    assert (summary.records, texts(tmp_path)) == (0, {})
    assert shard_jobs.read_journal(tmp_path)[wanted[0].shard.name].left_out == summary.left_out[:1]


@pytest.mark.parametrize("processes", [1, 2])
def test_a_full_disk_leaves_finished_shards_only(tmp_path, processes):
    with pytest.raises(OSError, match="No space left"):
        make_shards(jobs(tmp_path, "a", "b", "full"), shard_work.fail, processes=processes)
    assert set(texts(tmp_path).values()) <= {"a", "b"}
    assert processes == 2 or len(texts(tmp_path)) == 2
    assert hidden(tmp_path) == [".shards.jsonl"]


def test_a_process_that_is_killed_ends_the_run_with_a_reason(tmp_path):
    with pytest.raises(ShardError, match="killed by signal 9: out of memory"):
        make_shards(jobs(tmp_path, "a", "die", "b"), shard_work.die, processes=2)
    assert "half" not in texts(tmp_path).values()
    assert hidden(tmp_path) == [".shards.jsonl"]
    assert make_shards(jobs(tmp_path, "a", "c", "b"), shard_work.die, processes=2).made >= 1


@pytest.mark.parametrize(
    "damage", ['{"shard": "train-000', "\xff\n[]\n", '{"shard": 3, "left_out": 7}\n', "null\n\n"]
)
def test_a_damaged_journal_costs_the_damaged_lines_only(tmp_path, damage):
    make_shards(jobs(tmp_path, "a", "b"), shard_work.write_text, processes=1)
    with (tmp_path / ".shards.jsonl").open("a", encoding="latin-1") as file:
        file.write(damage)
    (tmp_path / "train-00001-of-00002").unlink()
    for made in (1, 0):
        summary = make_shards(jobs(tmp_path, "a", "b"), shard_work.write_text, processes=1)
        assert summary.made == made


def test_a_second_run_in_the_same_folder_is_refused(tmp_path):
    with (tmp_path / ".shards.jsonl").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ShardError, match="another run is writing to"):
            make_shards(jobs(tmp_path, "a"), shard_work.write_text, processes=1)
    assert make_shards(jobs(tmp_path, "a"), shard_work.write_text, processes=1).made == 1


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, -9)],
)
def test_however_it_is_ended_no_process_stays_and_finished_shards_do(tmp_path, number, status):
    marks = [tmp_path / "a", tmp_path / "b"]
    folder = tmp_path / "out"
    command = [sys.executable, str(HERE / "hanging_run.py"), str(folder), *map(str, marks)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True) as run:
        until(lambda: texts(folder) and all(mark.exists() and mark.read_text() for mark in marks))
        if number == signal.SIGINT:  # a terminal sends SIGINT to every process
            os.killpg(run.pid, number)
        else:
            os.kill(run.pid, number)
        stderr = run.communicate(timeout=240)[1].decode()
    assert run.returncode == status
    workers = [int(mark.read_text()) for mark in marks]
    until(lambda: not any(alive(worker) for worker in workers))
    assert texts(folder) == {"00000": "quick"}
    assert "Traceback" not in stderr
    if number != signal.SIGKILL:
        assert hidden(folder) == [".shards.jsonl"]
        assert stderr.count("\n") == (2 if number == signal.SIGINT else 0)


def until(true, seconds=240):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def alive(pid):
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.parametrize(
    ("done", "total", "rate", "unit", "text"),
    [
        (1200, 1_281_167, 1000, "images", "1,200 of 1,281,167 images, 1,000 images/s, 21 min 20 s"),
        (0, 10, 0, "images", "0 of 10 images, 0 images/s"),
        (10, 10, 5, "images", "10 of 10 images, 5 images/s"),
        (2 * 10**9, 4 * 10**9, 10**8, "bytes", "2.00 of 4.00 GB, 100.0 MB/s, 20 s left"),
        (10**9, 0, 10**6, "bytes", "1.00 GB, 1.0 MB/s"),
    ],
)
def test_progress_says_how_far_how_fast_and_how_long(done, total, rate, unit, text):
    assert describe(done, total, rate, unit).removesuffix(" left") == text.removesuffix(" left")


def test_durations_are_short():
    said = [duration(seconds) for seconds in (0.4, 59.4, 59.6, 3599, 3600, 93_784)]
    assert said == ["0 s", "59 s", "1 min 00 s", "59 min 59 s", "1 h 00 min", "26 h 03 min"]


def test_progress_is_plain_lines_where_there_is_no_terminal():
    clock, stream = FakeClock(), io.StringIO()
    progress = Progress(100, "train", stream=stream, now=clock.monotonic)
    for done in range(1, 101):
        clock.advance(1)
        progress.update(done)
    progress.close()
    assert stream.getvalue().splitlines() == [
        "train: 30 of 100 images, 1 images/s, 1 min 10 s left",
        "train: 60 of 100 images, 1 images/s, 40 s left",
        "train: 90 of 100 images, 1 images/s, 10 s left",
    ]
