"""Syncs that go on by themselves: real processes of this machine, a real S3."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from clusterctl.copy.s3 import LentKeys, parse_source
from clusterctl.copy.s3sync import SyncState, sync_order
from clusterctl.domain.errors import ClusterctlError, CommandTimeout, ConnectionLost, UsageError
from clusterctl.node.relay import syncjobs
from clusterctl.operations.s3follow import follow_sync
from clusterctl.operations.s3sync import (
    SyncRequest,
    SyncRunning,
    cancel_sync,
    latest,
    list_syncs,
    start_sync,
)
from tests.copy.buckets import s3_server
from tests.lab.running import wait_until
from tests.local_node import HEAD, LocalNode
from tests.node.relay.webserver import Handler, serving
from tests.pythons import python_or_skip

SECRET = "a-secret-that-nobody-may-see"
MINE = LentKeys("AKIAMINE", SECRET, "a-token-that-nobody-may-see")


@pytest.fixture(scope="module")
def s3():
    with s3_server() as server:
        yield server


@pytest.fixture
def node(tmp_path, monkeypatch):
    monkeypatch.setattr("clusterctl.operations.s3follow.BETWEEN_LOOKS_S", 0.05)
    home = tmp_path / "home with blanks"
    home.mkdir()
    # Without tools: what this machine happens to have is not what is tested.
    node = LocalNode(home, {"PATH": tools(tmp_path / "bin")})
    yield node
    for record in records(node):
        cancel_sync(node, [HEAD], record.sync_id)


def tools(folder: Path, **scripts: str) -> str:
    """A PATH with python3 and these."""
    folder.mkdir(exist_ok=True)
    for name in ("python3", "sh", "cat"):
        if not (folder / name).exists():
            (folder / name).symlink_to("/usr/bin/" + name)
    for name, script in scripts.items():
        (folder / name).write_text("#!/bin/sh\n" + script)
        (folder / name).chmod(0o755)
    return str(folder)


def request(s3, *places, destination="~/data", **more):
    sources = tuple(parse_source(f"s3://{place}") for place in places)
    return SyncRequest(
        sources, destination, **{"credentials": MINE, "endpoint": s3.endpoint, **more}
    )


def started(node, wish):
    start = start_sync(node, [HEAD], wish)
    assert not start.nodes.failures, start.nodes.failures
    return start.sync_id


def followed(node, sync_id):
    log = []
    result = follow_sync(node, [HEAD], sync_id, lambda host, text: log.append(text))
    assert not result.failures, result.failures
    return result.values[0], b"".join(log).decode()


def records(node):
    [found] = list_syncs(node, [HEAD]).values
    return found


def test_two_buckets_into_one_folder(s3, node):
    train = s3.bucket({"shards/train-0": b"t" * 100_000, "shards/sub/train-1": b"u" * 9_000_000})
    validation = s3.bucket({"validation-0": b"v", "empty": b""})
    wish = request(s3, f"{train}/shards", validation)
    record, log = followed(node, started(node, wish))
    assert (record.state, record.exit_status) == (SyncState.SUCCEEDED, 0)
    assert (record.files, record.total_files, record.bytes) == (4, 4, 9_100_001)
    data = node.home / "data"
    assert (data / "sub/train-1").read_bytes() == b"u" * 9_000_000
    assert sorted(path.name for path in data.iterdir()) == [
        "empty",
        "sub",
        "train-0",
        "validation-0",
    ]
    assert "done" in log
    assert [record.sync_id for record in records(node)] == [latest(list_syncs(node, [HEAD]))]


@pytest.mark.parametrize("version", ["3.8", "3.13"])
def test_on_other_pythons(s3, node, tmp_path, version):
    (tmp_path / "bin" / "python3").unlink()
    (tmp_path / "bin" / "python3").symlink_to(python_or_skip(version))
    bucket = s3.bucket({"a": b"a", "b/c": b"c"})
    record, _ = followed(node, started(node, request(s3, bucket)))
    assert (record.state, record.files) == (SyncState.SUCCEEDED, 2)


def test_only_what_is_missing_moves(s3, node):
    bucket = s3.bucket({"a": b"a" * 1000, "b": b"b" * 1000, "c": b"c" * 1000})
    wish = request(s3, bucket)
    followed(node, started(node, wish))
    data = node.home / "data"
    (data / "a").write_bytes(b"short")
    (data / "b").unlink()
    os.utime(data / "c", (1, 1))
    (data / "own").write_text("stays")
    record, _ = followed(node, started(node, wish))
    assert (record.files, record.present) == (3, 0)
    assert (data / "a").read_bytes() == b"a" * 1000
    assert (data / "own").read_text() == "stays"
    record, _ = followed(node, started(node, wish))
    assert (record.files, record.present) == (0, 3)


def test_it_goes_on_without_the_connection_and_ends_when_told(s3, node):
    bucket = s3.bucket({"big": b"x" * 1000})
    with serving() as slow:
        slow.files[f"/{bucket}/big"] = b"x" * 1000
        wish = SyncRequest((parse_source(f"{slow.url}/{bucket}/big"),), "~/data/")
        sync_id = started(node, wish)
        pid = int((node.home / ".clusterctl/s3sync" / sync_id / "pid").read_text().split()[0])
        # Of no session and no terminal of the one that started it.
        assert os.getsid(pid) == pid
        followed(node, sync_id)
    assert (node.home / "data" / "big").read_bytes() == b"x" * 1000


@pytest.fixture(params=["data"])
def stuck(node, request):
    """A sync that waits for a server that says nothing more: to its list, or to its data."""
    with serving() as server:
        server.files["/big"] = b"x" * 1000

        def wait(handler):
            while not over:
                time.sleep(0.01)

        over = []
        wish = SyncRequest((parse_source(f"{server.url}/big"),), "~/data/", MINE)
        # The probe, the list, and then the data.
        before = {"list": 1, "data": 2}[request.param]
        server.misdeeds.extend([Handler.serve] * before + [wait])
        yield started(node, wish), wish
        over.append(True)


def test_no_secret_is_seen_anywhere(node, stuck):
    sync_id, wish = stuck
    wait_until((node.home / "data" / ".clusterctl-sync").exists, "the sync to be at work")
    pid = (node.home / ".clusterctl/s3sync" / sync_id / "pid").read_text().split()[0]
    seen = [Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ")]
    seen += [path.read_bytes() for path in node.home.rglob("*") if path.is_file()]
    cancel_sync(node, [HEAD], sync_id)
    record, log = followed(node, sync_id)
    seen += [text.encode() for text in (*node.commands, log, str(record), str(wish), repr(MINE))]
    assert len(seen) > 10
    for text in seen:
        assert SECRET.encode() not in text
        assert MINE.token.encode() not in text


def test_it_can_be_cancelled_and_leaves_nothing_half(node, stuck):
    sync_id, _ = stuck
    data = node.home / "data"
    wait_until((data / ".clusterctl-sync").exists, "the sync to be at work")
    assert records(node)[0].running
    [[record]] = cancel_sync(node, [HEAD], sync_id).values
    assert (record.state, record.exit_status) == (SyncState.CANCELLED, 130)
    assert record.was_running
    assert list(data.iterdir()) == []
    # Again is no error.
    [[record]] = cancel_sync(node, [HEAD], sync_id).values
    assert record.state is SyncState.CANCELLED
    assert not record.was_running


@pytest.mark.parametrize("stuck", ["list"], indirect=True)
def test_it_can_be_cancelled_while_a_server_says_nothing(node, stuck):
    sync_id, _ = stuck
    [[record]] = cancel_sync(node, [HEAD], sync_id).values
    assert (record.state, record.exit_status) == (SyncState.CANCELLED, 130)


def test_a_second_one_into_the_same_folder_is_refused(node, stuck):
    sync_id, wish = stuck
    [failure] = start_sync(node, [HEAD], wish, cluster="demo").nodes.failures
    assert isinstance(failure.error, SyncRunning)
    assert sync_id in failure.error.message
    assert "clusterctl s3sync demo --cancel" in failure.error.hint


def test_one_that_is_killed_is_lost_and_the_next_one_completes_it(node, stuck):
    sync_id, wish = stuck
    data = node.home / "data"
    wait_until((data / ".clusterctl-sync").exists, "the sync to be at work")
    pid = int((node.home / ".clusterctl/s3sync" / sync_id / "pid").read_text().split()[0])
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: records(node)[0].state is SyncState.LOST, "the sync to be gone")
    record, _ = followed(node, started(node, wish))
    assert record.state is SyncState.SUCCEEDED
    assert [path.name for path in data.iterdir()] == ["big"]


@pytest.mark.parametrize(
    ("place", "message", "hint"),
    [
        ("no-such-bucket", "no node can read the source: there is no bucket", "aws s3 ls"),
    ],
)
def test_what_cannot_be_read_is_said_at_once(s3, node, place, message, hint):
    with pytest.raises(ClusterctlError, match=message) as told:
        start_sync(node, [HEAD], request(s3, place))
    assert hint in told.value.hint
    assert records(node) == []


def test_an_empty_prefix_fails_with_what_to_do(s3, node):
    bucket = s3.bucket({"a": b"a"})
    start = start_sync(node, [HEAD], request(s3, f"{bucket}/nothing"))
    [failure] = start.nodes.failures
    assert failure.error.exit_status == 1
    assert "there is nothing at" in failure.error.message
    assert failure.error.hint
    record, log = followed(node, start.sync_id)
    assert record.state is SyncState.FAILED
    assert record.why == failure.error.message
    assert "failed: there is nothing at" in log


def test_what_may_be_listed_and_not_read_is_said_at_once(s3, node):
    # moto refuses unsigned requests for objects, and lists for anybody.
    wish = request(s3, s3.bucket({"a": b"a"}), credentials="none")
    [failure] = start_sync(node, [HEAD], wish).nodes.failures
    assert "to requests without credentials" in failure.error.message
    assert failure.error.exit_status == 1


@pytest.mark.parametrize(
    ("evil", "why"),
    [(["../evil"], "1 file was left out"), (["../evil", "a//b"], "2 files were left out")],
)
def test_what_a_file_system_cannot_hold_is_left_out(s3, node, evil, why):
    bucket = s3.bucket(dict.fromkeys([*evil, "good"], b"x"))
    record, log = followed(node, started(node, request(s3, bucket)))
    assert (record.state, record.exit_status) == (SyncState.INCOMPLETE, 1)
    assert (record.left_out, record.why) == (len(evil), why)
    assert record.shown_state == f"done, {len(evil)} left out"
    assert "left out ../evil" in log
    assert f"done, {why}" in log
    assert (node.home / "data" / "good").exists()
    assert not (node.home / "evil").exists()


def test_one_object_gets_the_name_that_is_asked_for(s3, node):
    bucket = s3.bucket({"models/a.bin": b"weights"})
    wish = request(s3, f"{bucket}/models/a.bin", destination="~/b.bin")
    followed(node, started(node, wish))
    assert (node.home / "b.bin").read_bytes() == b"weights"


def test_old_ones_are_forgotten(s3, node):
    bucket = s3.bucket({"a": b"a"})
    folder = node.home / ".clusterctl" / "s3sync"
    for number in range(30):
        (folder / f"20200101-0000{number:02}-aaaa").mkdir(parents=True)
    followed(node, started(node, request(s3, bucket)))
    assert len(records(node)) == 20


S5CMD = 'case $1 in version) echo v2.3.0; exit;; esac; echo "$@" >>"$HOME/called"; exit 3\n'
AWS = 'case $1 in --version) echo aws-cli/2.17; exit;; esac; echo "$@" >>"$HOME/called"\n'


def test_a_tool_of_the_node_does_it_where_it_is_there(s3, node, tmp_path):
    tools(tmp_path / "bin", aws=AWS)
    one = s3.bucket({"x/a": b"a", "key": b"b"})
    wish = request(s3, f"{one}/x", f"{one}/key", credentials="none", destination="~/my data")
    start = start_sync(node, [HEAD], wish)
    record, log = followed(node, start.sync_id)
    assert start.how == record.how == "aws"
    assert record.state is SyncState.SUCCEEDED
    flags = f"--endpoint-url {s3.endpoint} --no-sign-request"
    data = f"{node.home}/my data"
    assert (node.home / "called").read_text().splitlines() == [
        f"s3 sync --only-show-errors s3://{one}/x {data} {flags}",
        f"s3 cp --only-show-errors s3://{one}/key {data} {flags}",
    ]
    assert f"aws s3 sync --only-show-errors s3://{one}/x" in log


def test_a_tool_that_fails_ends_it(s3, node, tmp_path):
    tools(tmp_path / "bin", s5cmd=S5CMD, aws=AWS)
    one = s3.bucket({"x/a": b"a"})
    wish = request(s3, f"{one}/x", one, credentials="none")
    start = start_sync(node, [HEAD], wish)
    assert [failure.error.message for failure in start.nodes.failures] == [
        "s5cmd ended with status 3"
    ]
    record, _ = followed(node, start.sync_id)
    assert (record.how, record.exit_status) == ("s5cmd", 3)
    assert record.why == "s5cmd ended with status 3"
    assert len((node.home / "called").read_text().splitlines()) == 1


def test_a_tool_that_is_dead_before_the_first_look_is_told_by_its_status(tmp_path, monkeypatch):
    monkeypatch.setattr(syncjobs, "SYNCS", tmp_path)
    detach = syncjobs.detach

    def detach_and_die(folder, order):
        told = detach(folder, order)
        # It stays unreaped, as a child of the starter on a node does.
        os.waitid(os.P_PID, int(str(told).split()[0]), os.WEXITED | os.WNOWAIT)
        return told

    monkeypatch.setattr(syncjobs, "detach", detach_and_die)
    source = parse_source("s3://bucket")
    order = sync_order("20260101-000000-aaaa", [source], "~/data", {}, [["false"]])
    answer = syncjobs.start(order)
    assert answer["ended"]["exit_status"] == 1
    assert answer["ended"]["why"] == "false ended with status 1"
    assert not syncjobs.describe(tmp_path / order["id"])["running"]


@pytest.mark.parametrize(
    ("tool", "more", "message"),
    [
        ("s5cmd", {"credentials": "none"}, "s5cmd is not on demo-0"),
        ("aws", {"credentials": MINE}, "aws would need your keys in a file"),
    ],
)
def test_a_tool_that_cannot_is_refused(s3, node, tool, more, message):
    bucket = s3.bucket({"a": b"a"})
    with pytest.raises(UsageError, match=message):
        start_sync(node, [HEAD], request(s3, bucket, tool=tool, **more))


def test_a_lost_connection_is_taken_up_again(s3, node):
    bucket = s3.bucket({"a": b"a"})
    sync_id = started(node, request(s3, bucket))
    node.trouble.extend([ConnectionLost(HEAD.host, "lost")] * 2)
    record, log = followed(node, sync_id)
    assert record.state is SyncState.SUCCEEDED
    assert log.count("done") == 1
    assert node.commands.count("forget") == 2


@pytest.mark.parametrize("more", [{}, {"tool": "s5cmd", "credentials": None}])
def test_nothing_is_started_where_nobody_was_heard_of(s3, node, more):
    node.trouble.append(CommandTimeout(HEAD.host, "did not end within 2 min"))
    start = start_sync(node, [HEAD], request(s3, s3.bucket({"a": b"a"}), **more))
    assert [type(failure.error) for failure in start.nodes.failures] == [CommandTimeout]
    assert records(node) == []
