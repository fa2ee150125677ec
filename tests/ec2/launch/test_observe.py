"""Observations before a plan: the security group, the network, the image."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from clusterctl.domain.cluster import ClusterSpec, Limits
from clusterctl.domain.errors import AwsError, UsageError
from clusterctl.domain.findings import Severity
from clusterctl.ec2.errors import translated
from clusterctl.ec2.launch.request import tagged
from clusterctl.ec2.network.vpcs import NETWORK, Egress, _way_out, find_subnets, find_ways_out
from clusterctl.operations.network import make_s3_endpoint, plan_s3_endpoint
from tests.moto_ec2 import clients_with

SPEC = ClusterSpec("demo", 1, "g5.12xlarge")
PUBLIC = partial(Egress, public=True)


@pytest.fixture
def networks(client):
    """Make two networks with one subnet each, in separate VPCs. Return {name: (VPC, subnet)}."""
    return {
        name: _network(client, name, f"10.{block}.0.0/24")
        for name, block in (("one", 20), ("two", 21))
    }


def _network(client, name, cidr):
    vpc = client.create_vpc(CidrBlock=cidr)["Vpc"]["VpcId"]
    subnet = client.create_subnet(
        VpcId=vpc,
        CidrBlock=cidr,
        AvailabilityZone="us-east-1b",
        TagSpecifications=tagged(["subnet"], {NETWORK: name}),
    )["Subnet"]["SubnetId"]
    gateway = client.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    client.attach_internet_gateway(VpcId=vpc, InternetGatewayId=gateway)
    of_vpc = [{"Name": "vpc-id", "Values": [vpc]}]
    [table] = client.describe_route_tables(Filters=of_vpc)["RouteTables"]
    client.create_route(
        RouteTableId=table["RouteTableId"], DestinationCidrBlock="0.0.0.0/0", GatewayId=gateway
    )
    return vpc, subnet


def test_a_cluster_stays_in_its_network(launches, networks):
    spec = replace(SPEC, network="one")
    [node] = launches.up(spec)
    assert (node.vpc_id, node.subnet_id) == networks["one"]
    assert launches.plan(spec).steps == launches.plan(SPEC).steps == ()
    for other in ("two", "none"):
        with pytest.raises(UsageError) as caught:
            launches.plan(replace(SPEC, network=other))
        assert f"is not in network {other}, but in {node.subnet_id}" in caught.value.message
        assert "leave --network out" in caught.value.hint


def test_a_group_that_was_left_in_another_network_is_not_taken(launches, networks):
    """`up` was cut off after it made the security group; the next one is for another network."""
    plan = launches.plan(replace(SPEC, network="one"))
    group = next(n for n, step in enumerate(plan.steps) if step.operation.endswith("egress"))
    launches.carry_out(replace(plan, steps=plan.steps[: group + 1]))
    [node] = launches.up(replace(SPEC, network="two"), "second")
    assert (node.vpc_id, node.subnet_id) == networks["two"]


@pytest.fixture
def vpc(client):
    """Return the ids of the default VPC, its route table, and its first subnet."""
    [vpc] = client.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
    of_vpc = [{"Name": "vpc-id", "Values": [vpc["VpcId"]]}]
    [table] = client.describe_route_tables(Filters=of_vpc)["RouteTables"]
    [first, *_] = find_subnets(client)
    return vpc["VpcId"], table["RouteTableId"], first.subnet_id


def ways(client, *subnet_ids):
    return find_ways_out(client, find_subnets(client, subnet_ids=subnet_ids))


def test_where_routes_lead_and_an_endpoint_for_s3(launches, client, vpc):
    vpc_id, table, first = vpc
    own = client.create_route_table(VpcId=vpc_id)["RouteTable"]["RouteTableId"]
    client.associate_route_table(RouteTableId=own, SubnetId=first)
    address = client.allocate_address(Domain="vpc")["AllocationId"]
    nat = client.create_nat_gateway(SubnetId=first, AllocationId=address)["NatGateway"]
    to = {"RouteTableId": own, "DestinationCidrBlock": "0.0.0.0/0"}
    client.create_route(NatGatewayId=nat["NatGatewayId"], **to)
    second = find_subnets(client)[1].subnet_id
    assert ways(client, first, second) == {first: Egress(own, True), second: PUBLIC(table)}

    spec = replace(SPEC, nodes=2, private=True, zone="us-east-1b")
    [found] = [one for one in launches.plan(spec).findings if one.check == "network.way_out"]
    assert (found.severity, second in found.message) == (Severity.WARNING, True)

    clients = clients_with(client)
    step = plan_s3_endpoint(clients, None)
    assert step.arguments == {
        "VpcEndpointType": "Gateway",
        "VpcId": vpc_id,
        "ServiceName": "com.amazonaws.us-east-1.s3",
        "RouteTableIds": sorted((table, own)),
        "TagSpecifications": tagged(["vpc-endpoint"], {"Name": "clusterctl-s3"}),
    }
    made = make_s3_endpoint(clients, plan_s3_endpoint(clients, second))
    assert made.startswith("vpce-")
    # Another program was faster: one of the two tables has an endpoint already.
    assert make_s3_endpoint(clients, step) == ""
    make_s3_endpoint(clients, plan_s3_endpoint(clients, None))
    client.create_vpc_endpoint(
        VpcId=vpc_id,
        VpcEndpointType="Interface",
        ServiceName="com.amazonaws.us-east-1.ssm",
        SubnetIds=[second],
        PrivateDnsEnabled=True,
    )
    services = frozenset({"s3", "ssm"})
    assert ways(client, first, second) == {
        first: Egress(own, True, services, True),
        second: PUBLIC(table, services=services, s3_gateway=True),
    }
    assert plan_s3_endpoint(clients, None) is None
    [found] = [one for one in launches.plan(spec).findings if one.check == "network.way_out"]
    assert found.severity is Severity.INFO
    with pytest.raises(UsageError, match="subnet-0123456789abcdef0"):
        plan_s3_endpoint(clients, "subnet-0123456789abcdef0")


@pytest.mark.parametrize(
    ("target", "block", "public"),
    [
        ({"GatewayId": "igw-1"}, "0.0.0.0/0", True),
        ({"GatewayId": "igw-1"}, "203.0.113.0/24", True),
        # A firewall in front of the internet gateway.
        ({"GatewayId": "vpce-1"}, "0.0.0.0/0", True),
        ({"GatewayId": "local"}, "10.0.0.0/8", False),
        ({"NatGatewayId": "nat-1"}, "0.0.0.0/0", False),
        ({"TransitGatewayId": "tgw-1"}, "0.0.0.0/0", False),
    ],
)
def test_which_routes_let_public_addresses_answer(target, block, public):
    route = {**target, "DestinationCidrBlock": block, "State": "active"}
    to_s3 = {"GatewayId": "vpce-2", "DestinationPrefixListId": "pl-1", "State": "active"}
    table = {"RouteTableId": "rtb-1", "Associations": [{"Main": True}], "Routes": [to_s3, route]}
    assert _way_out("subnet-1", [table], []).public is public
    gone = {**table, "Routes": [{**route, "State": "blackhole"}]}
    assert not _way_out("subnet-1", [gone], []).public


def test_a_vpc_without_an_internet_gateway_is_refused_before_anything_is_made(launches, client):
    """As EC2 says it only when the nodes run and their address is to be associated."""
    vpc = client.create_vpc(CidrBlock="10.30.0.0/24")["Vpc"]["VpcId"]
    subnet = client.create_subnet(
        VpcId=vpc, CidrBlock="10.30.0.0/24", AvailabilityZone="us-east-1b"
    )["Subnet"]["SubnetId"]
    made = launches.plan(replace(SPEC, nodes=2, subnet_id=subnet, private=True))
    [found] = [one for one in made.findings if one.check == "network.way_in"]
    assert (found.severity, made.steps) == (Severity.ERROR, ())
    assert "an internet gateway" in found.hint
    plain = launches.plan(replace(SPEC, subnet_id=subnet))
    assert plain.refused
    # What would have happened:
    nic = client.create_network_interface(SubnetId=subnet)["NetworkInterface"]
    address = client.allocate_address(Domain="vpc")["AllocationId"]
    with pytest.raises(AwsError) as refused, translated():
        client.associate_address(AllocationId=address, NetworkInterfaceId=nic["NetworkInterfaceId"])
    assert refused.value.code == "Gateway.NotAttached"
    assert "internet gateway" in refused.value.hint


def test_no_such_subnet_is_said_with_the_rest(launches):
    spec = replace(SPEC, subnet_id="subnet-0123456789abcdef0", limits=Limits(max_hourly_usd=0.01))
    made = launches.plan(spec)
    errors = {one.check for one in made.findings if one.severity is Severity.ERROR}
    assert {"subnet.none", "cost.hourly"} <= errors
    assert made.steps == ()
