"""The plan of a launch: what is missing between the cluster asked for and the one seen. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterctl.domain.ranges import format_indices
from clusterctl.domain.spec import ClusterSpec
from clusterctl.ec2 import tags
from clusterctl.ec2.checks import check_launch, check_request, check_settled
from clusterctl.ec2.images import Image
from clusterctl.ec2.observe import Observed
from clusterctl.ec2.steps import ResultOf, Step

LEAST_ROOT_GIB = 150


@dataclass(frozen=True)
class LaunchPlan:
    """The steps from what is there to what was asked for; none when nothing is missing.

    `missing` are the indices of the nodes to launch. Doing it executes these very steps.
    """

    spec: ClusterSpec
    launch_id: str
    image_id: str
    missing: tuple[int, ...]
    steps: tuple[Step, ...]


def plan_launch(spec: ClusterSpec, seen: Observed, public_key: str, launch_id: str) -> LaunchPlan:
    """Decide by difference. `public_key` is the cluster's own, an OpenSSH line.

    Raises UsageError or ClusterctlError where the difference cannot be made up by adding.
    """
    check_request(spec, seen, public_key)
    present = {instance.node.index for instance in seen.instances}
    missing = tuple(index for index in range(spec.nodes) if index not in present)
    steps = [*_group_steps(spec, seen), *_count_steps(spec, seen)]
    if missing:
        image = check_launch(spec, seen)
        runs = [
            _run_step(spec, seen, image, run, f"{launch_id}-{run[0]}") for run in _runs(missing)
        ]
        steps = [*_key_steps(spec, seen, public_key), *steps, *runs]
    check_settled(spec, seen, [step.arguments.get("ClientToken", "") for step in steps])
    image_id = seen.image.image_id if seen.image else ""
    return LaunchPlan(spec, launch_id, image_id, missing, tuple(steps))


def _key_steps(spec: ClusterSpec, seen: Observed, public_key: str) -> Iterable[Step]:
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
            "TagSpecifications": _tagged(["key-pair"], _base_tags(spec)),
        },
        f"{name}, the public half of the cluster's key",
    )


def _group_steps(spec: ClusterSpec, seen: Observed) -> Iterable[Step]:
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
                "TagSpecifications": _tagged(["security-group"], _base_tags(spec)),
            },
            f"{name} in {seen.vpc.vpc_id}",
            gives=("GroupId",),
        )
    members = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group_id}]}
    let_in: list[tuple[dict[str, Any], str]] = []
    if group is None or not group.lets_in(seen.ssh_from):
        let_in.append((_ssh_rule(seen.ssh_from), f"SSH from {seen.ssh_from}"))
    if group is None or not group.members_in:
        let_in.append((members, "all traffic between the nodes"))
    if let_in:
        yield _rule_step("ingress", group_id, let_in)
    if group is None or not group.members_out:
        # Not covered by the default rule for 0.0.0.0/0: EFA asks for this one.
        yield _rule_step("egress", group_id, [(members, "all traffic between the nodes")])


def _rule_step(way: str, group_id: Any, rules: Sequence[tuple[dict[str, Any], str]]) -> Step:
    return Step(
        f"authorize_security_group_{way}",
        {"GroupId": group_id, "IpPermissions": [rule for rule, _ in rules]},
        "; ".join(text for _, text in rules),
        done_if=("InvalidPermission.Duplicate",),
    )


def _ssh_rule(cidr: str) -> dict[str, Any]:
    ranges = (
        {"Ipv6Ranges": [{"CidrIpv6": cidr}]} if ":" in cidr else {"IpRanges": [{"CidrIp": cidr}]}
    )
    return {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, **ranges}


def _count_steps(spec: ClusterSpec, seen: Observed) -> Iterable[Step]:
    stale = [found for found in seen.instances if found.wanted != tuple(range(spec.nodes))]
    if stale:
        yield Step(
            "create_tags",
            {
                "Resources": [found.node.instance_id for found in stale],
                "Tags": tags.tag_list({tags.NODES: tags.indices_text(range(spec.nodes))}),
            },
            f"{spec.nodes} nodes are wanted now",
        )


def _run_step(
    spec: ClusterSpec, seen: Observed, image: Image, run: Sequence[int], token: str
) -> Step:
    request = _run_request(spec, seen, image, run, token)
    for sent in seen.unsettled:
        if sent.asks_for(request):
            # The same token again: EC2 answers with what the first request made, if it did.
            request = dict(sent.request)
    machine = seen.machine
    count = "1 GPU" if machine.gpus == 1 else f"{machine.gpus} GPUs"
    gpus = f" with {count} each" if machine.gpus else " without GPUs"
    nodes = f"node {spec.name}-{run[0]}"
    if len(run) > 1:
        nodes = f"nodes {spec.name}-[{format_indices(run)}]"
    summary = f"{len(run)} x {machine.name}{gpus}, {nodes}, image {image.image_id}"
    return Step("run_instances", request, summary, gives=("Instances",))


def _run_request(
    spec: ClusterSpec, seen: Observed, image: Image, run: Sequence[int], token: str
) -> dict[str, Any]:
    labels = {
        **_base_tags(spec),
        tags.FIRST_INDEX: str(run[0]),
        tags.NODES: tags.indices_text(range(spec.nodes)),
        tags.GPUS: str(seen.machine.gpus),
        tags.USER: spec.ssh_user or "ubuntu",
        tags.IMAGE: image.image_id,
        tags.LAUNCH: token,
    }
    root = {
        "VolumeSize": max(image.root_gib, LEAST_ROOT_GIB),
        "VolumeType": "gp3",
        "DeleteOnTermination": True,
    }
    return {
        "ClientToken": token,
        "ImageId": image.image_id,
        "InstanceType": spec.instance_type,
        # All or nothing: half a cluster costs money and trains nothing.
        "MinCount": len(run),
        "MaxCount": len(run),
        "KeyName": tags.resource_name(spec.name),
        "SecurityGroupIds": [seen.group.group_id if seen.group else ResultOf("GroupId")],
        "BlockDeviceMappings": [{"DeviceName": image.root_device, "Ebs": root}],
        "MetadataOptions": {"HttpTokens": "required", "HttpEndpoint": "enabled"},
        **({"UserData": spec.user_data} if spec.user_data else {}),
        "TagSpecifications": _tagged(["instance", "volume"], labels),
    }


def _base_tags(spec: ClusterSpec) -> dict[str, str]:
    return {tags.CLUSTER: spec.name, "Name": spec.name}


def _tagged(kinds: Iterable[str], labels: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"ResourceType": kind, "Tags": tags.tag_list(labels)} for kind in kinds]


def _runs(indices: Sequence[int]) -> list[list[int]]:
    """Neighbours together: one RunInstances gives consecutive indices only."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return runs
