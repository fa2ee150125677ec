"""What exists: instances, read by tag, as clusters and nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterctl.domain.cluster import Cluster, Node, NodeState
from clusterctl.ec2 import tags
from clusterctl.ec2.errors import translated

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

# A node on its way out is not part of its cluster.
PRESENT = ("pending", "running", "stopping", "stopped")


@dataclass(frozen=True)
class Instance:
    """A node with what only EC2 and the launcher care about."""

    node: Node
    cluster: str
    ssh_user: str
    nodes_wanted: int
    image_id: str
    key_name: str
    launch_token: str
    state_reason: str = ""


def find_cluster(client: EC2Client, name: str) -> Cluster | None:
    """The cluster as it is now; None when it has no instance left. Raises AwsError."""
    return as_cluster(client, name, find_instances(client, name))


def list_clusters(client: EC2Client) -> tuple[Cluster, ...]:
    """Every cluster of the account in this region, by name. Raises AwsError."""
    found: dict[str, list[Instance]] = {}
    every = {"Name": "tag-key", "Values": [tags.CLUSTER]}
    for instance in _describe(client, [every, _in_states(PRESENT)]):
        found.setdefault(instance.cluster, []).append(instance)
    clusters = (as_cluster(client, name, found[name]) for name in sorted(found))
    return tuple(cluster for cluster in clusters if cluster)


def find_instances(
    client: EC2Client, name: str, states: Sequence[str] = PRESENT
) -> tuple[Instance, ...]:
    """A cluster's instances in these states, by index; no states means all. Raises AwsError."""
    filters = [tags.of_cluster(name), *([_in_states(states)] if states else [])]
    return tuple(_describe(client, filters))


def launched_with(client: EC2Client, tokens: Sequence[str]) -> frozenset[str]:
    """Those of these client tokens that have made instances. Raises AwsError."""
    if not tokens:
        return frozenset()
    seen = _describe(client, [{"Name": f"tag:{tags.LAUNCH}", "Values": list(tokens)}])
    return frozenset(instance.launch_token for instance in seen)


def as_cluster(client: EC2Client, name: str, instances: Sequence[Instance]) -> Cluster | None:
    """These instances as a cluster; None without any."""
    if not instances:
        return None
    return Cluster(
        name=name,
        region=client.meta.region_name,
        ssh_user=instances[0].ssh_user,
        nodes=tuple(instance.node for instance in instances),
    )


def _in_states(states: Iterable[str]) -> dict[str, Any]:
    return {"Name": "instance-state-name", "Values": list(states)}


def _describe(client: EC2Client, filters: list[Any]) -> list[Instance]:
    with translated():
        pages = client.get_paginator("describe_instances").paginate(Filters=filters)
        described = [entry for page in pages for entry in _entries(page)]
    instances = [read_instance(entry) for entry in described]
    return sorted(instances, key=lambda found: (found.node.index, found.node.instance_id))


def _entries(page: Any) -> Iterator[Any]:
    for reservation in page["Reservations"]:
        yield from reservation["Instances"]


def read_instance(described: Any) -> Instance:
    """What DescribeInstances says about one instance, in our words."""
    tagged = tags.tag_dict(described.get("Tags"))
    index = _number(tagged.get(tags.FIRST_INDEX)) + described.get("AmiLaunchIndex", 0)
    name = tagged.get(tags.CLUSTER, "")
    reason = described.get("StateReason") or {}
    node = Node(
        index=index,
        name=f"{name}-{index}",
        instance_id=described["InstanceId"],
        state=NodeState(described["State"]["Name"]),
        instance_type=described["InstanceType"],
        gpus=_number(tagged.get(tags.GPUS)),
        private_ip=described.get("PrivateIpAddress", ""),
        public_ip=described.get("PublicIpAddress") or None,
        availability_zone=(described.get("Placement") or {}).get("AvailabilityZone", ""),
        launched_at=described["LaunchTime"],
    )
    return Instance(
        node=node,
        cluster=name,
        ssh_user=tagged.get(tags.USER) or "ubuntu",
        nodes_wanted=_number(tagged.get(tags.NODES)),
        image_id=described.get("ImageId", ""),
        key_name=described.get("KeyName", ""),
        launch_token=tagged.get(tags.LAUNCH, ""),
        state_reason=": ".join(
            dict.fromkeys(part for part in (reason.get("Code"), reason.get("Message")) if part)
        ),
    )


def _number(text: str | None) -> int:
    # Tags can be edited by hand: a broken one must not keep `down` from finding the instance.
    return int(text) if text and text.isascii() and text.isdigit() else 0
