"""Relays with a source at URLs: each node by itself, in shares, and in a chain."""

from __future__ import annotations

import random

import pytest

from tests.node.relay.relays import tree
from tests.pythons import python_or_skip

DATA = random.Random(7)
OBJECTS = {
    "set/big": DATA.randbytes(700_001),
    "set/sub/more": DATA.randbytes(300_000),
    "set/empty": b"",
    "set/sub folder/": b"",
    **{f"set/small/{n:03}": b"%d" % n for n in range(50)},
}
BLOCK = 1 << 16


@pytest.fixture(scope="module")
def place(s3):
    return s3.bucket(OBJECTS) + "/set/"


def is_there(folder):
    have = {path: content for path, (_, _, content) in tree(folder).items()}
    files = {path.decode(): content for path, content in have.items() if content is not None}
    assert files == {key[4:]: body for key, body in OBJECTS.items() if not key.endswith("/")}
    assert b"sub folder" in have


def begin(relays, s3, place, *destinations):
    config = s3.config(place)
    source = relays.source(urls=config)
    targets = [relays.target(destination, urls=config) for destination in destinations]
    manifest = relays.begin(source, *targets, block_bytes=BLOCK)
    return source, targets, -(-manifest["bytes"] // BLOCK)


def test_each_by_itself(relays, s3, place, tmp_path):
    source, targets, blocks = begin(relays, s3, place, tmp_path / "0", tmp_path / "1")
    for target in targets:
        target.tell("manifest_from", address=source.address, port=source.port)
        target.tell("fetch", ranges=[[0, blocks]])
    for number, target in enumerate(targets):
        assert target.expect("done")["warnings"] == []
        is_there(tmp_path / str(number))
    assert tree(tmp_path / "0") == tree(tmp_path / "1")


def test_in_shares(relays, s3, place, tmp_path):
    folders = [tmp_path / str(number) for number in range(3)]
    source, targets, blocks = begin(relays, s3, place, *folders)
    bounds = [blocks * n // 3 for n in range(4)]
    for number, target in enumerate(targets):
        target.tell("manifest_from", address=source.address, port=source.port)
        target.tell("fetch", ranges=[[bounds[number], bounds[number + 1]]])
        target.pull_from(targets[number - 1], f"node {number - 1}")
    for target, folder in zip(targets, folders):
        target.expect("done")
        is_there(folder)


def test_in_a_chain_that_one_reads(relays, s3, place, tmp_path):
    config = s3.config(place)
    source = relays.source(urls=config)
    targets = [relays.target(tmp_path / "0"), relays.target(tmp_path / "1")]
    relays.copy(source, *targets)
    is_there(tmp_path / "0")
    is_there(tmp_path / "1")


def test_a_second_time_nothing_moves(relays, s3, place, tmp_path):
    for expected in (sum(map(len, OBJECTS.values())), 0):
        source, [target], blocks = begin(relays, s3, place, tmp_path / "0")
        target.tell("manifest_from", address=source.address, port=source.port)
        target.tell("fetch", ranges=[[0, blocks]])
        assert target.expect("gap")["bytes"] == expected
        target.expect("done")
        target.stop()
        source.stop()
    is_there(tmp_path / "0")


def mirror(relays, s3, place, destination):
    """One whole copy with --delete: what `gap` and `done` said."""
    config = s3.config(place, mirror=True)
    source = relays.source(urls=config)
    target = relays.target(destination, urls=config, delete=True)
    manifest = relays.begin(source, target, block_bytes=BLOCK)
    target.tell("manifest_from", address=source.address, port=source.port)
    target.tell("fetch", ranges=[[0, -(-manifest["bytes"] // BLOCK)]])
    gap, done = target.expect("gap"), target.expect("done")
    target.stop()
    source.stop()
    return gap, done


def test_what_no_source_has_is_deleted_at_the_top_too(relays, s3, place, tmp_path):
    folder = tmp_path / "0"
    mirror(relays, s3, place, folder)
    (folder / "stale").write_text("x")
    (folder / "stale folder").mkdir()
    (folder / "stale folder" / "x").write_text("x")
    (folder / "sub" / "stale").write_text("x")
    gap, done = mirror(relays, s3, place, folder)
    assert (gap["delete"], done["deleted"], gap["bytes"]) == (4, 4, 0)
    is_there(folder)
    mirror(relays, s3, place, folder)
    folder.chmod(0o700)
    before = folder.stat()
    gap, done = mirror(relays, s3, place, folder)
    assert (gap["delete"], gap["files"], done["warnings"]) == (0, 0, [])
    assert (folder.stat().st_mtime_ns, folder.stat().st_ctime_ns) == (
        before.st_mtime_ns,
        before.st_ctime_ns,
    )


def test_what_is_archived_now_is_not_deleted(relays, s3, tmp_path):
    place = s3.bucket({"a": b"1"})
    s3.client.put_object(Bucket=place, Key="old", Body=b"2", StorageClass="GLACIER")
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "old").write_text("2")
    gap, done = mirror(relays, s3, place, tmp_path / "0")
    assert (gap["delete"], done["deleted"]) == (0, 0)
    assert (tmp_path / "0" / "old").exists()


def test_beside_one_object_nothing_is_deleted(relays, s3, tmp_path):
    place = s3.bucket({"path/model": b"weights"}) + "/path/model"
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "own").write_text("x")
    gap, done = mirror(relays, s3, place, tmp_path / "0")
    assert (gap["delete"], done["deleted"]) == (0, 0)
    assert sorted(path.name for path in (tmp_path / "0").iterdir()) == ["model", "own"]


def test_one_object_with_a_new_name(relays, s3, tmp_path):
    place = s3.bucket({"path/to/model.bin": b"weights"}) + "/path/to/model.bin"
    source = relays.source(urls=s3.config(place))
    relays.copy(source, relays.target(tmp_path / "new name"))
    assert (tmp_path / "new name").read_bytes() == b"weights"


def test_an_object_that_changes_meanwhile_is_left_out_and_named(relays, s3, tmp_path):
    bucket = s3.bucket({"good": b"g" * 100_000, "other": b"o" * 100_000})
    source, [target], blocks = begin(relays, s3, bucket, tmp_path / "0")
    s3.client.put_object(Bucket=bucket, Key="other", Body=b"x" * 100_000)
    target.tell("manifest_from", address=source.address, port=source.port)
    target.tell("fetch", ranges=[[0, blocks]])
    done = target.expect("done")
    assert (tmp_path / "0" / "good").read_bytes() == b"g" * 100_000
    assert not (tmp_path / "0" / "other").exists()
    assert [warning for warning in done["warnings"] if "other" in warning]


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("no-such-bucket/x", "there is no bucket no-such-bucket"),
        ("{bucket}/nothing", "there is nothing at s3://{bucket}/nothing"),
    ],
)
def test_what_is_not_there_is_said(relays, s3, place, why):
    bucket = s3.bucket({"a": b""})
    source = relays.source(urls=s3.config(place.format(bucket=bucket)))
    failed = source.events.get(timeout=60)
    while failed["event"] == "progress":
        failed = source.events.get(timeout=60)
    assert failed["event"] == "failed"
    assert failed["why"] == why.format(bucket=bucket)
    assert failed["hint"]


@pytest.mark.parametrize("size", [1, 100, BLOCK, BLOCK + 1])
def test_one_small_object_by_each_itself(relays, s3, tmp_path, size):
    place = s3.bucket({"validation": b"v" * size})
    source, targets, blocks = begin(relays, s3, place, tmp_path / "0", tmp_path / "1")
    for target in targets:
        target.tell("manifest_from", address=source.address, port=source.port)
        target.tell("fetch", ranges=[[0, blocks]])
    for number, target in enumerate(targets):
        target.expect("done")
        assert (tmp_path / str(number) / "validation").read_bytes() == b"v" * size


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.12", "3.13"])
def test_on_other_pythons(relays, s3, place, tmp_path, version):
    relays.python = str(python_or_skip(version))
    test_each_by_itself(relays, s3, place, tmp_path)
