"""EC2, nodes and their guards, for any row of events that touches a cluster's limits.

The launcher's code is the real one: it calls this EC2 and reaches these nodes. The guards'
decisions are the real ones, too. Time, the network and what a power-off does are simulated.
"""

from __future__ import annotations

import io
import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterctl.bootstrap.guard import UNCOUNTED_S, first_settings
from clusterctl.domain.cluster import Limits
from clusterctl.domain.errors import ClusterctlError, HostUnreachable
from clusterctl.domain.files import ClusterFolder
from clusterctl.domain.results import CommandResult
from clusterctl.domain.timeouts import Clock, Timeouts
from clusterctl.ec2 import tags
from clusterctl.ec2.gc.orphans import Rules, Verdict, classify
from clusterctl.ec2.instances import Instance, as_cluster, find_instances, read_instance
from clusterctl.ec2.money.costs import OVERRUN_AFTER_H, spending
from clusterctl.ec2.money.prices import Price, price_key
from clusterctl.ec2.resources import of_instance
from clusterctl.ec2.tags import format_limits
from clusterctl.node.guard import decisions
from clusterctl.node.guard.activity import NodeActivity
from clusterctl.node.guard.clock import Moment
from clusterctl.node.guard.guard import IdleWatch
from clusterctl.node.guard.settings import GuardSettings, Worker, parse_settings
from clusterctl.operations import guards, power, up
from clusterctl.operations.launcher import Launcher

HOUR = 3600.0
BEGIN = datetime(2026, 11, 1, tzinfo=timezone.utc)
MACHINE_USD = 1.0
NODES = 3
# The guard saves its running time once a minute, and a power-off takes some seconds.
LOST_S = 90.0


class CutOff(Exception):
    """The command was cut off, as by a closed laptop."""


class WorldClock(Clock):
    def __init__(self, world: World) -> None:
        self._world = world

    def monotonic(self) -> float:
        return self._world.now

    def time(self) -> float:
        return self._world.now

    def sleep(self, seconds: float) -> None:
        self._world.now += seconds


class Asked:
    """The file in which a worker's guard notes when the head node has asked it."""

    at_s: float | None = None

    def open(self, mode: str) -> io.BytesIO:
        if self.at_s is None:
            raise FileNotFoundError
        return io.BytesIO(json.dumps({"at_s": self.at_s}).encode())


@dataclass
class Node:
    """An instance of EC2, and its guard.

    `promised_s` is the running time at which it ends, by what it was told last. `knows_end` is
    whether it was told since clusterctl has last stopped or started it.
    """

    world: World
    index: int
    at_power_off: str
    guard: GuardSettings
    state: str = "running"
    kernel_runs: bool = True
    reachable: bool = True
    busy: bool = False
    launched: float = 0.0
    ended: float = 0.0
    by_user: bool = False
    ran_s: float = 0.0
    kept_s: float = 0.0
    boots: int = 1
    promised_s: float | None = None
    knows_end: bool = True
    labels: dict[str, str] = field(default_factory=dict)
    asked: Asked = field(default_factory=Asked)

    def __post_init__(self) -> None:
        self.launched = self.world.now
        self.boot()

    @property
    def id(self) -> str:
        return f"i-{self.index}"

    @property
    def name(self) -> str:
        return f"demo-{self.index}"

    @property
    def runs(self) -> bool:
        """Whether EC2 bills it."""
        return self.state == "running"

    @property
    def answers(self) -> bool:
        return self.runs and self.kernel_runs and self.reachable

    @property
    def boot_s(self) -> float:
        return self.world.now - self.launched

    @property
    def used_s(self) -> float:
        """The running time as its guard counts it."""
        return self.kept_s + self.boot_s

    @property
    def true_s(self) -> float:
        """The running time that is billed."""
        return self.ran_s + (self.boot_s if self.runs else 0.0)

    @property
    def ends_s(self) -> float | None:
        """When its guard ends it, if it is not stopped before; None for never."""
        left = decisions.left_s(self.guard, Moment(0.0, self.boot_s, self.used_s))
        return None if left is None else self.world.now + left

    def boot(self) -> None:
        self.asked = Asked()
        files: Any = SimpleNamespace(polled=self.asked)
        self.watch = IdleWatch(files, lambda: self.boot_s)

    def start(self, hangs: bool) -> None:
        self.state, self.launched, self.kernel_runs = "running", self.world.now, not hangs
        self.boots += 1
        self.boot()

    def off(self, state: str, by_user: bool) -> None:
        self.ran_s += self.boot_s
        lost_s = self.world.chance.uniform(0, LOST_S)
        self.kept_s += max(0.0, self.boot_s - lost_s)
        self.state, self.ended, self.by_user = state, self.world.now, by_user

    def told(self, left_s: float | None) -> None:
        """Take the end that a command tells, as `guard check` writes it."""
        self.knows_end, self.promised_s = True, None
        if left_s is not None:
            self.promised_s = self.true_s + left_s
            self.guard = GuardSettings(**{**vars(self.guard), "lifetime_s": self.used_s + left_s})

    def power_off(self, why: str) -> None:
        terminates = self.at_power_off == "terminate"
        self.world.powered_off(self, why, terminates)
        self.off("terminated" if terminates else "stopped", by_user=False)

    def described(self) -> dict[str, Any]:
        stopped = f"User initiated ({at(self.ended):%Y-%m-%d %H:%M:%S} GMT)"
        return {
            "InstanceId": self.id,
            "InstanceType": "p4d.24xlarge",
            "State": {"Name": self.state},
            "PrivateIpAddress": f"10.0.0.{self.index + 4}",
            "LaunchTime": at(self.launched).replace(microsecond=0),
            "StateTransitionReason": stopped if self.by_user and not self.runs else "",
            "NetworkInterfaces": [{"Attachment": {"DeviceIndex": 0, "AttachTime": BEGIN}}],
            "Tags": tags.tag_list(self.labels),
        }


def at(now: float) -> datetime:
    return BEGIN + timedelta(seconds=now)


class World:
    """A cluster with limits. `limits` are those in its tags; `whole` says that every node that
    runs was told them."""

    meta = SimpleNamespace(
        region_name="us-east-1",
        endpoint_url="https://ec2.example",
        events=SimpleNamespace(register_last=lambda *_: None, unregister=lambda *_: None),
    )

    def __init__(self, chance: random.Random, limits: Limits, home: Path) -> None:
        self.chance, self.limits = chance, limits
        self.now = 0.0
        self.failing: set[str] = set()
        self.announced: list[str] = []
        # The longest that one node takes to answer.
        self.login_s = 300.0
        self.at_work: Node
        self.may_terminate = limits.at_power_off == "terminate"
        self.whole = False
        clients: Any = SimpleNamespace(ec2=self, ec2_as_shown=self, account_id="1" * 12)
        self.timeouts = Timeouts(WorldClock(self))
        self.launcher = Launcher(clients, ClusterFolder(home / "demo"), timeouts=self.timeouts)
        first = first_settings("demo", limits, MACHINE_USD * NODES, False, limits.at_power_off)
        self.nodes = [Node(self, index, limits.at_power_off, first) for index in range(NODES)]
        for node in self.nodes:
            node.promised_s = first.lifetime_s
            node.labels = {
                tags.CLUSTER: "demo",
                tags.FIRST_INDEX: str(node.index),
                tags.DISK: "730 3000 125",
                tags.LIMITS: format_limits(limits),
            }

    # EC2

    def get_paginator(self, operation: str) -> World:
        assert operation == "describe_instances"
        return self

    def paginate(self, Filters: Any, PaginationConfig: Any) -> Any:  # noqa: N803
        [states] = [one["Values"] for one in Filters if one["Name"] == "instance-state-name"]
        found = [one.described() for one in self.nodes if one.state in states]
        return [{"Reservations": [{"OwnerId": "1" * 12, "Instances": found}]}]

    def create_tags(self, Resources: Any, Tags: Any) -> None:  # noqa: N803
        self._may_fail("tag")
        for node in self._of(Resources):
            node.labels |= tags.tag_dict(Tags)

    def delete_tags(self, Resources: Any, Tags: Any) -> None:  # noqa: N803
        for node in self._of(Resources):
            for one in Tags:
                if one.get("Value", node.labels.get(one["Key"])) == node.labels.get(one["Key"]):
                    node.labels.pop(one["Key"], None)

    def describe_instance_attribute(self, InstanceId: str, Attribute: str) -> Any:  # noqa: N803
        [node] = self._of([InstanceId])
        return {"InstanceInitiatedShutdownBehavior": {"Value": node.at_power_off}}

    def modify_instance_attribute(  # noqa: N803
        self, InstanceId: str, InstanceInitiatedShutdownBehavior: Any
    ) -> None:
        [node] = self._of([InstanceId])
        self._may_fail(f"set-{node.index}")
        node.at_power_off = InstanceInitiatedShutdownBehavior["Value"]
        if node.at_power_off == "terminate" and node.ends_s is not None:
            assert node.ends_s > self.now + 240, "it could have ended before, and kept its disk"

    def stop_instances(self, InstanceIds: Any) -> Any:  # noqa: N803
        self._may_fail("stop")
        answer = []
        for node in self._of(InstanceIds):
            before = {"Name": node.state}
            node.knows_end = False
            if node.runs:
                node.off("stopped", by_user=True)
            now = {"Name": node.state}
            answer.append({"InstanceId": node.id, "PreviousState": before, "CurrentState": now})
        return {"StoppingInstances": answer}

    def _of(self, ids: Any) -> list[Node]:
        return [node for node in self.nodes if node.id in ids]

    def _may_fail(self, call: str) -> None:
        if call in self.failing:
            raise CutOff

    # Connections to the nodes

    def run(self, target: Any, command: str, timeout_s: float, stdin: bytes = b"") -> CommandResult:
        node = next(one for one in self.nodes if one.name == target.host)
        if not node.answers or f"ssh-{node.index}" in self.failing:
            raise HostUnreachable(node.name, "connection timed out")
        script = stdin.decode()
        settings = re.search(r"<<'END_OF_settings'\n(.*?)END_OF_settings", script, re.DOTALL)
        out = ""
        if settings:
            node.guard = parse_settings(settings[1])
            left = re.search(r"^left=([\d.]+)$", script, re.MULTILINE)
            node.told(float(left[1]) if left else None)
            out = "complete\n"
        elif "guard-used.json" in command:
            kept = {"before_s": node.kept_s, "boot_s": node.boot_s, "since": BEGIN.timestamp()}
            kept |= {"boot_id": "b", "boots": node.boots}
            out = f"{json.dumps(kept)}\n\nb\n\n{node.boot_s:.2f} 1.0\n"
        return CommandResult(node.name, command, 0, out, "", 0.0)

    def ask(
        self, settings: GuardSettings, workers: Sequence[Worker]
    ) -> Iterator[tuple[Worker, NodeActivity | str]]:
        """Answer for the workers, as `workers.ask` does. The head node reaches those it can."""
        for worker in workers:
            node = next(one for one in self.nodes if one.name == worker.name)
            if node.answers:
                node.asked.at_s = node.boot_s
                yield worker, self.activity(node)
            else:
                yield worker, "does not answer"

    def activity(self, node: Node) -> NodeActivity:
        return NodeActivity(("a job",) if node.busy else (), 0.0, node.boot_s)

    # Commands

    def seen(self) -> tuple[Instance, ...]:
        return find_instances(self, "demo")  # type: ignore[arg-type]

    def up(self, limits: Limits | None, *failing: str) -> bool:
        """Run `up`. Return whether it succeeded. `failing` are the calls that fail."""
        return self._command(failing, lambda: self._up(limits))

    def start(self, hang: Sequence[int], limits: Limits | None, *failing: str) -> bool:
        """Run `start`, or with limits `up` of stopped nodes. The nodes `hang` do not boot."""

        def act() -> None:
            self._set_limits(limits)
            up.prepare_start(self.launcher)
            self._may_fail("start")
            for node in self.nodes:
                if node.state == "stopped":
                    node.knows_end = False
                    node.start(node.index in hang)
            self._up(None)

        return self._command(failing, act)

    def stop(self, *failing: str) -> bool:
        return self._command(failing, lambda: power.stop(self.launcher))

    def _command(self, failing: Sequence[str], act: Any) -> bool:
        self.failing = set(failing)
        try:
            act()
        except (CutOff, ClusterctlError):
            return False
        finally:
            self.failing = set()
        return True

    def _set_limits(self, limits: Limits | None) -> None:
        if limits is not None:
            labels = {tags.LIMITS: format_limits(limits)}
            labels |= {tags.EARLIER_LIMITS: self.nodes[0].labels[tags.LIMITS] or "none"}
            self.create_tags([one.id for one in self.nodes], tags.tag_list(labels))
            self.whole = False
            self.limits = limits
            self.may_terminate |= limits.at_power_off == "terminate"

    def _up(self, limits: Limits | None) -> None:
        was_whole = self.whole and limits is None
        self._set_limits(limits)
        self.whole = False
        message = guards.EndMessage(self.launcher, "demo")
        running = [node for node in self.nodes if node.runs]
        for node in running:
            self.now += self.chance.uniform(1, self.login_s)
            if node.answers and f"ssh-{node.index}" not in self.failing:
                told = re.search(r"guard\.json (\d+)(?: (\d+))? <", message.script())
                if told:
                    most = float(told[2]) if told[2] else None
                    end_s = decisions.end(node.used_s, float(told[1]), most)
                    node.told(end_s - node.used_s)
        lost = [node for node in running if not node.answers]
        if lost or not running or running[0].index:
            raise ClusterctlError("not ready", "")
        self._may_fail("ready")
        cluster = as_cluster(self, "demo", self.seen())  # type: ignore[arg-type]
        targets: Any = [SimpleNamespace(host=node.name) for node in running]
        members: Any = [
            SimpleNamespace(name=one.name, private_ip=f"10.0.0.{one.index + 4}") for one in running
        ]
        connections: Any = self
        before = [node.ends_s for node in running]
        money = spending(self.seen(), self.prices(), at(self.now))
        guards.update_guards(self.launcher, cluster, connections, targets, members)
        self.whole = True
        if was_whole and money.complete and not money.grace_due and not self.limits.budget_usd:
            for node, end_s in zip(running, before):
                later = "no command moves the end later, unless it raises a limit"
                assert None in (end_s, node.ends_s) or node.ends_s < max(end_s, self.now) + 2, later
        money = spending(self.seen(), self.prices(), at(self.now))
        for node in running:
            shown = "the end that is shown is the one that the nodes have"
            assert (money.ends_in_s is None) == (node.ends_s is None), shown
            if money.ends_in_s is not None:
                assert node.ends_s == pytest.approx(self.now + money.ends_in_s, abs=2), shown
        for node in running:
            assert node.at_power_off == self.limits.at_power_off

    # Time

    def pass_time(self, seconds: float) -> None:
        """Let time pass, minute by minute."""
        for _ in range(int(seconds / 60)):
            self.now += 60
            for node in self.nodes:
                if node.runs and node.kernel_runs:
                    self._tick(node)
            self.check()

    def _tick(self, node: Node) -> None:
        """Do what the guard of a node does once a minute."""
        # Whatever its wall clock shows.
        wall = self.chance.choice((self.now, 0.0, 4e9))
        moment = Moment(wall, node.boot_s, node.used_s, self.chance.random() < 0.9)
        left = decisions.left_s(node.guard, moment)
        if left is not None and left <= 0:
            node.power_off("time")
            return
        self.at_work = node
        _, why = node.watch.step(node.guard)
        if why:
            given_up = {one.name for one in node.watch.given_up}
            told = [one.name for one in node.guard.workers if one.name not in given_up]
            for other in self.nodes:
                if other.name in told and other.answers:
                    other.power_off("idle")
            node.power_off("idle")

    def powered_off(self, node: Node, why: str, terminates: bool) -> None:
        if terminates:
            assert self.may_terminate, "a disk that no limit gave up"
            assert node.knows_end, "a disk of a node that does not know its new end"
        if why == "idle":
            assert not terminates, "idleness only stops"
            assert not node.busy, "a node that computes is not idle"
        elif node.promised_s is not None:
            assert node.true_s >= node.promised_s - 1, "hours were left"

    def check(self) -> None:
        """Assert that what runs beyond its end is named, and that nothing that can end does so."""
        for node in self.nodes:
            if node.runs and node.kernel_runs and node.promised_s is not None:
                over = node.true_s > node.promised_s + node.boots * LOST_S + 120
                had_grace = node.boot_s > decisions.GRACE_S + 120
                assert not (over and had_grace), f"{node.name} goes on after its end"
        late = self.too_late()
        if not late:
            return
        money = spending(self.seen(), self.prices(), at(self.now))
        if money.complete:
            found = [one.message for one in money.findings if one.check == "cost.overrun"]
            assert found, f"{late} run on, and status and costs do not name them"
        rules = Rules(
            at(self.now),
            frozenset({("us-east-1", "demo")}),
            spent={("us-east-1", "demo"): (money.spent_usd, money.hourly_usd)},
        )
        classified = classify(
            [
                type(one)(**{**vars(one), "region": "us-east-1", "cluster": "demo"})
                for one in (
                    of_instance(read_instance(node.described())) for node in self.nodes if node.runs
                )
            ],
            rules,
        )
        orphans = {one.resource.id for one in classified if one.verdict is Verdict.ORPHAN}
        if money.complete:
            assert {node.id for node in late} <= orphans

    def too_late(self) -> list[Node]:
        """Return the nodes that EC2 bills for hours though their time by the tags is over."""
        if self.limits.max_hours is None:
            return []
        slack_s = OVERRUN_AFTER_H * HOUR + UNCOUNTED_S
        return [
            node
            for node in self.nodes
            if node.runs
            and node.true_s > self.limits.max_hours * HOUR + slack_s
            and node.boot_s > slack_s
        ]

    def prices(self) -> Any:
        return {price_key(one): Price(MACHINE_USD, "a list", "2026-11-01") for one in self.seen()}
