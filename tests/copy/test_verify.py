"""Verification: comparison of manifests, and real relays on nodes behind a real sshd."""

from __future__ import annotations

import os
import random
import shutil
import threading
import time

import pytest

from clusterctl.copy.verify import Findings, Kind, compare, compare_entries, group_by_digest
from clusterctl.domain.errors import HostUnreachable, NotFound, UsageError
from clusterctl.node.relay.manifest import Entry, as_stream, encode, position_key, read
from clusterctl.node.relay.messages import VerifiedTree
from clusterctl.node.relay.verify import NOT_READ, UNKNOWN
from clusterctl.operations import verify as operation
from clusterctl.operations.verify import Depth, verify
from clusterctl.transport.dial import Target
from tests.copy.ssh_hosts import ssh_hosts

CONTENT = Depth(content=True)


def entry(path="f", kind="f", mode=0o644, size=5, **more) -> Entry:
    return Entry(path.encode(), kind, mode, more.pop("mtime_ns", 0), size, **more)


@pytest.mark.parametrize(
    ("digests", "groups"),
    [("aaa", ["012"]), ("aba", ["02", "1"]), ("baa", ["12", "0"]), ("ab", ["0", "1"]), ("", [])],
)
def test_nodes_are_grouped_by_their_digests(digests, groups):
    totals = {str(number): VerifiedTree(digest) for number, digest in enumerate(digests)}
    assert ["".join(group.hosts) for group in group_by_digest(totals)] == groups


@pytest.mark.parametrize(
    ("wanted", "there", "said"),
    [
        (entry(), None, [(Kind.MISSING, "a file")]),
        (entry(kind="d"), None, [(Kind.MISSING, "a folder")]),
        (None, entry(kind="l"), [(Kind.EXTRA, "a symbolic link")]),
        (entry(), entry(kind="d"), [(Kind.DIFFERS, "is a folder instead of a file")]),
        (entry(), entry(size=1), [(Kind.DIFFERS, "has 1 byte instead of 5")]),
        (entry(digest=b"a"), entry(digest=b"b"), [(Kind.DIFFERS, "has other content")]),
        (entry(), entry(mode=0o4600), [(Kind.DIFFERS, "has mode 4600 instead of 0644")]),
        (entry(link=b"a"), entry(link=b"b\n"), [(Kind.DIFFERS, r"leads to 'b\n' instead of 'a'")]),
        (entry(mtime_ns=5), entry(mtime_ns=2_000_000_005), [(Kind.DIFFERS, "is 2 s newer")]),
        (entry(mtime_ns=5), entry(mtime_ns=4), [(Kind.DIFFERS, "is 1e-09 s older")]),
        (
            entry(),
            entry(mode=0, size=1),
            [(Kind.DIFFERS, "has 1 byte instead of 5, has mode 0000 instead of 0644")],
        ),
        (entry(), entry(), []),
        # These have been reported already.
        (entry(digest=b"a"), entry(size=NOT_READ), []),
        (entry(size=NOT_READ), entry(digest=b"b"), []),
        (entry(), entry(kind=UNKNOWN), []),
        (entry(kind=UNKNOWN), None, []),
    ],
)
def test_the_differences_of_one_path(wanted, there, said):
    assert list(compare_entries(wanted, there)) == said


def a_tree(rng: random.Random) -> dict[bytes, Entry]:
    """Draw some of twelve names, three levels deep. Each is a file, a folder or a link."""
    found = {b".": Entry(b".", "d", 0o755, 0)}
    for name in (b"a", b"a!", b"a-b", b"\xff"):
        for path in (name, name + b"/x", name + b"/x/y"):
            above = path.rpartition(b"/")[0] or b"."
            if above in found and found[above].kind == "d" and rng.random() < 0.8:
                kind = rng.choice("ffdl")
                size = rng.choice((1, 2)) if kind == "f" else 0
                link = b"to" if kind == "l" else b""
                found[path] = Entry(path, kind, 0o644, 0, size, link)
    return found


def test_any_two_trees():
    """Each path that only one tree has is reported, or is below a reported one. No other is."""
    for seed in range(2000):
        trees = [a_tree(random.Random(seed)), a_tree(random.Random(-seed - 1))]
        said = {}
        streams = [sorted(tree.values(), key=lambda e: position_key(e.path)) for tree in trees]
        # As they come: encoded, and in pieces.
        blobs = [as_stream(encode(stream)) for stream in streams]
        for kind, path, _ in compare(*(read([blob[:7], blob[7:]]) for blob in blobs)):
            assert path not in said
            said[path] = kind
        for path in {**trees[0], **trees[1]}:
            one, other = trees[0].get(path), trees[1].get(path)
            name = path.decode("utf-8", "surrogateescape") if path != b"." else ""
            parts = name.split("/")
            covered = {"/".join(parts[:n]) for n in range(1, len(parts))} & {*said}
            if one == other or covered:
                assert name not in said
            else:
                wanted = Kind.EXTRA if one is None else Kind.MISSING if other is None else None
                assert said[name] is (wanted or Kind.DIFFERS)


def test_findings_are_folded_and_counted():
    findings = Findings(most=2)
    for path, hosts in (("b", ["h2"]), ("b", ["h1", "h2"]), ("a", ["h1"]), ("c", ["h1"])):
        findings.add(Kind.MISSING, path, "a file", hosts)
    assert [(f.path, f.hosts) for f in findings.in_order(["h1", "h2"])] == [
        ("a", ("h1",)),
        ("b", ("h1", "h2")),
    ]
    assert findings.more == 1


# --- real relays on three nodes


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    with ssh_hosts(tmp_path_factory.mktemp("hosts")) as running:
        yield running


@pytest.fixture
def homes(hosts):
    """Make the same ~/data on each host."""
    folders = [hosts.home(number) / "data" for number in (1, 2, 3)]
    for folder in folders:
        (folder / "train" / "empty").mkdir(parents=True)
        for shard in range(3):
            (folder / "train" / f"shard-{shard}").write_bytes(b"x" * 3000)
        (folder / "notes.txt").write_text("notes")
        (folder / "latest").symlink_to("train")
        (folder / "round").symlink_to(".")
    yield folders
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def check(hosts, path="data", depth=Depth(), **more):  # noqa: B008
    with hosts.access(3) as access:
        return verify(access.connections, access.targets, path, depth, **more)


def said(report):
    return [(f.kind.value, f.path, f.hosts, f.message) for f in report.findings]


@pytest.mark.parametrize(
    ("path", "depth"),
    [("data", Depth()), ("~/data", CONTENT), ("data/", CONTENT), ("data/../data", Depth())],
)
def test_all_have_the_same(hosts, homes, path, depth):
    report = check(hosts, path, depth)
    assert (report.exit_status, said(report)) == (0, [])
    [group] = report.groups
    assert group.hosts == ("host1", "host2", "host3")
    total = VerifiedTree(
        *(group.total.digest, 4, 3, 2),
        bytes=9005,
        read_bytes=9005 if depth.content else 0,
        duration_s=group.total.duration_s,
    )
    assert group.total == total


@pytest.mark.parametrize(("number", "depth"), [(2, Depth()), (0, CONTENT)])
def test_one_node_has_something_else(hosts, homes, number, depth):
    """The majority is right, whichever node is the first."""
    there = homes[number]
    (there / "train" / "shard-1").unlink()
    (there / "train" / "empty" / "new").touch()
    (there / "train" / "shard-2").unlink()
    os.mkfifo(there / "train" / "shard-2")
    (there / "notes.txt").write_text("longer")
    (there / "notes.txt").chmod(0o600)
    (there / "latest").unlink()
    (there / "latest").symlink_to("other")
    (there / "round").unlink()
    (there / "round").mkdir(mode=0o755)
    report = check(hosts, depth=depth)
    assert report.exit_status == 1
    assert said(report) == [
        (kind, path, (f"host{number + 1}",), message)
        for kind, path, message in (
            ("differs", "latest", "leads to 'other' instead of 'train'"),
            ("differs", "notes.txt", "has 6 bytes instead of 5, has mode 0600 instead of 0644"),
            ("differs", "round", "is a folder instead of a symbolic link"),
            ("extra", "train/empty/new", "a file"),
            ("missing", "train/shard-1", "a file"),
            ("missing", "train/shard-2", "a file"),
        )
    ]
    assert report.groups[0].hosts == tuple(f"host{n + 1}" for n in range(3) if n != number)
    shutil.rmtree(there)
    there.touch(0o755)
    [one] = said(check(hosts))
    assert one[3] == "is a file instead of a folder"
    there.unlink()


def test_what_content_and_times_find(hosts, homes):
    (homes[1] / "notes.txt").write_text("NOTES")
    for number, folder in enumerate(homes):
        os.utime(folder / "notes.txt", (1e9 + (number == 2), 1e9 + (number == 2)))
    assert check(hosts).exit_status == 0
    assert said(check(hosts, "data/notes.txt", CONTENT)) == [
        ("differs", "", ("host2",), "has other content")
    ]
    assert said(check(hosts, "~/data/notes.txt", Depth(mtime=True))) == [
        ("differs", "", ("host3",), "is 1 s newer")
    ]


def test_hostile_names(hosts, homes):
    names = [
        *(b"with space", b"new\nline", b"qu'o\"te", b"not\xffutf\xfe8", b"x" * 255, b"-rf"),
        *(b"$(touch pwned)", b"\\", "ünï\u2028".encode(), b"\x1b[31m", b"..dots", b" "),
    ]
    for number, folder in enumerate(homes):
        for name in names:
            path = os.fsencode(folder) + b"/" + name
            os.mkdir(path)  # noqa: PTH102
            with open(path + b"/" + name, "wb") as file:  # noqa: PTH123
                file.write(b"x" * (1 + (number == 2)))
    paths = [name.decode("utf-8", "surrogateescape") for name in sorted(names)]
    assert said(check(hosts)) == [
        ("differs", f"{path}/{path}", ("host3",), "has 2 bytes instead of 1") for path in paths
    ]
    assert not list(hosts.folder.rglob("pwned"))


def test_a_link_to_the_path_is_followed_and_what_copies_keep_is_no_part(hosts, homes):
    for number, folder in enumerate(homes):
        (folder.parent / "shortcut").symlink_to("data" if number else "./data")
    (homes[1] / ".clusterctl-copy").mkdir()
    (homes[1] / ".clusterctl-copy" / "part").write_text("x")
    report = check(hosts, "shortcut")
    assert (report.exit_status, report.groups[0].total.files) == (0, 4)
    (homes[1] / ".clusterctl-copy-notes").write_text("x")
    assert said(check(hosts)) == [("extra", ".clusterctl-copy-notes", ("host2",), "a file")]


def test_nothing_there(hosts, homes):
    shutil.rmtree(homes[1])
    assert said(check(hosts)) == [("missing", "", ("host2",), "there is nothing at the path")]
    with pytest.raises(NotFound, match="no host has anything at 'nothing'"):
        check(hosts, "nothing")
    with pytest.raises(UsageError, match="only your own home folder"):
        check(hosts, "~root/data")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
@pytest.mark.parametrize("depth", [Depth(), CONTENT], ids=["plain", "deep"])
def test_unreadable(hosts, homes, depth):
    (homes[1] / "notes.txt").chmod(0)
    (homes[1] / "train").chmod(0o700 if depth.content else 0)
    (homes[1] / "train" / "empty").chmod(0) if depth.content else None
    found = {(kind, path) for kind, path, *_ in said(check(hosts, depth=depth))}
    (homes[1] / "train").chmod(0o755)
    (homes[1] / "train" / "empty").chmod(0o755)
    closed = "train/empty" if depth.content else "train"
    assert {("unreadable", "notes.txt"), ("unreadable", closed)} <= found
    assert not any(kind == "missing" for kind, _ in found)


def test_somebody_writes_there(hosts, homes):
    ended = threading.Event()

    def write():
        with (homes[1] / "growing").open("wb") as file:
            while not ended.is_set():
                file.write(bytes(1 << 20))
                file.truncate(64 << 20)

    writer = threading.Thread(target=write)
    writer.start()
    while not (homes[1] / "growing").exists():
        time.sleep(0.01)
    try:
        found = said(check(hosts, depth=CONTENT))
    finally:
        ended.set()
        writer.join()
    assert ("changed", "growing", ("host2",), "changes while it is read") in found


def test_a_host_that_cannot_be_reached(hosts, homes):
    (homes[2] / "notes.txt").unlink()
    with hosts.access(3) as access:
        targets = [*access.targets, Target("gone", "127.0.0.9", "nobody", port=1)]
        report = verify(access.connections, targets, "data")
    assert report.exit_status == 255
    [failure] = report.failures
    assert (failure.host, type(failure.error)) == ("gone", HostUnreachable)
    assert said(report) == [("missing", "notes.txt", ("host3",), "a file")]


def test_a_node_that_goes_away_before_it_is_asked_for_details(hosts, homes, monkeypatch):
    """Its manifest differs, which is one finding without details."""
    (homes[2] / "notes.txt").unlink()
    true_grouped = operation.group_by_digest

    def end_one(totals):
        for relay in operation_relays:
            relay._relays["host3"].end()
            relay._relays["host3"].join(10)
        return true_grouped(totals)

    operation_relays = []
    true_init = operation._Relays.__init__

    def remember(self, *arguments):
        true_init(self, *arguments)
        operation_relays.append(self)

    monkeypatch.setattr(operation._Relays, "__init__", remember)
    monkeypatch.setattr(operation, "group_by_digest", end_one)
    report = check(hosts)
    assert said(report) == [("unknown", "", ("host3",), "has something else than host1")]
    assert [failure.host for failure in report.failures] == ["host3"]


def test_a_limit_of_time(hosts, homes):
    for folder in homes:
        with (folder / "huge").open("wb") as file:
            file.truncate(1 << 42)
    seen = set()
    for limit in (2, 8, 30):  # on a busy machine the first may end before there is progress
        report = check(hosts, depth=CONTENT, timeout_s=limit, watch=lambda host, _: seen.add(host))
        told = {failure.error.message for failure in report.failures}
        assert told == {f"did not answer within {limit} s"}
        if len(seen) == 3:
            break
    assert seen == {"host1", "host2", "host3"}, "progress is told meanwhile"


def test_many_small_files(hosts, homes):
    for folder in homes:
        for part in range(10):
            (folder / str(part)).mkdir()
            for name in range(120):
                (folder / str(part) / f"{name:04}").touch()
    (homes[2] / "7" / "0100").write_bytes(b"x")
    (homes[2] / "7" / "0101").unlink()
    report = check(hosts)
    assert said(report) == [
        ("differs", "7/0100", ("host3",), "has 1 byte instead of 0"),
        ("missing", "7/0101", ("host3",), "a file"),
    ]
    assert report.groups[0].total.files == 1_204
