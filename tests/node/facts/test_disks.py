"""The file systems of a node: those that count, and what fills them."""

from __future__ import annotations

import itertools
import json
import os
from types import SimpleNamespace

import pytest

from clusterctl.cli.output import one_line
from clusterctl.node.facts import disks
from clusterctl.node.record import to_json

TABLE = [
    (b"/dev/root", b"/", b"ext4"),
    (b"fusectl", b"/sys/fs/fuse/connections", b"fusectl"),
    (b"lxcfs", b"/var/lib/lxcfs", b"fuse.lxcfs"),
    (b"snapfuse", b"/snap/core22/1663", b"fuse.snapfuse"),
    (b"gvfsd-fuse", b"/run/user/1000/gvfs", b"fuse.gvfsd-fuse"),
    (b"nfsd", b"/proc/fs/nfsd", b"nfsd"),
    (b"10.0.0.9:/x", b"/mnt/caf\xe9\\040\xc2\x85\xc2\xa0x", b"nfs4"),
    (b"bucket", b"/mnt/bucket", b"fuse.mount-s3"),
]


@pytest.fixture(autouse=True)
def tables(tmp_path, monkeypatch):
    mounts = b"".join(b"%s %s %s rw 0 0\n" % one for one in TABLE)
    rows = [(n, path, kind, source) for n, (source, path, kind) in enumerate(TABLE)]
    info = b"".join(b"%d 1 0:%d / %s rw - %s %s rw\n" % (row[0], *row) for row in rows)
    for name, text in (("MOUNTS", mounts), ("MOUNTINFO", info)):
        (tmp_path / name).write_bytes(text)
        monkeypatch.setattr(disks, name, str(tmp_path / name))


NAME = os.fsdecode(b"/mnt/caf\xe9 \xc2\x85\xc2\xa0x")


def test_a_mount_may_have_any_bytes_in_its_name():
    assert [one.path for one in disks.mounted() if one.kind == "nfs4"] == [NAME]
    assert NAME in disks.mount_points()
    assert json.loads(to_json({"path": NAME})) == {"path": NAME}
    assert one_line(NAME) == "/mnt/caf\\xe9 \\x85\\xa0x"


def test_what_the_system_mounts_for_its_own_use_is_no_file_system_of_a_job():
    assert disks.mount_points() == ["/", NAME, "/mnt/bucket"]


def test_the_time_for_the_largest_folders_also_ends_within_a_folder(tmp_path, monkeypatch):
    for number in range(50):
        (tmp_path / f"{number}.bin").write_bytes(b"x" * 4096)
    # A clock on which each look takes a second.
    clock = itertools.count()
    monkeypatch.setattr(disks, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    found = disks.largest_folders(str(tmp_path), used_share=0.0, walk_s=10.0)
    assert (found.complete, next(clock) < 20) == (False, True)


def test_what_fills_a_disk_are_folders_files_and_small_files_at_the_top(tmp_path, monkeypatch):
    for name, kib in [("set/a", 40), ("set/b", 40), ("runs/model", 200), ("big", 400)]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(os.urandom(kib << 10))
    for number in range(10):
        (tmp_path / f"{number}.log").write_bytes(b"x" * 4096)
    full = SimpleNamespace(used_share=1.0, used_bytes=720 << 10)
    monkeypatch.setattr(disks, "mount", lambda path: full)
    top = str(tmp_path)
    found = disks.largest_folders(top, used_share=0.9, walk_s=60.0)
    names = ("big", "runs/model", "set", "*")
    assert [path for path, _ in found.folders] == [f"{top}/{name}" for name in names]
