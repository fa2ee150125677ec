"""Launches that go wrong in EC2: no capacity, dying nodes, throttling, instances shown late."""

from __future__ import annotations

import gzip
import itertools
from dataclasses import replace

import pytest

from clusterctl.domain.cluster import Limits, NodeState
from clusterctl.domain.errors import AwsError, ClusterctlError
from clusterctl.domain.timeouts import Timeouts
from clusterctl.ec2 import tags
from clusterctl.ec2.gc import removal
from clusterctl.ec2.instances import find_every_cluster, find_instances, tag
from clusterctl.ec2.launch.observe import fixed_request
from clusterctl.lab.faults.kinds import Boot, Capacity, Lag
from clusterctl.operations import power
from clusterctl.operations import up as up_module
from clusterctl.operations.status import cluster_status
from tests.hostless import clear_faults
from tests.operations.commands import COMMANDS, NAME, SPEC, Command, down, nothing, stop, up
from tests.operations.fault_cases import LAUNCH
from tests.operations.wire import Mode
from tests.operations.world import World

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("soon")]

ZONES = [f"us-east-1{letter}" for letter in "abcdef"]
DOWN, AGAIN, GC = "down", "up again", "gc"


@pytest.fixture
def world(moto_url, tmp_path):
    made = World(moto_url, tmp_path)
    made.prepare(nothing)
    return made


def no_capacity_but(zone: str = "", left: int = 0) -> list[Capacity]:
    return [Capacity(SPEC.instance_type, one, left if one == zone else 0) for one in ZONES]


def nothing_runs(world: World) -> None:
    """Assert that there is no machine, disk or address, so nothing that costs money."""
    assert not {"i", "vol", "eni", "eipalloc"} & set(world.extra), world.extra


def come_to_an_end(world: World, way: str, command: Command = COMMANDS["up"]) -> None:
    if way == DOWN:
        down(world.launcher)
        world.check_nothing()
    else:
        command.once_more(world.launcher)
        world.check_whole(command)


@pytest.mark.parametrize(
    ("code", "nodes", "way"),
    [
        ("Client.InternalError", (0,), AGAIN),
        ("Client.VolumeLimitExceeded", (1,), DOWN),
        pytest.param("Client.InternalError", (0, 1, 2), AGAIN, marks=pytest.mark.all),
    ],
)
def test_nodes_that_die_while_they_start(world, faults, code, nodes, way):
    faults(Boot(dies=code, nodes=nodes, times=len(nodes)))
    with pytest.raises(AwsError) as raised:
        up(world.launcher)
    assert code in raised.value.message
    nothing_runs(world)
    come_to_an_end(world, way)


def test_wherever_they_start_they_die(world, faults):
    faults(Boot(dies="Server.InternalError", times=0))
    with pytest.raises(ClusterctlError):
        up(world.launcher)
    nothing_runs(world)
    clear_faults()
    come_to_an_end(world, AGAIN)


@pytest.mark.parametrize(("left", "way"), [(0, AGAIN), (2, DOWN)])
def test_too_few_machines_anywhere(world, faults, left, way):
    faults(*no_capacity_but(ZONES[0], left))
    with pytest.raises(AwsError, match="nowhere are enough machines"):
        up(world.launcher)
    nothing_runs(world)
    faults(*(replace(one, left=9) for one in no_capacity_but()))
    come_to_an_end(world, way)


@pytest.mark.parametrize(
    ("fault", "way"),
    [
        (Capacity(SPEC.instance_type, ZONES[0], 2), AGAIN),
        (Boot(dies="Client.InternalError", nodes=(2,)), DOWN),
    ],
)
def test_fewer_nodes_will_do(world, faults, fault, way):
    faults(*no_capacity_but(ZONES[0], 9), fault)
    up_module.up(world.launcher, fixed_request(replace(SPEC, min_nodes=2)))
    world.check_whole(replace(COMMANDS["up"], indices=(0, 1)))
    faults(Capacity(SPEC.instance_type, ZONES[0], 9))
    come_to_an_end(world, way)


@pytest.mark.parametrize(
    ("name", "fault", "way"),
    [
        ("add", "capacity", AGAIN),
        pytest.param("add", "refusal", DOWN, marks=pytest.mark.all),
        ("replace", "death", AGAIN),
        pytest.param("replace-head", "capacity", DOWN, marks=pytest.mark.all),
        ("replace-head", "refusal", AGAIN),
    ],
)
def test_no_machine_for_the_next_node(world, faults, name, fault, way):
    up(world.launcher)
    before = find_instances(world.plain.ec2, NAME)
    zone = before[0].node.zone
    if fault == "refusal":
        world.clients.wire.refuse(["RunInstances"], "InvalidParameterValue")
    elif fault == "death":
        faults(Boot(dies="Client.InternalError"))
    else:
        faults(Capacity(SPEC.instance_type, zone, 0, used=3))
    with pytest.raises(ClusterctlError):
        COMMANDS[name].act(world.launcher)
    after = find_instances(world.plain.ec2, NAME)
    assert [one.node.instance_id for one in after] == [one.node.instance_id for one in before]
    assert not any(one.retired for one in after)
    faults(Capacity(SPEC.instance_type, zone, 9))
    come_to_an_end(world, way, COMMANDS[name])


def test_nodes_that_join_have_the_present_limits_from_their_launch(world):
    """The cluster was launched without, and `up` may be cut off before it reaches the new nodes."""
    up_module.up(world.launcher, fixed_request(SPEC))
    more = replace(SPEC, nodes=SPEC.nodes + 1, limits=Limits(max_hours=8))
    data = up_module.plan_up(world.launcher, fixed_request(more)).spec.user_data
    assert b'"lifetime_s": 28800' in gzip.decompress(data)


@pytest.mark.parametrize("indices", [pytest.param((1,), marks=pytest.mark.all), (0, 1, 2)])
def test_what_a_replacement_cut_off_has_left_is_shown_and_stopped(world, indices):
    limited = replace(SPEC, limits=Limits(max_hours=8))
    up_module.up(world.launcher, fixed_request(limited))
    client = world.plain.ec2
    nodes = [one.node for one in find_instances(client, NAME)]
    ids = [node.instance_id for node in nodes if node.index in indices]
    tag(client, ids, {tags.RETIRED: "yes"})
    assert [*find_every_cluster(client)] == [NAME]
    leaving = cluster_status(world.clients, world.folder).leaving
    assert [node.index for node in leaving] == list(indices)
    stop(world.launcher)
    assert {one.node.state for one in find_instances(client, NAME)} == {NodeState.STOPPED}
    power.start(world.launcher)
    world.check_whole(COMMANDS["replace"])
    after = find_instances(client, NAME)
    assert {one.limits_text for one in after} == {"max-hours=8"}
    assert {one.node.instance_id for one in after}.isdisjoint(ids)


# The other large commands make calls of the same kinds.
LARGEST = [
    "up",
    *(pytest.param(name, marks=pytest.mark.all) for name in ("down", "replace-head", "start")),
]


@pytest.mark.parametrize("name", LARGEST)
def test_a_busy_api(world, name):
    command = COMMANDS[name]
    command.before(world.launcher)
    world.clients.wire.refuse_all("RequestLimitExceeded", times=3)
    command.act(world.launcher)
    if name == "down":
        world.check_nothing()
    else:
        world.check_whole(command)


@pytest.mark.parametrize("name", LARGEST)
def test_an_api_that_stays_too_busy(world, name):
    command = COMMANDS[name]
    command.before(world.launcher)
    world.clients.wire.refuse_all("RequestLimitExceeded", times=1000)
    with pytest.raises(ClusterctlError):
        command.act(world.launcher)
    world.clients.wire.mend()
    come_to_an_end(world, AGAIN, command)


def test_a_token_that_another_request_used(world):
    world.clients.wire.refuse(["RunInstances"], "IdempotentParameterMismatch")
    with pytest.raises(AwsError):
        up(world.launcher)
    nothing_runs(world)
    come_to_an_end(world, AGAIN)


@pytest.mark.parametrize(("mode", "way"), [(Mode.KILLED_BEFORE, AGAIN), (Mode.KILLED, DOWN)])
def test_other_settings_after_a_launch_of_unknown_outcome(
    world, faults, killer, monkeypatch, mode, way
):
    """The launched nodes show late: the second `up` must not launch them again."""
    faults(Lag(visible_s=1000.0))
    world.break_off(killer, "up", LAUNCH, mode)
    with pytest.raises(ClusterctlError):
        up(world.launcher, 4)
    clear_faults()
    monkeypatch.setattr(world, "timeouts", Timeouts(shown_s=3.0))
    come_to_an_end(world, way)


@pytest.mark.parametrize(
    ("name", "mode", "way"),
    [
        ("up", Mode.KILLED, DOWN),
        ("up", Mode.LOST, AGAIN),
        ("up", Mode.KILLED, GC),
        ("replace-head", Mode.KILLED, AGAIN),
        *(
            pytest.param(*case, marks=pytest.mark.all)
            for case in (
                ("up", Mode.LOST, DOWN),
                ("up", Mode.KILLED, AGAIN),
                ("up", Mode.LOST, GC),
                ("add", Mode.LOST, AGAIN),
                ("replace", Mode.KILLED, DOWN),
                ("replace", Mode.LOST, AGAIN),
                ("replace-head", Mode.LOST, GC),
            )
        ),
    ],
)
def test_a_launch_that_shows_late(world, faults, killer, monkeypatch, name, mode, way):
    command = COMMANDS[name]
    faults(Lag(visible_s=1.0))
    command.before(world.launcher)
    world.break_off(killer, name, LAUNCH, mode)
    monkeypatch.setattr(world, "timeouts", Timeouts(shown_s=3.0))
    if way == GC:
        monkeypatch.setattr(removal, "FREE_WITHIN_S", 2.0)
        world.collect_here()
        assert world.extra == {}, world.extra
    else:
        come_to_an_end(world, way, command)


@pytest.mark.parametrize(
    ("looks", "way"),
    [
        pytest.param(1, AGAIN, marks=pytest.mark.all),
        (2, AGAIN),
        pytest.param(3, AGAIN, marks=pytest.mark.all),
        (3, DOWN),
    ],
)
def test_a_launch_that_shows_between_two_looks(world, faults, monkeypatch, looks, way):
    """EC2 shows it only after some of the next DescribeInstances: it does not count as missing."""
    monkeypatch.setattr(world, "timeouts", Timeouts(shown_s=60.0))
    faults(Lag(visible_s=1000.0))
    asked = itertools.count(1)

    def show(**_):
        if next(asked) == looks:
            clear_faults()

    events = world.clients.ec2.meta.events
    try:
        world.clients.wire.break_at(LAUNCH, Mode.LOST)
        with pytest.raises(AwsError):
            up(world.launcher)
        world.clients.wire.mend()
        events.register("after-call.ec2.DescribeInstances", show)
        come_to_an_end(world, way)
    finally:
        events.unregister("after-call.ec2.DescribeInstances", show)


def test_a_replacement_of_unknown_outcome_is_replaced_once(world, faults):
    """The launch shows after its failure was reported. There are never two nodes of one index."""
    faults(Lag(visible_s=1.0))
    up(world.launcher)
    world.clients.wire.break_at(LAUNCH, Mode.LOST)
    with pytest.raises(AwsError):
        COMMANDS["replace"].act(world.launcher)
    world.clients.wire.mend()
    clear_faults()
    come_to_an_end(world, AGAIN)
