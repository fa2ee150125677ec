"""The plan: the difference between the requested cluster and the account.

The cluster may exist, in part or stopped, or a launch may have an unknown outcome.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from clusterctl.domain.cluster import MOST_TAGS, ClusterSpec, Disk, Limits, Market, NodeState
from clusterctl.domain.errors import ClusterctlError, MissingTool, UsageError
from clusterctl.domain.findings import Severity
from clusterctl.domain.ranges import runs
from clusterctl.ec2.launch.attempt import SentLaunch
from clusterctl.ec2.launch.capacity import Place
from clusterctl.ec2.launch.observe import Catalogue
from clusterctl.ec2.launch.plan import least_counts, plan_launch, wanted_indices
from clusterctl.ec2.launch.request import ResultOf, run_request
from clusterctl.ec2.network.vpcs import FOUND_RULE, GIVEN_RULE, ElasticAddress
from clusterctl.ec2.tags import read_indices, read_unfinished
from tests.ec2.observed import (
    CATALOGUE,
    GROUP,
    IMAGE,
    KEY_PAIR,
    MACHINE,
    NOTHING,
    PLAIN,
    PUBLIC_KEY,
    SPEC,
    SUBNETS,
    instance,
    offering,
    settled,
    with_nodes,
)


def plan(observed, spec=SPEC):
    return plan_launch(settled(spec, observed), PUBLIC_KEY, "launch")


def lines(observed, spec=SPEC):
    return [step.describe() for step in plan(observed, spec).steps]


def requests(made):
    return [step.arguments for step in made.steps if step.operation == "run_instances"]


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
    [request] = requests(plan(NOTHING, replace(SPEC, user_data=user_data)))
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
    ("present", "sizes"),
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
def test_only_missing_nodes_are_launched_neighbours_in_one_request(present, sizes):
    made = requests(plan(with_nodes(*present)))
    assert [
        (int(tags_of(request)["clusterctl:first-index"]), request["MinCount"]) for request in made
    ] == sizes
    tokens = [request["ClientToken"] for request in made]
    assert len(set(tokens)) == len(tokens)


def test_more_nodes_than_before():
    observed = with_nodes(0, 1, 2, 3)
    assert lines(observed, replace(SPEC, nodes=6)) == [
        "CreateTags: 6 nodes wanted now",
        "RunInstances: 2 x p4d.24xlarge with 8 GPUs each, nodes demo-[4-5], image ami-1, "
        "us-east-1a",
    ]


def test_a_single_node_without_gpus():
    observed = offering(replace(PLAIN, name="c5.xlarge", gpus=0, gpu_name=""))
    spec = ClusterSpec("demo", 1, "c5.xlarge")
    assert lines(observed, spec)[-1] == (
        "RunInstances: 1 x c5.xlarge without GPUs, node demo-0, image ami-1, us-east-1a"
    )


def group_with(*rules):
    return replace(GROUP, ssh_from=tuple(cidr for cidr, _ in rules), ssh_rules=rules)


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (GROUP, []),
        (replace(GROUP, ssh_from=()), ["AuthorizeSecurityGroupIngress: SSH from 203.0.113.7/32"]),
        (replace(GROUP, ssh_from=("198.51.100.1/32",)),
         ["AuthorizeSecurityGroupIngress: SSH from 203.0.113.7/32"]),
        (replace(GROUP, ssh_from=("203.0.113.0/24",)), []),
        (
            group_with(("198.51.100.1/32", FOUND_RULE), ("10.0.0.0/8", GIVEN_RULE)),
            [
                "AuthorizeSecurityGroupIngress: SSH from 203.0.113.7/32",
                "RevokeSecurityGroupIngress: no SSH from 198.51.100.1/32 any more",
            ],
        ),
        (group_with(("198.51.100.1/32", FOUND_RULE), ("203.0.113.7/32", FOUND_RULE)),
         ["RevokeSecurityGroupIngress: no SSH from 198.51.100.1/32 any more"]),
        (replace(GROUP, members_in=False),
         ["AuthorizeSecurityGroupIngress: all traffic between the nodes"]),
        (replace(GROUP, members_out=False),
         ["AuthorizeSecurityGroupEgress: all traffic between the nodes"]),
    ],
)  # fmt: skip
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
    observed = offering(image=replace(IMAGE, root_gib=snapshot_gib, root_device="/r"))
    [mapping] = requests(plan(observed))[0]["BlockDeviceMappings"]
    assert (mapping["DeviceName"], mapping["Ebs"]["VolumeSize"]) == ("/r", volume_gib)


REFUSED = {
    "fewer nodes than there are": (with_nodes(0, 1, 2, 3), replace(SPEC, nodes=2), UsageError,
     "has 4 nodes, more than the 2 requested", "clusterctl remove demo 2-3, or ask for --nodes 4"),
    "two of one": (replace(NOTHING, instances=(instance(0), instance(0, instance_id="i-9"))), SPEC,
        ClusterctlError, "demo-0", "clusterctl down demo"),
    "a key from elsewhere": (
        replace(with_nodes(0), key_pair=replace(KEY_PAIR, public_key="ssh-ed25519 AAAAother x")),
        SPEC,
        MissingTool,
        "not on this machine",
        "copy the cluster's folder",
    ),
    "a key from elsewhere, before its machine has launched nodes": (
        replace(NOTHING, key_pair=replace(KEY_PAIR, public_key="ssh-ed25519 AAAAother x")),
        SPEC,
        MissingTool,
        "another one has launched it or tried to",
        "choose another name",
    ),
    "user data too long": (NOTHING, replace(SPEC, user_data=b"x" * 16385), UsageError,
        "16385 bytes", "S3"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("observed", "spec", "kind", "message", "hint"), REFUSED.values(), ids=REFUSED
)
def test_refused_before_anything_is_made(observed, spec, kind, message, hint):
    with pytest.raises(kind) as caught:
        plan(observed, spec)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_an_image_that_is_gone_does_not_matter_where_nothing_is_launched():
    assert plan(replace(with_nodes(0, 1, 2, 3), catalogue=Catalogue())).steps == ()


# An existing cluster


def cluster(*members, **more):
    """Return the resources of a cluster with these instances."""
    return replace(with_nodes(), instances=members, **more)


@pytest.mark.parametrize(
    ("present", "wanted", "nodes", "expected"),
    [
        ([], (), 3, (0, 1, 2)),
        ([0, 1, 2, 3], (0, 1, 2, 3), 4, (0, 1, 2, 3)),
        ([0, 1, 3], (0, 1, 3), 3, (0, 1, 3)),
        # The next free indices, gaps first.
        ([0, 1, 3], (0, 1, 3), 4, (0, 1, 2, 3)),
        ([0, 1, 3], (0, 1, 3), 6, (0, 1, 2, 3, 4, 5)),
        ([0, 3], (0, 1, 3), 3, (0, 1, 3)),
        ([0, 3], (0, 1, 3), 4, (0, 1, 2, 3)),
        # More nodes were wanted and never came: the existing ones are enough.
        ([0, 1, 2, 3], (0, 1, 2, 3, 4, 5), 4, (0, 1, 2, 3)),
        ([0, 1, 3], (0, 1, 2, 3, 4), 4, (0, 1, 2, 3)),
        ([0, 3], (0, 1, 2, 3), 2, (0, 3)),
        # Tags of an older cluster have no effect.
        ([0, 2], (), 3, (0, 1, 2)),
        # The head node is missing.
        ([1, 2], (0, 1, 2), 3, (0, 1, 2)),
    ],
)
def test_which_nodes_are_wanted(present, wanted, nodes, expected):
    observed = cluster(*(instance(index, wanted=wanted) for index in present))
    spec = replace(SPEC, nodes=nodes)
    assert wanted_indices(replace(observed, spec=spec)) == expected
    made = plan(observed, spec)
    assert made.wanted == expected
    assert made.missing == tuple(index for index in expected if index not in present)


@pytest.mark.parametrize(
    ("present", "wanted", "before", "nodes", "written", "told"),
    [
        ([0, 1], "0-1", "", 3, "add 2", None),
        ([0, 1], "0-1", "remove 2 replace 1", 4, "add 2-3 replace 1", "replace demo-1"),
        # An interrupted command continues: the tags name it already.
        ([0, 1], "0-2", "add 2", 3, None, "add demo-2"),
        ([0, 1, 2], "0-2", "add 2", 3, None, "add demo-2"),
        # The first command launched nothing: another number replaces it.
        ([0, 1], "0-2", "add 2", 4, "add 2-3", "add demo-2"),
        ([0, 1], "0-3", "add 2-3", 3, "add 2", "add demo-[2-3]"),
        # Node 2 was removed but still runs: it must not become a member again.
        ([0, 1, 2], "0-1", "remove 2", 3, "add 3 remove 2", "demo-2: to be terminated"),
    ],
)
def test_what_add_asks_for_is_kept_in_the_tags(present, wanted, before, nodes, written, told):
    said = {"wanted": read_indices(wanted), "unfinished": read_unfinished(before)}
    observed = cluster(*(instance(index, **said) for index in present), catalogue=CATALOGUE)
    made = plan(observed, replace(SPEC, nodes=nodes, by_add=True))
    labels = [
        tag["Value"]
        for step in made.steps
        if step.operation == "create_tags"
        for tag in step.arguments["Tags"]
        if tag["Key"] == "clusterctl:unfinished"
    ]
    assert labels == ([written] if written else [])
    found = [one.message for one in made.findings if one.check == "cluster.unfinished"]
    assert len(found) == (told is not None)
    assert all(message.endswith(told) for message in found)


@pytest.mark.parametrize(
    ("asked", "told"),
    [((), False), ((("team", "nlp"),), False), ((("team", "vision"), ("cost", "7")), True)],
)
def test_tags_for_nodes_that_are_there_are_not_passed_over(asked, told):
    observed = cluster(*(instance(index, tags={"team": "nlp"}) for index in range(4)))
    found = plan(observed, replace(SPEC, tags=asked)).findings
    assert [one.check for one in found] == ["tags.kept"] * told
    assert all("--tag cost, team" in one.message for one in found)


@pytest.mark.parametrize(
    ("present", "unfinished", "idle"),
    [([0, 1, 2, 3], "", True), ([0, 1, 2, 3], "remove 4-4", False), ([0, 1, 2, 3, 4], "", False)],
)
def test_what_is_not_finished_is_something_to_do(present, unfinished, idle):
    said = read_unfinished(unfinished)
    observed = cluster(*(instance(index, unfinished=said) for index in present))
    assert (plan(observed).steps, plan(observed).idle) == ((), idle)


def test_after_nodes_that_never_came_the_tags_follow():
    observed = cluster(*(instance(index, wanted=tuple(range(6))) for index in range(4)))
    [step] = plan(observed).steps
    assert step.describe() == "CreateTags: 4 nodes wanted now"
    assert {"Key": "clusterctl:nodes", "Value": "0-3"} in step.arguments["Tags"]
    with pytest.raises(UsageError) as caught:
        plan(observed, replace(SPEC, nodes=3))
    assert "clusterctl remove demo 3" in caught.value.hint


@pytest.mark.parametrize(
    ("missing", "spare", "least"),
    [
        ((0, 1, 2, 3), 0, [4]),
        ((0, 1, 2, 3), 3, [1]),
        ((0, 1, 2, 3), 9, [1]),
        ((1, 3, 4, 5), 2, [1, 1]),
        ((1, 2, 3, 5, 6), 1, [3, 1]),
        ((1, 2, 3, 5, 6), 2, [2, 1]),
        ((1, 2, 3, 5, 6), 9, [1, 1]),
        ((1, 2, 3, 5, 6), -1, [3, 2]),
        ((0,), 1, [1]),
    ],
)
def test_how_many_of_each_gap_have_to_come(missing, spare, least):
    groups = runs(missing)
    counts = least_counts(groups, spare)
    assert [counts[group] for group in groups] == least
    short = sum(len(group) - counts[group] for group in groups)
    assert short <= max(0, spare)


def test_limits_change_on_all_nodes_that_have_others():
    members = (
        instance(0, limits_text="max-hours=8"),
        instance(1, limits_text="max-hours=9"),
        instance(2),
        instance(3, limits_text="max-hours=9"),
    )
    steps = plan(cluster(*members), replace(SPEC, limits=Limits(max_hours=9))).steps
    assert [step.operation for step in steps] == ["create_tags"] * 2
    assert [step.arguments["Resources"] for step in steps] == [["i-0"], ["i-2"]]
    for step, earlier in zip(steps, ("max-hours=8", "none")):
        assert {"Key": "clusterctl:limits", "Value": "max-hours=9"} in step.arguments["Tags"]
        # Until the guards have the new ones.
        label = {"Key": "clusterctl:earlier-limits", "Value": earlier}
        assert label in step.arguments["Tags"]
        assert step.summary == "4 nodes wanted now, limits: max-hours=9"
    # Where the first limits never reached the nodes, these stay the earlier ones.
    twice = (instance(0, limits_text="max-hours=7", earlier_limits="none"),)
    [step] = plan(cluster(*twice), replace(SPEC, nodes=1, limits=Limits(max_hours=9))).steps
    assert {"Key": "clusterctl:earlier-limits", "Value": "none"} in step.arguments["Tags"]


@pytest.mark.parametrize(
    ("held", "asked", "said", "options"),
    [
        ("max-hours=8", Limits(max_hours=12), None, ""),
        ("max-hours=8", Limits(max_hours=8, budget_usd=9), None, ""),
        ("max-hours=8 budget=9", Limits(), None, ""),
        ("max-hours=8 budget=9", Limits(max_hours=12), "budget=9", "--max-hours 12 --budget 9"),
        (
            "max-hours=8 idle-minutes=30 idle-erases-store=1",
            Limits(max_hours=12),
            "idle-minutes=30, idle-erases-store=1: "
            "at their end the nodes are now terminated, with their disks",
            "--max-hours 12 --idle-stop 30m --idle-stop-erases-store",
        ),
    ],
)
@pytest.mark.parametrize("nodes", [1, 2])
def test_limits_that_hold_no_longer_are_said(held, asked, said, options, nodes):
    spec = replace(SPEC, nodes=nodes, limits=asked)
    found = plan(cluster(instance(0, limits_text=held)), spec).findings
    messages = [one.message for one in found if one.check == "limits.dropped"]
    expected = [f"this `up` replaces the earlier limits, and drops {said}"]
    assert messages == (expected if said else [])
    hints = [one.hint for one in found if one.check == "limits.dropped"]
    assert all(hint.endswith(f"clusterctl up {spec.name} {options}") for hint in hints)


@pytest.mark.parametrize(
    ("has", "asked", "said"),
    [
        (Disk(), Disk(), None),
        (Disk(kms_key="alias/mine"), Disk(), None),
        (Disk(kms_key="alias/mine"), Disk(kms_key="alias/mine"), None),
        (Disk(), Disk(kms_key="alias/mine"), "--kms-key"),
        (Disk(500, kms_key="alias/mine"), Disk(600, kms_key="b"), "--disk-gib, --kms-key"),
    ],
)
@pytest.mark.parametrize("nodes", [1, 2])
def test_another_disk_than_that_of_the_nodes_is_said_to_be_for_new_ones(has, asked, said, nodes):
    found = plan(cluster(instance(0, disk=has)), replace(SPEC, nodes=nodes, disk=asked)).findings
    told = [one.message.partition(":")[0] for one in found if one.check == "disk.kept"]
    assert told == ([said] if said else [])


def test_stopped_nodes_are_started_and_missing_ones_launched():
    members = (instance(0), instance(1, NodeState.STOPPED), instance(2, NodeState.STOPPING))
    assert lines(cluster(*members)) == [
        "StartInstances: demo-[1-2]",
        "RunInstances: 1 x p4d.24xlarge with 8 GPUs each, node demo-3, image ami-1, us-east-1a",
    ]
    made = plan(cluster(*members, instance(3, NodeState.PENDING)))
    assert [step.operation for step in made.steps] == ["start_instances"]
    assert (made.stopped, made.missing) == ((1, 2), ())


ADDRESS = ElasticAddress("eipalloc-1", "198.51.100.1", "eipassoc-1", "eni-0")


@pytest.mark.parametrize(
    ("members", "address", "operations"),
    [
        # `up` was cut off after the launch: the head node has several interfaces and no address.
        ([instance(0, several_interfaces=True)], None, ["allocate_address", "associate_address"]),
        ([instance(0, private=True)], None, ["allocate_address", "associate_address"]),
        ([instance(0, several_interfaces=True)], ADDRESS, []),
        (
            [instance(0, several_interfaces=True)],
            replace(ADDRESS, interface_id="eni-9"),
            ["associate_address"],
        ),
        ([instance(0)], None, []),
        ([instance(0, NodeState.STOPPED, several_interfaces=True)], ADDRESS, ["start_instances"]),
    ],
)
def test_the_head_node_gets_its_address_even_where_nothing_is_launched(
    members, address, operations
):
    members = [replace(one, wanted=(0,)) for one in members]
    made = plan(cluster(*members, address=address), replace(SPEC, nodes=1))
    assert [step.operation for step in made.steps] == operations


@pytest.mark.parametrize("machine", [MACHINE, replace(MACHINE, efa_interfaces=0)])
def test_a_new_head_node_takes_the_address_over(machine):
    workers = [instance(index, several_interfaces=True, efa_interfaces=4) for index in (1, 2, 3)]
    old = instance(0, retired=True, several_interfaces=True, efa_interfaces=4)
    observed = cluster(old, *workers, address=ADDRESS, catalogue=offering(machine).catalogue)
    made = plan(observed)
    assert made.missing == (0,)
    if machine is MACHINE:
        assert made.steps[-1].arguments == {
            "AllocationId": "eipalloc-1",
            "NetworkInterfaceId": ResultOf("HeadInterface"),
            "AllowReassociation": True,
        }


def sent(observed, spec=SPEC, zone="subnet-a", **changes) -> SentLaunch:
    [request] = requests(plan_launch(settled(spec, observed), PUBLIC_KEY, "earlier"))
    interfaces = [{**one, "SubnetId": zone} for one in request["NetworkInterfaces"]]
    return SentLaunch({**request, "NetworkInterfaces": interfaces, **changes}, sent_at=1.0)


def there(subnets):
    """Return an account where the group exists, and the launch request has its id."""
    catalogue = replace(CATALOGUE, subnets=subnets)
    return replace(with_nodes(), catalogue=catalogue)


@pytest.mark.parametrize("zone", ["subnet-a", "subnet-c"])
@pytest.mark.parametrize("free", [4000, 1, 0])
def test_a_launch_of_unknown_outcome_may_have_taken_the_last_addresses(zone, free):
    earlier = sent(there(SUBNETS), zone=zone)
    left = tuple(
        replace(one, free_addresses=free) if one.subnet_id == zone else one for one in SUBNETS
    )
    made = plan(replace(there(left), unresolved=(earlier,)))
    [request] = requests(made)
    assert request == earlier.request
    assert made.places[0].subnet_id == zone
    assert not made.refused


def test_what_stands_against_it_is_a_warning_only():
    earlier = sent(there(SUBNETS))
    full = tuple(replace(one, free_addresses=0) for one in SUBNETS)
    made = plan(replace(there(full), unresolved=(earlier,)))
    assert [(one.check, one.severity) for one in made.findings] == [
        ("subnet.addresses", Severity.WARNING)
    ]
    assert requests(made) == [earlier.request]


@pytest.mark.parametrize("present", [(), (0, 1)])
def test_a_launch_of_unknown_outcome_is_sent_again_with_its_token(present):
    earlier = sent(with_nodes(*present))
    made = plan(replace(with_nodes(*present), unresolved=(earlier,)))
    assert requests(made) == [earlier.request]
    assert earlier.token == f"earlier-{len(present)}"


@pytest.mark.parametrize(
    ("subnets", "changes"),
    [
        (SUBNETS[1:], {}),
        (SUBNETS, {"InstanceType": "p9.huge"}),
        (SUBNETS, {"NetworkInterfaces": []}),
        (SUBNETS, {"MinCount": 1}),
        (SUBNETS, {"MinCount": 9, "MaxCount": 9}),
        (SUBNETS, {"UserData": b"other"}),
    ],
)
def test_a_launch_that_cannot_be_sent_again_stops_it(subnets, changes):
    earlier = sent(there(SUBNETS))
    earlier = SentLaunch({**earlier.request, **changes}, sent_at=1.0)
    # It is not forgotten if no node is missing, either.
    for observed in (there(subnets), with_nodes(0, 1, 2, 3)):
        with pytest.raises(ClusterctlError) as caught:
            plan(replace(observed, unresolved=(earlier,)))
        assert "cut off" in caught.value.message


ODD = (("team", "NLP & Vision <ü>"), ("cost centre / 7", "= + - : @"), ("ключ", ""))


def test_everything_that_is_made_carries_the_users_tags_too():
    spec = replace(SPEC, tags=ODD, private=True, market=Market.SPOT)
    made = [step.arguments for step in plan(NOTHING, spec).steps]
    specifications = [one for each in made for one in each.get("TagSpecifications", ())]
    kinds = {one["ResourceType"] for one in specifications}
    assert kinds >= {
        *("placement-group", "key-pair", "security-group", "instance", "volume", "elastic-ip"),
        "spot-instances-request",
    }
    for specification in specifications:
        labels = {tag["Key"]: tag["Value"] for tag in specification["Tags"]}
        assert labels["clusterctl:cluster"] == labels["Name"] == "demo"
        assert {**labels, **dict(ODD)} == labels


def test_the_most_tags_fit_into_what_ec2_takes():
    spec = replace(
        SPEC,
        tags=tuple((f"k{n}", "x") for n in range(MOST_TAGS)),
        private=True,
        market=Market.SPOT,
        limits=Limits(max_hours=8),
    )
    [request] = requests(plan(NOTHING, spec))
    for specification in request["TagSpecifications"]:
        keys = [tag["Key"] for tag in specification["Tags"]]
        # Two more tags are added later: the cost so far, and that the node is being replaced.
        assert len(keys) == len(set(keys)) <= 48


def rates(*, zone="us-east-1a", **changes):
    """Return the rates at which EC2 is asked to fill the volumes."""
    place = Place("p4d.24xlarge", zone, "subnet-a")
    made = plan(NOTHING, replace(SPEC, **changes))
    request = run_request(made.launch_at(place, made.missing), "token")
    return request["BlockDeviceMappings"][0]["Ebs"].get("VolumeInitializationRate")


@pytest.mark.parametrize(
    ("nodes", "asked", "rate"),
    [
        (1, None, 300),
        (15, None, 300),
        (16, None, 281),
        (32, None, 140),
        (45, None, 100),
        (46, None, None),
        (256, None, None),
        (4, 0, None),
        (4, 120, 120),
        (40, 120, 120),
    ],
)
def test_all_volumes_of_a_cluster_are_filled_within_the_regions_rate(nodes, asked, rate):
    assert rates(nodes=nodes, disk=Disk(load_mib_s=asked)) == rate
    assert nodes * (rate or 0) <= 5000


def test_no_volume_is_filled_at_a_rate_in_a_local_zone():
    assert rates(zone="us-west-2-phx-2a") is None
    assert rates(zone="us-east-1-wl1-bos-wlz-1", disk=Disk(load_mib_s=200)) is None
