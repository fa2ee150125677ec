"""On-Demand Capacity Reservations and Capacity Blocks, and launches into them."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from moto.core.responses import ActionResult
from moto.core.utils import utcnow
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.responses import EC2Response
from moto.ec2.utils import (
    EC2_PREFIX_TO_RESOURCE,
    EC2_RESOURCE_TO_PREFIX,
    convert_tag_spec,
    filter_dict_attribute_mapping,
    random_id,
)

from clusterctl.lab.ec2 import capacity, late
from clusterctl.lab.ec2.completion import LAB, add, setup
from clusterctl.lab.ec2.filters import matches
from clusterctl.lab.ec2.instance_types import offered_zones
from clusterctl.lab.ec2.launch import (
    LAUNCHING,
    PendingLaunch,
    Request,
    Rule,
    current_request,
    refuse,
)

BLOCK = "capacity-block"
# EC2 begins to terminate a block's instances this long before its end (EC2 user guide, "Capacity
# Blocks for ML").
CLEANED_BEFORE = timedelta(minutes=30)
# States in which an instance occupies its place in a reservation: it keeps it until it is gone.
HOLDS_A_PLACE = ("pending", "running", "stopping", "shutting-down")
TARGET = "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId"
PREFERENCE = "CapacityReservationSpecification.CapacityReservationPreference"
PLATFORM = "Linux/UNIX"
FILTERS = (
    *("InstanceType", "OwnerId", "InstancePlatform", "AvailabilityZone", "Tenancy", "State"),
    *("EndDateType", "InstanceMatchCriteria", "ReservationType"),
)


@dataclass
class CapacityReservation:
    """A reservation of `count` machines. `kind` is default or capacity-block.

    With `matching` open, instances need not name it; with targeted, they do. `starts` and `ends`
    are None where it has no such limit.
    """

    id: str
    instance_type: str
    platform: str
    zone: str
    count: int
    kind: str = "default"
    matching: str = "open"
    starts: datetime | None = None
    ends: datetime | None = None
    made: datetime | None = None
    cancelled: bool = False

    @property
    def state(self) -> str:
        now = utcnow()
        if self.cancelled:
            return "cancelled"
        if self.ends and now >= self.ends:
            return "expired"
        return "scheduled" if self.starts and now < self.starts else "active"


def reservations(backend: Any) -> dict[str, CapacityReservation]:
    """Return a region's reservations by id. They are on moto's backend: its reset clears them."""
    found: dict[str, CapacityReservation] = backend.__dict__.setdefault("capacity_reservations", {})
    return found


def find(backend: Any, id: str) -> CapacityReservation:
    """Return a reservation by its id. Raise EC2ClientError if there is none."""
    if id not in reservations(backend):
        raise refuse("reservation", id)
    return reservations(backend)[id]


def in_use(backend: Any, id: str) -> int:
    """Return how many of a reservation's machines have an instance."""
    return sum(
        getattr(one, "capacity_reservation_id", None) == id and one.state in HOLDS_A_PLACE
        for one in backend.all_instances()
    )


def available(backend: Any, reservation: CapacityReservation) -> int:
    """Return how many of a reservation's machines are free; 0 unless it is active."""
    if reservation.state != "active":
        return 0
    return max(0, reservation.count - in_use(backend, reservation.id))


# EC2 shows the place of a terminated instance as free only minutes later (EC2 user guide, "Launch
# instances using Capacity Blocks").
late.PARTS["places"] = lambda backend: {
    id: available(backend, one) for id, one in reservations(backend).items()
}


class ReservationRule(Rule):
    """A launch that names a reservation must fit into it. Others take free open ones."""

    def __init__(self) -> None:
        # `ids`: the reservations for this thread's launch, which `mark` hands out one by one.
        self._places = threading.local()

    def check_request(self, request: Request) -> None:
        if request.market != BLOCK:
            return
        if not request.get(TARGET):
            raise refuse("block-untargeted")
        if request.get("Placement.GroupName") or request.get("Placement.GroupId"):
            raise refuse("block-placement")
        if request.least != int(request.get("MaxCount", request.least)):
            raise refuse("block-counts")

    def check_launch(self, launch: PendingLaunch) -> None:
        self._places.ids = _places(launch)

    def mark(self, launch: PendingLaunch, instance: Any) -> None:
        target, preference = launch.request.get(TARGET), launch.request.get(PREFERENCE)
        instance.capacity_reservation_id = self._places.ids.pop(0) if self._places.ids else None
        instance.capacity_reservation_specification = (
            {"CapacityReservationTarget": {"CapacityReservationId": target}}
            if target
            else {"CapacityReservationPreference": preference or "open"}
        )
        if launch.request.market == BLOCK:
            instance.lifecycle = BLOCK


@setup
def _count_them() -> None:
    """Add their tags and filters, and count them as capacity."""
    EC2_RESOURCE_TO_PREFIX["capacity-reservation"] = "cr"
    EC2_PREFIX_TO_RESOURCE["cr"] = "capacity-reservation"
    filter_dict_attribute_mapping["capacity-reservation-id"] = "capacity_reservation_id"
    LAB.reserved = _set_aside


@add(EC2Response)
def create_capacity_reservation(response: Any) -> ActionResult:
    ask = response._get_param
    kind, zone, backend = ask("InstanceType"), ask("AvailabilityZone"), response.ec2_backend
    if kind not in INSTANCE_TYPES:
        raise refuse("value", kind, "InstanceType")
    if zone not in offered_zones(backend.region_name, kind):
        raise refuse("type-not-there", kind, zone)
    response.error_on_dryrun()
    count = int(ask("InstanceCount"))
    if not capacity.has(kind, zone, count):
        raise capacity.refusal(kind, zone, [])
    made = CapacityReservation(
        id=random_id("cr"),
        instance_type=kind,
        platform=ask("InstancePlatform"),
        zone=zone,
        count=count,
        matching=ask("InstanceMatchCriteria") or "open",
        starts=utcnow(),
        ends=ask("EndDate"),
        made=utcnow(),
    )
    return ActionResult({"CapacityReservation": keep(response, made)})


def keep(response: Any, made: CapacityReservation) -> dict[str, Any]:
    """Store a reservation with the request's tags, and return its description."""
    tags = convert_tag_spec(response._get_param("TagSpecifications", []))
    reservations(response.ec2_backend)[made.id] = made
    response.ec2_backend.create_tags([made.id], tags.get("capacity-reservation", {}))
    return describe(response.ec2_backend, made)


@add(EC2Response)
def describe_capacity_reservations(response: Any) -> ActionResult:
    backend, filters = response.ec2_backend, response._filters_from_querystring()
    ids = response._get_param("CapacityReservationIds", [])
    found = [find(backend, id) for id in ids] or list(reservations(backend).values())
    response.error_on_dryrun()
    shown = [describe(backend, one) for one in found]
    passed = [one for one in shown if matches(one, FILTERS, filters)]
    return ActionResult({"CapacityReservations": passed})


@add(EC2Response)
def cancel_capacity_reservation(response: Any) -> ActionResult:
    found = find(response.ec2_backend, response._get_param("CapacityReservationId"))
    response.error_on_dryrun()
    if found.kind == BLOCK:
        raise refuse("cancel-block")
    with LAUNCHING:
        found.cancelled = True
    return ActionResult({"Return": True})


def describe(backend: Any, one: CapacityReservation) -> dict[str, Any]:
    arn = f"arn:aws:ec2:{backend.region_name}:{backend.account_id}:capacity-reservation/{one.id}"
    tags = backend.tags.get(one.id, {})
    return {
        "CapacityReservationId": one.id,
        "OwnerId": backend.account_id,
        "CapacityReservationArn": arn,
        "InstanceType": one.instance_type,
        "InstancePlatform": one.platform,
        "AvailabilityZone": one.zone,
        "Tenancy": "default",
        "TotalInstanceCount": one.count if one.state in ("active", "scheduled") else 0,
        "AvailableInstanceCount": (late.shown("places") or {}).get(one.id, available(backend, one)),
        "EbsOptimized": False,
        "EphemeralStorage": False,
        "State": one.state,
        "StartDate": one.starts,
        "EndDate": one.ends,
        "EndDateType": "limited" if one.ends else "unlimited",
        "InstanceMatchCriteria": one.matching,
        "CreateDate": one.made,
        "ReservationType": one.kind,
        "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
    }


def _places(launch: PendingLaunch) -> list[str]:
    """Return the ids of the reservations that the instances take, one for each instance.

    There may be fewer ids than instances: the rest runs without a reservation. Raise EC2ClientError
    if the launch requires reservations that have too few free places.
    """
    request, usable = launch.request, _usable(launch.request)
    named = bool(request.get(TARGET))
    # A Capacity Block needs its own market type, other reservations on-demand.
    if named and request.market != (BLOCK if usable[0].kind == BLOCK else "on-demand"):
        raise refuse("market")
    places = [one.id for one in usable for _ in range(_room(one, request, launch.zone))]
    required = named or request.get(PREFERENCE) == "capacity-reservations-only"
    if required and len(places) < launch.count:
        raise refuse("reservation-full")
    return places[: launch.count]


def _set_aside(instance_type: str, zone: str) -> int:
    """Return how many reserved machines of a type in a zone this thread's launch may take."""
    request = current_request()
    if request is None or request.instance_type != instance_type:
        return 0
    return reserved_places(request, zone)


def reserved_places(request: Request, zone: str | None = None) -> int:
    """Return how many free reserved machines the request may take, in a zone or in all zones."""
    return sum(_room(one, request, zone or one.zone) for one in _usable(request))


def _usable(request: Request) -> list[CapacityReservation]:
    """Return the reservation that the request names, else those that it may use without that."""
    if request.get(TARGET):
        return [find(request.backend, request.get(TARGET))]
    if request.get(PREFERENCE) == "none" or request.market != "on-demand":
        return []
    all = reservations(request.backend).values()
    return [one for one in all if (one.kind, one.matching) == ("default", "open")]


def _room(one: CapacityReservation, request: Request, zone: str) -> int:
    """Return a reservation's free places; 0 if its type, zone or platform is another one."""
    requested = (request.instance_type, zone, PLATFORM)
    fits = requested == (one.instance_type, one.zone, one.platform)
    return available(request.backend, one) if fits else 0
