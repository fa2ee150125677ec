"""`clusterctl copy` as a user types it, to two hosts of the lab."""

from __future__ import annotations

import os

import pytest

pytestmark = pytest.mark.lab
SUMS = "cd {0} && find . -type f -print0 | sort -z | xargs -0 sha256sum"


@pytest.fixture
def source(tmp_path):
    """Return a folder of files, one of them of several blocks."""
    folder = tmp_path / "set"
    (folder / "with space").mkdir(parents=True)
    (folder / "large").write_bytes(os.urandom(3 << 20))
    (folder / "with space" / "ünï\n").write_text("small")
    (folder / "empty").write_bytes(b"")
    return folder


@pytest.fixture
def target(pair, request):
    """Return a destination in the home folder of both nodes that no other test uses."""
    name = f"copied-{request.node.name[:40]}"
    yield name
    for node in (0, 1):
        pair.on(node, f"rm -rf '{name}'")


def ok(ran) -> str:
    status, out, err = ran
    assert status == 0, (out, err)
    return out


def test_from_one_node_to_the_other(pair, source, target):
    ok(pair.ctl("copy", "--head", f"{source}/", target))
    assert pair.on(1, f"ls -d {target} 2>&1; true").startswith("ls: ")
    ok(pair.ctl("copy", "--from", "0", f"{target}/", target))
    sums = [pair.on(node, SUMS.format(target)) for node in (0, 1)]
    assert sums[0] == sums[1] != ""


def test_what_a_node_cannot_write(pair, source, target):
    pair.on(1, f"mkdir {target} && chmod 500 {target}")
    status, out, err = pair.ctl("copy", f"{source}/", f"{target}/set")
    assert status == 1
    assert out.startswith("pair-0: 3 files, 3.0 MiB in ")
    assert "pair-1: " in err
    assert "ermission denied" in err
