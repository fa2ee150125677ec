"""The values of a filter are alternatives, whatever other tags a resource has."""

from __future__ import annotations

import pytest

from clusterctl.ec2 import tags
from tests.operations.leaks import launch, leave_behind

LABELS = {
    "clusterctl:cluster": "demo",
    "Name": "clusterctl-demo",
    "owner": "somebody",
    "team": "a[1]",
}
KINDS = {
    "describe_key_pairs": ("KeyPairs", "KeyPairId", "key pair"),
    "describe_volumes": ("Volumes", "VolumeId", "volume"),
    "describe_addresses": ("Addresses", "AllocationId", "address"),
    "describe_network_interfaces": ("NetworkInterfaces", "NetworkInterfaceId", "network interface"),
    "describe_security_groups": ("SecurityGroups", "GroupId", "security group"),
    "describe_placement_groups": ("PlacementGroups", "GroupName", "placement group"),
}
FILTERS = [
    ("tag-key", ["clusterctl:cluster"], True),
    ("tag-key", ["clusterctl:cluster", "clusterctl:network"], True),
    ("tag-key", ["clusterctl:network", "no", "owner"], True),
    ("tag-key", ["clusterctl:network", "cluster*"], True),
    ("tag-key", ["clusterctl:network", "no"], False),
    ("tag:owner", ["nobody", "somebody"], True),
    ("tag:owner", ["nobody", "else"], False),
    ("tag:team", ["a[1]"], True),
    ("tag:team", ["[a]*"], False),
]


@pytest.fixture
def made(client):
    """Make one resource of every kind, with more tags than a filter names."""
    made = leave_behind(client, None)
    [placement] = client.describe_placement_groups(GroupNames=[made["placement group"]])[
        "PlacementGroups"
    ]
    ids = [one for kind, one in made.items() if kind != "placement group"]
    client.create_tags(Resources=[*ids, placement["GroupId"]], Tags=tags.tag_list(LABELS))
    return made


@pytest.mark.parametrize("operation", KINDS)
def test_any_of_the_values_will_do(client, made, operation):
    answer, key, kind = KINDS[operation]
    for name, values, passes in FILTERS:
        found = getattr(client, operation)(Filters=[{"Name": name, "Values": values}])[answer]
        assert [one[key] for one in found] == ([made[kind]] if passes else []), (name, values)


@pytest.mark.parametrize(
    ("name", "values"), [("tag-key", ["clusterctl:network", "owner"]), ("tag:team", ["a[1]*"])]
)
def test_instances_by_several_values(client, name, values):
    node = launch(client, "demo")
    client.create_tags(Resources=[node], Tags=tags.tag_list(LABELS))
    wanted = [{"Name": name, "Values": values}]
    [found] = client.describe_instances(Filters=wanted)["Reservations"]
    assert [one["InstanceId"] for one in found["Instances"]] == [node]
