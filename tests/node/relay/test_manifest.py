from __future__ import annotations

import json
import zlib
from random import Random

import pytest

from clusterctl.node.relay import manifest
from clusterctl.node.relay.entries import Entries
from clusterctl.node.relay.layout import Layout
from clusterctl.node.relay.manifest import BadManifest, Entry, as_stream, encode, head_of, read

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


def decode(parts):
    return list(manifest.decode(parts))


def test_a_manifest_is_read_back_unchanged():
    assert decode(encode(ENTRIES)) == ENTRIES
    assert list(encode(ENTRIES)) == list(encode(Entries(ENTRIES)))
    assert head_of(encode(ENTRIES)) != head_of(encode(ENTRIES[1:]))
    assert decode(encode([])) == []


@pytest.mark.parametrize("between", [0, 3, 2000])
def test_a_root_that_occurs_twice_is_refused(between):
    """All that is below the first one would look extra to --delete."""
    root = Entry(b".", "d", 0o755, 1)
    files = [Entry(b"%05d" % number, "f", 0o600, 1) for number in range(between)]
    with pytest.raises(BadManifest):
        decode(encode([root, *files, root]))
    assert decode(encode([root, *files])) == [root, *files]


def a_name(random):
    size = random.choice([1, 2, 3, 255])
    letters = [b"a", b"b", b".", b"-", b"\n", b"\\", b'"', b"\xff", b"\x01", "ü⚙".encode()]
    name = b"".join(random.choice(letters) for _ in range(size))[:255]
    return b"x" if name in (b".", b"..") else name


def a_tree(random):
    """Return the entries of a random tree in the manifest's order."""
    folders, found = [b""], {}
    for _ in range(random.choice([0, 1, 5, 60])):
        path = random.choice(folders) + a_name(random)
        if path in found or path + b"/" in folders:
            continue
        kind = random.choice("ffdl")
        size, segments = (
            random.choice([0, 1, 1 << 16, 1 << 40, 1 << 70]) if kind == "f" else 0,
            None,
        )
        if size >= 1 << 16 and random.random() < 0.3:
            segments = ((0, 4), (50, random.randrange(1, 60))) if random.random() < 0.7 else ()
        mtime_ns = random.choice([0, -1, 1, 1 << 62, -(1 << 63), 1 << 63, 1 << 64])
        found[path] = Entry(
            path,
            kind,
            random.randrange(0o10000),
            mtime_ns,
            size,
            a_name(random) if kind == "l" else b"",
            segments,
            random.choice([b"", random.randbytes(32), bytes(32)]) if kind == "f" else b"",
            random.choice([0, 1 << 62, 1 << 63]) if size >= 1 << 16 else 0,
        )
        if kind == "d":
            folders.append(path + b"/")
    root = [Entry(b".", "d", 0o755, 1)] * random.choice([0, 1])
    return root + sorted(found.values(), key=lambda entry: manifest.sort_key(entry.path))


@pytest.mark.parametrize("rows", [1, 3, 1000])
def test_any_tree_is_read_back_unchanged(monkeypatch, rows):
    monkeypatch.setattr(manifest, "ROWS", rows)
    for seed in range(60):
        random = Random(seed)
        tree = a_tree(random)
        table, parts = Entries(tree), list(encode(tree))
        assert list(table) == tree
        assert [table[n] for n in range(len(tree))] == table[:] == tree
        assert [table.path(n) for n in range(len(tree))] == [entry.path for entry in tree]
        folders = [n for n, entry in enumerate(tree) if entry.kind == "d"]
        assert list(table.of_kind("d")) == folders
        assert list(encode(table)) == parts
        assert decode(parts) == tree
        stream, at = as_stream(parts), random.randrange(1, 50)
        pieces = [stream[n : n + at] for n in range(0, len(stream), at)]
        assert list(read(pieces)) == tree
        cut = random.randrange(len(stream))
        with pytest.raises(BadManifest):
            list(read([stream[:cut]]))


def test_a_part_ends_before_it_is_large():
    long = [Entry(b"%07d" % n + b"\xff" * 60_000, "f", 0o644, 1) for n in range(40)]
    torn = Entry(b"z", "f", 0o644, 1, 10**15, segments=tuple((n * 10**10, 1) for n in range(10**5)))
    parts = list(encode([*long, torn, torn._replace(path=b"zz")]))
    assert max(len(zlib.decompress(part)) for part in parts) <= manifest.MOST_BYTES
    assert decode(parts) == [*long, torn, torn._replace(path=b"zz")]


def test_a_part_that_inflates_to_too_much():
    with pytest.raises(BadManifest, match="a part is too large"):
        decode([zlib.compress(b"[" + b" " * (9 << 20) + b"]")])


def test_what_follows_the_end_is_refused():
    with pytest.raises(BadManifest, match="something follows its end"):
        list(read([as_stream(encode(ENTRIES)) * 2]))


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
        decode([zlib.compress(json.dumps([bad]).encode())])


@pytest.mark.parametrize(
    "part",
    [
        b"x",
        next(encode(ENTRIES))[:-1],
        next(encode(ENTRIES)) + b"x",
        zlib.compress(b"{"),
        zlib.compress(b'[["x","f",1,1,Infinity]]'),
        zlib.compress(b"[" * 100_000),
        zlib.compress(b"{}"),
        zlib.compress(b"7"),
    ],
)
def test_invalid_bytes_are_refused(part):
    with pytest.raises(BadManifest):
        decode([part])


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
