"""Zones that offer a type, and what a refusal of EC2 means, as a value: where to try next.

Also reserved capacity (On-Demand Capacity Reservations and Capacity Blocks). What each error code
calls for is in codes.toml.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any

from clusterctl.domain.cluster import Market
from clusterctl.domain.errors import AwsError
from clusterctl.domain.findings import Finding, Severity
from clusterctl.ec2.errors import codes, paged, translated
from clusterctl.ec2.instances import Instance
from clusterctl.ec2.network.vpcs import Subnet

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client


@dataclass(frozen=True)
class Place:
    """Where a launch is tried: an instance type and a subnet, and so a zone."""

    instance_type: str
    zone: str
    subnet_id: str

    @property
    def in_local_zone(self) -> bool:
        """Whether the zone is a Local Zone."""
        return is_local_zone(self.zone)


def is_local_zone(zone: str) -> bool:
    """Return whether a zone is none of the region's own, such as us-west-2-lax-1a.

    The name of an availability zone is the region's and a letter.
    """
    return not re.fullmatch(r"[a-z]+(-[a-z]+)+-\d+[a-z]", zone)


def border_group(zone: str) -> str:
    """Return the network border group of a zone: where an elastic address of its nodes has to be.

    That of an availability zone is its region, that of a Local Zone its name without the letter
    (EC2 user guide, "Elastic IP addresses"; Local Zones user guide, "Available Local Zones").
    """
    return zone.rstrip("abcdefghijklmnopqrstuvwxyz")


class RefusalAction(Enum):
    """What to do after EC2 has refused a launch."""

    NEXT_PLACE = "try elsewhere"
    WAIT = "wait and try again"
    QUOTA = "ask for a larger quota"
    FIX = "ask for something else"
    ABORT = "give up"


# A zone's name, including local zones such as us-west-2-lax-1a.
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
# The white space keeps a full stop inside a name, such as p4d.24xlarge, from ending a sentence.
_SENTENCE_END = re.compile(r"\.\s")


def refusal_action(code: str) -> RefusalAction:
    """Return what an error code calls for: ABORT if the code has nothing to do with capacity."""
    listed = codes()["refusals"].items()
    found = (RefusalAction[name] for name, refusals in listed if code in refusals.split())
    return next(found, RefusalAction.ABORT)


def zones_offered(message: str) -> tuple[str, ...]:
    """Return the zones that have capacity by EC2's message.

    The message ends in `... or choosing us-east-1b, us-east-1c.`
    """
    # The text before `choosing` names the zone without capacity.
    sentences = _SENTENCE_END.split(message)
    named = [one.partition("choosing ")[2] for one in sentences]
    return tuple(dict.fromkeys(zone for text in named for zone in _ZONE.findall(text)))


def next_place(places: Sequence[Place], tried: Sequence[Place], message: str) -> Place | None:
    """Return the place to try after EC2 refused `tried[-1]` with `message`; None if all were tried.

    First come the zones that EC2's message names, for the same type; then the type's other zones;
    then other types. `places` are sorted by type and zone already.
    """
    left = [place for place in places if place not in tried]
    same = [place for place in left if tried and place.instance_type == tried[-1].instance_type]
    for zone in zones_offered(message):
        for place in same:
            if place.zone == zone:
                return place
    return next(iter([*same, *left]), None)


def out_of_capacity(tried: Sequence[Place], failure: AwsError, bound: bool = False) -> AwsError:
    """Return the error for a launch that every place refused, with EC2's last message.

    `bound`: the nodes join an existing cluster, which determines their zone and type.
    """
    where = ", ".join(dict.fromkeys(f"{place.instance_type} in {place.zone}" for place in tried))
    scarce = "Capacity" in failure.code
    what = "nowhere are enough machines" if scarce else "no place takes this launch"
    return AwsError(
        failure.code,
        f"{what}: tried {where}. EC2's message: {failure.message}",
        f"nothing was launched; {_BOUND if bound else _FREE}",
    )


# Instance type -> the zones that offer it.
Offers = Mapping[str, frozenset[str]]


def find_offers(client: EC2Client, types: Sequence[str]) -> Offers:
    """Return the zones of this region that offer each type. Raises AwsError."""
    offers: dict[str, set[str]] = {name: set() for name in types}
    named: Any = [{"Name": "instance-type", "Values": list(types)}]
    for offer in paged(
        *(client, "describe_instance_type_offerings", "InstanceTypeOfferings"),
        LocationType="availability-zone",
        Filters=named,
    ):
        offers[offer["InstanceType"]].add(offer["Location"])
    return {name: frozenset(zones) for name, zones in offers.items()}


def places(
    types: Sequence[str],
    offers: Offers,
    subnets: Sequence[Subnet],
    zone: str | None,
    addresses_needed: int,
) -> tuple[Place, ...]:
    """Return every place that can take all nodes: types in the given order, zones by name.

    With `zone`, only places in that zone. Of each zone the subnet with most free addresses is
    taken, and only if it has `addresses_needed`. All places are in one network border group: an
    elastic address is allocated before it is known which of the places has room, and is good for
    one group only. It is the region's if any subnet may be used there: no account is in a Local
    Zone by default, which has other prices, without having named it or a subnet in it.
    """
    usable = [subnet for subnet in subnets if zone in (None, subnet.zone)]
    groups = {border_group(subnet.zone) for subnet in usable}
    # A Local Zone's group begins with the region's, and is longer.
    group = min(groups, key=lambda name: (len(name), name), default="")
    return tuple(
        Place(instance_type, subnet.zone, subnet.subnet_id)
        for instance_type in types
        for subnet in _roomiest(usable)
        if subnet.zone in offers.get(instance_type, frozenset())
        and border_group(subnet.zone) == group
        and subnet.free_addresses >= addresses_needed
    )


def _roomiest(subnets: Sequence[Subnet]) -> Iterator[Subnet]:
    by_zone: dict[str, Subnet] = {}
    for subnet in sorted(subnets, key=lambda one: -one.free_addresses):
        by_zone.setdefault(subnet.zone, subnet)
    return iter(by_zone[zone] for zone in sorted(by_zone))


# The platform of Ubuntu, Amazon Linux and other distributions that need no licence.
LINUX = "Linux/UNIX"


# EC2 begins to terminate a Capacity Block's machines this long before its end (EC2 user guide,
# "Capacity Blocks for ML").
CLEANED_BEFORE = timedelta(minutes=30)


@dataclass(frozen=True)
class Reservation:
    """A capacity reservation, or with `block` a Capacity Block, which ends at `ends_at`.

    `free` is the number of instances that it still has room for. `placement_group`: it is tied to
    a placement group. `interruptible`: its owner may take it back. `platform` is EC2's name of the
    operating system that it is billed for, `tenancy` is `default` or `dedicated`.
    """

    reservation_id: str
    instance_type: str
    zone: str
    state: str
    free: int
    block: bool = False
    placement_group: bool = False
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    interruptible: bool = False
    platform: str = LINUX
    tenancy: str = "default"

    @property
    def machines_end_at(self) -> datetime | None:
        """When EC2 begins to terminate the machines of a Capacity Block; None for others."""
        return self.ends_at - CLEANED_BEFORE if self.block and self.ends_at else None


def find_reservation(client: EC2Client, reservation_id: str) -> Reservation | None:
    """Return the reservation; None if the region has none of this id. Raises AwsError."""
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
            interruptible=bool(found.get("Interruptible")),
            platform=found.get("InstancePlatform") or LINUX,
            tenancy=found.get("Tenancy") or "default",
        )
    return None


def end_finding(at: datetime, severity: Severity) -> Finding:
    """Return the finding about the end of a Capacity Block's nodes, for before and after `up`."""
    return Finding(
        "reservation.end",
        severity,
        f"EC2 begins to terminate the nodes at {at:%Y-%m-%d %H:%M %Z}, 30 minutes before their "
        "Capacity Block ends",
        hint="write the last checkpoint by then; each node is warned 40, 15 and 10 minutes before",
    )


def block_end(client: EC2Client, instances: Iterable[Instance]) -> datetime | None:
    """Return when EC2 begins to terminate instances of a Capacity Block; None without a block.

    Raises AwsError.
    """
    ids = {one.reservation_id for one in instances if one.market is Market.CAPACITY_BLOCK} - {""}
    found = [find_reservation(client, one) for one in sorted(ids)]
    return min((one.machines_end_at for one in found if one and one.machines_end_at), default=None)
