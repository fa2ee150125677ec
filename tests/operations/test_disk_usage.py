"""df: the parser on captured output, the real command, and the findings."""

from __future__ import annotations

import json
from pathlib import Path
from unittest import mock

import pytest

from clusterctl.cli.app_context import AppContext
from clusterctl.cli.main import cli, run_command
from clusterctl.diagnosis.drift import disk_findings
from clusterctl.domain.errors import CommandFailed, HostUnreachable
from clusterctl.domain.findings import Severity
from clusterctl.domain.results import CommandResult, FanoutResult, HostOutcome
from clusterctl.node.jobs.parts import remote_mounts
from clusterctl.operations.disk import DiskUsage, parse_df

SAMPLES = Path(__file__).parent / "samples"


def result(stdout):
    return CommandResult("demo-0", "df", 0, stdout, "", 0.1)


def test_a_host_of_the_local_ec2():
    assert parse_df(result((SAMPLES / "df-lab.txt").read_text())) == [
        DiskUsage("demo-0", "/", 12342048 * 1024, 12342048 * 1024, 0),
        DiskUsage("demo-0", "/data", 1048576 * 1024, 1048576 * 1024, 0),
        DiskUsage("demo-0", "/home", 12342048 * 1024, 12340408 * 1024, 1),
    ]


@pytest.mark.parametrize(
    ("text", "mounts"),
    [
        ("/dev/root 100 60 40 60% /\n/dev/root 100 60 40 60% /\n", {"/": 60}),
        ("srv:/ex port/x 100 95 5 95% /data\n", {"/data": 95}),
        ("/dev/a 1 1 0 100% /mnt/with space\n", {"/mnt/with space": 100}),
        ("Welcome\nFilesystem 1024-blocks Used Capacity Mounted on\n/d 9 1 8 12% /\n", {"/": 12}),
    ],
)  # fmt: skip
def test_odd_lines(text, mounts):
    assert {usage.mount: usage.used_percent for usage in parse_df(result(text))} == mounts


def test_output_without_a_file_system_is_an_error():
    with pytest.raises(CommandFailed, match="df said nothing of use"):
        parse_df(result("bash: df: command not found\n"))


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
    room = {"used_bytes": percent << 20, "free_bytes": (100 - percent) << 20}
    inodes = {"inodes": 100, "inodes_free": 50, "readonly": False}
    findings = list(disk_findings("demo-0", {"path": "/data", **room, **inodes}))
    assert [(finding.check_id, finding.severity) for finding in findings] == found
    for finding in findings:
        assert finding.message.startswith(f"/data is {percent} % full, ")
        assert "clusterctl clean-logs NAME" in finding.hint


def test_remote_mounts_are_not_searched_for_staging_folders():
    table = "server:/a /mnt/my\\040data nfs4 rw 0 0\n/dev/nvme0n1p1 / ext4 rw 0 0\n"
    assert remote_mounts(table) == {"/mnt/my data"}


@pytest.mark.parametrize("options", [(), ("--copies",)])
def test_the_json_of_clean_logs_names_hosts_that_failed(options, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CLUSTERCTL_HOME", str(tmp_path))
    failed = HostOutcome("demo-1", error=HostUnreachable("demo-1", "no route"))
    found = FanoutResult((failed,))
    with (
        mock.patch.object(AppContext, "open"),
        mock.patch("clusterctl.operations.clean_logs.find_logs", lambda *_: (None, found)),
        mock.patch("clusterctl.operations.disk.copy_parts", lambda *_, **__: found),
    ):
        assert run_command(cli, ["clean-logs", "demo", "--dry-run", "--json", *options]) == 255
    [told] = json.loads(capsys.readouterr().out)
    assert (told["host"], told["error"]) == ("demo-1", "HostUnreachable")
