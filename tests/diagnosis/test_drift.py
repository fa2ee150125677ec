"""Findings on differences between nodes and on faults of each, from generated answers."""

from __future__ import annotations

import copy

import pytest

from clusterctl.cli.doctor import _show
from clusterctl.diagnosis.drift import (
    NOT_CHECKED,
    ExaminedNode,
    clock_of,
    disk_findings,
    drift,
    findings,
)
from clusterctl.domain.findings import Finding, Severity
from clusterctl.node.diagnosis.doctor import failed_tests
from clusterctl.node.facts.disks import FileSystem
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
    [found] = disk_findings("demo-1", FileSystem(path, 100, 0, 40, 100, 90, False), fills)
    assert [text for text in advised if text not in found.hint] == []
    assert [text for text in not_advised if text in found.hint] == []


CARD = {
    "bus": "00000000:17:00.0",
    "ecc": {},
    "remap_failed": False,
    "remap_pending": False,
    "throttled": [],
}
SYSTEM = {"path": "/", "size_bytes": 100, "free_bytes": 60, "used_bytes": 40, "readonly": False}
SAID = {
    "system": {"hostname": "", "kernel": "6.8.0-1024-aws", "cpus": 96},
    "limits": {"nofile": 65536, "memlock_bytes": None},
    "interfaces": [{"name": "ens32", "address": "", "mtu": 9001, "state": "up"}],
    "efa": [],
    "kernel_log": [],
    "gpus": {"driver": "580.95.05", "cuda": "13.0", "gpus": [CARD, CARD]},
    "nvlink": {},
    "filesystems": [{**SYSTEM, "inodes": 100, "inodes_free": 90}],
    "versions": {"mpirun": "mpirun (Open MPI) 5.0.11", "horovod": "0.28.1", "tensorflow": "2.15.1"},
    "scripts": {"train.sh": "aa", "train.py": "bb"},
    "errors": {},
}


def nodes(number, **changes):
    """Return the answers of equal nodes, with `changes` by index."""
    made = []
    for index in range(number):
        said = copy.deepcopy(SAID)
        said["system"]["hostname"] = f"ip-10-0-0-{index + 4}"
        said["interfaces"][0]["address"] = f"10.0.0.{index + 4}/20"
        for path, value in changes.get(f"n{index}", {}).items():
            *way, last = path.split("/")
            at = said
            for name in way:
                at = at[int(name)] if isinstance(at, list) else at[name]
            at[int(last) if isinstance(at, list) else last] = value
        made.append(ExaminedNode(f"demo-{index}", "p4d.24xlarge", f"10.0.0.{index + 4}", said, 2))
    return made


def xid(number, text="pid='<unknown>'"):
    line = f"NVRM: Xid (PCI:0000:17:00): {number}, {text}"
    return {"kernel_log": [{"age_s": 60.0, "text": line}]}


WITH_ERRORS = {**CARD, "ecc": {"volatile_dram_uncorrectable": 2, "aggregate_dram_uncorrectable": 9}}


def test_nodes_that_are_alike_have_no_findings():
    assert findings(nodes(4)) == []
    assert drift(nodes(4)).differing == ()


@pytest.mark.parametrize(
    ("changes", "checks", "words"),
    [
        ({"gpus/driver": "570.1"}, ["drift.driver"], "driver: 570.1, most have 580.95.05"),
        ({"versions/horovod": "0.27"}, ["drift.horovod"], "horovod: 0.27, most have 0.28.1"),
        ({"scripts/train.py": "cc"}, ["drift.scripts"], "most nodes: train.py"),
        ({"interfaces/0/mtu": 1500}, ["drift.mtu"], "MTU: 1500, most have 9001"),
        ({"gpus/gpus": [CARD]}, ["gpu.count"], "nvidia-smi sees 1 GPU, its type has 2"),
        ({"gpus/gpus/1": WITH_ERRORS}, ["gpu.ecc"], "GPU 1 (00000000:17:00.0)"),
        ({"gpus/gpus/1": {**CARD, "remap_failed": True}}, ["gpu.remap"], "could not be remapped"),
        ({"gpus/gpus/0": {**CARD, "throttled": ["hw_thermal_slowdown"]}}, ["gpu.throttled"], "hw"),
        ({"nvlink": {"1": [3, 5]}}, ["gpu.nvlink"], "GPU 1: NVLink 3, 5 inactive"),
        ({"fabric_manager": "failed"}, ["drift.fabric", "gpu.fabric"], "NVSwitch carries nothing"),
        ({"dcgm": ["PCIe: slow"]}, ["gpu.dcgm"], "dcgmi diag -r 1: PCIe: slow"),
        (xid(79), ["gpu.xid"], "Xid 79 of GPU 0000:17:00, 1 min 00 s ago: the GPU has fallen"),
        (xid(13), ["gpu.xid"], "the program's own fault"),
        (xid(999), ["gpu.xid"], "not in our list"),
        ({"limits/nofile": 256}, ["drift.nofile", "limits.nofile"], "256 of open files"),
        ({"filesystems/0/free_bytes": 0}, ["disk.full"], "/ is 100 % full, 0 B free"),
        ({"filesystems/0/inodes_free": 1}, ["disk.inodes.full"], "99 % of its inodes"),
        ({"errors": {"mount /data": "no answer within 5 s"}}, ["fact.hangs"], "/data: the file"),
        ({"versions/horovod_error": "/x/mpi_lib.so: undefined symbol: _ZN"}, ["env.mismatch"],
         "cannot be loaded: mpi_lib.so: undefined symbol: _ZN"),
        ({"unreached": {"10.0.0.4": "Permission denied"}}, ["ssh.mesh"], "to demo-0 (10.0.0.4)"),
        ({"unreached": {"10.0.9.9": "a node that is silent itself"}}, [], ""),
    ],
)  # fmt: skip
def test_one_node_of_four(changes, checks, words):
    found = findings(nodes(4, n2=changes))
    assert sorted({one.check_id for one in found}) == checks
    assert all(one.host == "demo-2" for one in found)
    assert not checks or any(words in one.message for one in found), found


def test_of_two_that_differ_the_head_nodes_value_is_the_norm():
    [found] = findings(nodes(2, n1={"gpus/driver": "570.1"}))
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
    timed = [
        ExaminedNode(**{**vars(node), "clock_offset_s": offset_s, "clock_error_s": 0.1})
        for node, offset_s in zip(nodes(3), offsets_s)
    ]
    assert [(one.check_id, one.host) for one in findings(timed)] == found


def test_a_clock_is_off_by_what_the_way_does_not_explain():
    # Sent at 100, received at 102. The node's clock was at 200.4 to 200.8: 1.6 s were on the way.
    offset_s, error_s = clock_of(100.0, 102.0, {"first_s": 200.4, "last_s": 200.8})
    assert (round(offset_s, 6), round(error_s, 6)) == (99.6, 0.8)


def test_twins_of_one_name_are_both_named():
    found = findings(nodes(3, n2={"system/hostname": "ip-10-0-0-4"}))
    assert [(one.check_id, one.host) for one in found] == [
        ("hostname.duplicate", "demo-0"),
        ("hostname.duplicate", "demo-2"),
    ]


def test_the_table_shows_what_differs_and_marks_what_few_have(capsys):
    _show(drift(nodes(3, n1={"gpus/driver": "570.1"}, n2={"system/cpus": 48})), False)
    assert capsys.readouterr().out == (
        "NODE    CPUS  DRIVER\n"
        "demo-0  96    580.95.05\n"
        "demo-1  96    570.1*\n"
        "demo-2  48*   580.95.05\n"
        "the same on all 3 nodes: TYPE p4d.24xlarge, KERNEL 6.8.0-1024-aws, GPUS 2, CUDA 13.0, "
        "MPIRUN 5.0.11, TENSORFLOW 2.15.1, HOROVOD 0.28.1, SCRIPTS "
        + drift(nodes(1)).norms["SCRIPTS"]
        + ", MTU 9001, MPI IF ens32, NCCL IF ens32, EFA 0, NOFILE 65536, MEMLOCK unlimited\n"
    )


def test_what_fails_in_dcgm_of_version_3_and_4():
    test = {"name": "PCIe", "results": [{"gpu_id": "0", "status": "Fail", "warnings": "slow link"}]}
    fine = {"name": "Denylist", "results": [{"status": "Pass"}]}
    old = {"DCGM GPU Diagnostic": {"test_categories": [{"category": "HW", "tests": [fine, test]}]}}
    assert failed_tests(old) == ["PCIe: slow link"]
    result = {"entity_id": 0, "status": "Fail", "warnings": [{"error_id": 7, "warning": "slow"}]}
    new = {
        "DCGM Diagnostic": {"test_categories": [{"tests": [{"name": "pcie", "results": [result]}]}]}
    }
    assert failed_tests(new) == ["pcie: slow"]
    assert failed_tests({"tests": [fine]}) == []


def test_what_could_not_be_checked_is_not_called_well():
    unknown = Finding(NOT_CHECKED, Severity.WARNING, "kernel_log: not permitted", "demo-0")
    warning = Finding("clock.skew", Severity.WARNING, "late", "demo-1")
    broken = Finding("gpu.count", Severity.ERROR, "gone", "demo-2")
    told = [(), (warning,), (warning, unknown), (unknown, broken)]
    assert [DoctorReport((), (), found).exit_status for found in told] == [0, 1, 3, 2]


@pytest.mark.parametrize(("why", "word"), [("Permission denied", "up NAME"), ("timed out", "ping")])
def test_the_advice_on_a_login_fits_its_cause(why, word):
    [found] = findings(nodes(4, n2={"unreached": {"10.0.0.4": why}}))
    assert word in found.hint
