"""Hosts in VPCs that somebody made, beside the default ones."""

from __future__ import annotations

import ipaddress

import pytest
from botocore.exceptions import ClientError

from tests.lab.running import ssh, wait_until

pytestmark = pytest.mark.lab


@pytest.fixture
def vpcs(ec2, instances):
    """Makes VPCs with subnets, and has them gone at the end, with the instances in them."""
    made = []

    def make(block: str, *subnets: str):
        vpc = ec2.create_vpc(CidrBlock=block)["Vpc"]["VpcId"]
        zone = f"{instances.lab.region}a"
        ids = []
        for one in subnets:
            subnet = ec2.create_subnet(VpcId=vpc, CidrBlock=one, AvailabilityZone=zone)
            ids.append(subnet["Subnet"]["SubnetId"])
        made.append((vpc, ids))
        return ids

    yield make
    if instances.ids:
        ec2.terminate_instances(InstanceIds=instances.ids)
        for id in instances.ids:
            instances.in_state(id, "terminated")
    for vpc, subnets in made:
        for subnet in subnets:
            ec2.delete_subnet(SubnetId=subnet)
        ec2.delete_vpc(VpcId=vpc)


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


def test_a_subnet_is_free_again_when_its_hosts_are_gone(instances, vpcs):
    first, second = (vpcs("172.20.0.0/16", f"172.20.0.0/{size}")[0] for size in (24, 20))
    one = instances.request(**in_subnet(first))[0]
    with pytest.raises(ClientError) as refused:
        instances.request(**in_subnet(second))
    error = refused.value.response["Error"]
    assert error["Code"] == "UnsupportedOperation"
    assert one["InstanceId"] in error["Message"]
    instances.ec2.terminate_instances(InstanceIds=[one["InstanceId"]])
    instances.in_state(one["InstanceId"], "terminated")
    again = instances.up(**in_subnet(second, public=True))[0]
    wait_until(lambda: reaches(instances, again, again["PrivateIpAddress"]), "the host itself")


@pytest.mark.parametrize("block", ["8.8.0.0/16", "100.64.0.0/16", "{lab}"])
def test_addresses_that_the_lab_cannot_have(instances, vpcs, block):
    subnet = vpcs(*[block.format(lab=instances.lab.network)] * 2)[0]
    with pytest.raises(ClientError) as refused:
        instances.request(**in_subnet(subnet))
    assert refused.value.response["Error"]["Code"] == "UnsupportedOperation"
