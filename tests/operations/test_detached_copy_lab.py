"""`copy --detach` on hosts of the lab: data goes to the head node, and on from there without us."""

from __future__ import annotations

import json
import os
import re

import pytest

from tests.pair import eventually

pytestmark = pytest.mark.lab
MIB = 1 << 20
SUMS = "cd {0} && find . -type f -print0 | sort -z | xargs -0 sha256sum"


@pytest.fixture
def place(pair, request):
    """Return a destination in both home folders that no other test uses. End all jobs."""
    name = f"detached-{request.node.name[:40]}"
    yield name
    pair.ctl("cancel")
    for node in (0, 1):
        pair.on(node, f"rm -rf '{name}' ~/.clusterctl/jobs/*")


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "set"
    (folder / "with space" / "empty folder").mkdir(parents=True)
    (folder / "large").write_bytes(os.urandom(24 * MIB))
    (folder / "with space" / "ünï\n").write_text("small")
    (folder / "empty").write_bytes(b"")
    return folder


def detached(pair, *words):
    """Start `copy --detach WORDS`. Return the id of its job."""
    out = pair.ok("copy", "--detach", "--json", *words)
    last = json.loads(out.splitlines()[-1])
    assert last["event"] == "job", last
    return last["job_id"]


def job(pair, job_id):
    out = pair.ok("jobs", "--json")
    [found] = [one for one in json.loads(out) if one["job_id"] == job_id]
    return found


def finished(pair, *words):
    """Run `copy --detach WORDS`. Return its job's output and record, after it has succeeded."""
    job_id = detached(pair, *words)
    out = pair.ok("logs", "-f", job_id)
    return out, job(pair, job_id)


def test_the_others_get_what_was_brought_and_nothing_else(pair, place, source):
    pair.on(0, f"mkdir {place} && echo private >{place}/mine")
    out, ended = finished(pair, f"{source}/", f"~/{place}/")
    assert "pair-1: 3 files, 24.0 MiB in " in out
    assert pair.on(1, f"ls -A {place}; ls -A '{place}/with space'").split("\n")[:4] == [
        *("empty", "large", "with space", "empty folder")
    ]
    assert (ended["state"], ended["exit_status"]) == ("succeeded", 0)
    assert (ended["preset"], ended["destination"]) == ("copy", f"~/{place}")
    finished(pair, "--delete", f"{source}/", f"~/{place}/")
    assert pair.on(0, f"ls {place}") == "empty\nlarge\nwith space\n"
    assert pair.on(0, SUMS.format(place)) == pair.on(1, SUMS.format(place)) != ""
    finished(pair, f"{source}/empty", f"~/{place}/another name")
    for node in (0, 1):
        assert pair.on(node, f"cd {place} && ls 'another name'") == "another name\n"


@pytest.mark.all
def test_a_reboot_of_the_head_node_and_the_same_again(pair, place):
    """A second copy to the same place is refused while one runs. The next one resumes a copy that
    was cut off."""
    pair.on(0, f"mkdir {place}; head -c 96000000 /dev/urandom >{place}/large")
    again = ("--from", "0", f"~/{place}/", f"{place}")
    with pair.fault(0, "shape", "--rate", "8mbit"):
        first = detached(pair, *again)
        parts = f"du -sm {place}/.clusterctl-copy 2>/dev/null | cut -f1"
        eventually(lambda: int(pair.on(1, parts) or 0) > 4, "some of it on the other node")
        pair.ends(1, f"job {first} copies to ~/{place} on pair already", "copy", "--detach", *again)
        assert pair.ctl("reboot", "--nodes", "0", "--force")[0] == 0
    assert job(pair, first)["state"] == "lost"
    second = detached(pair, *again)
    out = pair.ok("logs", "-f", second)
    [came] = re.findall(r"pair-1 +1 +([0-9.]+) MiB", out)
    assert float(came) < 88, out
    assert pair.on(0, SUMS.format(place)) == pair.on(1, SUMS.format(place)) != ""


def parts_of(pair, place, command, *words):
    """Return what `disk` or `clean-logs --copies` shows for the copy to this place."""
    found = json.loads(pair.ok(command, *words, "--json"))["copies"]
    return [(one["host"], one["in_use"]) for one in found if one["path"].endswith(f"/{place}")]


@pytest.mark.all
def test_cancel_keeps_what_came_until_it_is_discarded(pair, place, source):
    parts = f"du -sm {place}/.clusterctl-copy 2>/dev/null | cut -f1"
    with pair.fault(0, "shape", "--rate", "8mbit"):
        pair.on(0, f"mkdir {place}; head -c 96000000 /dev/urandom >{place}/large")
        job_id = detached(pair, "--from", "0", f"{place}/", place)
        eventually(lambda: int(pair.on(1, parts) or 0) > 2, "some of it on the other node")
        assert parts_of(pair, place, "clean-logs", "--copies") == [("pair-1", True)]
        assert pair.ctl("cancel", job_id)[0] == 0
    assert job(pair, job_id)["state"] == "cancelled"
    assert int(pair.on(1, parts)) > 2
    pair.on(1, f"touch {place}/another")
    assert parts_of(pair, place, "disk") == [("pair-1", False)]
    assert parts_of(pair, place, "clean-logs", "--copies", "--dry-run") == [("pair-1", False)]
    status, out, err = pair.ctl("clean-logs", "--copies")
    assert (status, f"/{place} " in out, "freed " in out) == (0, True, True), (out, err)
    assert pair.on(1, f"ls -A {place}") == "another\n"
    assert parts_of(pair, place, "disk") == []
    # Files of a killed sync from S3 are left-overs as well, not data. A complete copy to the same
    # place removes them.
    left = f"{place}/.clusterctl-copy/s3-a/0"
    pair.on(1, f"mkdir -p {left}; echo part >{left}/f")
    assert parts_of(pair, place, "disk") == [("pair-1", False)]
    assert pair.ctl("copy", "--from", "1", f"{place}/", place)[0] == 0
    assert pair.on(0, f"ls -A {place}") == "another\nlarge\n"
    assert parts_of(pair, place, "disk") == []


def test_of_an_empty_folder_nothing_else_is_copied(pair, place, tmp_path):
    """Otherwise everything in the head node's DST would be copied."""
    pair.on(0, f"mkdir {place} && echo private >{place}/mine")
    pair.ends(2, "there is nothing in", "copy", "--detach", f"{tmp_path}/", place)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--nodes", "1", ".", "x"), "not among these nodes"),
        (("--head", ".", "x"), "no node but the head node"),
        (("--dry-run", ".", "x"), "exclude each other"),
        (("s3://bucket/x", "--encrypt", "x"), "S3 has TLS of its own"),
        (("--nodes", "0", "--from", "1", "y", "x"), "has to be among"),
    ],
)
def test_what_cannot_go_on_alone(pair, words, says):
    pair.ends(2, says, "copy", "--detach", *words)
