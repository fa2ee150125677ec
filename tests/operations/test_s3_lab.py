"""Data sets in S3 on real hosts, with an instance profile, by the tool that is sent to them."""

from __future__ import annotations

import contextlib
import json
import random

import pytest

from tests.lab.running import once_client, wait_until
from tests.variants import usual

pytestmark = pytest.mark.lab

DATA = random.Random(11)
TRAIN = {f"shards/train-{n}": DATA.randbytes(2_000_000 + n) for n in range(3)}
VALIDATION = {"validation-0": DATA.randbytes(500_000), "it's a name": b"x"}
# A copy by the tool of `sleeping_tool`.
NEVER_ENDS = (
    *("--detach", "--tool", "s5cmd", "--credentials", "mine"),
    *("s3://my-train/", "~/never"),
)
SLEEPS = "pgrep -cxf 'sleep 1003' || true"
HAVE = "cd '{}' && find . -type f -not -path '*/.clusterctl*' -exec sha256sum {{}} + | sort"


@pytest.fixture(scope="module")
def s3(pair):
    client = once_client(pair.lab, "s3")
    for bucket, objects in {"my-train": TRAIN, "my-validation": VALIDATION}.items():
        client.create_bucket(Bucket=bucket)
        for key, body in objects.items():
            client.put_object(Bucket=bucket, Key=key, Body=body)
    return client


def test_without_a_profile_it_says_what_to_do(pair, s3):
    status, _, err = pair.ctl("s3sync", "s3://my-train/shards", "~/none", "--follow")
    assert status == 1
    assert "there are no credentials for S3: no instance profile" in err
    assert "--credentials mine" in err
    status, _, err = pair.ctl("copy", "s3://my-train/shards", "~/none")
    assert status != 0
    assert "no instance profile" in err
    assert f"add a role: clusterctl up {pair.name} --instance-profile new" in err


@pytest.mark.all
def test_running_nodes_read_s3_by_the_command_that_the_hint_names(pair, s3):
    ec2 = once_client(pair.lab)
    try:
        pair.ok("up", "--instance-profile", "new")
        status, out, err = pair.ctl("status", "--json")
        assert set(json.loads(out)["instance_profiles"].values()) == {
            f"clusterctl-{pair.name}-{pair.lab.region}"
        }
        pair.ok("copy", "s3://my-train/shards", "~/by-role")
        assert same(pair, "by-role") == 3
    finally:
        for one in ec2.describe_iam_instance_profile_associations()[
            "IamInstanceProfileAssociations"
        ]:
            ec2.disassociate_iam_instance_profile(AssociationId=one["AssociationId"])


def test_with_keys_that_are_lent(pair, s3):
    lent = ("s3://my-train/shards", "~/lent", "--credentials", "mine", "--follow")
    status, _, err = pair.ctl("s3sync", *lent)
    assert status == 0, err
    assert same(pair, "lent") == 3
    # The session can only read the bucket: there is no warning.
    assert "warning" not in err
    # It is a job, and its record has the keys nowhere.
    synced = pair.jobs()[-1]
    assert (synced["preset"], synced["state"]) == ("copy", "succeeded")
    assert (synced["sources"], synced["destination"]) == (["s3://my-train/shards"], "~/lent")
    assert synced["variables"] == {"CLUSTERCTL_S3_KEYS": None}
    found = "grep -rlE '[AL]SIA[A-Z0-9]{{12}}' ~/.clusterctl/jobs/{} || true"
    assert pair.on(0, found.format(synced["job_id"])) == ""


@contextlib.contextmanager
def sleeping_tool(pair):
    """Put an s5cmd on both nodes that copies nothing and does not end."""
    stub = "#!/bin/sh\ncase $* in version) echo v2.3.0;; *) exec sleep 1003;; esac\n"
    for node in (0, 1):
        pair.on(node, "mkdir -p ~/.local/bin; cat >~/.local/bin/s5cmd", stub.encode())
        pair.on(node, "chmod +x ~/.local/bin/s5cmd")
    try:
        yield
    finally:
        for node in (0, 1):
            pair.on(node, "rm -f ~/.local/bin/s5cmd")


def test_a_detached_copy_is_cancelled_on_all_nodes(pair, s3):
    """The tool on each node has stopped when `cancel` returns, and the job is no longer active."""
    with sleeping_tool(pair):
        out = pair.ok("copy", "--json", *NEVER_ENDS)
        job_id = json.loads(out.splitlines()[-1])["job_id"]
        for node in (0, 1):
            wait_until(lambda node=node: pair.on(node, SLEEPS) == "1\n", "the tool to run", 60)
        assert pair.ctl("s3sync", "--status")[0] == 0
        pair.ends(1, f"job {job_id} copies to ~/never on pair already", "copy", *NEVER_ENDS)
        pair.ends(1, f"job {job_id} is running", "reboot", "--nodes", "1")
        status, out, err = pair.ctl("cancel", job_id)
        assert (status, "cancelled" in out) == (0, True), err
        assert [pair.on(node, SLEEPS) for node in (0, 1)] == ["0\n", "0\n"]
        status, out, _ = pair.ctl("s3sync", "--status", "--json")
        assert (status, {one["state"] for one in json.loads(out)["nodes"]}) == (1, {"cancelled"})
        # A runner that is killed is lost, with all that ran for it; it is never "no sync".
        out = pair.ok("copy", "--json", *NEVER_ENDS)
        job_id = json.loads(out.splitlines()[-1])["job_id"]
        wait_until(lambda: pair.on(1, SLEEPS) == "1\n", "the tool to run", 60)
        pair.on(0, f"kill -9 $(cut -d' ' -f1 ~/.clusterctl/jobs/{job_id}/lock)")
        for node in (0, 1):
            wait_until(lambda node=node: pair.on(node, SLEEPS) == "0\n", "the tool to end", 60)
        status, out, _ = pair.ctl("s3sync", "--status", "--json", job_id)
        assert (status, {one["state"] for one in json.loads(out)["failures"]}) == (1, {"lost"})


@pytest.mark.all
def test_a_node_that_does_not_answer_is_not_called_cancelled(pair, s3):
    """As long as it is cut off, the tool may go on there."""
    with sleeping_tool(pair):
        out = pair.ok("copy", "--json", *NEVER_ENDS)
        job_id = json.loads(out.splitlines()[-1])["job_id"]
        wait_until(lambda: pair.on(1, SLEEPS) == "1\n", "the tool to run", 60)
        with pair.cut_off(1):
            for _ in range(2):
                status, out, err = pair.ctl("cancel", job_id)
                assert (status, "pair-1: " in err) == (255, True), (out, err)
        status, out, err = pair.ctl("cancel", job_id)
        assert status == 0, (out, err)
        assert pair.on(1, SLEEPS) == "0\n"


@pytest.mark.all
def test_a_tilde_without_quotes_is_explained(pair, s3, monkeypatch):
    monkeypatch.setenv("HOME", "/srv/alice")
    status, _, err = pair.ctl(
        *("s3sync", "s3://my-train/shards", "/srv/alice/data", "--credentials", "mine", "--follow")
    )
    assert (status, "quote the ~, so that the nodes' is meant: '~/data'" in err) == (1, True), err


@pytest.fixture(scope="module")
def profile(pair, s3):
    with pair.instance_profile():
        yield


def same(pair, folder: str) -> int:
    """Return the number of files in a folder. It has to be the same on both nodes."""
    first, second = (pair.on(node, HAVE.format(folder)) for node in (0, 1))
    assert first == second
    return len(first.splitlines())


@pytest.mark.all
def test_two_buckets_by_s3sync_and_again(pair, profile):
    places = ("s3://my-train/shards", "s3://my-validation", "~/data/both")
    status, _, err = pair.ctl("s3sync", *places)
    assert status == 0, err
    assert "pair-[0-1]" in err

    def ended():
        states = json.loads(pair.ctl("s3sync", "--status", "--json")[1])["nodes"]
        assert [one["host"] for one in states] == ["pair-0", "pair-1"]
        return all(one["state"] == "succeeded" for one in states)

    wait_until(ended, "the sync to end")
    assert same(pair, "data/both") == 5
    pair.ends(0, "pair-[0-1]: succeeded after", "s3sync", *places, "--follow")
    states = json.loads(pair.ctl("s3sync", "--status", "--json")[1])["nodes"]
    copied = [one["copied"] for one in states]
    assert [(one["needed_files"], one["present_files"]) for one in copied] == [(0, 5), (0, 5)]
    # A sync of one node alone, which the other does not have, and an unknown sync.
    assert pair.ctl("s3sync", "--head", *places[1:2], "~/data/head")[0] == 0
    status, out, err = pair.ctl("s3sync", "--follow")
    assert (status, "pair-0: succeeded" in err, "pair-1" in out + err) == (0, True, False), err
    for looks in ("--status", "--follow"):
        status, _, err = pair.ctl("s3sync", looks, "20200101-000000-aaaa")
        assert (status, "no sync 20200101-000000-aaaa has run on pair" in err) == (1, True), err


@pytest.mark.all
def test_a_copy_again_and_without_what_is_no_longer_there(pair, profile):
    out = pair.ok("copy", "--json", "-q", "s3://my-train/shards", "~/copied")
    report = json.loads(out)
    assert report["plan"]["tool"] in ("s5cmd", "aws")
    assert [(node["host"], node["files"]) for node in report["nodes"]] == [
        ("pair-0", 3),
        ("pair-1", 3),
    ]
    assert same(pair, "copied") == 3
    pair.on(1, "touch copied/extra; rm copied/train-1")
    request = ("--delete", "--verify", "s3://my-train/shards", "~/copied")
    out = pair.ok("copy", "--dry-run", *request[:1], *request[2:])
    assert "pair-1: 1 file would be deleted\n  extra" in out
    pair.ok("copy", *request)
    assert same(pair, "copied") == 3


@pytest.mark.parametrize("command", usual(1, ["s3sync", "copy"]))
@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("s3://no-such-bucket-of-ours/x", "there is no bucket no-such-bucket-of-ours"),
        ("s3://UPPER/x", "not a bucket"),
    ],
)
def test_what_is_not_there_is_said(pair, profile, command, place, message):
    status, _, err = pair.ctl(command, place, "~/none")
    assert status in (1, 2)
    assert message in err
