"""The steps of a plan around the launch itself: key pair, placement group, tags, address. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from clusterctl.domain.cluster import ASLEEP, Node
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.spec import ClusterSpec
from clusterctl.domain.units import count
from clusterctl.ec2 import tags
from clusterctl.ec2.instances import Instance, members_of, unfinished_of
from clusterctl.ec2.launch.observe import Observed
from clusterctl.ec2.launch.request import Launch, base_tags, tagged
from clusterctl.ec2.launch.steps import ResultOf, Step
from clusterctl.ec2.money.costs import PUBLIC_IPV4_HOUR_USD
from clusterctl.ec2.money.limits_tag import format_limits


def key_steps(spec: ClusterSpec, seen: Observed, public_key: str) -> Iterator[Step]:
    name = tags.resource_name(spec.name)
    if seen.key_pair and seen.key_pair.holds(public_key):
        return
    if seen.key_pair:
        yield Step(
            "delete_key_pair",
            {"KeyName": seen.key_pair.name},
            f"{name}, whose private half is not here",
        )
    yield Step(
        "import_key_pair",
        {
            "KeyName": name,
            "PublicKeyMaterial": public_key.encode(),
            "TagSpecifications": tagged(["key-pair"], base_tags(spec)),
        },
        f"{name}, the public half of the cluster's key",
    )


def placement_steps(spec: ClusterSpec, seen: Observed, launch: Launch) -> Iterator[Step]:
    if launch.placement_group and seen.placement_group is None:
        yield Step(
            "create_placement_group",
            {
                "GroupName": tags.resource_name(spec.name),
                "Strategy": "cluster",
                "TagSpecifications": tagged(["placement-group"], base_tags(spec)),
            },
            f"{tags.resource_name(spec.name)}: all nodes close to each other",
            done_if=("InvalidPlacementGroup.Duplicate",),
        )


def tag_steps(spec: ClusterSpec, seen: Observed, wanted: tuple[int, ...]) -> Iterator[Step]:
    """What the nodes that are there say of the whole cluster."""
    limits = format_limits(spec.limits)
    there = members_of(seen.instances)
    labels = {tags.NODES: tags.indices_text(wanted), tags.LIMITS: limits}
    added = _added(seen, wanted) if spec.adds else None
    if added:
        # Asked for again, it must not be added twice.
        labels[tags.UNFINISHED] = added.text
    stale = [
        one
        for one in there
        if one.wanted != wanted or one.limits_text != limits or (added and one.unfinished != added)
    ]
    if stale:
        yield Step(
            "create_tags",
            {
                "Resources": [found.node.instance_id for found in stale],
                "Tags": tags.tag_list(labels),
            },
            f"{count(len(wanted), 'node')} wanted now" + (f", limits: {limits}" if limits else ""),
        )


def _added(seen: Observed, wanted: tuple[int, ...]) -> tags.Unfinished:
    """What is unfinished once `add` has asked for the nodes that are missing of these."""
    before = unfinished_of(seen.instances)
    present = {found.node.index for found in members_of(seen.instances)}
    return tags.Unfinished(
        add=tuple(index for index in wanted if index in before.add or index not in present),
        remove=tuple(index for index in before.remove if index not in wanted),
        replace=before.replace,
    )


def stopped_nodes(seen: Observed) -> list[Node]:
    """The members that are to be started."""
    return [found.node for found in members_of(seen.instances) if found.node.state in ASLEEP]


def start_steps(seen: Observed) -> Iterator[Step]:
    stopped = stopped_nodes(seen)
    if stopped:
        yield Step(
            "start_instances",
            {"InstanceIds": [node.instance_id for node in stopped]},
            fold_hosts([node.name for node in stopped]),
        )


def needs_address(spec: ClusterSpec, seen: Observed, launch: Launch | None = None) -> bool:
    """Whether the head node needs an elastic address: nodes get no public one by themselves."""
    head = _head(seen)
    machine = head or launch
    return machine is not None and bool(
        spec.private or machine.several_interfaces or (head and seen.address)
    )


def allocate_steps(spec: ClusterSpec, seen: Observed) -> Iterator[Step]:
    """Before the launch: without it nobody gets in, and the account may be out of addresses."""
    if seen.address is None:
        yield Step(
            "allocate_address",
            {"Domain": "vpc", "TagSpecifications": tagged(["elastic-ip"], base_tags(spec))},
            f"{tags.resource_name(spec.name)}, for the head node: the others are reached "
            "through it",
            gives=("AllocationId",),
            hourly_usd=PUBLIC_IPV4_HOUR_USD,
        )


def associate_steps(
    spec: ClusterSpec, seen: Observed, launch: Launch | None = None
) -> Iterator[Step]:
    """The address on the head node; given back where another type of machine needs none."""
    head = _head(seen)
    allocation: Any = seen.address.allocation_id if seen.address else ResultOf("AllocationId")
    if not needs_address(spec, seen, launch):
        yield Step("release_address", {"AllocationId": allocation}, "no node needs one")
    elif not (head and seen.address and seen.address.interface_id == head.interface_id):
        interface: Any = head.interface_id if head else ResultOf("HeadInterface")
        yield Step(
            "associate_address",
            {
                "AllocationId": allocation,
                "NetworkInterfaceId": interface,
                "AllowReassociation": True,
            },
            "to the head node",
        )


def _head(seen: Observed) -> Instance | None:
    members = members_of(seen.instances)
    return members[0] if members and members[0].node.index == 0 else None
