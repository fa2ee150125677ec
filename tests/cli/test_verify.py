"""What a comparison of nodes prints."""

from __future__ import annotations

import json

import pytest

from clusterctl.cli.verify import checking, compared, report_lines, show, shown
from clusterctl.copy.verify import Alike, Discrepancy, Kind, NodeTotal
from clusterctl.domain.errors import CommandFailed, HostUnreachable
from clusterctl.domain.results import HostOutcome
from clusterctl.operations.verify import Depth, VerifyReport

COUNTS = {
    "files": 1152,
    "folders": 1,
    "links": 0,
    "others": 0,
    "bytes": 3 << 30,
}
HOSTS = tuple(f"demo-{number}" for number in range(31))
ALL = Alike(HOSTS, NodeTotal("demo-0", "abc", COUNTS))
ONE = Alike(("demo-31",), NodeTotal("demo-31", "def", {**COUNTS, "files": 1151}))


def finding(path="a", message="a file", kind=Kind.MISSING):
    return Discrepancy(kind, path, message, ("demo-31",))


FOUND = finding()


def report(groups=(ALL, ONE), findings=(FOUND,), **more):
    return VerifyReport("~/data", tuple(groups), tuple(findings), **more)


def test_the_same(capsys):
    assert show(report([ALL], []), Depth(), as_json=False) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out == (
        "NODES             FILES  FOLDERS  BYTES\n"
        "demo-[0-30] (31)  1152   1        3.0 GiB\n"
        "the same on all: names, sizes, modes, links; content was not read (--content)\n"
    )


def test_findings(capsys):
    assert show(report(), Depth(), as_json=False) == 1
    assert capsys.readouterr().out.splitlines()[1:] == [
        "demo-[0-30] (31)  1152   1        3.0 GiB",
        "demo-31           1151   1        3.0 GiB",
        "compared with demo-[0-30]:",
        "missing on demo-31: a: a file",
    ]


@pytest.mark.parametrize(
    ("number", "more", "last"),
    [
        (20, 0, "missing on demo-31: 19: a file"),
        (21, 0, "and 1 more (--json has 21 of them)"),
        (3, 5, "and 5 more (--json has 3 of them)"),
        (25, 100, "and 105 more (--json has 25 of them)"),
    ],
)
def test_so_many_and_no_more(number, more, last):
    found = [finding(str(n)) for n in range(number)]
    lines = report_lines(report(findings=found, more=more), Depth())
    assert lines[-1] == last
    assert len(lines) <= 22


@pytest.mark.parametrize(
    ("error", "status"),
    [(HostUnreachable("demo-3", "no route"), 255), (CommandFailed("demo-3", "no python"), 1)],
)
def test_a_host_that_said_nothing(capsys, error, status):
    failed = report([ALL], [], failures=(HostOutcome("demo-3", error=error),))
    assert show(failed, Depth(), as_json=False) == status
    said = capsys.readouterr()
    assert said.err == f"demo-3: {error.message}\n"
    assert "the same" not in said.out


def test_json(capsys):
    odd = finding("new\nline\udcff", "has other content", Kind.DIFFERS)
    error = HostUnreachable("demo-3", "no route")
    full = report(findings=[odd], more=7, failures=(HostOutcome("demo-3", error=error),))
    assert show(full, Depth(content=True), as_json=True) == 255
    found = json.loads(capsys.readouterr().out)
    assert found["same"] is False
    assert found["compared"] == {"content": True, "mtime": False}
    assert [(group["hosts"][-1], group["files"]) for group in found["groups"]] == [
        ("demo-30", 1152),
        ("demo-31", 1151),
    ]
    assert found["findings"] == [
        {
            "kind": "differs",
            "path": "new\nline\udcff",
            "message": "has other content",
            "hosts": ["demo-31"],
        }
    ]
    assert found["findings_left_out"] == 7
    assert found["failures"][0]["error"] == "HostUnreachable"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("plain ünï", "plain ünï"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("\udcff\x1b[31m", "\\xff\\x1b[31m"),
        ("x\u202ey", "x\\u202ey"),
    ],
)
def test_a_path_is_one_line_without_tricks(path, text):
    assert shown(path) == text


@pytest.mark.parametrize(
    ("depth", "has"),
    [
        (Depth(content=True), "all content"),
        (Depth(mtime=True), "times"),
    ],
)
def test_what_was_compared(depth, has):
    assert has in compared(depth)
    assert ("was not read" in compared(depth)) is not depth.content


def test_no_progress_without_a_terminal():
    with checking() as watch:
        assert watch is None
