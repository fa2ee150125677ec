"""Waiting for nodes: hosts that do not exist yet, are late, die, hang or have other host keys."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace

import pytest
from paramiko.hostkeys import HostKeyEntry

from clusterctl.domain.cluster import NodeState
from clusterctl.domain.errors import (
    ClusterctlError,
    CommandFailed,
    CommandTimeout,
    ConnectionLost,
    HostKeyChanged,
    HostUnreachable,
    KeyRefused,
)
from clusterctl.domain.findings import Severity
from clusterctl.domain.results import CommandResult
from clusterctl.domain.timeouts import Timeouts
from clusterctl.ec2.host_keys import Consoles, HostKeyAnswers
from clusterctl.ec2.instances import Instance
from clusterctl.operations import readiness
from clusterctl.operations.access import node_target
from clusterctl.operations.known_hosts import (
    AgentHostKeys,
    HostKeySources,
    LearntHostKeys,
    key_fingerprint,
)
from clusterctl.operations.launcher import Stage, StepProgress, check_all
from clusterctl.operations.readiness import InstanceWatch, NodeNotReady, Readiness, ready_within_s
from tests.clock import FakeClock
from tests.operations.clusters import ED25519, OTHER, cluster, node

BLOCK = "-----BEGIN SSH HOST KEY KEYS-----\n{}\n-----END SSH HOST KEY KEYS-----\n"
READY = (
    "stage cloud-init\ncloud-init 0\nstage gpus\nnvidia-smi 0\n"
    + "".join(f"gpu GPU {index}: A100\n" for index in range(8))
    + "mpi-key ssh-ed25519 AAAA clusterctl-mpi\nhostname h\ncomplete\n"
)


class Stages(StepProgress):
    def __init__(self):
        self.seen = {}
        self.details = {}

    def node(self, name, stage, detail=""):
        self.seen.setdefault(name, []).append(stage)
        self.details[name] = detail


class World:
    """EC2 and the hosts of two nodes. Each has a list of answers, and repeats the last one."""

    def __init__(self, tmp_path):
        self.nodes = [node(0), node(1)]
        self.states = {found.instance_id: [NodeState.RUNNING] for found in self.nodes}
        self.reason = ""
        self.consoles = {found.instance_id: [BLOCK.format(ED25519)] for found in self.nodes}
        self.hosts = {found.name: [READY] for found in self.nodes}
        self.forgotten = []
        self.pins = LearntHostKeys(tmp_path / "known_hosts")
        self.progress = Stages()
        self.agents = AgentHostKeys(lambda: None, Agents(NONE).ask)
        self.shown_key = None
        self.console_only_s = 60.0
        self.told = []
        self.ran = []
        self.profile = ""
        self.timeouts = Timeouts(FakeClock())

    # InstanceWatch
    def read(self, instance_id):
        state = self._next(self.states[instance_id])
        found = next(one for one in self.nodes if one.instance_id == instance_id)
        if state is None:
            return None
        reason = self.reason if state is NodeState.TERMINATED else ""
        return Instance(
            replace(found, state=state),
            "demo",
            "ubuntu",
            (0, 1),
            "ami",
            "k",
            "t",
            reason,
            instance_profile=self.profile,
        )

    def poll(self):
        pass

    # EC2Client
    def get_console_output(self, InstanceId, **_):  # noqa: N803
        return {"Output": self._next(self.consoles[InstanceId])}

    # Connections
    def run(self, target, command, *, timeout_s, stdin, sink):
        answer = self._next(self.hosts[target.host])
        if not isinstance(answer, HostUnreachable):
            self.ran.append((target.host, stdin.decode().splitlines()[0]))
        if isinstance(answer, Exception):
            raise answer
        for line in answer.splitlines(keepends=True):
            sink("stdout", line.encode())
        return CommandResult(target.host, command, 0, "", "", 0.1)

    def forget(self, target):
        self.forgotten.append(target.host)

    @staticmethod
    def _next(answers):
        return answers.pop(0) if len(answers) > 1 else answers[0]

    def wait(self, timeout_s=60.0):
        sources = HostKeySources(
            Consoles(self, self.timeouts.clock.monotonic),
            self.pins,
            self.agents,
            self.shown_key,
            self.told.append,
            self.console_only_s,
        )
        self.readiness = Readiness(
            self,
            self,
            sources,
            lambda found: node_target(found, "ubuntu"),
            self.progress,
            timeout_s,
            checked=lambda node: None,
            timeouts=self.timeouts,
            first_script=lambda: "tell the end\n",
        )
        return self.readiness.wait(self.nodes)


@pytest.mark.parametrize(
    ("instance_type", "gpus", "minutes"),
    [
        ("g5.xlarge", 0, 10),
        ("g5.xlarge", 1, 10),
        ("g5.12xlarge", 4, 30),
        ("p5.48xlarge", 8, 30),
        ("g5g.metal", 2, 30),
        ("c5.metal-24xl", 0, 30),
    ],
)
def test_large_machines_have_longer_to_get_ready(instance_type, gpus, minutes):
    small, one = node(0, gpus=0, instance_type="g5.xlarge"), {"instance_type": instance_type}
    assert ready_within_s(cluster(small, node(1, gpus=gpus, **one))) == minutes * 60


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_two_healthy_nodes_become_ready(world):
    facts = world.wait().values
    assert [fact.node.name for fact in facts] == ["demo-0", "demo-1"]
    assert [fact.found.gpus for fact in facts] == [8, 8]
    assert facts[0].host_keys == (ED25519,)
    assert world.progress.seen["demo-1"] == [
        *(Stage.PENDING, Stage.CONSOLE, Stage.LOGIN, Stage.CLOUD_INIT, Stage.GPUS, Stage.CHECKED)
    ]
    assert world.pins.text(world.nodes).splitlines()[1].endswith(f"{ED25519} i-1")


def test_a_node_is_told_at_its_first_login_whatever_it_or_another_hangs_at(world):
    world.hosts["demo-0"] = [CommandTimeout("demo-0", "its cloud-init hangs")]
    world.hosts["demo-1"] = [HostUnreachable("demo-1", "does not boot")]
    assert len(world.wait().failures) == 2
    assert world.ran == [("demo-0", "tell the end")]


def refused():
    return HostUnreachable("demo-1", "refused the connection")


def test_errors_of_a_booting_node_are_waited_out(world):
    """The host boots, its sshd starts, the user's key arrives, and cloud-init reboots it."""
    world.hosts["demo-1"] = [
        refused(),
        HostUnreachable("demo-1", "no SSH session: Error reading SSH protocol banner"),
        KeyRefused("demo-1", "refused every key"),
        ConnectionLost("demo-1", "lost while a command ran"),
        refused(),
        READY,
    ]
    assert [fact.node.name for fact in world.wait().values] == ["demo-0", "demo-1"]


def test_ec2_takes_its_time(world):
    world.states["i-1"] = [None, None, NodeState.PENDING, NodeState.RUNNING]
    world.consoles["i-1"] = ["", "booting", BLOCK.format(ED25519)[:60], BLOCK.format(ED25519)]
    assert len(world.wait().values) == 2


def failure(world, **kwargs):
    result = world.wait(**kwargs)
    assert [fact.node.name for fact in result.values] == ["demo-0"]
    [failed] = result.failures
    assert failed.host == "demo-1"
    assert world.progress.seen["demo-1"][-1] is Stage.FAILED
    return failed.error


def test_a_key_that_stays_refused(world):
    world.timeouts = Timeouts(FakeClock(), key_refused_s=1.0)
    world.hosts["demo-1"] = [KeyRefused("demo-1", "refused every key")]
    assert isinstance(failure(world), KeyRefused)


@pytest.mark.parametrize(
    "state", [NodeState.TERMINATED, NodeState.SHUTTING_DOWN, NodeState.STOPPED]
)
@pytest.mark.parametrize("when", ["pending", "console", "login", "ready"])
def test_a_node_that_dies(world, state, when):
    world.reason = "Server.InsufficientInstanceCapacity: no room"
    world.states["i-1"] = [NodeState.PENDING, state]
    if when == "console":
        world.states["i-1"] = [NodeState.RUNNING, state]
        world.consoles["i-1"] = [""]
    if when == "login":
        world.states["i-1"] = [NodeState.RUNNING, state]
        world.hosts["demo-1"] = [refused()]
    if when == "ready":
        world.states["i-1"] = [NodeState.RUNNING]
        assert not world.wait().failures
        world.states["i-1"] = [state]
        [failed] = world.readiness.still_run().failures
        error = failed.error
    else:
        error = failure(world)
    assert isinstance(error, NodeNotReady)
    assert f"i-1 is {state.value}" in error.message
    assert ("a lack of capacity at EC2 (Server.InsufficientInstanceCapacity)" in error.message) is (
        state is NodeState.TERMINATED
    )


@pytest.mark.parametrize(
    ("hang", "stage"),
    [
        (lambda world: world.states.update({"i-1": [NodeState.PENDING]}), Stage.PENDING),
        (lambda world: world.states.update({"i-1": [None]}), Stage.PENDING),
        (lambda world: world.consoles.update({"i-1": ["no keys here"]}), Stage.CONSOLE),
        (lambda world: world.hosts.update({"demo-1": [refused()]}), Stage.LOGIN),
    ],
)
def test_a_node_that_hangs_names_the_stage(world, hang, stage):
    hang(world)
    error = failure(world, timeout_s=2.0)
    assert error.message == f"not ready after 2.0 s: {stage.value}"


def test_cloud_init_that_does_not_end(world):
    def run(target, command, *, sink, **kwargs):
        if target.host == "demo-1":
            sink("stdout", b"stage cloud-init\n")
            raise CommandTimeout("demo-1", "did not end within 60 s: sh -s")
        return World.run(world, target, command, sink=sink, **kwargs)

    world.run = run
    error = failure(world)
    assert error.message.endswith(Stage.CLOUD_INIT.value)
    assert "--timeout" in error.hint
    assert world.forgotten == ["demo-1"]


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (READY.replace("gpu GPU 7: A100\n", ""), "sees 7 GPUs"),
        (READY.replace("cloud-init 0", "cloud-init 1\nlog E: apt"), "E: apt"),
        ("This account is currently not available.\n", "plain script"),
    ],
)
def test_a_node_that_is_not_as_promised(world, said, message):
    world.hosts["demo-1"] = [said]
    error = failure(world)
    assert isinstance(error, CommandFailed)
    assert message in error.message
    assert "\n" not in world.progress.details["demo-1"]


def test_pins_of_an_earlier_run_spare_the_console(world):
    world.pins.path = None
    world.pins._text = f"10.0.0.5,demo-1 {OTHER} i-1\n"
    world.consoles["i-1"] = ["never asked for"]
    assert world.wait().values[1].host_keys == (OTHER,)


class Agents:
    """Systems Manager. Each request gets the next answers; the last ones are repeated."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    def ask(self, client, instance_ids):
        self.asked.append(list(instance_ids))
        return World._next(self.answers)


def silent(world, *answers, profile="nodes", alone_s=0.02):
    """Make consoles that never show a key."""
    world.consoles = {found.instance_id: ["no keys here"] for found in world.nodes}
    world.console_only_s = alone_s
    world.profile = profile
    if answers:
        agents = Agents(*answers)
        world.agents = AgentHostKeys(lambda: None, agents.ask, every_s=0.0)
        return agents
    return None


BOTH = HostKeyAnswers({"i-0": (ED25519,), "i-1": (OTHER,)})
NONE = HostKeyAnswers({}, {})


def test_where_the_consoles_are_silent_the_agents_are_asked_for_all_at_once(world):
    agents = silent(world, BOTH, alone_s=0.5)
    world.timeouts = Timeouts()  # the nodes have to wait at the same time
    assert [fact.host_keys for fact in world.wait().values] == [(ED25519,), (OTHER,)]
    assert agents.asked == [["i-0", "i-1"]]
    assert world.told == []
    assert world.pins.text(world.nodes).splitlines()[1].endswith(f"{OTHER} i-1")


def test_agents_that_come_late(world):
    none = HostKeyAnswers({}, {"i-0": "no agent", "i-1": "no agent"})
    silent(world, none, HostKeyAnswers({"i-1": (OTHER,)}), none, BOTH)
    assert len(world.wait().values) == 2


def test_a_dead_instance_is_not_asked_for(world):
    def ask(client, instance_ids):
        return BOTH if instance_ids == ["i-0"] else NONE

    silent(world)
    world.agents = AgentHostKeys(lambda: None, ask, every_s=0.0)
    world.states["i-1"] = [NodeState.RUNNING, NodeState.TERMINATED]
    assert "i-1 is terminated" in failure(world, timeout_s=10.0).message


def test_a_console_that_speaks_later_than_the_agents(world):
    silent(world, HostKeyAnswers({}, {"i-0": "no agent", "i-1": "no agent"}))
    for found in world.nodes:
        world.consoles[found.instance_id] = ["..."] * 8 + [BLOCK.format(ED25519)]
    assert [fact.host_keys for fact in world.wait().values] == [(ED25519,), (ED25519,)]


@pytest.mark.parametrize("profile", ["", "nodes"])
def test_nobody_is_asked_before_the_console_had_its_time_or_without_a_profile(world, profile):
    agents = silent(world, BOTH, profile=profile, alone_s=0.02 if not profile else 60.0)
    assert len(world.wait(timeout_s=0.1).failures) == 2
    assert agents.asked == []


def test_why_the_agents_told_nothing_is_said_in_the_end(world):
    silent(world, HostKeyAnswers({"i-0": (ED25519,)}, {"i-1": "not allowed: ssm:SendCommand"}))
    error = failure(world, timeout_s=2.0)
    assert error.message == (
        "not ready after 2.0 s: waiting for its host key on the console; "
        "over Systems Manager: not allowed: ssm:SendCommand"
    )
    assert "--accept-new-host-keys" in error.hint


def showing(world, **keys):
    """Make nodes that show these keys, or cannot be reached yet."""

    def shown_key(found):
        key = World._next(keys[found.name.replace("-", "_")])
        if isinstance(key, Exception):
            raise key
        return HostKeyEntry.from_line(f"x {key}").key

    world.shown_key = shown_key


def test_with_the_flag_what_the_node_shows_is_taken_and_said_loudly(world):
    silent(world)
    showing(world, demo_0=[ED25519], demo_1=[refused(), refused(), OTHER])
    assert [fact.host_keys for fact in world.wait().values] == [(ED25519,), (OTHER,)]
    told = {finding.host: finding for finding in world.told}
    assert len(world.told) == 2
    assert told["demo-1"].severity is Severity.WARNING
    assert "ACCEPTED UNCHECKED" in told["demo-1"].message
    assert key_fingerprint(OTHER) in told["demo-1"].message
    assert world.pins.text(world.nodes).splitlines()[1].endswith(f"{OTHER} i-1 unverified")


def test_even_with_the_flag_console_and_agents_come_first(world):
    silent(world, HostKeyAnswers({"i-1": (OTHER,)}, {"i-0": "no agent"}))
    world.consoles["i-0"] = ["..."] * 5 + [BLOCK.format(ED25519)]
    showing(world, demo_0=[AssertionError("console")], demo_1=[AssertionError("agent")])
    world.console_only_s = 5.0
    assert [fact.host_keys for fact in world.wait().values] == [(ED25519,), (OTHER,)]
    assert world.told == []


def pinned(world, *lines):
    world.pins._text = "".join(f"{line}\n" for line in lines)


def test_what_was_accepted_unverified_is_compared_as_soon_as_it_can_be(world):
    pinned(world, f"10.0.0.5,demo-1 {ED25519} i-1 unverified")
    assert world.wait().values[1].host_keys == (ED25519,)
    assert "unverified" not in world.pins.text(world.nodes)


def test_what_was_accepted_unverified_stays_so_while_the_console_is_silent(world):
    world.consoles["i-1"] = [""]
    pinned(world, f"10.0.0.5,demo-1 {OTHER} i-1 unverified")
    assert world.wait().values[1].host_keys == (OTHER,)
    assert world.pins.text(world.nodes).splitlines()[1].endswith("i-1 unverified")


def test_what_was_accepted_unverified_and_was_not_its_own(world):
    pinned(world, f"10.0.0.5,demo-1 {OTHER} i-1 unverified")
    error = failure(world)
    assert isinstance(error, HostKeyChanged)
    assert key_fingerprint(OTHER) in error.message
    assert key_fingerprint(ED25519) in error.message
    assert "clusterctl replace demo 1" in error.hint


CHANGED = HostKeyChanged("demo-1", "not the pinned one")


def test_a_changed_key_that_the_console_knows_is_taken_with_a_warning(world):
    pinned(world, f"10.0.0.5,demo-1 {OTHER} i-1")
    world.hosts["demo-1"] = [CHANGED, READY]
    assert len(world.wait().values) == 2
    [told] = world.told
    assert (told.host, told.severity) == ("demo-1", Severity.WARNING)
    assert key_fingerprint(OTHER) in told.message
    assert key_fingerprint(ED25519) in told.message
    assert world.pins.text(world.nodes).splitlines()[1].endswith(f"{ED25519} i-1")


@pytest.mark.parametrize("console", ["", "booting", BLOCK.format(OTHER)])
def test_a_changed_key_that_nobody_else_knows_stops_at_once(world, console):
    pinned(world, f"10.0.0.5,demo-1 {OTHER} i-1")
    world.consoles["i-1"] = [console]
    world.hosts["demo-1"] = [CHANGED, READY]
    assert failure(world) is CHANGED
    assert world.told == []


def test_a_key_that_goes_on_changing_stops(world):
    pinned(world, f"10.0.0.5,demo-1 {OTHER} i-1")
    world.hosts["demo-1"] = [CHANGED, CHANGED, READY]
    assert failure(world) is CHANGED


def test_the_flag_does_not_excuse_a_changed_key(world):
    pinned(world, f"10.0.0.5,demo-1 {OTHER} i-1")
    silent(world, alone_s=0.0)
    world.consoles["i-0"] = [BLOCK.format(ED25519)]
    showing(world, demo_1=[ED25519])
    world.hosts["demo-1"] = [CHANGED, READY]
    assert failure(world) is CHANGED


def test_an_interrupt_ends_the_waiting_of_all(world, monkeypatch):
    """Otherwise threads of other nodes would query EC2 until their timeouts."""
    world.states["i-1"] = [NodeState.PENDING]
    threads, ended = [], []

    def fan_out(one, items, **_):
        def wait():
            with pytest.raises(NodeNotReady):
                one(items[1])
            ended.append(items[1].name)

        threads.append(threading.Thread(target=wait, daemon=True))
        threads[0].start()
        raise KeyboardInterrupt

    monkeypatch.setattr(readiness, "fan_out", fan_out)
    with pytest.raises(KeyboardInterrupt):
        world.wait(timeout_s=600)
    threads[0].join(60)
    assert ended == ["demo-1"]


def test_all_failures_are_in_the_message_those_with_one_cause_together(world):
    world.hosts["demo-1"] = [READY.replace("cloud-init 0", "cloud-init 1\nlog one\nlog two")]
    world.hosts["demo-0"] = [HostKeyChanged("demo-0", "not the pinned one", "look")]
    with pytest.raises(ClusterctlError) as caught:
        check_all(cluster(*world.nodes), world.wait())
    assert caught.value.message == (
        "2 of 2 nodes of demo are not ready:\n"
        "  demo-0: not the pinned one\n"
        "    hint: look\n"
        "  demo-1: cloud-init failed (exit status 1):\n"
        "    one\n"
        "    two\n"
        "    hint: see /var/log/cloud-init-output.log on the node, "
        "and the --user-data you gave"
    )
    assert "costs money" in caught.value.hint
    assert "clusterctl down demo" in caught.value.hint


class Ec2:
    """One instance in EC2. `looks` are the times and kinds of requests."""

    def __init__(self, monkeypatch, state):
        self.state, self.clock, self.looks = state, FakeClock(), []
        monkeypatch.setattr(readiness, "find_instances", lambda *_, **__: self.shown("whole"))
        monkeypatch.setattr(
            readiness,
            "find_states",
            lambda *_: {one.node.instance_id: one.node.state for one in self.shown("state")},
        )

    @property
    def now(self):
        return self.clock.monotonic()

    def wait_until(self, second):
        self.clock.advance(second - self.now)

    def shown(self, kind=""):
        if kind:
            self.looks.append((self.now, kind))
        one = replace(node(0), state=self.state, public_ip="1.2.3.4") if self.state else None
        return (Instance(one, "demo", "ubuntu", 1, "ami", "k", "t"),) if one else ()

    def gaps(self):
        return [round(b - a, 2) for (a, _), (b, _) in itertools.pairwise(self.looks)]


def test_one_look_at_ec2_serves_all_who_wait(monkeypatch):
    ec2 = Ec2(monkeypatch, NodeState.RUNNING)
    watch = InstanceWatch(None, "demo", ec2.shown(), ec2.clock)
    assert watch.read("i-0").node.state is NodeState.RUNNING
    assert ec2.looks == []  # the first snapshot is recent enough
    ec2.wait_until(1.0)
    waiting = [threading.Thread(target=watch.read, args=("i-0",)) for _ in range(32)]
    for thread in waiting:
        thread.start()
    for thread in waiting:
        thread.join()
    assert ec2.looks == [(1.0, "state")]
    for half in range(3, 200):
        ec2.wait_until(half / 2)
        assert watch.read("i-0").node.state is NodeState.RUNNING
        assert watch.read("i-1") is None
    # Requests become rarer, but not less than one per 5 s. An equal answer is not read again.
    assert ec2.gaps() == sorted(ec2.gaps())
    assert ec2.gaps()[-1] == 5.0
    assert {kind for _, kind in ec2.looks} == {"state"}


def test_the_last_answer_says_when_to_look_again_and_for_what(monkeypatch):
    ec2 = Ec2(monkeypatch, NodeState.PENDING)
    watch = InstanceWatch(None, "demo", ec2.shown(), ec2.clock)

    def look_until(second):
        while ec2.now < second:
            ec2.wait_until(round(ec2.now + 0.05, 2))
            watch.read("i-0")

    look_until(3)
    assert max(ec2.gaps()) < 0.6
    ec2.looks, ec2.state = [], NodeState.RUNNING
    look_until(6)
    assert [kind for _, kind in ec2.looks] == ["state", "whole", "state", "state"]
    assert ec2.looks[0][0] == ec2.looks[1][0]
    ec2.looks, ec2.state = [], None
    look_until(10)
    assert watch.read("i-0") is None
    assert [kind for _, kind in ec2.looks][:3] == ["state", "whole", "state"]
    ec2.looks, ec2.state = [], NodeState.RUNNING
    look_until(16)
    assert [kind for _, kind in ec2.looks][:3] == ["state", "whole", "state"]
