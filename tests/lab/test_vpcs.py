"""Hosts in VPCs other than the default ones."""

from __future__ import annotations

import ipaddress
import json
import socket
from pathlib import Path

import pytest

import clusterctl.ec2.network
from tests.lab.refusals import refused
from tests.lab.running import client, ssh, wait_until

TEMPLATE = Path(clusterctl.ec2.network.__file__).with_name("network.yaml")

pytestmark = pytest.mark.lab


@pytest.fixture
def vpcs(ec2, instances):
    """Return a function that makes VPCs with public subnets. The end removes them and their
    instances."""
    made = []

    def make(block: str, *subnets: str):
        vpc = ec2.create_vpc(CidrBlock=block)["Vpc"]["VpcId"]
        zone = f"{instances.lab.region}a"
        ids = []
        for one in subnets:
            subnet = ec2.create_subnet(VpcId=vpc, CidrBlock=one, AvailabilityZone=zone)
            ids.append(subnet["Subnet"]["SubnetId"])
        gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
        ec2.attach_internet_gateway(VpcId=vpc, InternetGatewayId=gateway)
        route(ec2.create_route, vpc, GatewayId=gateway)
        made.append((vpc, ids, gateway))
        return ids

    yield make
    if instances.ids:
        ec2.terminate_instances(InstanceIds=instances.ids)
        for id in instances.ids:
            instances.in_state(id, "terminated")
    for vpc, subnets, gateway in made:
        ec2.detach_internet_gateway(VpcId=vpc, InternetGatewayId=gateway)
        ec2.delete_internet_gateway(InternetGatewayId=gateway)
        for subnet in subnets:
            ec2.delete_subnet(SubnetId=subnet)
        ec2.delete_vpc(VpcId=vpc)


def route(change, vpc: str, **to: str) -> None:
    """Create or delete the default route of a VPC."""
    of_vpc = [{"Name": "vpc-id", "Values": [vpc]}]
    [table] = change.__self__.describe_route_tables(Filters=of_vpc)["RouteTables"]
    change(RouteTableId=table["RouteTableId"], DestinationCidrBlock="0.0.0.0/0", **to)


def in_subnet(subnet: str, public: bool = False):
    nic = {"DeviceIndex": 0, "SubnetId": subnet, "AssociatePublicIpAddress": public}
    return {"NetworkInterfaces": [nic]}


def reaches(instances, one, address: str) -> bool:
    program = f"exec 3<>/dev/tcp/{address}/22 && head -c 4 <&3"
    known = instances.see(one["InstanceId"]).get("PublicIpAddress") or one["PrivateIpAddress"]
    done = ssh(instances.lab, instances.key, known, f"timeout 5 bash -c '{program}'")
    return done.stdout == "SSH-"


def test_hosts_of_two_subnets_and_of_the_default_vpc_reach_each_other(instances, vpcs):
    open_subnet, closed = vpcs("10.20.0.0/16", "10.20.0.0/24", "10.20.1.0/24")
    shown = instances.ec2.describe_subnets(SubnetIds=[open_subnet])["Subnets"][0]
    assert (shown["MapPublicIpOnLaunch"], shown["DefaultForAz"]) == (False, False)
    head = instances.up(**in_subnet(open_subnet, public=True))[0]
    private = instances.up(**in_subnet(closed))[0]
    default = instances.up()[0]
    assert ipaddress.ip_address(private["PrivateIpAddress"]) in ipaddress.ip_network("10.20.1.0/24")
    assert "PublicIpAddress" not in private
    assert reaches(instances, head, private["PrivateIpAddress"])
    assert reaches(instances, head, default["PrivateIpAddress"])
    assert reaches(instances, default, private["PrivateIpAddress"])
    shown = ssh(instances.lab, instances.key, head["PublicIpAddress"], "hostname -I; ip route")
    assert shown.stdout.splitlines() == [
        head["PrivateIpAddress"] + " ",
        "default via 10.20.0.1 dev eth0 ",
        f"10.20.0.0/24 dev eth0 proto kernel scope link src {head['PrivateIpAddress']} ",
    ]


def test_a_public_address_answers_only_with_a_route_to_an_internet_gateway(instances, vpcs):
    if instances.lab.proxy_command:
        pytest.skip("no way to public addresses but through SSH")
    [subnet] = vpcs("10.21.0.0/16", "10.21.0.0/24")
    head = instances.up(**in_subnet(subnet, public=True))[0]

    def answers() -> bool:
        try:
            with socket.create_connection((head["PublicIpAddress"], 22), 1) as dialled:
                dialled.settimeout(1)
                return dialled.recv(4) == b"SSH-"
        except OSError:
            return False

    wait_until(answers, "the way in")
    route(instances.ec2.delete_route, head["VpcId"])
    wait_until(lambda: not answers(), "no way in")
    shown = instances.see(head["InstanceId"])
    assert shown["PublicIpAddress"] == head["PublicIpAddress"], "it has it all the same"


def gets_s3(instances, one) -> bool:
    """Return whether S3 accepts a connection from a host."""
    place = instances.lab.storage_url.removeprefix("http://")
    known = one.get("PublicIpAddress") or one["PrivateIpAddress"]
    command = f"timeout 2 bash -c '</dev/tcp/{place}/80'"
    return ssh(instances.lab, instances.key, known, command).returncode == 0


def test_a_node_without_a_public_address_needs_an_endpoint_for_s3(instances, ec2):
    default = [{"Name": "is-default", "Values": ["true"]}]
    vpc = ec2.describe_vpcs(Filters=default)["Vpcs"][0]["VpcId"]
    of_vpc = [{"Name": "vpc-id", "Values": [vpc]}]
    subnet = ec2.describe_subnets(Filters=of_vpc)["Subnets"][0]["SubnetId"]
    [table] = ec2.describe_route_tables(Filters=of_vpc)["RouteTables"]
    [public], [private] = (instances.up(**in_subnet(subnet, public=way)) for way in (True, False))
    assert gets_s3(instances, public)
    assert not gets_s3(instances, private)
    made = ec2.create_vpc_endpoint(
        VpcId=vpc,
        ServiceName=f"com.amazonaws.{instances.lab.region}.s3",
        RouteTableIds=[table["RouteTableId"]],
    )["VpcEndpoint"]["VpcEndpointId"]
    try:
        wait_until(lambda: gets_s3(instances, private), "the way to S3")
    finally:
        ec2.delete_vpc_endpoints(VpcEndpointIds=[made])
    wait_until(lambda: not gets_s3(instances, private), "no way to S3")
    address = ec2.allocate_address(Domain="vpc")["AllocationId"]
    try:
        ec2.associate_address(AllocationId=address, InstanceId=private["InstanceId"])
        wait_until(lambda: gets_s3(instances, private), "the way to S3")
    finally:
        ec2.terminate_instances(InstanceIds=[private["InstanceId"]])
        instances.in_state(private["InstanceId"], "terminated")
        ec2.release_address(AllocationId=address)


def test_a_subnet_is_free_again_when_its_hosts_are_gone(instances, vpcs):
    first, second = (vpcs("172.20.0.0/16", f"172.20.0.0/{size}")[0] for size in (24, 20))
    one = instances.request(**in_subnet(first))[0]
    code, text, _ = refused(instances.request, **in_subnet(second))
    assert (code, one["InstanceId"] in text) == ("UnsupportedOperation", True)
    instances.ec2.terminate_instances(InstanceIds=[one["InstanceId"]])
    instances.in_state(one["InstanceId"], "terminated")
    again = instances.up(**in_subnet(second, public=True))[0]
    wait_until(lambda: reaches(instances, again, again["PrivateIpAddress"]), "the host itself")


def test_addresses_that_the_lab_cannot_have(instances, vpcs):
    for block in ("8.8.0.0/16", "100.64.0.0/16", instances.lab.network):
        [subnet] = vpcs(block, block)
        assert refused(instances.request, **in_subnet(subnet))[0] == "UnsupportedOperation"


@pytest.fixture
def stacks(lab):
    """Return the lab's CloudFormation. All stacks are removed at the end."""
    stacks = client(lab, service="cloudformation")
    yield stacks
    assert stacks.describe_stacks()["Stacks"] == []


def status_of(stacks, name: str) -> str:
    found = [one for one in stacks.describe_stacks()["Stacks"] if one["StackName"] == name]
    return found[0]["StackStatus"] if found else "gone"


def make_stack(stacks, block: str) -> dict[str, str]:
    """Make a stack from the package's template for a network. Return the stack's outputs."""
    halves = [str(half) for half in ipaddress.ip_network(block).subnets(prefixlen_diff=1)]
    parameters = {
        "Network": "made",
        "Cidr": block,
        "FirstZone": "us-east-1a",
        "FirstCidr": halves[0],
        "SecondZone": "us-east-1b",
        "SecondCidr": halves[1],
        "SshFrom": "10.0.0.0/8",
    }
    stacks.create_stack(
        StackName="made",
        TemplateBody=TEMPLATE.read_text(),
        Parameters=[{"ParameterKey": k, "ParameterValue": v} for k, v in parameters.items()],
    )
    assert status_of(stacks, "made") == "CREATE_COMPLETE"
    shown = stacks.describe_stacks(StackName="made")["Stacks"][0]["Outputs"]
    return {one["OutputKey"]: one["OutputValue"] for one in shown}


def test_a_network_made_by_cloudformation(instances, ec2, stacks):
    made = make_stack(stacks, "10.30.0.0/16")
    of_vpc = [{"Name": "vpc-id", "Values": [made["VpcId"]]}]
    subnets = ec2.describe_subnets(Filters=of_vpc)["Subnets"]
    assert [one["MapPublicIpOnLaunch"] for one in subnets] == [True, True]
    tables = ec2.describe_route_tables(Filters=of_vpc)["RouteTables"]
    there = {one.get("SubnetId") for table in tables for one in table["Associations"]}
    assert {made["FirstSubnetId"], made["SecondSubnetId"]} < there
    group = ec2.describe_security_groups(GroupIds=[made["SecurityGroupId"]])["SecurityGroups"][0]
    for way in ("IpPermissions", "IpPermissionsEgress"):
        pairs = [pair["GroupId"] for rule in group[way] for pair in rule["UserIdGroupPairs"]]
        assert pairs == [group["GroupId"]]
    named = ec2.describe_vpc_attribute(VpcId=made["VpcId"], Attribute="enableDnsHostnames")
    assert named["EnableDnsHostnames"] == {"Value": True}

    launch = {"SubnetId": made["SecondSubnetId"], "SecurityGroupIds": [made["SecurityGroupId"]]}
    one = instances.up(**launch)[0]
    name = ssh(instances.lab, instances.key, one["PublicIpAddress"], "hostname").stdout.strip()
    assert name == "ip-" + one["PrivateIpAddress"].replace(".", "-")

    stacks.delete_stack(StackName="made")
    assert status_of(stacks, "made") == "DELETE_FAILED"
    assert ec2.describe_subnets(SubnetIds=[made["SecondSubnetId"]])["Subnets"]
    ec2.terminate_instances(InstanceIds=[one["InstanceId"]])
    instances.in_state(one["InstanceId"], "terminated")
    stacks.delete_stack(StackName="made")
    assert status_of(stacks, "made") == "gone"
    assert ec2.describe_route_tables(Filters=of_vpc)["RouteTables"] == []
    assert ec2.describe_security_groups(Filters=of_vpc)["SecurityGroups"] == []
    assert ec2.describe_vpc_endpoints(Filters=of_vpc)["VpcEndpoints"] == []
    attached = [{"Name": "attachment.vpc-id", "Values": [made["VpcId"]]}]
    assert ec2.describe_internet_gateways(Filters=attached)["InternetGateways"] == []


def test_a_stack_goes_whole_though_its_route_table_went_first(ec2, stacks):
    made = make_stack(stacks, "10.32.0.0/16")
    of_vpc = [{"Name": "vpc-id", "Values": [made["VpcId"]]}]
    for table in ec2.describe_route_tables(Filters=of_vpc)["RouteTables"]:
        for one in table["Associations"]:
            if not one["Main"]:
                ec2.disassociate_route_table(AssociationId=one["RouteTableAssociationId"])
        if not any(one["Main"] for one in table["Associations"]):
            ec2.delete_route_table(RouteTableId=table["RouteTableId"])
    stacks.delete_stack(StackName="made")
    assert status_of(stacks, "made") == "gone"
    assert ec2.describe_vpc_endpoints(Filters=of_vpc)["VpcEndpoints"] == []


@pytest.mark.parametrize("kind", ["AWS::EC2::Nonsense", "AWS::Lambda::Function"])
def test_a_resource_that_the_lab_cannot_make(stacks, kind):
    thing = {"Type": kind, "Properties": {"Code": {}, "Role": "x"}}
    template = json.dumps({"Resources": {"Thing": thing}})
    code, text, _ = refused(stacks.create_stack, StackName="nonsense", TemplateBody=template)
    assert (code, kind in text) == ("ValidationError", True)
    assert status_of(stacks, "nonsense") == "gone"


def test_a_stack_that_fails_is_rolled_back(ec2, stacks):
    wanted = {
        "Vpc": {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": "10.31.0.0/16"}},
        "Subnet": {
            "Type": "AWS::EC2::Subnet",
            "Properties": {"VpcId": {"Ref": "Vpc"}, "CidrBlock": "10.99.0.0/24"},
        },
    }
    shown = {
        "Vpc": {"Value": {"Ref": "Vpc"}, "Export": {"Name": "vpc"}},
        "Subnet": {"Value": {"Ref": "Subnet"}},
    }
    template = json.dumps({"Resources": wanted, "Outputs": shown})
    stacks.create_stack(StackName="wrong", TemplateBody=template)
    assert status_of(stacks, "wrong") == "ROLLBACK_COMPLETE"
    assert stacks.list_exports()["Exports"] == []
    events = stacks.describe_stack_events(StackName="wrong")["StackEvents"]
    assert any("10.99.0.0/24" in one.get("ResourceStatusReason", "") for one in events)
    there = ec2.describe_vpcs(Filters=[{"Name": "cidr", "Values": ["10.31.0.0/16"]}])["Vpcs"]
    assert there == []
    stacks.delete_stack(StackName="wrong")
