"""Findings on differences between nodes and on faults of each, from generated reports."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

import pytest

from clusterctl.cli.doctor import _show
from clusterctl.diagnosis.drift import NOT_CHECKED, Examined, check, compare, disk_findings
from clusterctl.domain.cluster import Node, NodeState
from clusterctl.domain.findings import Finding, Severity
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
from clusterctl.node.facts.network import (
    BYTES,
    NO_VERDICT,
    UNRESPONSIVE,
    EfaCard,
    Interface,
    efa,
    efa_cards,
    interfaces,
    unreached,
)
from clusterctl.node.facts.report import FactReading, FactReport
from clusterctl.node.facts.software import mpirun_on_path, scripts, versions
from clusterctl.node.facts.system import KernelLine, System, kernel_log, limits, system
from clusterctl.node.record import name_of
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
COUNTS = {**dict.fromkeys(BYTES, 0), UNRESPONSIVE: 7}
CARDS_OF_EFA = tuple(EfaCard(f"efa_{n}", {**COUNTS, "rx_bytes": n << 40}) for n in range(4))
NO_SYMBOL = {"horovod_error": "/x/mpi_lib.so: undefined symbol: _ZN"}


def test_nodes_that_are_alike_have_no_findings():
    assert check(nodes(4)) == []
    assert compare(nodes(4)).differing == ()


# What one of four nodes has, and the checks that find it. tests/test_findings.py prints them.
CHANGES = [
    (changed(gpus, driver="570.1"), "drift.driver"),
    (changed(system, kernel="5.15", cpus=48), "drift.cpus drift.kernel"),
    (changed(versions, horovod="0.27"), "drift.horovod"),
    (changed(versions, mpirun="mpirun (Open MPI) 4.1.4"), "drift.mpirun"),
    ({scripts: {"train.sh": "aa", "train.py": "cc"}}, "drift.scripts"),
    ({interfaces: (replace(CARD_NAME, mtu=1500),)}, "drift.mtu"),
    ({interfaces: (CARD_NAME, replace(CARD_NAME, name="ib0"))}, "net.interface"),
    (with_cards(CARD), "gpu.count"),
    (with_cards(CARD, replace(CARD, ecc=DRAM)), "gpu.ecc"),
    (with_cards(CARD, replace(CARD, remap_failed=True)), "gpu.remap"),
    (with_cards(replace(CARD, remap_pending=True), CARD), "gpu.remap"),
    (with_cards(replace(CARD, throttled=("hw_thermal_slowdown",)), CARD), "gpu.throttled"),
    ({nvlink: {"1": (3, 5)}}, "gpu.nvlink"),
    ({fabric_manager: "failed"}, "gpu.fabric"),
    ({dcgm: ("PCIe: slow",)}, "gpu.dcgm"),
    *((xid(number), "gpu.xid") for number in (13, 43, 46, 48, 54, 64, 74, 79, 110, 136, 145, 151)),
    *((xid(number), "gpu.xid") for number in (154, 999)),
    ({kernel_log: xid(79)[kernel_log] * 3}, "gpu.xid"),
    ({efa_cards: CARDS_OF_EFA}, "efa.counters efa.idle"),
    (changed(limits, nofile=256), "limits.nofile"),
    (changed(mount, free_bytes=0), "disk.full"),
    (changed(mount, free_bytes=0, path="/data"), "disk.full"),
    (changed(mount, free_bytes=3, inodes_free=5), "disk.crowded disk.inodes.crowded"),
    (changed(mount, inodes_free=1), "disk.inodes.full"),
    (changed(mount, path="/data", readonly=True, kind="ext4"), "disk.readonly"),
    (changed(mount, path="/data", readonly=True, kind="ext4", by_kernel=True), "disk.readonly"),
    (changed(mount, readonly=True, kind="ext4", needed=("~", "/tmp")), "disk.readonly"),
    (changed(mount, path="/tmp", readonly=True, kind="ext4", needed=("/tmp",)), "disk.readonly"),
    (changed(mount, path="/dev/shm", free_bytes=1), "shm.full"),
    ({mount: HANGS}, "fact.hangs"),
    ({mount: REFUSED}, NOT_CHECKED),
    # What could not be read is not also said to differ.
    ({gpus: GPUS_HANG}, "fact.hangs"),
    ({kernel_log: FAILS}, NOT_CHECKED),
    (changed(versions, **NO_SYMBOL), "env.mismatch"),
    (changed(versions, python_variables="PYTHONHOME=/x"), "env.variables"),
    # Nor is what a node lacks.
    ({versions: {}}, "env.missing"),
    ({versions: {"mpirun": "mpirun (Open MPI) 5.0.11"}}, "env.missing"),
    ({interfaces: ()}, "net.interface"),
    ({mpirun_on_path: ("/usr/bin/mpirun", "mpirun (Open MPI) 4.1.4")}, "mpi.two"),
    ({unreached: {"10.0.0.4": "Permission denied"}}, "ssh.mesh"),
    ({unreached: {"10.0.0.4": "connection timed out"}}, "ssh.mesh"),
    ({unreached: {"10.0.0.4": NO_VERDICT}}, NOT_CHECKED),
    ({unreached: {"10.0.9.9": "a node that is silent itself"}}, ""),
]


@pytest.mark.parametrize(("changes", "checks"), CHANGES)
def test_one_node_of_four(changes, checks):
    found = check(nodes(4, n2=changes))
    assert sorted({one.check for one in found}) == checks.split()
    assert all(one.host == "demo-2" for one in found)


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
