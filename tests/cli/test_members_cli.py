"""Commands on a cluster of which only EC2 answers, or whose key is on another machine."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from types import SimpleNamespace

import pytest

from clusterctl.cli.cluster import naming_ups_options, show_report
from clusterctl.domain.cluster import NodeState
from clusterctl.domain.errors import UsageError
from clusterctl.domain.files import ClusterFolder
from clusterctl.domain.findings import Finding
from clusterctl.ec2 import tags
from clusterctl.ec2.instances import find_instances
from clusterctl.ec2.money import prices
from clusterctl.operations.launcher import LaunchRefused
from clusterctl.operations.local_state import keep_key, local_key
from clusterctl.operations.up import UpReport
from tests.cli.running import DEMO, launched
from tests.lab.running import wait_until
from tests.operations.clusters import cluster, node


def states(client):
    return {found.node.state for found in find_instances(client, "demo")}


@pytest.fixture
def running(clusterctl, client):
    launched(clusterctl)
    wait_until(lambda: states(client) == {NodeState.RUNNING}, "running")


@pytest.mark.parametrize("command", ["remove", "replace"])
def test_a_node_there_is_not_is_said_without_asking_the_head(running, clusterctl, command):
    err = clusterctl.ends(2, "cluster demo has no node 7", command, "demo", "1", "7")
    assert "its nodes are 0-1" in err


def test_nodes_have_names_and_those_of_another_cluster_are_refused(running, clusterctl, client):
    for nodes, message in (
        ("demo-7", "cluster demo has no node 7"),
        ("demo-[1,7]", "cluster demo has no node 7"),
        ("other-1", "nodes of other are named, and the cluster is demo"),
        ("demo", "not a list of nodes"),
    ):
        for command in (("remove",), ("replace", "--yes")):
            clusterctl.ends(2, message, *command, "demo", nodes)
    assert len(find_instances(client, "demo")) == 2


def test_what_only_up_can_change_is_told_with_up(clusterctl):
    """`add` has no option for a limit or a type."""
    launched(clusterctl, "--max-hourly", "100")
    err = clusterctl.ends(1, "--max-hourly allows $100.00", "add", "demo", "9", "--dry-run")
    assert re.search("hint: raise it: clusterctl up demo .*--max-hourly USD", err)
    assert "hint: the options that are named above are those of: clusterctl up demo" in err


def test_up_is_not_named_for_options_where_no_option_is():
    full = LaunchRefused("demo", [Finding.error("quota", "too few vCPUs", "wait for a node's end")])
    with pytest.raises(LaunchRefused) as refused, naming_ups_options("demo"):
        raise full
    assert refused.value.hint == ""


@pytest.mark.parametrize("command", ["remove", "replace"])
def test_the_key_of_another_machine_is_noticed_before_a_node_is_asked(
    running, clusterctl, client, command
):
    """The folder is of an earlier cluster of that name."""
    folder = ClusterFolder(clusterctl.home / "demo")
    folder.key.unlink()
    keep_key(folder, local_key(folder, "demo"))
    ran = clusterctl(command, "demo", "1", "--yes", "--force")
    assert ran.status == 1, ran.err
    assert "the key of cluster demo is not on this machine" in ran.err
    assert states(client) == {NodeState.RUNNING}
    if command == "remove":
        clusterctl.ends(0, "no login was tried: the key of cluster demo", "status", "demo")
        clusterctl.ends(1, "the key of cluster demo is not on this machine", "run", "demo", "true")


def test_a_cluster_whose_key_is_elsewhere_is_stopped_with_force(running, clusterctl, client):
    shutil.rmtree(clusterctl.home / "demo")
    refused = clusterctl("stop", "demo")
    assert refused.status == 1
    assert re.search("clusterctl stop demo .*--force", refused.err)
    assert states(client) == {NodeState.RUNNING}
    stopped = clusterctl("stop", "demo", "--force")
    assert (stopped.status, stopped.out) == (0, "stopped demo; its disks go on costing money\n")
    assert states(client) == {NodeState.STOPPED}


def test_a_node_without_a_machine_is_replaced_and_the_head_node_first(running, clusterctl, client):
    """They were terminated in the console: nothing of them can be saved or lost."""
    machines = {one.node.index: one.node.instance_id for one in find_instances(client, "demo")}
    client.terminate_instances(InstanceIds=[machines[0]])
    wait_until(lambda: len(find_instances(client, "demo")) == 1, "terminated")
    assert "1 running, 1 missing" in clusterctl("list").out
    for command in ("remove", "replace"):
        ran = clusterctl(command, "demo", "1", "--yes", "--force")
        assert ran.status == 1
        assert "demo-0: the head node is gone, with the jobs and logs on its disk" in ran.err
        assert "launch another in its place: clusterctl up demo" in ran.err
    ran = clusterctl("down", "demo", "--yes")
    assert ran.status == 1, ran.err
    assert "demo-1: not known what is left there: the records of jobs went with demo-0" in ran.err
    ran = clusterctl("replace", "demo", "0", "--yes", "--timeout", "0.01s")
    assert (ran.status, "RunInstances: 1 x p4d.24xlarge" in ran.err) == (1, True), ran.err
    there = {one.node.index: one.node.instance_id for one in find_instances(client, "demo")}
    assert there[1] == machines[1]
    client.terminate_instances(InstanceIds=[machines[1]])
    wait_until(lambda: len(find_instances(client, "demo")) == 1, "terminated")
    ran = clusterctl("replace", "demo", "1", "--yes", "--timeout", "0.01s")
    assert (ran.status, "RunInstances: 1 x p4d.24xlarge" in ran.err) == (1, True), ran.err
    now = {one.node.index: one.node.instance_id for one in find_instances(client, "demo")}
    assert (now[0], [*now]) == (there[0], [0, 1])


def test_what_an_interrupted_replace_was_to_copy_is_said_not_to_be_there(tmp_path, capsys):
    app = SimpleNamespace(folder=lambda name: ClusterFolder(tmp_path / name))
    report = UpReport(cluster(*map(node, range(3))), (), (1,), (8, 8, 8))
    show_report(app, replace(report, finished=tags.Unfinished(replace=(1,))), as_json=False)
    said = "copied: clusterctl copy demo DIR/ DIR/ --from INDEX --nodes 1\n"
    assert said in capsys.readouterr().err
    show_report(app, replace(report, finished=tags.Unfinished(add=(1,))), as_json=False)
    assert "--with-data" not in capsys.readouterr().err


def test_nobody_is_asked_about_the_head_node_which_cannot_be_removed(running, clusterctl):
    clusterctl.ends(2, "demo-0 is the head node, and cannot be removed", "remove", "demo", "0")


def test_a_price_an_hour_below_that_of_the_nodes_is_refused(running, clusterctl):
    text = "--max-hourly $0.0100 is less than the nodes cost"
    clusterctl.ends(1, text, "up", "demo", "--max-hourly", "0.01", "--dry-run")


def test_a_replace_that_is_refused_reports_no_request_but_earlier_ones(running, clusterctl, client):
    ids = [found.node.instance_id for found in find_instances(client, "demo")]
    client.create_tags(Resources=ids, Tags=[{"Key": tags.LIMITS, "Value": "max-hourly=0.01"}])
    for earlier in ("", "add 1"):
        client.create_tags(Resources=ids, Tags=[{"Key": tags.UNFINISHED, "Value": earlier}])
        err = clusterctl.ends(1, "[cost.hourly]", "replace", "demo", "1", "--yes", "--force")
        assert re.findall("not finished: (.*) \\[", err) == ["add demo-1"] * bool(earlier)


def empty(key):
    key.write_bytes(b"")


def cut_short(key):
    key.write_bytes(key.read_bytes()[:100])


def lock(key):
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", key], check=True)


@pytest.mark.parametrize(
    ("spoil", "why"), [(empty, "is damaged"), (cut_short, "is damaged"), (lock, "has a passphrase")]
)
def test_a_key_that_cannot_be_used_is_as_one_that_is_elsewhere(
    running, clusterctl, client, monkeypatch, spoil, why
):
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    spoil(clusterctl.home / "demo" / "id_ed25519")
    clusterctl.ends(0, "no login was tried: the key of cluster demo cannot", "status", "demo")
    for command in (
        ("stop", "demo"),
        ("run", "demo", "true"),
        ("quarantine", "demo", "1"),
        ("replace", "demo", "1", "--yes", "--force"),
        ("up", *DEMO, "--dry-run"),
    ):
        err = clusterctl.ends(1, "the key of cluster demo cannot be used", *command)
        assert why in err
        assert re.search("clusterctl down demo", err)
    assert states(client) == {NodeState.RUNNING}
    assert clusterctl("stop", "demo", "--force").status == 0
    assert states(client) == {NodeState.STOPPED}
    assert clusterctl("down", "demo", "--yes").status == 0
    assert find_instances(client, "demo") == ()


def test_too_many_nodes_are_refused_at_once(running, clusterctl, client):
    clusterctl.ends(2, "100001 nodes are too many", "add", "demo", "99999")
    assert len(find_instances(client, "demo")) == 2


@pytest.mark.parametrize("subnet", ["subnet-1", "subnet-0123456789abcdef0"])
def test_a_subnet_there_is_not_is_told_with_the_rest(clusterctl, subnet):
    options = ("--nodes", "1", "--instance-type", "g5.xlarge", "--max-hourly", "0.01")
    ran = clusterctl("up", "demo", *options, "--subnet", subnet, "--ssh-from", "0.0.0.0/0")
    assert ran.status == 1
    assert f"there is no subnet {subnet} in us-east-1 [subnet.none]" in ran.err
    for check in ("cost.hourly", "network.ssh"):
        assert f"[{check}]" in ran.err
    assert not (clusterctl.home / "demo").exists()


def test_nodes_of_a_capacity_block_are_stopped_and_free_their_places(clusterctl, client):
    """The block stays paid, and EC2 frees the place of a stopped instance in it."""
    offered = client.describe_capacity_block_offerings(
        InstanceType="p4d.24xlarge", InstanceCount=2, CapacityDurationHours=48
    )["CapacityBlockOfferings"]
    soonest = min(offered, key=lambda one: one["StartDate"])
    block = client.purchase_capacity_block(
        CapacityBlockOfferingId=soonest["CapacityBlockOfferingId"], InstancePlatform="Linux/UNIX"
    )["CapacityReservation"]["CapacityReservationId"]
    launched(clusterctl, "--capacity-reservation", block)
    wait_until(lambda: states(client) == {NodeState.RUNNING}, "running")

    def free():
        found = client.describe_capacity_reservations(CapacityReservationIds=[block])
        return found["CapacityReservations"][0]["AvailableInstanceCount"]

    assert free() == 0
    assert clusterctl("stop", "demo", "--force").status == 0
    assert (states(client), free()) == ({NodeState.STOPPED}, 2)


def test_what_is_refused_with_json_is_counted(clusterctl):
    options = ("--nodes", "1", "--instance-type", "g5.xlarge", "--max-hourly", "0.01")
    ran = clusterctl("up", "demo", *options, "--dry-run", "--json")
    assert ran.status == 1
    assert "fix 1 error first" in ran.err
    assert "[cost.hourly]" not in ran.err, "it is in the JSON"
    assert [one["check"] for one in ran.data["findings"] if one["severity"] == "error"] == [
        "cost.hourly"
    ]


@pytest.mark.parametrize(
    ("said", "file", "expected"),
    [
        ((), "", (None, 0.0)),
        ((), "timeout: 20m\ncapacity-timeout: 2h\n", (1200.0, 7200.0)),
        (("--capacity-timeout", "0"), "capacity-timeout: 2h\n", (None, 0.0)),
        (("--timeout", "90s"), "timeout: 20m\n", (90.0, 0.0)),
    ],
)
def test_the_files_timeouts_hold_for_every_launch(
    clusterctl, monkeypatch, tmp_path, said, file, expected
):
    seen = []

    def start(launcher):
        seen.append((launcher.timeout_s, launcher.capacity_timeout_s))
        raise UsageError("seen")

    monkeypatch.setattr("clusterctl.operations.power.start", start)
    (tmp_path / "clusterctl.yaml").write_text(
        f"defaults:\n{indented(file)}" if file else "clusters: {}\n"
    )
    clusterctl("start", "demo", *said, "--config", str(tmp_path / "clusterctl.yaml"))
    assert seen == [expected]


def indented(text):
    return "".join(f"  {line}\n" for line in text.splitlines())


def test_a_region_is_checked_wherever_it_is_given(clusterctl):
    err = clusterctl.ends(2, "region", "list", "--region", "no region")
    assert "Traceback" not in err


@pytest.mark.parametrize("price", ["", r" \(on demand \$[\d.]+ an hour for each\)"])
def test_too_many_gpus_are_refused_with_what_is_there_first_and_then_more(
    running, clusterctl, monkeypatch, price
):
    if price:  # as of AWS itself: hosts of the local EC2 cost nothing
        monkeypatch.setattr(prices, "is_local", lambda url: False)
    ran = clusterctl("train", "demo", "32", "--synthetic", "--", "--batch_size", "32")
    assert (ran.status, "wanted 32 GPUs, there are 16" in ran.err) == (2, True), ran.err
    take, add = ran.err.partition("hint: ")[2].split("; or ")
    assert re.fullmatch(r"take 16: \S+ train demo 16 .*--synthetic -- --batch_size 32", take), take
    assert re.fullmatch(rf"add nodes: clusterctl up demo .*--nodes 4{price}\n", add), add
    clusterctl.ends(2, "take 16, or add nodes", "bench", "demo", "--gpus", "8,32")
