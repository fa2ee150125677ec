"""Every kind of AWS resource that can carry clusterctl's tags, read into one common form."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, ClassVar, Optional

from clusterctl.domain.cluster import Limits
from clusterctl.ec2.instances import Instance, read_instance, stopped_since
from clusterctl.ec2.money.costs import parse_limits

# The tag with the time at which `gc` first saw a stopped instance. For instances that shut down by
# themselves: EC2 does not record when.
STOPPED_FOUND = "clusterctl:stopped-seen"


class ResourceKind(Enum):
    """The kinds of resources, in the order in which they have to be removed."""

    INSTANCE = "instance"
    ADDRESS = "address"
    VOLUME = "volume"
    INTERFACE = "network interface"
    PLACEMENT_GROUP = "placement group"
    SECURITY_GROUP = "security group"
    PROFILE = "instance profile"
    ROLE = "role"
    KEY_PAIR = "key pair"
    NETWORK = "network"


@dataclass(frozen=True)
class Resource:
    """A resource with clusterctl's tags. `cluster` is None for a network and its parts.

    The sweep fills in `region`, and `cluster` and `network` from the tags. `made_at` is the
    creation date, for an instance the start of its last run; None where EC2 has none. `attached_to`
    is the id of the instance or other resource that holds this one. `vpc_ids` has the VPC that an
    instance or security group is in, or that a network consists of. `iops` and `throughput` (MiB/s)
    are those of a gp3 volume.
    """

    kind: ResourceKind
    id: str
    region: str = ""
    cluster: Optional[str] = None
    network: Optional[str] = None
    state: str = ""
    name: str = ""
    made_at: Optional[datetime] = None
    attached_to: str = ""
    vpc_ids: tuple[str, ...] = ()
    size_gib: int = 0
    iops: int | None = None
    throughput: int | None = None
    instance: Instance | None = None
    json_names: ClassVar[tuple[str, ...]] = (
        *("kind", "id", "name", "cluster", "network", "region", "state", "made_at"),
    )


# The readers of one entry of a Describe call's answer.
def read_machine(entry: Any) -> Resource:
    instance = read_instance(entry)
    return Resource(
        ResourceKind.INSTANCE,
        entry["InstanceId"],
        state=instance.node.state.value,
        made_at=entry["LaunchTime"],
        vpc_ids=_some(entry.get("VpcId")),
        instance=instance,
    )


def read_volume(entry: Any) -> Resource:
    holders = [one.get("InstanceId", "") for one in entry.get("Attachments", ())]
    gp3 = entry.get("VolumeType") == "gp3"
    return Resource(
        ResourceKind.VOLUME,
        entry["VolumeId"],
        state=entry.get("State", ""),
        made_at=entry.get("CreateTime"),
        attached_to=holders[0] if holders else "",
        size_gib=entry.get("Size", 0),
        iops=entry.get("Iops") if gp3 else None,
        throughput=entry.get("Throughput") if gp3 else None,
    )


def read_address(entry: Any) -> Resource:
    holder = entry.get("InstanceId") or entry.get("NetworkInterfaceId") or ""
    return Resource(
        ResourceKind.ADDRESS,
        entry.get("AllocationId") or entry.get("PublicIp", ""),
        state="associated" if holder else "not associated",
        name=entry.get("PublicIp", ""),
        attached_to=holder,
    )


def read_interface(entry: Any) -> Resource:
    attachment = entry.get("Attachment") or {}
    # An interface that an AWS service attached has no InstanceId, only an owner such as amazon-elb.
    owner = attachment.get("InstanceOwnerId", "")
    holder = attachment.get("InstanceId") or (owner if attachment else "")
    return Resource(
        ResourceKind.INTERFACE,
        entry["NetworkInterfaceId"],
        state=entry.get("Status", ""),
        attached_to=holder,
    )


def read_placement_group(entry: Any) -> Resource:
    return Resource(
        ResourceKind.PLACEMENT_GROUP,
        entry.get("GroupId") or entry["GroupName"],
        state=entry.get("State", ""),
        name=entry["GroupName"],
    )


def read_security_group(entry: Any) -> Resource:
    return Resource(
        ResourceKind.SECURITY_GROUP,
        entry["GroupId"],
        name=entry.get("GroupName", ""),
        vpc_ids=_some(entry.get("VpcId")),
    )


def read_key_pair(entry: Any) -> Resource:
    return Resource(
        ResourceKind.KEY_PAIR,
        entry["KeyPairId"],
        name=entry.get("KeyName", ""),
        made_at=entry.get("CreateTime"),
    )


def read_profile(entry: Any) -> Resource:
    name = entry["InstanceProfileName"]
    return Resource(ResourceKind.PROFILE, name, name=name, made_at=entry.get("CreateDate"))


def read_role(entry: Any) -> Resource:
    name = entry["RoleName"]
    return Resource(ResourceKind.ROLE, name, name=name, made_at=entry.get("CreateDate"))


def read_network(entry: Any) -> Resource:
    outputs = [str(one.get("OutputValue", "")) for one in entry.get("Outputs", ())]
    return Resource(
        ResourceKind.NETWORK,
        entry["StackName"],
        state=entry.get("StackStatus", ""),
        name=entry["StackName"],
        made_at=entry.get("CreationTime"),
        vpc_ids=tuple(value for value in outputs if value.startswith("vpc-")),
    )


def _some(text: str | None) -> tuple[str, ...]:
    return (text,) if text else ()


def stopped_at(one: Resource) -> datetime | None:
    """Return when an instance stopped, from EC2 or from the tag that `gc` set; None if neither."""
    if one.instance is None or one.made_at is None:
        return None
    requested = stopped_since(one.instance.transition_reason)
    try:
        noted = datetime.fromisoformat(one.instance.tags.get(STOPPED_FOUND, ""))
    except ValueError:
        noted = None
    # Each start sets a new launch time, so an older time is that of an earlier stop.
    times = [
        time
        for time in (requested, noted)
        if time is not None and time.tzinfo is not None and time >= one.made_at
    ]
    return min(times) if times else None


def limits_of(one: Resource) -> Limits:
    """Return the limits in an instance's tag. Anybody may have edited it: nonsense is no limit."""
    return parse_limits(one.instance.limits_text if one.instance else "")
