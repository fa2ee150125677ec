"""Repeated and interrupted copies: what is sent again, and what is deleted."""

from __future__ import annotations

import base64
import contextlib
import os
import random
import stat
import tempfile
from pathlib import Path

import pytest

from clusterctl.node.relay.entries import Entries
from clusterctl.node.relay.manifest import decode, encode
from clusterctl.node.relay.scan import STAGING, scan
from clusterctl.node.relay.staging import Staging
from tests.node.relay.relays import FirstPart, make, tree

pytestmark = pytest.mark.slow

MIB = 1 << 20


@pytest.fixture
def data(tmp_path):
    root = tmp_path / "data"
    make(root, {b"small/%d" % n: b"%d" % n for n in range(50)})
    make(root, {b"big": random.Random(1).randbytes(4 * MIB + 17), b"other": b"o" * MIB})
    return root


def gap_of(relays, data, target, **options):
    source = relays.source(f"{data}/", **options)
    relays.begin(source, target)
    target.pull_from(source)
    return target.expect("gap")


def test_a_node_that_has_it_serves_the_next(relays, data, tmp_path):
    relays.copy(relays.source(f"{data}/"), relays.target(tmp_path / "one"))
    first, second = relays.target(tmp_path / "one"), relays.target(tmp_path / "two")
    one, two = relays.copy(relays.source(f"{data}/"), first, second)
    assert (one["bytes"], two["bytes"]) == (0, 5 * MIB + 17 + 90)
    assert tree(tmp_path / "two") == tree(data)


@pytest.mark.all
def test_times_lie_and_checksums_do_not(relays, data, tmp_path):
    to = tmp_path / "to"
    relays.copy(relays.source(f"{data}/"), relays.target(to))
    times = (to / "other").stat()
    (to / "other").write_bytes(b"O" * MIB)
    os.utime(to / "other", ns=(times.st_mtime_ns, times.st_mtime_ns))
    os.utime(to / "big", ns=(1, 1))
    assert gap_of(relays, data, relays.target(to, dry_run=True))["files"] == 1  # `big`, by its time
    target = relays.target(to, checksum=True)
    assert gap_of(relays, data, target, checksum=True)["files"] == 1  # other, by its content
    target.expect("done")
    assert tree(to) == tree(data)


def test_what_is_too_much_goes_only_when_asked(relays, data, tmp_path):
    to = tmp_path / "to"
    make(to, {b"old": b"", b"small/old": b"", b"gone/deep/x": b"", b"new\nline": b""})
    (to / "gone" / "link").symlink_to("/")
    relays.copy(relays.source(f"{data}/"), relays.target(to))
    assert (to / "old").exists()
    dry = gap_of(relays, data, relays.target(to, delete=True, dry_run=True))
    assert dry["delete"] == 7
    assert sorted(dry["delete_names"])[:2] == ["gone", "gone/deep"]
    [done] = relays.copy(relays.source(f"{data}/"), relays.target(to, delete=True))
    assert done["deleted"] == 7
    assert tree(to) == tree(data)


def interrupted(relays, data, to, how, **config):
    """Start a copy that ends after a part of the big file has arrived."""
    source = relays.source(f"{data}/")
    target = relays.target(to, **config)
    relays.begin(source, target, block_bytes=1 << 12)
    with contextlib.closing(FirstPart(source, 8 * MIB)) as part:
        target.pull_from(part)
        while target.expect("progress")["bytes"] < MIB:
            pass
        how(target)
        target.process.wait(20)


def half(relays, tmp_path, how=None, mib=24, **small):
    """Interrupt a copy after a part of its files. Return the folder and its destination."""
    data, to = tmp_path / "data", tmp_path / "to"
    small = {name.encode(): text for name, text in small.items()}
    make(data, {b"big": random.Random(5).randbytes(mib * MIB), **small})
    interrupted(relays, data, to, how or HOW["SIGKILL"])
    return data, to


HOW = {
    "told to stop": lambda relay: relay.tell("stop"),
    "its client goes away": lambda relay: relay.process.stdin.close(),
    "SIGTERM": lambda relay: relay.process.terminate(),
    "SIGKILL": lambda relay: relay.process.kill(),
}


@pytest.mark.parametrize(
    ("how", "block_bytes"),
    [
        pytest.param(how, size, id=name, marks=pytest.mark.all if name == "SIGTERM" else ())
        for (name, how), size in zip(HOW.items(), [1 << 12, 1 << 16] * 2)
    ],
)
def test_an_interrupted_copy_goes_on_where_it_was(relays, tmp_path, how, block_bytes):
    size = 24 * MIB
    data, to = half(relays, tmp_path, how)
    assert not (to / "big").exists()
    assert (to / os.fsdecode(STAGING)).exists()
    source, target = relays.source(f"{data}/"), relays.target(to)
    relays.begin(source, target, block_bytes=block_bytes)
    target.pull_from(source)
    assert target.expect("gap")["bytes"] <= size - MIB + 8 * block_bytes
    target.expect("done")
    assert tree(to) == tree(data)


def test_what_an_interrupted_copy_left_is_passed_on(relays, tmp_path):
    data, to = half(relays, tmp_path, mib=32, a=b"a", c=b"c")
    chain = [relays.target(to), relays.target(tmp_path / "next")]
    relays.copy(relays.source(f"{data}/"), *chain)
    assert tree(to) == tree(tmp_path / "next") == tree(data)


@pytest.mark.all
def test_what_is_left_of_another_file_of_the_same_size_and_time_is_not_used(relays, tmp_path):
    data, to = half(relays, tmp_path)
    time_ns = (data / "big").stat().st_mtime_ns
    (data / "big").unlink()
    make(data, {b"big": random.Random(4).randbytes(24 * MIB)})
    os.utime(data / "big", ns=(time_ns, time_ns))
    relays.copy(relays.source(f"{data}/"), relays.target(to))
    assert tree(to) == tree(data)


def test_a_source_that_cannot_be_read_leaves_no_zeros_behind(relays, tmp_path):
    """The received part is not kept: a later copy would take its zeros for data."""
    data, to = tmp_path / "data", tmp_path / "to"
    make(data, {b"big": random.Random(5).randbytes(24 * MIB)})
    source, target = relays.source(f"{data}/"), relays.target(to)
    relays.begin(source, target, block_bytes=1 << 12)
    target.pull_from(source)
    while target.expect("progress")["bytes"] < MIB:
        pass
    (data / "big").rename(tmp_path / "away")
    come = target.expect("progress")["bytes"]
    while target.expect("progress")["bytes"] < min(come + 2 * MIB, 23 * MIB):
        pass
    target.process.kill()
    target.process.wait(20)
    (tmp_path / "away").rename(data / "big")
    relays.copy(relays.source(f"{data}/"), relays.target(to))
    assert tree(to) == tree(data)


def test_a_file_whose_time_was_set_back_has_changed_all_the_same(relays, tmp_path):
    data, to = tmp_path / "data", tmp_path / "to"
    make(data, {b"big": random.Random(5).randbytes(4 * MIB)})
    before = (data / "big").stat()
    source, target = relays.source(f"{data}/"), relays.target(to)
    relays.begin(source, target)
    (data / "big").write_bytes(bytes(4 * MIB))
    os.utime(data / "big", ns=(before.st_mtime_ns, before.st_mtime_ns))
    target.pull_from(source)
    assert target.expect("done")["left_out"] == 1
    assert not (to / "big").exists()


@pytest.mark.parametrize("checksum", [False, True])
def test_a_node_with_other_times_serves_the_next(relays, data, tmp_path, checksum):
    """The node's times are whole seconds, as on some file systems, or any time with `checksum`."""
    one, two = tmp_path / "one", tmp_path / "two"
    relays.copy(relays.source(f"{data}/"), relays.target(one))
    for path in (one / "big", one / "other"):
        time_s = int(path.stat().st_mtime) - (1000 if checksum else 0)
        os.utime(path, (time_s, time_s))
    first, second = (relays.target(to, checksum=checksum) for to in (one, two))
    relays.copy(relays.source(f"{data}/", checksum=checksum), first, second)
    assert tree(two) == tree(data)


NOBODY = 65534


@pytest.fixture
def nobodys():
    """Return a folder of a user who is not root, who could not enter pytest's own folder."""
    if os.geteuid():
        pytest.skip("only root can be another user")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chown(folder, NOBODY, -1)
        yield Path(folder)


@pytest.mark.parametrize("mode", [0o000, 0o200, 0o444])
def test_modes_that_keep_the_owner_out_are_no_trouble(relays, tmp_path, nobodys, mode):
    """Root reads the source. A node passes on files that their final mode hides from its user."""
    data, homes = tmp_path / "data", [nobodys / "one", nobodys / "two"]
    make(data, {b"big": b"b" * MIB, b"small": b"s", b"other": b"o", b"d/in": b"i"})
    for name in ("big", "small"):
        (data / name).chmod(mode)
    (data / "d").chmod(0o555)
    for again in (False, True):
        if again:  # they are on the first node, and the second one lacks one of them
            make(data, {b"new": b"n"})
            (homes[1] / "to" / "small").unlink()
        targets = [relays.target(home / "to", user=NOBODY) for home in homes]
        relays.copy(relays.source(f"{data}/"), *targets)
        for target in targets:
            target.stop()
        for home in homes:
            assert tree(home / "to") == tree(data)


def test_an_unreadable_file_is_named_before_anything_is_copied(relays, tmp_path, nobodys):
    make(nobodys / "data", {b"a": b"a", b"sub/b": b"b"})
    (nobodys / "data" / "sub" / "b").chmod(0o600)
    make(tmp_path / "to", {b"extra": b"x"})
    source = relays.source(f"{nobodys}/data/", user=NOBODY)
    target = relays.target(tmp_path / "to", delete=True, dry_run=True)
    assert relays.begin(source, target)["warnings"] == [f"{nobodys}/data/sub/b: Permission denied"]
    target.pull_from(source)
    gap = target.expect("gap")
    assert (gap["files"], gap["delete"]) == (1, 0)
    assert gap["warnings"] == [
        "nothing would be deleted: something at the source could not be read"
    ]


def test_a_file_that_hides_from_its_user_is_not_told_as_different(relays, tmp_path, nobodys):
    """--verify, which is such a dry run, cannot compare it; root reads the source."""
    data = tmp_path / "data"
    make(data, {b"a secret": b"s", b"open": b"o"})
    (data / "a secret").chmod(0o000)
    first = relays.target(nobodys / "to", user=NOBODY)
    relays.copy(relays.source(f"{data}/"), first)
    first.stop()
    # What differs is named first.
    (nobodys / "to" / "open").write_bytes(b"x")
    source = relays.source(f"{data}/", checksum=True)
    target = relays.target(nobodys / "to", checksum=True, dry_run=True, user=NOBODY)
    relays.begin(source, target)
    target.pull_from(source)
    gap = target.expect("gap")
    assert (gap["missing"], gap["unread"], gap["missing_names"]) == (2, 1, ["open", "a secret"])


def test_a_read_only_folder_that_the_source_no_longer_has_is_deleted(relays, tmp_path, nobodys):
    """As rsync does. What cannot be deleted keeps its mode."""
    data, to = tmp_path / "data", nobodys / "to"
    make(data, {b"a": b"a"})
    make(to, {b"a": b"a", b"old/one/x": b"x", b"kept/theirs/y": b"y", b"kept/z": b"z"})
    make(to, {b"kept/theirs too/y": b"y"})
    for path in (to, *to.rglob("*")):
        os.chown(path, 0 if path.name in ("theirs", "theirs too", "y") else NOBODY, -1)
    for path in ("old/one", "old", "kept"):
        (to / path).chmod(0o555)
    target = relays.target(to, delete=True, user=NOBODY)
    done = relays.copy(relays.source(f"{data}/"), target)
    assert not (to / "old").exists() and not (to / "kept" / "z").exists()
    assert stat.S_IMODE((to / "kept").stat().st_mode) == 0o555
    assert "kept/theirs/y: not deleted: Permission denied" in str(done)


@pytest.mark.all
def test_a_part_that_has_its_read_only_mode_already_is_gone_on_with(relays, tmp_path, nobodys):
    """A copy that ends after it set the mode and before it renamed the file leaves this state."""
    data, to = tmp_path / "data", nobodys / "to"
    make(data, {b"big": random.Random(5).randbytes(24 * MIB), b"empty": b""})
    for name in ("big", "empty"):
        (data / name).chmod(0o444)
    interrupted(relays, data, to, HOW["SIGKILL"], user=NOBODY)
    (to / "empty").unlink()
    for entry in Entries(decode(encode(scan([os.fsencode(data) + b"/"], None, b"/").entries))):
        if entry.kind == "f":
            name = Path(os.fsdecode(Staging(os.fsencode(tmp_path)).part(entry))).name
            part = to / os.fsdecode(STAGING) / name
            part.touch()
            os.chown(part, NOBODY, -1)
            part.chmod(0o444)
    relays.copy(relays.source(f"{data}/"), relays.target(to, user=NOBODY))
    assert tree(to) == tree(data)


def test_a_folder_in_the_way_keeps_its_mode(relays, tmp_path, nobodys):
    data, to = tmp_path / "data", nobodys / "to"
    make(data, {b"x": b"x"})
    (data / "x").chmod(0o200)
    make(to, {b"x/in the way": b""})
    for path in (to, to / "x"):
        os.chown(path, NOBODY, -1)
    target = relays.target(to, user=NOBODY)
    assert relays.copy(relays.source(f"{data}/"), target)[0]["left_out"] == 1
    target.stop()
    assert (to / "x").stat().st_mode & 0o777 == 0o755


def test_what_cannot_be_written_is_reported_and_the_rest_comes(relays, tmp_path, nobodys):
    data, home = tmp_path / "data", nobodys
    make(data, {b"ours/x": b"x", b"theirs/y": b"y", b"z": b"z"})
    (data / "ours").chmod(0o555)
    make(home / "to", {b"ours/old": b"", b"theirs/old": b""})
    for path in (home / "to", home / "to" / "ours", home / "to" / "ours" / "old"):
        os.chown(path, NOBODY, -1)
    (home / "to" / "ours").chmod(0o555)  # read-only, and owned by the user
    target = relays.target(home / "to", user=NOBODY, delete=True)
    [done] = relays.copy(relays.source(f"{data}/"), target)
    target.stop()
    assert done["left_out"] == 1
    assert [line.split("/to/")[1] for line in done["warnings"] if "theirs/y" in line] == [
        "theirs/y: Permission denied"
    ]
    there = {path.name for path in (home / "to").rglob("*")}
    assert there == {"ours", "x", "old", "theirs", "z"}  # nothing is deleted
    assert (home / "to" / "ours").stat().st_mode & 0o777 == 0o555


def test_after_a_reboot_what_came_is_read_again(relays, tmp_path):
    data, to = half(relays, tmp_path)
    [journal] = (to / os.fsdecode(STAGING)).glob("*.journal")
    journal.write_bytes(b"0" * 36 + journal.read_bytes()[36:] + b"torn")
    part = journal.with_suffix("")
    with part.open("r+b") as file:
        file.write(bytes(5000))  # zeros: the data never reached the disk
    relays.copy(relays.source(f"{data}/"), relays.target(to))
    assert tree(to) == tree(data)


@pytest.mark.all
def test_leftovers_are_deleted_once_nothing_is_missing(relays, tmp_path):
    data, to = half(relays, tmp_path, empty=b"")
    (data / "big").unlink()
    assert (to / os.fsdecode(STAGING)).exists()
    relays.copy(relays.source(f"{data}/"), relays.target(to))
    assert tree(to) == tree(data)


@pytest.mark.all
def test_a_destination_that_someone_removes_ends_the_relay(relays, tmp_path):
    # A rename, since the relay would make files in a folder that is being emptied.
    half(relays, tmp_path, lambda _: (tmp_path / "to").rename(tmp_path / "gone"), mib=48)
    assert relays.running[-1].process.wait(20) == 1


@pytest.mark.all
def test_what_an_interrupted_copy_left_at_the_source_is_no_data_though_it_is_named(
    relays, tmp_path
):
    src, own = tmp_path / "src", b".clusterctl-copy-notes"
    deep = b"e/.clusterctl-copy/lock"
    make(src, {b".clusterctl-copy/lock": b"", b".clusterctl-copy/5": b"part", own: b"x"})
    make(src, {deep: b"", b"d/" + deep: b""})
    names = [base64.b64encode(name).decode() for name in (b".clusterctl-copy/lock", own, b"d")]
    named = relays.source(str(src), names_b64=names)
    [done] = relays.copy(named, target := relays.target(tmp_path / "named"))
    assert (done["files"], done["left_out"], target.stop()["clean"]) == (1, 0, True)
    [done] = relays.copy(relays.source(f"{src}/.*"), relays.target(f"{tmp_path}/matched/"))
    assert done["files"] == 1
    make(tmp_path / "all", {own: b"y", b"e/x": b"", b"extra": b"z"})
    [done] = relays.copy(relays.source(f"{src}/"), relays.target(tmp_path / "all", delete=True))
    assert (done["files"], done["deleted"]) == (1, 2)
    found = {place: sorted(tree(tmp_path / place)) for place in ("named", "matched", "all")}
    assert found == {
        "named": [own, b"d", b"d/e"],
        "matched": [own],
        "all": [own, b"d", b"d/e", b"e"],
    }
