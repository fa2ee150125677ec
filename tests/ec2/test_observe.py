"""What is looked at before a plan is made: which group, which network, which image."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.domain.errors import UsageError
from clusterctl.domain.findings import Severity
from clusterctl.domain.spec import ClusterSpec, Limits
from clusterctl.ec2.request import tagged
from clusterctl.ec2.subnets import NETWORK
from tests.ec2.launching import launches

__all__ = ["launches"]

SPEC = ClusterSpec("demo", 1, "g5.12xlarge")


@pytest.fixture
def networks(client):
    """Two networks of one subnet each, in VPCs of their own: name -> VPC and subnet."""
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
    """`up` went as far as the security group, and is then asked for another network."""
    plan = launches.plan(replace(SPEC, network="one"))
    group = next(n for n, step in enumerate(plan.steps) if step.operation.endswith("egress"))
    launches.carry_out(replace(plan, steps=plan.steps[: group + 1]))
    [node] = launches.up(replace(SPEC, network="two"), "second")
    assert (node.vpc_id, node.subnet_id) == networks["two"]


def test_no_such_network(launches):
    made = launches.plan(replace(SPEC, network="none"))
    [finding] = [one for one in made.findings if one.check_id == "subnet.none"]
    assert finding.message == "there is no network none in us-east-1"
    assert made.refused


def test_no_such_subnet_is_said_with_the_rest(launches):
    spec = replace(SPEC, subnet_id="subnet-0123456789abcdef0", limits=Limits(max_hourly_usd=0.01))
    made = launches.plan(spec)
    errors = {one.check_id for one in made.findings if one.severity is Severity.ERROR}
    assert {"subnet.none", "cost.hourly"} <= errors
    assert made.steps == ()
