"""What a copy has come to, as text, whole."""

from __future__ import annotations

import json

import pytest

from clusterctl.cli.copy import text, view
from clusterctl.copy.plan import SourceSummary
from clusterctl.copy.report import NodeReport, TransferReport
from clusterctl.domain.errors import (
    ClusterctlError,
    CommandFailed,
    HostUnreachable,
    UsageError,
)
from clusterctl.node.relay.messages import Gap

MIB = 1 << 20
SOURCE = SourceSummary(3, 10 * MIB, 80)


def node(index: int, **values) -> NodeReport:
    given = {"files": 3, "received_bytes": 10 * MIB, "duration_s": 20.0, **values}
    return NodeReport(f"demo-{index}", **given)


def report(*nodes: NodeReport, **values) -> TransferReport:
    return TransferReport(**{"source": SOURCE, "duration_s": 20.0, **values}, nodes=nodes)


def failed(index: int, message: str = "no space", hint: str = "") -> NodeReport:
    error = CommandFailed(f"demo-{index}", message, hint)
    return node(index, error=error, files=1, received_bytes=MIB)


def gap(files: int = 3, size: int = 10 * MIB, **values) -> Gap:
    return Gap(files, size, **{"free_bytes": 100 * MIB, **values})


MISSING = ClusterctlError("python3 is not there")
UNREACHABLE = node(9, error=HostUnreachable("demo-9", "no route"), files=0, received_bytes=0)


@pytest.mark.parametrize(
    ("nodes", "line"),
    [
        ([node(0), node(1), node(2)], "demo-[0-2]: 3 files, 10.0 MiB in 20 s"),
        ([node(0, files=1, received_bytes=8)], "demo-0: 1 file, 8 B in 20 s"),
        ([node(0, files=1, received_bytes=0)], "demo-0: 1 file, 0 B in 20 s"),
        (
            [node(0, files=0, received_bytes=0), node(1, files=0, received_bytes=0)],
            "demo-[0-1]: up to date (3 files, 10.0 MiB), 20 s",
        ),
        (
            [node(0, deleted=1), node(1, deleted=1)],
            "demo-[0-1]: 3 files, 10.0 MiB in 20 s, 1 file deleted",
        ),
        ([node(0), node(1, duration_s=22.0)], "demo-[0-1]: 3 files, 10.0 MiB in 22 s"),
        ([node(0), failed(1)], "demo-0: 3 files, 10.0 MiB in 20 s"),
        ([node(0), node(1, files=2)], ""),
        ([node(0), node(1, duration_s=200.0)], ""),
        ([failed(0)], ""),
        ([], ""),
    ],
)
def test_nodes_that_are_alike_are_one_line(nodes, line):
    assert text.node_line(report(*nodes)) == line
    has_good = any(node.error is None for node in nodes)
    assert bool(text.node_table(report(*nodes))) is (has_good and not line)


def test_nodes_that_are_not_are_a_table():
    other = node(2, files=0, received_bytes=0, duration_s=1.0, deleted=4)
    assert text.node_table(report(node(0), other, failed(3))) == [
        ("NODE", "FILES", "BYTES", "TIME", "RATE", "DELETED"),
        ("demo-0", "3", "10.0 MiB", "20 s", "512.0 KiB/s", "0"),
        ("demo-2", "0", "0 B", "1.0 s", "", "4"),
    ]


@pytest.mark.parametrize(
    ("copied", "line"),
    [
        (
            report(node(0, duration_s=19.0), node(1), one_copy_s=19.0, limited_by="link"),
            "20.0 MiB to 2 nodes in 20 s, 1.0 MiB/s; 1.05 times one copy; limited by the link",
        ),
        (
            report(node(0), node(1), limited_by="CPU"),
            "20.0 MiB to 2 nodes in 20 s, 1.0 MiB/s; limited by CPU",
        ),
        (report(node(0), node(1)), "20.0 MiB to 2 nodes in 20 s, 1.0 MiB/s"),
        (
            report(node(0), node(1), one_copy_s=0.3),
            "20.0 MiB to 2 nodes in 20 s, 1.0 MiB/s",
        ),
        (report(node(0), node(1), duration_s=0.0), "20.0 MiB to 2 nodes in 0.0 s"),
        (report(node(0), one_copy_s=20.0), "10.0 MiB to 1 node in 20 s, 512.0 KiB/s"),
        (
            report(node(0), node(1, received_bytes=0), failed(2)),
            "10.0 MiB to 1 node in 20 s, 512.0 KiB/s",
        ),
        (report(node(0, received_bytes=0), node(1, received_bytes=0)), ""),
        (report(), ""),
    ],
)
def test_summary(copied, line):
    assert text.summary(copied) == line


def test_one_line_per_reason():
    copied = report(
        node(0), failed(1), failed(2), failed(3, "read-only\n", "remount it"), UNREACHABLE
    )
    assert text.failure_lines(copied) == [
        "demo-[1-2]: no space",
        "demo-3: read-only\\n (hint: remount it)",
        "demo-9: no route",
    ]


@pytest.mark.parametrize(
    ("messages", "lines"),
    [
        (
            ["did not answer in time at 10.0.0.1:22", "did not answer in time at 10.0.0.2:22"],
            ["demo-[0-1]: did not answer in time at its address:22"],
        ),
        (["demo-0 hangs", "demo-1 hangs"], ["demo-[0-1]: it hangs"]),
        (["demo-0 hangs", "demo-11 hangs"], ["demo-0: demo-0 hangs", "demo-1: demo-11 hangs"]),
        (["at 10.0.0.1:22", "at 10.0.0.1:22"], ["demo-[0-1]: at 10.0.0.1:22"]),
        (["at 10.0.0.1:22", "no route"], ["demo-0: at 10.0.0.1:22", "demo-1: no route"]),
        (["1.2.3.4.5", "1.2.3.4.6"], ["demo-0: 1.2.3.4.5", "demo-1: 1.2.3.4.6"]),
    ],
)
def test_what_differs_by_the_host_alone_is_the_same(messages, lines):
    copied = report(*(failed(index, one) for index, one in enumerate(messages)))
    assert text.failure_lines(copied) == lines


def test_the_source_is_said_once():
    error = HostUnreachable("demo-0", "no route", "look")
    copied = report(failed(1, "the source demo-0: no route"), error=error)
    assert text.failure_lines(copied) == ["demo-1: the source demo-0: no route"]
    assert text.failure_lines(report(node(1), error=error)) == [
        "error: demo-0: no route",
        "  hint: look",
    ]


@pytest.mark.parametrize(
    ("missing", "there", "line"),
    [
        (["demo-2"], 3, "demo-2 is missing: the cluster has 4 nodes, 3 are there"),
        (["demo-1", "demo-2"], 1, "demo-[1-2] are missing: the cluster has 3 nodes, 1 is there"),
    ],
)
def test_missing_nodes(missing, there, line):
    assert text.missing_line(missing, there) == line
    copied = report(node(0), missing=tuple(missing))
    assert (copied.exit_status, copied.ok) == (1, False)
    assert text.failure_lines(copied)[0].startswith(line.partition(" ")[0])


def test_what_was_verified():
    copied = report(node(0), node(1), failed(2), verified=("demo-0", "demo-1"))
    assert text.verified_line(copied) == ("demo-[0-1]: verified, the same content as SRC")
    assert text.verified_line(report(node(0))) == ""
    event = view.report_event(copied)
    assert [node["verified"] for node in event["nodes"]] == [True, True, False]


def test_what_kept_all_of_it_from_being_made():
    copied = report(failed(1), error=ClusterctlError("x", "look at its disk"), source=None)
    assert text.failure_lines(copied) == [
        "error: x",
        "  hint: look at its disk",
    ]


def test_what_was_left_out_and_remarked():
    source = SourceSummary(1, 1, 1, ("a\nb: a socket",))
    copied = report(node(0, warnings=("slow",)), node(1, warnings=("slow",)), source=source)
    assert text.warning_lines(copied) == [
        "left out: a\\nb: a socket",
        "warning: demo-[0-1]: slow",
    ]
    url = report(source=SourceSummary(1, 1, 1, ("left out a//b: no name",)))
    assert text.warning_lines(url) == ["left out: a//b: no name"]
    many = SourceSummary(1, 1, 1, tuple(f"file {number}" for number in range(30)))
    lines = text.warning_lines(report(source=many))
    assert (len(lines), lines[-1]) == (21, "... and 10 more")


def test_moves():
    moves = ("from demo-0 to demo-3",)
    copied = report(node(0), node(1, moves=moves), NodeReport("x", moves=moves, error=MISSING))
    assert text.move_lines(copied) == ["demo-1: from demo-0 to demo-3"]


@pytest.mark.parametrize(
    ("copied", "status"),
    [
        (report(node(0)), 0),
        (report(node(0), failed(1)), 1),
        (report(node(0), failed(1), UNREACHABLE), 255),
        (report(UNREACHABLE), 255),
        (report(source=SourceSummary(1, 1, 1, ("a socket",))), 1),
        (report(error=ClusterctlError("x")), 1),
        (report(error=UsageError("x")), 2),
        (report(node(0), dry_run=True), 0),
        (report(), 0),
    ],
)
def test_exit_status(copied, status):
    assert (copied.exit_status, copied.ok) == (status, not status)
    event = view.report_event(copied)
    assert (event["exit_status"], event["ok"]) == (status, not status)


def test_a_node_that_was_not_given_a_file_is_not_ok():
    event = view.report_event(report(node(0), node(1, left_out=1)))
    assert (event["ok"], event["exit_status"]) == (False, 1)
    assert [one["ok"] for one in event["nodes"]] == [True, False]


def test_a_dry_run():
    copied = report(
        node(0, gap=gap()),
        node(1, gap=gap(free_bytes=5 * MIB)),
        node(2, gap=gap(0, 0, delete=22, delete_names=("a b", "c\nd"))),
        UNREACHABLE,
        dry_run=True,
        plan={"predicted_s": 12.0},
    )
    assert text.gap_table(copied) == [
        ("NODE", "FILES", "BYTES", "DELETE", "FREE"),
        ("demo-[0-1]", "3", "10.0 MiB", "0", "5.0 MiB"),
        ("demo-2", "0", "0 B", "22", "100.0 MiB"),
    ]
    assert text.gap_lines(copied) == [
        "demo-2: 22 files would be deleted",
        "  a b",
        "  c\\nd",
        "  ... and 20 more",
        "demo-1: there is not enough free space",
        "10.0 MiB would be copied to 1 of 3 nodes",
        "it would take about 12 s",
    ]
    assert copied.exit_status == 255
    event = view.report_event(copied)
    assert [node["ok"] for node in event["nodes"]] == [True, False, True, False]


@pytest.mark.parametrize(
    ("gaps", "lines", "status"),
    [
        (
            [gap(), gap(writable=False)],
            ["demo-1: DST cannot be written to", "10.0 MiB would be copied to 1 of 2 nodes"],
            1,
        ),
        (
            [gap(writable=False), gap(free_bytes=0)],
            [
                "demo-1: there is not enough free space",
                "demo-0: DST cannot be written to",
                "0 B would be copied to 0 of 2 nodes",
            ],
            1,
        ),
        ([gap(0, 0, writable=False, free_bytes=0)], ["nothing would be copied"], 0),
        (
            [gap(0, 0, delete=1, writable=False)],
            [
                "demo-0: 1 file would be deleted",
                "demo-0: DST cannot be written to",
                "nothing would be copied",
            ],
            1,
        ),
    ],
)
def test_a_dry_run_where_it_does_not_go(gaps, lines, status):
    nodes = [node(index, gap=one) for index, one in enumerate(gaps)]
    copied = report(*nodes, dry_run=True)
    assert text.gap_lines(copied) == lines
    assert (copied.exit_status, copied.ok) == (status, not status)
    assert report(*nodes).ok


def test_a_dry_run_over_links_that_nobody_knows():
    copied = report(node(0, gap=gap()), dry_run=True, plan={"predicted_s": None})
    assert text.gap_lines(copied) == [
        "10.0 MiB would be copied to 1 of 1 node",
        "how long that would take is not known without --link-rate",
    ]


def test_a_dry_run_with_nothing_to_do():
    copied = report(node(0, gap=gap(0, 0)), dry_run=True, plan={"predicted_s": 1.0})
    assert text.gap_lines(copied) == ["nothing would be copied"]


def test_a_dry_run_that_reached_nobody():
    assert text.gap_lines(report(UNREACHABLE, dry_run=True)) == []
    assert text.gap_table(report(UNREACHABLE, dry_run=True)) == []


PLAN = {
    "way": "chain",
    "order": ["demo-0", "demo-1", "demo-2", "demo-7", "demo-5", "x"],
    "block_bytes": 8 << 20,
    "streams": 6,
    "predicted_s": 50.2,
    "phases": {"set-up": 1.0, "transfer": 49.2, "fill": 0.0},
    "limited_by": "link",
    "why": ["Because."],
}


def test_a_plan():
    assert text.plan_lines(PLAN) == [
        "plan: a chain, each node passes on what it gets",
        "  order: demo-[0-2], demo-7, demo-5, x",
        "  6 connections per hop, blocks of 8.0 MiB",
        "  Because.",
        "  predicted: 50 s (set-up 1.0 s, transfer 49 s); limited by the link",
    ]
    assert text.plan_lines({}) == []


def test_the_plan_of_a_copy_by_the_nodes_own_tools():
    plan = {"way": "tool", "tool": "s5cmd", "why": [], "predicted_s": None}
    assert text.plan_lines(plan) == ["plan: every node pulls by itself, with s5cmd"]


@pytest.mark.parametrize(
    ("predicted", "line"),
    [
        (16.0, "measured: 20 s, +25 % against the 16 s predicted"),
        (20.0, "measured: 20 s, +0 % against the 20 s predicted"),
        (40.0, "measured: 20 s, -50 % against the 40 s predicted"),
        (None, "measured: 20 s"),
    ],
)
def test_predicted_against_measured(predicted, line):
    assert text.measured_line(report(plan={"predicted_s": predicted})) == line


def test_the_event_at_the_end():
    copied = report(node(0, gap=gap()), UNREACHABLE, one_copy_s=19.0, plan=PLAN)
    event = json.loads(json.dumps(view.report_event(copied)))
    assert {key: event[key] for key in ("event", "ok", "exit_status", "one_copy_s", "plan")} == {
        "event": "report",
        "ok": False,
        "exit_status": 255,
        "one_copy_s": 19.0,
        "plan": PLAN,
    }
    good, bad = event["nodes"]
    assert (good["host"], good["ok"], good["bytes"], good["gap"]["files"]) == (
        *("demo-0", True, 10 * MIB, 3),
    )
    assert (bad["ok"], bad["error"], bad["message"]) == (False, "HostUnreachable", "no route")
