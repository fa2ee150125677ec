"""rsync's meaning of SRC, compared with rsync itself if possible."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess

import pytest

from clusterctl.node.relay.compare import compare, destination, find_destination, place
from clusterctl.node.relay.entries import Entries
from clusterctl.node.relay.hashing import digests_of_files
from clusterctl.node.relay.manifest import Entry
from clusterctl.node.relay.scan import SourceError, endangered, few_segments, scan, segments_of
from tests.node.relay.relays import make


@pytest.fixture
def data(tmp_path):
    root = tmp_path / "data"
    make(root, {b"a": b"1", b"b c": b"2", b"d/e": b"3", b"d/\xff": b"4", b"x*y": b"5"})
    (root / "l").symlink_to("d")
    return root


def names(found):
    return sorted(entry.path for entry in found.entries)


def rsync_names(tmp_path, sources):
    to = tmp_path / "rsync"
    to.mkdir()
    subprocess.run(["rsync", "-a", *sources, f"{to}/"], check=True, capture_output=True)
    base = os.fsencode(to)
    found = [
        os.path.relpath(os.path.join(folder, name), base)
        for folder, folders, files in os.walk(base)
        for name in [*folders, *files]
    ]
    return sorted(found)


@pytest.mark.skipif(not shutil.which("rsync"), reason="needs rsync")
@pytest.mark.parametrize(
    "sources",
    [
        ["data"],
        ["data/"],
        ["data/."],
        ["data/d", "data/a"],
        ["data/d/", "data/a"],
        ["data/l"],
        ["data/l/"],
        ["./data//d"],
        ["data/d", "data/d/"],
        ["data/a", "data/b c"],
        ["data/x*y"],
    ],
    ids=" ".join,
)
def test_the_same_as_rsync(tmp_path, data, sources, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = scan([source.encode() for source in sources], None, os.fsencode(tmp_path))
    assert [name for name in names(found) if name != b"."] == rsync_names(tmp_path, sources)
    assert found.warnings == []


@pytest.mark.parametrize(
    ("source", "single"),
    [(b"data/a", True), (b"data", False), (b"data/l", False), (b"data/d/e*", True)],
)
def test_one_file_may_be_renamed(tmp_path, data, source, single):
    assert scan([source], None, os.fsencode(tmp_path)).single is single


def test_globs(tmp_path, data):
    base = os.fsencode(tmp_path)
    assert names(scan([b"data/[ab]*"], None, base)) == [b"a", b"b c"]
    assert names(scan([b"data/d/?"], None, base)) == [b"e", b"\xff"]


@pytest.mark.parametrize("source", [b"nothing", b"data/nothing*", b"data/a/", b"data/a/x", b"\xff"])
def test_a_source_without_files_is_an_error(tmp_path, data, source):
    with pytest.raises(SourceError):
        scan([source], None, os.fsencode(tmp_path))


def test_names_keep_their_folders(tmp_path, data):
    found = scan([b"data"], [b"d/e", b"a", b"not there", b"/b c"], os.fsencode(tmp_path))
    assert names(found) == [b"a", b"b c", b"d", b"d/e"]
    assert found.warnings == [f"{tmp_path}/data/not there: No such file or directory"]


@pytest.mark.parametrize("name", [b"", b".", b"..", b"../x", b"d/../../x", b"/"])
def test_names_stay_below(tmp_path, data, name):
    with pytest.raises(SourceError):
        scan([b"data"], [name], os.fsencode(tmp_path))


def test_what_is_no_file_is_said_to_be_left_out(tmp_path, data):
    os.mkfifo(data / "fifo")
    found = scan([b"data/"], None, os.fsencode(tmp_path))
    assert found.warnings == [f"{tmp_path}/data/fifo: not a file, folder or symbolic link"]
    assert b"fifo" not in names(found)


@pytest.mark.parametrize(
    ("sources", "dst", "path"),
    [
        ([b"data/d/"], b"data", b"data/d"),
        ([b"data/d/."], b"data/d/..", b"data/d"),
        ([b"data/[d]/"], b"data", b"data/d"),
        ([b"data/l/"], b"data", b"data/d"),
        ([b"data/l/"], b"to-data/", b"data/d"),
        ([b"data/d/e", b"other/"], b"data", b"data/d/e"),
        ([b"data/d/data"], b".", b"data/d/data"),
        ([b"other/", b"data"], b"data", b"data"),
        ([b"data/"], b"data", b""),
        ([b"data"], b".", b""),
        ([b"data/", b"data/d/"], b"data", b""),
        ([b"data/d"], b"data", b""),
        ([b"data/d/e"], b"data", b""),
        ([b"data/a", b"other/"], b"to-data", b""),
        ([b"data/d/"], b"data-2", b""),
        ([b"data/d/"], b"nothing", b""),
    ],
)
def test_a_source_that_delete_would_remove(tmp_path, data, sources, dst, path):
    make(tmp_path, {b"other/x": b"", b"data/d/data/x": b""})
    (tmp_path / "to-data").symlink_to("data")
    base = os.fsencode(tmp_path)
    assert endangered(sources, base, base + b"/" + dst) == (path and base + b"/" + path)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("~", b"/home/u"),
        ("~/data/", b"/home/u/data/"),
        ("data", b"/home/u/data"),
        ("/data x", b"/data x"),
        ("~other", b"/home/u/~other"),
        ("", b"/home/u/"),
    ],
)
def test_where_dst_is(text, path):
    assert destination(text, "/home/u") == path


@pytest.mark.parametrize(
    ("text", "real"),
    [
        *((text, "~/d") for text in ("d", "~/d", "~//d/", "~/./d", "{home}/d", "link", "d/../d")),
        *((text, "~") for text in ("~", ".", "~/", "{home}")),
        ("~//data/set", "~/data/set"),
        ("~/../shared/", "{above}/shared"),
        ("link/../x", "~/x"),
        ("/data", "/data"),
    ],
)
def test_every_spelling_of_dst_is_one_place(tmp_path, monkeypatch, text, real):
    home = tmp_path / "home"
    (home / "d").mkdir(parents=True)
    (home / "link").symlink_to("d")
    monkeypatch.setenv("HOME", str(home))
    given = text.format(home=home)
    found = find_destination(given)
    assert found.real == real.format(above=tmp_path)
    assert found.home == str(home)
    assert os.fsencode(found.path) == destination(given, str(home))
    assert found.is_folder is os.path.isdir(os.path.join(home, given.replace("~", str(home))))


def test_a_file_gets_the_name_of_dst_unless_that_is_a_folder(tmp_path):
    entry = Entry(b"a", "f", 0, 0)
    base = os.fsencode(tmp_path)

    def placed(dst, single):
        root, entries = place(dst, single, Entries([entry]))
        return root, list(entries)

    assert placed(base + b"/new", True) == (base, [entry._replace(path=b"new")])
    assert placed(base + b"/new/", True) == (base + b"/new", [entry])
    assert placed(base, True) == (base, [entry])
    assert placed(base + b"/new", False) == (base + b"/new", [entry])
    assert placed(b"/", False) == (b"/", [entry])


SECOND = 10**9


@pytest.mark.parametrize(
    ("here_ns", "there_ns", "missing"),
    [
        (5, 5, False),
        (5 * SECOND + 3, 5 * SECOND + 4, True),
        (5 * SECOND, 5 * SECOND + 4, False),  # a file system that stores whole seconds
        (5 * SECOND + 4, 5 * SECOND, False),
        (6 * SECOND, 5 * SECOND, True),
    ],
)
def test_times(tmp_path, here_ns, there_ns, missing):
    (tmp_path / "x").write_bytes(b"x")
    os.utime(tmp_path / "x", ns=(here_ns, here_ns))
    mode = (tmp_path / "x").stat().st_mode & 0o7777
    entries = Entries([Entry(b"x", "f", mode, there_ns, 1)])
    plan = compare(os.fsencode(tmp_path), entries, False, False)
    assert list(plan.missing) == ([0] if missing else [])


def test_data_that_a_file_has_got_since_is_not_counted(tmp_path):
    with (tmp_path / "x").open("w+b") as file:
        file.seek(1 << 20)
        file.write(b"x")
        file.flush()
        assert list(segments_of(file.fileno(), 4096)) == []


def test_what_the_source_could_not_read_is_not_taken_for_the_same(tmp_path):
    (tmp_path / "x").write_bytes(b"x")
    entries = Entries([Entry(b"x", "f", 0o644, 0, 1)])
    plan = compare(os.fsencode(tmp_path), entries, True, False)
    assert (list(plan.missing), list(plan.retouch)) == ([0], [])


def test_a_folder_where_a_file_was_is_not_held_open(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    assert list(digests_of_files([os.fsencode(tmp_path)] * 3)) == [b""] * 3
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("seed", range(50))
def test_few_segments_lose_no_data_and_keep_the_largest_holes(seed):
    draw = random.Random(seed)
    at, segments = draw.randrange(3), []
    for _ in range(draw.randrange(1, 80)):
        length = draw.randrange(1, 4)
        segments.append((at, length))
        at += length + draw.randrange(1, 1000)
    most = draw.randrange(1, 20)
    few = few_segments(iter(segments), most)
    covered = [any(a <= at and at + n <= a + m for a, m in few) for at, n in segments]
    assert all(covered)
    assert (few[0][0], sum(few[-1])) == (segments[0][0], sum(segments[-1]))
    holes = sorted(b[0] - sum(a) for a, b in zip(segments, segments[1:]))
    kept = sorted(b[0] - sum(a) for a, b in zip(few, few[1:]))
    assert kept == holes[len(holes) - len(kept) :]
    assert len(kept) == min(most - 1, len(holes))


def test_what_is_extra_of_any_tree(tmp_path):
    """Against the plain rule: what is in a folder that both have, and is no path of the source."""
    names = ["a", "a-", "a.b", "b", "#", "é"]
    for seed in range(30):
        chance = random.Random(seed)
        source, here = tmp_path / f"source{seed}", tmp_path / f"here{seed}"
        for root in (source, here):
            root.mkdir()
            for _ in range(chance.randrange(12)):
                path = root.joinpath(*chance.choices(names, k=chance.randrange(1, 4)))
                with contextlib.suppress(OSError):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.mkdir() if chance.random() < 0.4 else path.write_bytes(b"")
        entries = scan([os.fsencode(source) + b"/"], None, b"/").entries
        plan = compare(os.fsencode(here), entries, False, True)
        known = {os.fsdecode(entry.path): entry.kind for entry in entries}
        shared = {n for n, kind in known.items() if kind == "d" and (here / n).is_dir()}
        extra = set()
        for path in sorted(here.rglob("*")):
            name, above = str(path.relative_to(here)), str(path.parent.relative_to(here))
            if above in extra or (above in shared and name not in known):
                extra.add(name)
        assert {os.fsdecode(path) for path in plan.extra} == extra
        assert len(plan.extra) == len(extra)


def test_names_that_are_not_in_order_are_not_taken_for_extra(tmp_path):
    (tmp_path / "a").write_bytes(b"")
    entries = Entries([Entry(b".", "d", 0o755, 0), Entry(b"b", "f", 0, 0), Entry(b"a", "f", 0, 0)])
    with pytest.raises(ValueError, match="not sorted"):
        compare(os.fsencode(tmp_path), entries, False, True)
