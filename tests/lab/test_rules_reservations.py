"""Capacity Reservations and Capacity Blocks: created, found, used up, released."""

from __future__ import annotations

from datetime import datetime, timedelta
from types import SimpleNamespace

import pytest
from moto.core.utils import utcnow
from moto.ec2.exceptions import EC2ClientError

from clusterctl.lab import lifecycle
from clusterctl.lab.ec2 import capacity_blocks
from clusterctl.lab.ec2.reservations import CapacityReservation
from tests.lab.refusals import fault, quota, refused
from tests.lab.running import wait_until

pytestmark = pytest.mark.lab

KIND, ZONE = "p3.2xlarge", "us-east-1c"
BLOCK_KIND = "p4d.24xlarge"
ON_DEMAND_P = "L-417A185B"


@pytest.fixture
def reserve(once):
    """Return a function that makes reservations and returns their ids. They end with the test."""
    made = []

    def make(**changes):
        wanted = {
            "InstanceType": KIND,
            "InstancePlatform": "Linux/UNIX",
            "AvailabilityZone": ZONE,
            "InstanceCount": 2,
            "InstanceMatchCriteria": "targeted",
        }
        answer = once.create_capacity_reservation(**{**wanted, **changes})["CapacityReservation"]
        made.append(answer["CapacityReservationId"])
        return made[-1]

    yield make
    for id in made:
        once.cancel_capacity_reservation(CapacityReservationId=id)


@pytest.fixture(scope="module")
def block(once):
    """Return a Capacity Block of two instances that has started."""
    offered = once.describe_capacity_block_offerings(
        InstanceType=BLOCK_KIND, InstanceCount=2, CapacityDurationHours=48
    )["CapacityBlockOfferings"]
    soonest = min(offered, key=lambda one: one["StartDate"])
    return once.purchase_capacity_block(
        CapacityBlockOfferingId=soonest["CapacityBlockOfferingId"], InstancePlatform="Linux/UNIX"
    )["CapacityReservation"]


def into(id=None, zone=ZONE, **others):
    target = {"CapacityReservationTarget": {"CapacityReservationId": id}}
    return {
        "Placement": {"AvailabilityZone": zone},
        **({"CapacityReservationSpecification": target} if id else {}),
        **others,
    }


def free(once, id):
    found = once.describe_capacity_reservations(CapacityReservationIds=[id])
    return found["CapacityReservations"][0]["AvailableInstanceCount"]


def test_a_reservation_falls_with_use_and_rises_again(once, reserve, instances):
    id = reserve()
    assert free(once, id) == 2
    launched = instances.up(**into(id), MinCount=2, MaxCount=2)
    assert [one["CapacityReservationId"] for one in launched] == [id, id]
    assert free(once, id) == 0
    code, text, status = refused(instances.request, **into(id))
    assert (code, status) == ("ReservationCapacityExceeded", 400)
    assert text == (
        "The requested reservation does not have sufficient compatible and available capacity for "
        "this request."
    )
    found = once.describe_instances(Filters=[{"Name": "capacity-reservation-id", "Values": [id]}])[
        "Reservations"
    ]
    assert sum(len(one["Instances"]) for one in found) == 2
    once.terminate_instances(InstanceIds=[launched[0]["InstanceId"]])
    instances.in_state(launched[0]["InstanceId"], "terminated")
    assert free(once, id) == 1


def test_what_does_not_fit_and_what_is_not_there_are_refused(once, reserve, instances):
    id, full = reserve(), "ReservationCapacityExceeded"
    for changes in (
        {"zone": "us-east-1a"},
        {"InstanceType": "p3.8xlarge"},
        {"MinCount": 3, "MaxCount": 3},
    ):
        code, _, status = refused(instances.request, **into(id, **changes))
        assert (code, status) == (full, 400)
    for id, code in (
        ("cr-0123456789abcdef0", "InvalidCapacityReservationId.NotFound"),
        ("mine", "InvalidCapacityReservationId.Malformed"),
    ):
        asked = {"CapacityReservationIds": [id]}
        assert refused(once.describe_capacity_reservations, **asked)[0] == code
        assert refused(instances.request, **into(id))[0] == code
        assert refused(once.cancel_capacity_reservation, CapacityReservationId=id)[0] == code


def test_an_open_reservation_takes_instances_until_it_is_full(reserve, instances):
    id = reserve(InstanceMatchCriteria="open", InstanceCount=1)
    none = {"CapacityReservationSpecification": {"CapacityReservationPreference": "none"}}
    only = {"CapacityReservationPreference": "capacity-reservations-only"}
    outside = instances.request(**into(), **none)
    assert outside[0].get("CapacityReservationId") is None
    launched = instances.request(**into(), MinCount=2, MaxCount=2)
    assert [one.get("CapacityReservationId") for one in launched] == [id, None]
    code, _, _ = refused(instances.request, **into(), CapacityReservationSpecification=only)
    assert code == "ReservationCapacityExceeded"


def test_reservations_are_found_by_filters_and_a_cancelled_one_takes_nobody(
    once, reserve, instances
):
    tags = [{"ResourceType": "capacity-reservation", "Tags": [{"Key": "team", "Value": "vision"}]}]
    id = reserve(TagSpecifications=tags)

    def found(**filters):
        wanted = [{"Name": name, "Values": [value]} for name, value in filters.items()]
        answer = once.describe_capacity_reservations(Filters=wanted)["CapacityReservations"]
        return [one["CapacityReservationId"] for one in answer]

    assert found(**{"tag:team": "vis*", "state": "active"}) == [id]
    once.cancel_capacity_reservation(CapacityReservationId=id)
    assert id in found(state="cancelled")
    assert refused(instances.request, **into(id))[0] == "ReservationCapacityExceeded"


def test_reserved_capacity_counts_in_the_quota_once(lab, once, reserve, instances):
    kind = {"InstanceType": "g4dn.xlarge"}
    zone = once.describe_instance_type_offerings(
        LocationType="availability-zone",
        Filters=[{"Name": "instance-type", "Values": [kind["InstanceType"]]}],
    )["InstanceTypeOfferings"][0]["Location"]
    id = reserve(**kind, InstanceCount=2, AvailabilityZone=zone)
    with quota(lab, "L-DB2E81BA", 8):
        assert refused(instances.request, **kind)[0] == "VcpuLimitExceeded"
        assert len(instances.request(**into(id, zone), **kind, MinCount=2, MaxCount=2)) == 2


def test_reserved_machines_are_there_when_the_zone_has_no_others(lab, reserve, instances):
    id = reserve()
    with fault(lab, kind="capacity", instance_type=KIND, zone=ZONE, left=0):
        code, text, status = refused(instances.request, **into())
        assert (code, status) == ("InsufficientInstanceCapacity", 500)
        assert len(instances.request(**into(id), MinCount=2, MaxCount=2)) == 2
        code, text, status = refused(reserve)
        assert (code, status) == ("InsufficientInstanceCapacity", 500)
        assert ZONE in text


def test_blocks_that_are_not_offered(once):
    wanted = {"InstanceType": BLOCK_KIND, "InstanceCount": 1, "CapacityDurationHours": 24}
    for changes in (
        {"InstanceType": "p3.2xlarge"},
        {"InstanceCount": 65},
        {"CapacityDurationHours": 25},
        {"CapacityDurationHours": 15 * 24},
        {"CapacityDurationHours": 183 * 24},
    ):
        asked = {**wanted, **changes}
        code = refused(once.describe_capacity_block_offerings, **asked)[0]
        assert code == "InvalidParameterValue", changes
    no_such = {"CapacityBlockOfferingId": "cbo-0123456789abcdef0", "InstancePlatform": "Linux/UNIX"}
    code = refused(once.purchase_capacity_block, **no_such)[0]
    assert code == "InvalidCapacityBlockOfferingId.NotFound"


def test_an_offering_is_bought_once_by_two_at_the_same_time(monkeypatch):
    now = utcnow()
    offering = CapacityReservation("cr-1", BLOCK_KIND, "", ZONE, 1, starts=now, ends=now)
    backend = SimpleNamespace(capacity_block_offerings={"cbo-1": offering})
    monkeypatch.setattr(capacity_blocks, "keep", lambda _, bought: bought)

    def buy(meanwhile=lambda: None):
        ask = {"CapacityBlockOfferingId": "cbo-1"}.get
        response = SimpleNamespace(ec2_backend=backend, _get_param=ask, error_on_dryrun=meanwhile)
        return capacity_blocks.purchase_capacity_block(response)

    with pytest.raises(EC2ClientError, match="does not exist"):
        buy(meanwhile=buy)


def test_a_block_that_begins_tomorrow_takes_nobody_today(once, instances):
    offered = once.describe_capacity_block_offerings(
        InstanceType=BLOCK_KIND, InstanceCount=1, CapacityDurationHours=24
    )["CapacityBlockOfferings"]
    latest = max(offered, key=lambda one: one["StartDate"])
    assert float(latest["UpfrontFee"]) > 100
    bought = once.purchase_capacity_block(
        CapacityBlockOfferingId=latest["CapacityBlockOfferingId"], InstancePlatform="Linux/UNIX"
    )["CapacityReservation"]
    assert (bought["State"], bought["ReservationType"]) == ("scheduled", "capacity-block")
    market = {"InstanceMarketOptions": {"MarketType": "capacity-block"}, "InstanceType": BLOCK_KIND}
    target = into(bought["CapacityReservationId"], bought["AvailabilityZone"])
    assert refused(instances.request, **target, **market)[0] == "ReservationCapacityExceeded"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"InstanceMarketOptions": None}, "InvalidParameterValue"),
        ({"InstanceMarketOptions": {"MarketType": "spot"}}, "InvalidParameterValue"),
        ({"CapacityReservationSpecification": None}, "InvalidParameterCombination"),
        ({"MaxCount": 2}, "InvalidParameterCombination"),
        ({"Placement": {"GroupName": "any"}}, "InvalidParameterCombination"),
        ({"InstanceType": "p5.48xlarge"}, "ReservationCapacityExceeded"),
    ],
)
def test_launches_that_a_block_does_not_take(block, instances, changes, code):
    wanted = {
        **into(block["CapacityReservationId"], block["AvailabilityZone"]),
        "InstanceType": BLOCK_KIND,
        "InstanceMarketOptions": {"MarketType": "capacity-block"},
        **changes,
    }
    given = {key: value for key, value in wanted.items() if value is not None}
    assert refused(instances.request, **given)[0] == code


def test_a_block_is_used_and_not_cancelled(lab, once, block, instances):
    id = block["CapacityReservationId"]
    market = {"InstanceMarketOptions": {"MarketType": "capacity-block"}, "InstanceType": BLOCK_KIND}
    with quota(lab, ON_DEMAND_P, 0):
        launched = instances.request(
            **into(id, block["AvailabilityZone"]), **market, MinCount=2, MaxCount=2
        )
    assert {one["InstanceLifecycle"] for one in launched} == {"capacity-block"}
    assert {one["CapacityReservationId"] for one in launched} == {id}
    assert free(once, id) == 0
    code = refused(once.cancel_capacity_reservation, CapacityReservationId=id)[0]
    assert code == "UnsupportedOperation"


def test_the_end_of_a_block_takes_all_its_instances(lab, once, block, instances):
    """EC2 begins half an hour before the end. It gives no notice in the instance's metadata."""
    id = block["CapacityReservationId"]
    wait_until(lambda: free(once, id) == 2, "room in the block")
    launched = instances.request(
        **into(id, block["AvailabilityZone"]),
        InstanceMarketOptions={"MarketType": "capacity-block"},
        InstanceType=BLOCK_KIND,
        MinCount=2,
        MaxCount=2,
    )
    first, second = (one["InstanceId"] for one in launched)
    other = instances.request()[0]["InstanceId"]
    ask = {"instance_id": first, "seconds": 0}
    ends = datetime.fromisoformat(
        lifecycle.request_page(lab, "/_lab/interruptions", "POST", ask)["ends_at"]
    )
    for one in (first, second):
        instances.in_state(one, "terminated")
    shown = once.describe_capacity_reservations(CapacityReservationIds=[id])
    [shown] = shown["CapacityReservations"]
    assert abs(shown["EndDate"] - ends - timedelta(minutes=30)) < timedelta(seconds=2)
    assert instances.state(other) != "terminated"
