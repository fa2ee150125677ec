"""Choosing subnets: the default ones, those of a VPC or a network, or those named."""

from __future__ import annotations

import pytest

from clusterctl.domain.errors import AwsError
from clusterctl.ec2.network.vpcs import NETWORK, find_subnets, read_subnet


@pytest.fixture
def own_vpc(client):
    """Return a VPC with two subnets of network `lab-net`."""
    vpc_id = client.create_vpc(CidrBlock="10.20.0.0/16")["Vpc"]["VpcId"]
    made = [
        client.create_subnet(
            VpcId=vpc_id,
            CidrBlock=f"10.20.{number}.0/24",
            AvailabilityZone=zone,
            TagSpecifications=[
                {"ResourceType": "subnet", "Tags": [{"Key": NETWORK, "Value": "lab-net"}]}
            ],
        )["Subnet"]["SubnetId"]
        for number, zone in ((1, "us-east-1b"), (0, "us-east-1a"))
    ]
    return vpc_id, made


def test_the_default_ones_are_those_of_the_default_vpc(client, own_vpc):
    found = find_subnets(client)
    assert found
    assert all(subnet.default and subnet.vpc_id != own_vpc[0] for subnet in found)
    assert [subnet.zone for subnet in found] == sorted({subnet.zone for subnet in found})


def test_a_network_and_named_ones(client, own_vpc):
    vpc_id, [second, first] = own_vpc
    found = find_subnets(client, network="lab-net")
    assert {subnet.vpc_id for subnet in found} == {vpc_id}
    assert [(subnet.subnet_id, subnet.zone, subnet.free_addresses) for subnet in found] == [
        (first, "us-east-1a", 251),
        (second, "us-east-1b", 251),
    ]
    assert find_subnets(client, network="lab") == ()
    assert find_subnets(client, subnet_ids=[second]) == found[1:]
    assert find_subnets(client, subnet_ids=[]) == ()


def test_a_subnet_that_does_not_exist(client):
    with pytest.raises(AwsError) as caught:
        find_subnets(client, subnet_ids=["subnet-0123456789abcdef0"])
    assert caught.value.code == "InvalidSubnetID.NotFound"


def test_an_ipv6_only_subnet_has_no_addresses_for_us():
    described = {"SubnetId": "subnet-1", "VpcId": "vpc-1", "AvailabilityZone": "us-east-1a"}
    assert read_subnet(described).free_addresses == 0
