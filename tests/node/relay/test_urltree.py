"""Names at URLs become names of files, or are left out; nothing leads out of the destination."""

from __future__ import annotations

import pytest

from clusterctl.node.relay.manifest import decode, encode
from clusterctl.node.relay.urltree import (
    WARNINGS_SHOWN,
    Found,
    Origin,
    how_many_left_out,
    origin_of,
    tree_of,
    why_not,
)


def found(name: bytes, size: int = 3, source: int = 0, mtime_ns: int = 5) -> Found:
    return Found(name, source, b"p/" + name, size, mtime_ns, '"v"')


def names(*found_):
    entries, warnings = tree_of(found_)
    assert decode(encode(entries)) == entries
    return [(entry.path, entry.kind) for entry in entries], warnings


def test_folders_stand_before_what_is_in_them_and_are_as_old_as_the_newest_of_it():
    entries, warnings = tree_of([found(b"a/b/c", mtime_ns=9), found(b"a/d", mtime_ns=7)])
    assert [(e.path, e.kind, e.mtime_ns) for e in entries] == [
        (b"a", "d", 9),
        (b"a/b", "d", 9),
        (b"a/b/c", "f", 9),
        (b"a/d", "f", 7),
    ]
    assert warnings == []


@pytest.mark.parametrize(
    "name",
    [
        b"../etc/passwd",
        b"a/../../b",
        b"..",
        b".",
        b"./a",
        b"/etc/passwd",
        b"//a",
        b"a//b",
        b"a/b//",
        b"/",
        b"",
        b"a\0b",
        b".clusterctl-copy/journal",
        b".clusterctl-sync/lock",
        b"n" * 256,
        b"/".join([b"d" * 250] * 17),
        "ü".encode() * 128,
    ],
)
def test_what_no_file_can_be_called_is_left_out_with_a_warning(name):
    entries, [warning] = names(found(name, size=0), found(b"good"))
    assert entries == [(b"good", "f")]
    assert warning.startswith("left out ")
    assert warning.isprintable()


@pytest.mark.parametrize(
    "name",
    [
        b"a b'\"$;&|<>*?",
        b"new\nline",
        b"\xff\xfe",
        b"...",
        b"-rf",
        b"n" * 255,
        "ü".encode(),
        b"a/.../b",
        b"~",
    ],
)
def test_strange_names_are_names(name):
    entries, warnings = names(found(name))
    assert entries[-1] == (name, "f")
    assert warnings == []


def test_a_marker_of_a_folder_is_a_folder_unless_it_has_content():
    assert names(found(b"empty/", size=0)) == ([(b"empty", "d")], [])
    entries, [warning] = names(found(b"odd/", size=1))
    assert entries == []
    assert "content" in warning


def test_a_file_that_is_also_a_folder_gives_way():
    entries, warnings = names(found(b"a"), found(b"a/b"))
    assert entries == [(b"a", "d"), (b"a/b", "f")]
    assert warnings == ["left out a: it is a file and a folder of others"]


def test_the_later_source_wins():
    entries, warnings = tree_of([found(b"a", source=0), found(b"a", source=1)])
    assert [origin_of(entry).source for entry in entries] == [1]
    assert warnings == ["left out a: a later source has it too"]


def test_what_is_archived_is_left_out():
    assert "restore" in why_not(found(b"a")._replace(archived=True))


def test_many_warnings_of_one_kind_are_counted():
    _, warnings = tree_of([found(b"a//%d" % n) for n in range(1000)])
    assert len(warnings) == WARNINGS_SHOWN + 1
    assert warnings[-1].startswith(f"left out {1000 - WARNINGS_SHOWN} more")


def test_an_origin_survives_the_manifest():
    entries, _ = tree_of([Found(b"a", 3, b'p/\xff\n"a', 1, 2, '"x-5"')])
    [entry] = decode(encode(entries))
    assert origin_of(entry) == Origin(3, b'p/\xff\n"a', '"x-5"')


@pytest.mark.parametrize(
    ("found_", "number"),
    [
        ([], 0),
        ([found(b"a"), found(b"folder/", 0)], 0),
        ([found(b"..")], 1),
        ([found(b"folder/", 3)], 1),
        ([found(b"../x/", 0)], 1),
        ([found(b"a"), found(b"a/b")], 1),
        ([found(b"a"), found(b"a", source=1)], 1),
        ([found(b"%d/.." % n) for n in range(WARNINGS_SHOWN + 5)], WARNINGS_SHOWN + 5),
    ],
)
def test_what_is_left_out_is_counted(found_, number):
    entries, _ = tree_of(found_)
    assert how_many_left_out(found_, entries) == number
