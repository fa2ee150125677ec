"""Capacity that runs out, zone by zone, with AWS's messages."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_network

import pytest
from botocore.exceptions import ClientError

from tests.lab.refusals import refused
from tests.lab.running import once_client, wait_until

pytestmark = pytest.mark.lab

TYPE, ZONES = "p3.8xlarge", ("us-east-1a", "us-east-1b", "us-east-1c", "us-east-1d")
FIRST = (
    "We currently do not have sufficient {type} capacity in the Availability Zone you requested "
    "({zone}). Our system will be working on provisioning additional capacity."
)
OTHERS = (
    " You can currently get {type} capacity by not specifying an Availability Zone in your "
    "request or choosing {zones}."
)


@pytest.fixture
def launch(lab, instances, faults):
    """Launch without retries. Return the zones of the new instances."""
    once = once_client(lab)
    wait_until(lambda: not machines(instances), "what other tests launched is gone")

    def run(least, most, zone=None, **changes):
        where = {"Placement": {"AvailabilityZone": zone}} if zone else {}
        sizes = {"MinCount": least, "MaxCount": most, "InstanceType": TYPE}
        made = once.run_instances(**instances.wanted(**sizes, **where, **changes))["Instances"]
        instances.ids += [one["InstanceId"] for one in made]
        return [one["Placement"]["AvailabilityZone"] for one in made]

    yield run
    for id in instances.ids:
        wait_until(lambda id=id: instances.shown(id), "seen")


def set_left(faults, **by_zone):
    for letter, left in by_zone.items():
        faults("capacity", instance_type=TYPE, zone=f"us-east-1{letter}", left=left)


def refusal(launch, *arguments, **changes):
    code, text, status = refused(lambda: launch(*arguments, **changes))
    assert (code, status) == ("InsufficientInstanceCapacity", 500)
    return text


def test_all_or_nothing_names_the_zones_that_have_enough(launch, faults):
    set_left(faults, a=1, b=1, c=2)
    text = FIRST.format(type=TYPE, zone=ZONES[0])
    others = OTHERS.format(type=TYPE, zones="us-east-1c, us-east-1d")
    assert refusal(launch, 2, 2, ZONES[0]) == text + others
    assert launch(1, 1, ZONES[0]) == [ZONES[0]]
    assert refusal(launch, 1, 1, ZONES[0]).startswith(text)


def test_nowhere_else(launch, faults):
    set_left(faults, a=0, b=0, c=0, d=0)
    assert refusal(launch, 1, 1, ZONES[1]) == FIRST.format(type=TYPE, zone=ZONES[1])
    text = refusal(launch, 1, 1)
    assert text.startswith(f"We currently do not have sufficient {TYPE} capacity in zones with")
    market = {"InstanceMarketOptions": {"MarketType": "spot"}}
    assert "Spot capacity" in refusal(launch, 1, 1, **market)


def test_a_subnet_names_its_zone(launch, faults, ec2):
    set_left(faults, b=0)
    in_zone = [{"Name": "availability-zone", "Values": [ZONES[1]]}]
    subnet = ec2.describe_subnets(Filters=in_zone)["Subnets"][0]["SubnetId"]
    nic = {"DeviceIndex": 0, "SubnetId": subnet}
    for asked in ({"SubnetId": subnet}, {"NetworkInterfaces": [nic]}):
        assert ZONES[1] in refusal(launch, 1, 1, **asked)


def test_without_a_zone_ec2_takes_one_that_has_enough(launch, faults):
    set_left(faults, a=1, b=0, c=4, d=0)
    assert launch(2, 2) == [ZONES[2]] * 2
    assert launch(1, 3) == [ZONES[0]]
    assert launch(1, 1) == [ZONES[2]]


def test_what_ends_or_stops_frees_its_machine(launch, faults, instances, lab):
    launch(2, 2, ZONES[0])
    stopped, ended = instances.ids
    wait_until(lambda: instances.shown(stopped, ended), "seen")
    instances.reachable(stopped)
    set_left(faults, a=0)
    refusal(launch, 1, 1, ZONES[0])
    instances.ec2.terminate_instances(InstanceIds=[ended])
    instances.in_state(ended, "terminated")
    instances.ec2.stop_instances(InstanceIds=[stopped])
    instances.in_state(stopped, "stopped")
    assert launch(1, 5, ZONES[0]) == [ZONES[0]] * 2
    said = refused(once_client(lab).start_instances, InstanceIds=[stopped])
    assert said[:2] == ("InsufficientInstanceCapacity", "Insufficient capacity.")
    assert instances.state(stopped) == "stopped"
    faults.clear()
    instances.ec2.start_instances(InstanceIds=[stopped])
    instances.reachable(stopped)


def test_of_launches_at_the_same_time_as_many_succeed_as_fit(launch, faults):
    set_left(faults, a=3)

    def one(_):
        try:
            return len(launch(1, 1, ZONES[0]))
        except ClientError:
            return 0

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(one, range(8))) == 3


def test_other_types_and_refused_launches_take_nothing(launch, faults, instances):
    set_left(faults, a=1)
    launch(1, 1, ZONES[0], KeyName="tests")
    faults.clear()
    set_left(faults, a=1)
    with pytest.raises(ClientError):
        launch(1, 1, ZONES[0], KeyName="nobody's")
    instances.request(Placement={"AvailabilityZone": ZONES[0]})
    assert launch(1, 1, ZONES[0]) == [ZONES[0]]


def test_a_launch_that_fails_halfway_leaves_nothing(launch, faults, instances, ec2):
    subnet = ec2.describe_subnets(Filters=[{"Name": "default-for-az", "Values": ["true"]}])
    subnet = subnet["Subnets"][0]
    where = {
        "SubnetId": subnet["SubnetId"],
        "PrivateIpAddress": str(ip_network(subnet["CidrBlock"])[999]),
    }
    before = {one["InstanceId"] for one in everything(instances)}
    with pytest.raises(ClientError):
        launch(2, 2, **where)  # fails: a second instance cannot have the same address
    assert {one["InstanceId"] for one in everything(instances)} == before
    faults("capacity", instance_type=TYPE, zone=subnet["AvailabilityZone"], left=1)
    assert len(launch(1, 1, **where)) == 1


def machines(instances):
    """Return instances of earlier tests that are not terminated yet: they will free capacity."""
    return [
        one
        for one in everything(instances)
        if one["InstanceType"] == TYPE and one["State"]["Name"] != "terminated"
    ]


def everything(instances):
    pages = instances.ec2.get_paginator("describe_instances").paginate()
    return [one for page in pages for each in page["Reservations"] for one in each["Instances"]]
