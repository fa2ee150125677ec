"""What `diagnose` makes of a node's response that is damaged."""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

import pytest

from clusterctl.diagnosis.evidence import HostEvidence, ProcessEvidence
from clusterctl.domain.errors import CommandNotRun, HostError
from clusterctl.domain.results import CommandResult
from clusterctl.node.diagnosis.job import JobOnHead
from clusterctl.node.diagnosis.sampler import SamplerRequest, SamplerResponse
from clusterctl.node.jobs.spec import JobRecord, JobSpec, JobState, JobStatus
from clusterctl.node.record import to_data
from clusterctl.operations import diagnose
from clusterctl.operations.diagnose import PySpies, apart, ask, job_of

RECORD = to_data(JobRecord(JobSpec("20261123-004105-3f2a"), JobStatus()))


def asked(tmp_path, host, job, greeting="1764000000.5 x86_64 py-spy-1", before=()):
    """Ask a node whose response is this one, after those `before`."""
    connections = mock.Mock()
    connections.run.return_value = CommandResult("demo-0", "", 0, greeting, "", 0.1)
    answers = (*before, host, None)
    is_late = HostError("demo-0", "did not end")
    responses = [is_late if one == "late" else SamplerResponse(one, job) for one in answers]
    with (
        mock.patch.object(diagnose, "_logged_in", return_value=SimpleNamespace(round_trip_s=0.1)),
        mock.patch.object(diagnose, "call", side_effect=responses),
        mock.patch.object(PySpies, "of", return_value=(None, "none")),
    ):
        target = SimpleNamespace(host="demo-0")
        return ask(connections, target, SamplerRequest(), PySpies(tmp_path))


def test_a_damaged_part_is_told_and_the_others_count(tmp_path):
    host, job = asked(tmp_path, {"ras": 7, "problems": ["x"]}, {"found": RECORD, "log": [1, "y"]})
    assert (host.ras, job.log, job.found.job_id) == ("", ("y",), "20261123-004105-3f2a")
    assert host.problems == (
        "x",
        "unexpected value: ras: expected a string, got 7",
        "unexpected value: log[0]: expected a string, got 1",
    )


def test_a_host_too_busy_to_read_its_processes_in_time_is_asked_once_more(tmp_path):
    busy = {"problems": ["processes: no answer within 6 s"]}
    assert asked(tmp_path, {"ras": "x"}, None, before=[busy])[0].ras == "x"
    assert asked(tmp_path, busy, None, before=[busy])[0].problems == (*busy["problems"],)
    first, job = asked(tmp_path, "late", {"log": ["step 1"]}, before=[{**busy, "ras": "x"}])
    assert (first.ras, job.log) == ("x", ("step 1",)), "the first answer counts without a second"


@pytest.mark.parametrize(("ended_at", "ended_s"), [(5.0, 2.5), (None, None)])
def test_how_long_ago_a_job_has_ended_is_by_the_head_nodes_clock(ended_at, ended_s):
    status = JobStatus(JobState.SUCCEEDED, started_at=1.0, ended_at=ended_at)
    record = JobRecord(JobSpec("20261123-004105-3f2a"), status, now=7.5)
    assert job_of(JobOnHead(found=record), [], None).ended_s == ended_s


@pytest.mark.parametrize("found", [{"spec": {}}, {"spec": {"job_id": 7}}, 7])
def test_a_head_node_whose_record_is_damaged_has_not_answered(tmp_path, found):
    """That there is no job would not be true."""
    with pytest.raises(CommandNotRun, match=r"unexpected response: found"):
        asked(tmp_path, {}, {"found": found})


@pytest.mark.parametrize("greeting", ["", "date: not found x86_64"])
def test_a_node_that_does_not_tell_the_time(tmp_path, greeting):
    host, _ = asked(tmp_path, {}, None, greeting)
    assert (host.clock_offset_s, host.clock_error_s) == (None, None)
    assert host.problems[0].startswith("unexpected value: clock: ")


@pytest.mark.parametrize(
    ("launcher", "names"),
    [("7", [None, None, "9", "9", "5"]), *((one, [None] * 5) for one in ("", "5", "6"))],
)
def test_two_jobs_by_hand_on_a_cluster_are_not_taken_for_one(launcher, names):
    processes = [
        ProcessEvidence(pid=pid, parent=parent, role=role, group=group, rank=rank)
        for pid, parent, role, group, rank in [
            *((7, 1, "launcher", "a", None), (8, 7, "rank", "a", 0)),
            *((9, 1, "launcher", "b", None), (10, 9, "rank", "b", 0)),
        ]
    ]
    # Without a rank of its own here, it is not known which ranks elsewhere are its own.
    processes.append(ProcessEvidence(pid=5, parent=1, role="launcher"))
    found, others = apart([HostEvidence(host="demo-0", processes=tuple(processes))], launcher)
    assert [one.job_id for one in found[0].processes] == names
    assert [*others] == ["9"] * (launcher == "7")
    # One that is chosen by its name is known by that.
    [host], others = apart(found, launcher, launcher)
    own = ["7" if pid in (7, 8) else name for pid, name in zip((7, 8, 9, 10, 5), names)]
    assert [one.job_id for one in host.processes] == (own if launcher == "7" else names)
    assert [*others] == []
