"""Records of jobs that are incomplete, and records that are not a job's."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from clusterctl.cli.jobs import job_remarks
from clusterctl.domain.errors import UsageError
from clusterctl.node.jobs import folder, listing
from clusterctl.node.jobs.spec import (
    NOT_RECORDED,
    JobEvent,
    JobRecord,
    JobSpec,
    JobState,
    JobStatus,
    fold,
)
from clusterctl.node.record import to_json
from clusterctl.operations import fetch as fetching

JOB_ID = "20261120-154501-3f2a"


@pytest.mark.parametrize("cut", [b"", b'{"ranks": 2, "li', b"[2]", b"\0" * 64, b"\xff\xfe"])
def test_a_record_that_a_crash_has_cut_short_is_said_and_hides_no_job(cut, tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "JOBS", tmp_path)
    monkeypatch.setattr(listing, "JOBS", tmp_path)
    (tmp_path / JOB_ID).mkdir()
    for name in ("spec.json", "events.jsonl", "lock", "heartbeat"):
        (tmp_path / JOB_ID / name).write_bytes(cut)
    for job_id in ("", JOB_ID):
        [job] = listing.find_jobs(job_id)
        assert (job.state, job.spec) == (JobState.LOST, JobSpec(JOB_ID))
        [remark] = job_remarks(job)
        assert remark.startswith(": what was requested is not known: spec.json: ")


def test_a_folder_with_nothing_in_it_is_no_job(tmp_path, monkeypatch):
    """Whoever removed the job's record was killed before the folder was gone."""
    monkeypatch.setattr(folder, "JOBS", tmp_path)
    (tmp_path / JOB_ID).mkdir()
    assert listing.find_jobs("") == ()


def test_a_line_that_is_written_only_in_part_is_waited_for(tmp_path, monkeypatch):
    """`serve` reads the record in it."""
    log = tmp_path / JOB_ID / "log"
    log.parent.mkdir()
    log.write_text('loading\nready: {"ser')
    request = listing.AwaitedLine(JOB_ID, "ready: ")
    monkeypatch.setattr(listing, "JOBS", tmp_path)
    # Without the rest there is no such line.
    assert listing.wait_for_line(request) == ("", "loading", 'ready: {"ser')

    def write_on(_):
        log.write_text(log.read_text() + 'ver": 1}\n')

    monkeypatch.setattr(folder.JobFolder, "is_run", lambda _: True)
    monkeypatch.setattr(listing.time, "sleep", write_on)
    assert listing.wait_for_line(request) == ('ready: {"server": 1}',)


BEGIN = {"kind": "begin", "steps": 30}
EVALUATION = {"kind": "begin", "validation_samples": 8}


@pytest.mark.parametrize(
    ("rows", "step"),
    [
        ([BEGIN, 10, 20], 20),
        # The evaluation after a training is a program of its own.
        ([BEGIN, 10, 20, EVALUATION, {"kind": "eval", "step": 29}, {"kind": "end"}], 20),
        ([BEGIN, 10, 20, BEGIN], None),
        ([-5, EVALUATION, {"kind": "eval", "step": 29}], None),  # the training was another job's
        ([-5, BEGIN, EVALUATION], None),
    ],
)
def test_a_job_has_the_last_step_of_its_training(rows, step, tmp_path):
    job = folder.JobFolder(tmp_path)
    lines = [
        row if isinstance(row, dict) else {"kind": "train", "step": row, "images_per_s": 3.5}
        for row in rows
    ]
    at = [159.0 if row.get("step") == -5 else 170.0 for row in lines]
    text = "".join(json.dumps({**row, "time": t}) + "\n" for row, t in zip(lines, at))
    (tmp_path / folder.METRICS).write_text(text)
    (tmp_path / "spec.json").write_text(to_json(JobSpec(JOB_ID)))
    events = (SUBMITTED, RUNNING, ENDED)
    (tmp_path / folder.EVENTS).write_text("".join(to_json(one) + "\n" for one in events))
    found = job.record().report()
    assert (found.step, found.images_per_s) == (step, 3.5 if step else None)


SUBMITTED = JobEvent("submitted", 100.0, {"after": ["a", "b"], "boot_id": "boot"})
RUNNING = JobEvent("running", 160.0)
ATTEMPT = JobEvent("attempt", 161.0, {"argv": ["mpirun"], "ranks": 8, "hosts": ["a"]})
FAILED = JobEvent("failed", 170.0, {"exit_status": 255, "lost": True})
CANCEL = JobEvent("cancel", 180.0, {"by": "user", "why": ""})
ENDED = JobEvent("ended", 200.0, {"state": "failed", "exit_status": 3, "reason": "exit status 3"})


@pytest.mark.parametrize(
    ("events", "state", "facts"),
    [
        ([], JobState.LOST, {}),
        ([SUBMITTED], JobState.QUEUED, {"waits_for": ("a", "b"), "started_at": None}),
        ([SUBMITTED, CANCEL], JobState.QUEUED, {"has_ended": False}),
        ([SUBMITTED, RUNNING, ATTEMPT], JobState.RUNNING, {"ranks": 8, "hosts": ("a",)}),
        ([SUBMITTED, RUNNING, ATTEMPT, FAILED], JobState.RUNNING, {"attempts": (FAILED.data,)}),
        ([SUBMITTED, RUNNING, ENDED], JobState.FAILED,
         {"exit_status": 3, "started_at": 160.0, "ended_at": 200.0}),
        # Nothing changes the state after the end, but a message may still come.
        ([SUBMITTED, RUNNING, ENDED, RUNNING, CANCEL], JobState.FAILED, {"cancel": None}),
        ([SUBMITTED, ENDED, JobEvent("message", 300.0, {"text": "late"})], JobState.FAILED,
         {"messages": ("late",)}),
        # Events of another version, or of no version.
        ([SUBMITTED, JobEvent("healed", 1.0), JobEvent("ended", 1.0, {})], JobState.QUEUED, {}),
        ([SUBMITTED, JobEvent("ended", 1.0, {"state": "fine"})], JobState.QUEUED, {}),
        ([SUBMITTED, RUNNING, JobEvent("attempt", 1.0, {"ranks": "many"})], JobState.RUNNING, {}),
    ],
)  # fmt: skip
def test_what_became_of_a_job(events, state, facts):
    status = fold(events)
    assert status.state is state
    assert {name: getattr(status, name) for name in facts} == facts


@pytest.mark.parametrize("at", [0.0, 86400.0])
def test_a_clock_that_is_set_changes_neither_duration_nor_cost(at):
    events = [SUBMITTED, replace(RUNNING, boot_s=30.0), replace(ENDED, at=at, boot_s=70.0)]
    job = JobRecord(JobSpec(JOB_ID, hourly_usd=90.0), fold(events), now=at)
    assert (job.duration_s, job.usd) == (40.0, 1.0)
    runs = JobRecord(job.spec, fold(events[:2]).ran_until(50.0), now=at)
    assert (runs.duration_s, runs.usd) == (20.0, 0.5)


@pytest.mark.parametrize(
    ("events", "boot", "state", "lasted_s", "reason"),
    [
        ([RUNNING], "boot", JobState.LOST, 40.0, NOT_RECORDED),
        ([RUNNING], "other", JobState.LOST, 40.0, "the head node was rebooted"),
        ([RUNNING, CANCEL], "boot", JobState.CANCELLED, 40.0, NOT_RECORDED),
        # It has never begun, and has cost nothing.
        ([], "boot", JobState.LOST, 0.0, NOT_RECORDED),
    ],
)
def test_a_job_without_a_runner_lasted_until_its_last_heartbeat(
    events, boot, state, lasted_s, reason
):
    status = fold([SUBMITTED, *events]).lost(200.0, boot)
    job = JobRecord(JobSpec(JOB_ID, hourly_usd=90.0), status, now=900.0)
    assert (job.state, job.duration_s, job.usd) == (state, lasted_s, lasted_s / 40)
    assert (status.reason, status.rebooted) == (reason, boot == "other")


def test_a_job_costs_what_the_nodes_of_each_attempt_cost():
    fewer = {**ATTEMPT.data, "argv": ["mpirun", "-np", "4"], "ranks": 4, "hourly_usd": 18.0}
    again = replace(ATTEMPT, at=260.0, data=fewer)
    attempt = replace(ATTEMPT, data={**ATTEMPT.data, "hourly_usd": 36.0})
    events = [SUBMITTED, RUNNING, attempt, FAILED, again]
    spec = JobSpec(JOB_ID, ranks=8, hourly_usd=36.0, hosts=("a", "b"))
    job = JobRecord(spec, fold(events), now=360.0)
    assert (job.usd, job.hourly_usd) == (pytest.approx(1.0 + 0.5), 18.0)
    assert (job.report().gpus, JobRecord(spec, fold([SUBMITTED])).report().gpus) == (4, 8)
    # EC2 took the one that cost 18 dollars 9 seconds after the start.
    taken = replace(FAILED, data={**FAILED.data, "rates": [[170.0, 18.0]]})
    job = JobRecord(spec, fold([*events[:-2], taken, again]), now=360.0)
    assert (job.usd, job.hourly_usd) == (pytest.approx(0.1 + 0.45 + 0.5), 18.0)
    assert job.status.attempts == (FAILED.data,)
    assert job.report().argv == tuple(again.data["argv"])
    assert (job.report().line, job.report().hosts) == ("mpirun -np 4", ("a",))
    # The same, with a clock that was set by a day when the attempt had failed.
    running, *rest = (replace(one, boot_s=one.at - 60) for one in (RUNNING, attempt, FAILED))
    late = replace(again, at=again.at + 86400, boot_s=again.at - 60)
    status = fold([SUBMITTED, running, *rest, late]).ran_until(300.0)
    assert JobRecord(spec, status, now=90000.0).usd == pytest.approx(1.0 + 0.5)
    # A node that `up` has added meanwhile is not in the job's record.
    unknown = replace(again, data={**again.data, "hourly_usd": None})
    job = JobRecord(spec, fold([*events[:-1], unknown]), now=360.0)
    assert (job.usd, job.hourly_usd) == (None, None)
    assert JobRecord(spec, fold([SUBMITTED]), now=360.0).usd == 0.0


@pytest.mark.parametrize("foreign", [b"", b"[1]", b'{"a": 1}', b"\xff\xfe"])
def test_a_record_that_is_no_jobs_is_not_written_over(foreign, tmp_path, monkeypatch):
    monkeypatch.setattr(fetching, "find_job", lambda *_: SimpleNamespace(job_id=JOB_ID))
    (tmp_path / "record.json").write_bytes(foreign)
    access = SimpleNamespace(connections=None, head=None, cluster=SimpleNamespace(name="demo"))
    with pytest.raises(UsageError, match="holds a record.json that is no job's"):
        fetching.fetch(access, JOB_ID, tmp_path)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [foreign]


def test_a_job_that_ended_before_it_began_took_no_time_and_cost_nothing():
    spec = JobSpec("20260101-000000-abcd", hourly_usd=88.0)
    status = JobStatus(JobState.CANCELLED, submitted_at=1000.0, ended_at=37000.0)
    job = JobRecord(spec, status, now=40000.0)
    assert (job.duration_s, job.usd) == (0.0, 0.0)
    assert job.ended_at.timestamp() == 37000.0
