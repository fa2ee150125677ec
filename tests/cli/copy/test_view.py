"""What a copy prints, and where: lines, a drawing, events, or next to nothing."""

from __future__ import annotations

import io
import json

import pytest

from clusterctl.cli import output
from clusterctl.cli.copy import view
from clusterctl.cli.copy.options import CopyOptions
from clusterctl.copy.plan import SourceSummary
from clusterctl.copy.report import (
    CopyProgress,
    NodeProgress,
    NodeReport,
    NodeStage,
    TransferReport,
)
from clusterctl.domain.errors import CommandFailed, UsageError
from clusterctl.operations.disk import SlowDisk

MIB = 1 << 20
PLAN = {
    "way": "chain",
    "order": ["a", "b"],
    "block_bytes": 1 << 20,
    "streams": 2,
    "predicted_s": 10.0,
    "phases": {"transfer": 10.0},
    "limited_by": "link",
    "why": ["Why."],
}


def at(elapsed_s: float, *stages: NodeStage, have: int = 0, plan=None) -> CopyProgress:
    nodes = tuple(
        NodeProgress(host, stage, have, 4 * MIB, MIB, note="full" if stage is FAILED else "")
        for host, stage in zip("ab", stages)
    )
    return CopyProgress(elapsed_s, nodes, left_s=3.0, plan=plan or {})


CONNECTING, COPYING = NodeStage.CONNECTING, NodeStage.COPYING
DONE, FAILED = NodeStage.DONE, NodeStage.FAILED
STORY = [
    at(0.0, CONNECTING, CONNECTING),
    at(1.0, COPYING, COPYING, plan=PLAN),
    at(4.0, COPYING, COPYING, have=MIB),
    at(5.0, COPYING, COPYING, have=MIB),
    at(6.0, COPYING, COPYING, have=MIB),
    at(9.9, COPYING, COPYING, have=2 * MIB),
    at(10.0, DONE, FAILED, have=4 * MIB),
]
REPORT = TransferReport(
    SourceSummary(2, 4 * MIB, 4, ("odd: a socket",)),
    (
        NodeReport("a", received_bytes=4 * MIB, files=2, duration_s=10.0),
        NodeReport("b", error=CommandFailed("b", "no space", "make some")),
    ),
    11.0,
    plan=PLAN,
)


def told(options: CopyOptions) -> int:
    with view.showing(options) as shown:
        for progress in STORY:
            shown.watch(progress)
        shown.report = REPORT
    return shown.finish()


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch):
    monkeypatch.setattr(output, "is_live", lambda: False)


def test_lines(capsys):
    assert told(CopyOptions()) == 1
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "a: 2 files, 4.0 MiB in 10 s",
        "4.0 MiB to 1 node in 11 s, 372.4 KiB/s",
    ]
    assert err.splitlines() == [
        "a,b: copying",
        "2.0 MiB of 8.0 MiB to 2 nodes (25 %), 2.0 MiB/s (1.0 MiB/s each), 3.0 s left",
        "4.0 MiB of 4.0 MiB to 1 node (100 %), 3.0 s left",
        "left out: odd: a socket",
        "b: no space (hint: make some)",
    ]


def test_a_failure_is_told_as_it_happens_and_explained_once(capsys):
    with view.showing(CopyOptions()) as shown:
        for progress in (
            at(0.0, COPYING, COPYING),
            at(1.0, FAILED, COPYING),
            at(4.0, FAILED, COPYING),
        ):
            shown.watch(progress)
        shown.report = REPORT
    shown.finish()
    assert capsys.readouterr().err.splitlines() == [
        "a: failed",
        "b: copying",
        "left out: odd: a socket",
        "b: no space (hint: make some)",
    ]


def test_the_plan_comes_first_and_the_measurement_last(capsys):
    told(CopyOptions(show_plan=True))
    assert capsys.readouterr().out.splitlines() == [
        "plan: a chain, each node passes on what it gets",
        "  order: a, b",
        "  2 connections per hop, blocks of 1.0 MiB",
        "  Why.",
        "  predicted: 10 s (transfer 10 s); limited by the link",
        "a: 2 files, 4.0 MiB in 10 s",
        "4.0 MiB to 1 node in 11 s, 372.4 KiB/s",
        "measured: 11 s, +10 % against the 10 s predicted",
    ]


def test_a_slow_disk_is_told_before_the_bytes_move(capsys):
    with view.showing(CopyOptions()) as shown:
        shown.slow_disk = SlowDisk("a", MIB / 64, 8 * MIB)
        for progress in STORY:
            shown.watch(progress)
        shown.report = REPORT
    shown.finish()
    [line, *_] = capsys.readouterr().err.splitlines()
    assert "4.0 MiB need 4 min 16 s at least" in line
    with view.showing(CopyOptions(as_json=True, quiet=True)) as shown:
        shown.slow_disk = SlowDisk("a", MIB / 64, 8 * MIB)
        shown.watch(STORY[1])
        shown.report = REPORT
    shown.finish()
    [found] = json.loads(capsys.readouterr().out)["findings"]
    assert (found["check"], found["host"]) == ("copy.ebs", "a")


def test_quiet_says_what_went_wrong(capsys):
    assert told(CopyOptions(quiet=True)) == 1
    assert capsys.readouterr() == ("", "left out: odd: a socket\nb: no space (hint: make some)\n")


def test_events(capsys):
    assert told(CopyOptions(as_json=True, show_plan=True)) == 1
    out, err = capsys.readouterr()
    events = [json.loads(line) for line in out.splitlines()]
    kinds = [event["event"] for event in events]
    assert kinds == [
        *("node", "node", "progress"),
        *("node", "node", "progress"),
        *("progress", "progress", "progress", "progress"),
        *("node", "node", "report"),
    ]
    assert [event["stage"] for event in events if event["event"] == "node"][-2:] == [
        *("done", "failed"),
    ]
    assert (events[-1]["exit_status"], events[-1]["plan"]) == (1, PLAN)
    assert err == ""


def test_quiet_events_are_the_report(capsys):
    told(CopyOptions(as_json=True, quiet=True))
    [line] = capsys.readouterr().out.splitlines()
    assert json.loads(line)["event"] == "report"


def test_a_drawing(monkeypatch, capsys):
    from rich.console import Console

    screen = io.StringIO()
    console = Console(file=screen, width=120, force_terminal=False)
    monkeypatch.setattr(output, "is_live", lambda: True)
    with view.showing(CopyOptions()) as shown:
        console.print(shown)
        for progress in STORY:
            shown.watch(progress)
        console.print(shown)
        shown.report = REPORT
    lines = [line.rstrip() for line in screen.getvalue().splitlines() if line.strip()]
    assert lines == [
        "a  done    100 %  ##########  4.0 MiB",
        "b  failed  100 %  ##########  4.0 MiB      full",
        "4.0 MiB of 4.0 MiB to 1 node (100 %), 3.0 s left",
    ]
    assert capsys.readouterr().err == ""


def test_the_drawing_fits_a_narrow_terminal(monkeypatch):
    from rich.console import Console

    screen = io.StringIO()
    console = Console(file=screen, width=80, force_terminal=False)
    monkeypatch.setattr(output, "is_live", lambda: True)
    nodes = tuple(
        NodeProgress(f"demo-{n}", COPYING, 57 << 30, 140 << 30, 2.7e9, silent=n == 2)
        for n in range(4)
    )
    with view.showing(CopyOptions()) as shown:
        shown.watch(CopyProgress(21.0, nodes, left_s=30.0, slowest_link=3.1e9))
        console.print(shown)
    assert len(screen.getvalue().splitlines()) == 5


def test_a_request_that_is_refused_has_a_report(capsys):
    def refused(options: CopyOptions):
        with pytest.raises(UsageError), view.showing(options):
            raise UsageError("there is nothing at x", "name an existing file")
        return capsys.readouterr()

    assert refused(CopyOptions()) == ("", "")
    [line] = refused(CopyOptions(as_json=True)).out.splitlines()
    report = json.loads(line)
    assert (report["event"], report["ok"], report["exit_status"], report["nodes"]) == (
        *("report", False, 2, []),
    )
    assert (report["error"], report["message"], report["hint"]) == (
        *("UsageError", "there is nothing at x", "name an existing file"),
    )


def test_ctrl_c_says_that_it_can_go_on(capsys):
    def interrupted(options: CopyOptions, *story: CopyProgress) -> str:
        with pytest.raises(KeyboardInterrupt), view.showing(options) as shown:
            for progress in story:
                shown.watch(progress)
            raise KeyboardInterrupt
        return capsys.readouterr().err

    assert "running it again goes on" in interrupted(CopyOptions(), *STORY)
    assert "running it again" not in interrupted(CopyOptions())
    assert "running it again" not in interrupted(CopyOptions(dry_run=True), *STORY)
