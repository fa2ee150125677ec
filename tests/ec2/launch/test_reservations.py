"""Reserved capacity: finding it, launching into it, and its end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.domain.cluster import ClusterSpec, Market
from clusterctl.domain.errors import AwsError
from clusterctl.domain.findings import Severity
from clusterctl.ec2.launch.capacity import find_reservation
from clusterctl.ec2.resources import ResourceKind, find_resources
from tests.ec2.launching import TYPE
from tests.moto_ec2 import NEW_IMAGE

SPEC = ClusterSpec("demo", 2, TYPE, efa=False)


def reserve(client, count=2, zone="us-east-1c", instance_type=TYPE):
    made = client.create_capacity_reservation(
        InstanceType=instance_type,
        InstancePlatform="Linux/UNIX",
        AvailabilityZone=zone,
        InstanceCount=count,
        InstanceMatchCriteria="targeted",
    )["CapacityReservation"]
    return made["CapacityReservationId"]


def block(client, count=2):
    """Return a Capacity Block that has started."""
    offered = client.describe_capacity_block_offerings(
        InstanceType=TYPE, InstanceCount=count, CapacityDurationHours=48
    )["CapacityBlockOfferings"]
    soonest = min(offered, key=lambda one: one["StartDate"])
    return client.purchase_capacity_block(
        CapacityBlockOfferingId=soonest["CapacityBlockOfferingId"], InstancePlatform="Linux/UNIX"
    )["CapacityReservation"]


def test_what_a_reservation_is(client):
    id = reserve(client, count=3)
    found = find_reservation(client, id)
    assert (found.reservation_id, found.instance_type, found.zone) == (id, TYPE, "us-east-1c")
    assert (found.state, found.free, found.block) == ("active", 3, False)
    assert not found.placement_group
    client.cancel_capacity_reservation(CapacityReservationId=id)
    assert find_reservation(client, id).state == "cancelled"
    for id in ("cr-0123456789abcdef0", "mine", "cr-x; rm -rf /"):
        assert find_reservation(client, id) is None


def test_a_cluster_in_a_reservation_and_one_node_too_many(launches):
    id = reserve(launches.client)
    members = launches.up(replace(SPEC, capacity_reservation=id))
    assert {(one.reservation_id, one.node.zone) for one in members} == {(id, "us-east-1c")}
    assert find_reservation(launches.client, id).free == 0
    more = launches.plan(replace(SPEC, nodes=3), "second")
    errors = [one.check for one in more.findings if one.severity is Severity.ERROR]
    assert errors == ["reservation.free"]
    assert more.steps == ()


def test_a_cluster_in_a_capacity_block(launches):
    bought = block(launches.client)
    members = launches.up(replace(SPEC, capacity_reservation=bought["CapacityReservationId"]))
    assert {one.market for one in members} == {Market.CAPACITY_BLOCK}
    assert {one.node.zone for one in members} == {bought["AvailabilityZone"]}
    assert find_resources(launches.client, "demo", ResourceKind.PLACEMENT_GROUP) == ()
    [request] = launches.sent
    assert (request["MinCount"], request["MaxCount"]) == (2, 2)
    # The next `up` finds the nodes in the block without the option that names it.
    assert launches.plan(SPEC, "second").steps == ()


def test_a_reservation_that_somebody_else_has_filled_meanwhile(launches):
    id = reserve(launches.client)
    plan = launches.plan(replace(SPEC, capacity_reservation=id))
    launches.client.run_instances(
        ImageId=NEW_IMAGE,
        InstanceType=TYPE,
        MinCount=1,
        MaxCount=1,
        SubnetId=launches.subnet("us-east-1c"),
        CapacityReservationSpecification={
            "CapacityReservationTarget": {"CapacityReservationId": id}
        },
    )
    with pytest.raises(AwsError) as caught:
        launches.carry_out(plan, capacity_timeout_s=60)
    assert caught.value.code == "ReservationCapacityExceeded"
    assert launches.clock.waits == [30, pytest.approx(30, abs=5)]
    assert launches.alive() == []
    assert launches.told[-1].startswith("ReservationCapacityExceeded; RunInstances: 2 x")
