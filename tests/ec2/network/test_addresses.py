"""The head node's elastic address: allocated once, moved to a new head node, released."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_network

import pytest
from botocore.exceptions import ClientError

from clusterctl.domain.cluster import ClusterSpec
from clusterctl.domain.errors import AwsError
from clusterctl.domain.findings import Severity
from clusterctl.domain.timeouts import Timeouts
from clusterctl.ec2.launch.capacity import places
from clusterctl.ec2.launch.plan import allocate_steps
from clusterctl.ec2.launch.request import tagged
from clusterctl.ec2.network.vpcs import ElasticAddress, Subnet
from clusterctl.ec2.resources import (
    ResourceKind,
    delete,
    delete_all,
    find_addresses,
    find_resources,
    list_kind,
)
from clusterctl.ec2.tags import CLUSTER
from clusterctl.lab.ec2.local_zones import LOCAL_ZONE, REGION
from clusterctl.lab.faults.kinds import Boot
from clusterctl.lab.hosts.instances import all_lab_instances
from tests.ec2.launching import TYPE, faults, launches_with
from tests.moto_ec2 import clients_of

__all__ = ["faults"]

SPEC = ClusterSpec("demo", 2, TYPE)


def allocate(client, name):
    labels = tagged(["elastic-ip"], {CLUSTER: name})
    return client.allocate_address(Domain="vpc", TagSpecifications=labels)["AllocationId"]


def release(client, name="demo"):
    """Release the cluster's addresses as `down` does, and return them."""
    found = find_resources(client, name, ResourceKind.ADDRESS)
    return tuple(one.name for one in delete_all(client, found, ResourceKind.ADDRESS, 0.0))


def test_only_the_clusters_own(client):
    mine, _ = allocate(client, "demo"), allocate(client, "other")
    client.allocate_address(Domain="vpc")
    [found] = find_addresses(client, "demo")
    assert found.allocation_id == mine
    assert (found.association_id, found.interface_id) == ("", "")
    assert release(client) == (found.public_ip,)
    assert release(client) == ()
    assert len(find_addresses(client, "other")) == 1


@pytest.mark.parametrize("done", [-2, -1])
def test_a_launch_cut_off_uses_the_address_of_before(launches, done):
    """The launch is cut off before it starts, and between the launch and the address."""
    plan = launches.plan(SPEC)
    assert [step.operation for step in plan.steps[-3:]] == [
        "allocate_address",
        "run_instances",
        "associate_address",
    ]
    launches.carry_out(replace(plan, steps=plan.steps[:done]))
    [before] = find_addresses(launches.client, "demo")
    members = launches.up(SPEC, "second")
    [address] = find_addresses(launches.client, "demo")
    assert address.interface_id == members[0].interface_id
    assert address.allocation_id == before.allocation_id
    assert len(launches.sent) == 1
    assert launches.plan(SPEC).steps == ()


def test_without_an_address_left_nothing_is_launched(launches):
    before = launches.plan(SPEC)
    others = [launches.client.allocate_address(Domain="vpc") for _ in range(5)]
    with pytest.raises(AwsError) as caught:
        launches.carry_out(before)
    assert caught.value.code == "AddressLimitExceeded"
    assert "in this region under Service Quotas, Amazon EC2: L-0263D0A3" in caught.value.hint
    assert launches.sent == []
    [found] = [one for one in launches.plan(SPEC).findings if one.severity is Severity.ERROR]
    assert found.check == "quota.addresses"
    assert "5 are in use, and the quota EC2-VPC Elastic IPs (L-0263D0A3) is 5" in found.message
    launches.client.release_address(AllocationId=others[0]["AllocationId"])
    assert len(launches.up(SPEC)) == 2


def test_a_launch_that_fails_keeps_no_address(launches):
    launches.refuse("UnauthorizedOperation", 403)
    with pytest.raises(AwsError):
        launches.up(SPEC)
    assert find_addresses(launches.client, "demo") == ()
    # The outcome of this launch is unknown: its nodes may need the address.
    launches.refuse("RequestTimeout", times=5)
    with pytest.raises(AwsError):
        launches.up(SPEC, "second")
    [kept] = find_addresses(launches.client, "demo")
    members = launches.up(SPEC, "third")
    [address] = find_addresses(launches.client, "demo")
    assert (address.allocation_id, address.interface_id) == (
        kept.allocation_id,
        members[0].interface_id,
    )


def test_a_head_node_that_starts_slowly_gets_its_address_when_it_runs(launches, faults):
    launches.timeouts = Timeouts(launches.clock, started_s=0.0)
    faults(Boot(nodes=(0,), slow_s=3600))
    refused = []

    def answered(parsed, **_):
        refused.append((parsed.get("Error") or {}).get("Code"))
        for one in all_lab_instances():
            one.booted_at = float("-inf")  # long enough ago

    launches.client.meta.events.register(
        "after-call.ec2.AssociateAddress", answered, unique_id="refused"
    )
    try:
        head, _ = launches.up(SPEC)
    finally:
        launches.client.meta.events.unregister(
            "after-call.ec2.AssociateAddress", unique_id="refused"
        )
    assert refused[0] == "InvalidInstanceID"
    assert refused[-1] is None
    [address] = find_addresses(launches.client, "demo")
    assert address.interface_id == head.interface_id


class Refusing:
    """A client both calls of which fail with these codes."""

    can_paginate = staticmethod(lambda operation: False)

    def __init__(self, disassociate="", release=""):
        self.codes = {"disassociate": disassociate, "release": release}
        self.released = []

    def describe_addresses(self, **_):
        return {
            "Addresses": [
                {"AllocationId": "eipalloc-1", "PublicIp": "198.51.100.1", "AssociationId": "a"}
            ]
        }

    def disassociate_address(self, AssociationId):
        self._answer("disassociate")

    def release_address(self, AllocationId, NetworkBorderGroup=""):
        self._answer("release")
        self.released.append(AllocationId)

    def _answer(self, call):
        if self.codes[call]:
            raise AwsError(self.codes[call], "no")


def test_what_is_gone_already_is_no_error():
    client = Refusing("InvalidAssociationID.NotFound", "InvalidAllocationID.NotFound")
    assert find_addresses(client, "demo") == (ElasticAddress("eipalloc-1", "198.51.100.1", "a"),)
    assert release(client) == ("198.51.100.1",)
    client = Refusing("InvalidAssociationID.NotFound")
    release(client)
    assert client.released == ["eipalloc-1"]


@pytest.mark.parametrize(
    "client", [Refusing(disassociate="AuthFailure"), Refusing(release="UnauthorizedOperation")]
)
def test_what_is_refused_is_said(client):
    with pytest.raises(AwsError):
        release(client)
    assert client.released == []


@pytest.mark.parametrize(
    ("zone", "group"),
    [
        ("us-east-1-atl-2a", "us-east-1-atl-2"),
        ("us-west-2-lax-1b", "us-west-2-lax-1"),
        ("us-east-1a", None),
        ("us-gov-west-1c", None),
    ],
)
def test_an_address_comes_from_where_its_node_is(launches, zone, group):
    """EC2 associates no address of the region with a node in a Local Zone, nor the reverse."""
    [step] = allocate_steps(launches.plan(SPEC).observed, zone)
    assert step.arguments.get("NetworkBorderGroup") == group


@pytest.fixture
def in_local_zone(client, tmp_path, monkeypatch):
    """Launches in us-west-2, and a spec for a Local Zone's subnet of its default VPC."""
    there = clients_of(client.meta.endpoint_url).in_region(REGION).ec2
    making = launches_with(there, tmp_path, monkeypatch)
    launches = next(making)
    [vpc] = launches.client.describe_vpcs()["Vpcs"]
    block = str([*ip_network(vpc["CidrBlock"]).subnets(new_prefix=24)][-1])
    made = launches.client.create_subnet(
        VpcId=vpc["VpcId"], CidrBlock=block, AvailabilityZone=LOCAL_ZONE
    )["Subnet"]
    launches.client.get_waiter("subnet_available").wait(SubnetIds=[made["SubnetId"]])
    spec = ClusterSpec("demo", 2, "c5.2xlarge", subnet_id=made["SubnetId"], private=True)
    yield launches, spec
    for one in find_addresses(launches.client, "demo"):
        pytest.fail(f"{one.public_ip} is left")
    next(making, None)


def test_a_cluster_in_a_local_zone_gets_and_gives_back_an_address_from_there(in_local_zone):
    """EC2 has no other for its nodes, and does not find it where the request does not say it."""
    launches, spec = in_local_zone
    head, _ = launches.up(spec)
    assert head.node.zone == LOCAL_ZONE
    [address] = find_addresses(launches.client, "demo")
    assert (address.border_group, address.interface_id) == ("us-west-2-lax-1", head.interface_id)
    # As `gc` lists it, too.
    clients = clients_of(launches.client.meta.endpoint_url).in_region(REGION)
    [listed] = list_kind(clients, REGION, ResourceKind.ADDRESS)
    without_group = replace(listed, details=replace(address, border_group=""))
    with pytest.raises(AwsError, match=r"InvalidAddress\.NotFound|not found"):
        delete(launches.client, without_group, 0.0)
    delete(launches.client, listed, 0.0)
    assert find_addresses(launches.client, "demo") == ()


def test_a_launch_that_fails_in_a_local_zone_gives_the_address_back(in_local_zone):
    launches, spec = in_local_zone
    launches.refuse("InvalidParameterValue")
    with pytest.raises(AwsError):
        launches.up(spec)
    assert any(told.startswith("ReleaseAddress") for told in launches.told)


def test_an_address_of_the_region_is_not_for_a_local_zone(in_local_zone):
    """Nor is a volume filled at a rate there."""
    launches, spec = in_local_zone
    client = launches.client
    [node, _] = launches.up(replace(spec, private=False))
    wrong = client.allocate_address(Domain="vpc")
    assert wrong["NetworkBorderGroup"] == REGION
    with pytest.raises(ClientError, match="network border groups"):
        client.associate_address(
            AllocationId=wrong["AllocationId"], NetworkInterfaceId=node.interface_id
        )
    client.release_address(AllocationId=wrong["AllocationId"])
    [*_, sent] = launches.sent
    for disk in sent["BlockDeviceMappings"]:
        disk["Ebs"].update(VolumeInitializationRate=100)
    with pytest.raises(ClientError, match="Local Zones"):
        client.run_instances(**{**sent, "ClientToken": "another"})
    with pytest.raises(ClientError, match="network border group"):
        client.allocate_address(Domain="vpc", NetworkBorderGroup="us-west-2-sea-1")


@pytest.mark.parametrize(
    ("zones", "without", "wanted", "kept"),
    [
        (["us-west-2-lax-1a", "us-west-2a", "us-west-2b"], [], None, ["us-west-2a", "us-west-2b"]),
        (["us-west-2-lax-1a", "us-west-2a"], [], "us-west-2-lax-1a", ["us-west-2-lax-1a"]),
        # Nobody named the Local Zone, which alone offers the type.
        (["us-west-2-lax-1a", "us-west-2a"], ["us-west-2a"], None, []),
        (["us-west-2-lax-1a", "us-west-2-lax-1b"], [], None,
         ["us-west-2-lax-1a", "us-west-2-lax-1b"]),
        (["us-west-2-lax-1a", "us-west-2-las-1a"], [], None, ["us-west-2-las-1a"]),
    ],
)  # fmt: skip
def test_all_places_of_a_launch_take_the_same_address(zones, without, wanted, kept):
    subnets = [Subnet(zone, "vpc", zone, "10.0.0.0/24", 100, False) for zone in zones]
    offers = {"c5.2xlarge": frozenset(zones) - set(without)}
    found = places(["c5.2xlarge"], offers, subnets, wanted, 2)
    assert [place.zone for place in found] == kept
