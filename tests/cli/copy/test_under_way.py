"""A copy under way as text and as events, whole."""

from __future__ import annotations

import pytest

from clusterctl.cli.copy import text, view
from clusterctl.copy.plan import SourceSummary
from clusterctl.copy.report import CopyProgress, NodeProgress, NodeStage

MIB = 1 << 20
COPYING, DONE, FAILED = NodeStage.COPYING, NodeStage.DONE, NodeStage.FAILED
CONNECTING, COMPARING = NodeStage.CONNECTING, NodeStage.COMPARING


def node(index: int, stage: NodeStage = COPYING, **values) -> NodeProgress:
    return NodeProgress(f"demo-{index}", stage, **values)


def progress(*nodes: NodeProgress, **values) -> CopyProgress:
    return CopyProgress(**{"elapsed_s": 7.0, **values}, nodes=nodes)


def test_a_row_per_node():
    now = progress(
        node(0, DONE, bytes=97 * MIB, needed_bytes=100 * MIB, upstream="head", rate=9.0),
        node(1, bytes=25 * MIB, needed_bytes=100 * MIB, rate=5.0 * MIB, upstream="demo-0"),
        node(2, bytes=0, needed_bytes=100 * MIB, note="waits for demo-1"),
        node(3, COMPARING),
        node(4, CONNECTING, note="asks again"),
        node(5, FAILED, bytes=10 * MIB, needed_bytes=10 * MIB + 1, note="no space"),
    )
    assert text.rows(now) == [
        ("demo-0", "done", "100 %", "#" * 10, "100.0 MiB", "", "", ""),
        (
            *("demo-1", "copying", " 25 %", "#" * 2 + "." * 8, "25.0 MiB"),
            *("5.0 MiB/s", "15 s", "from demo-0"),
        ),
        (
            *("demo-2", "copying", "  0 %", "." * 10, "0 B"),
            *("0 B/s", "", "waits for demo-1"),
        ),
        ("demo-3", "comparing", "", "", "", "", "", ""),
        ("demo-4", "connecting", "", "", "", "", "", "asks again"),
        (
            "demo-5",
            "failed",
            " 99 %",
            "#" * 9 + ".",
            "10.0 MiB",
            "",
            "",
            "no space",
        ),
    ]


def test_many_nodes_by_stage():
    nodes = [node(i, DONE, bytes=MIB, needed_bytes=MIB) for i in range(3)]
    nodes += [node(i, bytes=MIB, needed_bytes=4 * MIB, rate=MIB / 2) for i in range(3, 30)]
    assert text.rows(progress(*nodes)) == [
        (
            *("demo-[3-29]", "copying", " 25 %", "#" * 2 + "." * 8),
            *("27.0 MiB", "13.5 MiB/s", "6.0 s", "27 of 30"),
        ),
        ("demo-[0-2]", "done", "100 %", "#" * 10, "3.0 MiB", "", "", "3 of 30"),
    ]


@pytest.mark.parametrize("count", [0, 1, 20, 21, 200])
def test_no_more_rows_than_fit(count):
    found = text.rows(progress(*(node(index) for index in range(count))))
    assert len(found) == (count if count <= 20 else 1)
    assert {len(row) for row in found} <= {len(text.COLUMNS)}


@pytest.mark.parametrize(
    ("now", "line"),
    [
        (progress(elapsed_s=0.0), "0.0 s"),
        (progress(node(0, FAILED, needed_bytes=MIB)), "1 failed, 7.0 s"),
        (
            progress(node(0, DONE, bytes=MIB, needed_bytes=MIB), node(1, FAILED, needed_bytes=MIB)),
            "1.0 MiB of 1.0 MiB to 1 node (100 %), 7.0 s so far",
        ),
        (progress(node(0, CONNECTING), node(1, COMPARING)), "1 connecting, 1 comparing, 7.0 s"),
        (progress(node(0, DONE), node(1, DONE)), "2 done, 7.0 s"),
        (
            progress(node(0, bytes=MIB, needed_bytes=2 * MIB, rate=MIB), left_s=1.0),
            "1.0 MiB of 2.0 MiB to 1 node (50 %), 1.0 MiB/s, 1.0 s left",
        ),
        (
            progress(
                node(0, bytes=MIB, needed_bytes=2 * MIB, rate=MIB),
                node(1, bytes=0, needed_bytes=2 * MIB, rate=MIB),
                node(2, DONE, bytes=2 * MIB, needed_bytes=2 * MIB, rate=MIB),
                slowest_link=2.0 * MIB * 1538 / 1448,
            ),
            "3.0 MiB of 6.0 MiB to 3 nodes (50 %), "
            "2.0 MiB/s (1.0 MiB/s each, 50 % of the slowest link), 7.0 s so far",
        ),
        (
            progress(
                *(node(index, bytes=MIB, needed_bytes=2 * MIB) for index in range(2)),
                node(2, CONNECTING),
                node(3, CONNECTING),
            ),
            "2.0 MiB of 4.0 MiB to 2 nodes (50 %), 7.0 s so far, demo-[2-3] still connecting",
        ),
        (
            progress(
                node(0, bytes=MIB, needed_bytes=2 * MIB, rate=MIB),
                node(1, needed_bytes=2 * MIB, silent=True),
                node(2, needed_bytes=2 * MIB, slow=True),
                left_s=1.0,
            ),
            "1.0 MiB of 6.0 MiB to 3 nodes (16 %), 1.0 MiB/s, 1.0 s left, "
            "demo-1 silent, demo-2 slow",
        ),
        (
            progress(node(0, bytes=0, needed_bytes=MIB)),
            "0 B of 1.0 MiB to 1 node (0 %), 7.0 s so far",
        ),
    ],
)
def test_the_line_in_total(now, line):
    assert text.total_line(now) == line


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (
            120,
            "114.0 GiB of 280.0 GiB to 2 nodes (40 %), 5.0 GiB/s (2.5 GiB/s each, "
            "85 % of the slowest link), 30 s left",
        ),
        (80, "114.0 GiB of 280.0 GiB (40 %), 2.5 GiB/s each (85 % of the link), 30 s left"),
        (70, "114.0 GiB of 280.0 GiB (40 %), 2.5 GiB/s each, 30 s left"),
        (50, "40 % of 280.0 GiB, 2.5 GiB/s each, 30 s left"),
        (10, "40 % of 280.0 GiB, 2.5 GiB/s each, 30 s left"),
    ],
)
def test_the_line_in_total_where_it_is_narrow(width, line):
    nodes = [
        node(n, bytes=57 << 30, needed_bytes=140 << 30, rate=2.5 * (1 << 30)) for n in range(2)
    ]
    now = progress(*nodes, left_s=30.0, slowest_link=25e9 / 8 * 1.0735)
    assert text.total_line(now, width) == line


def told(*story: CopyProgress) -> list[list[str]]:
    stages = text.Stages()
    return [stages.lines(now) for now in story]


def test_a_short_copy_has_no_stages():
    story = [
        progress(node(0, stage), node(1, stage), elapsed_s=0.5 * number)
        for number, stage in enumerate((CONNECTING, COMPARING, COMPARING, COPYING, COPYING, DONE))
    ]
    assert told(*story) == [[]] * 6


def test_one_line_for_a_stage_that_lasts():
    def at(elapsed_s: float, *stages: NodeStage) -> CopyProgress:
        return progress(*(node(i, one) for i, one in enumerate(stages)), elapsed_s=elapsed_s)

    assert told(
        at(0.0, COPYING, COMPARING, CONNECTING, FAILED),
        at(1.0, COPYING, COPYING, CONNECTING, FAILED),
        at(2.9, COPYING, COPYING, CONNECTING, FAILED),
        at(3.0, COPYING, COPYING, CONNECTING, FAILED),
        at(4.0, COPYING, COPYING, COPYING, FAILED),
        at(9.0, DONE, COPYING, COPYING, FAILED),
        at(12.0, DONE, COPYING, COPYING, FAILED),
        at(20.0, DONE, DONE, COPYING, FAILED),
        at(30.0, DONE, DONE, COPYING, FAILED),
    ) == [[], [], [], ["demo-[0-1]: copying"], [], [], ["demo-0: done"], [], []]


def test_failures_are_told_while_others_go_on():
    before = progress(node(0), node(1), node(2, FAILED), node(3))
    now = progress(*(node(index, FAILED, note=f"full {index}") for index in range(3)), node(3))
    assert text.troubles(before, now) == ["demo-[0-1]: failed"]
    assert text.troubles(now, now) == []
    over = progress(*(node(index, FAILED) for index in range(3)), node(3, DONE))
    assert text.troubles(before, over) == []


def test_relinks_are_told_and_first_links_are_not():
    before = progress(node(0, upstream=""), node(1, upstream="demo-0"), node(2, upstream="demo-1"))
    now = progress(
        node(0, upstream="head"), node(1, DONE), node(2, upstream="demo-0", note="demo-1 is slow")
    )
    assert text.troubles(before, now) == [
        "demo-2: pulls from demo-0 now, not from demo-1 (demo-1 is slow)"
    ]


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("plain ünï 'x'", "plain ünï 'x'"),
        ("new\nline\r\t", "new\\nline\\r\\t"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("not-\udcff-utf8", "not-\\xff-utf8"),
        ("", ""),
    ],
)
def test_text_from_elsewhere_stays_on_its_line(given, line):
    assert text.one_line(given) == line


def test_events_of_progress():
    now = progress(
        node(0, bytes=1, needed_bytes=2, rate=3.7, upstream="head", note="n"),
        source=SourceSummary(1, 2, 3, ("odd",)),
        left_s=1.23456,
    )
    one = {
        "host": "demo-0",
        "stage": "copying",
        "bytes": 1,
        "needed_bytes": 2,
        "rate": 4,
        "upstream": "head",
        "note": "n",
        "silent": False,
        "slow": False,
    }
    assert view.progress_event(now) == {
        "event": "progress",
        "elapsed_s": 7.0,
        "left_s": 1.235,
        "slowest_link": None,
        "source": {"files": 1, "bytes": 2, "blocks": 3, "warnings": ("odd",)},
        "nodes": [one],
    }
    assert view.node_events(None, now) == [{"event": "node", "elapsed_s": 7.0, **one}]
    further = progress(node(0, bytes=2, needed_bytes=2, rate=9.0, upstream="head", note="n"))
    assert view.node_events(now, further) == []
    relinked = progress(node(0, bytes=2, needed_bytes=2, upstream="demo-1", note="n"))
    assert [event["upstream"] for event in view.node_events(now, relinked)] == ["demo-1"]
