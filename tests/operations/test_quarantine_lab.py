"""Commands that name no node leave a node in quarantine alone. Here, it does not even answer."""

from __future__ import annotations

import json

import pytest

from clusterctl.cli.main import COMMANDS
from clusterctl.domain.errors import UsageError
from clusterctl.operations.members import nearest_peer
from tests.operations.clusters import cluster, node
from tests.pair import LabCluster, eventually

GUARD = "sudo cat /var/lib/clusterctl/guard.json"
# A use of each command that takes a cluster, without a node. New commands have to be added here.
DEFAULTS = {
    "run": ["--", "hostname"],
    "copy": ["--dry-run", "/etc/hostname", "/data/"],
    "data": ["verify", "/etc/hostname"],
    "env": ["status"],
    "train": ["1", "--synthetic", "--dry-run"],
    "bench": ["--gpus", "1", "--dry-run"],
    "cancel": [],
    "kill": [],
    "disk": [],
    "clean-logs": ["--dry-run"],
    "doctor": [],
    "reboot": None,  # not here: it would take a node down; see below
    "s3sync": None,  # selects nodes like copy --detach, by access.select
}
# These commands are for one node, for the whole cluster in EC2, or for no node.
NOT_FOR_NODES = {
    *("up", "down", "stop", "start", "add", "remove", "replace", "quarantine", "release"),
    *("status", "list", "costs", "ssh", "hosts", "logs", "results", "gc", "config", "network"),
    *("iam-policy", "lab", "completion"),
    *("jobs", "wait", "fetch", "tuning", "selftest"),
}


def test_every_command_is_known_here():
    from_others = set(COMMANDS) - DEFAULTS.keys() - NOT_FOR_NODES
    assert from_others <= {"diagnose", "explain", "watch", "serve", "predict"}


@pytest.fixture
def in_service(pair):
    """Yield the cluster. No node of it stays in quarantine, even if the test fails."""
    yield pair
    for index in ("0", "1"):
        pair.ctl("release", index)


@pytest.mark.all
def test_quarantine_replacement_and_release(in_service):
    pair = in_service
    status, out, err = pair.ctl("quarantine", "1", "--reason", "GPU 0 lost")
    assert (status, out) == (0, "pair-1: in quarantine; 1 node in service, with 1 slot\n"), err
    with pair.fault(1, "freeze"):
        for command, arguments in DEFAULTS.items():
            if arguments is None:
                continue
            words = [command, *(arguments[:1] if command in ("data", "env") else ())]
            rest = arguments[len(words) - 1 :]
            status, out, err = pair.ctl(" ".join(words), *rest)
            assert status in (0, 1 if command == "doctor" else 0), (command, out, err)
            assert "pair-1" not in out + err, command
        pair.ok("up", "--nodes", "2")
    status, out, _ = pair.ctl("hosts")
    lines = out.splitlines()
    assert lines[0].endswith(" slots=1")
    assert lines[1].startswith("# 10.")
    assert "pair-1, in quarantine since 20" in lines[1]
    kept = [line for line in pair.access().folder.hosts.read_text().splitlines() if line[0] != "#"]
    assert kept == lines[:1]
    assert pair.on(0, "cat examples/horovod/tensorflow/hosts | grep -v ^#").splitlines() == kept
    described = json.loads(pair.ctl("status", "--json")[1])
    assert described["state"] == "1 running, 1 quarantined"
    assert described["nodes"][1]["quarantined"].endswith(" GPU 0 lost")
    # A command that names the node reaches it.
    assert pair.ctl("run", "--nodes", "1", "--", "hostname")[0] == 0
    assert pair.ctl("train", "2", "--synthetic", "--dry-run")[0] == 2
    pair.ends(2, "clusterctl replace pair 0", "quarantine", "0")
    assert pair.ctl("release", "1")[:2] == (
        0,
        "pair-1: in service again; 2 nodes in service, with 2 slots\n",
    )
    the_job_of_a_quarantined_node_is_seen_and_ended(pair)
    pair.on(0, "mkdir -p /data/set && echo records >/data/set/train-0")
    before = json.loads(pair.ctl("list", "--json")[1])
    status, _, err = pair.ctl("replace", "0", "--yes", "--with-data", "/data/set")
    assert (status, "no other node of pair is in service" in err) == (2, True), err
    assert json.loads(pair.ctl("list", "--json")[1]) == before, "the data are where they were"
    pair.ok("replace", "1", "--yes", "--with-data", "/data/set")
    assert pair.on(1, "cat /data/set/train-0") == "records\n"
    assert len(pair.ctl("hosts")[1].splitlines()) == 2
    assert pair.on(0, "ssh -o BatchMode=yes pair-1 hostname").startswith("ip-10-")


def the_job_of_a_quarantined_node_is_seen_and_ended(pair):
    """The ranks on the node belong to the job, though the hosts file lacks the node."""
    pair.put("wait.py", "import time\ntime.sleep(600)\n")
    run = ("train", "2", "--detach", "--script", "~/wait.py", "--")
    pair.ok(*run)
    eventually(lambda: pair.on(1, "pgrep -f [w]ait.py || :"), "the rank of pair-1")
    status, out, err = pair.ctl("quarantine", "1", "--json")
    assert json.loads(out)["job_id"], err
    rank = pair.on(1, "pgrep -f '[p]ython.*wait.py'").split()[-1]
    pair.on(1, f"kill -STOP {rank}")
    seen = json.loads(pair.ctl("diagnose", "--json")[1])
    assert (seen["check"], seen["host"], seen["ranks"]) == ("rank.stopped", "pair-1", [1])
    assert "host.quarantined" in {one["check"] for one in seen["findings"]}
    status, _, err = pair.ctl("doctor", "--fix")
    assert (status, "--force" in err, "clusterctl cancel pair" in err) == (3, False, True), err
    # A stopped daemon does not notice mpirun's end.
    pair.on(1, "pkill -STOP -x prted")
    status, out, err = pair.ctl("cancel")
    assert (status, "nothing of it is left" in out) == (0, True), out + err
    assert not pair.on(1, "pgrep -f '[w]ait.py|[p]rted' || :")


@pytest.mark.all
def test_a_node_in_quarantine_is_told_when_to_end(lab):
    """It costs as much as the others."""
    limited = LabCluster(lab, "limited")
    try:
        size = ("--nodes", "2", "--instance-type", "p3.2xlarge")
        limited.ok("up", *size, "--idle-stop", "2h")

        def idle_judges():
            told = [json.loads(limited.on(node, GUARD)) for node in (0, 1)]
            return [one["name"] for one in told[0].get("workers", ())], told[1].get("index")

        assert idle_judges() == (["limited-1"], 1)
        assert limited.ctl("quarantine", "1")[0] == 0
        assert idle_judges() == ([], None), (
            "what froze there would keep the head node from stopping"
        )
        assert limited.ctl("release", "1")[0] == 0
        assert idle_judges() == (["limited-1"], 1)
        with limited.fault(1, "freeze"):
            status, _, err = limited.ctl("quarantine", "1")
        assert (status, "clusterctl remove limited 1" in err) == (0, True), err
        assert idle_judges() == ([], 1)
        status, _, err = limited.ctl("up", "--nodes", "2", "--max-hours", "5")
        assert (status, "limits.earlier" in err) == (0, False), err
        told = [json.loads(limited.on(node, GUARD)) for node in (0, 1)]
        assert "index" not in told[1] or told[1]["index"] is None, "it judges alone if it idles"
        # Each counts its own running time, up to five hours from now.
        assert all(one["lifetime_s"] > 0 for one in told)
        with limited.fault(1, "freeze"):
            status, _, err = limited.ctl("up", "--nodes", "2", "--max-hours", "6")
        assert (status, "warning: limited-1: in quarantine" in err) == (0, True), err
    finally:
        limited.ctl("down", "--yes", "--discard-results")


def test_data_come_from_the_nearest_node_that_is_in_service():
    a, b = "us-east-1a", "us-east-1b"
    nodes = (
        node(0, zone=b),
        node(1, zone=a),
        node(2, zone=a),
        node(3, zone=b, quarantined="2026-11-23T00:00:00Z"),
        node(4, zone=b),
    )
    there = cluster(*nodes)
    assert [nearest_peer(there, [index]).index for index in (1, 2, 3, 4)] == [2, 1, 4, 0]
    assert nearest_peer(there, [1, 2]).index == 4
    assert nearest_peer(there, [5]).index == 4, "whose machine is gone"
    with pytest.raises(UsageError, match="in service"):
        nearest_peer(there, [0, 1, 2, 4])
