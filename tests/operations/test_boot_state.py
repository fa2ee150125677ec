"""What a reboot must restore: reported by a real shell, and compared."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.domain.errors import CommandFailed
from clusterctl.operations.reboot import (
    BootState,
    Mounted,
    boot_state_script,
    differences,
    parse_boot_state,
)

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
half a line
"""
SAID = (
    "Welcome!\nboot-id 6f0e\ncloud-init 0\n"
    + "".join(f"mount {line}\n" for line in MOUNTS.splitlines())
    + "gpu GPU 0: A100\ngpu GPU 1: A100\ngpu   MIG 1g.5gb Device 0\ncomplete\n"
)


def test_real_file_systems_only():
    found = parse_boot_state("demo-0", SAID)
    assert (found.boot_id, found.gpus, found.cloud_init) == ("6f0e", 2, 0)
    assert found.mounts == {
        "/": Mounted("/dev/root", "ext4"),
        "/opt/dlami/nvme": Mounted("/dev/mapper/vg.01-lv_ephemeral", "ext4"),
        "/data": Mounted("/dev/nvme2n1", "xfs"),
        "/fsx": Mounted("fs-1.fsx.us-east-1.amazonaws.com@tcp:/x", "lustre"),
        "/mnt/with blank\\": Mounted("10.0.0.9:/export", "nfs4"),
        "/mnt/ram": Mounted("tmpfs", "tmpfs"),
    }


@pytest.mark.parametrize("text", ["", "boot-id 6f0e\n", "complete\n", "boot-id \ncomplete\n"])
def test_an_answer_that_is_not_complete(text):
    with pytest.raises(CommandFailed):
        parse_boot_state("demo-0", text)


@pytest.mark.parametrize("wait", [True, False])
def test_a_real_shell(wait, tmp_path):
    for name, text in (
        ("nvidia-smi", "cat >/dev/null; echo 'GPU 0: T4'"),
        ("cloud-init", f"[ \"$*\" = 'status{' --wait' if wait else ''}' ] && exit 2"),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", "-s"],
        input=boot_state_script(wait),
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    found = parse_boot_state("here", done.stdout)
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert (found.boot_id, found.gpus, found.cloud_init) == (boot_id, 1, 2)
    assert "/" in found.mounts
    assert "/proc" not in found.mounts


BEFORE = BootState(
    "a", {"/": Mounted("/dev/root", "ext4"), "/data": Mounted("/dev/nvme1n1", "xfs")}, 8, 0
)


def with_data(*mounted: str) -> BootState:
    return replace(BEFORE, mounts={**BEFORE.mounts, "/data": Mounted(*mounted)})


WITHOUT_DATA = replace(BEFORE, mounts={"/": BEFORE.mounts["/"]})


@pytest.mark.parametrize(
    ("before", "after", "gpus", "said"),
    [
        (BEFORE, BEFORE, 8, []),
        (WITHOUT_DATA, BEFORE, 8, []),
        (BEFORE, WITHOUT_DATA, 8, ["/data (/dev/nvme1n1) is not mounted again"]),
        # The kernel may number disks differently at each boot.
        (BEFORE, with_data("/dev/nvme2n1", "xfs"), 8, []),
        (
            BEFORE,
            with_data("10.0.0.9:/x", "nfs4"),
            8,
            ["/data is 10.0.0.9:/x now, not /dev/nvme1n1"],
        ),
        (
            with_data("10.0.0.9:/x", "nfs4"),
            with_data("10.0.0.8:/x", "nfs4"),
            8,
            ["/data is 10.0.0.8:/x now, not 10.0.0.9:/x"],
        ),
        (BEFORE, replace(BEFORE, gpus=7), 8, ["nvidia-smi sees 7 of 8 GPUs"]),
        # A GPU that was lost before the reboot should be back.
        (replace(BEFORE, gpus=7), replace(BEFORE, gpus=7), 8, ["nvidia-smi sees 7 of 8 GPUs"]),
        (replace(BEFORE, gpus=0), BEFORE, 8, []),
        (replace(BEFORE, gpus=1), replace(BEFORE, gpus=0), 0, ["nvidia-smi sees 0 of 1 GPU"]),
        (BEFORE, replace(BEFORE, cloud_init=1), 8, ["cloud-init failed (exit status 1)"]),
        (BEFORE, replace(BEFORE, cloud_init=2), 8, []),
        (replace(BEFORE, cloud_init=1), replace(BEFORE, cloud_init=1), 8, []),
        (BEFORE, replace(BEFORE, cloud_init=None), 8, []),
    ],
)
def test_differences(before, after, gpus, said):
    assert differences(before, after, gpus) == said
