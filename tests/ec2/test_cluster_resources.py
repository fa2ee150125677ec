"""The resources of a cluster: found by its tag, waited for, and removed without any others."""

from __future__ import annotations

import pytest

from clusterctl.domain.errors import AwsError, ClusterctlError
from clusterctl.domain.timeouts import Polling, Timeouts
from clusterctl.ec2 import resources, tags
from clusterctl.ec2.instances import find_instances
from clusterctl.ec2.launch.request import tagged
from clusterctl.ec2.network.vpcs import find_vpc
from clusterctl.ec2.resources import (
    ResourceKind,
    await_available,
    delete_all,
    find_key_pairs,
    find_resources,
    terminate,
    terminate_each,
)
from tests.clock import FakeClock, LabClock
from tests.ec2.launching import PUBLIC_KEY, Trouble, refused
from tests.ec2.test_instances import launch

NOT_FOUND = "InvalidInstanceID.NotFound"
KEY_PAIR, GROUP = ResourceKind.KEY_PAIR, ResourceKind.SECURITY_GROUP
PLACEMENT_GROUP = ResourceKind.PLACEMENT_GROUP


def all_of_them(instance):
    return True


def within(seconds):
    return Polling(LabClock(), seconds)


def delete_of_demo(client, kind, *timeout):
    """Delete the cluster's resources of this kind, and return their names or ids."""
    found = delete_all(client, find_resources(client, "demo", kind), kind, *timeout)
    return tuple(one.id if kind is GROUP else one.name for one in found)


class Protecting:
    """EC2 with three instances, of which it lets all but one end."""

    def __init__(self, code):
        self.code, self.ended = code, []

    def terminate_instances(self, InstanceIds):
        if "i-1" in InstanceIds:
            raise refused(self.code)
        self.ended += InstanceIds


def test_one_instance_that_may_not_be_ended_keeps_no_other_from_it_in_gc_and_all_in_down():
    for code in ("OperationNotPermitted", "UnauthorizedOperation", "UnsupportedOperation"):
        ec2, ids = Protecting(code), ["i-0", "i-1", "i-2"]
        assert {one: error.code for one, error in terminate_each(ec2, ids).items()} == {"i-1": code}
        assert ec2.ended == ["i-0", "i-2"]
        ec2 = Protecting(code)
        with pytest.raises(AwsError):
            terminate(ec2, "demo", ids, within(1))
        assert ec2.ended == [], "the command has yet to say what it could not do"


def test_all_of_a_cluster_and_nothing_else(client):
    ids = launch(client, "demo", 3)
    kept = launch(client, "other", 1)
    client.get_waiter("instance_running").wait(InstanceIds=ids, WaiterConfig={"Delay": 0.1})
    client.stop_instances(InstanceIds=ids[:1])
    looks = []

    def look(left):
        looks.append(len(left))
        # Instances that EC2 shows late are terminated as well.
        if left and len(find_instances(client, "demo", ())) == 3:
            launch(client, "demo", 1, first=3)

    ended = resources.terminate(client, "demo", all_of_them, within(60), on_poll=look)
    assert ended == ("demo-0", "demo-1", "demo-2", "demo-3")
    assert (looks[0], looks[-1]) == (3, 0)
    assert find_instances(client, "demo") == ()
    assert [found.node.instance_id for found in find_instances(client, "other")] == kept


def test_an_id_that_ec2_has_forgotten_does_not_save_the_others(client):
    launch(client, "demo", 3)
    trouble = Trouble(client, "terminate_instances", refused(NOT_FOUND), refused(NOT_FOUND))
    resources.terminate(trouble, "demo", all_of_them, within(60))
    # The first request is for all, the second for one alone, which the next poll repeats.
    assert [len(request["InstanceIds"]) for request in trouble.requests][:4] == [3, 1, 1, 1]


def test_what_does_not_end_in_time(client):
    launch(client, "demo", 2)
    deaf = Trouble(client, "terminate_instances")
    deaf._call = lambda **_: {"TerminatingInstances": []}
    with pytest.raises(ClusterctlError) as caught:
        resources.terminate(deaf, "demo", all_of_them, within(0))
    assert "demo-0, demo-1" in caught.value.message
    assert "clusterctl down demo" in caught.value.hint


def test_a_request_that_ec2_does_not_carry_out_is_repeated(client):
    launch(client, "demo", 2)
    requests = []

    class DeafAtFirst:
        def __getattr__(self, name):
            return getattr(client, name)

        def terminate_instances(self, **request):
            requests.append(request)
            return client.terminate_instances(**request) if requests[1:] else {}

    ended = resources.terminate(DeafAtFirst(), "demo", all_of_them, within(60))
    assert ended == ("demo-0", "demo-1")
    assert find_instances(client, "demo") == ()


def make_group(client, cluster):
    return client.create_security_group(
        GroupName=f"clusterctl-{cluster}",
        Description="x",
        VpcId=find_vpc(client).vpc_id,
        TagSpecifications=tagged(["security-group"], {tags.CLUSTER: cluster}),
    )["GroupId"]


def test_a_group_that_is_still_used_is_tried_again_and_not_for_ever(client):
    group, other = make_group(client, "demo"), make_group(client, "other")
    in_use = [refused("DependencyViolation")] * 3
    with pytest.raises(AwsError) as caught:
        trouble = Trouble(client, "delete_security_group", *in_use)
        delete_of_demo(trouble, GROUP, 0.0)
    assert caught.value.code == "DependencyViolation"
    trouble = Trouble(
        client, "delete_security_group", *in_use, refused("InvalidGroup.NotFound"), after=False
    )
    # The group has disappeared meanwhile.
    assert delete_of_demo(trouble, GROUP, 60, FakeClock()) == (group,)
    assert len(trouble.requests) == 4
    assert delete_of_demo(client, GROUP, 60) == (group,)
    assert find_resources(client, "demo", GROUP) == ()
    assert [found.id for found in find_resources(client, "other", GROUP)] == [other]


def test_key_pairs(client):
    for cluster in ("demo", "other"):
        client.import_key_pair(
            KeyName=f"clusterctl-{cluster}",
            PublicKeyMaterial=PUBLIC_KEY.encode(),
            TagSpecifications=tagged(["key-pair"], {tags.CLUSTER: cluster}),
        )
    assert delete_of_demo(client, KEY_PAIR, 0.0) == ("clusterctl-demo",)
    assert find_key_pairs(client, "demo") == ()
    assert len(find_key_pairs(client, "other")) == 1


def test_waiting_for_a_launch_nobody_saw_the_answer_of(client):
    looks = []

    class Late:
        def __getattr__(self, name):
            looks.append(name)
            if len(looks) == 3:
                launch(client, "demo", 1, **{tags.LAUNCH: "t"})
            return getattr(client, name)

    clock = FakeClock()
    resources.await_launches(Late(), ["t"], 60, clock)
    assert len(looks) == 3
    resources.await_launches(client, [], 60, clock)
    assert clock.time() < 60
    # After the deadline, a launch that never shows is not waited for.
    resources.await_launches(client, ["u"], 60, clock)
    assert 60 <= clock.time() < 66


class States:
    """A client to which the placement group has these states, one after the other."""

    can_paginate = staticmethod(lambda operation: False)

    def __init__(self, *states):
        self._states = list(states)

    def describe_placement_groups(self, **_):
        state = self._states.pop(0) if len(self._states) > 1 else self._states[0]
        groups = [{"GroupName": "clusterctl-demo", "State": state}] if state else []
        return {"PlacementGroups": groups}


def test_a_placement_group_is_the_clusters_own(client):
    for name in ("demo", "other"):
        client.create_placement_group(
            GroupName=f"clusterctl-{name}",
            Strategy="cluster",
            TagSpecifications=tagged(["placement-group"], {tags.CLUSTER: name}),
        )
    client.create_placement_group(GroupName="by-hand", Strategy="cluster")
    await_available(client, "demo")
    [group] = find_resources(client, "demo", PLACEMENT_GROUP)
    assert (group.name, group.state) == ("clusterctl-demo", "available")
    assert delete_of_demo(client, PLACEMENT_GROUP, 0) == ("clusterctl-demo",)
    assert delete_of_demo(client, PLACEMENT_GROUP, 0) == ()
    assert len(find_resources(client, "other", PLACEMENT_GROUP)) == 1
    assert find_resources(States("deleted"), "demo", PLACEMENT_GROUP) == ()


def test_a_placement_group_that_takes_a_moment():
    await_available(States("", "pending", "available"), "demo", Timeouts(FakeClock()))


@pytest.mark.parametrize(
    ("state", "said"), [("pending", "pending"), ("", "EC2 does not show it"), ("deleting", "del")]
)
def test_a_placement_group_that_never_comes(state, said):
    clock = FakeClock()
    with pytest.raises(ClusterctlError) as caught:
        await_available(States(state), "demo", Timeouts(clock))
    assert 60 < clock.monotonic() < 66
    assert said in caught.value.message
    assert "--no-placement-group" in caught.value.hint


class InUse(States):
    """A client whose group is in use for some calls. `after`: EC2's error afterwards."""

    def __init__(self, times, after=""):
        super().__init__("available")
        self.refusals = ["InvalidPlacementGroup.InUse"] * times + ([after] if after else [])

    def delete_placement_group(self, **_):
        if self.refusals:
            raise AwsError(self.refusals.pop(0), "in use")


@pytest.mark.parametrize(
    ("client", "code"),
    [
        (InUse(3), None),
        (InUse(3, "InvalidPlacementGroup.Unknown"), None),
        (InUse(9), "InvalidPlacementGroup.InUse"),
        (InUse(0, "UnauthorizedOperation"), "UnauthorizedOperation"),
    ],
)
def test_as_long_as_a_placement_group_is_in_use_it_is_tried_again(client, code):
    """It is tried for five seconds."""
    clock = FakeClock()
    if code is None:
        assert delete_of_demo(client, PLACEMENT_GROUP, 5, clock) == ("clusterctl-demo",)
        assert client.refusals == []
        return
    with pytest.raises(AwsError) as caught:
        delete_of_demo(client, PLACEMENT_GROUP, 5, clock)
    assert caught.value.code == code
