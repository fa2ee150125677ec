"""Where EC2 has machines, and what to do when it has none.

Which zones offer a type, capacity that was reserved (On-Demand Capacity Reservations and Capacity
Blocks), and one table of the codes with which EC2 refuses a launch. The codes are from EC2's error
list and from what karpenter and ParallelCluster keep of what cannot be filled now.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any

from clusterctl.domain.errors import AwsError
from clusterctl.ec2.errors import translated
from clusterctl.ec2.network.vpcs import Subnet

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client


@dataclass(frozen=True)
class Place:
    """A type of machine in one subnet, and so in one zone."""

    instance_type: str
    zone: str
    subnet_id: str


class Move(Enum):
    """What a refusal calls for."""

    NEXT_PLACE = "try elsewhere"
    WAIT = "wait and try again"
    QUOTA = "ask for a larger quota"
    FIX = "ask for something else"
    ABORT = "give up"


# A code of RunInstances, or of the state reason of an instance that died while it started.
MOVES = {
    "InsufficientInstanceCapacity": Move.NEXT_PLACE,
    "InsufficientHostCapacity": Move.NEXT_PLACE,
    "InsufficientReservedInstanceCapacity": Move.NEXT_PLACE,
    "InsufficientCapacity": Move.NEXT_PLACE,
    "UnfulfillableCapacity": Move.NEXT_PLACE,
    "Unsupported": Move.NEXT_PLACE,
    "InsufficientFreeAddressesInSubnet": Move.NEXT_PLACE,
    "SpotMaxPriceTooLow": Move.NEXT_PLACE,
    "Server.InsufficientInstanceCapacity": Move.NEXT_PLACE,
    "Server.SpotInstanceTermination": Move.NEXT_PLACE,
    "Server.InternalError": Move.NEXT_PLACE,
    "ReservationCapacityExceeded": Move.WAIT,
    "InsufficientAddressCapacity": Move.WAIT,
    "PendingVerification": Move.WAIT,
    "VcpuLimitExceeded": Move.QUOTA,
    "InstanceLimitExceeded": Move.QUOTA,
    "NetworkInterfaceLimitExceeded": Move.QUOTA,
    "MaxSpotInstanceCountExceeded": Move.QUOTA,
    "MaxFleetCountExceeded": Move.QUOTA,
    "VolumeLimitExceeded": Move.QUOTA,
    "Client.VolumeLimitExceeded": Move.QUOTA,
    "InvalidParameterValue": Move.FIX,
    "InvalidParameterCombination": Move.FIX,
    "InvalidBlockDeviceMapping": Move.FIX,
    "Client.InternalError": Move.FIX,
    "Client.InvalidSnapshot.NotFound": Move.FIX,
}
# Local zones, as us-west-2-lax-1a, among them.
_ZONE = re.compile(r"(?<![\w-])([a-z]{2,4}(?:-[a-z]+)+-\d+(?:-[a-z]+-\d+)?[a-z])(?![\w-])")
_FREE = (
    "wait for machines with --capacity-timeout 2h, accept fewer with --min-nodes, another type "
    "with --or-type, or another --region; a Capacity Block or reservation makes sure of them: "
    "--capacity-reservation"
)
_BOUND = (
    "new nodes join those that are there, in their zone and of their type: wait for machines "
    "with --capacity-timeout 2h"
)
# A sentence ends where another begins.
_SENTENCE_END = re.compile(r"\.\s")


def move_for(code: str) -> Move:
    """What is not in the table is none of capacity's business."""
    return MOVES.get(code, Move.ABORT)


def zones_offered(message: str) -> tuple[str, ...]:
    """The zones that EC2 says have capacity: `... or choosing us-east-1b, us-east-1c.`"""
    sentences = _SENTENCE_END.split(message)
    named = [one.partition("choosing ")[2] for one in sentences]
    return tuple(dict.fromkeys(zone for text in named for zone in _ZONE.findall(text)))


def next_place(places: Sequence[Place], tried: Sequence[Place], message: str = "") -> Place | None:
    """Where to try after `tried[-1]` was refused with `message`; None when all were tried.

    The zones that EC2 named for the same type first, then its other zones, then other types:
    `places` are in that order already.
    """
    left = [place for place in places if place not in tried]
    same = [place for place in left if tried and place.instance_type == tried[-1].instance_type]
    for zone in zones_offered(message):
        for place in same:
            if place.zone == zone:
                return place
    return next(iter([*same, *left]), None)


def out_of_capacity(tried: Sequence[Place], failure: AwsError, bound: bool = False) -> AwsError:
    """The error when every place was tried: what was tried, and what EC2 said last.

    `bound`: the nodes join a cluster that is there, whose place and type are given.
    """
    where = ", ".join(dict.fromkeys(f"{place.instance_type} in {place.zone}" for place in tried))
    scarce = "Capacity" in failure.code
    what = "nowhere are enough machines" if scarce else "no place takes this launch"
    return AwsError(
        failure.code,
        f"{what}: tried {where}. EC2 said: {failure.message}",
        f"nothing was launched; {_BOUND if bound else _FREE}",
    )


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


@dataclass(frozen=True)
class Reservation:
    """A capacity reservation. `block`: a Capacity Block, which ends at `ends_at`."""

    reservation_id: str
    instance_type: str
    zone: str
    state: str
    free: int
    block: bool = False
    placement_group: bool = False
    starts_at: datetime | None = None
    ends_at: datetime | None = None


def find_reservation(client: EC2Client, reservation_id: str) -> Reservation | None:
    """The reservation; None if there is none of this id in the region. Raises AwsError."""
    try:
        with translated():
            answer = client.describe_capacity_reservations(CapacityReservationIds=[reservation_id])
    except AwsError as error:
        if error.code.startswith("InvalidCapacityReservationId"):
            return None
        raise
    for found in answer["CapacityReservations"]:
        return Reservation(
            reservation_id=found["CapacityReservationId"],
            instance_type=found.get("InstanceType", ""),
            zone=found.get("AvailabilityZone", ""),
            state=found.get("State", ""),
            free=found.get("AvailableInstanceCount", 0),
            block=found.get("ReservationType", "default") == "capacity-block",
            placement_group=bool(found.get("PlacementGroupArn")),
            starts_at=found.get("StartDate"),
            ends_at=found.get("EndDate"),
        )
    return None
