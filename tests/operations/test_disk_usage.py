"""The findings about disks, and the JSON of `clean-logs`."""

from __future__ import annotations

import json
from unittest import mock

import pytest

from clusterctl.cli.app_context import AppContext
from clusterctl.cli.main import cli, run_command
from clusterctl.diagnosis.drift import disk_findings
from clusterctl.domain.errors import HostUnreachable
from clusterctl.domain.findings import Severity
from clusterctl.domain.results import FanoutResult, HostOutcome
from clusterctl.node.facts.disks import FileSystem


@pytest.mark.parametrize(
    ("percent", "found"),
    [
        (90, []),
        (91, [("disk.crowded", Severity.WARNING)]),
        (97, [("disk.crowded", Severity.WARNING)]),
        (98, [("disk.full", Severity.ERROR)]),
        (100, [("disk.full", Severity.ERROR)]),
    ],
)
def test_findings(percent, found):
    system = FileSystem("/data", 100 << 20, (100 - percent) << 20, percent << 20, 100, 50, False)
    findings = list(disk_findings("demo-0", system))
    assert [(finding.check_id, finding.severity) for finding in findings] == found
    for finding in findings:
        assert finding.message.startswith(f"/data is {percent} % full, ")
        assert "clusterctl clean-logs NAME" in finding.hint


@pytest.mark.parametrize("options", [(), ("--copies",)])
def test_the_json_of_clean_logs_names_hosts_that_failed(options, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CLUSTERCTL_HOME", str(tmp_path))
    failed = HostOutcome("demo-1", error=HostUnreachable("demo-1", "no route"))
    found = FanoutResult((failed,))
    with (
        mock.patch.object(AppContext, "open"),
        mock.patch("clusterctl.operations.clean_logs.find_logs", lambda *_: (None, found)),
        mock.patch("clusterctl.operations.disk.discard_copies", lambda *_, **__: found),
    ):
        assert run_command(cli, ["clean-logs", "demo", "--dry-run", "--json", *options]) == 255
    [told] = json.loads(capsys.readouterr().out)
    assert (told["host"], told["error"]) == ("demo-1", "HostUnreachable")
