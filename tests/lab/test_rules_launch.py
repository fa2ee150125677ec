"""What EC2 refuses of a launch, with its codes, its words and its HTTP status."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from tests.lab.refusals import refused, service
from tests.lab.running import DLAMI_OWNER, newest_image

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def once(lab):
    return service(lab, "ec2")


@pytest.fixture(scope="module")
def launch(once):
    """What RunInstances says to a launch of one p4d.24xlarge, with changes."""
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
    (
        {"NetworkInterfaces": [nic()], "SecurityGroupIds": ["sg-1"]},
        "InvalidParameterCombination",
        "Network interfaces and an instance-level security groups may not be specified",
    ),
    (
        {"NetworkInterfaces": [nic(Groups=["sg-0123456789abcdef0"])]},
        "InvalidGroup.NotFound",
        "The security group 'sg-0123456789abcdef0' does not exist",
    ),
    ({"NetworkInterfaces": [nic(), nic(card=4)]}, "InvalidParameterValue", "networkCardIndex"),
    ({"NetworkInterfaces": [nic(), nic()]}, "InvalidParameterValue", "unique device index"),
    (
        {"NetworkInterfaces": [nic(InterfaceType="efa")], "InstanceType": "g4dn.xlarge"},
        "InvalidParameterCombination",
        "g4dn.xlarge instances do not support Elastic Fabric Adapters",
    ),
    (
        {"NetworkInterfaces": [nic(InterfaceType="efa")], "InstanceType": "p6-b300.48xlarge"},
        "InvalidParameterCombination",
        "card 0 of p6-b300.48xlarge",
    ),
    (
        {"NetworkInterfaces": [nic(InterfaceType="efa-only")]},
        "InvalidParameterCombination",
        "primary network interface",
    ),
    (
        {"NetworkInterfaces": [nic(), *(nic(index) for index in range(1, 16))]},
        "AttachmentLimitExceeded",
        "Interface count 16 exceeds the limit for p4d.24xlarge",
    ),
    (disks(VolumeSize=15), "InvalidBlockDeviceMapping", "expect size >= 75GB"),
    (
        disks(VolumeSize=200, VolumeType="gp3", Throughput=1000),
        "InvalidParameterValue",
        "Throughput (MiBps) to iops ratio of 0.333333 is too high; maximum is 0.250000",
    ),
    (disks(VolumeType="gp3", Iops=80_001), "InvalidParameterValue", "maximum is 80000"),
    (disks(SnapshotId="snap-0123456789abcdef0"), "InvalidSnapshot.NotFound", "does not exist"),
    (
        {"BlockDeviceMappings": [{"DeviceName": "/dev/sdb"}]},
        "MissingParameter",
        "ebs",
    ),
    (
        {"IamInstanceProfile": {"Name": "nobody's"}},
        "InvalidParameterValue",
        "Value (nobody's) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance "
        "Profile name",
    ),
    (
        {"IamInstanceProfile": {"Arn": "arn:aws:iam::123456789012:instance-profile/x"}},
        "InvalidParameterValue",
        "iamInstanceProfile.arn is invalid",
    ),
    (
        spot(SpotInstanceType="persistent", InstanceInterruptionBehavior="terminate"),
        "InvalidParameterCombination",
        "The request with type 'persistent' is not supported when instanceInterruptionBehavior is "
        "set to 'terminate'",
    ),
    (
        spot(SpotInstanceType="one-time", InstanceInterruptionBehavior="stop"),
        "InvalidParameterCombination",
        "The request with type 'one-time' is not supported",
    ),
    (spot(MaxPrice="0.01"), "SpotMaxPriceTooLow", "Your Spot request price of 0.01 is lower"),
    ({"InstanceMarketOptions": {"MarketType": "flea"}}, "InvalidParameterValue", "'flea'"),
    ({"Placement": {"GroupName": "none"}}, "InvalidPlacementGroup.Unknown", "'none' is unknown"),
    (
        {"InstanceInitiatedShutdownBehavior": "sleep"},
        "InvalidParameterValue",
        "'sleep' for InstanceInitiatedShutdownBehavior",
    ),
    ({"MetadataOptions": {"HttpPutResponseHopLimit": 65}}, "InvalidParameterValue", "(65)"),
    ({"MetadataOptions": {"HttpTokens": "maybe"}}, "InvalidParameterValue", "'maybe'"),
]


@pytest.mark.parametrize(("changes", "code", "text"), REFUSED, ids=[row[2][:40] for row in REFUSED])
def test_what_is_refused(launch, changes, code, text):
    said = launch(**changes)
    assert (said[0], said[2]) == (code, 400), said
    assert text in said[1]


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
    block = str(list(ip_network(vpcs[0]["CidrBlock"]).subnets(new_prefix=28))[-1])
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
