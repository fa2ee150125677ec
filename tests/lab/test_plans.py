"""The daemon's decisions before it acts: mounts, files, addresses."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from ipaddress import IPv4Network
from pathlib import Path

import pytest

import clusterctl.lab
from clusterctl.lab.hosts.daemon import boot, cgroups, loop, mounts, network, template
from clusterctl.lab.hosts.daemon.boot import HostSpec

HOST_FILES = Path(clusterctl.lab.__file__).parent / "hosts" / "files"
SPEC = HostSpec(
    id="i-1",
    hostname="ip-10-77-0-5",
    domain="ec2.internal",
    address="10.77.0.5",
    prefix_length=16,
    gateway="10.77.0.1",
)


def test_a_copy_on_write_view():
    assert mounts.overlay("usr", "/h", "/t", alone=False).data == (
        "lowerdir=/t/usr:/usr,upperdir=/h/upper/usr,workdir=/h/work/usr,userxattr"
    )
    assert mounts.overlay("etc", "/h", "/t", alone=True).data == (
        "lowerdir=/t/etc,upperdir=/h/upper/etc,workdir=/h/work/etc,userxattr"
    )


def test_the_mounts_of_a_host():
    plan = mounts.host_mounts(mounts.View("/h", "/t", single_uid=False), bound=["lib"])
    assert [(step.source, step.target) for step in plan] == [
        ("/lib", "lib"),
        *(("overlay", name) for name in ("usr", "etc", "var", "opt", "var/lib/dpkg")),
        ("proc", "proc"),
        ("sysfs", "sys"),
        *(("tmpfs", name) for name in ("sys/block", "sys/class/block")),
        ("/h/boot_id", "proc/sys/kernel/random/boot_id"),
        ("tmpfs", "dev"),
        *((f"/dev/{name}", f"dev/{name}") for name in mounts.DEVICES),
        ("devpts", "dev/pts"),
        ("tmpfs", "dev/shm"),
        ("tmpfs", "run"),
        ("/h/tmp", "tmp"),
        ("/h/root-home", "root"),
        ("/h/home", "home"),
        ("/h/data/shown", "data"),
    ]


def test_the_mounts_of_another_host():
    for single_uid in (False, True):
        plan = mounts.host_mounts(mounts.View("/h", "/t", single_uid, instance_store=True))
        assert plan[-1].target == "opt/dlami/nvme"  # where images mount it
        [terminals] = [step for step in plan if step.target == "dev/pts"]
        # Terminals belong to the group tty, if user ids are mapped.
        assert ("gid=5" in terminals.data) == (not single_uid)


@pytest.mark.parametrize(
    ("points", "covered"),
    [
        (["/", "/proc", "/snap/core"], set()),
        (["/", "/etc/hosts", "/var/lib/docker"], {"etc"}),
        (["/", "/var", "/var/lib/dpkg/info"], {"var/lib/dpkg"}),
        (["/", "/opt", "/opt/data", "/optional"], {"opt"}),
    ],
)
def test_what_is_mounted_below_a_folder(points, covered):
    info = "\n".join(f"1 2 8:1 / {point} rw - ext4 /dev/a rw" for point in points)
    assert mounts.folders_with_mounts_below(info) == covered


def test_what_ip_is_told_in_a_host():
    assert boot.address_lines(SPEC) == [
        "link set lo up",
        "address add 10.77.0.5/16 dev eth0",
        "link set eth0 up",
        "route add default via 10.77.0.1",
    ]
    assert network.hardware_address("10.77.0.5") == "02:00:0a:4d:00:05"


def test_what_ip_is_told_of_public_addresses_and_of_subnets():
    address = "198.18.0.1"
    for old, new, verb in (("", "", None), ("", address, "replace"), (address, "", "delete")):
        # With `via`, because the address may have a route to another host already.
        outside = [f"route {verb} {address} via 10.77.0.5 dev br0"] if verb else []
        inside = [f"route {verb} local {address} dev lo"] if verb else []
        assert network.public_lines(old, new, "10.77.0.5") == outside
        assert network.own_public_lines(old, new) == inside
    lines = network.gateway_lines({"10.77.0.1/16", "10.20.0.1/24"}, {"10.77.0.1/16", "10.9.0.1/20"})
    assert lines == ["address delete 10.20.0.1/24 dev br0", "address add 10.9.0.1/20 dev br0"]


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (81 << 8, "reboot"),
        (82 << 8, "poweroff"),
        (83 << 8, "failed"),
        (0, "died"),
        (1, "reboot"),
        (2, "poweroff"),
        (9, "died"),
    ],
)
def test_how_a_host_ended(status, why):
    assert boot.ended_by(status) == why


@pytest.mark.parametrize("single_uid", [False, True])
def test_the_files_of_the_layer(single_uid):
    read = {path.name: path.read_bytes() for path in HOST_FILES.iterdir() if path.is_file()}
    files = {
        file.path: file for file in template.layer_files(read, single_uid, {"A": "b", "C": "d"})
    }
    assert files["etc/ssh/sshd_config"].content.endswith(
        f"SetEnv PATH={template.PATH} A=b C=d\n".encode()
    )
    assert b'env_keep += "A C"\n' in files["etc/sudoers"].content
    assert files["etc/sudoers"].mode == 0o440
    assert files["etc/shadow"].mode == 0o640
    assert files["usr/bin/cloud-init"].mode == 0o755
    assert ("usr/bin/sudo" in files) == single_uid
    assert {f"usr/sbin/{name}" for name in ("reboot", "poweroff", "shutdown")} <= set(files)
    assert b"MaxStartups" not in files["etc/ssh/sshd_config"].content.replace(b"(MaxStartups", b"")


SYSTEMD = "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate"
OLD = """32 31 0:29 / /cg/cpu rw - cgroup cgroup rw,cpu
35 31 0:32 / /cg/memory rw - cgroup cgroup rw,memory
39 31 0:36 / /cg/pids rw - cgroup cgroup rw,pids
41 31 0:38 / /cg/unified rw - cgroup2 cgroup2 rw"""


@pytest.mark.parametrize(
    ("mountinfo", "own", "places"),
    [
        ("1 2 0:1 / / rw - ext4 /dev/a rw", "", []),
        (SYSTEMD, "0::/user.slice/session-3.scope", ["/sys/fs/cgroup/user.slice"]),
        (SYSTEMD, "0::/", ["/sys/fs/cgroup"]),
        (OLD, "8:pids:/\n4:memory:/a/b\n1:cpu:/\n0::/", ["/cg/memory/a/b", "/cg/pids"]),
    ],
)
def test_where_a_labs_control_groups_are(mountinfo, own, places):
    assert cgroups.parent_groups(mountinfo, own) == [Path(place) for place in places]


def test_a_lab_of_another_pid_namespace_keeps_its_groups(tmp_path):
    """No process here has these numbers. A file stands for the running daemon."""
    running, killed = (tmp_path / f"{cgroups.PREFIX}{pid}" for pid in (2**23, 2**23 + 1))
    for folder in (running, killed):
        (folder / "daemon").mkdir(parents=True)
        (folder / "hosts").mkdir()
    (running / "daemon" / "process").touch()
    cgroups.remove_killed(tmp_path)
    assert ((running / "hosts").exists(), killed.exists()) == (True, False)


def test_why_a_set_up_fails_is_reported(monkeypatch):
    monkeypatch.setattr(loop, "_make_private", lambda: None)
    monkeypatch.setattr(network, "build", lambda *_: subprocess.run(["false"], check=True))
    monkeypatch.setattr(os, "_exit", sys.exit)
    inside = IPv4Network("10.77.0.0/16")
    launcher, control = socket.socketpair()
    with launcher:
        with control, pytest.raises(SystemExit):
            loop.run(loop.Setup(control, inside, inside, {}, False, -1, ()))
        assert "false" in json.loads(launcher.recv(4096) or b"{}").get("text", "")
