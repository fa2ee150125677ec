"""Placement groups, from pending to deleted."""

from __future__ import annotations

import pytest

from tests.lab.refusals import refused
from tests.lab.running import wait_until

pytestmark = pytest.mark.lab


@pytest.fixture
def group(once, request):
    """Return the name of an available group."""
    name = request.node.name
    tags = [{"Key": "clusterctl:cluster", "Value": name}]
    once.create_placement_group(
        GroupName=name,
        Strategy="cluster",
        TagSpecifications=[{"ResourceType": "placement-group", "Tags": tags}],
    )
    wait_until(lambda: state(once, name) == "available", f"{name} available")
    return name


def state(once, name):
    return once.describe_placement_groups(GroupNames=[name])["PlacementGroups"][0]["State"]


def found(once, **filters):
    wanted = [{"Name": name, "Values": [value]} for name, value in filters.items()]
    groups = once.describe_placement_groups(Filters=wanted)["PlacementGroups"]
    return [one["GroupName"] for one in groups]


def test_a_new_group_is_pending_for_a_while(once, instances):
    made = once.create_placement_group(GroupName="fresh", Strategy="cluster")["PlacementGroup"]
    assert made["State"] == "pending"
    code = refused(instances.request, Placement={"GroupName": "fresh"})[0]
    assert code == "InvalidPlacementGroup.Unknown"
    wait_until(lambda: state(once, "fresh") == "available", "fresh available")
    once.delete_placement_group(GroupName="fresh")


def test_groups_are_found_by_filters(once, group):
    assert found(once, **{"tag:clusterctl:cluster": group}) == [group]
    assert found(once, **{"tag-key": "clusterctl:cluster", "group-name": group}) == [group]
    assert found(once, **{"group-name": group[:8] + "*", "strategy": "cluster"}) == [group]
    assert found(once, **{"group-name": group, "state": "deleted"}) == []
    tags = once.describe_tags(Filters=[{"Name": "resource-type", "Values": ["placement-group"]}])[
        "Tags"
    ]
    assert group in [tag["Value"] for tag in tags]
    once.delete_placement_group(GroupName=group)
    assert found(once, **{"group-name": group}) == []


def test_what_is_refused(once):
    once.create_placement_group(GroupName="twice", Strategy="cluster")
    unknown, invalid = "InvalidPlacementGroup.Unknown", "InvalidParameterValue"
    colour = [{"Name": "colour", "Values": ["red"]}]
    for call, arguments, code in (
        ("create", {"GroupName": "twice"}, "InvalidPlacementGroup.Duplicate"),
        ("create", {"Strategy": "cluster"}, "MissingParameter"),
        ("create", {"GroupName": "x", "Strategy": "heap"}, invalid),
        ("create", {"GroupName": "x", "DryRun": True}, "DryRunOperation"),
        ("delete", {"GroupName": "no"}, unknown),
        ("delete", {"GroupName": "twice", "DryRun": True}, "DryRunOperation"),
    ):
        said = refused(getattr(once, f"{call}_placement_group"), **arguments)
        assert (said[0], said[2]) == (code, 412 if code == "DryRunOperation" else 400)
    assert refused(once.describe_placement_groups, GroupNames=["no"])[0] == unknown
    assert refused(once.describe_placement_groups, Filters=colour)[0] == invalid


def test_members_keep_the_group_and_keep_to_its_zone(once, group, instances):
    placement = {"GroupName": group, "AvailabilityZone": "us-east-1b"}
    one = instances.up(Placement=placement)[0]
    assert one["Placement"]["GroupName"] == group
    by_group = once.describe_instances(
        Filters=[{"Name": "placement-group-name", "Values": [group]}]
    )["Reservations"]
    assert [each["InstanceId"] for each in by_group[0]["Instances"]] == [one["InstanceId"]]
    elsewhere = {"GroupName": group, "AvailabilityZone": "us-east-1a"}
    code, text, status = refused(instances.request, Placement=elsewhere)
    assert (code, status) == ("InvalidPlacementGroup.InUse", 400)
    assert text == (
        f"The placement group '{group}' is in use in another availability zone: us-east-1b"
    )
    code, text, _ = refused(once.delete_placement_group, GroupName=group)
    assert code == "InvalidPlacementGroup.InUse"
    assert text == f"The placement group '{group}' is in use and may not be deleted."
    once.stop_instances(InstanceIds=[one["InstanceId"]])
    assert refused(once.delete_placement_group, GroupName=group)[0] == code
    instances.in_state(one["InstanceId"], "stopped")
    once.terminate_instances(InstanceIds=[one["InstanceId"]])
    instances.in_state(one["InstanceId"], "terminated")
    burstable = {"InstanceType": "t3.micro", "Placement": {"GroupName": group}}
    assert refused(instances.request, **burstable)[0] == "InvalidParameterCombination"
    once.delete_placement_group(GroupName=group)
