"""Subnets: where instances can be put, and how many addresses are left there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterctl.ec2.errors import translated

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

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
