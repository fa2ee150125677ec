"""The plan: the difference between the cluster asked for and the account as it is."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from clusterctl.domain.cluster import ClusterSpec
from clusterctl.domain.errors import ClusterctlError, MissingTool, UsageError
from clusterctl.ec2.launch.plan import plan_launch
from clusterctl.ec2.launch.request import ResultOf
from clusterctl.ec2.network.vpcs import FOUND_RULE, GIVEN_RULE
from tests.ec2.observed import (
    GROUP,
    IMAGE,
    KEY_PAIR,
    NOTHING,
    PLAIN,
    PUBLIC_KEY,
    SPEC,
    instance,
    offering,
    settled,
    with_nodes,
)


def plan(seen, spec=SPEC):
    return plan_launch(settled(spec, seen), PUBLIC_KEY, "launch")


def lines(seen, spec=SPEC):
    return [step.describe() for step in plan(seen, spec).steps]


def run_requests(seen, spec=SPEC):
    steps = plan(seen, spec).steps
    return [step.arguments for step in steps if step.operation == "run_instances"]


def tags_of(request):
    kinds = [one["ResourceType"] for one in request["TagSpecifications"]]
    assert kinds == ["instance", "volume", "network-interface"]
    [labels] = {json.dumps(one["Tags"]) for one in request["TagSpecifications"]}
    return {tag["Key"]: tag["Value"] for tag in json.loads(labels)}


def test_from_nothing():
    assert lines(NOTHING) == [
        "CreatePlacementGroup: clusterctl-demo: all nodes close to each other",
        "ImportKeyPair: clusterctl-demo, the public half of the cluster's key",
        "CreateSecurityGroup: clusterctl-demo in vpc-1",
        "AuthorizeSecurityGroupIngress: SSH from 203.0.113.7/32; all traffic between the nodes",
        "AuthorizeSecurityGroupEgress: all traffic between the nodes",
        "RunInstances: 4 x p4d.24xlarge with 8 GPUs each, nodes demo-[0-3], image ami-1, "
        "us-east-1a",
    ]


def test_the_launch_request_whole():
    user_data = b"#!/bin/sh\n"
    [request] = run_requests(NOTHING, replace(SPEC, user_data=user_data))
    assert {key: value for key, value in request.items() if key != "TagSpecifications"} == {
        "ClientToken": "launch-0",
        "ImageId": "ami-1",
        "InstanceType": "p4d.24xlarge",
        "MinCount": 4,
        "MaxCount": 4,
        "KeyName": "clusterctl-demo",
        "NetworkInterfaces": [
            {
                "DeviceIndex": 0,
                "Groups": [ResultOf("GroupId")],
                "SubnetId": "subnet-a",
                "DeleteOnTermination": True,
                "AssociatePublicIpAddress": True,
            }
        ],
        "BlockDeviceMappings": [
            {
                "DeviceName": "/dev/sda1",
                "Ebs": {
                    "VolumeSize": 150,
                    "VolumeType": "gp3",
                    "Iops": 6000,
                    "Throughput": 500,
                    "VolumeInitializationRate": 300,
                    "DeleteOnTermination": True,
                    "Encrypted": True,
                },
            }
        ],
        "MetadataOptions": {
            "HttpTokens": "required",
            "HttpEndpoint": "enabled",
            "HttpPutResponseHopLimit": 1,
        },
        "Placement": {"GroupName": "clusterctl-demo"},
        "UserData": user_data,
    }
    assert tags_of(request) == {
        "Name": "demo",
        "clusterctl:cluster": "demo",
        "clusterctl:first-index": "0",
        "clusterctl:nodes": "0-3",
        "clusterctl:disk": "150 6000 500",
        "clusterctl:gpus": "8",
        "clusterctl:user": "ubuntu",
        "clusterctl:image": "ami-1",
        "clusterctl:launch": "launch-0",
    }


@pytest.mark.parametrize(
    ("present", "runs"),
    [
        ([], [(0, 4)]),
        ([0], [(1, 3)]),
        ([3], [(0, 3)]),
        ([1, 2], [(0, 1), (3, 1)]),
        ([1], [(0, 1), (2, 2)]),
        ([0, 2], [(1, 1), (3, 1)]),
        ([0, 1, 2], [(3, 1)]),
    ],
)
def test_only_missing_nodes_are_launched_neighbours_in_one_request(present, runs):
    requests = run_requests(with_nodes(*present))
    assert [
        (int(tags_of(request)["clusterctl:first-index"]), request["MinCount"])
        for request in requests
    ] == runs
    tokens = [request["ClientToken"] for request in requests]
    assert len(set(tokens)) == len(tokens)


def test_more_nodes_than_before():
    seen = with_nodes(0, 1, 2, 3)
    assert lines(seen, replace(SPEC, nodes=6)) == [
        "CreateTags: 6 nodes wanted now",
        "RunInstances: 2 x p4d.24xlarge with 8 GPUs each, nodes demo-[4-5], image ami-1, "
        "us-east-1a",
    ]


def test_a_single_node_without_gpus():
    seen = offering(replace(PLAIN, name="c5.xlarge", gpus=0, gpu_name=""))
    spec = ClusterSpec("demo", 1, "c5.xlarge")
    assert lines(seen, spec)[-1] == (
        "RunInstances: 1 x c5.xlarge without GPUs, node demo-0, image ami-1, us-east-1a"
    )


def group_with(*rules):
    return replace(GROUP, ssh_from=tuple(cidr for cidr, _ in rules), ssh_rules=rules)


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (GROUP, []),
        (
            replace(GROUP, ssh_from=()),
            ["AuthorizeSecurityGroupIngress: SSH from 203.0.113.7/32"],
        ),
        (
            replace(GROUP, ssh_from=("198.51.100.1/32",)),
            ["AuthorizeSecurityGroupIngress: SSH from 203.0.113.7/32"],
        ),
        (replace(GROUP, ssh_from=("203.0.113.0/24",)), []),
        (
            group_with(("198.51.100.1/32", FOUND_RULE), ("10.0.0.0/8", GIVEN_RULE)),
            [
                "AuthorizeSecurityGroupIngress: SSH from 203.0.113.7/32",
                "RevokeSecurityGroupIngress: no SSH from 198.51.100.1/32 any more",
            ],
        ),
        (
            group_with(("198.51.100.1/32", FOUND_RULE), ("203.0.113.7/32", FOUND_RULE)),
            ["RevokeSecurityGroupIngress: no SSH from 198.51.100.1/32 any more"],
        ),
        (
            replace(GROUP, members_in=False),
            ["AuthorizeSecurityGroupIngress: all traffic between the nodes"],
        ),
        (
            replace(GROUP, members_out=False),
            ["AuthorizeSecurityGroupEgress: all traffic between the nodes"],
        ),
    ],
)
def test_only_missing_rules_are_added_and_only_our_own_removed(group, expected):
    assert lines(replace(with_nodes(0, 1, 2, 3), group=group)) == expected


def test_ipv6():
    steps = plan(replace(NOTHING, ssh_from="2001:db8::7/128")).steps
    ingress = next(step for step in steps if step.operation.endswith("ingress"))
    assert ingress.arguments["IpPermissions"][0]["Ipv6Ranges"] == [
        {"CidrIpv6": "2001:db8::7/128", "Description": FOUND_RULE}
    ]


@pytest.mark.parametrize(
    ("key_pair", "operations"),
    [
        (None, ["import_key_pair"]),
        (KEY_PAIR, []),
        (replace(KEY_PAIR, public_key="ssh-ed25519 AAAAkey another comment"), []),
        (
            replace(KEY_PAIR, public_key="ssh-ed25519 AAAAother clusterctl-demo"),
            ["delete_key_pair", "import_key_pair"],
        ),
    ],
)
def test_the_key_pair_at_ec2_is_the_folders(key_pair, operations):
    steps = plan(replace(NOTHING, key_pair=key_pair, group=GROUP)).steps
    assert [step.operation for step in steps] == [
        "create_placement_group",
        *operations,
        "run_instances",
    ]


@pytest.mark.parametrize(("snapshot_gib", "volume_gib"), [(0, 150), (75, 150), (300, 300)])
def test_the_root_volume_holds_the_image(snapshot_gib, volume_gib):
    seen = offering(image=replace(IMAGE, root_gib=snapshot_gib, root_device="/r"))
    [mapping] = run_requests(seen)[0]["BlockDeviceMappings"]
    assert (mapping["DeviceName"], mapping["Ebs"]["VolumeSize"]) == ("/r", volume_gib)


REFUSED = {
    "fewer nodes than there are": (
        with_nodes(0, 1, 2, 3),
        replace(SPEC, nodes=2),
        UsageError,
        "has 4 nodes, more than the 2 asked for",
        "clusterctl remove demo 2-3, or ask for --nodes 4",
    ),
    "two of one": (
        replace(NOTHING, instances=(instance(0), instance(0, instance_id="i-9"))),
        SPEC,
        ClusterctlError,
        "demo-0",
        "clusterctl down demo",
    ),
    "a key from elsewhere": (
        replace(with_nodes(0), key_pair=replace(KEY_PAIR, public_key="ssh-ed25519 AAAAother x")),
        SPEC,
        MissingTool,
        "not on this machine",
        "copy the cluster's folder",
    ),
    "user data too long": (
        NOTHING,
        replace(SPEC, user_data=b"x" * 16385),
        UsageError,
        "16385 bytes",
        "S3",
    ),
}


@pytest.mark.parametrize(("seen", "spec", "kind", "message", "hint"), REFUSED.values(), ids=REFUSED)
def test_refused_before_anything_is_made(seen, spec, kind, message, hint):
    with pytest.raises(kind) as caught:
        plan(seen, spec)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_an_image_that_is_gone_does_not_matter_where_nothing_is_launched():
    assert plan(replace(with_nodes(0, 1, 2, 3), catalogue=None)).steps == ()
