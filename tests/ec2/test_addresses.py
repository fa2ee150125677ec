"""The head node's elastic address: made once, moved to a new head node, given back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.domain.errors import AwsError
from clusterctl.domain.spec import ClusterSpec
from clusterctl.ec2.addresses import ElasticAddress, find_addresses, release_addresses
from clusterctl.ec2.request import tagged
from clusterctl.ec2.tags import CLUSTER, RETIRED
from tests.ec2.launching import TYPE, launches

__all__ = ["launches"]

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
    assert release_addresses(client, "demo") == (found.public_ip,)
    assert release_addresses(client, "demo") == ()
    assert len(find_addresses(client, "other")) == 1


def test_a_launch_cut_off_before_its_address_gets_it_from_the_next(launches):
    plan = launches.plan(SPEC)
    assert [step.operation for step in plan.steps[-2:]] == ["allocate_address", "associate_address"]
    launches.carry_out(replace(plan, steps=plan.steps[:-2]))
    members = launches.up(SPEC, "second")
    [address] = find_addresses(launches.client, "demo")
    assert address.interface_id == members[0].interface_id
    assert len(launches.sent) == 1
    assert launches.plan(SPEC).steps == ()


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
    """A client for whom both calls are refused with these codes."""

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
    assert release_addresses(client, "demo") == ("198.51.100.1",)
    client = Refusing("InvalidAssociationID.NotFound")
    release_addresses(client, "demo")
    assert client.released == ["eipalloc-1"]


@pytest.mark.parametrize(
    "client", [Refusing(disassociate="AuthFailure"), Refusing(release="UnauthorizedOperation")]
)
def test_what_is_refused_is_said(client):
    with pytest.raises(AwsError):
        release_addresses(client, "demo")
    assert client.released == []


def test_what_ec2_says_of_one():
    [found] = find_addresses(Refusing(), "demo")
    assert found == ElasticAddress("eipalloc-1", "198.51.100.1", "a")
