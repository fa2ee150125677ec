"""The template, and the resources that CloudFormation makes from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.domain.errors import AwsError
from clusterctl.ec2.network import stack as stacks
from clusterctl.ec2.network.plan import NetworkSettings, stack_name
from clusterctl.ec2.network.stack import (
    StackWork,
    find_stack,
    network_of,
    operation_events,
    template_body,
    template_version,
)
from clusterctl.ec2.network.vpcs import NETWORK, find_subnets
from clusterctl.ec2.tags import tag_dict
from tests.clock import FakeClock
from tests.ec2.cloudformation import REASON, CloudFormation
from tests.moto_ec2 import clients_of

SETTINGS = NetworkSettings("net", "10.20.0.0/16", ("us-east-1a", "us-east-1b"), "203.0.113.7/32")
TAGGED = {"VPC", "Subnet", "InternetGateway", "RouteTable", "SecurityGroup", "VPCEndpoint"}


@pytest.fixture
def clients(client, moto_url):
    return clients_of(moto_url)


def work(client, timeout_s=60.0):
    return StackWork(client, lambda text: None, timeout_s, FakeClock())


def resources():
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    Loader.add_multi_constructor("!", lambda loader, tag, node: (f"!{tag}", node.value))
    return yaml.load(template_body(), Loader)["Resources"]


@pytest.mark.all
def test_cfn_lint_finds_nothing():
    from cfnlint import lint  # here, since it takes a second in each process that collects tests

    assert [str(found) for found in lint(template_body())] == []
    assert Path(stacks.__file__).with_name("network.yaml").read_text() == template_body()


def test_everything_that_can_be_tagged_is():
    for name, resource in resources().items():
        kind = resource["Type"].rsplit("::", 1)[1]
        tags = tag_dict(resource["Properties"].get("Tags"))
        assert (tags.get(NETWORK) == ("Ref", "Network") or NETWORK in tags) == (kind in TAGGED), (
            name
        )


def test_ssh_from_one_place_and_members_everywhere():
    found = resources()
    [ssh] = found["SecurityGroup"]["Properties"]["SecurityGroupIngress"]
    assert (ssh["FromPort"], ssh["ToPort"], ssh["CidrIp"]) == (22, 22, ("!Ref", "SshFrom"))
    for rule, other in (
        ("MembersIn", "SourceSecurityGroupId"),
        ("MembersOut", "DestinationSecurityGroupId"),
    ):
        properties = found[rule]["Properties"]
        assert properties["IpProtocol"] == "-1"
        assert properties["GroupId"] == properties[other]


def test_what_it_makes(clients):
    assert find_stack(clients.cloudformation, stack_name("net")) is None
    stack = work(clients.cloudformation).create(SETTINGS)
    assert stack is not None
    found = network_of(clients, "net", stack)
    assert found.cidr == "10.20.0.0/16"
    assert [(subnet.zone, subnet.cidr) for subnet in found.subnets] == [
        ("us-east-1a", "10.20.0.0/18"),
        ("us-east-1b", "10.20.64.0/18"),
    ]
    assert {subnet.vpc_id for subnet in found.subnets} == {found.vpc_id}
    # The tags find the same subnets without CloudFormation.
    assert find_subnets(clients.ec2, network="net") == found.subnets
    named = [{"Name": f"tag:{NETWORK}", "Values": ["net"]}]
    [group] = clients.ec2.describe_security_groups(Filters=named)["SecurityGroups"]
    assert group["GroupId"] == found.security_group_id
    [endpoint] = clients.ec2.describe_vpc_endpoints(Filters=named)["VpcEndpoints"]
    assert endpoint["ServiceName"] == "com.amazonaws.us-east-1.s3"
    [routes] = clients.ec2.describe_route_tables(Filters=named)["RouteTables"]
    assert any(route.get("GatewayId", "").startswith("igw-") for route in routes["Routes"])
    assert stack.template == template_version()
    assert stack.parameters == SETTINGS.parameters()


def test_the_same_again_is_no_update(clients):
    on_time = work(clients.cloudformation)
    stack = on_time.create(SETTINGS)
    assert stack is not None
    assert on_time.update(stack, SETTINGS) is stack
    assert on_time.create(SETTINGS) is None
    with pytest.raises(AwsError) as caught:
        work(clients.cloudformation, timeout_s=-1.0).create(SETTINGS)
    assert caught.value.code == "AlreadyExistsException"


def test_events_of_the_last_operation_only(client):
    fake = CloudFormation(client)
    stack = work(fake).create(SETTINGS)
    assert stack is not None
    fake.fails = REASON
    fake.delete_stack(stack.stack_id, "token-2")
    while find_stack(fake, stack.stack_id).in_progress:
        pass
    events = operation_events(fake, stack.stack_id)
    assert events[0].status == "DELETE_IN_PROGRESS"
    # A cancelled operation is not the reason.
    assert [event.describe() for event in events if event.failed and event.kind] == [
        f"Vpc (AWS::EC2::VPC): {REASON}"
    ]
