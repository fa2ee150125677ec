"""Findings on differences between nodes and on faults of each, from generated reports."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

import pytest

from clusterctl.cli.doctor import _show
from clusterctl.diagnosis.drift import NOT_CHECKED, Examined, check, compare, disk_findings
from clusterctl.domain.cluster import Node, NodeState
from clusterctl.domain.findings import Finding, Severity
from clusterctl.node.agent import name_of
from clusterctl.node.facts.disks import MountedFileSystem, mount
from clusterctl.node.facts.gpus import (
    GpusOfNode,
    GpuState,
    dcgm,
    fabric_manager,
    failed_tests,
    gpus,
    nvlink,
)
from clusterctl.node.facts.network import NO_VERDICT, Interface, efa, interfaces, unreached
from clusterctl.node.facts.report import FactReading, FactReport
from clusterctl.node.facts.software import scripts, versions
from clusterctl.node.facts.system import KernelLine, System, kernel_log, limits, system
from clusterctl.operations.doctor import DoctorReport


@pytest.mark.parametrize(
    ("path", "fills", "advised", "not_advised"),
    [
        ("/", False, ["clusterctl disk NAME);", "--grow", "clean-logs"], []),
        ("/", True, ["--grow", "clean-logs"], ["see what fills it"]),
        ("/data", False, ["clusterctl disk NAME);", "data in /data"], ["--grow"]),
        ("/data", True, ["data in /data"], ["clusterctl disk", "--grow"]),
    ],
)
def test_what_makes_room_on_a_full_file_system(path, fills, advised, not_advised):
    [found] = disk_findings("demo-1", MountedFileSystem(path, 100, 0, 40, 100, 90, False), fills)
    assert [text for text in advised if text not in found.hint] == []
    assert [text for text in not_advised if text in found.hint] == []
    if path != "/":  # jobs and logs are elsewhere, unless --log_dir says otherwise
        assert found.hint.index("data in /data") < found.hint.index("clean-logs")


CARD = GpuState(
    *("00000000:17:00.0", "A100", "GPU-1", 40960.0, 0.0, 0.0, 42.0, 35.0, 1290.0),
    *((), {}, False, False, "None", "", ()),
)
DISK = MountedFileSystem("/", 100, 60, 40, 100, 90, readonly=False)
CARD_NAME = Interface("ens32", 9001, "up", "", "ena", 0, 0)
FACTS = {
    system: System("", "6.8.0-1024-aws", "boot", 60.0, 96, 0.1),
    limits: {"nofile": 65536, "memlock_bytes": None},
    interfaces: (CARD_NAME,),
    efa: (),
    kernel_log: (),
    gpus: GpusOfNode("580.95.05", "13.0", (CARD, CARD)),
    nvlink: {},
    fabric_manager: None,
    mount: DISK,
    versions: {"mpirun": "mpirun (Open MPI) 5.0.11", "horovod": "0.28.1", "tensorflow": "2.15.1"},
    scripts: {"train.sh": "aa", "train.py": "bb"},
}
LAUNCHED = datetime(2026, 11, 26, tzinfo=timezone.utc)


def nodes(number, clocks_s=(), **changes):
    """Return equal nodes, with facts changed by index (n2={fact: value})."""
    made = []
    for index in range(number):
        facts = {
            **FACTS,
            system: replace(FACTS[system], hostname=f"ip-10-0-0-{index + 4}"),
            **changes.get(f"n{index}", {}),
        }
        address = f"10.0.0.{index + 4}"
        facts[interfaces] = tuple(
            replace(one, address=f"{address}/20") for one in facts[interfaces]
        )
        read = [
            FactReading(name_of(fact), fact.__name__, value)
            if not isinstance(value, FactReading)
            else replace(value, function=name_of(fact))
            for fact, value in facts.items()
        ]
        clock_s = clocks_s[index] if clocks_s else 0.0
        report = FactReport(0.0, 1.0, tuple(read), f"demo-{index}", clock_s, 0.1)
        about = (f"demo-{index}", f"i-{index}", NodeState.RUNNING, "p4d.24xlarge", 2, address)
        made.append(Examined(Node(index, *about, None, "us-east-1a", LAUNCHED), report))
    return made


def with_cards(*cards):
    return {gpus: replace(FACTS[gpus], gpus=cards)}


def xid(number, text="pid='<unknown>'"):
    line = f"NVRM: Xid (PCI:0000:17:00): {number}, {text}"
    return {kernel_log: (KernelLine(60.0, line),)}


def changed(fact, **fields):
    value = FACTS[fact]
    return {fact: {**value, **fields} if isinstance(value, dict) else replace(value, **fields)}


HANGS = FactReading("", "mount /data", error="no answer within 5 s", timed_out=True)
GPUS_HANG = FactReading("", "gpus", error="no answer within 5 s", timed_out=True)
VERSIONS_HANG = FactReading("", "versions", error="no answer within 60 s", timed_out=True)
REFUSED = FactReading("", "mount /data", error="PermissionError: not permitted")
FAILS = FactReading("", "kernel_log", error="PermissionError: not permitted")
DRAM = {"volatile_dram_uncorrectable": 2, "aggregate_dram_uncorrectable": 9}
NO_SYMBOL = {"horovod_error": "/x/mpi_lib.so: undefined symbol: _ZN"}


def test_nodes_that_are_alike_have_no_findings():
    assert check(nodes(4)) == []
    assert compare(nodes(4)).differing == ()


@pytest.mark.parametrize(
    ("changes", "checks", "words"),
    [
        (changed(gpus, driver="570.1"), ["drift.driver"], "driver: 570.1, most have 580.95.05"),
        (changed(versions, horovod="0.27"), ["drift.horovod"], "horovod: 0.27, most have 0.28.1"),
        ({scripts: {"train.sh": "aa", "train.py": "cc"}}, ["drift.scripts"],
         "most nodes: train.py"),
        ({interfaces: (replace(CARD_NAME, mtu=1500),)}, ["drift.mtu"], "MTU: 1500, most have 9001"),
        (with_cards(CARD), ["gpu.count"], "nvidia-smi sees 1 GPU, its type has 2"),
        (with_cards(CARD, replace(CARD, ecc=DRAM)), ["gpu.ecc"], "GPU 1 (00000000:17:00.0)"),
        (with_cards(CARD, replace(CARD, remap_failed=True)), ["gpu.remap"],
         "could not be remapped"),
        (with_cards(replace(CARD, throttled=("hw_thermal_slowdown",)), CARD), ["gpu.throttled"],
         "hw"),
        ({nvlink: {"1": (3, 5)}}, ["gpu.nvlink"], "GPU 1: NVLink 3, 5 inactive"),
        ({fabric_manager: "failed"}, ["drift.fabric", "gpu.fabric"], "NVSwitch carries nothing"),
        ({dcgm: ("PCIe: slow",)}, ["gpu.dcgm"], "dcgmi diag -r 1: PCIe: slow"),
        (xid(79), ["gpu.xid"], "Xid 79 of GPU 0000:17:00, 1 min 00 s ago: the GPU has fallen"),
        (xid(13), ["gpu.xid"], "the program's own fault"),
        (xid(999), ["gpu.xid"], "not in our list"),
        (changed(limits, nofile=256), ["drift.nofile", "limits.nofile"], "256 of open files"),
        (changed(mount, free_bytes=0), ["disk.full"], "/ is 100 % full, 0 B free"),
        (changed(mount, inodes_free=1), ["disk.inodes.full"], "99 % of its inodes"),
        ({mount: HANGS}, ["fact.hangs"], "/data: the file system gives no answer"),
        # What could not be read is not also said to differ.
        ({gpus: GPUS_HANG}, ["fact.hangs"], "gpus: no answer within 5 s"),
        ({kernel_log: FAILS}, [NOT_CHECKED], "kernel_log: PermissionError: not permitted"),
        (changed(versions, **NO_SYMBOL), ["env.mismatch"],
         "cannot be loaded: mpi_lib.so: undefined symbol: _ZN"),
        (changed(versions, python_variables="PYTHONHOME=/x"), ["env.variables"], "PYTHONHOME"),
        ({unreached: {"10.0.0.4": "Permission denied"}}, ["ssh.mesh"], "to demo-0 (10.0.0.4)"),
        ({unreached: {"10.0.0.4": NO_VERDICT}}, [NOT_CHECKED], "to demo-0 (10.0.0.4): its sshd"),
        ({unreached: {"10.0.9.9": "a node that is silent itself"}}, [], ""),
    ],
)  # fmt: skip
def test_one_node_of_four(changes, checks, words):
    found = check(nodes(4, n2=changes))
    assert sorted({one.check for one in found}) == checks
    assert all(one.host == "demo-2" for one in found)
    assert not checks or any(words in one.message for one in found), found


@pytest.mark.parametrize(("reading", "hangs"), [(HANGS, True), (REFUSED, False)])
def test_only_a_mount_without_an_answer_is_said_to_hang(reading, hangs):
    [found] = check(nodes(2, n1={mount: reading}))
    assert ("hangs" in found.hint, found.severity is Severity.ERROR) == (hangs, hangs)


def test_gpus_that_could_not_be_read_are_not_counted_as_none():
    assert compare(nodes(2, n1={gpus: GPUS_HANG})).cells["GPUS"] == ("2", "")


def test_a_node_whose_versions_are_not_known_is_no_norm_for_the_other():
    two = nodes(2, n0={versions: VERSIONS_HANG, scripts: replace(VERSIONS_HANG, label="scripts")})
    assert {(one.check, one.host) for one in check(two)} == {("fact.hangs", "demo-0")}
    table = compare(two)
    assert table.norms["HOROVOD"] == "0.28.1"
    assert not any(table.is_odd(name, row) for name in table.cells for row in (0, 1))
    assert "HOROVOD" in table.differing, "it is not the same on all nodes"


def test_of_two_that_differ_the_head_nodes_value_is_the_norm():
    [found] = check(nodes(2, n1=changed(gpus, driver="570.1")))
    assert (found.host, found.message) == ("demo-1", "driver: 570.1, demo-0 has 580.95.05")


@pytest.mark.parametrize(
    ("offsets_s", "found"),
    [
        ((0.0, 0.0, 0.2), []),
        ((0.0, 0.0, 90.0), [("clock.skew", "demo-2")]),
        ((90.0, 90.0, 90.1), [("clock.here", None)]),
        ((90.0, 90.0, -30.0), [("clock.skew", "demo-2"), ("clock.here", None)]),
        ((90.0, 90.0, 0.0), [("clock.skew", "demo-0"), ("clock.skew", "demo-1")]),
        ((90.0, 60.0, -30.0), [("clock.skew", f"demo-{index}") for index in range(3)]),
    ],
)
def test_clocks(offsets_s, found):
    assert [(one.check, one.host) for one in check(nodes(3, offsets_s))] == found


def test_twins_of_one_name_are_both_named():
    found = check(nodes(3, n2=changed(system, hostname="ip-10-0-0-4")))
    assert [(one.check, one.host) for one in found] == [
        ("hostname.duplicate", "demo-0"),
        ("hostname.duplicate", "demo-2"),
    ]


def test_the_table_shows_what_differs_and_marks_what_few_have(capsys):
    two = {"n1": changed(gpus, driver="570.1"), "n2": changed(system, cpus=48, hostname="other")}
    _show(compare(nodes(3, **two)), False)
    assert capsys.readouterr().out == (
        "NODE    CPUS  DRIVER\n"
        "demo-0  96    580.95.05\n"
        "demo-1  96    570.1*\n"
        "demo-2  48*   580.95.05\n"
        "the same on all 3 nodes: TYPE p4d.24xlarge, KERNEL 6.8.0-1024-aws, GPUS 2, CUDA 13.0, "
        "MPIRUN 5.0.11, TENSORFLOW 2.15.1, HOROVOD 0.28.1, SCRIPTS "
        + compare(nodes(1)).norms["SCRIPTS"]
        + ", MTU 9001, MPI IF ens32, NCCL IF ens32, EFA 0, NOFILE 65536, MEMLOCK unlimited\n"
    )


def test_what_fails_in_dcgm_of_version_3_and_4():
    test = {"name": "PCIe", "results": [{"gpu_id": "0", "status": "Fail", "warnings": "slow link"}]}
    fine = {"name": "Denylist", "results": [{"status": "Pass"}]}
    old = {"DCGM GPU Diagnostic": {"test_categories": [{"category": "HW", "tests": [fine, test]}]}}
    assert failed_tests(old) == ("PCIe: slow link",)
    result = {"entity_id": 0, "status": "Fail", "warnings": [{"error_id": 7, "warning": "slow"}]}
    new = {
        "DCGM Diagnostic": {"test_categories": [{"tests": [{"name": "pcie", "results": [result]}]}]}
    }
    assert failed_tests(new) == ("pcie: slow",)
    assert failed_tests({"tests": [fine]}) == ()


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ({"DCGM Diagnostic": {"runtime_error": "no GPU to test"}}, "no GPU to test"),
        ({"tests": [{"name": "pcie", "status": "Pass"}, {"name": "nccl", "status": "Error"}]},
         "nccl"),
        ({"tests": [{"name": "pcie", "results": [{"status": "Skip"}]}]}, "no test has run"),
        ({}, "no test has run"),
    ],
)  # fmt: skip
def test_what_dcgm_has_not_tested_is_not_called_well(found, why):
    with pytest.raises(OSError, match=f"dcgmi diag -r 1: {why}"):
        failed_tests(found)


def test_what_could_not_be_checked_is_not_called_well():
    unknown = Finding(NOT_CHECKED, Severity.WARNING, "kernel_log: not permitted", "demo-0")
    late = Finding("fact.hangs", Severity.WARNING, "versions: no answer within 60 s", "demo-0")
    warning = Finding("clock.skew", Severity.WARNING, "late", "demo-1")
    broken = Finding("gpu.count", Severity.ERROR, "gone", "demo-2")
    told = [(), (warning,), (warning, unknown), (late, warning), (unknown, broken)]
    assert [DoctorReport((), (), found).exit_status for found in told] == [0, 1, 3, 3, 2]


@pytest.mark.parametrize(("why", "word"), [("Permission denied", "up NAME"), ("timed out", "ping")])
def test_the_advice_on_a_login_fits_its_cause(why, word):
    [found] = check(nodes(4, n2={unreached: {"10.0.0.4": why}}))
    assert word in found.hint
