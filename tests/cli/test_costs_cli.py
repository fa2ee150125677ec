"""`costs`, and the costs in `status`, as a user sees them."""

from __future__ import annotations

import csv
import json
import os
import re
import threading
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest
from botocore.endpoint import Endpoint
from moto.core.utils import utcnow
from moto.ec2 import ec2_backends

from clusterctl.cli.status import end_words, limits_words
from clusterctl.domain.cluster import Limits
from clusterctl.domain.files import ClusterFolder, write_file
from clusterctl.ec2 import instances, tags
from clusterctl.ec2.instances import find_instances
from clusterctl.ec2.money.costs import Spending
from clusterctl.operations.costs import FILE, record_lost_cost, record_removal_cost
from clusterctl.operations.local_state import locked
from clusterctl.operations.site import keep_site, kept_site, site_of
from tests.lab.running import wait_until
from tests.moto_ec2 import NEW_IMAGE, REGION, clients_of
from tests.operations.test_ended import gone


def launch(client, name, nodes=2, instance_type="p4d.24xlarge", **tagged):
    """Launch instances as `up` does, with additional or changed tags."""
    labels = {
        tags.CLUSTER: name,
        tags.FIRST_INDEX: "0",
        tags.NODES: tags.indices_text(range(nodes)),
        tags.DISK: "730 3000 125",
        **tagged,
    }
    answer = client.run_instances(
        ImageId=NEW_IMAGE,
        InstanceType=instance_type,
        MinCount=nodes,
        MaxCount=nodes,
        TagSpecifications=[{"ResourceType": "instance", "Tags": tags.tag_list(labels)}],
    )
    return [instance["InstanceId"] for instance in answer["Instances"]]


def test_a_node_that_was_not_launched_or_was_removed_is_not_gone(clusterctl, client):
    """A request that has no machine yet costs nothing, also where its index was used before."""
    unfinished = {tags.NODES: "0-1", tags.UNFINISHED: "add 1-1"}
    launch(client, "demo", 1, **unfinished)

    def told():
        status, costs = clusterctl("status", "demo"), clusterctl("costs", "demo", "--json")
        [cluster] = costs.data["clusters"]
        assert ("at least" in status.out) is not cluster["costs"]["complete"]
        assert "missing: 1 node (1)" in status.err
        return [one["message"] for one in cluster["costs"]["findings"] if "gone" in one["check"]]

    assert told() == []
    removed = launch(client, "demo", 1, **{tags.FIRST_INDEX: "1", tags.RETIRED: "yes"})
    client.terminate_instances(InstanceIds=removed)
    assert told() == []
    died = launch(client, "demo", 1, **{tags.FIRST_INDEX: "1"})
    client.terminate_instances(InstanceIds=died)
    [message] = told()
    assert message.startswith("this leaves out the cost of demo-1: gone, ")
    there = [one.node.instance_id for one in find_instances(client, "demo")]
    client.terminate_instances(InstanceIds=there)
    launch(client, "other", 1, **{tags.NODES: "0-1"})
    [cluster] = clusterctl("costs", "other", "--json").data["clusters"]
    [found] = cluster["costs"]["findings"]
    assert "demo" not in found["message"]
    assert ": no instance of this cluster has its tags: not launched, ended" in found["message"]


def test_a_lost_node_that_ec2_forgot_is_said_before_another_takes_its_place(
    clusterctl, client, moto_url
):
    launch(client, "demo", 1, **{tags.NODES: "0-1"})
    there, notes = find_instances(client, "demo"), []
    # Node 2 is wanted for the first time.
    record = (clusterctl.home, clients_of(moto_url), "demo", [1, 2], there)
    record_lost_cost(*record, notes.append)
    [note] = notes
    assert note.startswith("warning: demo-1: no instance of this cluster has its tags: ")


def test_a_retired_node_that_something_else_ended_is_recorded_once(clusterctl, client, moto_url):
    """The `replace` that had retired it was interrupted before it could record its cost."""
    launch(client, "demo", 1, **{tags.NODES: "0-1"})
    retired = launch(client, "demo", 1, **{tags.FIRST_INDEX: "1", tags.RETIRED: "yes"})
    client.terminate_instances(InstanceIds=retired)
    there, notes = find_instances(client, "demo"), []
    for _ in range(2):
        record = (clusterctl.home, clients_of(moto_url), "demo", [1], there)
        record_lost_cost(*record, notes.append)
    [line] = (clusterctl.home / FILE).read_text().splitlines()
    assert [*json.loads(line)["usd"]] == retired
    assert notes == []


@pytest.mark.parametrize(("limits", "complete"), [("max-hours=3", True), ("budget=5", False)])
def test_a_node_that_a_limit_ended_is_recorded_with_its_cost_until_then(
    clusterctl, client, moto_url, monkeypatch, limits, complete
):
    """EC2 does not say when it switched itself off."""
    launch(client, "demo", 1)
    ended = gone(9, limits, 1)
    monkeypatch.setattr("clusterctl.operations.costs.find_gone", lambda *_: {1: ended})
    there = find_instances(client, "demo")
    record_lost_cost(clusterctl.home, clients_of(moto_url), "demo", [1], there, pytest.fail)
    [line] = (clusterctl.home / FILE).read_text().splitlines()
    assert json.loads(line)["complete"] == complete
    assert json.loads(line)["ended_at"].startswith("2026-11-21T06:00") == complete


def test_list_shows_the_launch_and_not_the_last_start(clusterctl, client, monkeypatch):
    launch(client, "demo")
    started = [
        replace(one, node=replace(one.node, launched_at=one.node.launched_at + timedelta(days=2)))
        for one in find_instances(client, "demo")
    ]
    monkeypatch.setattr(instances, "find_every_cluster", lambda client: {"demo": started})
    [_, row] = clusterctl("list").out.splitlines()
    assert f"{started[0].node.launched_at - timedelta(days=2):%Y-%m-%d}" in row


def test_several_machines_of_one_node_are_named_with_what_removes_them(clusterctl, client):
    """`up` would be refused, so nothing leads there."""
    labels = {tags.NODES: "0-1", tags.UNFINISHED: "add 1-1"}
    launch(client, "demo", 2, **labels)
    launch(client, "demo", 1, **{**labels, tags.FIRST_INDEX: "1"})
    ran = clusterctl("status", "demo")
    assert "there are several instances for demo-1: two commands launched at once" in ran.err
    assert re.search("clusterctl remove demo .*1", ran.err)
    assert "requested and not finished: add demo-1\n" in ran.err
    assert "clusterctl up" not in ran.err


def state_of(client, name):
    return find_instances(client, name)[0].node.state.value


def spent(usd):
    """Return the cost tag of a node that was started just now."""
    now = datetime.now(timezone.utc)
    return tags.spent_text(tags.Spent(usd, ran_h=usd / NODE_USD, until=now))


# p4d.24xlarge 21.957642, the disk 730 x 0.08 / 730, a public address 0.005
NODE_USD = 21.957642 + 0.08 + 0.005


@pytest.fixture(autouse=True)
def no_hosts(monkeypatch):
    """Prevent logins: there are no hosts."""
    monkeypatch.setattr("clusterctl.cli.status._log_in", lambda *_: ((), []))


def test_status_shows_the_money(clusterctl, client):
    launch(client, "demo", **{tags.LIMITS: "max-hours=8 budget=1000", tags.SPENT: spent(50)})
    ran = clusterctl("status", "demo")
    assert ran.status == 0
    costs, limits = ran.out.splitlines()[-2:]
    assert costs.startswith("costs: $44.09 an hour, $100.")
    assert costs.endswith(")") and "2026" in costs
    # Two nodes at $22.04 an hour have cost $50 each: they have run for 2 h 16 min before.
    assert limits == "limits: 8 h, $1,000.00; ends in 5 h 43 min by --max-hours"
    assert ran.err == ""
    data = clusterctl("status", "demo", "--json").data["costs"]
    assert data["hourly_usd"] == pytest.approx(2 * NODE_USD, abs=1e-4)
    assert data["spent_usd"] == pytest.approx(100, abs=1)
    limits = {name: value for name, value in data["limits"].items() if value}
    assert limits == {"max_hours": 8.0, "budget_usd": 1000.0}
    assert data["complete"] is True
    assert data["ends_in_s"] == pytest.approx(5 * 3600 + 43 * 60, abs=120)


def test_a_budget_that_is_spent_names_the_cluster_to_remove(clusterctl, client):
    launch(client, "demo", **{tags.LIMITS: "budget=40", tags.SPENT: spent(50)})
    for command in ("costs",), ("status", "demo"):
        ran = clusterctl(*command)
        names = r"remove the cluster: clusterctl down (.* )?demo .*--region us-east-1"
        assert re.search(names, ran.err), ran.err


def test_status_warns_when_little_is_left(clusterctl, client):
    launch(client, "demo", **{tags.LIMITS: "budget=105", tags.SPENT: spent(50)})
    ran = clusterctl("status", "demo")
    assert ran.status == 0
    assert "by --budget" in ran.out
    assert "the nodes end in" in ran.err and "[cost.ending]" in ran.err


@pytest.mark.parametrize(
    "tagged",
    [
        {tags.LIMITS: "max-hours=soon budget= %n%s{}", tags.SPENT: "-5"},
        {tags.LIMITS: "=" * 250, tags.SPENT: "1e400", tags.DISK: "lots"},
        {tags.LIMITS: "stopped-days=3", tags.SPENT: "NaN", tags.NODES: "0-999999999999"},
    ],
)
def test_tags_edited_by_hand_break_nothing(clusterctl, client, tagged):
    launch(client, "demo", **tagged)
    for command in (("status", "demo"), ("costs",)):
        ran = clusterctl(*command)
        assert ran.status == 0
        assert ("[cost.incomplete]" in ran.err) is (tags.DISK in tagged)
    costs = clusterctl("status", "demo", "--json").data["costs"]
    assert (any(costs["limits"].values()), costs["complete"]) == (False, tags.DISK not in tagged)


def test_status_asks_ec2_twice_and_the_price_list_once_a_day(clusterctl, client, monkeypatch):
    launch(client, "demo", 32)
    clusterctl.home.mkdir()
    asked, here = [], threading.get_ident()
    send = Endpoint.make_request

    def counted(endpoint, operation, *rest):
        # A thread of an earlier test may still be sending requests.
        if threading.get_ident() == here:
            asked.append(operation.name)
        return send(endpoint, operation, *rest)

    monkeypatch.setattr(Endpoint, "make_request", counted)
    assert clusterctl("status", "demo").status == 0
    assert asked == ["DescribeInstances", "DescribeInstanceStatus", "GetProducts"]
    assert clusterctl("status", "demo").status == 0
    assert asked[3:] == ["DescribeInstances", "DescribeInstanceStatus"]


def test_an_unknown_price_breaks_nothing(clusterctl, client):
    # EC2 has this type; neither the price list nor the table has it.
    launch(client, "demo", 1, "m1.small")
    ran = clusterctl("status", "demo")
    assert ran.status == 0
    assert "costs: unknown an hour, at least $0.00" in ran.out
    report = clusterctl("costs")
    assert report.status == 0
    assert "unknown" in report.out
    assert "total: at least $0.00 an hour, at least $0.00 so far" in report.out


def test_the_report_has_every_cluster_and_the_sum(clusterctl, client):
    launch(client, "one", **{tags.SPENT: spent(10), tags.LIMITS: "idle-minutes=30 stopped-days=3"})
    [stopped] = launch(client, "two", 1, "g4dn.xlarge")
    wait_until(lambda: state_of(client, "two") == "running", "running")
    client.stop_instances(InstanceIds=[stopped])
    wait_until(lambda: state_of(client, "two") == "stopped", "stopped")
    off = clusterctl("status", "two").err
    why = r"stopped: a request to EC2's API at .*Client.UserInitiatedSh"
    assert re.search(f"two-0: {why}", off)
    [node] = clusterctl("status", "two", "--json").data["nodes"]
    assert re.match(why, node["unreachable_because"])
    assert re.search(r"; `clusterctl start two .*` starts the cluster\n", off)
    client.run_instances(ImageId=NEW_IMAGE, MinCount=1, MaxCount=1)
    ran = clusterctl("costs")
    assert ran.status == 0
    lines = ran.out.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["one", "two"]
    assert "2 running" in lines[1] and "stops after 30 min idle, goes after 3 d stopped" in lines[1]
    # A stopped machine costs only its disk.
    assert "1 stopped" in lines[2] and "$0.0800" in lines[2]
    assert lines[4].startswith("total: $44.17 an hour, $20.")
    data = clusterctl("costs", "--json").data
    assert [one["name"] for one in data["clusters"]] == ["one", "two"]
    assert data["hourly_usd"] == pytest.approx(2 * NODE_USD + 0.08, abs=1e-4)
    assert [one["name"] for one in clusterctl("costs", "two", "--json").data["clusters"]] == ["two"]


def test_a_spreadsheet_gets_numbers(clusterctl, client):
    launch(client, "one", **{tags.SPENT: spent(10)})
    launch(client, "=cmd()", 1)
    rows = list(csv.DictReader(clusterctl("costs", "--csv").out.splitlines()))
    by_name = {row["cluster"]: row for row in rows}
    # A name from a tag does not become a formula.
    assert set(by_name) == {"one", "'=cmd()'"}
    assert float(by_name["one"]["hourly_usd"]) == pytest.approx(2 * NODE_USD, abs=1e-4)
    assert by_name["one"]["nodes"] == "2"
    assert by_name["one"]["complete"] == "yes"
    assert datetime.fromisoformat(by_name["one"]["since"]).tzinfo is not None
    assert by_name["one"]["ended_at"] == ""


def remove(clusterctl, client, moto_url, name):
    """Record the cost and remove the cluster, as `down` does."""
    instances = find_instances(client, name)
    record_removal_cost(clusterctl.home, clients_of(moto_url), name, instances, print)
    client.terminate_instances(InstanceIds=[one.node.instance_id for one in instances])


def test_down_notes_what_it_ends(clusterctl, client):
    launch(client, "demo", **{tags.SPENT: spent(10)})
    began = datetime.now(timezone.utc)
    forced = ("--yes", "--discard-results", "--launched-elsewhere")
    assert clusterctl("down", "demo", *forced).status == 0
    assert clusterctl("costs").out == ""
    ran = clusterctl("costs", "--since", "1d")
    assert ran.status == 0
    row = ran.out.splitlines()[1]
    assert row.split()[:4] == ["demo", "us-east-1", "2", "removed"]
    days = {f"{at:%Y-%m-%d}" for at in (began, datetime.now(timezone.utc))}
    assert "$20." in row and any(f"ended {day}" in row for day in days)
    [ended] = clusterctl("costs", "demo", "--since", "2026-01-01", "--json").data["ended"]
    assert (ended["name"], len(ended["usd"]), ended["market"]) == ("demo", 2, "on-demand")
    assert ended["spent_usd"] == pytest.approx(20, abs=0.5)
    rows = list(csv.DictReader(clusterctl("costs", "--since", "1d", "--csv").out.splitlines()))
    assert rows[0]["cluster"] == "demo" and rows[0]["ended_at"]
    # Neither this time nor this name is selected.
    clusterctl.ends(2, "2199-01-01 has not come yet", "costs", "--since", "2199-01-01")
    assert clusterctl("costs", "other", "--since", "1d").status == 1


def test_the_ledger_is_the_owners_alone_and_without_a_damaged_line_the_sum_is_a_minimum(
    clusterctl, client, moto_url
):
    launch(client, "demo", 1, **{tags.SPENT: spent(10)})
    remove(clusterctl, client, moto_url, "demo")
    file = clusterctl.home / "costs.jsonl"
    assert file.stat().st_mode & 0o777 == 0o600
    good = json.loads(file.read_text())
    broken = [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff",
        *(
            json.dumps({**good, **wrong}).encode()
            for wrong in (
                {"usd": {"i-1": -1}},
                {"usd": {"i-1": "10"}},
                {"usd": {"i-1": True}},
                {"usd": [1]},
                {"name": "\x1b[31m"},
                {"name": 3},
                {"ended_at": "yesterday"},
                {"ended_at": "2026-11-21T00:00:00"},
                {"since": None},
            )
        ),
    ]
    file.write_bytes(b"\n".join(broken) + b"\n" + file.read_bytes())
    ran = clusterctl("costs", "--since", "1d", "--json")
    [ended] = ran.data["ended"]
    assert ended["spent_usd"] == pytest.approx(10, abs=0.5)
    assert (ended["complete"], ran.data["complete"]) == (True, False)
    assert f"{file}: without 13 damaged lines: line 2: not JSON: " in ran.err
    assert ran.err.replace("\n", "").isprintable()
    # A line that a crash cut short is a cost that is not known, and spoils no later line.
    file.write_bytes(json.dumps(good).encode() + b'\n{"account": ')
    ran = clusterctl("costs", "--since", "1d", "--json")
    assert (len(ran.data["ended"]), ran.data["complete"]) == (1, False)
    assert f"{file}: without 1 damaged line: line 2: not JSON: " in ran.err
    launch(client, "other", 1, **{tags.SPENT: spent(10)})
    remove(clusterctl, client, moto_url, "other")
    ran = clusterctl("costs", "--since", "1d", "--json")
    assert [one["name"] for one in ran.data["ended"]] == ["demo", "other"]
    assert f"{file}: without 1 damaged line: line 2: not JSON: " in ran.err
    file.unlink()
    file.mkdir()
    clusterctl.ends(1, f"cannot read {file}: Is a directory", "costs", "--since", "1d")


@pytest.mark.parametrize(
    ("account", "shown"),
    [
        ("us-east-1 at a local EC2, account 123456789012", True),
        ("us-east-1 at a local EC2", False),
        ("us-east-1 at a local EC2, account 210987654321", False),
        ("us-east-1 at https://ec2.example, account 123456789012", False),
    ],
)
def test_what_ended_elsewhere_was_not_paid_here(clusterctl, client, moto_url, account, shown):
    launch(client, "demo", 1)
    remove(clusterctl, client, moto_url, "demo")
    file = clusterctl.home / "costs.jsonl"
    entry = json.loads(file.read_text())
    assert entry["account"] == "us-east-1 at a local EC2, account 123456789012"
    file.write_text(json.dumps({**entry, "account": account}) + "\n")
    ended = clusterctl("costs", "--since", "1d", "--json").data["ended"]
    assert len(ended) == shown


def test_what_cannot_be_noted_does_not_stop_a_removal(clusterctl, client, moto_url):
    launch(client, "demo", 1)
    clusterctl.home.mkdir()
    (clusterctl.home / "file").write_text("")
    home = clusterctl.home / "file"
    there, notes = find_instances(client, "demo"), []
    record_removal_cost(home, clients_of(moto_url), "demo", there, notes.append)
    [note] = notes
    assert note.startswith(f"warning: what demo-0 cost cannot be recorded in {home}/costs.jsonl: ")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["nowhere"], 1, "there is no cluster nowhere in us-east-1"),
        (["--since", "yesterday"], 2, "not a date: 'yesterday'"),
        (["--since", "2026-13-01"], 2, "not a date"),
        (["--since", "99999999999d"], 2, "not a date"),
        (["--json", "--csv"], 2, "exclude each other"),
        (["Demo!"], 2, "not a cluster name"),
    ],
)
def test_what_makes_no_sense(clusterctl, arguments, status, message):
    ran = clusterctl("costs", *arguments)
    assert ran.status == status
    assert message in ran.err
    assert ran.out == "" or ran.data["exit_status"] == status


def test_all_regions(clusterctl, client):
    launch(client, "demo", 1)
    data = clusterctl("costs", "--all-regions", "--json").data
    assert [(one["name"], one["region"]) for one in data["clusters"]] == [("demo", REGION)]


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        (Limits(max_hours=8, idle_minutes=30, stopped_days=3),
         "8 h, stops after 30 min idle, goes after 3 d stopped"),
        (Limits(idle_minutes=1 / 3, stopped_days=0.001),
         "stops after 20 s idle, goes after 1 min 26 s stopped"),
        (Limits(max_hours=1.5), "1 h 30 min"),
        (Limits(), ""),
    ],
)  # fmt: skip
def test_limits_in_words(limits, text):
    assert limits_words(limits) == text


def has_run_for_ten_hours(client):
    """Have the node run for ten hours by now: an `up` on a busy machine takes a minute."""
    [node] = find_instances(client, "demo")
    machine = ec2_backends["123456789012"][REGION].get_instance(node.node.instance_id)
    machine.launch_time = utcnow() - timedelta(hours=10)
    for nic in machine.nics.values():
        nic.attach_time = machine.launch_time
    return machine.id


def test_what_the_nodes_have_cost_in_this_run_is_off_the_budget(clusterctl, client):
    up = ("up", "demo", "--instance-type", "p4d.24xlarge", "--ssh-from", "10.0.0.0/8", "--nodes")
    clusterctl(*up, "1", "--timeout", "0.01s")
    has_run_for_ten_hours(client)
    assert clusterctl(*up, "2", "--dry-run", "--budget", "1000").status == 0
    has_run_for_ten_hours(client)
    ran = clusterctl(*up, "2", "--dry-run", "--budget", "200")
    assert (ran.status, "the budget of $200.00 is spent: $220." in ran.err) == (1, True), ran.err


def test_new_limits_that_would_end_a_cluster_at_once_are_refused(clusterctl, client):
    up = ("up", "demo", "--instance-type", "p4d.24xlarge", "--ssh-from", "10.0.0.0/8", "--yes")
    clusterctl(*up, "--nodes", "1", "--timeout", "0.01s")
    for limit, message in (
        ("--budget 200", "--budget $200.00 has been reached already: the cluster has cost $220."),
        ("--budget 221", "--budget $221.00 would end the nodes in"),
        ("--max-hours 10", "--max-hours 10 has been reached already: the nodes have run for 10 h"),
        ("--max-hours 10.05", "--max-hours 10.05 would end the nodes in"),
        ("--idle-stop 299s", "--idle-stop 4 min 59 s would stop the cluster before a first job"),
    ):
        id = has_run_for_ten_hours(client)
        clusterctl.ends(2 if "idle" in limit else 1, message, *up, *limit.split())
        assert find_instances(client, "demo")[0].limits_text == ""
    # More nodes are no reason to launch some that end at once.
    has_run_for_ten_hours(client)
    limits = tags.tag_list({tags.LIMITS: "max-hours=10.05"})
    client.create_tags(Resources=[id], Tags=limits)
    clusterctl.ends(1, "would end the nodes in", "add", "demo", "1", "--yes")
    assert len(find_instances(client, "demo")) == 1


@pytest.mark.parametrize(
    ("limits", "ends_in_h", "by", "kept", "block", "words"),
    [
        (Limits(max_hours=8), *(2.0, "--max-hours", False, None),
         "2026-11-01 14:00 UTC, in 2 h 00 min, by --max-hours 8: the nodes are terminated, with "
         "their disks"),
        (
            Limits(max_hours=8, budget_usd=12345678, idle_minutes=30),
            *(0.1, "--budget", True, None),
            "2026-11-01 12:06 UTC, in 6 min 00 s, by --budget 12345678: the nodes are stopped; "
            "their disks are kept, and cost; before that, the nodes are stopped when they have "
            "been idle for 30 min",
        ),
        (Limits(idle_minutes=30), *(None, "", True, None),
         "the nodes are stopped when they have been idle for 30 min"),
        (Limits(max_hours=8), *(8.0, "--max-hours", False, 1),
         "2026-11-01 13:00 UTC, in 1 h 00 min, by the end of its Capacity Block: EC2 terminates "
         "the nodes"),
        (Limits(max_hourly_usd=5), None, "", False, None, ""),
    ],
)  # fmt: skip
def test_the_end_of_a_cluster_in_words(limits, ends_in_h, by, kept, block, words):
    now = datetime(2026, 11, 1, 12, tzinfo=timezone.utc)
    money = Spending(1.0, 1.0, True, "", limits, now, ends_in_h=ends_in_h, ended_by=by)
    block_ends_at = now + timedelta(hours=block) if block else None
    assert end_words(money, now, kept, block_ends_at) == words


def test_a_cluster_that_a_limit_has_ended_is_remembered(clusterctl, client):
    ids = launch(client, "thr", **{tags.LIMITS: "max-hours=2"})
    for id in ids:
        machine = ec2_backends["123456789012"][REGION].get_instance(id)
        machine.launch_time -= timedelta(hours=3)
    launch(client, "mine")
    client.terminate_instances(InstanceIds=ids)
    assert "thr" not in clusterctl("costs").err  # Its owner has terminated it.
    for id in ids:
        machine = ec2_backends["123456789012"][REGION].get_instance(id)
        machine.state_reason.code = "Client.InstanceInitiatedShutdown"
        machine.state_reason.message = "Client.InstanceInitiatedShutdown: Instance shutdown"
    # Two hours of two nodes at 22.04.
    words = r"ended 20\d\d-\d\d-\d\d \d\d:\d\d UTC by --max-hours 2: \$88\.17"
    ran = clusterctl("costs")
    assert (ran.status, bool(re.search(f"^thr: {words}$", ran.err, re.MULTILINE))) == (0, True)
    assert clusterctl("costs", "thr").status == 0
    for command in "status", "jobs":
        ran = clusterctl(command, "thr")
        error = rf"^error: there is no cluster thr in us-east-1: {words}$"
        assert (ran.status, bool(re.search(error, ran.err, re.MULTILINE))) == (1, True), ran.err
    folder = clusterctl.home / "thr"
    folder.mkdir(parents=True)
    end = {"ends_at": "2026-11-21T14:02:00+00:00", "by": "--max-hours 2"}

    def keep_end():
        (folder / "end.json").write_text(json.dumps(end))
        (folder / "account").write_text("us-east-1 at a local EC2, account 123456789012\n")

    # Another cluster of that name does not end so, and the sum of the first is recorded, once; so
    # is that of the second, which its owner has terminated, by the third.
    keep_end()
    second = set()
    for _ in range(2):
        up = ("--nodes", "1", "--instance-type", "p4d.24xlarge", "--ssh-from", "10.0.0.0/8")
        clusterctl("up", "thr", *up, "--yes", "--timeout", "0.01s")
        [again] = find_instances(client, "thr")
        second = second or {again.node.instance_id}
        client.terminate_instances(InstanceIds=[again.node.instance_id])
    ran = clusterctl("status", "thr")
    assert (ran.status, "--max-hours" in ran.err) == (1, False), ran
    [past, later] = clusterctl("costs", "thr", "--since", "1d", "--json").data["ended"]
    assert set(later["usd"]) == second
    assert (past["complete"], past["spent_usd"]) == (True, pytest.approx(88.17, abs=0.01))
    assert set(past["usd"]) == set(ids)
    # Later EC2 has forgotten it, and the machine that launched it has not.
    client.delete_tags(Resources=ids, Tags=[{"Key": tags.CLUSTER}])
    assert "thr: " not in clusterctl("costs").err
    keep_end()
    for command in ("costs",), ("status", "thr"), ("jobs", "thr"):
        ran = clusterctl(*command)
        assert ": gone; its --max-hours would have ended it at 2026-11-21 14:02 UTC" in ran.err


def address_of(client, name):
    """Allocate an elastic address as `up` does."""
    labels = [{"ResourceType": "elastic-ip", "Tags": tags.tag_list({tags.CLUSTER: name})}]
    client.allocate_address(Domain="vpc", TagSpecifications=labels)


def test_what_an_interrupted_launch_has_left_is_named_without_an_instance(
    clusterctl, client, moto_url
):
    folder = ClusterFolder(clusterctl.home / "demo")
    keep_site(folder, site_of(clients_of(moto_url)))
    remove = f"demo --region {REGION}\n"
    none = clusterctl.ends(1, f"there is no cluster demo in {REGION}\n", "status", "demo")
    assert "or launch it: clusterctl up" in none
    write_file(folder.creations, "{}")
    for command in ("list", "costs"):
        assert "demo" not in clusterctl(command).err
    address_of(client, "demo")
    for command in ("list", "costs"):
        assert f"demo has no instance in {REGION}" in clusterctl.ends(0, remove, command)
    for command in ("status", "costs", "stop"):
        message = clusterctl.ends(1, f"no cluster demo in {REGION}\n", command, "demo")
        assert "launched from here" in message
        assert "clusterctl down" in message
    sent = {"request": {"ClientToken": "t"}, "sent_at": time.time()}
    write_file(folder.launch, json.dumps({"launches": [sent]}))
    clusterctl.ends(1, "launch from here is not known yet", "status", "demo")
    with locked(folder):
        assert "demo" not in clusterctl("list").err
    # It is of another region, and another one of its name is in this one.
    other = clients_of(moto_url).in_region("us-west-2")
    keep_site(folder, site_of(other))
    address_of(other.ec2, "demo")
    clusterctl.ends(1, " --region us-west-2\n", "costs", "demo", "--all-regions")
    launch(client, "demo")
    clusterctl.ends(0, "demo has no instance in us-west-2", "costs", "--all-regions")
    keep_site(folder, replace(kept_site(folder), account="210987654321"))
    assert "demo" not in clusterctl("costs", "--all-regions").err


def launched_here(clusterctl, moto_url):
    """Make the folder of demo as `up` leaves it, but for what it has of nodes."""
    folder = ClusterFolder(clusterctl.home / "demo")
    keep_site(folder, site_of(clients_of(moto_url)))
    write_file(folder.launch, '{"launches": []}')
    write_file(folder.key, "")
    return folder


def test_nodes_that_ended_without_a_command_are_named_counted_and_recorded(
    clusterctl, client, moto_url
):
    launched_here(clusterctl, moto_url)
    ids = launch(client, "demo")
    launch(client, "mine")
    client.terminate_instances(InstanceIds=ids)
    machine = ec2_backends["123456789012"][REGION].get_instance(ids[1])
    machine.state_reason.code = "Client.InstanceInitiatedShutdown"
    machine.state_reason.message = "Client.InstanceInitiatedShutdown: Instance shutdown"
    by_user = "demo-0 gone: a request to EC2's API"
    itself = "demo-1 gone: a shutdown on the node itself, by a command or a limit"
    for command in ("status", "jobs", "stop", "costs"):
        words = f"there is no cluster demo in {REGION}: {by_user}; {itself}\n"
        assert "what is left of it may cost" in clusterctl.ends(1, words, command, "demo")
    for command in ("list", "costs"):
        clusterctl.ends(0, f"demo has no instance in {REGION} ({by_user}; {itself})", command)
        # Whether its cost is recorded was not looked at: a `down` may have done that.
        assert f"{itself})\n" in clusterctl(command).err
    costs = clusterctl("costs", "--json").data
    assert ([one["name"] for one in costs["left_behind"]], costs["complete"]) == (["demo"], False)
    assert clusterctl("costs").out.count("total: at least $") == 1
    # Nothing else is left of it; `down` records them all the same, and this is the record's only
    # source: EC2 forgets them.
    assert clusterctl("down", "demo", "--yes").status == 0
    assert "demo" not in clusterctl("costs").err
    [past] = clusterctl("costs", "--since", "1d", "--json").data["ended"]
    assert (past["name"], set(past["usd"]), past["complete"]) == ("demo", set(ids), False)


def test_nodes_that_a_down_has_removed_are_not_called_gone(clusterctl, client, moto_url):
    launch(client, "demo")
    launch(client, "demo", 1)  # a second machine of one node
    elsewhere = ("--launched-elsewhere", "--discard-results")
    clusterctl.ends(0, "terminating demo: 2 nodes left", "down", "demo", "--yes", *elsewhere)
    assert "gone" not in clusterctl("status", "demo").err
    # They are of an earlier cluster of that name, whose key the folder does not have.
    folder = launched_here(clusterctl, moto_url)
    os.utime(folder.key, (time.time() + 3600,) * 2)
    assert "gone" not in clusterctl("status", "demo").err
