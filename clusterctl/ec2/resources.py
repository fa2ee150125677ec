"""Every kind of AWS resource with our tags: how it is listed, read, waited for and deleted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Optional, TypeVar

from clusterctl.domain.cluster import NodeState
from clusterctl.domain.errors import AwsError, ClusterctlError, MissingTool
from clusterctl.domain.timeouts import Clock, Polling, Timeouts
from clusterctl.ec2 import tags
from clusterctl.ec2.errors import paged, retried, throttled, translated
from clusterctl.ec2.instances import (
    Instance,
    batches,
    describe_instances,
    find_instances,
    in_states,
    launched_with,
)
from clusterctl.ec2.network.vpcs import (
    NETWORK,
    ElasticAddress,
    SecurityGroup,
    read_address,
    read_group,
    release_arguments,
)
from clusterctl.ec2.node_role import role_path
from clusterctl.ec2.tags import Creations

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

    from clusterctl.ec2.session import Clients


NOT_TERMINATED = ("pending", "running", "stopping", "stopped", "shutting-down")
_GONE = ("deleted", "terminated", "DELETE_COMPLETE")


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
class KeyPair:
    """A key pair in EC2. `public_key` is an OpenSSH line, empty where EC2 does not return it."""

    name: str
    public_key: str

    def holds(self, public_key: str) -> bool:
        """Return whether this is the same key. The comments may differ."""
        return self.public_key.split()[:2] == public_key.split()[:2]


@dataclass(frozen=True)
class Resource:
    """A resource with clusterctl's tags. `cluster` is None for a network and its parts.

    `made_at` is the creation date, for an instance the start of its last run; None where EC2 has
    none. `attached_to` is the id of the instance or other resource that holds this one. `vpc_ids`
    has the VPC that an instance or security group is in, or that a network consists of. `iops` and
    `throughput` (MiB/s) are those of a gp3 volume. `details` is what only its kind has: a KeyPair,
    SecurityGroup or ElasticAddress.
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
    details: Any = None
    json_names: ClassVar[tuple[str, ...]] = (
        *("kind", "id", "name", "cluster", "network", "region", "state", "made_at"),
    )


def of_instance(one: Instance) -> Resource:
    """Return an instance as a resource, without its region and cluster."""
    node = one.node
    return Resource(
        ResourceKind.INSTANCE,
        node.instance_id,
        state=node.state.value,
        made_at=node.launched_at,
        vpc_ids=_some(one.vpc_id),
        instance=one,
    )


# The readers of one entry of a Describe call's answer.
def _volume(entry: Any) -> Resource:
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


def _address(entry: Any) -> Resource:
    holder = entry.get("InstanceId") or entry.get("NetworkInterfaceId") or ""
    found = read_address(entry)
    return Resource(
        ResourceKind.ADDRESS,
        found.allocation_id or found.public_ip,
        state="associated" if holder else "not associated",
        name=found.public_ip,
        attached_to=holder,
        details=found,
    )


def _interface(entry: Any) -> Resource:
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


def _placement_group(entry: Any) -> Resource:
    name = entry["GroupName"]
    state = entry.get("State", "")
    id = entry.get("GroupId") or name
    return Resource(ResourceKind.PLACEMENT_GROUP, id, state=state, name=name)


def _security_group(entry: Any) -> Resource:
    found = read_group(entry)
    return Resource(
        ResourceKind.SECURITY_GROUP,
        found.group_id,
        name=entry.get("GroupName", ""),
        vpc_ids=_some(found.vpc_id),
        details=found,
    )


def _key_pair(entry: Any) -> Resource:
    found = KeyPair(entry["KeyName"], entry.get("PublicKey", ""))
    id, made_at = entry["KeyPairId"], entry.get("CreateTime")
    return Resource(ResourceKind.KEY_PAIR, id, name=found.name, made_at=made_at, details=found)


def _of_iam(kind: ResourceKind, key: str, entry: Any) -> Resource:
    return Resource(kind, entry[key], name=entry[key], made_at=entry.get("CreateDate"))


def _network(entry: Any) -> Resource:
    outputs = [str(one.get("OutputValue", "")) for one in entry.get("Outputs", ())]
    return Resource(
        ResourceKind.NETWORK,
        entry["StackName"],
        state=entry.get("StackStatus", ""),
        name=entry["StackName"],
        made_at=entry.get("CreationTime"),
        vpc_ids=tuple(value for value in outputs if value.startswith("vpc-")),
    )


def _some(text: str) -> tuple[str, ...]:
    return (text,) if text else ()


@dataclass(frozen=True)
class _Listing:
    """How to list one kind: boto3's method, the answer's key, the reader, the key of the tags, and
    arguments of the method."""

    operation: str
    answer: str
    read: Callable[[Any], Resource]
    tags: str = "Tags"
    service: str = "ec2"
    arguments: tuple[tuple[str, Any], ...] = ()


_PROFILE = partial(_of_iam, ResourceKind.PROFILE, "InstanceProfileName")
_LISTINGS = {
    ResourceKind.ADDRESS: _Listing("describe_addresses", "Addresses", _address),
    ResourceKind.VOLUME: _Listing("describe_volumes", "Volumes", _volume),
    ResourceKind.INTERFACE: _Listing(
        "describe_network_interfaces", "NetworkInterfaces", _interface, "TagSet"
    ),
    ResourceKind.PLACEMENT_GROUP: _Listing(
        "describe_placement_groups", "PlacementGroups", _placement_group
    ),
    ResourceKind.SECURITY_GROUP: _Listing(
        "describe_security_groups", "SecurityGroups", _security_group
    ),
    ResourceKind.PROFILE: _Listing(
        "list_instance_profiles", "InstanceProfiles", _PROFILE, service="iam"
    ),
    ResourceKind.ROLE: _Listing(
        "list_roles", "Roles", partial(_of_iam, ResourceKind.ROLE, "RoleName"), service="iam"
    ),
    ResourceKind.KEY_PAIR: _Listing(
        "describe_key_pairs", "KeyPairs", _key_pair, arguments=(("IncludePublicKey", True),)
    ),
    ResourceKind.NETWORK: _Listing("describe_stacks", "Stacks", _network, service="cloudformation"),
}


def list_kind(clients: Clients, region: str, kind: ResourceKind) -> list[Resource]:
    """Return all resources of one kind that are not deleted, of any cluster. Raises AwsError."""
    tagged: Any = {"Name": "tag-key", "Values": [tags.CLUSTER, NETWORK]}
    found = []
    for one, labels in _listed(clients, region, kind, tagged):
        # A network is no cluster's, whatever tags its stack has.
        cluster = None if kind is ResourceKind.NETWORK else labels.get(tags.CLUSTER)
        network = labels.get(NETWORK)
        if one.state not in _GONE and (cluster is not None or network is not None):
            found.append(replace(one, region=region, cluster=cluster, network=network))
    return found


def _listed(
    clients: Clients, region: str, kind: ResourceKind, tagged: Any
) -> list[tuple[Resource, dict[str, str]]]:
    """Return what has the requested tag, each with its tags."""
    if kind is ResourceKind.INSTANCE:
        there = describe_instances(clients.ec2, [tagged, in_states(NOT_TERMINATED)])
        return [(of_instance(one), dict(one.tags)) for one in there]
    listing = _LISTINGS[kind]
    if listing.service == "ec2":
        return _described(clients.ec2, listing, tagged)
    # DescribeStacks has no filter by tag. IAM's lists have no tags, but the path of what is
    # clusterctl's ends with the cluster's name.
    of_iam: Any = {"PathPrefix": role_path(region)} if listing.service == "iam" else {}
    client = getattr(clients, listing.service)
    entries = paged(client, listing.operation, listing.answer, **of_iam)
    if not of_iam:
        return [(listing.read(entry), tags.tag_dict(entry.get("Tags"))) for entry in entries]
    return [
        (listing.read(entry), {tags.CLUSTER: entry["Path"].split("/")[-2]})
        for entry in entries
        if entry["Path"].startswith(of_iam["PathPrefix"])
    ]


def _described(
    client: Any, listing: _Listing, tagged: Any
) -> list[tuple[Resource, dict[str, str]]]:
    wanted = {"Filters": [tagged], **dict(listing.arguments)}
    if client.can_paginate(listing.operation):
        entries = paged(client, listing.operation, listing.answer, **wanted)
    else:
        # EC2 returns addresses, key pairs and some others at once.
        with translated():
            entries = getattr(client, listing.operation)(**wanted)[listing.answer]
    return [(listing.read(entry), tags.tag_dict(entry.get(listing.tags))) for entry in entries]


def find_resources(client: EC2Client, name: str, kind: ResourceKind) -> tuple[Resource, ...]:
    """Return a cluster's resources of one kind (of EC2's, but instances): usually one or none.

    Raises AwsError.
    """
    found = _described(client, _LISTINGS[kind], tags.of_cluster(name))
    return tuple(one for one, _ in found if one.state not in _GONE)


Details = TypeVar("Details", KeyPair, SecurityGroup, ElasticAddress)


def details_of(found: Iterable[Resource], kind: type[Details]) -> tuple[Details, ...]:
    """Return the details of those that have this kind of them."""
    return tuple(one.details for one in found if isinstance(one.details, kind))


def find_key_pairs(client: EC2Client, name: str) -> tuple[KeyPair, ...]:
    return details_of(find_resources(client, name, ResourceKind.KEY_PAIR), KeyPair)


def find_addresses(client: EC2Client, name: str) -> tuple[ElasticAddress, ...]:
    return details_of(find_resources(client, name, ResourceKind.ADDRESS), ElasticAddress)


# What a cluster has besides its instances and role, and boto3's method that makes it.
CREATED_BY = {
    ResourceKind.KEY_PAIR: "import_key_pair",
    ResourceKind.SECURITY_GROUP: "create_security_group",
    ResourceKind.PLACEMENT_GROUP: "create_placement_group",
    ResourceKind.ADDRESS: "allocate_address",
}


def find_made(client: EC2Client, name: str, creations: Creations) -> tuple[Resource, ...]:
    """Return everything of CREATED_BY with the cluster's tag, waiting for what was started a short
    time ago. Raises AwsError."""
    return tuple(
        one
        for kind, operation in CREATED_BY.items()
        for one in creations.find(operation, partial(find_resources, client, name, kind))
    )


@dataclass(frozen=True)
class _Deletion:
    """The API call that deletes one kind of resource.

    `gone` are the error codes that mean that it does not exist, `in_use` those that mean that
    something still uses it.
    """

    call: Callable[[Any, Resource], object]
    gone: tuple[str, ...]
    in_use: tuple[str, ...] = ()


def _release(client: Any, one: Resource) -> None:
    """Release an elastic address. EC2 refuses that until it is taken from the node that has it."""
    address: ElasticAddress = one.details
    _disassociate(client, address)
    with translated():
        client.release_address(**release_arguments(one.id, address.border_group))


def _disassociate(client: Any, address: ElasticAddress) -> None:
    if not address.association_id:
        return
    try:
        with translated():
            client.disassociate_address(AssociationId=address.association_id)
    except AwsError as error:
        if error.code != "InvalidAssociationID.NotFound":
            raise


DELETIONS = {
    ResourceKind.ADDRESS: _Deletion(
        _release, ("InvalidAllocationID.NotFound",), ("InvalidIPAddress.InUse",)
    ),
    ResourceKind.VOLUME: _Deletion(
        lambda client, one: client.delete_volume(VolumeId=one.id),
        ("InvalidVolume.NotFound",),
        ("VolumeInUse",),
    ),
    ResourceKind.INTERFACE: _Deletion(
        lambda client, one: client.delete_network_interface(NetworkInterfaceId=one.id),
        ("InvalidNetworkInterfaceID.NotFound",),
        ("InvalidNetworkInterface.InUse",),
    ),
    ResourceKind.PLACEMENT_GROUP: _Deletion(
        lambda client, one: client.delete_placement_group(GroupName=one.name),
        ("InvalidPlacementGroup.Unknown",),
        ("InvalidPlacementGroup.InUse",),
    ),
    ResourceKind.SECURITY_GROUP: _Deletion(
        lambda client, one: client.delete_security_group(GroupId=one.id),
        ("InvalidGroup.NotFound", "InvalidGroupId.NotFound"),
        ("DependencyViolation", "InvalidGroup.InUse"),
    ),
    ResourceKind.KEY_PAIR: _Deletion(
        lambda client, one: client.delete_key_pair(KeyName=one.name), ("InvalidKeyPair.NotFound",)
    ),
}


def delete(
    client: Any,
    one: Resource,
    deadline: float,
    on_wait: Callable[[AwsError, float], object] = lambda error, left_s: None,
    clock: Clock = Clock(),
) -> None:
    """Delete a resource of DELETIONS, unless it is gone already.

    Tries again until `deadline` (by `clock.monotonic`) while something still uses it, as EC2
    reports for a while after an instance is gone, and while EC2 is throttling. `on_wait` receives
    the error before each retry, and the seconds left. Raises AwsError.
    """
    deletion = DELETIONS[one.kind]

    def is_temporary(error: AwsError) -> bool:
        return error.code in deletion.in_use or throttled(error)

    polling = Polling(clock, deadline - clock.monotonic(), 0.5)
    try:
        retried(lambda: deletion.call(client, one), is_temporary, polling, on_wait)
    except AwsError as error:
        if error.code not in deletion.gone:
            raise


def delete_all(
    client: Any,
    found: Iterable[Resource],
    kind: ResourceKind,
    timeout_s: float,
    clock: Clock = Clock(),
    on_wait: Callable[[], object] = lambda: None,
) -> tuple[Resource, ...]:
    """Delete those of one kind, and return the ones that were not being deleted.

    Waits up to `timeout_s` while something still uses one, and calls `on_wait` before each further
    try. An address is taken from the node that has it by then: all are to go. Raises AwsError.
    """
    deadline = clock.monotonic() + timeout_s
    chosen = [one for one in found if one.kind is kind and one.state != "deleting"]

    def before_retry(error: AwsError, left_s: float) -> None:
        on_wait()
        if error.code == "InvalidIPAddress.InUse":  # EC2 has not shown before who has it
            with translated():
                answer = client.describe_addresses(AllocationIds=[one.id])
            for now in map(read_address, answer["Addresses"]):
                _disassociate(client, now)

    for one in chosen:
        delete(client, one, deadline, before_retry, clock)
    return tuple(chosen)


def anothers_key(name: str) -> MissingTool:
    """Return the error for a key pair at EC2 that is not the one of this machine."""
    return MissingTool(
        f"the key of cluster {name} is not on this machine: another one has launched it or "
        "tried to, or its folder here is lost",
        "choose another name; or copy the cluster's folder from that machine; or see what there is "
        f"before you remove it: clusterctl status {name}, then clusterctl down {name}",
    )


def await_available(client: EC2Client, name: str, timeouts: Timeouts = Timeouts()) -> None:
    """Wait until the cluster's placement group accepts instances.

    Raises AwsError, and ClusterctlError if that takes more than `placement_group_s`.
    """
    kind = ResourceKind.PLACEMENT_GROUP
    polling = Polling(timeouts.clock, timeouts.placement_group_s, 0.1)
    while True:
        states = {group.state for group in find_resources(client, name, kind)}
        if states == {"available"}:
            return
        if polling.left_s < 0:
            raise ClusterctlError(
                f"the placement group of {name} does not become available: "
                f"{', '.join(states) or 'EC2 does not show it'}",
                "run `up` again, or do without: --no-placement-group",
            )
        polling.wait()


# Instances per TerminateInstances call.
BATCH = 100


class StillShuttingDown(ClusterctlError):
    """Instances that are being terminated have not ended in time. They will."""


def terminate(
    client: EC2Client,
    name: str,
    chosen: Collection[str] | Callable[[Instance], bool],
    polling: Polling,
    on_poll: Callable[[Sequence[Instance]], None] = lambda left: None,
    until_gone: bool = True,
) -> tuple[str, ...]:
    """Terminate a cluster's instances, wait until they are gone, and return the nodes' names.

    `chosen` are their ids, or a function that accepts them: each poll finds these by tag, so it
    also terminates those of a launch still under way. `on_poll` receives the remaining instances of
    each poll. Without `until_gone` it waits only until they shut down: they cost nothing any more,
    but still take room in their reservation, placement group and subnet. Raises AwsError, and once
    the time of `polling` is up ClusterctlError: StillShuttingDown if all shut down.
    """
    by_tag = chosen if callable(chosen) else None
    ids = () if callable(chosen) else chosen
    nodes: dict[str, None] = {}
    # Whatever EC2 shows of them: it may show an instance, or its tags, late.
    request_termination(client, tuple(ids))
    while True:
        found = find_instances(client, name, NOT_TERMINATED)
        left = [one for one in found if (by_tag(one) if by_tag else one.node.instance_id in ids)]
        on_poll(left)
        nodes.update(dict.fromkeys(one.node.name for one in left))
        if until_gone and not left:
            return tuple(nodes)
        # Repeat the request until they shut down: EC2 may accept one for an instance that is still
        # pending and not carry it out.
        awake = [one for one in left if one.node.state is not NodeState.SHUTTING_DOWN]
        if not until_gone and not awake:
            return tuple(nodes)
        request_termination(client, [one.node.instance_id for one in awake])
        if polling.left_s < 0:
            hint = f"see `clusterctl status {name}`"
            if by_tag:
                hint = f"run it again later: clusterctl down {name}"
            kind = ClusterctlError if awake else StillShuttingDown
            raise kind(
                f"still {'running' if awake else 'shutting down'}: "
                f"{', '.join(one.node.name for one in left)}",
                f"their termination is requested; {hint}",
            )
        polling.wait()


def request_termination(client: EC2Client, ids: Sequence[str]) -> None:
    """Call TerminateInstances, leaving out ids that EC2 does not know. Raises AwsError if EC2
    refuses one of them: then none of its batch ends."""
    for batch in batches(ids, BATCH):
        try:
            with translated():
                client.terminate_instances(InstanceIds=batch)
        except AwsError as error:
            # One id that EC2 does not know, because it is too new or too old, fails the call for
            # all. So each is sent separately.
            if error.code != "InvalidInstanceID.NotFound":
                raise
            if len(batch) > 1:
                for one in batch:
                    request_termination(client, [one])


def terminate_each(client: EC2Client, ids: Sequence[str]) -> dict[str, AwsError]:
    """Terminate all that EC2 lets end, and return the error of each instance that it refuses.

    One instance that is protected, or that the caller has no right to, fails the call for all.
    """
    refused: dict[str, AwsError] = {}
    for batch in batches(ids, BATCH):
        try:
            request_termination(client, batch)
        except AwsError as error:
            if len(batch) == 1:
                refused[batch[0]] = error
            for one in batch if len(batch) > 1 else ():
                refused |= terminate_each(client, [one])
    return refused


def await_launches(
    client: EC2Client, tokens: Sequence[str], until: float, clock: Clock
) -> tuple[Instance, ...]:
    """Wait until each of these client tokens has made instances, or until `until` (Unix time).

    For launches of unknown outcome. Returns the instances that EC2 has shown. Raises AwsError.
    """
    polling = Polling(clock, until - clock.time())
    while True:
        made = launched_with(client, tokens)
        if polling.left_s <= 0 or {one.launch_token for one in made} >= set(tokens):
            return made
        polling.wait()
