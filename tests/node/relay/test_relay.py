"""Relays as real processes with real sockets: the data arrives unchanged."""

from __future__ import annotations

import os
import random

import pytest

from tests.node.relay.relays import make, tree
from tests.pythons import python_or_skip
from tests.variants import usual

HOSTILE = {
    b"plain": b"x",
    b"empty": b"",
    b"with space": b"y" * 10,
    b"quo'te\"s; rm -rf ~": b"z" * 1000,
    b"new\nline": b"\n",
    b"not \xff\xfe utf-8": b"bytes",
    "Großrechner ⚙".encode(): b"unicode",
    b"-rf": b"dash",
    b"a/b/c/d/deep": b"deep",
    b"n" * 255: b"long",
    b"zeros": bytes(300_000),
}


@pytest.fixture
def data(tmp_path):
    root = tmp_path / "data"
    big = random.Random(4).randbytes(1_234_567)
    make(root, {**HOSTILE, b"big": big, b"sub/more": big[:700_001]})
    (root / "link").symlink_to("plain")
    (root / "dangling").symlink_to("/nowhere/at all")
    (root / "empty folder").mkdir(mode=0o750)
    (root / "plain").chmod(0o751)
    (root / "a").chmod(0o500)
    with open(root / "sparse", "wb") as file:
        file.truncate(3_000_000)
        file.seek(1_000_000)
        file.write(b"data")
    os.utime(root / "big", ns=(1, 1_234_567_890_123_456_789))
    return root


def test_a_chain_of_three(relays, data, tmp_path):
    source = relays.source(f"{data}/")
    targets = [relays.target(tmp_path / f"to {n}") for n in range(3)]
    done = relays.copy(source, *targets)
    files = [path for path in data.rglob("*") if path.is_file() and not path.is_symlink()]
    for n, event in enumerate(done):
        assert (event["files"], event["links"]) == (len(files), 2), "a link is no file"
        assert tree(tmp_path / f"to {n}") == tree(data)
        assert event["warnings"] == []
        sparse = (tmp_path / f"to {n}" / "sparse").stat()
        assert sparse.st_blocks * 512 < 1_000_000
    assert [target.stop() for target in targets] == [{"event": "bye", "clean": True}] * 3


@pytest.mark.parametrize("block_bytes", [1000, 1 << 20])
def test_blocks_of_any_size(relays, data, tmp_path, block_bytes):
    target, last = relays.target(tmp_path / "one"), relays.target(tmp_path / "two")
    relays.copy(relays.source(f"{data}/"), target, last, block_bytes=block_bytes)
    assert tree(tmp_path / "one") == tree(tmp_path / "two") == tree(data)


@pytest.mark.parametrize("version", usual(1, ["3.8", "3.9", "3.10", "3.12", "3.13"]))
def test_with_older_and_newer_pythons(relays, data, tmp_path, version):
    source = relays.source(f"{data}/")
    relays.python = str(python_or_skip(version))
    targets = [relays.target(tmp_path / "one"), relays.target(tmp_path / "two", checksum=True)]
    relays.copy(source, *targets)
    assert tree(tmp_path / "one") == tree(tmp_path / "two") == tree(data)


@pytest.mark.parametrize(
    ("dst", "there"),
    [("new name", "new name"), ("folder/", "folder/one file"), ("exists", "exists/one file")],
)
def test_one_file(relays, tmp_path, dst, there):
    make(tmp_path, {b"one file": b"content"})
    (tmp_path / "to" / "exists").mkdir(parents=True)
    relays.copy(relays.source(f"{tmp_path}/one file"), relays.target(f"{tmp_path}/to/{dst}"))
    assert (tmp_path / "to" / there).read_bytes() == b"content"
    assert not list((tmp_path / "to").rglob(".clusterctl-copy"))


def test_nothing_but_empty_things(relays, tmp_path):
    make(tmp_path / "data", {b"empty": b"", b"folder/empty": b""})
    relays.copy(relays.source(f"{tmp_path}/data"), relays.target("~/to"))
    assert tree(relays.home / "to" / "data") == tree(tmp_path / "data")
