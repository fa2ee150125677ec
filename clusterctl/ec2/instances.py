"""What exists: instances, read by tag, as clusters and nodes; their tags and attributes."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from clusterctl.domain.cluster import Cluster, Disk, Market, Node, NodeState, is_user_name
from clusterctl.domain.errors import AwsError
from clusterctl.ec2 import tags
from clusterctl.ec2.errors import translated
from clusterctl.ec2.tags import tag_list

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

# A node on its way out is not part of its cluster.
PRESENT = ("pending", "running", "stopping", "stopped")
# The most that EC2 gives, and takes beside filters only: never beside InstanceIds.
PAGE: Any = {"PageSize": 1000}
# The most that DescribeInstanceStatus takes.
STATUS_IDS = 100


@dataclass(frozen=True)
class Instance:
    """A node with what only EC2 and the launcher care about.

    EC2 says when the last run began (`node.launched_at`); `made_at` is when the first one did.
    """

    node: Node
    cluster: str
    ssh_user: str
    wanted: tuple[int, ...]
    image_id: str
    key_name: str
    launch_token: str
    state_reason: str = ""
    state_since: str = ""
    retired: bool = False
    unfinished: tags.Unfinished = tags.Unfinished()
    vpc_id: str = ""
    subnet_id: str = ""
    interface_id: str = ""
    several_interfaces: bool = False
    efa: bool = False
    efa_interfaces: int = 0
    placement_group: str = ""
    market: Market = Market.ON_DEMAND
    reservation_id: str = ""
    instance_profile: str = ""
    private: bool = False
    disk: Disk = field(default_factory=Disk)
    limits_text: str = ""
    spent: tags.Spent = field(default_factory=tags.Spent)
    made_at: datetime | None = None
    owner_id: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)


def list_clusters(client: EC2Client) -> tuple[Cluster, ...]:
    """Every cluster of the account in this region, by name. Raises AwsError."""
    found = find_every_cluster(client)
    clusters = (as_cluster(client, name, found[name]) for name in found)
    return tuple(cluster for cluster in clusters if cluster)


def find_every_cluster(client: EC2Client) -> dict[str, tuple[Instance, ...]]:
    """The instances of every cluster in this region, by the cluster's name. Raises AwsError."""
    found: dict[str, list[Instance]] = {}
    every = {"Name": "tag-key", "Values": [tags.CLUSTER]}
    for instance in _describe(client, [every, _in_states(PRESENT)]):
        found.setdefault(instance.cluster, []).append(instance)
    return {name: tuple(found[name]) for name in sorted(found)}


def find_instances(
    client: EC2Client, name: str, states: Sequence[str] = PRESENT
) -> tuple[Instance, ...]:
    """A cluster's instances in these states, by index; no states means all. Raises AwsError."""
    filters = [tags.of_cluster(name), *([_in_states(states)] if states else [])]
    return tuple(_describe(client, filters))


def find_states(client: EC2Client, instance_ids: Sequence[str]) -> dict[str, NodeState]:
    """The states of these instances, for an answer a fifth as long as that of `find_instances`.

    Instances that EC2 does not show yet are left out. Raises AwsError.
    """
    found: list[Any] = []
    for start in range(0, len(instance_ids), STATUS_IDS):
        batch = list(instance_ids[start : start + STATUS_IDS])
        try:
            with translated():
                answer = client.describe_instance_status(
                    InstanceIds=batch, IncludeAllInstances=True
                )
        except AwsError as error:
            # One of them that was launched just now is enough.
            if error.code != "InvalidInstanceID.NotFound":
                raise
            continue
        found += answer["InstanceStatuses"]
    return {one["InstanceId"]: NodeState(one["InstanceState"]["Name"]) for one in found}


def impaired_checks(client: EC2Client, instance_ids: Sequence[str]) -> dict[str, str]:
    """What EC2's status checks say of those of these instances that fail one. Raises AwsError."""
    found: list[Any] = []
    for start in range(0, len(instance_ids), STATUS_IDS):
        batch = list(instance_ids[start : start + STATUS_IDS])
        with translated():
            found += client.describe_instance_status(InstanceIds=batch)["InstanceStatuses"]
    said: dict[str, str] = {}
    for one in found:
        checks = {"system": one.get("SystemStatus"), "instance": one.get("InstanceStatus")}
        for name, check in checks.items():
            if check and check.get("Status") == "impaired":
                times = [detail.get("ImpairedSince") for detail in check.get("Details", ())]
                since = "".join(f" since {at:%Y-%m-%d %H:%M:%S} UTC" for at in times if at)
                said.setdefault(one["InstanceId"], f"its {name} status check fails{since}")
    return said


def launched_with(client: EC2Client, tokens: Sequence[str]) -> frozenset[str]:
    """Return the client tokens among these that have made instances. Raises AwsError."""
    if not tokens:
        return frozenset()
    seen = _describe(client, [{"Name": f"tag:{tags.LAUNCH}", "Values": list(tokens)}])
    return frozenset(instance.launch_token for instance in seen)


def as_cluster(client: EC2Client, name: str, instances: Sequence[Instance]) -> Cluster | None:
    """The members among these instances as a cluster; None without any."""
    members = standing(instances)
    if not members:
        return None
    return Cluster(
        name=name,
        region=client.meta.region_name,
        ssh_user=members[0].ssh_user,
        nodes=tuple(instance.node for instance in members),
        wanted=wanted_of(instances),
    )


def wanted_of(instances: Sequence[Instance]) -> tuple[int, ...]:
    """The indices that the cluster is to have. The head node's word counts: it is never removed."""
    current = [found for found in instances if not found.retired] or instances
    return min(current, key=lambda found: found.node.index).wanted if current else ()


def members_of(instances: Sequence[Instance]) -> tuple[Instance, ...]:
    """Without the nodes that are being replaced or removed."""
    wanted = wanted_of(instances)
    return tuple(
        found
        for found in instances
        if not found.retired and (not wanted or found.node.index in wanted)
    )


def leaving_of(instances: Sequence[Instance]) -> tuple[Instance, ...]:
    """The nodes that are being replaced or removed, and cost until they are gone."""
    ids = {found.node.instance_id for found in members_of(instances)}
    return tuple(found for found in instances if found.node.instance_id not in ids)


def unfinished_of(instances: Sequence[Instance]) -> tags.Unfinished:
    """What `add`, `remove` and `replace` were asked for and are not done with.

    The tag is on every member but those launched since, and on replaced nodes until they are gone.
    What a later command has revoked does not count.
    """
    said = (one.unfinished for one in (*members_of(instances), *instances))
    first = next((one for one in said if one), tags.Unfinished())
    wanted = set(wanted_of(instances))
    return tags.Unfinished(
        add=tuple(index for index in first.add if index in wanted),
        remove=tuple(index for index in first.remove if index not in wanted),
        replace=tuple(index for index in first.replace if index in wanted),
    )


def standing(instances: Sequence[Instance]) -> tuple[Instance, ...]:
    """The members; where every node is being replaced, those: they run and cost until then."""
    return members_of(instances) or tuple(instances)


def _in_states(states: Iterable[str]) -> dict[str, Any]:
    return {"Name": "instance-state-name", "Values": list(states)}


def _describe(client: EC2Client, filters: list[Any]) -> list[Instance]:
    with translated():
        pages = client.get_paginator("describe_instances")
        found = pages.paginate(Filters=filters, PaginationConfig=PAGE)
        described = [entry for page in found for entry in _entries(page)]
    instances = [read_instance(entry) for entry in described]
    return sorted(instances, key=lambda found: (found.node.index, found.node.instance_id))


def _entries(page: Any) -> Iterator[Any]:
    for reservation in page["Reservations"]:
        # The account that pays, also in a subnet that another one shares.
        owner = {"OwnerId": reservation.get("OwnerId", "")}
        yield from ({**instance, **owner} for instance in reservation["Instances"])


def read_instance(described: Any) -> Instance:
    """What DescribeInstances says about one instance, in our words."""
    tagged = tags.tag_dict(described.get("Tags"))
    index = _number(tagged.get(tags.FIRST_INDEX)) + described.get("AmiLaunchIndex", 0)
    name = _name(tagged.get(tags.CLUSTER, ""))
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
        quarantined=tagged.get(tags.QUARANTINED, ""),
    )
    return Instance(
        node=node,
        cluster=name,
        ssh_user=_user(tagged.get(tags.USER, "")),
        wanted=tags.read_indices(tagged.get(tags.NODES, "")),
        image_id=described.get("ImageId", ""),
        key_name=described.get("KeyName", ""),
        launch_token=tagged.get(tags.LAUNCH, ""),
        state_since=described.get("StateTransitionReason", ""),
        retired=tags.RETIRED in tagged,
        unfinished=tags.read_unfinished(tagged.get(tags.UNFINISHED, "")),
        vpc_id=described.get("VpcId", ""),
        subnet_id=described.get("SubnetId", ""),
        interface_id=str(_primary_interface(described).get("NetworkInterfaceId", "")),
        several_interfaces=len(described.get("NetworkInterfaces", ())) > 1,
        efa=_efa_interfaces(described) > 0,
        efa_interfaces=_efa_interfaces(described),
        placement_group=(described.get("Placement") or {}).get("GroupName", ""),
        market=_market(described.get("InstanceLifecycle", "")),
        reservation_id=_targeted_reservation(described),
        instance_profile=(described.get("IamInstanceProfile") or {})
        .get("Arn", "")
        .rpartition("/")[2],
        private=tags.PRIVATE in tagged,
        disk=tags.read_disk(tagged.get(tags.DISK, "")),
        limits_text=tagged.get(tags.LIMITS, ""),
        spent=tags.read_spent(tagged.get(tags.SPENT, "")),
        made_at=_made_at(described),
        owner_id=described.get("OwnerId", ""),
        tags=tagged,
        state_reason=_reason(reason.get("Code") or "", reason.get("Message") or ""),
    )


def stopped_since(reason: str) -> datetime | None:
    """When a stop was asked for, from `User initiated (2026-11-21 16:18:17 GMT)`.

    None where EC2 does not say, as for a machine that shut itself down.
    """
    match = re.search(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)", reason, re.ASCII)
    if not match:
        return None
    try:
        return datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=timezone.utc)
    except ValueError:
        return None


def _reason(code: str, message: str) -> str:
    # Most messages begin with the code.
    if message.startswith(code):
        return message
    return f"{code}: {message}" if message else code


def _primary_interface(described: Any) -> Any:
    for one in described.get("NetworkInterfaces", ()):
        attached = one.get("Attachment") or {}
        if not attached.get("DeviceIndex", 0) and not attached.get("NetworkCardIndex", 0):
            return one
    return {}


def _made_at(described: Any) -> datetime | None:
    # Nobody can detach the primary interface: it was attached at the first launch.
    attached: Any = _primary_interface(described).get("Attachment") or {}
    made: datetime | None = attached.get("AttachTime")
    return made


def _efa_interfaces(described: Any) -> int:
    kinds = [one.get("InterfaceType", "") for one in described.get("NetworkInterfaces", ())]
    return sum(kind.startswith("efa") for kind in kinds)


def _targeted_reservation(described: Any) -> str:
    # CapacityReservationId also names an open reservation that an instance happened to fall into.
    asked = described.get("CapacityReservationSpecification") or {}
    target = asked.get("CapacityReservationTarget") or {}
    return str(target.get("CapacityReservationId", ""))


def _market(lifecycle: str) -> Market:
    try:
        return Market(lifecycle)
    except ValueError:
        return Market.ON_DEMAND


# Whoever may tag may write anything, also what would be a ProxyCommand in ssh_config. A tag that is
# no name must not keep `down` from finding the instance.
def _user(text: str) -> str:
    return text if is_user_name(text) else "ubuntu"


def _name(text: str) -> str:
    # Commands ask for names that they have checked; only `list` and `costs` see any other.
    return text if text.isprintable() else ascii(text)


def _number(text: str | None) -> int:
    # Tags can be edited by hand: a broken one must not keep `down` from finding the instance.
    return int(text) if text and text.isascii() and text.isdigit() else 0


def tag(client: EC2Client, instance_ids: Sequence[str], labels: Mapping[str, str]) -> None:
    """Set these tags; without instances there is nothing to do. Raises AwsError."""
    if instance_ids:
        given: Any = tag_list(labels)
        with translated():
            client.create_tags(Resources=list(instance_ids), Tags=given)


def untag(client: EC2Client, instance_ids: Sequence[str], key: str) -> None:
    """Take this tag away; without instances there is nothing to do. Raises AwsError."""
    if instance_ids:
        with translated():
            client.delete_tags(Resources=list(instance_ids), Tags=[{"Key": key}])


# EC2 has no call for several; more at once would only be throttled.
AT_ONCE = 8


def find_user_data(client: EC2Client, instance_id: str) -> bytes:
    """As RunInstances got it; empty for none. Raises AwsError."""
    with translated():
        answer = client.describe_instance_attribute(InstanceId=instance_id, Attribute="userData")
    return base64.b64decode((answer.get("UserData") or {}).get("Value", ""))


def set_at_power_off(client: EC2Client, instance_ids: Iterable[str], behavior: str) -> None:
    """Have EC2 `stop` or `terminate` these when they switch themselves off. Raises AwsError.

    EC2 is asked what it has, not a tag: a change may have been cut off half-way.
    """

    def one(instance_id: str) -> None:
        wanted: Any = {"Value": behavior}
        name: Any = "instanceInitiatedShutdownBehavior"
        with translated():
            found = client.describe_instance_attribute(InstanceId=instance_id, Attribute=name)
            if found.get("InstanceInitiatedShutdownBehavior") != wanted:
                client.modify_instance_attribute(
                    InstanceId=instance_id, InstanceInitiatedShutdownBehavior=wanted
                )

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(one, instance_ids))
