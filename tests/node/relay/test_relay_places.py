"""Destinations of files: links, other disks, conflicting files; and the limits of --delete."""

from __future__ import annotations

import os
import random
import shutil

import pytest

from clusterctl.node.relay import protect
from clusterctl.node.relay.base import Failure
from clusterctl.node.relay.destination import Destination
from clusterctl.node.relay.entries import Entries
from clusterctl.node.relay.manifest import decode, encode
from clusterctl.node.relay.messages import Begin
from clusterctl.node.relay.protect import mount_points, protected, why_needed
from clusterctl.node.relay.scan import scan
from clusterctl.node.relay.wire import Waits
from tests.node.relay.relays import make, tree
from tests.variants import usual

MIB = 1 << 20


@pytest.fixture
def data(tmp_path):
    root = tmp_path / "data"
    big = random.Random(1).randbytes(3 * MIB)
    make(root, {b"a": b"a", b"sub/b": b"b", b"sub/big": big, b"big": big})
    return root


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_destination_that_is_a_link(relays, data, tmp_path, slash):
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    relays.copy(relays.source(f"{data}/"), relays.target(f"{tmp_path}/link{slash}"))
    assert (tmp_path / "link").is_symlink()
    assert tree(real) == tree(data)


@pytest.mark.parametrize("disk", [False, True], ids=["there", "on another disk"])
def test_a_link_of_the_source_that_is_a_folder_now_is_one_on_the_node(
    relays, data, tmp_path, other_disk, disk
):
    """The link of an earlier copy leads to other files of the copy, which do not change."""
    to, top = tmp_path / "to", data.parent / "top"
    top.mkdir()
    data.rename(top / "data")
    make(top, {b"data/v1/x": b"one", b"data/v1/old": b"old", b"data/new/deep/x": b"x"})
    (top / "data" / "latest").symlink_to("v1")
    (top / "data" / "new" / "up").symlink_to("..")
    if disk:
        to.mkdir()
        (to / "data").symlink_to(other_disk)
    relays.copy(relays.source(f"{top}/"), relays.target(to, delete=True))
    for link in ("latest", "new/up"):
        (top / "data" / link).unlink()
    make(top, {b"data/latest/x": b"two", b"data/new/up/new/deep/x": b"y", b"data/latest/d/z": b"z"})
    shutil.copy2(top / "data/v1/old", top / "data/latest/old")
    dry = relays.target(to, delete=True, dry_run=True)
    relays.begin(source := relays.source(f"{top}/"), dry)
    dry.pull_from(source)
    gap = dry.expect("gap")
    assert (gap["files"], gap["delete"]) == (4, 0)
    [done] = relays.copy(relays.source(f"{top}/"), relays.target(to, delete=True))
    assert (done["files"], done["left_out"], done["deleted"]) == (4, 0, 0)
    assert tree(to / "data") == tree(top / "data")
    assert (to / "data").is_symlink() is disk


def test_what_did_not_get_its_name_on_another_disk_goes(relays, data, tmp_path, other_disk):
    to = tmp_path / "to"
    to.mkdir()
    (to / "sub").symlink_to(other_disk)
    make(other_disk, {b"big/in the way": b""})
    target = relays.target(to)
    [done] = relays.copy(relays.source(f"{data}/"), target)
    assert done["left_out"] == 1
    assert target.stop()["clean"]
    assert sorted(os.listdir(other_disk)) == ["b", "big"]


def test_a_link_that_leads_nowhere_gives_way(relays, data, tmp_path):
    to = tmp_path / "to"
    to.mkdir()
    (to / "sub").symlink_to("/nowhere")
    (to / "a").symlink_to(data / "big")
    relays.copy(relays.source(f"{data}/"), relays.target(to))
    assert tree(to) == tree(data)
    assert (data / "big").stat().st_size == 3 * MIB


def test_a_folder_in_the_way_of_a_file_stops_no_others(relays, data, tmp_path):
    chain = [relays.target(tmp_path / "1"), relays.target(tmp_path / "2")]
    make(tmp_path / "1", {b"big/in the way": b"x"})
    first, second = relays.copy(relays.source(f"{data}/"), *chain)
    assert (first["left_out"], second["left_out"]) == (1, 0)
    assert "big: a folder with something in it is there" in first["warnings"][0]
    assert tree(tmp_path / "2") == tree(data)
    lost = [event for event in list(chain[1].events.queue) if event["event"] == "lost"]
    assert lost == []
    for target in chain:
        assert target.stop()["clean"]
    assert sorted(os.listdir(tmp_path / "1")) == ["a", "big", "sub"]


def test_a_file_that_is_a_pipe_by_now_is_not_waited_for(relays, data, tmp_path):
    source, target = relays.source(f"{data}/"), relays.target(tmp_path / "to")
    relays.begin(source, target)
    for name in ("a", "big"):
        (data / name).unlink()
        os.mkfifo(data / name)
    target.pull_from(source)
    assert target.expect("done")["left_out"] == 2


def test_nothing_is_deleted_where_the_source_could_not_be_read(relays, data, tmp_path):
    make(tmp_path / "to", {b"extra": b"x"})
    os.mkfifo(data / "fifo")  # left out, like an unreadable file
    [done] = relays.copy(relays.source(f"{data}/"), relays.target(tmp_path / "to", delete=True))
    assert done["deleted"] == 0
    assert any("nothing was deleted" in warning for warning in done["warnings"])
    assert (tmp_path / "to" / "extra").exists()


def test_a_file_that_vanishes_at_the_source_stops_the_deletion_and_that_is_said(
    relays, data, tmp_path
):
    make(tmp_path / "to", {b"extra": b"x"})
    source, target = relays.source(f"{data}/"), relays.target(tmp_path / "to", delete=True)
    relays.begin(source, target)
    (data / "a").unlink()
    target.pull_from(source)
    done = target.expect("done")
    assert (done["left_out"], done["deleted"]) == (1, 0)
    assert done["warnings"][1:] == ["nothing was deleted: not everything could be put in place"]


def test_what_is_left_out_at_the_source_mixes_no_folders_and_touches_nothing_outside(
    relays, tmp_path
):
    """If the source could not be read completely, a folder replaces no file; it does replace a link
    to another folder of the copy."""
    src, to, outside = tmp_path / "src", tmp_path / "to", tmp_path / "outside"
    make(src, {b"a/x": b"one", b"b/x": b"another", b"c/x": b"x"})
    os.mkfifo(src / "fifo")
    make(to, {b"a/y": b"y"})
    (to / "b").symlink_to("a")
    outside.write_bytes(b"o")
    outside.chmod(0o600)
    (to / "c").symlink_to(outside)
    before = outside.stat()
    dry = relays.target(to, dry_run=True)
    relays.begin(source := relays.source(f"{src}/"), dry)
    dry.pull_from(source)
    gap = dry.expect("gap")
    [done] = relays.copy(relays.source(f"{src}/"), relays.target(to))
    why = f"{to}/c: what is there is no folder, and stays while something at the source is left out"
    assert (gap["blocked"], gap["warnings"]) == (1, [f"{why}: remove or rename it"])
    assert done["left_out"] == 2
    assert done["warnings"] == [*gap["warnings"], f"{to}/c/x: Not a directory"]
    assert ((to / "a/x").read_bytes(), (to / "b/x").read_bytes()) == (b"one", b"another")
    assert os.readlink(to / "c") == str(outside)
    assert outside.stat() == before


def refuses(relays, source, to):
    """Assert that nothing is copied to `to` or deleted there."""
    source, target = relays.source(source), relays.target(to, delete=True)
    relays.begin(source, target)
    target.pull_from(source)
    failed = target.expect("failed", kind="usage")
    assert "is what is copied" in failed["why"]
    assert target.process.wait(20) == 1


def test_the_source_is_not_what_is_deleted_through_a_link(relays, tmp_path):
    data, to = tmp_path / "data", tmp_path / "to"
    make(data, {b"set/d/x": b"x"})
    to.mkdir()
    (to / "d").symlink_to(data)
    refuses(relays, f"{data}/set/", to)
    assert sorted(tree(data)) == [b"set", b"set/d", b"set/d/x"]


def test_the_source_is_not_what_is_deleted(relays, data, tmp_path):
    refuses(relays, f"{data}/sub/", data)
    listed = relays.source(f"{data}/sub/", delete_in=str(data)).expect("manifest")
    assert listed["endangered"] == f"{data}/sub"
    assert (data / "sub" / "b").read_bytes() == b"b"
    assert not (data / ".clusterctl-copy").exists()


@pytest.mark.parametrize(
    ("to", "says"),
    [
        ("data", "{home}/data ({home})"),  # a link to the home folder
        ("../home/", "../home ({home})"),
        ("..", "contains {home}"),
        ("up", "contains {home}"),  # a link
        (".ssh", "{home}/.ssh ({home}/dotfiles/ssh)"),
        (".ssh/deep", "lies in"),
        ("dotfiles", "contains {home}/.ssh"),  # ~/.ssh is a link into it
        ("dotfiles/ssh", "is {home}/.ssh"),
        (".clusterctl/jobs", "lies in"),
        ("set", "contains {home}/.ssh"),  # a folder of the copy is a link there
        ("etc/ssh", "lies in /etc"),  # a link
    ],
)
@pytest.mark.parametrize("dry", usual(1, [False, True]))
def test_delete_is_refused_where_it_would_lock_the_user_out(relays, data, to, says, dry):
    home = relays.home
    make(home, {b"work/paper.tex": b"years", b"dotfiles/ssh/authorized_keys": b"key"})
    make(home, {b".clusterctl/jobs/1/job.json": b"{}", b"set/x": b"x"})
    (home / ".ssh").symlink_to("dotfiles/ssh")
    for link, leads in (("data", "."), ("up", ".."), ("etc", "/etc"), ("set/sub", "../dotfiles")):
        (home / link).symlink_to(leads)
    before = tree(home)
    source, target = relays.source(f"{data}/"), relays.target(f"~/{to}", delete=True, dry_run=dry)
    relays.begin(source, target)
    target.pull_from(source)
    failed = target.expect("failed", kind="usage")
    assert failed["why"].startswith("--delete could remove what the node needs: ")
    assert says.format(home=home) in failed["why"]
    assert tree(home) == before


@pytest.mark.parametrize(
    ("to", "refused"),
    [
        *((to, True) for to in ("/", "/usr/local", "/etc/ssh", "/var/lib", "/opt", "/opt/amazon")),
        *((to, True) for to in ("/usr/../etc", "/lib/modules", "/proc/self", "/home/someone")),
        *((to, True) for to in ("/tmp", "/dev/shm", "/root", "/dev/new", "/srv/x/.ssh")),
        *((to, False) for to in ("/srv/data", "/tmp/set", "/dev/shm/set", "/var/tmp/set", "/data")),
    ],
)
def test_the_folders_of_the_system(to, refused):
    why = why_needed(to.encode(), protected(b"/home/ubuntu"))
    assert bool(why) is refused, why


def test_a_disk_mounted_below_opt_is_for_data(tmp_path, other_disk, monkeypatch):
    """As /opt/dlami/nvme, on images for deep learning."""
    (tmp_path / "opt" / "amazon").mkdir(parents=True)
    (tmp_path / "opt" / "nvme").symlink_to(other_disk)
    monkeypatch.setattr(protect, "_PROGRAMS", os.fsencode(tmp_path / "opt"))
    guarded = protected(b"/home/ubuntu")
    assert why_needed(os.fsencode(tmp_path / "opt/amazon/new"), guarded)
    assert not why_needed(os.fsencode(tmp_path / "opt/nvme/set"), guarded)


def test_mount_points_are_read_as_they_are_named():
    table = (
        "21 1 259:1 / / rw,relatime shared:1 - ext4 /dev/root rw\n"
        "36 21 0:31 / /data/my\\040disk rw - nfs4 fs:/ rw\n"
    )
    assert mount_points(table) == {b"/", b"/data/my disk"}


def test_delete_empties_no_disk_that_is_mounted_in_the_destination(
    relays, data, tmp_path, monkeypatch
):
    """Mounting needs privileges, so the table of mounts is a made-up one."""
    to = tmp_path / "to"
    make(to, {b"sub/x": b"x", b"shared/theirs": b"t"})
    monkeypatch.setattr(
        "clusterctl.node.relay.destination.read_mount_points",
        lambda: {b"/", os.fsencode(to / "shared")},
    )
    target = Destination({"destination": str(to), "delete": True}, Waits())
    entries = Entries(decode(encode(scan([os.fsencode(data) + b"/"], None, b"/").entries)))
    with pytest.raises(Failure, match=r"shared is a mount point, and --delete would empty it"):
        target.prepare(entries, Begin())
    target.leave()
    assert (to / "shared" / "theirs").read_bytes() == b"t"


def test_a_destination_that_was_not_there_is_not_left_behind(relays, data, tmp_path):
    to = tmp_path / "to"
    target = relays.target(to)
    source = relays.source(f"{data}/")
    relays.begin(source, target)
    target.stop()
    assert not to.exists()
