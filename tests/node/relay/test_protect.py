"""What --delete may never do, at random: links lead from anywhere to anywhere in a home folder."""

from __future__ import annotations

import os
import random

from clusterctl.node.relay.base import Failure
from clusterctl.node.relay.destination import Destination
from clusterctl.node.relay.entries import Entries
from clusterctl.node.relay.manifest import decode, encode
from clusterctl.node.relay.messages import Begin
from clusterctl.node.relay.scan import scan
from clusterctl.node.relay.wire import Waits
from tests.node.relay.relays import make, tree

FOLDERS = ["", "data", "data/a", "data/a/b", "work", "work/a", "keys", "keys/ssh", "state"]


def world(draw, top):
    """Make a home folder with links at random, and a source. Return them and a DST."""
    home, source = top / "homes" / "me", top / "source"
    make(home, {b"keys/ssh/authorized_keys": b"key", b"state/jobs/1/job.json": b"job"})
    make(home, {b"work/a/paper.tex": b"years", b"data/a/b/x": b"x", b"data/a/old": b"old"})
    if draw.random() < 0.5:
        (home / ".ssh").symlink_to("keys/ssh")
    else:
        (home / "keys" / "ssh").rename(home / ".ssh")
        (home / "keys" / "ssh").symlink_to("../.ssh")
    (home / ".clusterctl").symlink_to("state")
    links = []
    for number in range(draw.randrange(1, 5)):
        at = home / draw.choice(["", "data", "data/a", "work"]) / f"l{number}"
        at.symlink_to(draw.choice([home / draw.choice(FOLDERS), "..", ".", "../..", home / ".ssh"]))
        links.append(str(at.relative_to(home)))
    # Folders of the source may be links at the destination.
    for name in draw.sample(["a", "a/b", "l0", "l1", "l0/a", "ssh", "x"], 4):
        make(source / name, {b"new": b"new"})
    parts = [draw.choice([*FOLDERS, *links]), draw.choice(["", "", "..", ".", "l0", "a"])]
    return home, source, str(home / parts[0] / parts[1])


def test_delete_never_takes_the_way_to_log_in(tmp_path, monkeypatch):
    for seed in range(200):
        try_world(tmp_path / str(seed), monkeypatch, seed)


def try_world(top, monkeypatch, seed):
    home, source, to = world(random.Random(seed), top)
    monkeypatch.setenv("HOME", str(home))
    before = tree(top / "homes")
    target = Destination({"destination": to, "delete": True}, Waits())
    entries = Entries(decode(encode(scan([os.fsencode(source) + b"/"], None, b"/").entries)))
    entries = Entries(one._replace(size=0) if one.kind == "f" else one for one in entries)
    try:
        target.prepare(entries, Begin())
        refused = False
    except (Failure, OSError):
        refused = True
    if not refused:
        target.finish()
    target.leave()
    assert (home / ".ssh" / "authorized_keys").read_bytes() == b"key"
    assert (home / ".clusterctl" / "jobs" / "1" / "job.json").read_bytes() == b"job"
    for name in ("work", "data", "keys", ".ssh", ".clusterctl"):
        assert os.path.lexists(home / name)
    if refused:
        assert tree(top / "homes") == before
