from __future__ import annotations

import threading
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moto.ec2.models import EC2Backend

from clusterctl.domain.cluster import NodeState
from clusterctl.domain.errors import AwsError, UsageError
from clusterctl.ec2 import tags
from clusterctl.ec2.health import impaired_checks
from clusterctl.ec2.instances import (
    as_cluster,
    find_every_cluster,
    find_instances,
    launched_with,
    read_instance,
    tag,
)
from clusterctl.lab.faults.kinds import Boot
from clusterctl.lab.faults.store import FAULTS
from clusterctl.lab.hosts.instances import LabInstance
from tests.moto_ec2 import NEW_IMAGE


def launch(client, cluster, count, first=0, **more):
    labels = {
        tags.CLUSTER: cluster,
        tags.FIRST_INDEX: str(first),
        tags.GPUS: "8",
        tags.USER: "ubuntu",
        **more,
    }
    made = client.run_instances(
        ImageId=NEW_IMAGE,
        InstanceType="p4d.24xlarge",
        MinCount=count,
        MaxCount=count,
        TagSpecifications=[{"ResourceType": "instance", "Tags": tags.tag_list(labels)}],
    )
    return [instance["InstanceId"] for instance in made["Instances"]]


def find_cluster(client, name):
    return as_cluster(client, name, find_instances(client, name))


def test_clusters_and_their_nodes_by_index_whatever_launched_them(client):
    later = launch(client, "demo", 2, first=2)
    earlier = launch(client, "demo", 2, first=0)
    launch(client, "demo2", 2)
    client.terminate_instances(InstanceIds=launch(client, "gone", 1))
    client.run_instances(ImageId=NEW_IMAGE, MinCount=1, MaxCount=1)
    cluster = find_cluster(client, "demo")
    assert [node.instance_id for node in cluster.nodes] == [*earlier, *later]
    assert [node.name for node in cluster.nodes] == ["demo-0", "demo-1", "demo-2", "demo-3"]
    assert cluster.head.instance_id == earlier[0]
    described = (cluster.name, cluster.region, cluster.ssh_user, cluster.gpus)
    assert described == ("demo", "us-east-1", "ubuntu", 32)
    # EC2's wildcards in names have no effect.
    assert [find_instances(client, name) for name in ("dem", "gone")] == [(), ()]
    found = [(name, len(there)) for name, there in find_every_cluster(client).items()]
    assert found == [("demo", 4), ("demo2", 2)]


def test_what_is_stopped_is_part_of_it_and_what_is_terminated_is_not(client):
    ids = launch(client, "demo", 3)
    client.get_waiter("instance_running").wait(InstanceIds=ids, WaiterConfig={"Delay": 0.1})
    client.terminate_instances(InstanceIds=ids[:1])
    client.stop_instances(InstanceIds=ids[1:2])
    client.get_waiter("instance_stopped").wait(InstanceIds=ids[1:2], WaiterConfig={"Delay": 0.1})
    states = [node.state for node in find_cluster(client, "demo").nodes]
    assert states == [NodeState.STOPPED, NodeState.RUNNING]
    assert len(find_instances(client, "demo", states=())) == 3


def test_more_than_one_page(client):
    ids = launch(client, "demo", 12)

    class SmallPages:
        meta = client.meta

        def get_paginator(self, operation):
            pages = client.get_paginator(operation)

            class Pages:
                def paginate(self, **arguments):
                    assert arguments["PaginationConfig"] == {"PageSize": 1000}
                    assert "InstanceIds" not in arguments
                    arguments["PaginationConfig"] = {"PageSize": 5}
                    return pages.paginate(**arguments)

            return Pages()

    found = find_cluster(SmallPages(), "demo")
    assert [node.instance_id for node in found.nodes] == ids


def test_launches_are_found_by_token_even_when_terminated(client):
    ids = launch(client, "demo", 1, **{tags.LAUNCH: "t1"})
    launch(client, "demo", 1, first=1, **{tags.LAUNCH: "t2"})
    client.terminate_instances(InstanceIds=ids)
    found = launched_with(client, ["t1", "t2", "t3"])
    assert {one.launch_token for one in found} == {"t1", "t2"}
    assert launched_with(client, []) == ()


DESCRIBED = {
    "InstanceId": "i-1",
    "State": {"Name": "pending"},
    "InstanceType": "p4d.24xlarge",
    "LaunchTime": datetime(2026, 11, 1, tzinfo=timezone.utc),
    "AmiLaunchIndex": 2,
}


@pytest.mark.parametrize(
    ("labels", "index", "gpus", "user"),
    [
        ({tags.FIRST_INDEX: "4", tags.GPUS: "8", tags.USER: "ec2-user"}, 6, 8, "ec2-user"),
        ({}, 2, 0, "ubuntu"),
        ({tags.FIRST_INDEX: "x", tags.GPUS: "-1", tags.USER: ""}, 2, 0, "ubuntu"),
        ({tags.USER: "me\n    ProxyCommand id"}, 2, 0, "ubuntu"),
        ({tags.USER: "-oProxyCommand=id"}, 2, 0, "ubuntu"),
        ({tags.USER: "%r@elsewhere"}, 2, 0, "ubuntu"),
        ({tags.FIRST_INDEX: "\N{SUPERSCRIPT TWO}", tags.GPUS: "٤"}, 2, 0, "ubuntu"),
    ],
)
def test_tags_that_somebody_edited_hide_no_instance(labels, index, gpus, user):
    found = read_instance({**DESCRIBED, "Tags": tags.tag_list({tags.CLUSTER: "demo", **labels})})
    assert (found.node.index, found.node.gpus, found.ssh_user) == (index, gpus, user)
    assert (found.node.private_ip, found.node.public_ip) == ("", None)


VOLUMES = "Client.VolumeLimitExceeded"


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ({"Code": VOLUMES, "Message": f"{VOLUMES}: too many"}, f"{VOLUMES}: too many"),
        ({"Code": VOLUMES, "Message": "too many"}, f"{VOLUMES}: too many"),
        ({"Code": VOLUMES, "Message": ""}, VOLUMES),
        ({"Message": "too many"}, "too many"),
        (None, ""),
    ],
)
def test_the_code_of_a_reason_is_said_once(reason, text):
    assert read_instance({**DESCRIBED, "StateReason": reason}).state_reason == text


@pytest.mark.parametrize(
    ("text", "indices"),
    [
        ("0-3", (0, 1, 2, 3)),
        ("0-1 3", (0, 1, 3)),
        ("2", (2,)),
        ("2-2", (2,)),
        ("", ()),
        ("0", (0,)),
        ("3-0", ()),
        ("-1", ()),
        ("0-999999999", ()),
    ],
)
def test_the_indices_of_a_tag(text, indices):
    assert tags.read_indices(text) == indices


@given(st.sets(st.integers(0, 300), min_size=1))
def test_indices_survive_the_tag_or_are_too_many_gaps(indices):
    try:
        text = tags.indices_text(sorted(indices))
    except UsageError as refused:
        assert "too many gaps" in refused.message
    else:
        assert tags.read_indices(text) == tuple(sorted(indices))
        assert len(text) <= 256


def test_status_checks_are_asked_of_a_hundred_at_a_time(client):
    made, asked = launch(client, "demo", 101), []
    client.meta.events.register(
        "provide-client-params.ec2.DescribeInstanceStatus",
        lambda params, **_: asked.append(params["InstanceIds"]),
    )
    assert impaired_checks(client, made) == {}
    assert [len(ids) for ids in asked] == [100, 1]
    assert sum(asked, []) == made


def test_more_gaps_than_a_tag_holds_are_refused(client):
    with pytest.raises(UsageError, match="too many gaps"):
        tags.indices_text(range(0, 256, 2))
    with pytest.raises(UsageError, match="too many gaps"):
        _ = tags.Unfinished(add=tuple(range(1, 64, 2)), replace=tuple(range(128, 256, 2))).text
    made = launch(client, "demo", 1)
    with pytest.raises(AwsError, match="256 characters"):
        tag(client, made, {tags.NODES: "0 2 " * 65})


def test_what_is_retired_or_no_longer_wanted_is_no_member(client):
    launch(client, "demo", 3, **{tags.NODES: "0-1 2-2"})
    launch(client, "demo", 1, first=7, **{tags.NODES: "0-7"})
    launch(client, "demo", 1, first=1, **{tags.NODES: "0-2", tags.RETIRED: "yes"})
    assert [node.index for node in find_cluster(client, "demo").nodes] == [0, 1, 2]
    assert len(find_instances(client, "demo")) == 5


def test_an_answer_shows_only_what_was_asked_for(client, monkeypatch):
    """This holds if an instance's state changes while the answer is being written, too."""
    describe = EC2Backend.describe_instances

    def run(one):
        with LabInstance.transition:
            one.enter("running", "")

    def meanwhile(backend, filters):
        found = describe(backend, filters)
        thread = threading.Thread(target=run, args=found[0].instances)
        thread.start()
        thread.join(0.3)
        return found

    FAULTS.add(Boot(slow_s=600))
    launch(client, "demo", 1)
    monkeypatch.setattr(EC2Backend, "describe_instances", meanwhile)
    found = find_instances(client, "demo", ("pending",))
    assert [one.node.state for one in found] == [NodeState.PENDING]
