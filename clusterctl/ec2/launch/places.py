"""Where a cluster can be launched: types, zones and subnets, in the order to try them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from clusterctl.ec2.errors import translated
from clusterctl.ec2.launch.capacity import Place
from clusterctl.ec2.network.subnets import Subnet

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

Offers = Mapping[str, frozenset[str]]


def find_offers(client: EC2Client, types: Sequence[str]) -> Offers:
    """The zones of this region that offer each type. Raises AwsError."""
    offers: dict[str, set[str]] = {name: set() for name in types}
    named: Any = [{"Name": "instance-type", "Values": list(types)}]
    with translated():
        pages = client.get_paginator("describe_instance_type_offerings").paginate(
            LocationType="availability-zone", Filters=named
        )
        for page in pages:
            for offer in page["InstanceTypeOfferings"]:
                offers[offer["InstanceType"]].add(offer["Location"])
    return {name: frozenset(zones) for name, zones in offers.items()}


def places(
    types: Sequence[str],
    offers: Offers,
    subnets: Sequence[Subnet],
    zone: str | None,
    addresses_needed: int,
) -> tuple[Place, ...]:
    """Every place that can take all nodes, best first: by type as asked, then by zone.

    `zone` is a must. A zone's subnet with most free addresses stands for the zone.
    """
    return tuple(
        Place(instance_type, subnet.zone, subnet.subnet_id)
        for instance_type in types
        for subnet in _roomiest(subnets)
        if subnet.zone in offers.get(instance_type, frozenset())
        and zone in (None, subnet.zone)
        and subnet.free_addresses >= addresses_needed
    )


def _roomiest(subnets: Sequence[Subnet]) -> Iterator[Subnet]:
    by_zone: dict[str, Subnet] = {}
    for subnet in sorted(subnets, key=lambda one: -one.free_addresses):
        by_zone.setdefault(subnet.zone, subnet)
    return iter(by_zone[zone] for zone in sorted(by_zone))
