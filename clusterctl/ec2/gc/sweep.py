"""Listing of all resources in a region that carry one of clusterctl's tags, of any cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from clusterctl.domain.errors import AwsError, ClusterctlError
from clusterctl.domain.results import WithError
from clusterctl.ec2 import tags
from clusterctl.ec2.cluster_resources import NOT_TERMINATED
from clusterctl.ec2.errors import translated
from clusterctl.ec2.gc import resources
from clusterctl.ec2.gc.resources import Resource, ResourceKind
from clusterctl.ec2.instances import PAGE
from clusterctl.ec2.network.vpcs import NETWORK
from clusterctl.ec2.node_role import role_path

if TYPE_CHECKING:
    from clusterctl.ec2.session import Clients

# After one of these errors every other call to the region would fail too.
_NO_ANSWER = (
    "EndpointConnectionError",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "AuthFailure",
    "OptInRequired",
    "ExpiredToken",
    "RequestExpired",
    "InvalidClientTokenId",
    "UnrecognizedClientException",
)
_GONE = ("deleted", "terminated", "DELETE_COMPLETE")


@dataclass(frozen=True)
class Unlisted(WithError):
    """A kind of resource that could not be listed in a region, and why."""

    error: AwsError
    region: str
    kind: ResourceKind
    json_names = ("region", "kind", "message", "hint")


@dataclass(frozen=True)
class RegionResources:
    """The resources of one region, and the kinds that could not be listed there."""

    resources: tuple[Resource, ...] = ()
    failures: tuple[Unlisted, ...] = ()


def all_regions(clients: Clients) -> tuple[str, ...]:
    """Return the regions that are enabled for the account, sorted. Raises AwsError."""
    with translated():
        found = clients.ec2.describe_regions()["Regions"]
    return tuple(sorted(region["RegionName"] for region in found))


def list_region(
    clients: Clients, region: str, kinds: Iterable[ResourceKind] = tuple(ResourceKind)
) -> RegionResources:
    """List the resources of these kinds, with one paginated call per kind.

    Raises no AwsError: a kind that EC2 refuses to list is in `failures`, and the others are listed.
    """
    found: list[Resource] = []
    failures: list[Unlisted] = []
    for kind in kinds:
        last = failures[-1].error if failures else None
        if last and last.code in _NO_ANSWER:
            failures.append(Unlisted(last, region, kind))
            continue
        try:
            found += list_kind(clients, region, kind)
        except AwsError as error:
            failures.append(Unlisted(error, region, kind))
    return RegionResources(tuple(found), tuple(failures))


def unreachable_region(region: str, error: ClusterctlError) -> RegionResources:
    """Return the result for a region where no call could be made: no kind is listed."""
    failure = error if isinstance(error, AwsError) else AwsError("", error.message, error.hint)
    return RegionResources(failures=tuple(Unlisted(failure, region, kind) for kind in ResourceKind))


def list_kind(clients: Clients, region: str, kind: ResourceKind) -> list[Resource]:
    """Return all resources of one kind that are not deleted. Raises AwsError."""
    way = _WAYS[kind]
    with translated():
        described = list(_described(clients, way, region))
    found = []
    for entry in described:
        tagged = tags.tag_dict(entry.get(way.tags))
        if way.service == "iam":
            tagged[tags.CLUSTER] = entry["Path"].split("/")[-2]
        # A network is no cluster's, whatever tags its stack has.
        cluster = None if kind is ResourceKind.NETWORK else tagged.get(tags.CLUSTER)
        network = tagged.get(NETWORK)
        one = replace(way.read(entry), region=region, cluster=cluster, network=network)
        if one.state not in _GONE and (cluster is not None or network is not None):
            found.append(one)
    return found


@dataclass(frozen=True)
class _Way:
    """How to list one kind: boto3's method, the answer's key, the reader, the key of the tags.

    IAM's lists have no tags, but the path of what is clusterctl's ends with the cluster's name.
    """

    operation: str
    answer: str
    read: Callable[[Any], Resource]
    tags: str = "Tags"
    service: str = "ec2"


def _described(clients: Clients, way: _Way, region: str) -> Iterator[Any]:
    if way.service == "iam":
        prefix = role_path(region)
        for listed in clients.iam.get_paginator(way.operation).paginate(PathPrefix=prefix):
            yield from (one for one in listed[way.answer] if one["Path"].startswith(prefix))
        return
    if way.operation == "describe_stacks":
        # DescribeStacks has no filter by tag.
        for stacks in clients.cloudformation.get_paginator("describe_stacks").paginate():
            yield from stacks["Stacks"]
        return
    client: Any = clients.ec2
    filters = [{"Name": "tag-key", "Values": [tags.CLUSTER, NETWORK]}]
    page: Any = {}
    if way.operation == "describe_instances":
        page = PAGE
        filters.append({"Name": "instance-state-name", "Values": list(NOT_TERMINATED)})
    # boto3 has no paginator for addresses, key pairs and some others: EC2 returns these at once.
    pages = (
        client.get_paginator(way.operation).paginate(Filters=filters, PaginationConfig=page)
        if client.can_paginate(way.operation)
        else [getattr(client, way.operation)(Filters=filters)]
    )
    for found in pages:
        for entry in found[way.answer]:
            yield from entry["Instances"] if way.answer == "Reservations" else [entry]


_WAYS = {
    ResourceKind.INSTANCE: _Way("describe_instances", "Reservations", resources.read_machine),
    ResourceKind.ADDRESS: _Way("describe_addresses", "Addresses", resources.read_address),
    ResourceKind.VOLUME: _Way("describe_volumes", "Volumes", resources.read_volume),
    ResourceKind.INTERFACE: _Way(
        "describe_network_interfaces", "NetworkInterfaces", resources.read_interface, "TagSet"
    ),
    ResourceKind.PLACEMENT_GROUP: _Way(
        "describe_placement_groups", "PlacementGroups", resources.read_placement_group
    ),
    ResourceKind.SECURITY_GROUP: _Way(
        "describe_security_groups", "SecurityGroups", resources.read_security_group
    ),
    ResourceKind.PROFILE: _Way(
        "list_instance_profiles", "InstanceProfiles", resources.read_profile, service="iam"
    ),
    ResourceKind.ROLE: _Way("list_roles", "Roles", resources.read_role, service="iam"),
    ResourceKind.KEY_PAIR: _Way("describe_key_pairs", "KeyPairs", resources.read_key_pair),
    ResourceKind.NETWORK: _Way("describe_stacks", "Stacks", resources.read_network),
}
