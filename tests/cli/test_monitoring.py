"""The exit status of the commands for monitoring: 1 and 2 are findings, and every failure of the
command itself is 3, whatever its cause."""

from __future__ import annotations

import io
import json
from unittest import mock

import click
import pytest

from clusterctl.cli import output
from clusterctl.cli.app_context import AppContext
from clusterctl.cli.main import MONITORING, cli, run_command
from clusterctl.diagnosis.evidence import Evidence, HostEvidence
from clusterctl.diagnosis.verdict import diagnose
from clusterctl.domain import errors
from clusterctl.domain.errors import ClusterctlError
from clusterctl.operations.diagnose import job_of

ON_A_CLUSTER = sorted(MONITORING - {"explain"})
# What begins an operation on a cluster.
FIRST = "status", "open"


def error_classes(kind=ClusterctlError):
    return [kind, *(one for inner in kind.__subclasses__() for one in error_classes(inner))]


def made_up(kind):
    """Return an error without the arguments that its class asks for."""
    error = kind.__new__(kind)
    Exception.__init__(error, "no")
    vars(error).update(message="no", hint="", host="demo-0", code="X", findings=())
    return error


CAUSES = (
    *(made_up(kind) for kind in error_classes() if kind.__module__ == errors.__name__),
    click.UsageError("no"),
    click.FileError("x"),
    OSError(28, "No space left on device"),
    RuntimeError("a bug"),
    RecursionError(),
    MemoryError(),
)


def status_and_object(capsys, argv):
    status = run_command(cli, [*argv, "--json"])
    shown = capsys.readouterr()
    return status, json.loads(shown.out)["exit_status"], shown.err


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("CLUSTERCTL_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield
    output.begin("clusterctl", (), as_json=False)


@pytest.mark.parametrize("command", ON_A_CLUSTER)
@pytest.mark.parametrize("cause", CAUSES, ids=lambda one: type(one).__name__)
def test_whatever_fails_before_there_is_a_result(command, cause, capsys):
    with mock.patch.multiple(AppContext, **dict.fromkeys(FIRST, mock.Mock(side_effect=cause))):
        status, told, said = status_and_object(capsys, [command, "demo"])
    assert (status, told) == (3, 3)
    assert said


@pytest.mark.parametrize(
    "argv",
    [
        ["diagnose", "--no-such"],
        ["diagnose"],
        ["diagnose", "demo", "--region", "nowhere-1", "--lab"],
        ["diagnose", "--from", "no-such-file"],
        ["diagnose", "--from", "damaged"],
        ["diagnose", "demo", "--from", "damaged"],
        ["diagnose", "demo", "--config", "damaged"],
        ["doctor"],
        ["doctor", "demo", "--nodes", "x"],
        ["doctor", "demo", "--lab"],
        ["explain", "no-such-file"],
        ["explain", "empty"],
        ["explain", "--no-such"],
    ],
    ids=" ".join,
)
def test_a_request_that_makes_no_sense_and_files_that_cannot_be_read(argv, capsys, tmp_path):
    (tmp_path / "damaged").write_text("{")
    (tmp_path / "empty").touch()
    assert status_and_object(capsys, argv)[:2] == (3, 3)


@pytest.mark.parametrize(("log", "verdict"), [("fine\n", 3), ("Segmentation fault\n", 2)])
def test_messages_that_cannot_be_written(log, verdict, tmp_path, monkeypatch):
    """What was found counts more."""
    (tmp_path / "log").write_text(log)
    full = io.TextIOWrapper(open("/dev/full", "wb", buffering=0), write_through=True)  # noqa: PTH123, SIM115
    monkeypatch.setattr("sys.stderr", full)
    with mock.patch("clusterctl.cli.explain.launched_here", return_value=False):
        status = run_command(cli, ["explain", "log"])
        output.note("x")
        assert output.close_streams(status) == verdict


def test_a_result_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "log").write_text("fine\n")
    full = io.TextIOWrapper(open("/dev/full", "wb", buffering=0), write_through=True)  # noqa: PTH123, SIM115
    monkeypatch.setattr("sys.stdout", full)
    assert run_command(cli, ["explain", "log"]) == 3


def test_help_is_no_failure(capsys):
    assert [run_command(cli, [name, "--help"]) for name in sorted(MONITORING)] == [0, 0, 0]


@pytest.mark.parametrize("job_id", [None, "20261123-004105-3f2a"])
def test_a_head_node_that_does_not_answer_is_an_error_whatever_job_was_meant(job_id):
    head = HostEvidence(index=0, host="demo-0", error="no answer within 4 s")
    hosts = [head, HostEvidence(index=1, host="demo-1")]
    found = diagnose(Evidence("demo", job=job_of(None, hosts, job_id), hosts=tuple(hosts)))
    assert (found.exit_status, found.check) == (2, "host.silent")
    assert found.verdict == "demo-0 gives no answer: no answer within 4 s"
