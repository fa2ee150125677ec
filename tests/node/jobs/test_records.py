"""Records of jobs that are incomplete, and records that are not a job's."""

from __future__ import annotations

import json
import os
import time
from types import SimpleNamespace

import pytest

from clusterctl.cli.jobs import job_remarks
from clusterctl.domain.errors import UsageError
from clusterctl.node.jobs import jobs
from clusterctl.node.jobs.spec import JobSpec, JobState
from clusterctl.node.record import to_json
from clusterctl.operations import logs

JOB_ID = "20261120-154501-3f2a"


def test_an_attempt_that_was_cut_short_hides_no_job(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "JOBS", tmp_path)
    whole = {"exit_status": 255, "lost": True}
    for job_id in (JOB_ID, "20261120-154502-3f2b"):
        (tmp_path / job_id).mkdir()
        (tmp_path / job_id / "spec.json").write_text(to_json(JobSpec(job_id)))
    cut = json.dumps(whole) + '\n{"exit_status": 255, "lo'
    (tmp_path / JOB_ID / "attempts").write_text(cut)
    found = jobs.find_jobs(jobs.JobQuery()).jobs
    attempts = {one.job_id: one.status.attempts for one in found}
    assert attempts == {JOB_ID: (whole,), "20261120-154502-3f2b": ()}


@pytest.mark.parametrize("cut", [b"", b'{"ranks": 2, "li', b"[2]", b"\0" * 64, b"\xff\xfe"])
def test_a_record_that_a_crash_has_cut_short_is_said_and_hides_no_job(cut, tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "JOBS", tmp_path)
    (tmp_path / JOB_ID).mkdir()
    for name in ("spec.json", "attempts", "pid", "exit_status", "after", "boot_id"):
        (tmp_path / JOB_ID / name).write_bytes(cut)
    for job_id in ("", JOB_ID):
        [job] = jobs.find_jobs(jobs.JobQuery(job_id)).jobs
        assert (job.state, job.spec) == (JobState.LOST, JobSpec(JOB_ID))
        assert any(
            "what was requested is not known: spec.json: " in text for text in job_remarks(job)
        )


@pytest.mark.parametrize("foreign", [b"", b"[1]", b'{"a": 1}', b"\xff\xfe"])
def test_a_record_that_is_no_jobs_is_not_written_over(foreign, tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "find_job", lambda *_: SimpleNamespace(job_id=JOB_ID))
    (tmp_path / "record.json").write_bytes(foreign)
    access = SimpleNamespace(connections=None, head=None)
    with pytest.raises(UsageError, match="holds a record.json that is no job's"):
        logs.fetch(access, JOB_ID, tmp_path)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [foreign]


@pytest.mark.parametrize(
    ("files", "lasted_s"),
    [
        ((), 100),
        (("not_cancelled",), 900),
        # The job has cost nothing.
        (("not_cancelled", "after"), 100),
    ],
)
def test_a_silent_job_that_has_to_be_killed_lasted_until_it_was_cancelled(
    files, lasted_s, tmp_path, monkeypatch
):
    monkeypatch.setattr(jobs, "JOBS", tmp_path)
    folder = tmp_path / JOB_ID
    folder.mkdir()
    (folder / "spec.json").write_text(to_json(JobSpec(JOB_ID)))
    for name in ("spec.json", "log", *files):
        (folder / name).touch()
        os.utime(folder / name, times=(time.time() - (800 if name == "log" else 900),) * 2)
    if files:
        jobs.mark_cancelled(folder)
    [job] = jobs.find_jobs(jobs.JobQuery()).jobs
    assert job.state is (JobState.CANCELLED if files else JobState.LOST)
    assert lasted_s - 1 < job.duration_s < lasted_s + 60
