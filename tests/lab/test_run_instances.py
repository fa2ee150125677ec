"""RunInstances and what describes its instances, as EC2 has them."""

from __future__ import annotations

import ipaddress

import pytest
from botocore.exceptions import ClientError

from clusterctl.lab.addresses import REGIONS
from tests.lab.running import client, newest_image

pytestmark = pytest.mark.lab


def code_of(refused) -> str:
    return refused.value.response["Error"]["Code"]


def test_one_call_numbers_and_tags_its_instances(instances):
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "cluster", "Value": "numbered"}]}]
    launched = instances.request(MinCount=1, MaxCount=3, TagSpecifications=tags)
    assert [one["AmiLaunchIndex"] for one in launched] == [0, 1, 2]
    by_tag = instances.ec2.describe_instances(
        Filters=[
            {"Name": "tag:cluster", "Values": ["numbered"]},
            {"Name": "instance-state-name", "Values": ["pending", "running"]},
        ]
    )
    found = [one for each in by_tag["Reservations"] for one in each["Instances"]]
    assert {one["InstanceId"] for one in found} == {one["InstanceId"] for one in launched}


def test_the_same_token_gives_the_same_instances(instances):
    first = instances.request(ClientToken="once", MaxCount=2)
    again = instances.request(ClientToken="once", MaxCount=2)
    assert [one["InstanceId"] for one in again] == [one["InstanceId"] for one in first]
    with pytest.raises(ClientError) as refused:
        instances.request(ClientToken="once", MaxCount=1)
    assert code_of(refused) == "IdempotentParameterMismatch"


def test_a_dry_run_uses_no_token_up(instances):
    with pytest.raises(ClientError) as refused:
        instances.request(ClientToken="dry", DryRun=True)
    assert code_of(refused) == "DryRunOperation"
    assert len(instances.request(ClientToken="dry")) == 1


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"KeyName": "nobody's"}, "InvalidKeyPair.NotFound"),
        ({"ImageId": "ami-0123456789abcdef0"}, "InvalidAMIID.NotFound"),
        ({"InstanceType": "p9.huge"}, "InvalidParameterValue"),
        ({"SubnetId": "subnet-0123456789abcdef0"}, "InvalidSubnetID.NotFound"),
        ({"SecurityGroupIds": ["sg-0123456789abcdef0"]}, "InvalidGroup.NotFound"),
        ({"UserData": "#!/bin/sh\n" + "#" * 20_000}, "InvalidParameterValue"),
        ({"Placement": {"AvailabilityZone": "us-east-1e"}}, "Unsupported"),
    ],
)
def test_what_is_not_there_is_refused(instances, changes, code):
    with pytest.raises(ClientError) as refused:
        instances.request(**changes)
    assert code_of(refused) == code


def test_default_vpcs_are_parts_of_the_labs_network(lab):
    blocks = []
    for region in REGIONS:
        ec2 = client(lab, region)
        vpcs = ec2.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
        blocks.append(ipaddress.ip_network(vpcs[0]["CidrBlock"]))
        of_it = [{"Name": "vpc-id", "Values": [vpcs[0]["VpcId"]]}]
        subnets = ec2.describe_subnets(Filters=of_it)["Subnets"]
        inside = [ipaddress.ip_network(one["CidrBlock"]).subnet_of(blocks[-1]) for one in subnets]
        assert all(inside)
    assert all(block.subnet_of(ipaddress.ip_network(lab.network)) for block in blocks)
    assert not any(one.overlaps(two) for one in blocks for two in blocks if one is not two)


def test_other_regions_are_refused(lab):
    ec2 = client(lab, "ap-south-1")
    with pytest.raises(ClientError) as refused:
        ec2.run_instances(ImageId=newest_image(ec2), MinCount=1, MaxCount=1)
    assert code_of(refused) == "OptInRequired"


def test_the_newest_image(lab):
    ec2 = client(lab)
    name = "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) *"
    images = ec2.describe_images(
        Owners=["898082745236"],
        Filters=[{"Name": "name", "Values": [name]}, {"Name": "state", "Values": ["available"]}],
    )["Images"]
    newest = max(images, key=lambda image: image["CreationDate"])
    assert len(images) == 2
    assert newest["Name"].endswith(" 20261101")
    assert (newest["RootDeviceName"], newest["Architecture"]) == ("/dev/sda1", "x86_64")
    assert newest["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"] == 75


@pytest.mark.parametrize(
    ("instance_type", "gpus"),
    [("p3.2xlarge", 1), ("p3.8xlarge", 4), ("p3.16xlarge", 8), ("g4dn.12xlarge", 4)],
)
def test_gpu_info(lab, instance_type, gpus):
    ec2 = client(lab)
    shown = ec2.describe_instance_types(InstanceTypes=[instance_type])["InstanceTypes"][0]
    assert shown["GpuInfo"]["Gpus"][0]["Count"] == gpus
    offers = ec2.describe_instance_type_offerings(
        LocationType="availability-zone",
        Filters=[{"Name": "instance-type", "Values": [instance_type]}],
    )
    assert offers["InstanceTypeOfferings"]


def test_more_hosts_than_the_lab_can_carry_are_refused_whole(lab):
    ec2 = client(lab)
    before = len(ec2.describe_instances()["Reservations"])
    with pytest.raises(ClientError) as caught:
        ec2.run_instances(
            ImageId=newest_image(ec2), InstanceType="p3.2xlarge", MinCount=1, MaxCount=1_000_000
        )
    assert caught.value.response["Error"]["Code"] == "InstanceLimitExceeded"
    assert len(ec2.describe_instances()["Reservations"]) == before


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (0, "reserved address range"),
        (1, "reserved address range"),
        (3, "reserved address range"),
        (-1, "reserved address range"),
        (None, "does not fall within"),
    ],
)
def test_an_address_that_no_host_can_have_is_refused(instances, place, said):
    """The second one is the gateway's: a host there would be the lab's own bridge to its peers."""
    subnet = instances.ec2.describe_subnets()["Subnets"][0]
    block = ipaddress.IPv4Network(subnet["CidrBlock"])
    address = "192.0.2.7" if place is None else str(block[place])
    named = {"SubnetId": subnet["SubnetId"], "PrivateIpAddress": address}
    by_interface = {"NetworkInterfaces": [{"DeviceIndex": 0, **named}]}
    for ask in (
        lambda: instances.request(**named),
        lambda: instances.request(**by_interface),
        lambda: instances.ec2.create_network_interface(**named),
    ):
        with pytest.raises(ClientError) as refused:
            ask()
        assert code_of(refused) == "InvalidParameterValue"
        assert said in str(refused.value)


def test_an_address_that_is_in_use_is_refused(instances):
    subnet = instances.ec2.describe_subnets()["Subnets"][0]
    address = str(ipaddress.IPv4Network(subnet["CidrBlock"])[-7])
    named = {"SubnetId": subnet["SubnetId"], "PrivateIpAddress": address}
    assert instances.request(**named)[0]["PrivateIpAddress"] == address
    with pytest.raises(ClientError) as refused:
        instances.request(**named)
    assert code_of(refused) == "InvalidIPAddress.InUse"
