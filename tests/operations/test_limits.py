"""Sequences of changed limits, cut off anywhere: the effect of a power-off afterwards."""

from __future__ import annotations

import itertools
import json
import random
import re
from datetime import datetime, timezone
from types import SimpleNamespace

import pytest

from clusterctl.cli.status import print_spending
from clusterctl.domain.cluster import Limits
from clusterctl.domain.errors import ClusterctlError
from clusterctl.domain.files import ClusterFolder
from clusterctl.ec2 import instances, tags
from clusterctl.ec2.money import prices
from clusterctl.ec2.money.costs import spending
from clusterctl.ec2.money.prices import Price
from clusterctl.ec2.tags import format_limits
from clusterctl.node.guard import decisions, guard, workers
from clusterctl.node.guard.settings import GuardSettings
from clusterctl.operations import costs, guards, up
from tests.lab.running import client, ssh, wait_until
from tests.local_node import HEAD, LocalNode
from tests.operations import clusters
from tests.operations.limited_world import HOUR, MACHINE_USD, NODES, World, at

ASKED = (
    Limits(max_hours=2),
    Limits(max_hours=20),
    Limits(idle_minutes=30),
    Limits(max_hours=2, idle_minutes=30),
    Limits(budget_usd=100, idle_minutes=300),
)


@pytest.mark.parametrize(("idle_s", "limited"), [(600.0, True), (None, False)])
def test_a_guard_is_read_behind_a_greeting_with_braces(tmp_path, idle_s, limited):
    settings = GuardSettings("demo", index=0, idle_s=idle_s)
    (tmp_path / "guard.json").write_text(settings.text())
    (tmp_path / "sudo").write_text('#!/bin/sh\ncat "$HOME/guard.json" 2>/dev/null || :\n')
    (tmp_path / "sudo").chmod(0o755)
    head = LocalNode(tmp_path, {"PATH": f"{tmp_path}:/usr/bin:/bin"}, greeting=b"{ Welcome\n{\n")
    access = SimpleNamespace(
        connections=head,
        head=HEAD,
        head_name=HEAD.host,
        cluster=clusters.cluster(clusters.node(0)),
        select=lambda indices: (),
    )
    assert guards.update_idle_groups(access, []).values == [limited]
    (tmp_path / "guard.json").unlink()
    assert guards.update_idle_groups(access, []).values == [False]
    # Where sudo is refused, it is not known whether there is a limit.
    (tmp_path / "sudo").write_text("#!/bin/sh\necho sudo: a password is required >&2; exit 1\n")
    [refused] = guards.update_idle_groups(access, []).failures
    assert refused.error.message.endswith("is not known: sudo: a password is required")


@pytest.fixture
def world(tmp_path, monkeypatch):
    """Make worlds, in which guards see what their nodes do, and prices and time are the world's."""
    made: list[World] = []

    def look(keeps_store: bool):
        return made[-1].activity(made[-1].at_work)

    def ask(settings, asked):
        return made[-1].ask(settings, asked)

    monkeypatch.setattr(guard, "node_activity", look)
    monkeypatch.setattr(guard, "announce", lambda place, text: made[-1].announced.append(text))
    monkeypatch.setattr(workers, "ask", ask)
    monkeypatch.setattr(costs, "_now", lambda: at(made[-1].now))
    # One call after the other, so that a seed gives one row of events.
    monkeypatch.setattr(instances, "AT_ONCE", 1)
    price = Price(MACHINE_USD, "a list", "2026-11-01")
    monkeypatch.setattr(prices, "find_price", lambda *_: price)

    def make(chance: random.Random, limits: Limits) -> World:
        made.append(World(chance, limits, tmp_path / str(len(made))))
        return made[-1]

    return make


CALLS = (
    "tag",
    "stop",
    "start",
    "ready",
    *(f"{one}-{i}" for one in ("set", "ssh") for i in (0, 1, 2)),
)


def one_event(world: World, chance: random.Random) -> None:
    failing = [chance.choice(CALLS)] if chance.random() < 0.3 else []
    limits = chance.choice((None, None, *ASKED))
    hang = [index for index in range(3) if chance.random() < 0.1]
    node = chance.choice(world.nodes)
    event = chance.randrange(12)
    if event == 0:
        world.up(limits, *failing)
    elif event in (1, 2):
        world.start(hang, limits, *failing)
    elif event in (3, 4):
        world.stop(*failing)
    elif event == 5:
        # In AWS's console.
        for one in world.nodes:
            if one.state == "running":
                one.off("stopped", by_user=True)
            elif one.state == "stopped":
                one.start(hangs=False)
    elif event == 6:
        if node.state == "running":
            chance.choice(
                (
                    lambda: node.off("terminated", by_user=False),
                    lambda: setattr(node, "kernel_runs", False),
                    lambda: setattr(node, "reachable", not node.reachable),
                )
            )()
    elif event == 7:
        world.now += chance.uniform(0, 30 * HOUR) * all(
            one.state != "running" for one in world.nodes
        )
    else:
        for one in world.nodes:
            one.busy = chance.random() < 0.5
        world.pass_time(chance.choice((600, HOUR, 5 * HOUR)))


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.all) for seed in range(4, 60))]
)
def test_any_row_of_events_keeps_the_promises(world, seed):
    """The world asserts them whenever time passes: see its `powered_off` and `check`."""
    chance = random.Random(seed)
    for _ in range(3):
        one = world(chance, chance.choice(ASKED))
        one.up(None)
        for _ in range(25):
            one_event(one, chance)
        # Once all is quiet, idle nodes are off, whichever others are gone.
        for node in one.nodes:
            node.busy = False
        judging = [
            node
            for node in one.nodes
            if node.state == "running"
            and node.kernel_runs
            and node.guard.idle_s
            and node.guard.at_power_off == "stop"
        ]
        idle_s = max((node.guard.idle_s for node in judging), default=0.0)
        # One after the other may go meanwhile, at the end of its time.
        one.pass_time(NODES * (idle_s + decisions.HEAD_SILENT_S) + idle_s + HOUR / 2)
        assert {node.state for node in judging} <= {"stopped", "terminated"}
        # After a command that succeeded, nodes without a user end, and cost nothing any more.
        for node in one.nodes:
            node.reachable = True
        one.start([], Limits(max_hours=2))
        survivors = [node for node in one.nodes if node.answers and one.whole]
        for node in survivors:
            node.busy = True
        one.pass_time(3 * HOUR)
        assert {node.state for node in survivors} <= {"terminated"}


def test_a_start_that_fails_costs_no_disk_of_a_cluster_with_hours_left(world):
    one = world(random.Random(1), Limits(max_hours=20))
    assert one.up(None)
    one.pass_time(2 * HOUR)
    assert one.stop()
    one.now += 30 * HOUR
    assert not one.start([2], None)
    one.pass_time(10 * HOUR)
    assert [node.state for node in one.nodes] == ["running"] * 3
    assert {node.at_power_off for node in one.nodes} == {"stop"}
    # Once the node boots, its owner goes on, and the limits mean what they meant.
    one.nodes[2].kernel_runs = True
    assert one.up(None)
    assert {node.at_power_off for node in one.nodes} == {"terminate"}
    one.pass_time(9 * HOUR)
    assert [node.state for node in one.nodes] == ["terminated"] * 3


def test_a_limit_that_not_every_node_has_is_not_shown_as_the_end(world, capsys):
    one = world(random.Random(1), Limits(max_hours=30))
    assert one.up(None)

    def shown():
        money = spending(one.seen(), one.prices(), at(one.now))
        print_spending(money)
        limits = capsys.readouterr().out.splitlines()[1].split(";")[1]
        return limits.split(" in ")[0], [(found.host, found.message) for found in money.findings]

    assert shown() == (" ends", [])
    earlier = ("demo-[0-2]", "may still have earlier limits: max-hours=30")
    # Not a node that hangs, nor a command that ends before the guards are set.
    assert not one.up(Limits(max_hours=2), "ssh-1")
    assert shown() == (" not yet on every node", [earlier])
    assert not one.up(None, "ready")
    assert shown() == (" not yet on every node", [earlier])
    assert one.up(None)
    assert shown()[0] == " ends"
    assert not any("earlier" in text for _, text in shown()[1])


@pytest.mark.parametrize("is_last", [False, True])
def test_limits_that_two_machines_change_at_once_are_not_shown_as_the_end(
    world, monkeypatch, is_last
):
    """The other machine's are set while the first one's are sent; it may have ended before."""
    one = world(random.Random(1), Limits(max_hours=3))
    run = one.run

    def other(target, *args, **rest):
        if "stdin" in rest and target.host == "demo-1":
            labels = {tags.LIMITS: "max-hours=1"}
            labels |= {} if is_last else {tags.EARLIER_LIMITS: "max-hours=3"}
            for node in one.nodes:
                node.labels |= labels
                if is_last:
                    node.labels.pop(tags.EARLIER_LIMITS, None)
        return run(target, *args, **rest)

    monkeypatch.setattr(one, "run", other)
    with pytest.raises(ClusterctlError, match=r"the limits of demo \(max-hours=1\)") as refused:
        one._up(Limits(max_hours=6))
    assert "clusterctl up demo" in refused.value.hint
    # The other one has seen the limits of before, and is not the one to clear these.
    instances.untag(one, ["i-0", "i-1", "i-2"], tags.EARLIER_LIMITS, "max-hours=3")
    [earlier] = spending(one.seen(), one.prices(), at(one.now)).findings
    assert earlier.message == "may still have earlier limits: max-hours=6"
    monkeypatch.setattr(one, "run", run)
    one.limits = Limits(max_hours=1)
    assert one.up(None)
    assert not spending(one.seen(), one.prices(), at(one.now)).findings


def warned(world: World, limits: Limits | None = None):
    """Return what `start`, or with limits `up`, warns of before it starts the stopped nodes."""
    money = spending(world.seen(), world.prices(), at(world.now))
    return [*up.ended_findings("demo", limits or world.limits, money)]


def test_a_start_after_the_end_leaves_a_quarter_of_an_hour_and_says_so(world):
    one = world(random.Random(1), Limits(max_hours=2, idle_minutes=30))
    assert one.up(None)
    for node in one.nodes:
        node.busy = True
    one.pass_time(2.1 * HOUR)
    assert [node.state for node in one.nodes] == ["stopped"] * 3
    # They switched themselves off. EC2 does not say when.
    assert [found.check for found in warned(one)] == ["limits.unknown"]
    assert one.start([], None)
    one.pass_time(14 * 60)
    assert [node.state for node in one.nodes] == ["running"] * 3
    assert one.stop()
    [found] = warned(one)
    assert found.message == (
        "the end by --max-hours has passed: the nodes run 15 minutes from when they are ready"
    )
    assert one.start([], None)
    one.pass_time(14 * 60)
    assert [node.state for node in one.nodes] == ["running"] * 3
    one.pass_time(3 * 60)
    assert [node.state for node in one.nodes] == ["stopped"] * 3
    assert [found.check for found in warned(one, Limits(max_hours=8))] == ["limits.unknown"]
    assert not warned(one, Limits(idle_minutes=30))


def test_an_end_in_less_than_a_quarter_of_an_hour_holds_whatever_is_run(world):
    one = world(random.Random(1), Limits(max_hours=0.3))
    one.login_s = 10.0
    assert one.up(None)
    for node in one.nodes:
        node.busy = True
    while one.now < 0.29 * HOUR:
        assert [node.state for node in one.nodes] == ["running"] * 3
        assert one.up(None)
        one.pass_time(120)
    one.pass_time(120)
    assert [node.state for node in one.nodes] == ["terminated"] * 3


def test_nodes_that_start_a_minute_before_their_end_are_terminated_at_it(world):
    """The world asserts that EC2 is set to terminate them long before they switch themselves off,
    and that they have their own end after the command."""
    one = world(random.Random(1), Limits(max_hours=2))
    one.login_s = 1.0
    assert one.up(None)
    one.pass_time(2 * HOUR - 60)
    assert one.stop()
    assert one.start([], None)
    one.pass_time(180)
    assert [node.state for node in one.nodes] == ["terminated"] * 3


def test_a_quarter_of_an_hour_after_a_start_is_given_once(world):
    one = world(random.Random(1), Limits(max_hours=2, idle_minutes=30))
    one.login_s = 10.0
    assert one.up(None)
    for node in one.nodes:
        node.busy = True
    one.pass_time(2.1 * HOUR)
    assert one.start([], None)
    for _ in range(4):
        one.pass_time(180)
        assert one.up(None)
        assert [node.state for node in one.nodes] == ["running"] * 3
    one.pass_time(5 * 60)
    assert [node.state for node in one.nodes] == ["stopped"] * 3


@pytest.mark.parametrize("by_itself", [False, True])
def test_a_new_end_reaches_each_node_that_answers_though_another_does_not_boot(world, by_itself):
    one = world(random.Random(1), Limits(max_hours=2, idle_minutes=30))
    assert one.up(None)
    for node in one.nodes:
        node.busy = True
    one.pass_time((2.1 if by_itself else 1.9) * HOUR)
    assert by_itself or one.stop()
    assert [node.state for node in one.nodes] == ["stopped"] * 3
    assert not one.start([2], Limits(max_hours=4))
    one.pass_time(1.5 * HOUR)
    assert [node.state for node in one.nodes] == ["running"] * 3
    # The limit holds though the command has failed. EC2 is not told to terminate them.
    one.pass_time(HOUR)
    assert [node.state for node in one.nodes] == ["stopped", "stopped", "running"]


def test_nodes_that_were_stopped_in_the_console_and_are_started_keep_their_disks(world):
    one = world(random.Random(1), Limits(max_hours=2))
    assert one.up(None)
    for node in one.nodes:
        node.off("stopped", by_user=True)
    assert not one.start([1], None)
    assert {node.at_power_off for node in one.nodes} == {"stop"}


@pytest.mark.parametrize("gone", ["terminated", "hangs"])
@pytest.mark.parametrize("index", [0, 2])
def test_a_node_that_is_gone_keeps_no_others_running(world, index, gone):
    """The head node asks no more, or a worker does not answer any more."""
    one = world(random.Random(1), Limits(idle_minutes=30))
    assert one.up(None)
    one.pass_time(10 * 60)
    if gone == "terminated":
        one.nodes[index].off("terminated", by_user=True)
    else:
        one.nodes[index].kernel_runs = False
    others = [node for node in one.nodes if node.index != index]
    one.pass_time(HOUR)
    assert {node.state for node in others} == {"running"}
    one.pass_time(1.5 * HOUR)
    assert {node.state for node in others} == {"stopped"}
    said = "the head node is silent" if index == 0 else "demo-2 has not answered for 1.5 hours"
    assert any(text.startswith(said) for text in one.announced)


def test_a_worker_that_computes_and_does_not_answer_runs_on(world):
    one = world(random.Random(1), Limits(idle_minutes=30))
    assert one.up(None)
    one.nodes[1].reachable, one.nodes[1].busy = False, True
    one.pass_time(5 * HOUR)
    assert [node.state for node in one.nodes] == ["stopped", "running", "stopped"]
    one.nodes[1].busy = False
    one.pass_time(HOUR)
    assert one.nodes[1].state == "stopped"


def test_workers_of_a_busy_head_node_stay(world):
    one = world(random.Random(1), Limits(idle_minutes=30))
    assert one.up(None)
    one.nodes[0].busy = True
    one.pass_time(10 * HOUR)
    assert [node.state for node in one.nodes] == ["running"] * 3


names = (f"limits{number}" for number in itertools.count())


@pytest.mark.lab
def test_real_nodes_are_stopped_for_idleness_and_terminated_at_their_end(clusterctl, lab, capsys):
    """The nodes are launched with one limit and get the other; then the other way round."""
    name, ec2 = next(names), client(lab)
    command = ("up", name, "--nodes", "1", "--instance-type", "p3.2xlarge")
    try:
        ran = clusterctl(*command)
        # It costs nothing in the lab, so nobody is warned.
        assert ran.err.endswith(f"end:      nothing ends {name} by itself\n"), ran.err
        assert "warning" not in ran.err
        assert clusterctl(*command, "--max-hours", "0.08").status == 1
        # The lab's nodes have the training environment, so `env install` is not a next step.
        assert (
            f"log in:   clusterctl ssh {name} --lab\n"
            f"copy:     clusterctl copy {name} --lab ~/data/tf-imagenet/ '~/data/tf-imagenet/'\n"
            f"train:    clusterctl train {name} --lab 1\n"
            f"remove:   clusterctl down {name} --lab\n"
        ) in ran.err
        ran = clusterctl("up", name, "--max-hours", "24")
        assert ran.status == 0
        assert f"1 node wanted now, limits: max-hours=24: {name} is up and ready" in ran.err
        end = r"end:      20\d\d-\d\d-\d\d \d\d:\d\d UTC, in 23 h 5\d min, by --max-hours 24: "
        assert re.search(end + "the nodes are terminated, with their disks\n$", ran.err), ran.err
        found = ec2.describe_instances(
            Filters=[{"Name": "tag:clusterctl:cluster", "Values": [name]}]
        )
        [node] = found["Reservations"][0]["Instances"]
        id = node["InstanceId"]

        def state():
            found = ec2.describe_instances(InstanceIds=[id])["Reservations"][0]["Instances"][0]
            return found["State"]["Name"]

        def at_power_off():
            name = "instanceInitiatedShutdownBehavior"
            found = ec2.describe_instance_attribute(InstanceId=id, Attribute=name)
            return found["InstanceInitiatedShutdownBehavior"]["Value"]

        assert at_power_off() == "terminate"
        guard = "sudo pkill -STOP -f 'lib/[c]lusterctl/guard run'"
        earlier = 's/"used_s": [0-9]*/"used_s": -300/'
        state_file = "/run/clusterctl/guard-state.json"
        # `up` starts it, and does not wait for what it writes first.
        works = f"until sudo grep -q used_s {state_file}; do sleep 0.1; done"
        clusterctl("run", name, f"{works}; {guard}; sudo sed -i '{earlier}' {state_file}")
        hangs = clusterctl("status", name).err
        assert re.search(r"its guard has done nothing for \d+ min", hangs), hangs
        revived = clusterctl(*command)
        assert "it is started again" in revived.err
        assert "guard" not in clusterctl("status", name).err
        assert clusterctl(*command, "--idle-stop", "8s").status == 0
        assert at_power_off() == "stop"
        wait_until(lambda: state() in ("stopped", "terminated"), "the end of idleness")
        assert state() == "stopped"

        def known():
            [found] = clusterctl("costs", name, "--json").data["clusters"]
            return found["costs"]["complete"], found["costs"]["at_most"]

        # EC2 does not show when the machine switched itself off. Its guard has counted its time.
        assert known() == (False, False)
        # With 8 s, it could end again between two of the next commands on a busy machine.
        assert clusterctl(*command, "--idle-stop", "1h").status == 0
        assert known() == (True, True)
        assert "by --max-hours" not in clusterctl("status", name).err
        passed = clusterctl(*command, "--max-hours", "0.001")
        assert (passed.status, state()) == (1, "running")
        assert "--max-hours 0.001 has been reached already: the nodes have run for" in passed.err
        # A limit that nearly has passed can only come from elsewhere. `up` keeps it. One that had
        # passed at the start would leave the node a quarter of an hour. The seconds are for `up`:
        # a node that ends before EC2 is set to terminate it is stopped.
        ran_h = spending(instances.find_instances(ec2, name), {}, datetime.now(timezone.utc)).ran_h
        limits = format_limits(Limits(max_hours=round(ran_h + 15 / 3600, 4)))
        ec2.create_tags(Resources=[id], Tags=[{"Key": "clusterctl:limits", "Value": limits}])
        # The node may end before `up` has done all that it does there.
        ran = clusterctl(*command)
        wait_until(lambda: state() in ("stopped", "terminated"), f"the end of its time: {ran}")
        assert state() == "terminated"
        ended = r"there is no cluster .*: ended 20\S+ \d\d:\d\d UTC by --max-hours \d\.\d+: "
        assert re.search(ended, clusterctl("status", name).err)
    finally:
        clusterctl("down", name, "--yes", "--discard-results")


@pytest.mark.all
@pytest.mark.lab
def test_real_nodes_keep_their_disks_and_their_hours_over_a_stop_and_start(clusterctl, lab):
    """A limit of a minute: it would be over after the stop, if stopped time counted."""
    name, ec2 = next(names), client(lab)
    command = ("up", name, "--nodes", "1", "--instance-type", "p3.2xlarge")

    def node():
        filters = [{"Name": "tag:clusterctl:cluster", "Values": [name]}]
        [found] = ec2.describe_instances(Filters=filters)["Reservations"][0]["Instances"]
        return found

    def at_power_off():
        asked = {"InstanceId": id, "Attribute": "instanceInitiatedShutdownBehavior"}
        found = ec2.describe_instance_attribute(**asked)
        return found["InstanceInitiatedShutdownBehavior"]["Value"]

    def is_in(*states):
        wait_until(lambda: node()["State"]["Name"] in states, f"one of {states}")
        return node()["State"]["Name"]

    def left_s():
        show = "cat /run/clusterctl/guard-state.json 2>/dev/null || echo '{}'"

        def told():
            [line] = clusterctl("run", name, show).out.splitlines() or ["{}"]
            return json.loads(line[line.index("{") :]).get("left_s")

        return wait_until(told, "a guard's state")

    try:
        assert clusterctl(*command, "--max-hours", "8").status == 0
        id = node()["InstanceId"]
        assert at_power_off() == "terminate"
        before = left_s()
        assert clusterctl("stop", name).status == 0
        assert (node()["State"]["Name"], at_power_off()) == ("stopped", "stop")
        # Somebody starts it in AWS's console, and it switches itself off.
        ec2.start_instances(InstanceIds=[id])
        is_in("running")

        def switched_off():
            address = node().get("PrivateIpAddress", "")
            ssh(lab, ClusterFolder(lab.home / name).key, address, "sudo poweroff")
            return node()["State"]["Name"] != "running"

        wait_until(switched_off, "a power-off")
        assert is_in("stopped", "terminated") == "stopped"
        assert clusterctl("start", name).status == 0
        assert at_power_off() == "terminate"
        assert 0 < before - left_s() < 3600
    finally:
        clusterctl("down", name, "--yes", "--discard-results")
