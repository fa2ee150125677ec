"""The head node's elastic address: allocated once, moved to a new head node, released."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.domain.cluster import ClusterSpec
from clusterctl.domain.errors import AwsError
from clusterctl.domain.findings import Severity
from clusterctl.domain.timeouts import Timeouts
from clusterctl.ec2.launch.plan import allocate_steps
from clusterctl.ec2.launch.request import tagged
from clusterctl.ec2.network.vpcs import ElasticAddress, find_addresses, release_addresses
from clusterctl.ec2.tags import CLUSTER, RETIRED
from clusterctl.lab.faults.kinds import Boot
from clusterctl.lab.hosts.instances import all_lab_instances
from tests.ec2.launching import TYPE, faults, launches

__all__ = ["faults", "launches"]

SPEC = ClusterSpec("demo", 2, TYPE)


def allocate(client, name):
    labels = tagged(["elastic-ip"], {CLUSTER: name})
    return client.allocate_address(Domain="vpc", TagSpecifications=labels)["AllocationId"]


def test_only_the_clusters_own(client):
    mine, _ = allocate(client, "demo"), allocate(client, "other")
    client.allocate_address(Domain="vpc")
    [found] = find_addresses(client, "demo")
    assert found.allocation_id == mine
    assert (found.association_id, found.interface_id) == ("", "")
    assert release_addresses(client, find_addresses(client, "demo")) == (found.public_ip,)
    assert release_addresses(client, find_addresses(client, "demo")) == ()
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
    assert "--quota-code L-0263D0A3" in caught.value.hint
    assert launches.sent == []
    [found] = [one for one in launches.plan(SPEC).findings if one.severity is Severity.ERROR]
    assert found.check_id == "quota.addresses"
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


def test_a_new_head_node_takes_the_address_over(launches):
    old, _ = launches.up(SPEC)
    [before] = find_addresses(launches.client, "demo")
    launches.client.create_tags(
        Resources=[old.node.instance_id], Tags=[{"Key": RETIRED, "Value": "yes"}]
    )
    new, _ = launches.up(SPEC, "second")
    assert new.node.instance_id != old.node.instance_id
    [after] = find_addresses(launches.client, "demo")
    assert (after.public_ip, after.interface_id) == (before.public_ip, new.interface_id)


class Refusing:
    """A client both calls of which fail with these codes."""

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

    def release_address(self, AllocationId):
        self._answer("release")
        self.released.append(AllocationId)

    def _answer(self, call):
        if self.codes[call]:
            raise AwsError(self.codes[call], "no")


def test_what_is_gone_already_is_no_error():
    client = Refusing("InvalidAssociationID.NotFound", "InvalidAllocationID.NotFound")
    assert find_addresses(client, "demo") == (ElasticAddress("eipalloc-1", "198.51.100.1", "a"),)
    assert release_addresses(client, find_addresses(client, "demo")) == ("198.51.100.1",)
    client = Refusing("InvalidAssociationID.NotFound")
    release_addresses(client, find_addresses(client, "demo"))
    assert client.released == ["eipalloc-1"]


@pytest.mark.parametrize(
    "client", [Refusing(disassociate="AuthFailure"), Refusing(release="UnauthorizedOperation")]
)
def test_what_is_refused_is_said(client):
    with pytest.raises(AwsError):
        release_addresses(client, find_addresses(client, "demo"))
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
    [step] = allocate_steps(launches.plan(SPEC).seen, zone)
    assert step.arguments.get("NetworkBorderGroup") == group
