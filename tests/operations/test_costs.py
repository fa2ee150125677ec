"""`costs` compared with the true bill, for any sequence of starts, stops and removals."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from clusterctl.bootstrap.guard import UNCOUNTED_S
from clusterctl.domain.cluster import ASLEEP
from clusterctl.ec2 import tags
from clusterctl.ec2.instances import find_instances
from clusterctl.ec2.money import prices
from clusterctl.ec2.money.costs import BRIEF_S
from clusterctl.ec2.money.prices import PUBLIC_IPV4_HOUR_USD, Price
from clusterctl.operations import costs, power
from clusterctl.operations.costs import cost_report, note_spent, record_removal_cost
from tests.cli.running import CommandLine
from tests.lab.running import client, wait_until

MACHINE_USD, DISK_USD = 10.0, 0.08  # an hour; 730 GiB
BEGIN = datetime(2026, 11, 1, tzinfo=timezone.utc)


@dataclass
class Machine:
    """An instance, and the start and end of every run that its owner pays for."""

    id: str
    made_at: datetime
    tags: dict[str, str]
    runs: list[list[datetime | None]] = field(default_factory=list)
    asked: bool = False  # whether clusterctl requested its last stop
    ended_at: datetime | None = None
    # Whether EC2 and our tags have all runs, and whether its guard has counted all of them.
    known: bool = True

    @property
    def state(self):
        if self.ended_at:
            return "terminated"
        return "running" if self.runs[-1][1] is None else "stopped"

    def described(self):
        launched, stopped = self.runs[-1]
        by_user = self.state == "stopped" and self.asked
        return {
            "InstanceId": self.id,
            "InstanceType": "p4d.24xlarge",
            "State": {"Name": self.state},
            "LaunchTime": launched.replace(microsecond=0),
            "StateTransitionReason": f"User initiated ({stopped:%Y-%m-%d %H:%M:%S} GMT)"
            if by_user
            else "",
            "NetworkInterfaces": [{"Attachment": {"DeviceIndex": 0, "AttachTime": self.made_at}}],
            "Tags": tags.tag_list(self.tags),
            **({"PublicIpAddress": "198.51.100.7"} if self.state == "running" else {}),
        }

    def ran_s(self, now):
        return sum(((end or now) - start).total_seconds() for start, end in self.runs)

    def bill(self, now):
        held_s = ((self.ended_at or now) - self.made_at).total_seconds()
        running = self.ran_s(now) * (MACHINE_USD + PUBLIC_IPV4_HOUR_USD)
        return (running + held_s * DISK_USD) / 3600


class World:
    """EC2 with regard to costs, and the commands with their calls in order."""

    meta = SimpleNamespace(region_name="us-east-1", endpoint_url="https://ec2.example")

    def __init__(self, chance, home):
        self.chance, self.home = chance, home
        self.now, self.machines = BEGIN, []
        self.clients = SimpleNamespace(ec2=self, account_id="1" * 12)

    def get_paginator(self, operation):
        assert operation == "describe_instances"
        return self

    def paginate(self, Filters, PaginationConfig):  # noqa: N803 - boto3's names
        [states] = [one["Values"] for one in Filters if one["Name"] == "instance-state-name"]
        found = [one.described() for one in self.machines if one.state in states]
        return [{"Reservations": [{"OwnerId": "1" * 12, "Instances": found}]}]

    def create_tags(self, Resources, Tags):  # noqa: N803
        for one in self.machines:
            if one.id in Resources:
                one.tags |= tags.tag_dict(Tags)

    def some(self, state):
        found = [one for one in self.machines if one.state == state]
        return self.chance.sample(found, self.chance.randint(0, len(found)))

    def seen(self, machines):
        ids = {one.id for one in machines}
        return [one for one in find_instances(self, "demo") if one.node.instance_id in ids]

    def wait(self, most_s):
        self.now += timedelta(seconds=self.chance.uniform(0, most_s))

    def cut_off(self):
        return self.chance.random() < 0.2

    def launch(self):
        labels = {tags.CLUSTER: "demo", tags.FIRST_INDEX: "0", tags.DISK: "730 3000 125"}
        one = Machine(f"i-{len(self.machines)}", self.now.replace(microsecond=0), labels)
        self.wait(1)
        one.runs.append([self.now, None])
        self.machines.append(one)

    def switched_off(self, machines, asked):
        for one in machines:
            one.runs[-1][1], one.asked = self.now, asked

    def stop(self):
        going = self.some("running")
        note_spent(self.clients, self.seen(going))
        self.wait(2)
        if not self.cut_off():
            self.switched_off(going, asked=True)

    def stop_in_the_console(self):
        self.switched_off(self.some("running"), asked=True)

    def switch_itself_off(self):
        going = self.some("running")
        self.switched_off(going, asked=False)
        for one in going:
            one.known = False

    def start(self):
        """Start nodes like `up`, which may wait for capacity and reads the guards' times."""
        going = self.some("stopped")
        for _ in range(self.chance.randint(1, 3)):
            self.wait(7200)
            asleep = [one for one in self.seen(going) if one.node.state in ASLEEP]
            note_spent(self.clients, asleep)
        self.wait(1)
        if self.cut_off():
            return
        for one in going:
            one.runs.append([self.now, None])
        self.wait(600)
        if self.chance.random() < 0.5:
            self.ask_guards()

    def start_in_the_console(self):
        for one in self.some("stopped"):
            one.runs.append([self.now, None])
            one.known = False

    def ask_guards(self):
        used_h = {}
        for one in self.some("running"):
            uncounted_s = self.chance.uniform(0, UNCOUNTED_S) * len(one.runs)
            counted_s = max(0.0, one.ran_s(self.now) - uncounted_s)
            used_h[one.id] = (counted_s + UNCOUNTED_S * len(one.runs)) / 3600
            one.known = True
        asked = [one for one in self.machines if one.id in used_h]
        note_spent(self.clients, self.seen(asked), used_h)

    def remove(self):
        """Remove a node, like `replace` after the new machine exists."""
        going = [
            one
            for one in self.machines
            if one.state in self.chance.choice((("running",), ("stopped",), ("running", "stopped")))
        ]
        going = self.chance.sample(going, min(len(going), 2))
        record_removal_cost(self.home, self.clients, "demo", self.seen(going), print)
        self.wait(2)
        if self.cut_off():
            return
        for one in going:
            if one.state == "running":
                one.runs[-1][1] = self.now
            one.ended_at = self.now

    def check(self):
        report = cost_report({"us-east-1": self.clients}, self.home, since=BEGIN)
        there = [one for one in self.machines if one.ended_at is None]
        spent = sum(one.costs.spent_usd for one in report.clusters)
        all_known = all(one.costs.complete for one in report.clusters)
        counted = any(one.costs.at_most for one in report.clusters)
        for machines, said, complete, at_most in (
            (there, spent, all_known, counted),
            (self.machines, report.spent_usd, report.complete, report.at_most),
        ):
            bill = sum(one.bill(self.now) for one in machines)
            # A removal takes 2 s after it is recorded, and a tag has four digits.
            if complete:
                assert said >= bill - 0.02 * len(machines)
            runs = sum(len(one.runs) for one in machines)
            slack_s = (2 * BRIEF_S + UNCOUNTED_S * at_most) * runs
            assert said <= bill + slack_s * MACHINE_USD / 3600 * 1.01
            if all(one.known for one in machines):
                assert complete
            elif not complete:
                assert report.ended or any(
                    found.check == "cost.incomplete"
                    for one in report.clusters
                    for found in one.costs.findings
                )
        return report.complete


@pytest.fixture
def world(tmp_path, monkeypatch):
    def make(seed):
        world = World(random.Random(seed), tmp_path / str(seed))
        monkeypatch.setattr(costs, "_now", lambda: world.now)
        return world

    price = Price(MACHINE_USD, "a list", "2026-11-01")
    monkeypatch.setattr(prices, "find_price", lambda *_: price)
    return make


def test_any_row_of_events_is_never_too_little_while_it_is_said_to_be_all_and_never_twice(world):
    complete = 0
    for seed in range(200):
        ec2 = world(seed)
        verbs = [
            *(ec2.launch, ec2.stop, ec2.stop_in_the_console, ec2.start, ec2.remove, ec2.ask_guards)
        ]
        if seed % 2:
            verbs += [ec2.switch_itself_off, ec2.start_in_the_console]
        ec2.launch()
        for _ in range(25):
            ec2.wait(ec2.chance.choice((60, 3600, 100_000)))
            ec2.chance.choice(verbs)()
            complete += ec2.check()
    assert 2500 < complete < 4900


@pytest.mark.lab
def test_a_machine_that_switched_itself_off_and_was_started_again(lab, monkeypatch, capsys):
    monkeypatch.setenv("CLUSTERCTL_HOME", str(lab.home))
    clusterctl, ec2, name = CommandLine(lab.home, capsys, ["--lab"]), client(lab), "again"

    def node():
        [found] = find_instances(ec2, name)
        return found

    def money(**expected):
        [found] = clusterctl("costs", name, "--json").data["clusters"]
        costs = found["costs"]
        assert {key: costs[key] for key in expected} == expected, found
        return [one["message"] for one in costs["findings"] if one["check"] == "cost.incomplete"]

    try:
        assert clusterctl("up", name, "--nodes", "1", "--instance-type", "p3.2xlarge").status == 0
        # Killed right after StopInstances: the run is recorded before it.
        with monkeypatch.context() as patch:
            patch.setattr(power, "_await_stopped", Mock(side_effect=KeyboardInterrupt))
            assert clusterctl("stop", name).status == 130
        first = node().spent
        assert (first.usd > 0, first.at_least) == (True, False)
        assert clusterctl("start", name).status == 0
        second = node().spent
        assert (second.usd >= first.usd, second.until >= first.until) == (True, True)
        assert money(complete=True) == []
        clusterctl("run", name, "sudo -n poweroff")
        wait_until(lambda: node().node.state.value == "stopped", "the end of its run")
        assert "switched itself off" in money(complete=False)[0]
        # Stopped an hour later, in the console.
        hour_ago = second.until - timedelta(hours=1)
        tagged = tags.tag_list({tags.SPENT: tags.spent_text(replace(second, until=hour_ago))})
        ec2.create_tags(Resources=[node().node.instance_id], Tags=tagged)
        ec2.start_instances(InstanceIds=[node().node.instance_id])
        wait_until(lambda: node().node.state.value == "running", "another run")
        assert "is not known" in money(complete=False)[0]
        # Unknown costs stay unknown.
        assert clusterctl("stop", name, "--force").status == 0
        assert clusterctl("start", name).status == 0
        assert money(complete=False)
        assert node().spent.usd >= second.usd
    finally:
        clusterctl("down", name, "--yes", "--discard-results")
