"""A Lag has EC2 show changed tags, states, addresses, groups, volumes and spot requests late."""

from __future__ import annotations

import pytest

from clusterctl.lab.faults.kinds import Lag
from tests.moto_ec2 import NEW_IMAGE

KINDS = ("tags", "states", "addresses", "groups", "volumes", "spot", "places")


@pytest.fixture
def late(faults):
    """Return a function that has one kind lag for good."""
    return lambda kind, seconds=1000.0: faults(Lag(**{f"{kind}_s": seconds}))


def launched(client, **more) -> str:
    wanted = {"ImageId": NEW_IMAGE, "InstanceType": "t3.micro", "MinCount": 1, "MaxCount": 1}
    return str(client.run_instances(**wanted, **more)["Instances"][0]["InstanceId"])


def shown(client, id: str):
    return client.describe_instances(InstanceIds=[id])["Reservations"][0]["Instances"][0]


def await_state(client, id: str, state: str) -> None:
    client.get_waiter(f"instance_{state}").wait(
        InstanceIds=[id], WaiterConfig={"Delay": 0.05, "MaxAttempts": 200}
    )


def test_tags(client, late):
    id = launched(client)
    late("tags")
    client.create_tags(Resources=[id], Tags=[{"Key": "a", "Value": "new"}])
    by_tag = [{"Name": "tag:a", "Values": ["new"]}]
    assert shown(client, id).get("Tags", []) == []
    assert client.describe_instances(Filters=by_tag)["Reservations"] == []
    late("tags", 0.0)
    assert shown(client, id)["Tags"] == [{"Key": "a", "Value": "new"}]
    assert client.describe_instances(Filters=by_tag)["Reservations"] != []


def test_states(client, late):
    id = launched(client)
    await_state(client, id, "running")
    late("states")
    answer = client.stop_instances(InstanceIds=[id])["StoppingInstances"][0]
    assert (answer["PreviousState"]["Name"], answer["CurrentState"]["Name"]) == (
        "running",
        "stopping",
    )
    assert shown(client, id)["State"]["Name"] == "running"
    by_state = [{"Name": "instance-state-name", "Values": ["running"]}]
    assert client.describe_instances(Filters=by_state)["Reservations"] != []
    late("states", 0.0)
    await_state(client, id, "stopped")


def test_addresses(client, late):
    id = launched(client)
    await_state(client, id, "running")
    kept = client.allocate_address(Domain="vpc")["AllocationId"]
    before = shown(client, id)["PublicIpAddress"]
    late("addresses")
    new = client.allocate_address(Domain="vpc")
    client.associate_address(InstanceId=id, AllocationId=new["AllocationId"])
    client.release_address(AllocationId=kept)
    there = client.describe_addresses()["Addresses"]
    assert [one["AllocationId"] for one in there] == [kept]
    assert shown(client, id)["PublicIpAddress"] == before
    late("addresses", 0.0)
    there = client.describe_addresses()["Addresses"]
    assert [(one["AllocationId"], one["InstanceId"]) for one in there] == [
        (new["AllocationId"], id)
    ]
    assert shown(client, id)["PublicIpAddress"] == new["PublicIp"]


def test_groups(client, late):
    by_name = [{"Name": "group-name", "Values": ["one", "two"]}]
    one = client.create_security_group(GroupName="one", Description="one")["GroupId"]
    late("groups")
    client.authorize_security_group_ingress(
        GroupId=one, IpProtocol="tcp", FromPort=22, ToPort=22, CidrIp="10.0.0.0/8"
    )
    client.create_security_group(GroupName="two", Description="two")
    (observed,) = client.describe_security_groups(Filters=by_name)["SecurityGroups"]
    assert (observed["GroupId"], observed["IpPermissions"]) == (one, [])
    late("groups", 0.0)
    there = client.describe_security_groups(Filters=by_name)["SecurityGroups"]
    assert sorted(len(each["IpPermissions"]) for each in there) == [0, 1]


def test_volumes(client, late):
    id = launched(client)
    volume = shown(client, id)["BlockDeviceMappings"][0]["Ebs"]["VolumeId"]
    late("volumes")
    client.modify_volume(VolumeId=volume, Size=500)
    more = client.create_volume(AvailabilityZone="us-east-1a", Size=8)["VolumeId"]
    (observed,) = client.describe_volumes()["Volumes"]
    assert (observed["VolumeId"], observed["Size"] < 500) == (volume, True)
    assert client.describe_volumes_modifications()["VolumesModifications"] == []
    late("volumes", 0.0)
    there = {one["VolumeId"]: one["Size"] for one in client.describe_volumes()["Volumes"]}
    assert there == {volume: 500, more: 8}
    assert len(client.describe_volumes_modifications()["VolumesModifications"]) == 1


def test_the_places_of_a_reservation(client, late):
    made = client.create_capacity_reservation(
        InstanceType="t3.micro",
        InstancePlatform="Linux/UNIX",
        AvailabilityZone="us-east-1a",
        InstanceCount=1,
        InstanceMatchCriteria="targeted",
    )["CapacityReservation"]["CapacityReservationId"]

    def free() -> int:
        found = client.describe_capacity_reservations(CapacityReservationIds=[made])
        return int(found["CapacityReservations"][0]["AvailableInstanceCount"])

    into = {"CapacityReservationTarget": {"CapacityReservationId": made}}
    placed = {"CapacityReservationSpecification": into}
    id = launched(client, Placement={"AvailabilityZone": "us-east-1a"}, **placed)
    await_state(client, id, "running")
    late("places")
    client.terminate_instances(InstanceIds=[id])
    await_state(client, id, "terminated")
    assert free() == 0
    late("places", 0.0)
    assert free() == 1


def test_spot_requests(client, late):
    late("spot")
    launched(client, InstanceMarketOptions={"MarketType": "spot"})
    assert client.describe_spot_instance_requests()["SpotInstanceRequests"] == []
    late("spot", 0.0)
    assert len(client.describe_spot_instance_requests()["SpotInstanceRequests"]) == 1


def test_reordered_reads_show_the_new_and_the_old(client, late, faults):
    id = launched(client)
    late("tags")
    faults(Lag(reordered=True))
    client.create_tags(Resources=[id], Tags=[{"Key": "a", "Value": "new"}])
    assert {len(shown(client, id).get("Tags", [])) for _ in range(30)} == {0, 1}
