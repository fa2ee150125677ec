"""Reserved capacity that becomes free, or active, later: it is waited for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.domain.cluster import ClusterSpec
from clusterctl.domain.errors import AwsError, ClusterctlError
from clusterctl.domain.findings import errors
from clusterctl.domain.timeouts import Timeouts
from clusterctl.ec2.instances import find_instances
from clusterctl.ec2.launch import observe
from clusterctl.ec2.launch.observe import fixed_request
from clusterctl.operations import down as down_module
from clusterctl.operations import members, power
from clusterctl.operations.launcher import LaunchRefused
from clusterctl.operations.up import up
from tests.clock import LONG_S, LabClock
from tests.operations.commands import NAME, down, nothing, shorten_timeouts
from tests.operations.wire import ApiCall, Mode
from tests.operations.world import World

pytestmark = pytest.mark.slow
TYPE = "g6e.24xlarge"


@pytest.fixture
def reserved(world: World, monkeypatch):
    """Return a launcher, and the spec of two nodes in a reservation for two."""
    shorten_timeouts(monkeypatch.setattr)
    world.prepare(nothing)
    made = world.plain.ec2.create_capacity_reservation(
        InstanceType=TYPE,
        InstancePlatform="Linux/UNIX",
        AvailabilityZone="us-east-1a",
        InstanceCount=2,
        InstanceMatchCriteria="targeted",
    )["CapacityReservation"]["CapacityReservationId"]
    launcher = replace(world.launcher, timeouts=Timeouts(LabClock()))
    yield launcher, ClusterSpec(NAME, 2, TYPE, capacity_reservation=made)
    down(launcher)
    world.plain.ec2.cancel_capacity_reservation(CapacityReservationId=made)


@pytest.fixture
def shown(monkeypatch):
    """Return a function that has EC2 show the reservation otherwise at its next looks."""
    find = observe.find_reservation
    later: list[dict] = []

    def look(client, id):
        found = find(client, id)
        return replace(found, **later.pop(0)) if later else found

    monkeypatch.setattr(observe, "find_reservation", look)
    return later.extend


@pytest.mark.parametrize("late", [{"free": 1}, {"state": "scheduled", "free": 0}])
def test_up_waits_for_its_capacity_where_it_may(reserved, shown, late):
    launcher, spec = reserved
    shown([late] * 3)
    with pytest.raises(LaunchRefused):
        up(launcher, fixed_request(spec))
    assert find_instances(launcher.clients.ec2, NAME) == ()
    patient = replace(launcher, capacity_timeout_s=3600.0)
    assert len(up(patient, fixed_request(spec)).cluster.nodes) == 2
    assert launcher.timeouts.clock.waits == [30, 60]


def test_up_does_not_wait_for_what_time_does_not_mend(reserved, shown):
    launcher, spec = reserved
    shown([{"state": "expired"}, {"free": 0, "tenancy": "dedicated"}])
    for _ in range(2):
        with pytest.raises(LaunchRefused):
            up(replace(launcher, capacity_timeout_s=3600.0), fixed_request(spec))
    assert launcher.timeouts.clock.waits == []


def test_up_gives_up_at_the_end_of_its_time(reserved, shown):
    launcher, spec = reserved
    shown([{"free": 0}] * 99)
    with pytest.raises(LaunchRefused) as refused:
        up(replace(launcher, capacity_timeout_s=100.0), fixed_request(spec))
    assert "reservation.free" in [one.check for one in refused.value.findings]
    assert launcher.timeouts.clock.waits == [30, 60, pytest.approx(10, abs=5)]


def test_a_replaced_node_gets_the_place_that_its_old_one_leaves(reserved, shown):
    """EC2 counts the place as free only minutes after the old node is terminated."""
    launcher, spec = reserved
    up(launcher, fixed_request(spec))
    old = {one.node.instance_id for one in find_instances(launcher.clients.ec2, NAME)}
    shown([{"free": 0}] * 4)
    members.replace_nodes(launcher, [1])
    there = find_instances(launcher.clients.ec2, NAME)
    assert [one.node.index for one in there] == [0, 1]
    assert len({one.node.instance_id for one in there} - old) == 1
    assert {one.reservation_id for one in there} == {spec.capacity_reservation}
    assert launcher.timeouts.clock.waits == [30, 60, 120]


def test_the_place_of_a_machine_that_has_ended_already_is_waited_for(reserved, world, shown):
    launcher, spec = reserved
    up(launcher, fixed_request(spec))
    ended = find_instances(launcher.clients.ec2, NAME)[1].node.instance_id
    world.plain.ec2.terminate_instances(InstanceIds=[ended])
    shown([{"free": 0}] * 3)
    members.replace_nodes(launcher, [1])
    assert [one.node.index for one in find_instances(launcher.clients.ec2, NAME)] == [0, 1]
    assert launcher.timeouts.clock.waits == [30, 60, 120]


def test_up_waits_for_the_place_that_an_interrupted_replace_has_freed(reserved, shown):
    launcher, spec = reserved
    up(launcher, fixed_request(spec))

    class Interrupted(LabClock):
        def sleep(self, seconds):
            if seconds > LONG_S:
                raise KeyboardInterrupt
            super().sleep(seconds)

    shown([{"free": 0}] * 5)
    with pytest.raises(KeyboardInterrupt):
        members.replace_nodes(replace(launcher, timeouts=Timeouts(Interrupted())), [1])
    assert [one.node.index for one in find_instances(launcher.clients.ec2, NAME)] == [0]
    up(launcher, fixed_request(spec))
    assert [one.node.index for one in find_instances(launcher.clients.ec2, NAME)] == [0, 1]
    assert launcher.timeouts.clock.waits == [30, 60, 120]


def test_a_replaced_node_stays_where_the_checks_refuse_its_new_machine(reserved, world, shown):
    """Nothing is terminated before all that can be asked was asked."""
    launcher, spec = reserved
    up(launcher, fixed_request(spec))
    before = [(one.node, one.retired) for one in find_instances(launcher.clients.ec2, NAME)]

    def refused(launcher, *indices):
        with pytest.raises(ClusterctlError) as error:
            members.replace_nodes(launcher, indices)
        after = find_instances(launcher.clients.ec2, NAME)
        assert [(one.node, one.retired) for one in after] == before
        return error.value

    shown([{"state": "cancelled", "free": 0}])
    (cancelled,) = errors(refused(launcher, 1).findings)
    assert f"(clusterctl remove {NAME} INDEX)" in cancelled.hint
    world.clients.wire.break_at(ApiCall("DescribeDryRunOfRunInstances"), Mode.REFUSED)
    assert [one.check for one in errors(refused(launcher, 1).findings)] == ["launch.permitted"]
    assert refused(replace(launcher, approve=_decline), 1).message == "declined"
    # The settings of the cluster are in the tags of its nodes.
    assert "replace some of them first" in refused(launcher, 0, 1).hint


def _decline(plan):
    raise ClusterctlError("declined", "")


def test_what_a_refused_launch_has_cost_is_named_with_the_way_back(reserved, world):
    """EC2 refuses only the launch itself: the old node is gone, and the error says so."""
    launcher, spec = reserved
    up(launcher, fixed_request(spec))
    world.clients.wire.break_at(ApiCall("RunInstances"), Mode.REFUSED)
    with pytest.raises(AwsError) as refused:
        members.replace_nodes(launcher, [1])
    assert [one.node.index for one in find_instances(launcher.clients.ec2, NAME)] == [0]
    way_back = f"{NAME}-1: terminated, with its disk; once that is fixed: clusterctl up {NAME}; to"
    assert way_back in refused.value.hint
    assert len(up(launcher, fixed_request(spec)).cluster.nodes) == 2


def test_with_a_free_place_the_old_node_stays_until_the_new_one_is_ready(reserved, world):
    launcher, spec = reserved
    up(launcher, fixed_request(replace(spec, nodes=1)))
    world.clients.wire.break_at(ApiCall("RunInstances"), Mode.REFUSED)
    with pytest.raises(AwsError):
        members.replace_nodes(launcher, [0])
    assert len(find_instances(launcher.clients.ec2, NAME)) == 1


def test_a_reservation_goes_on_costing_when_its_nodes_do_not(reserved):
    launcher, spec = reserved
    up(launcher, fixed_request(spec))
    stopped = power.stop(launcher)
    assert stopped.reservations == (spec.capacity_reservation,)
    removed = down_module.down(launcher.clients, launcher.folder)
    assert removed.reservations == (spec.capacity_reservation,)
    assert len(removed.nodes) == 2
