"""Verification with the real program, on nodes that are folders of this machine."""

from __future__ import annotations

import os
import re
import shutil

import pytest

from clusterctl.copy.request import CopyRequest
from clusterctl.domain.errors import ClusterctlError, HostUnreachable, UsageError
from clusterctl.operations.verify import SOURCE, Depth, verify, verify_copy
from tests.node.relay.records import tfrecord
from tests.node.relays import HomeNodes

RECORDS = tfrecord([b"a" * 100, b"b", b"c" * 3000])
HOSTILE = [
    b"with space",
    b"new\nline",
    b"qu'o\"te",
    b"not\xffutf\xfe8",
    b"x" * 255,
    b"-rf",
    b"$(touch pwned)",
    b"\\",
    "ünï\u2028".encode(),
    b"\x1b[31m",
    b"..dots",
]
CONTENT = Depth(content=True)


@pytest.fixture
def nodes(tmp_path):
    """Three nodes, each with the same data set at ~/data."""
    nodes = HomeNodes(tmp_path / "homes")
    for number, _ in enumerate(nodes.targets):
        make(nodes.home(number) / "data")
    return nodes


def make(folder):
    (folder / "train" / "empty").mkdir(parents=True)
    for shard in range(3):
        (folder / "train" / f"train-{shard:05}-of-00003").write_bytes(RECORDS)
    (folder / "notes.txt").write_text("notes")
    (folder / "latest").symlink_to("train")
    (folder / "round").symlink_to(".")
    return folder


def check(nodes, path="data", depth=None, **more):
    return verify(nodes, nodes.targets, path, depth, **more)


def said(report):
    return [(f.kind.value, f.path, f.hosts, f.message) for f in report.findings]


def on(number):
    return (f"demo-{number}",)


@pytest.mark.parametrize(
    ("path", "depth"),
    [
        ("data", None),
        ("~/data", CONTENT),
        ("data/", Depth(crc=True)),
        ("./data", Depth(True, True)),
        ("data/../data", None),
    ],
)
def test_all_have_the_same(nodes, path, depth):
    report = check(nodes, path, depth)
    assert (report.exit_status, said(report)) == (0, [])
    [group] = report.groups
    assert group.hosts == ("demo-0", "demo-1", "demo-2")
    assert group.total.counts == {
        "files": 4,
        "folders": 3,
        "links": 2,
        "others": 0,
        "bytes": 5 + 3 * len(RECORDS),
        "tfrecords": 3,
        "records": 9,
    }


def remove(data):
    (data / "train" / "train-00001-of-00003").unlink()


def remove_folder(data):
    shutil.rmtree(data / "train")


def add(data):
    (data / "train" / "empty" / "new").write_text("")


def cut(data):
    os.truncate(data / "train" / "train-00002-of-00003", 140)


def flip(data):
    with (data / "train" / "train-00000-of-00003").open("r+b") as file:
        file.seek(50)
        file.write(b"X")


def flip_length(data):
    with (data / "train" / "train-00000-of-00003").open("r+b") as file:
        file.write(b"X")


def zero(data):
    (data / "train" / "train-00000-of-00003").write_bytes(b"")


def trailing(data):
    with (data / "train" / "train-00000-of-00003").open("ab") as file:
        file.write(b"garbage garbage garbage")


def chmod(data):
    (data / "notes.txt").chmod(0o600)


def link(data):
    (data / "latest").unlink()
    (data / "latest").symlink_to("other")


def other_notes(data):
    (data / "notes.txt").write_text("NOTES")


def other_kind(data):
    (data / "latest").unlink()
    (data / "latest").mkdir()


def pipe(data):
    os.mkfifo(data / "pipe")


SHARD = "train/train-0000{}-of-00003"
CHANGES = [
    (remove, "missing", SHARD.format(1), "a file"),
    (remove_folder, "missing", "train", "a folder"),
    (add, "extra", "train/empty/new", "a file"),
    (cut, "corrupt", SHARD.format(2), "record 3 (at byte 133) is cut short: 7 bytes are left"),
    (flip_length, "corrupt", SHARD.format(0), "does not begin as a TFRecord file"),
    (trailing, "corrupt", SHARD.format(0), "record 4 (at byte 3149) does not begin as a record"),
    (chmod, "differs", "notes.txt", "has mode 0600 instead of 0644"),
    (link, "differs", "latest", "leads to 'other' instead of 'train'"),
    (other_kind, "differs", "latest", "is a folder instead of a symbolic link"),
    (pipe, "extra", "pipe", "a special file"),
]


@pytest.mark.parametrize(
    ("number", "depth"), [(2, None), (0, Depth(True, True))], ids=["plain", "deep"]
)
@pytest.mark.parametrize(
    ("change", "kind", "path", "message"), CHANGES, ids=[case[0].__name__ for case in CHANGES]
)
def test_one_node_has_something_else(nodes, change, kind, path, message, number, depth):
    change(nodes.home(number) / "data")
    report = check(nodes, depth=depth)
    assert report.exit_status == 1
    found = [one for one in said(report) if one[0] == kind]
    assert [(one[1], one[2]) for one in found] == [(path, on(number))]
    assert found[0][3].startswith(message)
    # The majority is right, whoever the first is.
    assert report.groups[0].hosts == tuple(f"demo-{n}" for n in range(3) if n != number)


@pytest.mark.parametrize(
    ("change", "depth", "kinds"),
    [
        (other_notes, None, []),
        (other_notes, CONTENT, ["differs"]),
        (flip, None, []),
        (flip, CONTENT, ["differs"]),
        (flip, Depth(crc=True), ["corrupt"]),
        (flip, Depth(True, True), ["corrupt"]),
        (zero, None, ["differs", "corrupt"]),
    ],
)
def test_what_is_looked_at(nodes, change, depth, kinds):
    change(nodes.home(1) / "data")
    report = check(nodes, depth=depth)
    assert sorted(found[0] for found in said(report)) == sorted(kinds)
    assert all(found[2] == on(1) for found in said(report))


def test_corrupt_everywhere_is_corrupt(nodes):
    for number in range(3):
        flip(nodes.home(number) / "data")
    report = check(nodes, depth=Depth(crc=True))
    assert len(report.groups) == 1
    [(kind, path, hosts, message)] = said(report)
    assert (kind, path, hosts) == ("corrupt", SHARD.format(0), ("demo-0", "demo-1", "demo-2"))
    assert message == "record 1 (at byte 0) has other data than were written: its CRC is wrong"
    assert report.exit_status == 1


def test_without_the_library_python_finds_the_same(nodes, tmp_path, monkeypatch):
    from clusterctl.copy import asking
    from clusterctl.node.packer import NODE

    flip(nodes.home(1) / "data")
    text = (NODE / "crc32c.py").read_text()
    assert re.search(r'_LIBRARIES = \("libext2fs', text)
    original = asking.PROGRAM.text
    hidden = original.replace("libext2fs.so.2", "libno-such.so.9")
    assert hidden != original
    program = type(asking.PROGRAM)(asking.PROGRAM.modules)
    program.__dict__["text"] = hidden
    monkeypatch.setattr(asking, "PROGRAM", program)
    report = check(nodes, depth=Depth(crc=True))
    assert [found[:3] for found in said(report)] == [("corrupt", SHARD.format(0), on(1))]
    assert {group.total.crc_with for group in report.groups} == {"python"}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names(nodes, name):
    for number in range(3):
        folder = os.fsencode(nodes.home(number) / "data") + b"/" + name
        os.mkdir(folder)  # noqa: PTH102
        with open(folder + b"/" + name, "wb") as file:  # noqa: PTH123
            file.write(b"x" * (1 + (number == 2)))
    report = check(nodes)
    text = name.decode("utf-8", "surrogateescape")
    assert said(report) == [("differs", f"{text}/{text}", on(2), "has 2 bytes instead of 1")]
    assert not list(nodes.folder.rglob("pwned"))


def test_times_only_when_asked(nodes):
    os.utime(nodes.home(1) / "data" / "notes.txt", (1e9, 1e9))
    for number in (0, 2):
        os.utime(nodes.home(number) / "data" / "notes.txt", (1e9 + 2, 1e9 + 2))
    assert check(nodes, "data/notes.txt").exit_status == 0
    report = check(nodes, "data/notes.txt", Depth(mtime=True))
    assert said(report) == [("differs", "", on(1), "is 2 s older")]


def test_one_file(nodes):
    (nodes.home(2) / "data" / "notes.txt").write_text("more notes")
    report = check(nodes, "~/data/notes.txt")
    assert said(report) == [("differs", "", on(2), "has 10 bytes instead of 5")]


def test_a_path_that_is_a_link_is_followed(nodes):
    for number in range(3):
        (nodes.home(number) / "shortcut").symlink_to("data")
    assert check(nodes, "shortcut").groups[0].total.counts["tfrecords"] == 3


def test_an_empty_folder(nodes):
    assert check(nodes, "data/train/empty").groups[0].total.counts["files"] == 0


def test_what_a_copy_keeps_for_itself_is_no_part(nodes):
    staging = nodes.home(1) / "data" / ".clusterctl-copy"
    staging.mkdir()
    (staging / "part").write_text("x")
    assert check(nodes).exit_status == 0


def test_nothing_there(nodes):
    shutil.rmtree(nodes.home(1) / "data")
    report = check(nodes)
    assert said(report) == [("missing", "", on(1), "there is nothing at the path")]
    with pytest.raises(UsageError, match="no host has anything at 'nothing'"):
        check(nodes, "nothing")
    with pytest.raises(UsageError, match="only your own home folder"):
        check(nodes, "~root/data")


def test_a_host_that_cannot_be_reached(nodes):
    nodes.trouble["demo-1"] = HostUnreachable("demo-1", "no route")
    remove(nodes.home(2) / "data")
    report = check(nodes)
    assert report.exit_status == 255
    assert [failure.host for failure in report.failures] == ["demo-1"]
    assert said(report) == [("missing", SHARD.format(1), on(2), "a file")]


def test_a_host_without_python(nodes):
    nodes.environ["PATH"] = "/nowhere"
    report = check(nodes)
    assert (report.exit_status, report.groups) == (1, ())
    assert {(failure.error.message, failure.error.hint) for failure in report.failures} == {
        ("python3 is not installed there", "install it: apt-get install python3")
    }


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable(nodes):
    (nodes.home(1) / "data" / "notes.txt").chmod(0)
    (nodes.home(1) / "data" / "train").chmod(0)
    try:
        kinds = {(kind, path) for kind, path, _, _ in said(check(nodes))}
        assert ("unreadable", "notes.txt") in kinds
        assert ("unreadable", "train") in kinds
        assert not any(kind == "missing" for kind, _ in kinds)
    finally:
        (nodes.home(1) / "data" / "train").chmod(0o755)


def test_many_small_files_and_few_answers(nodes):
    """Of 20,000 files the client hears of one page on two nodes at most."""
    for number in range(3):
        folder = nodes.home(number) / "many"
        for part in range(20):
            (folder / str(part)).mkdir(parents=True)
            for name in range(1000):
                (folder / str(part) / f"{name:04}").write_bytes(b"")
    (nodes.home(2) / "many" / "7" / "0500").write_bytes(b"x")
    (nodes.home(2) / "many" / "7" / "0501").unlink()
    report = check(nodes, "many")
    assert said(report) == [
        ("differs", "7/0500", on(2), "has 1 byte instead of 0"),
        ("missing", "7/0501", on(2), "a file"),
    ]
    assert report.groups[0].total.counts["files"] == 20_000


def test_pages(nodes, monkeypatch):
    monkeypatch.setattr("clusterctl.copy.conversation.PAGE", 2)
    remove(nodes.home(2) / "data")
    remove_folder(nodes.home(1) / "data")
    kinds = [(kind, path) for kind, path, _, _ in said(check(nodes))]
    assert kinds == [("missing", "train"), ("missing", SHARD.format(1))]


def test_progress_is_told(nodes):
    seen = []
    (nodes.home(0) / "data" / "big").write_bytes(bytes(1 << 20))
    check(nodes, depth=CONTENT, watch=lambda host, progress: seen.append((host, progress)))
    assert all(progress["event"] == "progress" for _, progress in seen)


# --- a copy against its source


@pytest.fixture
def source(tmp_path, monkeypatch):
    """What was copied, on this machine, in the current folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return make(folder / "data")


def copied(nodes, *sources, to, **more):
    request = CopyRequest(tuple(map(str, sources)), to, verify=True, **more)
    return verify_copy(nodes, nodes.targets, request)


@pytest.mark.parametrize(
    ("sources", "to"),
    [
        (["data"], "~"),
        (["data"], ""),
        (["data/"], "data"),
        (["data/."], "~/data/"),
        (["data/notes.txt"], "data"),
        (["data/notes.txt"], "~/data/notes.txt"),
        (["data/train/train-*", "data/train/empty"], "data/train"),
        (["data/*"], "data"),
        (["data/latest"], "data"),
    ],
)
def test_a_copy_that_is_whole(nodes, source, sources, to):
    report = copied(nodes, *sources, to=to)
    assert (report.exit_status, said(report)) == (0, [])
    assert report.groups[0].hosts[0] == SOURCE


def test_a_copy_that_is_not(nodes, source):
    flip(nodes.home(0) / "data")
    remove(nodes.home(1) / "data")
    other_notes(source)
    assert said(copied(nodes, "data", to="")) == [
        ("differs", "data/notes.txt", ("demo-0", "demo-1", "demo-2"), "has other content"),
        ("differs", f"data/{SHARD.format(0)}", on(0), "has other content"),
        ("missing", f"data/{SHARD.format(1)}", on(1), "a file"),
    ]


def test_a_source_that_is_corrupt_itself(nodes, source):
    """What it has is what is to be there."""
    cut(source)
    cut(nodes.home(0) / "data")
    flip_length(nodes.home(1) / "data")
    cut(nodes.home(1) / "data")
    assert said(copied(nodes, "data/", to="data")) == [
        (
            "differs",
            SHARD.format(0),
            on(1),
            "has other content, has no records instead of 3 records",
        ),
        (
            "differs",
            SHARD.format(2),
            on(2),
            f"has {len(RECORDS)} bytes instead of 140, has 3 records instead of 2",
        ),
    ]


def test_what_was_there_before_is_no_fault(nodes, source):
    for number in range(3):
        (nodes.home(number) / "data" / "old").write_text("old")
        (nodes.home(number) / "data" / "train" / "old").write_text("old")
    assert copied(nodes, "data/", to="data").exit_status == 0
    left = said(copied(nodes, "data/", to="data", delete=True))
    assert [found[:2] for found in left] == [("extra", "train/old")]


def test_files_from(nodes, source):
    names = (b"notes.txt", b"train/train-00001-of-00003", b"/train/empty/")
    assert copied(nodes, "data", to="data", names=names).exit_status == 0
    remove(nodes.home(1) / "data")
    report = copied(nodes, "data", to="data", names=names)
    assert said(report) == [("missing", SHARD.format(1), on(1), "a file")]


def test_the_source_is_on_a_node(nodes):
    remove(nodes.home(2) / "data")
    request = CopyRequest(("data/",), "~/data", from_node=0)
    head, *others = nodes.targets
    report = verify_copy(nodes, others, request, source=head)
    assert said(report) == [("missing", SHARD.format(1), on(2), "a file")]


def test_of_urls_the_nodes_are_compared(nodes):
    remove(nodes.home(2) / "data")
    report = copied(nodes, "s3://bucket/data/", to="data")
    assert said(report) == [("missing", SHARD.format(1), on(2), "a file")]


def test_a_source_that_is_not_there(nodes, source):
    with pytest.raises(ClusterctlError, match="there is nothing at the path"):
        copied(nodes, "nothing", to="data")


def test_a_folder_of_very_many(nodes, source):
    """Their names are not sent to every node."""
    for folder in (source, *(nodes.home(number) / "data" for number in range(3))):
        for name in range(10_001):
            (folder / f"{name:05}").touch()
    (nodes.home(1) / "data" / "07777").unlink()
    (nodes.home(1) / "data" / "old").write_text("was there before")
    assert said(copied(nodes, "data/", to="data")) == [("missing", "07777", on(1), "a file")]
