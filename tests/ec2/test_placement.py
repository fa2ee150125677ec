"""The cluster's placement group: made, waited for, used, and deleted last."""

from __future__ import annotations

import time

import pytest

from clusterctl.domain.errors import AwsError, ClusterctlError
from clusterctl.ec2 import cluster_resources
from clusterctl.ec2.cluster_resources import (
    PlacementGroup,
    await_available,
    delete_placement_groups,
    find_placement_groups,
)
from clusterctl.ec2.launch.request import tagged
from clusterctl.ec2.tags import CLUSTER


def make(client, name="demo", group="clusterctl-demo"):
    client.create_placement_group(
        GroupName=group,
        Strategy="cluster",
        TagSpecifications=tagged(["placement-group"], {CLUSTER: name}),
    )


class States:
    """A client to whom the group shows these states, one after the other."""

    def __init__(self, *states):
        self._states = list(states)

    def describe_placement_groups(self, **_):
        state = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        groups = [{"GroupName": "clusterctl-demo", "State": state}] if state else []
        return {"PlacementGroups": groups}


def test_only_the_clusters_own(client):
    make(client)
    make(client, "other", "clusterctl-other")
    client.create_placement_group(GroupName="by-hand", Strategy="cluster")
    assert [one.name for one in find_placement_groups(client, "demo")] == ["clusterctl-demo"]


def test_one_that_is_deleted_is_none():
    assert find_placement_groups(States("deleted"), "demo") == ()
    assert find_placement_groups(States("deleting"), "demo") == (
        PlacementGroup("clusterctl-demo", "deleting"),
    )


def test_it_is_waited_for_until_it_can_be_used(client):
    make(client)
    await_available(client, "demo")
    [group] = find_placement_groups(client, "demo")
    assert group.state == "available"


@pytest.mark.parametrize("states", [("", "pending", "available"), ("available",)])
def test_one_that_takes_a_moment(states):
    await_available(States(*states), "demo")


@pytest.mark.parametrize(
    ("state", "said"), [("pending", "pending"), ("", "EC2 does not show it"), ("deleting", "del")]
)
def test_one_that_never_comes(monkeypatch, state, said):
    monkeypatch.setattr(cluster_resources, "AVAILABLE_WITHIN_S", 0.0)
    with pytest.raises(ClusterctlError) as caught:
        await_available(States(state), "demo")
    assert said in caught.value.message
    assert "--no-placement-group" in caught.value.hint


def test_deleted_with_what_is_its_own_only(client):
    make(client)
    make(client, "other", "clusterctl-other")
    assert delete_placement_groups(client, "demo", 0) == ("clusterctl-demo",)
    assert delete_placement_groups(client, "demo", 0) == ()
    assert len(find_placement_groups(client, "other")) == 1


class InUse(States):
    """A group that instances are in for a while yet; `after`: what EC2 says then."""

    def __init__(self, times, after=""):
        super().__init__("available")
        self.refusals = ["InvalidPlacementGroup.InUse"] * times + ([after] if after else [])

    def delete_placement_group(self, **_):
        if self.refusals:
            raise AwsError(self.refusals.pop(0), "in use")


@pytest.mark.parametrize("after", ["", "InvalidPlacementGroup.Unknown"])
def test_as_long_as_it_is_in_use_it_is_tried_again(monkeypatch, after):
    monkeypatch.setattr(cluster_resources.time, "sleep", lambda _: None)
    client = InUse(3, after)
    assert delete_placement_groups(client, "demo", 60) == ("clusterctl-demo",)
    assert client.refusals == []


@pytest.mark.parametrize(
    ("client", "code"),
    [
        (InUse(9), "InvalidPlacementGroup.InUse"),
        (InUse(0, "UnauthorizedOperation"), "UnauthorizedOperation"),
    ],
)
def test_and_not_for_ever(monkeypatch, client, code):
    start = time.monotonic()
    monkeypatch.setattr(
        cluster_resources.time, "monotonic", lambda: start + 9 - len(client.refusals)
    )
    monkeypatch.setattr(cluster_resources.time, "sleep", lambda _: None)
    with pytest.raises(AwsError) as caught:
        delete_placement_groups(client, "demo", 3)
    assert caught.value.code == code
