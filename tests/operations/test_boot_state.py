"""What a reboot must restore: read on a node, and compared."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.domain.errors import CommandFailed
from clusterctl.node.facts import disks
from clusterctl.node.facts.disks import Mounted, mounted
from clusterctl.node.facts.gpus import gpus
from clusterctl.node.facts.report import FactReading, FactReport
from clusterctl.node.facts.system import cloud_init, system
from clusterctl.node.record import name_of
from clusterctl.operations.reboot import BootState, _state, differences, state_of
from tests.local_node import HEAD, LocalNode

MOUNTS = """\
/dev/root / ext4 rw,relatime,discard 0 0
devtmpfs /dev devtmpfs rw 0 0
tmpfs /dev/shm tmpfs rw 0 0
tmpfs /run/user/1000 tmpfs rw 0 0
/dev/loop3 /snap/core22/1663 squashfs ro 0 0
overlay /var/lib/docker/overlay2/1a2b/merged overlay rw 0 0
/dev/mapper/vg.01-lv_ephemeral /opt/dlami/nvme ext4 rw 0 0
/dev/nvme1n1 /data xfs rw 0 0
/dev/nvme2n1 /data xfs rw 0 0
fs-1.fsx.us-east-1.amazonaws.com@tcp:/x /fsx lustre rw 0 0
10.0.0.9:/export /mnt/with\\040blank\\134 nfs4 rw 0 0
tmpfs /mnt/ram tmpfs rw 0 0
systemd-1 /proc/sys/fs/binfmt_misc autofs rw 0 0
cgroup2 /sys/fs/cgroup cgroup2 rw 0 0
"""


def test_real_file_systems_only(tmp_path, monkeypatch):
    (tmp_path / "mounts").write_text(MOUNTS)
    monkeypatch.setattr(disks, "MOUNTS", str(tmp_path / "mounts"))
    facts = {mounted: mounted(), system: system(), cloud_init: 0, gpus: None}
    read = (FactReading(name_of(fact), fact.__name__, value) for fact, value in facts.items())
    found = state_of(FactReport(0.0, 0.0, tuple(read), "demo-0"))
    assert (found.gpus, found.cloud_init) == (0, 0)
    assert {path: (one.source, one.kind) for path, one in found.mounts.items()} == {
        "/": ("/dev/root", "ext4"),
        "/opt/dlami/nvme": ("/dev/mapper/vg.01-lv_ephemeral", "ext4"),
        "/data": ("/dev/nvme2n1", "xfs"),
        "/fsx": ("fs-1.fsx.us-east-1.amazonaws.com@tcp:/x", "lustre"),
        "/mnt/with blank\\": ("10.0.0.9:/export", "nfs4"),
        "/mnt/ram": ("tmpfs", "tmpfs"),
    }


@pytest.mark.parametrize("fact", [system, mounted, cloud_init])
def test_a_fact_that_cannot_be_read_is_no_state(fact):
    late = FactReading(name_of(fact), fact.__name__, error="no answer within 5 s", timed_out=True)
    with pytest.raises(CommandFailed, match="no answer within 5 s"):
        state_of(FactReport(0.0, 0.0, (late,), "demo-0"))


def test_gpus_that_cannot_be_read_are_not_known():
    facts = {mounted: (), system: system(), cloud_init: 0}
    read = (FactReading(name_of(fact), fact.__name__, value) for fact, value in facts.items())
    assert state_of(FactReport(0.0, 0.0, (*read, LATE), "demo-0")).gpus == LATE


@pytest.mark.parametrize("wait", [True, False])
def test_a_real_node(wait, tmp_path):
    report = "<nvidia_smi_log><gpu/></nvidia_smi_log>"
    for name, text in (
        ("nvidia-smi", f"cat >/dev/null; echo '{report}'"),
        ("cloud-init", f"[ \"$*\" = 'status{' --wait' if wait else ''}' ] && exit 2"),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    node = LocalNode(tmp_path, {"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    found = _state(node, HEAD, wait, 240.0)
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert (found.boot_id, found.gpus, found.cloud_init) == (boot_id, 1, 2)
    assert "/" in found.mounts
    assert "/proc" not in found.mounts


ROOT, DATA = Mounted("/", "/dev/root", "ext4"), Mounted("/data", "/dev/nvme1n1", "xfs")
BEFORE = BootState("a", {"/": ROOT, "/data": DATA}, 8, 0)


def with_data(*data: str) -> BootState:
    return replace(BEFORE, mounts={**BEFORE.mounts, "/data": Mounted("/data", *data)})


LATE = FactReading(name_of(gpus), "gpus", error="no answer within 20 s", timed_out=True)
NO_DRIVER = FactReading(name_of(gpus), "gpus", error="OSError: nvidia-smi -q -x: no driver")
NOT_KNOWN = "how many GPUs it has is not known"
WITHOUT_DATA = replace(BEFORE, mounts={"/": BEFORE.mounts["/"]})


@pytest.mark.parametrize(
    ("before", "after", "gpus", "said"),
    [
        (BEFORE, BEFORE, 8, []),
        (WITHOUT_DATA, BEFORE, 8, []),
        (BEFORE, WITHOUT_DATA, 8, ["/data (/dev/nvme1n1) is not mounted again"]),
        # The kernel may number disks differently at each boot.
        (BEFORE, with_data("/dev/nvme2n1", "xfs"), 8, []),
        (BEFORE, with_data("10.0.0.9:/x", "nfs4"), 8,
         ["/data is 10.0.0.9:/x now, not /dev/nvme1n1"]),
        (with_data("10.0.0.9:/x", "nfs4"), with_data("10.0.0.8:/x", "nfs4"), 8,
         ["/data is 10.0.0.8:/x now, not 10.0.0.9:/x"]),
        (BEFORE, replace(BEFORE, gpus=7), 8, ["nvidia-smi sees 7 of 8 GPUs"]),
        # A GPU that was lost before the reboot should be back.
        (replace(BEFORE, gpus=7), replace(BEFORE, gpus=7), 8, ["nvidia-smi sees 7 of 8 GPUs"]),
        (replace(BEFORE, gpus=0), BEFORE, 8, []),
        (replace(BEFORE, gpus=1), replace(BEFORE, gpus=0), 0, ["nvidia-smi sees 0 of 1 GPU"]),
        (replace(BEFORE, gpus=LATE), BEFORE, 8, []),
        (BEFORE, replace(BEFORE, gpus=LATE), 8, [f"{NOT_KNOWN}: no answer within 20 s"]),
        (replace(BEFORE, gpus=LATE), replace(BEFORE, gpus=LATE), 0,
         [f"{NOT_KNOWN}: no answer within 20 s"]),
        (replace(BEFORE, gpus=0), replace(BEFORE, gpus=NO_DRIVER), 0,
         [f"{NOT_KNOWN}: OSError: nvidia-smi -q -x: no driver"]),
        # A machine without a GPU whose image has nvidia-smi.
        (replace(BEFORE, gpus=NO_DRIVER), replace(BEFORE, gpus=NO_DRIVER), 0, []),
        (BEFORE, replace(BEFORE, cloud_init=1), 8, ["cloud-init failed (exit status 1)"]),
        (BEFORE, replace(BEFORE, cloud_init=2), 8, []),
        (replace(BEFORE, cloud_init=1), replace(BEFORE, cloud_init=1), 8, []),
        (BEFORE, replace(BEFORE, cloud_init=None), 8, []),
    ],
)  # fmt: skip
def test_differences(before, after, gpus, said):
    assert differences(before, after, gpus) == said
