"""The steps that give a cluster its security group: SSH from its owner, all among members. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from clusterctl.domain.spec import ClusterSpec
from clusterctl.ec2 import tags
from clusterctl.ec2.launch.observe import Observed
from clusterctl.ec2.launch.request import base_tags, tagged
from clusterctl.ec2.launch.steps import ResultOf, Step
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
