"""Sequences of changed limits, cut off anywhere: the effect of a power-off afterwards."""

from __future__ import annotations

import itertools
import random
import re
import shlex
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from clusterctl.bootstrap.guard import first_settings, joined_settings
from clusterctl.domain.cluster import Limits
from clusterctl.domain.timeouts import Timeouts
from clusterctl.node.guard import decisions
from clusterctl.node.guard.clock import Moment
from clusterctl.node.guard.settings import GuardSettings
from clusterctl.operations import guards
from clusterctl.operations.guards import change_limits
from tests.cli.running import CommandLine
from tests.lab.running import client, wait_until
from tests.local_node import HEAD, LocalNode
from tests.operations import clusters

HOUR = 3600.0
ASKED = (
    Limits(max_hours=2),
    Limits(max_hours=20),
    Limits(idle_minutes=30),
    Limits(max_hours=2, idle_minutes=30),
    Limits(budget_usd=100, idle_minutes=300),
)
DAILY_USD = 24.0


class CutOff(Exception):
    """The command was cut off, as by a closed laptop."""


@dataclass
class Node:
    """An instance in EC2, with its guard."""

    at_power_off: str
    guard: GuardSettings
    state: str = "running"
    booted: float = 0.0
    used_before: float = 0.0

    def moment(self, now: float) -> Moment:
        boot = now - self.booted
        return Moment(now, boot, self.used_before + boot)

    def off(self, now: float, state: str) -> None:
        self.used_before += now - self.booted
        self.state = state


@dataclass
class World:
    """Two nodes, the first is the head node. `asked` are the limits that their owner wants, and
    `whole` is whether the command that sets them finished.
    """

    asked: Limits
    nodes: list[Node] = field(default_factory=list)
    now: float = 1e9
    idle_for: float = 0.0
    whole: bool = True
    may_terminate: bool = False

    def __post_init__(self) -> None:
        # RunInstances and the user data set this first, and `up` again once the nodes are ready.
        off = self.asked.at_power_off
        first = first_settings("demo", self.asked, DAILY_USD / 24, at_power_off=off)
        self.nodes = [Node(off, first, booted=self.now) for _ in range(2)]
        self.change(self.asked)

    def change(self, limits: Limits, effects: int = 99) -> None:
        """Run `up` with other limits, cut off after a number of its effects."""
        left = iter(range(effects))
        self.asked, self.whole = limits, False
        self.may_terminate |= limits.at_power_off == "terminate"

        def effect() -> None:
            if next(left, None) is None:
                raise CutOff

        def set_behavior(behavior: str) -> None:
            for node in self.nodes:
                effect()
                node.at_power_off = behavior

        def tell_guards() -> None:
            for index, node in enumerate(self.nodes):
                effect()
                node.guard = self._settings(index, limits)

        try:
            change_limits(limits.at_power_off, set_behavior, tell_guards)
            self.whole = True
        except CutOff:
            pass

    def _settings(self, index: int, limits: Limits) -> GuardSettings:
        lived = max(node.moment(self.now).used_s for node in self.nodes)
        hours = limits.max_hours or (limits.budget_usd or 0) / (DAILY_USD / 24) or None
        left_s = None if hours is None else max(hours * HOUR - lived, Timeouts.least_left_s)
        ends = None if left_s is None else self.now + left_s
        told = Limits(idle_minutes=limits.idle_minutes)
        first = first_settings("demo", told, at_power_off=limits.at_power_off)
        return joined_settings(first, index, "ubuntu", [], ends)

    def pass_time(self, seconds: float, busy: bool) -> None:
        """Advance time minute by minute, which is the guards' interval."""
        for _ in range(int(seconds / 60)):
            self.now += 60
            self.idle_for = 0.0 if busy else self.idle_for + 60
            for node in self.nodes:
                if node.state == "running":
                    self._look(node)
            if self.idles():
                for node in self.nodes:
                    self._power_off(node, "idle")

    def idles(self) -> bool:
        head = self.nodes[0]
        limit = decisions.limit_s(head.guard) if head.state == "running" else None
        return limit is not None and self.idle_for >= limit

    def _look(self, node: Node) -> None:
        left = decisions.left_s(node.guard, node.moment(self.now))
        if left is not None and left <= 0:
            self._power_off(node, "time")

    def _power_off(self, node: Node, why: str) -> None:
        if node.state != "running":
            return
        node.off(self.now, "terminated" if node.at_power_off == "terminate" else "stopped")
        if why == "idle":
            assert node.state == "stopped", "idleness only stops"
        if node.state == "terminated":
            assert self.may_terminate, "a disk that nobody gave up"
        if self.whole and why == "time":
            assert node.state == ("terminated" if not self.asked.idle_minutes else "stopped")

    def stop(self) -> None:
        for node in self.nodes:
            if node.state == "running":
                node.off(self.now, "stopped")

    def start(self) -> None:
        for node in self.nodes:
            if node.state == "stopped":
                node.state, node.booted = "running", self.now
        self.idle_for = 0.0

    @property
    def running(self) -> list[Node]:
        return [node for node in self.nodes if node.state == "running"]


@pytest.mark.parametrize(("idle_s", "limited"), [(600.0, True), (None, False)])
def test_a_guard_is_read_behind_a_greeting_with_braces(tmp_path, idle_s, limited):
    settings = GuardSettings("demo", index=0, idle_s=idle_s)
    (tmp_path / "guard.json").write_text(settings.text())
    (tmp_path / "sudo").write_text('#!/bin/sh\nexec cat "$HOME/guard.json"\n')
    (tmp_path / "sudo").chmod(0o755)
    head = LocalNode(tmp_path, {"PATH": f"{tmp_path}:/usr/bin:/bin"}, greeting=b"{ Welcome\n{\n")
    access = SimpleNamespace(
        connections=head,
        head=HEAD,
        cluster=clusters.cluster(clusters.node(0)),
        select=lambda indices: (),
    )
    assert guards.update_idle_groups(access, []).values == [limited]
    (tmp_path / "guard.json").unlink()
    assert guards.update_idle_groups(access, []).values == [False]


@pytest.mark.parametrize("seed", range(20))
def test_any_row_of_changes_stops_and_starts_keeps_the_promises(seed):
    chance = random.Random(seed)
    for _ in range(20):
        world = World(chance.choice(ASKED))
        for _ in range(25):
            step = chance.randrange(6)
            if step == 0:
                world.change(chance.choice(ASKED), chance.randrange(5))
            elif step == 1:
                world.start()
                world.change(chance.choice(ASKED))
            elif step == 2:
                world.stop()
            elif step == 3:
                world.start()
            else:
                world.pass_time(chance.choice((600, HOUR, 5 * HOUR)), chance.random() < 0.5)
        # After a complete command, machines without a user end, and cost nothing any more.
        world.start()
        world.change(Limits(max_hours=2))
        survivors = world.running
        world.pass_time(3 * HOUR, busy=True)
        assert {node.state for node in survivors} <= {"terminated"}


names = (f"limits{number}" for number in itertools.count())


@pytest.fixture
def clusterctl(lab, monkeypatch, capsys):
    monkeypatch.setenv("CLUSTERCTL_HOME", str(lab.home))
    return CommandLine(lab.home, capsys, ["--lab"], Timeouts(least_left_s=3.0))


@pytest.mark.lab
def test_real_nodes_are_stopped_for_idleness_and_terminated_at_their_end(clusterctl, lab, capsys):
    """The nodes are launched with one limit and get the other; then the other way round."""
    name, ec2 = next(names), client(lab)
    up = ("up", name, "--nodes", "1", "--instance-type", "p3.2xlarge")
    try:
        ran = clusterctl(*up)
        # The suggested command works unchanged.
        told = re.search(
            r"it costs \$[\d.]+ a day .*: clusterctl (up .*--lab[^\n]*)", ran.err, re.DOTALL
        )
        assert told, ran.err
        # The lab's nodes have the training environment, so `env install` is not a next step.
        assert (
            f"log in:   clusterctl ssh {name} --lab\n"
            f"copy:     clusterctl copy {name} --lab ~/data/tf-imagenet/ '~/data/tf-imagenet/'\n"
            f"train:    clusterctl train {name} --lab 1\n"
            f"remove:   clusterctl down {name} --lab\n"
        ) in ran.err
        ran = CommandLine(lab.home, capsys, [], clusterctl.timeouts)(*shlex.split(told[1]))
        assert (ran.status, "a day" in ran.err) == (0, False)
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
        assert clusterctl(*up, "--idle-stop", "8s").status == 0
        assert at_power_off() == "stop"
        wait_until(lambda: state() in ("stopped", "terminated"), "the end of idleness")
        assert state() == "stopped"

        def complete():
            [found] = clusterctl("costs", name, "--json").data["clusters"]
            return found["complete"]

        # EC2 does not show when the machine switched itself off. Its guard has counted its time.
        assert not complete()
        assert clusterctl("start", name).status == 0
        assert complete()
        assert clusterctl(*up, "--max-hours", "0.001").status == 0
        wait_until(lambda: state() in ("stopped", "terminated"), "the end of its time")
        assert state() == "terminated"
    finally:
        clusterctl("down", name, "--yes")
