"""The jobs of a head node, from what its folders say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterctl.domain.results import CommandResult
from clusterctl.jobs.detached import JobState, parse_jobs

SAMPLES = Path(__file__).parent / "samples"


def parse(*described):
    text = "\n".join(json.dumps(each) for each in described)
    return parse_jobs(CommandResult("demo-0", "python3", 0, text, "", 0.1))


def test_captured_on_the_local_ec2():
    text = (SAMPLES / "jobs-lab.jsonl").read_text()
    jobs = parse_jobs(CommandResult("demo-0", "python3", 0, text, "", 0.1))
    shown = [
        (job.state.value, job.exit_status, job.ranks, round(job.duration_s, 1)) for job in jobs
    ]
    assert shown == [
        ("lost", None, 0, 0.0),
        ("cancelled", 1, 2, 4.5),
        ("succeeded", 0, 1, 0.7),
        ("running", None, 2, 4.1),
    ]
    assert jobs[2].line.startswith("/opt/clusterctl/training/bin/mpirun -np 1 ")
    assert jobs[2].as_data()["started_at"] == "2026-11-20T16:33:52.493945+00:00"


@pytest.mark.parametrize(
    ("exit_status", "running", "cancelled", "state"),
    [
        (None, True, False, JobState.RUNNING),
        (None, True, True, JobState.RUNNING),
        (None, False, False, JobState.LOST),
        (None, False, True, JobState.CANCELLED),
        (0, False, False, JobState.SUCCEEDED),
        (0, True, False, JobState.SUCCEEDED),  # its script is writing the last line
        (0, False, True, JobState.SUCCEEDED),  # it ended before it was asked to
        (1, False, False, JobState.FAILED),
        (143, False, True, JobState.CANCELLED),
    ],
)
def test_states(exit_status, running, cancelled, state):
    [job] = parse(
        {
            "id": "20261120-154501-3f2a",
            "plan": {},
            "running": running,
            "exit_status": exit_status,
            "cancelled": cancelled,
            "started_at": 100.0,
            "ended_at": None,
            "now": 160.0,
            "log_bytes": 0,
        }
    )
    assert job.state is state
    assert job.duration_s == (60.0 if state is JobState.RUNNING else 0.0)
