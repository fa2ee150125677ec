"""Facts are read at the same time. One that hangs, dies or fails loses nothing but itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Optional

import pytest

from clusterctl.node.facts.report import (
    FactReading,
    FactReport,
    FactRequest,
    ReportRequest,
    collect,
    deadline,
    for_each,
)
from clusterctl.node.record import from_data, name_of, to_data
from tests.programs import completed


@deadline(0.5)
def hangs() -> int:
    time.sleep(600)
    return 0


def dies() -> int:
    os._exit(3)


def fails() -> float:
    return 1 / 0


def large(size: int) -> str:
    return "x" * size


def nothing() -> Optional[int]:
    return None


@for_each("path", lambda: ["/a", "/b"])
def folder(path: str) -> str:
    if path == "/b":
        raise OSError("gone")
    return path


@for_each("path", lambda: [b"\xff".decode()])
def place(path: str) -> str:
    return path


def report_of(*facts, within_s=None, **arguments):
    """Return the report of these facts, after its way through JSON."""
    requests = [FactRequest(name_of(one), arguments.get(one.__name__, {})) for one in facts]
    sent = json.dumps(to_data(collect(ReportRequest(tuple(requests), within_s))))
    return from_data(FactReport, json.loads(sent)).converted(facts)


def test_each_fact_is_read_on_its_own():
    report = report_of(hangs, dies, fails, large, nothing, folder, large={"size": 300_000})
    assert len(report.get(large)) == 300_000
    assert (report.get(nothing), report.has(nothing)) == (None, True)
    assert (report.get(fails), report.has(fails)) == (None, False)
    assert list(report.all(folder)) == ["/a"]
    assert {one.label: (one.error, one.timed_out) for one in report.failed()} == {
        "hangs": ("no answer within 0.5 s", True),
        "dies": ("its process died", False),
        "fails": ("ZeroDivisionError: division by zero", False),
        "folder /b": ("OSError: gone", False),
    }
    assert [one.label for one in report.failed(dies, folder)] == ["dies", "folder /b"]


def test_values_that_cannot_be_read_are_an_error_of_their_fact_alone():
    report = report_of(place, nothing)
    assert report.has(nothing)
    [failed] = report.failed()
    assert (failed.label, failed.error.split(":")[0]) == ("place", "UnicodeDecodeError")


def test_an_argument_of_another_type_is_an_error_of_its_fact_alone():
    report = report_of(large, nothing, large={"size": "7"})
    assert report.has(nothing)
    [failed] = report.failed()
    assert failed.error == "RecordError: expected an integer, got '7'"


def test_a_value_of_another_type_is_an_error_of_its_fact_alone():
    readings = (
        FactReading(name_of(large), "large", 7),
        FactReading(name_of(nothing), "nothing", 8),
        FactReading("elsewhere:unknown", "unknown", 9),
    )
    report = FactReport(0.0, 0.0, readings).converted([large, nothing])
    assert report.get(nothing) == 8
    assert [one.error for one in report.failed()] == ["unexpected value: expected a string, got 7"]


def test_a_fact_that_hangs_holds_no_output_open():
    """SSH waits until no process has the program's output open. No process is left, either."""
    name = f"hangs-{os.getpid()}"
    text = (
        "import time; from clusterctl.node.facts import report\n"
        f"def hangs(): open('/proc/self/comm', 'w').write('{name}'); time.sleep(600)\n"
        "report.hangs = hangs\n"
        "one = report.FactRequest('clusterctl.node.facts.report:hangs')\n"
        "print(report.collect(report.ReportRequest((one,), 0.5)).readings[0].error)"
    )
    done = completed([sys.executable, "-c", text], check=True)
    assert done.stdout == "no answer within 0.5 s\n", done.stderr
    left = subprocess.run(["pgrep", "-x", name], capture_output=True, check=False)
    assert left.stdout == b""


@pytest.mark.all
def test_a_request_may_shorten_the_deadlines():
    [failed] = report_of(hangs, within_s=0.1).failed()
    assert failed.error == "no answer within 0.1 s"
