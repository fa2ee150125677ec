"""Steps around the launch itself: key pair, security group, placement group, tags, address."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from clusterctl.ec2.money.costs import PUBLIC_IPV4_HOUR_USD, format_limits
from clusterctl.ec2.network.vpcs import FOUND_RULE, GIVEN_RULE, SecurityGroup


def group_steps(spec: ClusterSpec, seen: Observed) -> Iterator[Step]:
    """What the group lacks, all of it for a cluster without one."""
    name = tags.resource_name(spec.name)
    group = seen.group
    group_id: Any = group.group_id if group else ResultOf("GroupId")
    if group is None:
        yield Step(
            "create_security_group",
            {
                "GroupName": name,
                "Description": f"clusterctl cluster {spec.name}",
                "VpcId": seen.vpc.vpc_id,
                "TagSpecifications": tagged(["security-group"], base_tags(spec)),
            },
            f"{name} in {seen.vpc.vpc_id}",
            gives=("GroupId",),
        )
    members = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group_id}]}
    let_in: list[tuple[dict[str, Any], str]] = []
    older = _outdated(spec, seen, group)
    if group is None or (seen.ssh_from and not group.lets_in(seen.ssh_from, without=older)):
        description = GIVEN_RULE if spec.ssh_from else FOUND_RULE
        let_in.append((_ssh_rule(seen.ssh_from, description), f"SSH from {seen.ssh_from}"))
    if group is None or not group.members_in:
        let_in.append((members, "all traffic between the nodes"))
    if let_in:
        yield _rule_step("ingress", group_id, let_in)
    if group is None or not group.members_out:
        # Not covered by the default rule for 0.0.0.0/0: EFA asks for this one.
        yield _rule_step("egress", group_id, [(members, "all traffic between the nodes")])
    if older:
        # The new rule is there by now: nobody is locked out in between.
        yield Step(
            "revoke_security_group_ingress",
            {"GroupId": group_id, "IpPermissions": [_ssh_rule(cidr) for cidr in older]},
            f"no SSH from {', '.join(older)} any more",
            done_if=("InvalidPermission.NotFound",),
        )


def _outdated(spec: ClusterSpec, seen: Observed, group: SecurityGroup | None) -> list[str]:
    """Where earlier runs of `up` let SSH in from, and this one does not.

    What was given with --ssh-from stays until something else is given.
    """
    if group is None or not seen.ssh_from:
        return []
    return [
        cidr
        for cidr, description in group.ssh_rules
        if cidr != seen.ssh_from and (spec.ssh_from or description == FOUND_RULE)
    ]


def _rule_step(way: str, group_id: Any, rules: Sequence[tuple[dict[str, Any], str]]) -> Step:
    return Step(
        f"authorize_security_group_{way}",
        {"GroupId": group_id, "IpPermissions": [rule for rule, _ in rules]},
        "; ".join(text for _, text in rules),
        done_if=("InvalidPermission.Duplicate",),
    )


def _ssh_rule(cidr: str, description: str = "") -> dict[str, Any]:
    key, argument = ("Ipv6Ranges", "CidrIpv6") if ":" in cidr else ("IpRanges", "CidrIp")
    source = {argument: cidr, **({"Description": description} if description else {})}
    return {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, key: [source]}


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
