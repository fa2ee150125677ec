"""What to do when EC2 refuses a launch: one table of codes, and where to try next. Pure.

Codes: EC2's error list and the lists that karpenter and ParallelCluster keep of what cannot be
filled now.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from clusterctl.domain.errors import AwsError


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
