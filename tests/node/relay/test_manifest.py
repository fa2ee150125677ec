from __future__ import annotations

import json
import zlib

import pytest

from clusterctl.node.relay.layout import Layout
from clusterctl.node.relay.manifest import BadManifest, Entry, decode, digest_of, encode

ENTRIES = [
    Entry(b".", "d", 0o755, 1),
    Entry(b"a\xff\n'\"", "f", 0o4644, -5, 10),
    Entry(b"d/l", "l", 0o777, 1, 0, b"../\xfe x"),
    Entry(b"d-e", "f", 0o600, 1, 1 << 20, b"", (), changed_ns=2**62),
    Entry(b"h", "f", 0o600, 1, 3, digest=b"\x01" * 32),
    Entry(b"hole", "f", 0o600, 1, 1 << 50, b"", ()),
    Entry(b"s", "f", 0o600, 1, 100, b"", ((0, 4), (50, 6))),
    Entry("ü⚙".encode(), "f", 0, 2**62, 0),
]


def test_a_manifest_is_read_back_unchanged():
    assert decode(encode(ENTRIES)) == ENTRIES
    assert encode(ENTRIES) == encode(list(ENTRIES))
    assert digest_of(encode(ENTRIES)) != digest_of(encode(ENTRIES[1:]))
    assert decode(encode([])) == []


@pytest.mark.parametrize(
    "paths",
    [
        ("a", "a"),
        ("b", "a"),
        ("l@", "l/evil"),
        ("l@", "l", "l/evil"),
        ("f", "f/x"),
        ("d/l@", "d/l/deep/evil"),
    ],
)
def test_nothing_is_below_what_is_no_folder(paths):
    """Otherwise a link with a file below it would lead out of the destination."""
    entries = [
        Entry(path.rstrip("@").encode(), "l", 0o777, 1, link=b"/outside")
        if path.endswith("@")
        else Entry(path.encode(), "f", 0o644, 1)
        for path in paths
    ]
    with pytest.raises(BadManifest):
        decode(encode(entries))


def row(**changed):
    fields = {"path": "x", "kind": "f", "mode": 0o644, "mtime": 1, "size": 1, "more": {}}
    return list({**fields, **changed}.values())


@pytest.mark.parametrize(
    "bad",
    [
        row(path="../x"),
        row(path="a/../../x"),
        row(path="/etc/passwd"),
        row(path=""),
        row(path="a//b"),
        row(path="a/."),
        row(path="."),
        row(path="nul\0"),
        row(path="x" * 70_000),
        row(path=7),
        row(kind="p"),
        row(kind="l"),
        row(kind="d", more={"l": "x"}),
        row(mode=0o100644),
        row(mode="rwx"),
        row(size=-1),
        row(size=None),
        row(more={"s": [[0, 2]]}),
        row(more={"s": [[0, 1], [0, 1]]}),
        row(more={"s": [[0, 0]]}),
        row(more={"s": [[-1, 1]]}),
        row(more={"h": "00"}),
        row(more={"h": "xyz"}),
        row(more={"l": "a\0b"}),
        [],
        {},
        "x",
        None,
        ["x", "f"],
    ],
    ids=str,
)
def test_invalid_entries_are_refused(bad):
    with pytest.raises(BadManifest):
        decode(zlib.compress(json.dumps([bad]).encode() + b"\n"))


@pytest.mark.parametrize("blob", [b"", b"x", encode(ENTRIES)[:-1], zlib.compress(b"{")])
def test_invalid_bytes_are_refused(blob):
    with pytest.raises(BadManifest):
        decode(blob)


@pytest.mark.parametrize("block_bytes", [1, 3, 8, 20, 23, 24, 1000])
def test_blocks_cover_the_data_once_and_in_order(block_bytes):
    layout = Layout(ENTRIES, block_bytes)
    assert layout.total == 10 + 4 + 6 + 3
    assert layout.blocks == -(-23 // block_bytes)
    covered = []
    for block in range(layout.blocks):
        extents = layout.extents(block)
        assert sum(extent.length for extent in extents) == layout.length(block)
        covered += [(e.entry, e.offset + n) for e in extents for n in range(e.length)]
    wanted = [(n, offset + i) for n, e in enumerate(ENTRIES) for offset, length in e.data
              for i in range(length)]  # fmt: skip
    assert covered == wanted
    for segment, blocks in enumerate(layout.by_entry()):
        owner = layout.owner_of(segment)
        assert all(owner in [e.entry for e in layout.extents(block)] for block in blocks)


def test_without_data_there_are_no_blocks():
    assert Layout([Entry(b"e", "f", 0, 0)], 8).blocks == 0
    assert list(Layout([], 8).by_entry()) == []


@pytest.mark.parametrize(
    ("files", "order"),
    [
        (1, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        (2, [0, 3, 1, 4, 2, 5, 7, 6, 8, 9]),
        (9, [0, 3, 7, 8, 1, 4, 9, 2, 5, 6]),
    ],
)
def test_blocks_are_taken_from_several_files_by_turns(files, order):
    """The third file has a hole; no block starts in the second file."""
    sizes = [10, 2, 14, 4, 8]
    entries = [Entry(b"%d" % n, "f", 0, 0, size) for n, size in enumerate(sizes)]
    entries[2] = entries[2]._replace(size=99, segments=((0, 4), (50, 10)))
    assert list(Layout(entries, 4).in_turns(files)) == order
