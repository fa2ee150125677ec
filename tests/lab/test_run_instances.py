"""RunInstances and DescribeInstances behave like EC2, and refuse what EC2 refuses."""

from __future__ import annotations

import ipaddress

import pytest

from clusterctl.lab.addresses import REGIONS
from tests.lab.refusals import refused, service
from tests.lab.running import DLAMI_OWNER, client, newest_image

pytestmark = pytest.mark.lab


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


def test_default_vpcs_are_parts_of_the_labs_network(lab):
    blocks = []
    for region in REGIONS:
        ec2 = client(lab, region)
        vpcs = ec2.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
        blocks.append(ipaddress.ip_network(vpcs[0]["CidrBlock"]))
        of_it = [{"Name": "vpc-id", "Values": [vpcs[0]["VpcId"]]}]
        subnets = ec2.describe_subnets(Filters=of_it)["Subnets"]
        inside = [ipaddress.ip_network(one["CidrBlock"]).subnet_of(blocks[-1]) for one in subnets]
        assert inside
        assert all(inside)
    assert all(block.subnet_of(ipaddress.ip_network(lab.network)) for block in blocks)
    assert not any(one.overlaps(two) for one in blocks for two in blocks if one is not two)


@pytest.mark.parametrize(
    ("place", "said"),
    [(1, "reserved address range"), (-1, "reserved address range"), (None, "does not fall within")],
)
def test_an_address_that_no_host_can_have_is_refused(instances, place, said):
    """The second address is the gateway's: a host there would replace the lab's bridge."""
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
        code, text, _ = refused(ask)
        assert (code, said in text) == ("InvalidParameterValue", True)


def test_an_address_that_is_in_use_is_refused(instances):
    subnet = instances.ec2.describe_subnets()["Subnets"][0]
    address = str(ipaddress.IPv4Network(subnet["CidrBlock"])[-7])
    named = {"SubnetId": subnet["SubnetId"], "PrivateIpAddress": address}
    assert instances.request(**named)[0]["PrivateIpAddress"] == address
    assert refused(instances.request, **named)[0] == "InvalidIPAddress.InUse"


@pytest.fixture(scope="module")
def launch(once):
    """Return the answer of RunInstances to a launch of one p4d.24xlarge, with changes."""
    wanted = {
        "ImageId": newest_image(once),
        "InstanceType": "p4d.24xlarge",
        "MinCount": 1,
        "MaxCount": 1,
    }
    return lambda **changes: refused(once.run_instances, **{**wanted, **changes})


def nic(device=0, card=0, **others):
    return {"DeviceIndex": device, "NetworkCardIndex": card, **others}


def disks(**ebs):
    return {"BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": ebs}]}


def spot(**options):
    return {"InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": options}}


REFUSED = [
    (
        {"NetworkInterfaces": [nic(AssociatePublicIpAddress=True), nic(card=1)]},
        "InvalidParameterCombination",
        "The associatePublicIPAddress parameter cannot be specified when launching with multiple "
        "network interfaces",
    ),
    ({"NetworkInterfaces": [nic()], "SecurityGroups": ["default"]}, "InvalidParameterCombination",
     "Network interfaces and an instance-level security groups may not be specified"),
    ({"NetworkInterfaces": [nic(Groups=["sg-0123456789abcdef0"])]}, "InvalidGroup.NotFound",
     "The security group 'sg-0123456789abcdef0' does not exist"),
    ({"NetworkInterfaces": [nic(InterfaceType="efa")], "InstanceType": "g4dn.xlarge"},
     "InvalidParameterCombination", "g4dn.xlarge instances do not support Elastic Fabric Adapters"),
    (disks(VolumeSize=15), "InvalidBlockDeviceMapping", "expect size >= 75GB"),
    (disks(SnapshotId="snap-0123456789abcdef0"), "InvalidSnapshot.NotFound", "does not exist"),
    ({"BlockDeviceMappings": [{"DeviceName": "/dev/sdb"}]}, "MissingParameter", "ebs"),
    ({"IamInstanceProfile": {"Name": "nobody's"}}, "InvalidParameterValue",
     "Value (nobody's) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance "
     "Profile name"),
    ({"IamInstanceProfile": {"Arn": "arn:aws:iam::123456789012:instance-profile/x"}},
     "InvalidParameterValue", "iamInstanceProfile.arn is invalid"),
    (
        spot(SpotInstanceType="persistent", InstanceInterruptionBehavior="terminate"),
        "InvalidParameterCombination",
        "The request with type 'persistent' is not supported when instanceInterruptionBehavior is "
        "set to 'terminate'",
    ),
    (spot(SpotInstanceType="one-time", InstanceInterruptionBehavior="stop"),
     "InvalidParameterCombination", "The request with type 'one-time' is not supported"),
    (spot(MaxPrice="0.01"), "SpotMaxPriceTooLow", "Your Spot request price of 0.01 is lower"),
    ({"InstanceMarketOptions": {"MarketType": "flea"}}, "InvalidParameterValue", "(flea)"),
    ({"Placement": {"GroupName": "none"}}, "InvalidPlacementGroup.Unknown", "'none' is unknown"),
    ({"InstanceInitiatedShutdownBehavior": "sleep"}, "InvalidParameterValue",
     "(sleep) for parameter InstanceInitiatedShutdownBehavior"),
    ({"MetadataOptions": {"HttpPutResponseHopLimit": 65}}, "InvalidParameterValue", "(65)"),
    ({"MetadataOptions": {"HttpTokens": "maybe"}}, "InvalidParameterValue", "(maybe)"),
    ({"KeyName": "nobody's"}, "InvalidKeyPair.NotFound", "nobody's"),
    ({"ImageId": "ami-0123456789abcdef0"}, "InvalidAMIID.NotFound", "ami-0"),
    ({"InstanceType": "p9.huge"}, "InvalidParameterValue", "p9.huge"),
    ({"SubnetId": "subnet-0123456789abcdef0"}, "InvalidSubnetID.NotFound", "subnet-0"),
    ({"SecurityGroupIds": ["sg-0123456789abcdef0"]}, "InvalidGroup.NotFound", "sg-0"),
    ({"UserData": "#!/bin/sh\n" + "#" * 20_000}, "InvalidParameterValue", "User data"),
    ({"Placement": {"AvailabilityZone": "us-east-1e"}}, "Unsupported", "us-east-1e"),
    ({"MinCount": 0}, "InvalidParameterValue", "0"),
    ({"MinCount": 2}, "InvalidParameterValue", "maxCount"),
    # More hosts than the lab supports are refused, and none is launched.
    ({"MaxCount": 1_000_000}, "InstanceLimitExceeded", ""),
    *(({"ClientToken": one}, "InvalidParameterValue", "") for one in ("x" * 65, "t\u00f6k\u00e9n")),
]  # fmt: skip


def test_what_is_refused(once, launch):
    before = once.describe_instances()["Reservations"]
    for changes, code, text in REFUSED:
        said = launch(**changes)
        assert (said[0], said[2], text in said[1]) == (code, 400, True), (changes, said)
    assert len(once.describe_instances()["Reservations"]) == len(before)


def test_other_regions_are_refused(lab):
    elsewhere = service(lab, "ec2", "ap-south-1")
    asked = {"ImageId": newest_image(elsewhere), "MinCount": 1, "MaxCount": 1}
    assert refused(elsewhere.run_instances, **asked)[0] == "OptInRequired"


def test_a_dry_run_is_refused_for_what_is_wrong_and_for_nothing_else(launch):
    assert launch(DryRun=True, **disks(VolumeSize=15))[0] == "InvalidBlockDeviceMapping"
    assert launch(DryRun=True, **disks(VolumeSize=100))[0] == "DryRunOperation"


def test_interfaces_have_their_own_subnets(once, launch):
    subnet = once.describe_subnets()["Subnets"][0]["SubnetId"]
    code, text, status = launch(NetworkInterfaces=[nic()], SubnetId=subnet)
    assert (code, status) == ("InvalidParameterCombination", 400)
    assert text.startswith("Network interfaces and an instance-level subnet ID may not be")


def test_an_image_of_another_architecture_is_refused(once, launch):
    arm = once.describe_images(
        Owners=[DLAMI_OWNER], Filters=[{"Name": "architecture", "Values": ["arm64"]}]
    )["Images"][0]["ImageId"]
    code, text, _ = launch(ImageId=arm)
    assert code == "InvalidParameterValue"
    assert "The architecture 'x86_64' of the specified instance type does not match" in text
    assert launch(ImageId=arm, InstanceType="g5g.xlarge", DryRun=True)[0] == "DryRunOperation"


def test_a_subnet_without_enough_addresses_is_refused_whole(once, launch):
    vpcs = once.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
    block = str(list(ipaddress.ip_network(vpcs[0]["CidrBlock"]).subnets(new_prefix=28))[-1])
    made = once.create_subnet(
        VpcId=vpcs[0]["VpcId"], CidrBlock=block, AvailabilityZone="us-east-1a"
    )["Subnet"]
    before = len(once.describe_instances()["Reservations"])
    code, text, status = launch(SubnetId=made["SubnetId"], MinCount=12, MaxCount=12)
    assert (code, status) == ("InsufficientFreeAddressesInSubnet", 400)
    assert made["SubnetId"] in text
    assert len(once.describe_instances()["Reservations"]) == before
    once.delete_subnet(SubnetId=made["SubnetId"])


def test_groups_and_interfaces_keep_to_the_instance_network(once, launch):
    vpc = once.create_vpc(CidrBlock="192.168.0.0/16")["Vpc"]["VpcId"]
    group = once.create_security_group(GroupName="other", Description="-", VpcId=vpc)["GroupId"]
    code, text, _ = launch(SecurityGroupIds=[group])
    assert (code, "belong to different networks" in text) == ("InvalidParameter", True)
    assert launch(NetworkInterfaces=[nic(Groups=[group])])[0] == "InvalidParameter"
    zones = once.describe_subnets(Filters=[{"Name": "default-for-az", "Values": ["true"]}])[
        "Subnets"
    ]
    subnets = {one["AvailabilityZone"]: one["SubnetId"] for one in zones}
    two = [nic(SubnetId=subnets["us-east-1a"]), nic(card=1, SubnetId=subnets["us-east-1b"])]
    assert launch(NetworkInterfaces=two)[0] == "InvalidParameterCombination"
