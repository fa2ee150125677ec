"""Subnets: where instances can be put, how many addresses are left there, where routes lead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterctl.ec2.errors import translated

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

EVERYWHERE = "0.0.0.0/0"
# The tag on all that `clusterctl network up NAME` made.
NETWORK = "clusterctl:network"


@dataclass(frozen=True)
class Subnet:
    """One subnet as EC2 describes it. `default` is the zone's own one in the default VPC."""

    subnet_id: str
    vpc_id: str
    zone: str
    cidr: str
    free_addresses: int
    maps_public_ip: bool
    default: bool = False


@dataclass(frozen=True)
class WayOut:
    """Where the routes of a subnet lead a node that has no public address.

    `internet`: by a NAT gateway or the like; an internet gateway takes public addresses only.
    `services` are AWS's that are reached by endpoints, such as `s3` and `ssm`.
    """

    table_id: str
    internet: bool = False
    services: frozenset[str] = frozenset()
    s3_gateway: bool = False


def find_ways_out(client: EC2Client, subnets: Sequence[Subnet]) -> Mapping[str, WayOut]:
    """The way out of each of these subnets of one VPC, by id. Raises AwsError."""
    if not subnets:
        return {}
    of_vpc: Any = [{"Name": "vpc-id", "Values": [subnets[0].vpc_id]}]
    with translated():
        tables = list(_all(client, "describe_route_tables", "RouteTables", of_vpc))
        endpoints = list(_all(client, "describe_vpc_endpoints", "VpcEndpoints", of_vpc))
    return {subnet.subnet_id: _way_out(subnet.subnet_id, tables, endpoints) for subnet in subnets}


def _all(client: Any, operation: str, key: str, filters: Any) -> Iterator[Any]:
    for page in client.get_paginator(operation).paginate(Filters=filters):
        yield from page[key]


def _way_out(subnet_id: str, tables: Sequence[Any], endpoints: Sequence[Any]) -> WayOut:
    table = _table_of(subnet_id, tables)
    services, s3_gateway = set(), False
    for one in endpoints:
        if one.get("State", "").lower() != "available":
            continue
        service = one["ServiceName"].rpartition(".")[2]
        gateway = table.get("RouteTableId") in one.get("RouteTableIds", ())
        if gateway or one.get("PrivateDnsEnabled"):
            services.add(service)
        s3_gateway |= gateway and service == "s3"
    return WayOut(
        table.get("RouteTableId", ""),
        any(_leads_out(route) for route in table.get("Routes", ())),
        frozenset(services),
        s3_gateway,
    )


def _table_of(subnet_id: str, tables: Sequence[Any]) -> Any:
    """The table that the subnet is associated with, or its VPC's main one."""
    main: Any = {}
    for table in tables:
        for one in table.get("Associations", ()):
            if one.get("SubnetId") == subnet_id:
                return table
            main = table if one.get("Main") else main
    return main


def _leads_out(route: Any) -> bool:
    default = route.get("DestinationCidrBlock") == EVERYWHERE and route.get("State") == "active"
    return default and not route.get("GatewayId", "").startswith("igw-")


def find_subnets(
    client: EC2Client,
    *,
    subnet_ids: Sequence[str] | None = None,
    vpc_id: str | None = None,
    network: str | None = None,
) -> tuple[Subnet, ...]:
    """The subnets with these ids, or those of a VPC, or of a network; none given: the default ones.

    Sorted by zone. Raises AwsError, InvalidSubnetID.NotFound among them.
    """
    if subnet_ids is not None and not subnet_ids:
        # EC2 would take an empty list for no condition at all.
        return ()
    wanted: dict[str, Any] = {"Filters": _filters(subnet_ids, vpc_id, network)}
    if subnet_ids is not None:
        wanted["SubnetIds"] = list(subnet_ids)
    with translated():
        pages = client.get_paginator("describe_subnets").paginate(**wanted)
        found = [read_subnet(each) for page in pages for each in page["Subnets"]]
    return tuple(sorted(found, key=lambda subnet: (subnet.zone, subnet.cidr, subnet.subnet_id)))


def _filters(
    subnet_ids: Sequence[str] | None, vpc_id: str | None, network: str | None
) -> list[dict[str, Any]]:
    filters = [("vpc-id", vpc_id), (f"tag:{NETWORK}", network)]
    given = [{"Name": name, "Values": [value]} for name, value in filters if value is not None]
    if not given and subnet_ids is None:
        given = [{"Name": "default-for-az", "Values": ["true"]}]
    return given


def read_subnet(described: Any) -> Subnet:
    """What DescribeSubnets says about one."""
    return Subnet(
        subnet_id=described["SubnetId"],
        vpc_id=described["VpcId"],
        zone=described["AvailabilityZone"],
        cidr=described.get("CidrBlock", ""),
        free_addresses=described.get("AvailableIpAddressCount", 0),
        maps_public_ip=bool(described.get("MapPublicIpOnLaunch", False)),
        default=bool(described.get("DefaultForAz", False)),
    )
