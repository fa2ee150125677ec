"""What `cancel` says of the processes that a job's own clean-up could not end or reach."""

from __future__ import annotations

import pytest

from clusterctl.node.jobs.spec import JobRecord, JobSpec, JobState, JobStatus
from clusterctl.operations.kill import KillReport, report_of

RUNS = JobRecord(JobSpec("j"), JobStatus(JobState.RUNNING))
NONE = KillReport((), (), (), ("demo-0", "demo-1"), ())


@pytest.mark.parametrize(
    ("before", "cleanup", "left", "silent", "status"),
    [
        (RUNS, {"left": [], "silent": []}, [], (), 0),
        (RUNS, {"problem": "x"}, [], (), 0),
        (RUNS, {"left": [77]}, [("demo-0", 77)], (), 1),
        # The second check has reached demo-1; demo-2 is out of service.
        (RUNS, {"left": [], "silent": ["demo-1", "demo-2"]}, [], ("demo-2",), 0),
        # What was left by a job that had ended before this command may be gone by now.
        (JobRecord(JobSpec("j"), JobStatus(JobState.FAILED)), {"left": [77]}, [], (), 0),
    ],
)
def test_what_the_record_says_is_left_is_no_success(before, cleanup, left, silent, status):
    after = JobRecord(JobSpec("j"), JobStatus(JobState.CANCELLED, cleanup=cleanup))
    report = report_of("demo-0", ((before, after),), NONE, NONE.answered)
    assert [(one.host, one.pid) for one in report.others.left] == left
    assert (report.silent, report.others.exit_status) == (silent, status)


def test_a_job_that_does_not_end_is_no_success():
    report = report_of("demo-0", ((RUNS, RUNS),), NONE, NONE.answered)
    [failure] = report.others.failures
    assert (failure.host, failure.error.message) == ("demo-0", "job j has not ended in time")
    assert (report.others.exit_status, report.others.answered) == (255, ("demo-1",))
