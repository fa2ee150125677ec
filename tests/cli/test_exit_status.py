"""docs/exit-status.md has one table of exit statuses, and every command keeps to it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from clusterctl.cli import output
from clusterctl.cli.main import MONITORING, cli, run_command
from clusterctl.domain.errors import AwsError, ClusterctlError, HostUnreachable, UsageError
from tests.cli.test_every_command import DOCUMENTED, argv_of, commands

PAGE = (Path(__file__).parents[2] / "docs" / "exit-status.md").read_text()
TABLE = dict(re.findall(r"^\| (\d+) \| (.*) \|$", PAGE, re.MULTILINE))
# Their NAME may be left out.
NAMED = ("bench", "diagnose", "doctor", "kill")
CAUSES = {
    1: (ClusterctlError("no"), AwsError("no", "X"), OSError(28, "No space left on device")),
    2: (UsageError("no"),),
    130: (KeyboardInterrupt(),),
    255: (HostUnreachable("demo-0", "no"),),
}

BUG = "this is a fault of clusterctl: report it with the lines above"
HINTS = (
    ("list", OSError(28, "No space left on device"), "make room on the disk; then run it again"),
    ("list", OSError(13, "no", "/x"), "see whose file it is, and its mode; then run it again"),
    ("list", OSError(5, "Input/output error"), "run it again"),
    ("jobs", RuntimeError("a bug"), BUG),
    ("down", RuntimeError("a bug"), f"{BUG}; what the command has started may run on, and cost: "),
)


def error_classes(kind=ClusterctlError):
    return [kind, *(one for inner in kind.__subclasses__() for one in error_classes(inner))]


def test_the_table_is_that_of_the_code():
    statuses = {int(status) for status in TABLE}
    assert statuses == DOCUMENTED
    assert {kind.exit_status for kind in error_classes()} <= statuses
    assert set(re.findall("`(.*?)`", TABLE["3"])) == MONITORING


@pytest.mark.parametrize(
    ("status", "cause"),
    [(status, cause) for status, causes in CAUSES.items() for cause in causes],
    ids=lambda one: type(one).__name__,
)
def test_every_command_that_fails_at_once(status, cause, tmp_path, monkeypatch, capsys):
    def fail(**_):
        raise cause

    monkeypatch.setenv("CLUSTERCTL_HOME", str(tmp_path))
    monkeypatch.setattr("clusterctl.cli.app_context.load_settings", fail)
    ran = {
        name: run_command(cli, argv_of(name, command) + ["pair"] * (name in NAMED))
        for name, command in commands()
        if any(one.name == "endpoint_url" for one in command.params)
    }
    output.begin("clusterctl", (), as_json=False)
    assert len(ran) > 40
    failed = {name for name, came in ran.items() if came != status}
    assert failed == (set() if status == 130 else MONITORING - {"explain"})
    assert {ran[name] for name in failed} <= {3}


@pytest.mark.parametrize(("name", "cause", "hint"), HINTS)
def test_what_helps_after_an_error_of_the_system_or_of_clusterctl(
    name, cause, hint, tmp_path, monkeypatch, capsys
):
    def fail(**_):
        raise cause

    monkeypatch.setenv("CLUSTERCTL_HOME", str(tmp_path))
    monkeypatch.setattr("clusterctl.cli.app_context.load_settings", fail)
    run_command(cli, [name] + ["pair"] * (name != "list"))
    shown = capsys.readouterr().err
    assert f"\n  hint: {hint}" in shown
    assert ("clusterctl list" in shown) == (name == "down")
