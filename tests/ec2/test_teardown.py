from __future__ import annotations

import time

import pytest

from clusterctl.domain.errors import AwsError, ClusterctlError
from clusterctl.ec2 import cluster_resources, tags
from clusterctl.ec2.cluster_resources import find_key_pairs
from clusterctl.ec2.instances import find_instances
from clusterctl.ec2.network.vpcs import find_groups, find_vpc
from tests.ec2.launching import PUBLIC_KEY, Trouble, refused
from tests.ec2.test_instances import launch


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(cluster_resources.time, "sleep", lambda _: None)


def test_all_of_a_cluster_and_nothing_else(client):
    launch(client, "demo", 3)
    kept = launch(client, "other", 1)
    looks = []
    assert cluster_resources.terminate_all(
        client, "demo", 60, lambda left: looks.append(len(left))
    ) == (
        "demo-0",
        "demo-1",
        "demo-2",
    )
    assert (looks[0], looks[-1]) == (3, 0)
    assert [found.node.instance_id for found in find_instances(client, "other")] == kept


def test_stopped_instances_are_terminated_too(client):
    ids = launch(client, "demo", 2)
    client.stop_instances(InstanceIds=ids)
    cluster_resources.terminate_all(client, "demo", 60)
    assert find_instances(client, "demo") == ()


def test_instances_that_show_late_are_terminated_too(client):
    launch(client, "demo", 1)

    def looked(left):
        if left and len(find_instances(client, "demo", ())) == 1:
            launch(client, "demo", 1, first=1)

    cluster_resources.terminate_all(client, "demo", 60, looked)
    assert find_instances(client, "demo") == ()


def test_an_id_that_ec2_has_forgotten_does_not_save_the_others(client):
    launch(client, "demo", 3)
    trouble = Trouble(client, "terminate_instances", *[refused("InvalidInstanceID.NotFound")] * 2)
    cluster_resources.terminate_all(trouble, "demo", 60)
    # The first for all, the second for one alone, whose turn comes again with the next look.
    assert [len(request["InstanceIds"]) for request in trouble.requests][:4] == [3, 1, 1, 1]


def test_what_does_not_end_in_time(client):
    launch(client, "demo", 2)
    ignored = {"TerminatingInstances": []}
    deaf = Trouble(client, "terminate_instances")
    deaf._call = lambda **_: ignored
    with pytest.raises(ClusterctlError) as caught:
        cluster_resources.terminate_all(deaf, "demo", 0.0)
    assert "demo-0, demo-1" in caught.value.message
    assert "clusterctl down demo" in caught.value.hint


def make_group(client, cluster="demo"):
    return client.create_security_group(
        GroupName=f"clusterctl-{cluster}",
        Description="x",
        VpcId=find_vpc(client).vpc_id,
        TagSpecifications=[
            {"ResourceType": "security-group", "Tags": tags.tag_list({tags.CLUSTER: cluster})}
        ],
    )["GroupId"]


def test_a_group_that_is_still_used_is_tried_again(client):
    group = make_group(client)
    other = make_group(client, "other")
    trouble = Trouble(client, "delete_security_group", *[refused("DependencyViolation")] * 3)
    assert cluster_resources.delete_groups(trouble, "demo", 60) == (group,)
    assert len(trouble.requests) == 4
    assert find_groups(client, "demo") == ()
    assert [found.group_id for found in find_groups(client, "other")] == [other]


def test_a_group_that_stays_used(client):
    make_group(client)
    trouble = Trouble(client, "delete_security_group", *[refused("DependencyViolation")] * 3)
    with pytest.raises(AwsError) as caught:
        cluster_resources.delete_groups(trouble, "demo", 0.0)
    assert caught.value.code == "DependencyViolation"


def test_a_group_that_is_gone_meanwhile(client):
    make_group(client)
    error = refused("InvalidGroup.NotFound")
    cluster_resources.delete_groups(Trouble(client, "delete_security_group", error), "demo", 60)


def test_key_pairs(client):
    for cluster in ("demo", "other"):
        labels = tags.tag_list({tags.CLUSTER: cluster})
        client.import_key_pair(
            KeyName=f"clusterctl-{cluster}",
            PublicKeyMaterial=PUBLIC_KEY.encode(),
            TagSpecifications=[{"ResourceType": "key-pair", "Tags": labels}],
        )
    cluster_resources.delete_key_pairs(client, ["clusterctl-demo"])
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

    cluster_resources.await_launches(Late(), ["t"], time.time() + 60)
    assert len(looks) == 3


def test_a_launch_that_never_comes_is_not_waited_for_longer(client):
    cluster_resources.await_launches(client, ["t"], time.time() - 1)
    cluster_resources.await_launches(client, [], time.time() + 60)
