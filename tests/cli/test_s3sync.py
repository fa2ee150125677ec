"""A synchronization from S3 on each node, from the record of its job, and its lines."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from clusterctl.cli import s3sync
from clusterctl.copy.report import (
    CopyProgress,
    NodeProgress,
    NodeReport,
    NodeStage,
    StateFile,
    TransferReport,
    new_state,
)
from clusterctl.domain.errors import HostUnreachable, UsageError
from clusterctl.node.jobs.spec import CopyNode, JobRecord, JobSpec, JobState, JobStatus
from clusterctl.node.record import from_json
from clusterctl.operations.s3sync import nodes_of, status_of_sync

SPEC = JobSpec(
    "20261121-200000-abcd", preset="copy", destination="~/data", sources=("s3://bucket/x",)
)
DONE = CopyNode("demo-0", "done", "s5cmd", 0, 0, 3, 0, 0, duration_s=2.0)
COPYING = replace(DONE, host="demo-1", stage="copying", files=1, needed_files=2, present_files=0)
SILENT = replace(DONE, host="demo-2", stage="failed", exit_status=255, message="no route")


def job(state, *copied, **status):
    return JobRecord(SPEC, JobStatus(state, started_at=1.0, **status), now=9.0, copied=copied)


def states(record):
    return [node.state.value for node in nodes_of(record, "demo")]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (JobState.RUNNING, ["succeeded", "running", "failed"]),
        (JobState.FAILED, ["succeeded", "failed", "failed"]),
        (JobState.CANCELLED, ["succeeded", "cancelled", "failed"]),
        (JobState.LOST, ["succeeded", "lost", "failed"]),
    ],
)
def test_a_node_that_is_done_stays_so_and_the_others_become_what_the_job_became(state, expected):
    assert states(job(state, DONE, COPYING, SILENT)) == expected


def test_the_record_of_a_copy_tells_how_far_it_is_on_each_node():
    copied = job(JobState.RUNNING, DONE, COPYING).report().copied
    assert [(one.host, one.stage) for one in copied] == [("demo-0", "done"), ("demo-1", "copying")]


def test_a_job_that_has_succeeded_has_done_so_on_every_node():
    """Its last state may be missing: its disk was read-only."""
    assert states(job(JobState.SUCCEEDED, COPYING)) == ["succeeded"]


@pytest.mark.parametrize(
    ("copied", "shown", "status"),
    [
        (COPYING, ["running", " 1/2 "], 0),
        (DONE, ["succeeded", "0/0, 3 were there"], 0),
        (replace(DONE, left_out=1), ["done, 1 left out", "0/0, 3 were there"], 1),
        (replace(DONE, stage="failed", exit_status=1, message="no space"), ["failed"], 1),
        (replace(DONE, stage="comparing", files=None, bytes=None), ["running", " - "], 0),
        (SILENT, ["failed"], 255),
    ],
)
def test_a_row_says_how_far_it_is_and_what_was_there(capsys, copied, shown, status):
    nodes = nodes_of(job(JobState.RUNNING, copied), "demo")
    assert s3sync._show(nodes, as_json=False) == status == status_of_sync(nodes)
    out, err = capsys.readouterr()
    for text in shown:
        assert text in out
    assert nodes[0].message in err


def test_what_was_left_out_and_who_failed_is_told_to_programs(capsys):
    record = job(JobState.FAILED, replace(DONE, left_out=1), SILENT)
    assert s3sync._show(nodes_of(record, "demo"), as_json=True) == 255
    printed = json.loads(capsys.readouterr().out)
    [one], [silent] = printed["nodes"], printed["failures"]
    assert (one["state"], one["is_incomplete"]) == ("succeeded", True)
    assert (one["copied"]["left_out"], one["copied"]["tool"]) == (1, "s5cmd")
    assert one["message"] == "1 file was left out"
    assert "clusterctl logs demo 20261121-200000-abcd" in one["hint"]
    assert (silent["host"], silent["message"], silent["exit_status"]) == ("demo-2", "no route", 255)


@pytest.mark.parametrize(
    ("destination", "told"),
    [
        ("s3://other/x", "SRC or DST is missing"),
        ("S3://other/x", "SRC or DST is missing"),
        ("~nobody/x", "only your own home folder"),
    ],
)
def test_destinations_that_are_none(destination, told):
    with pytest.raises(UsageError, match=told):
        s3sync._request(("s3://bucket/x", destination))


@pytest.mark.parametrize("which", [("--nodes", "1"), ("--head",)])
def test_a_sync_is_not_cancelled_on_a_part_of_its_nodes(clusterctl, which):
    """Its job ends everywhere."""
    clusterctl.ends(2, "ends the sync on all its nodes", "s3sync", "demo", "--cancel", *which)


def test_what_is_not_in_s3_is_copied_by_copy():
    with pytest.raises(UsageError, match="s3sync reads S3: https://host/file"):
        s3sync._request(("https://host/file", "~/x"))


# The file in which the job keeps how far it is


PROGRESS = CopyProgress(
    1.0,
    (NodeProgress("demo-0", NodeStage.COPYING, 5, 9, 1.0, "aws", files=1, needed_files=2),),
    plan={"way": "tool", "tool": "aws"},
)
BOTH = CopyProgress(
    160.0,
    (
        NodeProgress("demo-0", NodeStage.DONE, 48, 48, files=4, needed_files=4, duration_s=8.0),
        replace(PROGRESS.nodes[0], host="demo-1", duration_s=159.0),
    ),
    plan=PROGRESS.plan,
)
LOST = HostUnreachable("demo-0", "no route to it" + " and more" * 99)
REPORT = TransferReport(None, (NodeReport("demo-0", error=LOST),), 2.0, plan=PROGRESS.plan)


def read(path):
    [node] = from_json(tuple[CopyNode, ...], path.read_text())
    return node


def test_time_and_rate_of_a_node_that_is_done_stand_while_others_go_on(tmp_path):
    path = tmp_path / "copied.json"
    path.write_text(new_state(["demo-0", "demo-1"]))
    StateFile(path, lambda progress: None).watch(BOTH)
    copied = from_json(tuple[CopyNode, ...], path.read_text())
    done, copying = nodes_of(job(JobState.RUNNING, *copied), "demo")
    assert (done.duration_s, done.rate) == (8.0, 6.0)
    # Another node has begun before it.
    assert copying.duration_s == 159.0
    # What it ends with is not known before its end.
    assert (done.copied.exit_status, copying.copied.exit_status) == (0, None)


@pytest.mark.parametrize("is_full", [False, True])
def test_the_state_file_is_written_also_on_a_full_disk(tmp_path, is_full):
    path = tmp_path / "copied.json"
    path.write_text(new_state(["demo-0"]))
    size = path.stat().st_size
    assert read(path) == CopyNode("demo-0", "connecting")
    if is_full:
        (tmp_path / "copied.json.new").symlink_to("/dev/full")
    seen = []
    state = StateFile(path, seen.append)
    state.watch(PROGRESS)
    assert seen == [PROGRESS]
    now = read(path)
    assert (now.stage, now.tool, now.files, now.bytes) == ("copying", "aws", 1, 5)
    if is_full:
        (tmp_path / "copied.json.new").symlink_to("/dev/full")
    state.finish(REPORT)
    end = read(path)
    assert (end.stage, end.tool, end.exit_status) == ("failed", "aws", 255)
    assert end.message.startswith("no route to it")
    assert path.stat().st_size == size
