"""The folders for files that are not whole: whose they are, on which disk, and that they go."""

from __future__ import annotations

import os
import random
import stat
from pathlib import Path

import pytest

from clusterctl.node.relay.base import Failure
from clusterctl.node.relay.destination import Destination
from clusterctl.node.relay.disks import other_disks
from clusterctl.node.relay.entries import Entries
from clusterctl.node.relay.hashing import digests_of_files
from clusterctl.node.relay.manifest import decode, encode
from clusterctl.node.relay.messages import Begin
from clusterctl.node.relay.scan import scan
from clusterctl.node.relay.staging import Staging, Untrusted, copy_with_holes
from clusterctl.node.relay.wire import Waits
from tests.node.relay.relays import make, tree
from tests.node.relay.test_relay_again import HOW, interrupted, nobodys  # noqa: F401
from tests.variants import usual

pytestmark = pytest.mark.slow

MIB = 1 << 20
NOBODY = 65534


def staging_in(folder):
    return folder / ".clusterctl-copy"


def entries_of(folder):
    return Entries(decode(encode(scan([os.fsencode(folder) + b"/"], None, b"/").entries)))


def modes_and_contents(folder):
    return {path: (mode, content) for path, (mode, _, content) in tree(folder).items()}


# A folder that is read-only in the source


def read_only(data, to):
    make(data, {b"x": b"1", b"sub/y": b"2"})
    data.chmod(0o555)
    to.mkdir()
    os.chown(to, NOBODY, NOBODY)


def test_a_read_only_data_set_can_be_copied_again(relays, tmp_path, nobodys):  # noqa: F811
    data, to = tmp_path / "data", nobodys / "to"
    read_only(data, to)
    for name in ("x", "new", "newer"):
        make(data, {name.encode(): b"3"})
        os.utime(data, ns=(1, 10**18))
        target = relays.target(to, user=NOBODY)
        [done] = relays.copy(relays.source(f"{data}/"), target)
        assert (done["left_out"], done["warnings"], target.stop()["clean"]) == (0, [], True)
        assert tree(to) == tree(data)
        status = to.stat()
        assert (stat.S_IMODE(status.st_mode), status.st_mtime_ns) == (0o555, 10**18)


def test_a_read_only_destination_is_writable_to_its_owner(relays, tmp_path, nobodys):  # noqa: F811
    data, to = tmp_path / "data", nobodys / "to"
    read_only(data, to)
    to.chmod(0o555)
    target = relays.target(to, user=NOBODY, dry_run=True)
    relays.begin(source := relays.source(f"{data}/"), target)
    target.pull_from(source)
    assert target.expect("gap")["writable"]
    assert stat.S_IMODE(to.stat().st_mode) == 0o555


@pytest.mark.parametrize("in_the_way", [False, True])
def test_what_ends_early_leaves_the_folder_read_only(
    relays,
    tmp_path,
    nobodys,  # noqa: F811
    in_the_way,
):
    data, to = tmp_path / "data", nobodys / "to"
    read_only(data, to)
    if in_the_way:
        make(to, {b"x/in the way": b""})
        for path in (to / "x", to / "x/in the way"):
            os.chown(path, NOBODY, NOBODY)
    to.chmod(0o555)
    source, target = relays.source(f"{data}/"), relays.target(to, user=NOBODY)
    relays.begin(source, target)
    target.pull_from(source)
    if in_the_way:
        assert target.expect("done")["left_out"] == 1
    else:
        target.expect("gap")
    # The first files may have arrived before it was told to stop: a later copy uses them.
    clean = target.stop()["clean"]
    assert stat.S_IMODE(to.stat().st_mode) == 0o555
    assert staging_in(to).exists() == (not clean)


def test_a_read_only_folder_on_another_disk_can_be_copied_again(
    relays,
    tmp_path,
    nobodys,  # noqa: F811
    other_disk,
):
    data, to, far = tmp_path / "data", nobodys / "to", other_disk / "far"
    make(data, {b"big/x": b"1"})
    far.mkdir()
    to.mkdir()
    (to / "big").symlink_to(far)
    other_disk.chmod(0o755)
    for path in (to, far):
        os.chown(path, NOBODY, NOBODY)
    for name in ("x", "new"):
        make(data, {b"big/" + name.encode(): b"2"})
        (data / "big").chmod(0o555)
        target = relays.target(to, user=NOBODY)
        [done] = relays.copy(relays.source(f"{data}/"), target)
        assert (done["left_out"], done["warnings"], target.stop()["clean"]) == (0, [], True)
        assert tree(far) == tree(data / "big")
        assert stat.S_IMODE(far.stat().st_mode) == 0o555


# What others have put there


@pytest.mark.parametrize("dry", usual(1, [False, True]))
@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("link", "is a link"),
        ("file", "is no folder"),
        ("theirs", "belongs to the user 65534"),
        ("open", "others may write to"),
    ],
)
def test_a_staging_folder_that_is_not_the_users_alone_is_refused(relays, tmp_path, kind, says, dry):
    """DST is a folder that all may write to, as /data often is."""
    data, to, thesis = tmp_path / "data", tmp_path / "shared", tmp_path / "thesis"
    make(data, {b"a": b"1" * 100, b"b": b"2"})
    make(thesis, {b"chapter1": b"x", b"chapter2": b"y"})
    to.mkdir()
    to.chmod(0o1777)
    if kind == "link":
        staging_in(to).symlink_to(thesis)
    elif kind == "file":
        staging_in(to).write_bytes(b"")
    else:
        make(staging_in(to), {b"chapter1": b"x"})
        staging_in(to).chmod(0o777 if kind == "open" else 0o700)
        os.chown(staging_in(to), NOBODY if kind == "theirs" else 0, -1)
    before = modes_and_contents(tmp_path)
    source, target = relays.source(f"{data}/"), relays.target(to, dry_run=dry)
    relays.begin(source, target)
    target.pull_from(source)
    failed = target.expect("failed", kind="permission")
    assert str(staging_in(to)) in failed["why"]
    assert says in failed["why"]
    assert "remove it" in failed["hint"]
    assert modes_and_contents(tmp_path) == before


def test_a_staging_folder_that_is_exchanged_leads_nowhere_else(tmp_path):
    """Where others may rename it: what the copy writes and deletes stays in its own folder."""
    staging = Staging(os.fsencode(tmp_path / "to"))
    staging.acquire()
    make(tmp_path / "thesis", {b"chapter1": b"x"})
    staging_in(tmp_path / "to").rename(tmp_path / "aside")
    staging_in(tmp_path / "to").symlink_to(tmp_path / "thesis")
    entry = entries_of(tmp_path / "thesis")[1]
    Path(os.fsdecode(staging.part(entry))).write_bytes(b"part")
    staging.forget_others([])
    staging.release(clear=True)
    assert os.listdir(tmp_path / "aside") == ["lock"]
    assert sorted(tree(tmp_path / "thesis")) == [b"chapter1"]


def test_a_file_system_that_gives_everything_one_owner_can_be_copied_to_again(
    tmp_path, monkeypatch
):
    """As NFS does with squashing: the user is not the owner of what it makes."""
    monkeypatch.setattr("os.geteuid", lambda: 1234)
    for _ in range(2):
        staging = Staging(os.fsencode(tmp_path))
        staging.acquire()
        staging.release(clear=False)
    staging_in(tmp_path).chmod(0o777)
    with pytest.raises(Untrusted):
        Staging(os.fsencode(tmp_path))


# Other disks


@pytest.fixture
def linked(tmp_path, other_disk):
    """A data set with a large file, and a destination where that file goes to another disk."""
    data, to = tmp_path / "data", tmp_path / "to"
    make(data, {b"big/a": random.Random(1).randbytes(9 * MIB), b"big/deep/b": b"b", b"c": b"c"})
    to.mkdir()
    (to / "big").symlink_to(other_disk)
    assert to.stat().st_dev != other_disk.stat().st_dev
    return data, to


def test_a_file_for_another_disk_is_renamed_there(relays, linked, other_disk):
    """It comes to that disk and is gone on with there, and its bytes are written once."""
    data, to = linked
    interrupted(relays, data, to, HOW["SIGKILL"])
    [part] = (path for path in staging_in(other_disk).iterdir() if path.stat().st_size >= MIB)
    inode = part.stat().st_ino
    [done] = relays.copy(relays.source(f"{data}/"), relays.target(to))
    assert done["bytes"] < 9 * MIB
    assert (other_disk / "a").stat().st_ino == inode
    assert (other_disk / "a").read_bytes() == (data / "big/a").read_bytes()
    assert sorted(os.listdir(other_disk)) == ["a", "deep"]
    assert sorted(os.listdir(to)) == ["big", "c"]


def test_what_a_killed_copy_left_on_another_disk_goes_with_the_next(relays, linked, other_disk):
    data, to = linked
    interrupted(relays, data, to, HOW["SIGKILL"])
    assert staging_in(other_disk).exists()
    (data / "big/a").write_bytes(b"another")
    relays.copy(relays.source(f"{data}/"), relays.target(to))
    assert sorted(os.listdir(other_disk)) == ["a", "deep"]
    assert (other_disk / "a").read_bytes() == b"another"
    # Also if nothing is missing any more.
    staging_in(other_disk).mkdir(mode=0o700)
    relays.copy(relays.source(f"{data}/"), relays.target(to))
    assert not staging_in(other_disk).exists()


def test_holes_stay_holes_on_another_disk(relays, linked, other_disk):
    data, to = linked
    with (data / "big/sparse").open("wb") as file:
        file.write(b"x" * 4096)
        file.truncate(64 * MIB)
    relays.copy(relays.source(f"{data}/"), relays.target(to))
    status = (other_disk / "sparse").stat()
    assert (status.st_size, status.st_blocks * 512 < MIB) == (64 * MIB, True)


def test_each_disk_needs_room_only_for_what_goes_there(linked, other_disk, monkeypatch):
    data, to = linked
    entries = entries_of(data)
    free = {os.fsencode(to): 100, os.fsencode(other_disk): 10 * MIB}
    monkeypatch.setattr(
        "clusterctl.node.relay.destination.room_at", lambda path: (free[path], True)
    )

    def gap(dry):
        target = Destination({"destination": str(to), "dry_run": dry}, Waits())
        try:
            return target.prepare(entries, Begin())
        finally:
            target.leave()

    enough = gap(dry=False)
    assert (enough.bytes, enough.elsewhere, enough.fits) == (9 * MIB + 2, 9 * MIB + 1, True)
    free[os.fsencode(other_disk)] = 9 * MIB
    short = gap(dry=True)
    assert not short.fits
    assert short.warnings[0].startswith(f"{other_disk} needs 9 MiB, 9 MiB are free")
    with pytest.raises(Failure, match=f"{other_disk} needs"):
        gap(dry=False)
    free.update({os.fsencode(to): 0, os.fsencode(other_disk): 10 * MIB})
    with pytest.raises(Failure, match=f"{to} needs 1 B, 0 B are free"):
        gap(dry=False)
    assert not staging_in(other_disk).exists()


def test_where_other_disks_begin(tmp_path, other_disk):
    """Links, links below links, links back, and mount points of the same file system."""
    data, to = tmp_path / "data", tmp_path / "to"
    make(data, {b"big/deep/back/x": b"", b"big/far/x": b"", b"same/in/x": b"", b"m/n/x": b""})
    make(to, {b"m/n/y": b""})
    make(tmp_path / "near", {b"in/y": b""})
    make(other_disk, {b"deep/y": b"", b"far/y": b""})
    (to / "big").symlink_to(other_disk)
    (other_disk / "deep" / "back").symlink_to(tmp_path / "near")
    (to / "same").symlink_to(tmp_path / "near")
    entries = entries_of(data)
    mounts = {b"/", b"/dev/shm", os.fsencode(to / "m"), os.fsencode(tmp_path / "near" / "in")}
    root = os.fsencode(to)
    found = other_disks(root, entries, frozenset(), mounts)
    assert found == {
        b"big": os.fsencode(other_disk),
        b"big/deep/back": root,
        b"m": os.fsencode(to / "m"),
        b"same/in": os.fsencode(tmp_path / "near" / "in"),
    }
    number = next(n for n, entry in enumerate(entries) if entry.path == b"big")
    later = other_disks(root, entries, frozenset({number}), mounts)
    assert b"big" not in later
    staging = Staging(root)
    staging.use_disks(found)
    at = {entry.path: staging.folder_of(entry).parent for entry in entries if entry.kind == "f"}
    assert at == {
        b"big/deep/back/x": root,
        b"big/far/x": os.fsencode(other_disk),
        b"same/in/x": os.fsencode(tmp_path / "near" / "in"),
        b"m/n/x": os.fsencode(to / "m"),
    }


def test_a_tools_file_is_copied_to_its_disk_with_its_holes(linked, other_disk):
    """From S3, a tool puts all files into one folder, on the disk that gets most bytes."""
    data, to = linked
    entries = entries_of(data)
    staging = Staging(os.fsencode(to))
    staging.use_disks({b"big": os.fsencode(other_disk)})
    staging.acquire(entries)
    assert staging.tool_folder(entries) == os.fsencode(staging_in(other_disk))
    assert staging.tool_folder(entries[-1:]) == os.fsencode(staging_in(to))
    come = staging_in(to) / "come"
    with come.open("wb") as file:
        file.seek(8 * MIB)
        file.write(b"end")
        file.truncate(9 * MIB)
    [entry] = (entry for entry in entries if entry.path == b"big/a")
    brought = os.fsdecode(staging.on_own_disk(entry, os.fsencode(come)))
    status = os.stat(brought)
    assert status.st_dev == other_disk.stat().st_dev
    assert status.st_blocks * 512 < MIB
    assert Path(brought).read_bytes() == bytes(8 * MIB) + b"end" + bytes(MIB - 3)
    assert not come.exists()
    assert staging.on_own_disk(entry, os.fsencode(brought)) == os.fsencode(brought)
    staging.release(clear=True)


@pytest.mark.parametrize("seed", range(20))
def test_a_copy_with_holes_is_the_same_file(tmp_path, seed):
    draw = random.Random(seed)
    with (tmp_path / "one").open("wb") as file:
        for _ in range(draw.randrange(12)):
            file.seek(draw.randrange(4 * MIB))
            file.write(draw.randbytes(draw.randrange(3 * 4096)))
        file.truncate(draw.randrange(5 * MIB))
    copy_with_holes(os.fsencode(tmp_path / "one"), os.fsencode(tmp_path / "two"))
    assert (tmp_path / "two").read_bytes() == (tmp_path / "one").read_bytes()
    assert (tmp_path / "two").stat().st_blocks <= (tmp_path / "one").stat().st_blocks


def test_a_file_with_very_many_holes_keeps_them(relays, tmp_path):
    data, to = tmp_path / "data", tmp_path / "to"
    data.mkdir()
    with (data / "sparse").open("wb", buffering=0) as file:
        for number in range(12_000):
            file.seek(number * 16384)
            file.write(b"%4d" % (number % 1000))
        file.truncate(12_000 * 16384)
    relays.copy(relays.source(f"{data}/"), relays.target(to), block_bytes=1 << 22)
    paths = [os.fsencode(folder / "sparse") for folder in (data, to)]
    assert len(set(digests_of_files(paths))) == 1
    # The file systems of both are the same, apart from the blocks that list the segments.
    assert (to / "sparse").stat().st_blocks < 1.1 * (data / "sparse").stat().st_blocks
