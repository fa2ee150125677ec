"""The findings about disks, and the JSON of `clean-logs`."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import pytest

from clusterctl.cli.app_context import AppContext
from clusterctl.cli.main import cli, run_command
from clusterctl.diagnosis.drift import disk_findings
from clusterctl.diagnosis.hostchecks import has_no_room
from clusterctl.diagnosis.verdict import diagnose
from clusterctl.domain.errors import HostUnreachable
from clusterctl.domain.findings import Severity
from clusterctl.domain.results import FanoutResult, HostOutcome
from clusterctl.node.facts import disks
from clusterctl.node.facts.disks import MountedFileSystem, growth, mount
from clusterctl.node.facts.report import FactReading, FactReport
from clusterctl.node.record import from_data, name_of
from clusterctl.operations import disk
from clusterctl.operations.disk import Cleaning, findings_of
from tests.diagnosis.made_up import facts, file_system, job_of, with_host


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
    system = MountedFileSystem(
        "/data", 100 << 20, (100 - percent) << 20, percent << 20, 100, 50, False
    )
    findings = list(disk_findings("demo-0", system))
    assert [(finding.check, finding.severity) for finding in findings] == found
    for finding in findings:
        assert finding.message.startswith(f"/data is {percent} % full, ")
        assert system.used_percent == percent  # as `disk` shows it
        assert "clusterctl clean-logs NAME" in finding.hint


@pytest.mark.parametrize(
    ("source", "kind", "found"),
    [
        ("/dev/nvme1n1", "ext4", ["disk.readonly"]),
        ("tmpfs", "tmpfs", ["disk.readonly"]),
        ("tank/data", "zfs", ["disk.readonly"]),
        ("/dev/loop3", "squashfs", []),
        ("/dev/sr0", "iso9660", []),
        ("fs-1.fsx.us-east-1.amazonaws.com@tcp:/x", "lustre", []),
        ("mountpoint-s3", "fuse", []),
    ],
)
def test_a_file_system_that_is_read_only(source, kind, found):
    system = MountedFileSystem("/data", 100 << 20, 0, 100 << 20, 100, 0, True, source, kind, True)
    assert [one.check for one in disk_findings("demo-0", system)] == found
    assert not has_no_room(system)
    # Somebody has mounted it so: a data set, a container's secrets.
    for path, said in (("/data", [Severity.INFO] * len(found)), ("/secrets", [])):
        meant = disk_findings("demo-0", replace(system, path=path, by_kernel=False))
        assert [one.severity for one in meant if one.check == "disk.readonly"] == said


@pytest.mark.parametrize(
    ("options", "of_all", "is_failed"),
    [("rw", "rw,errors=remount-ro", False), ("rw,noatime", "ro,errors=remount-ro", True)]
    + [("ro", "ro", False), ("ro", "rw", False)],
)
def test_what_the_kernel_has_made_read_only(tmp_path, monkeypatch, options, of_all, is_failed):
    """ext4's errors=remount-ro changes the file system, mount -o ro and a bind the mount."""
    table = tmp_path / "mountinfo"
    table.write_text(f"36 35 259:1 / {tmp_path} {options} shared:1 - ext4 /dev/nvme1n1 {of_all}\n")
    monkeypatch.setattr(disks, "MOUNTINFO", str(table))
    assert disks.mount(str(tmp_path)).lost_writes is is_failed


def test_where_every_job_writes_nothing_may_be_read_only(tmp_path, monkeypatch):
    """A bind mount of a folder of / may be read-only while / is not, and the other way round."""
    table, home = tmp_path / "mountinfo", tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(disks, "MOUNTINFO", str(table))
    read_only = os.statvfs_result([4096, 4096, 9, 9, 9, 9, 9, 9, os.ST_RDONLY, 255])
    monkeypatch.setattr(os, "statvfs", lambda path: read_only)
    root = "36 35 259:1 / / rw - ext4 /dev/nvme1n1 rw\n"
    table.write_text(root + f"37 36 259:1 /h {home} ro - ext4 /dev/nvme1n1 rw\n")
    assert disks.mount_points() == ["/", str(home)]
    assert disks.mount(str(home)).needed == ("~",)
    assert disks.mount("/").needed == ("/tmp",)  # noqa: S108
    table.write_text(root)
    [found] = disk_findings("demo-0", disks.mount("/"))
    assert found.severity is Severity.ERROR
    assert "/ is mounted read-only: no job can write to ~ and /tmp" in found.message
    assert list(disk_findings("demo-0", replace(disks.mount("/"), needed=()))) == []


@pytest.mark.parametrize("path", ["/data", "/dev/shm"])
@pytest.mark.parametrize("free", [0, 60 << 10, 60 << 20, 1 << 30, 3 << 30])
def test_doctor_and_diagnose_have_one_rule(path, free):
    there = file_system(path, free)
    healthy = job_of(quiet_s=1.0)
    seen = with_host(healthy, 2, facts=facts("demo-2", filesystems=[there]))
    causes = [one for one in diagnose(seen).findings if one.check.endswith(".full")]
    told = disk_findings("demo-2", from_data(MountedFileSystem, there))
    errors = [one.message for one in told if one.severity is Severity.ERROR]
    assert [re.sub(r" on demo-2 \(.*?\)", "", one.message) for one in causes] == errors
    assert not any(one.blocks for one in causes)  # the job makes steps


SPACE = MountedFileSystem("/data", 100 << 20, 50 << 20, 50 << 20, 100, 50, False)
LATE, REFUSED = "no answer within 5 s", "PermissionError: [Errno 13] /data"


@pytest.mark.parametrize(
    ("readings", "found"),
    [
        ([(mount, "mount /data", None, LATE), (growth, "growth /data", None, LATE)],
         [("fact.hangs", Severity.ERROR, f"/data: the file system does not answer ({LATE})")]),
        (
            [(mount, "mount /data", None, REFUSED), (growth, "growth /data", None, REFUSED)],
            [
                (
                    "disk.unknown",
                    Severity.WARNING,
                    f"/data: its space could not be measured: {REFUSED}",
                )
            ],
        ),
        ([(mount, "mount /data", SPACE, ""), (growth, "growth /data", None, LATE)],
         [("disk.unknown", Severity.WARNING, f"/data: its growth could not be measured: {LATE}")]),
        (
            [(mount, "mount", None, "OSError: x"), (growth, "growth", None, "OSError: x")],
            [
                (
                    "disk.unknown",
                    Severity.WARNING,
                    "the file systems could not be measured: OSError: x",
                )
            ],
        ),
    ],
)  # fmt: skip
def test_only_a_file_system_that_does_not_answer_hangs(readings, found):
    read = tuple(
        FactReading(name_of(fact), label, value, error, timed_out=error == LATE)
        for fact, label, value, error in readings
    )
    findings = findings_of(FactReport(0.0, 0.0, read, "demo-0"))
    assert [(one.check, one.severity, one.message) for one in findings] == found


@pytest.mark.parametrize("options", [(), ("--copies",)])
def test_the_json_of_clean_logs_names_hosts_that_failed(options, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CLUSTERCTL_HOME", str(tmp_path))
    failed = HostOutcome("demo-1", error=HostUnreachable("demo-1", "no route"))
    found = FanoutResult((failed,))
    with (
        mock.patch.object(AppContext, "open"),
        mock.patch("clusterctl.operations.disk.find_logs", lambda *_: (None, found)),
        mock.patch("clusterctl.operations.disk.discard_copies", lambda *_, **__: found),
    ):
        assert run_command(cli, ["clean-logs", "demo", "--dry-run", "--json", *options]) == 255
    [told] = json.loads(capsys.readouterr().out)["failures"]
    assert (told["host"], told["error"]) == ("demo-1", "HostUnreachable")


@pytest.mark.parametrize(("force", "cleaned"), [(False, ["d-0"]), (True, ["d-0", "d-1"])])
def test_no_node_is_cleaned_while_the_head_node_cannot_say_whether_a_job_runs(
    monkeypatch, force, cleaned
):
    asked = []

    def on(access, targets, cleaning):
        asked.extend(target.host for target in targets)
        error = HostUnreachable("d-0", "cut off")
        return FanoutResult(tuple(HostOutcome(one.host, error=error) for one in targets))

    monkeypatch.setattr(disk, "_on", on)
    nodes = [SimpleNamespace(host="d-0"), SimpleNamespace(host="d-1")]
    access = SimpleNamespace(head=nodes[0], targets=nodes, cluster=SimpleNamespace(name="d"))
    result = disk.clean_logs(access, Cleaning((), (), force=force))
    assert (asked, len(result.failures)) == (cleaned, len(cleaned))
