"""Existing instances, found by tag and read as clusters and nodes; changes of their tags."""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from clusterctl.domain.cluster import Cluster, Disk, Market, Node, NodeState, is_user_name
from clusterctl.domain.errors import AwsError, ClusterctlError
from clusterctl.domain.ranges import fold_hosts, grouped
from clusterctl.domain.timeouts import Polling, Timeouts
from clusterctl.ec2 import tags
from clusterctl.ec2.errors import Answer, paged, retried, translated
from clusterctl.ec2.tags import tag_list

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

# The states of a cluster's nodes. An instance that is shutting down is no longer part of its
# cluster.
PRESENT = ("pending", "running", "stopping", "stopped")
# EC2's largest page. EC2 refuses a page size together with InstanceIds, so use it with filters.
PAGE: Any = {"PageSize": 1000}
# Instance ids per DescribeInstanceStatus call.
STATUS_IDS = 100


@dataclass(frozen=True)
class Instance:
    """A node together with EC2's other facts and the cluster's tags on it.

    `node.launched_at` is the start of the last run, `first_launched_at` the start of the first one;
    None where EC2 does not show it. `wanted` has the indices that all nodes of the cluster should
    have. `retired` nodes are being replaced. `transition_reason` is EC2's StateTransitionReason,
    which may name the time of a stop (see `stopped_since`). `reservation_id` is set only for an
    instance that was launched into that reservation by id. `owner_id` is the account that pays.
    `earlier_limits` are the limits that the node may still have; empty if it has those of the tag.
    `ends_at` is when the node ends if its last run began after the end by its limits.
    """

    node: Node
    cluster: str
    ssh_user: str
    wanted: tuple[int, ...]
    image_id: str
    key_name: str
    launch_token: str
    state_reason: str = ""
    transition_reason: str = ""
    retired: bool = False
    unfinished: tags.Unfinished = tags.Unfinished()
    vpc_id: str = ""
    subnet_id: str = ""
    interface_id: str = ""
    several_interfaces: bool = False
    efa_interfaces: int = 0
    placement_group: str = ""
    market: Market = Market.ON_DEMAND
    reservation_id: str = ""
    instance_profile: str = ""
    private: bool = False
    disk: Disk = field(default_factory=Disk)
    limits_text: str = ""
    earlier_limits: str = ""
    spent: tags.Spent | None = None
    ends_at: datetime | None = None
    first_launched_at: datetime | None = None
    owner_id: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def efa(self) -> bool:
        """Whether it has an EFA."""
        return self.efa_interfaces > 0


def first_launch(instance: Instance) -> datetime:
    """Return the start of the first run; of the last run where EC2 does not show the first."""
    return instance.first_launched_at or instance.node.launched_at


def find_every_cluster(
    client: EC2Client, states: Sequence[str] = PRESENT
) -> dict[str, tuple[Instance, ...]]:
    """Return the instances of every cluster in this region, by cluster name. Raises AwsError."""
    every = {"Name": "tag-key", "Values": [tags.CLUSTER]}
    there = describe_instances(client, [every, in_states(states)])
    found = grouped((one.cluster, one) for one in there)
    return {name: tuple(found[name]) for name in sorted(found)}


def find_instances(
    client: EC2Client, name: str, states: Sequence[str] = PRESENT
) -> tuple[Instance, ...]:
    """Return a cluster's instances in these states, by index. Raises AwsError.

    Empty `states` means all states, including terminated.
    """
    filters = [tags.of_cluster(name), *([in_states(states)] if states else [])]
    return tuple(describe_instances(client, filters))


def find_untagged(client: EC2Client, name: str) -> tuple[Instance, ...]:
    """Return the present instances that were launched with the cluster's key pair and do not have
    its tag. Raises AwsError.

    RunInstances sets the tag, so somebody has removed it since, or EC2 does not show it yet.
    """
    key = {"Name": "key-name", "Values": [tags.resource_name(name)]}
    found = describe_instances(client, [key, in_states(PRESENT)])
    return tuple(one for one in found if one.cluster != name)


def find_with(
    client: EC2Client,
    name: str,
    launched: Collection[str],
    older: Collection[str],
    timeouts: Timeouts,
) -> tuple[Instance, ...]:
    """Return a cluster's instances in all states, once EC2 shows those with these ids among them.

    EC2 has shown each of them before, and may leave it out again for a moment. It forgets those
    that have terminated, so `older` ones are waited for during `shown_s` only. Raises AwsError, and
    ClusterctlError where `launched` ones are not shown within `visible_s`.
    """
    polling = Polling(timeouts.clock, timeouts.visible_s)
    while True:
        found = find_instances(client, name, states=())
        waited_s = timeouts.visible_s - polling.left_s
        there = {one.node.instance_id for one in found}
        missing = set(launched) - there
        if not missing and (set(older) <= there or waited_s > timeouts.shown_s):
            return found
        if missing and waited_s > timeouts.visible_s:
            raise ClusterctlError(
                f"EC2 does not show {', '.join(sorted(missing))} any more, which it has shown",
                f"check `clusterctl status {name}`, then run `up` again",
            )
        polling.wait()


def find_profile_associations(client: EC2Client, ids: Sequence[str]) -> Mapping[str, str]:
    """Return the id of the association with an instance profile, by instance id. Raises AwsError.

    Instances without a profile are left out.
    """
    found = {}
    for batch in batches(ids, STATUS_IDS):
        there: Any = [
            {"Name": "instance-id", "Values": batch},
            {"Name": "state", "Values": ["associating", "associated"]},
        ]
        key = "IamInstanceProfileAssociations"
        operation = "describe_iam_instance_profile_associations"
        for one in paged(client, operation, key, Filters=there):
            found[one["InstanceId"]] = one["AssociationId"]
    return found


def batches(ids: Sequence[str], size: int) -> list[list[str]]:
    """Split ids into lists of at most `size`, the most that one API call takes."""
    return [list(ids[start : start + size]) for start in range(0, len(ids), size)]


def find_states(client: EC2Client, instance_ids: Sequence[str]) -> dict[str, NodeState]:
    """Return the states of these instances, by id.

    EC2's answer is a fifth as long as that for `find_instances`. Instances that EC2 does not show
    yet are left out, and so is the batch of 100 that such an instance is in. Raises AwsError.
    """
    found: list[Any] = []
    for batch in batches(instance_ids, STATUS_IDS):
        try:
            with translated():
                answer = client.describe_instance_status(
                    InstanceIds=batch, IncludeAllInstances=True
                )
        except AwsError as error:
            # EC2 does not know one of the ids yet, and refuses the call for all of them.
            if error.code != "InvalidInstanceID.NotFound":
                raise
            continue
        found += answer["InstanceStatuses"]
    return {one["InstanceId"]: NodeState(one["InstanceState"]["Name"]) for one in found}


def launched_with(client: EC2Client, tokens: Sequence[str]) -> tuple[Instance, ...]:
    """Return the instances that launches with these client tokens have made. Raises AwsError."""
    if not tokens:
        return ()
    return tuple(
        describe_instances(client, [{"Name": f"tag:{tags.LAUNCH}", "Values": list(tokens)}])
    )


def billing_reservations(instances: Iterable[Instance]) -> tuple[str, ...]:
    """Return the ids of the Capacity Reservations that these instances are in, sorted.

    AWS bills their capacity at the On-Demand rate, whether instances run in it or not, until they
    are cancelled (EC2 user guide, "Capacity Reservation pricing and billing"). Capacity Blocks were
    paid for in advance and are left out.
    """
    ids = {one.reservation_id for one in instances if one.market is not Market.CAPACITY_BLOCK}
    return tuple(sorted(ids - {""}))


def as_cluster(client: EC2Client, name: str, instances: Sequence[Instance]) -> Cluster:
    """Return the members among these instances, at least one, as a cluster.

    Where all nodes are being replaced, these are the members.
    """
    members = members_or_all(instances)
    return Cluster(
        name=name,
        region=client.meta.region_name,
        ssh_user=members[0].ssh_user,
        nodes=tuple(instance.node for instance in members),
        wanted=wanted_of(instances),
    )


def wanted_of(instances: Sequence[Instance]) -> tuple[int, ...]:
    """Return the indices that the cluster should have; empty without such a tag.

    The tag of the node with the lowest index counts, usually the head node, which is never removed.
    """
    current = [found for found in instances if not found.retired] or instances
    return min(current, key=lambda found: found.node.index).wanted if current else ()


def missing_of(instances: Sequence[Instance]) -> list[int]:
    """Return the indices of the nodes that should exist and have no instance."""
    there = {found.node.index for found in instances}
    return [index for index in wanted_of(instances) if index not in there]


def members_of(instances: Sequence[Instance]) -> tuple[Instance, ...]:
    """Return the members of the cluster: all but the nodes that are being replaced or removed."""
    wanted = wanted_of(instances)
    return tuple(
        found
        for found in instances
        if not found.retired and (not wanted or found.node.index in wanted)
    )


def leaving_of(instances: Sequence[Instance]) -> tuple[Instance, ...]:
    """Return the nodes that are being replaced or removed. They cost money until they are gone."""
    ids = {found.node.instance_id for found in members_of(instances)}
    return tuple(found for found in instances if found.node.instance_id not in ids)


def unfinished_of(instances: Sequence[Instance]) -> tags.Unfinished:
    """Return what earlier `add`, `remove` and `replace` commands have not finished.

    Their tag is on every member but those launched since, and on replaced nodes until they are
    gone. Parts that a later command has revoked are left out.
    """
    why = (one.unfinished for one in (*members_of(instances), *instances))
    first = next((one for one in why if one), tags.Unfinished())
    wanted = set(wanted_of(instances))
    return tags.Unfinished(
        add=tuple(index for index in first.add if index in wanted),
        remove=tuple(index for index in first.remove if index not in wanted),
        replace=tuple(index for index in first.replace if index in wanted),
    )


def duplicate_nodes(name: str, members: Iterable[Node]) -> ClusterctlError | None:
    """Return the error for several of a cluster's members with one index; None without."""
    counted = Counter(node.index for node in members)
    twice = sorted(index for index, number in counted.items() if number > 1)
    if not twice:
        return None
    command = "down" if twice[0] == 0 else "remove"
    indices = "" if twice[0] == 0 else f" {' '.join(map(str, twice))}"
    return ClusterctlError(
        f"there are several instances for {fold_hosts([f'{name}-{one}' for one in twice])}: "
        "two commands launched at once, from two machines",
        f"remove them, and launch again: clusterctl {command} {name}{indices}",
    )


def members_or_all(instances: Sequence[Instance]) -> tuple[Instance, ...]:
    """Return the members; where every node is being replaced, all nodes, which run until then."""
    return members_of(instances) or tuple(instances)


def in_states(states: Iterable[str]) -> dict[str, Any]:
    """Return the EC2 filter for instances in these states."""
    return {"Name": "instance-state-name", "Values": list(states)}


def describe_instances(client: EC2Client, filters: list[Any]) -> list[Instance]:
    """Return the instances that all these filters let through, by index. Raises AwsError."""
    found = described_instances(client, Filters=filters, PaginationConfig=PAGE)
    instances = [read_instance(entry) for entry in found]
    return sorted(instances, key=lambda found: (found.node.index, found.node.instance_id))


def described_instances(client: EC2Client, **arguments: Any) -> list[Any]:
    """Return all entries of DescribeInstances' answer. Raises AwsError."""
    return [
        # The reservation's owner is the account that pays, even in a subnet shared by another one.
        {**instance, "OwnerId": reservation.get("OwnerId", "")}
        for reservation in paged(client, "describe_instances", "Reservations", **arguments)
        for instance in reservation["Instances"]
    ]


def read_instance(described: Any) -> Instance:
    """Read one instance of DescribeInstances' answer. Tags that make no sense count as absent."""
    tagged = tags.tag_dict(described.get("Tags"))
    index = _number(tagged.get(tags.FIRST_INDEX)) + described.get("AmiLaunchIndex", 0)
    index = _number(tagged.get(tags.INDEX, str(index)))
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
        zone=(described.get("Placement") or {}).get("AvailabilityZone", ""),
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
        transition_reason=described.get("StateTransitionReason", ""),
        retired=tags.RETIRED in tagged,
        unfinished=tags.read_unfinished(tagged.get(tags.UNFINISHED, "")),
        vpc_id=described.get("VpcId", ""),
        subnet_id=described.get("SubnetId", ""),
        interface_id=str(_primary_interface(described).get("NetworkInterfaceId", "")),
        several_interfaces=len(described.get("NetworkInterfaces", ())) > 1,
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
        earlier_limits=tagged.get(tags.EARLIER_LIMITS, ""),
        spent=tags.read_spent(tagged.get(tags.SPENT, "")),
        ends_at=tags.read_time(tagged.get(tags.ENDS_AT, "")),
        first_launched_at=_first_launched_at(described),
        owner_id=described.get("OwnerId", ""),
        tags=tagged,
        state_reason=_reason(reason.get("Code") or "", reason.get("Message") or ""),
    )


def stopped_since(reason: str) -> datetime | None:
    """Return when a stop was requested, from `User initiated (2026-11-21 16:18:17 GMT)`.

    None where EC2 has no time, as for a machine that shut itself down.
    """
    match = re.search(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)", reason, re.ASCII)
    if not match:
        return None
    try:
        return datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=timezone.utc)
    except ValueError:
        return None


def _reason(code: str, message: str) -> str:
    # Most of EC2's messages begin with the code; do not repeat it.
    if message.startswith(code):
        return message
    return f"{code}: {message}" if message else code


def _primary_interface(described: Any) -> Any:
    for one in described.get("NetworkInterfaces", ()):
        attached = one.get("Attachment") or {}
        if not attached.get("DeviceIndex", 0) and not attached.get("NetworkCardIndex", 0):
            return one
    return {}


def _first_launched_at(described: Any) -> datetime | None:
    # The primary interface cannot be detached, so it was attached at the first launch. LaunchTime,
    # in contrast, changes at every start.
    attached: Any = _primary_interface(described).get("Attachment") or {}
    made: datetime | None = attached.get("AttachTime")
    return made


def _efa_interfaces(described: Any) -> int:
    kinds = [one.get("InterfaceType", "") for one in described.get("NetworkInterfaces", ())]
    return sum(kind.startswith("efa") for kind in kinds)


def _targeted_reservation(described: Any) -> str:
    # Not CapacityReservationId: it also names an open reservation that EC2 matched by itself.
    requested = described.get("CapacityReservationSpecification") or {}
    target = requested.get("CapacityReservationTarget") or {}
    return str(target.get("CapacityReservationId", ""))


def _market(lifecycle: str) -> Market:
    try:
        return Market(lifecycle)
    except ValueError:
        return Market.ON_DEMAND


# Anybody who may set tags can write anything into them, even a ProxyCommand for ssh_config. An
# invalid user name must not raise either: `down` has to find the instance all the same.
def _user(text: str) -> str:
    return text if is_user_name(text) else "ubuntu"


def _name(text: str) -> str:
    # Commands search for names that they have checked. Only the listings of all clusters can meet
    # another one, and it must not put control characters on the terminal.
    return text if text.isprintable() else ascii(text)


def _number(text: str | None) -> int:
    # Tags can be edited by hand. A broken one must not keep `down` from finding the instance.
    return int(text) if text and text.isascii() and text.isdigit() else 0


def once_known(call: Callable[[], Answer], timeouts: Timeouts = Timeouts()) -> Answer:
    """Return the answer to a call that names instances.

    Repeats it for `shown_s` while EC2 does not know one of them, as of an instance that it has
    shown before, but launched a moment ago. Raises AwsError.
    """
    polling = Polling(timeouts.clock, timeouts.shown_s)
    return retried(call, lambda error: error.code == "InvalidInstanceID.NotFound", polling)


def tag(client: EC2Client, instance_ids: Sequence[str], labels: Mapping[str, str]) -> None:
    """Set these tags on the instances. Does nothing without instances. Raises AwsError."""
    if instance_ids:
        given: Any = tag_list(labels)
        once_known(lambda: client.create_tags(Resources=list(instance_ids), Tags=given))


def untag(
    client: EC2Client, instance_ids: Sequence[str], key: str, value: str | None = None
) -> None:
    """Remove this tag from the instances; with `value`, from those where it has this value.

    Does nothing without instances. Raises AwsError.
    """
    if instance_ids:
        gone: Any = [{"Key": key} if value is None else {"Key": key, "Value": value}]
        once_known(lambda: client.delete_tags(Resources=list(instance_ids), Tags=gone))


# Threads that change an attribute, which EC2 does for one instance per call. EC2 would throttle
# more of them.
AT_ONCE = 8


def find_user_data(client: EC2Client, instance_id: str) -> bytes:
    """Return an instance's user data as RunInstances received it; empty for none.

    Raises AwsError.
    """
    answer = once_known(
        lambda: client.describe_instance_attribute(InstanceId=instance_id, Attribute="userData")
    )
    return base64.b64decode((answer.get("UserData") or {}).get("Value", ""))


def name_each(client: EC2Client, instances: Iterable[Instance]) -> None:
    """Give each instance its node's name, as in `demo-3`. RunInstances gives all the same.

    Consoles, bills and AWS's mails of retirements show it. Raises AwsError.
    """

    def one(instance: Instance) -> None:
        tag(client, [instance.node.instance_id], {"Name": instance.node.name})

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(one, instances))


def set_at_power_off(client: EC2Client, instance_ids: Iterable[str], behavior: str) -> None:
    """Have EC2 `stop` or `terminate` these instances when they power themselves off.

    Reads each instance's present setting from EC2 and not from the tag of the limits, because an
    earlier change may have been interrupted half-way. Raises AwsError.
    """

    def one(instance_id: str) -> None:
        wanted: Any = {"Value": behavior}
        name: Any = "instanceInitiatedShutdownBehavior"
        found = once_known(
            lambda: client.describe_instance_attribute(InstanceId=instance_id, Attribute=name)
        )
        if found.get("InstanceInitiatedShutdownBehavior") != wanted:
            once_known(
                lambda: client.modify_instance_attribute(
                    InstanceId=instance_id, InstanceInitiatedShutdownBehavior=wanted
                )
            )

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(one, instance_ids))
