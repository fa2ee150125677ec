"""The output of a comparison of nodes."""

from __future__ import annotations

import json

import pytest

from clusterctl.cli.verify import checking, show
from clusterctl.copy.verify import Discrepancy, HostGroup, Kind
from clusterctl.domain.errors import CommandFailed, HostUnreachable
from clusterctl.domain.results import HostOutcome
from clusterctl.node.relay.messages import Progress, VerifiedTree
from clusterctl.operations.verify import Depth, VerifyReport

COUNTS = {"files": 1152, "folders": 1, "links": 0, "others": 0, "bytes": 3 << 30}
HOSTS = tuple(f"demo-{number}" for number in range(31))
ALL = HostGroup(HOSTS, VerifiedTree("abc", **COUNTS))
ONE = HostGroup(("demo-31",), VerifiedTree("def", **{**COUNTS, "files": 1151}))


def finding(path="a", message="a file", kind=Kind.MISSING):
    return Discrepancy(kind, path, message, ("demo-31",))


FOUND = finding()


def report(groups=(ALL, ONE), findings=(FOUND,), **more):
    return VerifyReport("~/data", tuple(groups), tuple(findings), **more)


def failed(error):
    return report([ALL], [], failures=(HostOutcome("demo-3", error=error),))


@pytest.mark.parametrize(
    ("told", "status"),
    [
        (report([ALL], []), 0),
        (report([ALL], [], compared=Depth(content=True, mtime=True)), 0),
        (report(), 1),
        (report(findings=[finding(str(n)) for n in range(21)]), 1),
        (report(findings=[finding(str(n)) for n in range(3)], findings_left_out=5), 1),
        (failed(HostUnreachable("demo-3", "no route")), 255),
        (failed(CommandFailed("demo-3", "no python")), 1),
        (report([ALL], [finding("ünï a\nb\tc\udcff\x1b[31m x\u202ey")]), 1),
    ],
    ids=["same", "deep", "missing", "many", "more", "unreachable", "failed", "odd"],
)
def test_screens(told, status, capsys, snapshot):
    assert show(told, as_json=False) == status
    said = capsys.readouterr()
    assert f"{said.out}--\n{said.err}" == snapshot


def test_json(capsys):
    odd = finding("new\nline\udcff", "has other content", Kind.DIFFERS)
    error = HostUnreachable("demo-3", "no route")
    full = report(
        findings=[odd],
        findings_left_out=7,
        failures=(HostOutcome("demo-3", error=error),),
        compared=Depth(content=True),
    )
    assert show(full, as_json=True) == 255
    found = json.loads(capsys.readouterr().out)
    assert found["same"] is False
    assert found["compared"] == {"content": True, "mtime": False}
    assert [(group["hosts"][-1], group["total"]["files"]) for group in found["groups"]] == [
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


def test_no_progress_without_a_terminal(capsys):
    with checking() as watch:
        watch("demo-0", Progress())
    assert capsys.readouterr() == ("", "")
