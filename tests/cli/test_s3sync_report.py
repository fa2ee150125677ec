"""The lines that report syncs to a user."""

from __future__ import annotations

import json
from dataclasses import replace
from unittest import mock

import pytest

from clusterctl.cli.s3sync import _request
from clusterctl.cli.s3sync_report import follow, show_cancelled, show_records, show_started
from clusterctl.copy.s3sync import SyncRecord, SyncState
from clusterctl.domain.errors import HostUnreachable, UsageError
from clusterctl.domain.results import FanoutResult, HostOutcome
from clusterctl.node.relay.messages import Gap, Listed
from clusterctl.operations.s3sync import StartedSync, SyncFailed

RECORD = SyncRecord(
    "demo-0",
    "20261121-200000-abcd",
    SyncState.SUCCEEDED,
    ("s3://b",),
    "~/data",
    2.0,
    exit_status=0,
    files=0,
    bytes=0,
    listed=Listed(),
    gap=Gap(),
)
LEFT_OUT = {"state": SyncState.INCOMPLETE, "left_out": 1, "why": "1 file was left out"}


def nodes(*records):
    return FanoutResult(tuple(HostOutcome(one.host, value=[one]) for one in records))


def followed(listed, as_json):
    """`follow` of nodes that end at once."""
    ends = tuple(replace(one, value=one.value and one.value[0]) for one in listed.outcomes)
    with mock.patch("clusterctl.cli.s3sync_report.follow_sync", lambda *_: FanoutResult(ends)):
        return follow(None, (), "demo", RECORD.sync_id, as_json)


@pytest.mark.parametrize(
    ("more", "shown", "status"),
    [
        ({"files": 2, "listed": Listed(files=5), "gap": Gap(files=5)}, ["succeeded", " 2/5 "], 0),
        ({"listed": Listed(files=3)}, ["succeeded", "0/0, 3 were there"], 0),
        (LEFT_OUT | {"listed": Listed(files=3)}, ["done, 1 left out", "0/0, 3 were there"], 1),
        ({"state": SyncState.FAILED, "why": "no space"}, ["failed"], 1),
        ({"state": SyncState.RUNNING, "files": None}, ["running"], 0),
    ],
)
def test_a_row_says_how_far_it_is_and_what_was_there(capsys, more, shown, status):
    record = replace(RECORD, **more)
    assert show_records(nodes(record), as_json=False) == status
    out, err = capsys.readouterr()
    for text in shown:
        assert text in out
    assert record.why in err


@pytest.mark.parametrize("show", [show_records, show_cancelled, followed])
def test_what_was_left_out_and_who_failed_is_told_to_programs(show, capsys):
    failed = HostOutcome("demo-1", error=HostUnreachable("demo-1", "no route"))
    records = nodes(replace(RECORD, **LEFT_OUT)).outcomes
    assert show(FanoutResult((*records, failed)), as_json=True) == 255
    told, lost = json.loads(capsys.readouterr().out)
    assert (told["state"], told["left_out"]) == ("incomplete", 1)
    assert (lost["host"], lost["error"]) == ("demo-1", "HostUnreachable")


def test_where_nothing_ran_nothing_is_said_to_have_ended(capsys):
    ended = replace(RECORD, state=SyncState.CANCELLED, was_running=True)
    failed = replace(RECORD, state=SyncState.FAILED)
    records = [ended, *(replace(failed, host=f"demo-{n}") for n in (1, 2))]
    assert show_cancelled(nodes(*records), as_json=False) == 0
    assert capsys.readouterr().out == "demo-0: cancelled\ndemo-[1-2]: nothing runs there\n"


def test_what_failed_at_once_is_not_said_to_run(capsys):
    outcome = HostOutcome("demo-0", error=SyncFailed("demo-0", "S3 refuses s3://b/a", "a hint"))
    started = StartedSync("ID", "s5cmd", FanoutResult((outcome,)))
    assert show_started(started, "demo", as_json=False) == 1
    assert capsys.readouterr().err == "demo-0: S3 refuses s3://b/a (hint: a hint)\n"


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
        _request(("s3://bucket/x", destination), "auto", None, None)


@pytest.mark.parametrize(
    ("given", "meant"), [("", "~"), ("~", "~"), ("~/x", "~/x"), ("/x", "/x"), ("x/y", "~/x/y")]
)
def test_where_a_destination_is(given, meant):
    assert _request(("s3://bucket/x", given), "auto", None, None).destination == meant
