"""The complete output of a copy: each report, each state of progress, and the streams.

Renew the screens with `pytest tests/cli/copy/test_shown.py --snapshot-update`, and read the diff.
"""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from clusterctl.cli import output
from clusterctl.cli.copy import text, view
from clusterctl.cli.copy.options import CopyOptions
from clusterctl.copy.plan import SourceSummary
from clusterctl.copy.report import CopyProgress, NodeProgress, NodeReport, NodeStage, TransferReport
from clusterctl.domain.errors import ClusterctlError, CommandFailed, HostUnreachable, UsageError
from clusterctl.node.record import to_data
from clusterctl.node.relay.messages import Gap
from clusterctl.operations.disk import SlowDisk

MIB = 1 << 20
PLAN = {
    "way": "chain",
    "order": ["demo-0", "demo-1", "demo-2", "demo-7", "demo-5", "x"],
    "block_bytes": 8 << 20,
    "streams": 6,
    "predicted_s": 16.0,
    "phases": {"set-up": 1.0, "transfer": 15.0, "fill": 0.0},
    "limited_by": "link",
    "reasons": ["Because."],
}
TOOL = {"way": "tool", "tool": "s5cmd", "reasons": [], "predicted_s": None}


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch):
    monkeypatch.setattr(output, "is_live", lambda: False)
    output.begin("clusterctl", (), False)  # or else hints would repeat options of an earlier test


# The report at the end


def came(index: int, **values) -> NodeReport:
    given = {"files": 3, "received_bytes": 10 * MIB, "duration_s": 20.0, **values}
    return NodeReport(f"demo-{index}", **given)


def failed(index: int, message: str = "no space", hint: str = "") -> NodeReport:
    error = CommandFailed(f"demo-{index}", message, hint)
    return came(index, error=error, files=1, received_bytes=MIB)


def all_failed(*messages: str) -> TransferReport:
    return report(*(failed(index, message) for index, message in enumerate(messages)))


def nothing(index: int) -> NodeReport:
    return came(index, files=0, received_bytes=0)


def report(*nodes: NodeReport, **values) -> TransferReport:
    source = SourceSummary(3, 10 * MIB, 80)
    return TransferReport(**{"source": source, "duration_s": 20.0, **values}, nodes=nodes)


def left_out(*names: str, nodes: tuple[NodeReport, ...] = ()) -> TransferReport:
    return report(*nodes, source=SourceSummary(1, 1, 1, names, len(names)))


def dry(*gaps: tuple, predicted_s: float | None = 12.0, more=()) -> TransferReport:
    """Return the report of a dry run. Gaps are (files, bytes, further fields)."""
    nodes = [
        came(index, gap=Gap(files, size, **{"free_bytes": 100 * MIB, **fields}))
        for index, (files, size, fields) in enumerate(gaps)
    ]
    return report(*nodes, *more, dry_run=True, plan={"predicted_s": predicted_s})


UNREACHABLE = came(9, error=HostUnreachable("demo-9", "no route"), files=0, received_bytes=0)
NO_SOURCE = HostUnreachable("demo-0", "no route", "look")
MOVES = ("from demo-0 to demo-3",)
LACKS = (3, 10 * MIB, {})
REPORTS = {
    "alike": report(came(0), came(1, duration_s=22.0), came(2)),
    "one small file": report(came(0, files=1, received_bytes=8)),
    "one empty file": report(came(0, files=1, received_bytes=0)),
    "files and links": report(came(0, links=1), came(1, links=1)),
    "only links": report(came(0, files=0, received_bytes=0, links=2)),
    "up to date": report(nothing(0), nothing(1)),
    "deleted": report(came(0, deleted=1), came(1, deleted=1)),
    "other numbers of files": report(came(0), came(1, files=2)),
    "other durations": report(came(0), came(1, duration_s=200.0)),
    "a table": report(came(0), came(2, files=0, received_bytes=0, duration_s=1.0, deleted=4),
        failed(3)),
    "no nodes": report(),
    "limited by the link": report(came(0, duration_s=19.0), came(1), one_copy_s=19.0,
        limited_by="link"),
    "limited by CPU": report(came(0), came(1), limited_by="CPU"),
    "a copy too short to compare": report(came(0), came(1), one_copy_s=0.3),
    "in no time": report(came(0), came(1), duration_s=0.0),
    "one has it already": report(came(0), nothing(1), failed(2)),
    "a line per reason": report(came(0), failed(1), failed(2),
        failed(3, "read-only\n", "remount it"), UNREACHABLE),
    # Errors that differ only in the host's address count as equal.
    "other addresses": all_failed("no answer at 10.0.0.1:22", "no answer at 10.0.0.2:22"),
    "users at addresses": all_failed("no key for root@10.0.0.1", "no key for root@10.0.0.2"),
    "own names": all_failed("demo-0 hangs", "demo-1 hangs"),
    "names of others": all_failed("demo-0 hangs", "demo-11 hangs"),
    "the same address": all_failed("at 10.0.0.1:22", "at 10.0.0.1:22"),
    "an address and none": all_failed("at 10.0.0.1:22", "no route"),
    "no addresses": all_failed("1.2.3.4.5", "1.2.3.4.6"),
    "nobody reached": report(UNREACHABLE),
    "the source": report(failed(1, "the source demo-0: no route"), error=NO_SOURCE),
    "the source alone": report(came(1), error=NO_SOURCE),
    "no manifest": report(failed(1), error=ClusterctlError("x", "look at its disk"), source=None),
    "a request": report(error=UsageError("x")),
    "one missing": report(*(came(index) for index in (0, 1, 3)), missing=("demo-2",)),
    "two missing": report(came(0), missing=("demo-1", "demo-2")),
    "verified": report(came(0), came(1), failed(2), verified=("demo-0", "demo-1")),
    "verified among the nodes": replace(left_out("s3://b/k//x: no name", nodes=(came(0), came(1))),
        verified=("demo-0", "demo-1"), reread=False),
    "verified alone": report(came(0), failed(1), verified=("demo-0",), reread=False),
    "left out and remarked": left_out("a\nb: a socket",
        nodes=(came(0, warnings=("slow",)), came(1, warnings=("slow",)))),
    "left out of a URL": left_out("left out a//b: no name"),
    "much left out": left_out(*(f"file {number}" for number in range(30))),
    "not given a file": report(came(0), came(1, left_out=1)),
    "moves": report(came(0), came(1, moves=MOVES),
        NodeReport("x", moves=MOVES, error=ClusterctlError("gone"))),
    "a dry run": dry(LACKS, (3, 10 * MIB, {"free_bytes": 5 * MIB}),
        (0, 0, {"delete": 22, "delete_names": ("a b", "c\nd")}), more=(UNREACHABLE,)),
    "dry: not writable": dry(LACKS, (3, 10 * MIB, {"writable": False})),
    "dry: no room": dry((3, 10 * MIB, {"writable": False}), (3, 10 * MIB, {"free_bytes": 0})),
    "dry: nothing, not writable": dry((0, 0, {"writable": False, "free_bytes": 0})),
    "dry: deletes, not writable": dry((0, 0, {"delete": 1, "writable": False})),
    "dry: unknown links": dry(LACKS, predicted_s=None),
    "dry: nothing to do": dry((0, 0, {}), predicted_s=1.0),
    "dry: nobody reached": dry(more=(UNREACHABLE,)),
    "as planned": report(came(0), plan=PLAN),
    "faster than planned": report(came(0), plan={**PLAN, "predicted_s": 40.0}),
    "links that nobody knows": report(came(0), plan={**PLAN, "predicted_s": None}),
    "the nodes' own tools": report(came(0), plan=TOOL),
}  # fmt: skip


def test_missing_nodes():
    assert text.missing_line(["demo-1", "demo-2"], 1) == (
        "demo-[1-2] are missing: the cluster has 3 nodes, 1 is there"
    )


@pytest.mark.parametrize("name", REPORTS)
def test_a_report(name, capsys, snapshot):
    told = REPORTS[name]
    with view.showing(CopyOptions(show_plan="way" in told.plan)) as shown:
        pass
    status = shown.finish(told)
    out, err = capsys.readouterr()
    event = json.loads(json.dumps(to_data(view.report_event(told))))
    assert (event["exit_status"], event["ok"]) == (status, not status)
    nodes = {node["host"]: node["ok"] for node in (*event["nodes"], *event["failures"])}
    bad = [node.host for node in told.nodes if not nodes[node.host]]
    assert {node["host"] for node in event["failures"]} == {node.host for node in told.failed}
    assert f"{out}--\n{err}exit {status}, not ok: {bad}\n" == snapshot


def test_the_event_at_the_end(snapshot):
    node = came(0, gap=Gap(3, 10 * MIB))
    copied = report(node, UNREACHABLE, one_copy_s=19.0, plan=PLAN, verified=("demo-0",))
    assert json.dumps(to_data(view.report_event(copied)), indent=1) == snapshot


# Progress

CONNECTING, COMPARING, COPYING = NodeStage.CONNECTING, NodeStage.COMPARING, NodeStage.COPYING
DONE, FAILED = NodeStage.DONE, NodeStage.FAILED


def node(index: int, stage: NodeStage = COPYING, come=0, needed=0, **values) -> NodeProgress:
    return NodeProgress(f"demo-{index}", stage, **{"bytes": come, "needed_bytes": needed, **values})


def progress(*nodes: NodeProgress, **values) -> CopyProgress:
    return CopyProgress(**{"elapsed_s": 7.0, **values}, nodes=nodes)


HALF = {"come": MIB, "needed": 2 * MIB, "rate": MIB}
WIDE = progress(
    *(node(n, come=57 << 30, needed=140 << 30, rate=2.5 * (1 << 30)) for n in range(2)),
    left_s=30.0,
    slowest_link=25e9 / 8 * 1.0735,
)
STATES = {
    "none": progress(elapsed_s=0.0),
    "all stages": progress(
        node(0, DONE, 97 * MIB, 100 * MIB, upstream="head", rate=9.0),
        node(1, COPYING, 25 * MIB, 100 * MIB, rate=5.0 * MIB, upstream="demo-0"),
        node(2, COPYING, 0, 100 * MIB, note="waits for demo-1"),
        node(3, COMPARING),
        node(4, CONNECTING, note="asks again"),
        node(5, FAILED, 10 * MIB, 10 * MIB + 1, note="no space"),
    ),
    "many": progress(*(node(n, DONE, MIB, MIB) for n in range(3)),
        *(node(n, COPYING, MIB, 4 * MIB, rate=MIB / 2) for n in range(3, 30))),
    "failed": progress(node(0, FAILED, needed=MIB)),
    "done and failed": progress(node(0, DONE, MIB, MIB), node(1, FAILED, needed=MIB)),
    "before the bytes": progress(node(0, CONNECTING), node(1, COMPARING)),
    "done": progress(node(0, DONE), node(1, DONE)),
    "half": progress(node(0, **HALF), left_s=1.0),
    "the slowest link": progress(node(0, **HALF), node(1, COPYING, 0, 2 * MIB, rate=MIB),
        node(2, DONE, 2 * MIB, 2 * MIB, rate=MIB), slowest_link=2.0 * MIB * 1538 / 1448),
    "some connect": progress(*(node(n, COPYING, MIB, 2 * MIB) for n in range(2)),
                             *(node(n, CONNECTING) for n in (2, 3))),
    "silent and slow": progress(node(0, **HALF), node(1, needed=2 * MIB, silent=True),
        node(2, needed=2 * MIB, slow=True), left_s=1.0),
    "odd names": progress(node(0, note="new\nline\r\t\x1b]0;title\x07 not-\udcff-utf8 ünï 'x'")),
}  # fmt: skip


@pytest.mark.parametrize("name", STATES)
def test_a_state_on_the_way(name, snapshot):
    rows = ["  ".join(row).rstrip() for row in text.rows(STATES[name])]
    assert "\n".join([*rows, text.total_line(STATES[name])]) == snapshot


def test_the_line_in_total_fits(snapshot):
    lines = {width: text.total_line(WIDE, width) for width in (120, 80, 70, 50, 10)}
    assert all(len(lines[width]) <= width for width in (120, 80, 70, 50))
    assert "\n".join(lines.values()) == snapshot


@pytest.mark.parametrize("count", [0, 1, 20, 21, 200])
def test_no_more_rows_than_fit(count):
    found = text.rows(progress(*(node(index) for index in range(count))))
    assert len(found) == (count if count <= 20 else 1)


def test_a_short_copy_has_no_stages_and_a_stage_that_lasts_one_line():
    def told(*story):
        stages = text.Stages()
        return [
            stages.lines(progress(*map(node, range(9), at), elapsed_s=when)) for when, *at in story
        ]

    short = (CONNECTING, COMPARING, COMPARING, COPYING, COPYING, DONE)
    assert told(*((0.5 * number, one, one) for number, one in enumerate(short))) == [[]] * 6
    assert told(
        (0.0, COPYING, COMPARING, CONNECTING, FAILED),
        (1.0, COPYING, COPYING, CONNECTING, FAILED),
        (2.9, COPYING, COPYING, CONNECTING, FAILED),
        (3.0, COPYING, COPYING, CONNECTING, FAILED),
        (4.0, COPYING, COPYING, COPYING, FAILED),
        (9.0, DONE, COPYING, COPYING, FAILED),
        (12.0, DONE, COPYING, COPYING, FAILED),
        (20.0, DONE, DONE, COPYING, FAILED),
    ) == [[], [], [], ["demo-[0-1]: copying"], [], [], ["demo-0: done"], []]


def test_failures_and_relinks_are_told_while_others_go_on():
    before = progress(node(0), node(1), node(2, FAILED), node(3))
    now = progress(*(node(index, FAILED, note=f"full {index}") for index in range(3)), node(3))
    assert text.failure_and_relink_lines(before, now) == ["demo-[0-1]: failed"]
    assert text.failure_and_relink_lines(now, now) == []
    over = progress(*(node(index, FAILED) for index in range(3)), node(3, DONE))
    assert text.failure_and_relink_lines(before, over) == []
    before = progress(node(0, upstream=""), node(1, upstream="demo-0"), node(2, upstream="demo-1"))
    now = progress(
        node(0, upstream="head"), node(1, DONE), node(2, upstream="demo-0", note="demo-1 is slow")
    )
    assert text.failure_and_relink_lines(before, now) == [
        "demo-2: pulls from demo-0 now, not from demo-1 (demo-1 is slow)"
    ]


def test_events_of_progress():
    source = SourceSummary(1, 2, 3, ("odd",))
    now = progress(node(0, COPYING, 1, 2, rate=3.7, upstream="head", note="n"), source=source,
                   left_s=1.23456)  # fmt: skip
    one = {"host": "demo-0", "stage": "copying", "bytes": 1, "needed_bytes": 2, "rate": 3.7,
           "upstream": "head", "note": "n", "silent": False, "slow": False, "files": None,
           "needed_files": None, "duration_s": 0.0}  # fmt: skip
    assert to_data(view.ProgressEvent(**vars(now))) == {
        "event": "progress",
        "elapsed_s": 7.0,
        "left_s": 1.23456,
        "slowest_link": None,
        "source": {"files": 1, "bytes": 2, "blocks": 3, "warnings": ["odd"], "left_out": 0},
        "nodes": [one],
    }
    assert to_data(view.node_events(None, now)) == [{"event": "node", "elapsed_s": 7.0, **one}]
    further = progress(node(0, COPYING, 2, 2, rate=9.0, upstream="head", note="n"))
    assert view.node_events(now, further) == []
    relinked = progress(node(0, COPYING, 2, 2, upstream="demo-1", note="n"))
    assert [event.upstream for event in view.node_events(now, relinked)] == ["demo-1"]


# A whole copy, and what it writes to which stream


def at(elapsed_s: float, *stages: NodeStage, have: int = 0, plan=None) -> CopyProgress:
    nodes = (
        node(index, stage, have, 4 * MIB, rate=MIB, note="full" if stage is FAILED else "")
        for index, stage in enumerate(stages)
    )
    return progress(*nodes, elapsed_s=elapsed_s, left_s=3.0, plan=plan or {})


STORY = [
    at(0.0, CONNECTING, CONNECTING),
    at(1.0, COPYING, COPYING, plan=PLAN),
    *(at(when, COPYING, COPYING, have=MIB) for when in (4.0, 5.0, 6.0)),
    at(9.9, COPYING, COPYING, have=2 * MIB),
    at(10.0, DONE, FAILED, have=4 * MIB),
]
END = report(
    came(0, received_bytes=4 * MIB, duration_s=10.0),
    failed(1, "no space", "make some"),
    source=SourceSummary(2, 4 * MIB, 4, ("odd: a socket",), 1),
    plan=PLAN,
)


def told(options: CopyOptions, story=STORY, slow_disk=None) -> int:
    with view.showing(options) as shown:
        shown.slow_disk = slow_disk
        for now in story:
            shown.watch(now)
    return shown.finish(END)


@pytest.mark.parametrize(
    ("options", "story", "slow_disk"),
    [
        (CopyOptions(), STORY, None),
        (CopyOptions(), [at(0.0, COPYING, COPYING), at(1.0, FAILED, COPYING)], None),
        (CopyOptions(show_plan=True), STORY, SlowDisk("a", MIB / 64, 8 * MIB)),
        (CopyOptions(quiet=True), STORY, None),
    ],
    ids=["lines", "a failure under way", "plan and slow disk", "quiet"],
)
def test_a_whole_copy(options, story, slow_disk, capsys, snapshot):
    assert told(options, story, slow_disk) == 1
    out, err = capsys.readouterr()
    assert f"{out}--\n{err}" == snapshot


def test_events(capsys):
    assert told(CopyOptions(as_json=True, show_plan=True)) == 1
    out, err = capsys.readouterr()
    events = [json.loads(line) for line in out.splitlines()]
    nodes = ["node", "node"]
    assert [event["event"] for event in events] == [
        *[*nodes, "progress"] * 2, *["progress"] * 4, *nodes, "report"
    ]  # fmt: skip
    assert [event["stage"] for event in events[-3:-1]] == ["done", "failed"]
    assert (events[-1]["exit_status"], events[-1]["plan"], err) == (1, PLAN, "")
    slow = SlowDisk("demo-0", MIB / 64, 8 * MIB)
    told(CopyOptions(as_json=True, quiet=True), STORY[:2], slow)
    [line] = capsys.readouterr().out.splitlines()
    [found] = json.loads(line)["findings"]
    assert (found["check"], found["host"]) == ("copy.ebs", "demo-0")


@pytest.mark.parametrize("width", [120, 80])
def test_a_drawing_fits_its_terminal(width, monkeypatch, capsys, snapshot):
    screen = io.StringIO()
    console = Console(file=screen, width=width, force_terminal=False)
    monkeypatch.setattr(output, "is_live", lambda: True)
    nodes = (node(n, COPYING, 57 << 30, 140 << 30, rate=2.7e9, silent=n == 2) for n in range(4))
    with view.showing(CopyOptions()) as shown:
        console.print(output.RowsView(shown.rows))
        for now in (*STORY, progress(*nodes, left_s=30.0, slowest_link=3.1e9)):
            shown.watch(now)
        console.print(output.RowsView(shown.rows))
        shown.report = END
    assert capsys.readouterr().err == ""
    assert "\n".join(line.rstrip() for line in screen.getvalue().splitlines()) == snapshot


def test_a_request_that_is_refused_has_a_report(capsys):
    for as_json in (False, True):
        with pytest.raises(UsageError), view.showing(CopyOptions(as_json=as_json)):
            raise UsageError("there is nothing at x", "name an existing file")
    out, err = capsys.readouterr()
    expected = {"event": "report", "ok": False, "exit_status": 2, "nodes": []}
    error = {"error": "UsageError", "message": "there is nothing at x"}
    assert {**expected, **error}.items() <= json.loads(out).items()
    assert err == ""


@pytest.mark.parametrize(
    ("dry_run", "story", "goes_on", "says"),
    [
        (False, STORY, True, True),
        (False, STORY, False, False),
        (False, [], True, False),
        (True, STORY, True, False),
    ],
)
def test_ctrl_c_says_that_it_can_go_on(dry_run, story, goes_on, says, capsys):
    options = CopyOptions(dry_run=dry_run)
    with pytest.raises(KeyboardInterrupt), view.showing(options, goes_on) as shown:
        for now in story:
            shown.watch(now)
        raise KeyboardInterrupt
    assert ("the same command continues this copy" in capsys.readouterr().err) is says
