"""On-Demand Capacity Reservations, and launches into them. A Capacity Block is bought ahead."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import datetime
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

from clusterctl.lab.ec2 import capacity
from clusterctl.lab.ec2.completion import add
from clusterctl.lab.ec2.filters import matches
from clusterctl.lab.ec2.instance_types import offered_zones
from clusterctl.lab.ec2.launch import (
    LAUNCHING,
    EC2ServerError,
    PendingLaunch,
    Request,
    Rule,
    current_request,
    refuse,
)

BLOCK = "capacity-block"
# An instance that is going still has its place.
HOLDS_A_PLACE = ("pending", "running", "stopping", "shutting-down")
TARGET = "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId"
PREFERENCE = "CapacityReservationSpecification.CapacityReservationPreference"
PLATFORM = "Linux/UNIX"


@dataclass
class CapacityReservation:
    """`kind` is default or capacity-block; `matching` is open or targeted."""

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

    @property
    def takes_any(self) -> bool:
        """Instances need not name it."""
        return self.kind == "default" and self.matching == "open"


def reservations(backend: Any) -> dict[str, CapacityReservation]:
    """A region's reservations. moto forgets them with the rest when it is reset."""
    found: dict[str, CapacityReservation] = backend.__dict__.setdefault("capacity_reservations", {})
    return found


def find(backend: Any, id: str) -> CapacityReservation:
    """Refuses with EC2ClientError an id that there is no reservation of."""
    if not str(id).startswith("cr-"):
        raise refuse(
            "InvalidCapacityReservationId.Malformed",
            f'Invalid id: "{id}" (expecting "cr-...")',
        )
    if id not in reservations(backend):
        raise refuse(
            "InvalidCapacityReservationId.NotFound",
            f"The capacity reservation ID '{id}' does not exist",
        )
    return reservations(backend)[id]


def in_use(backend: Any, id: str) -> int:
    return sum(
        getattr(one, "capacity_reservation_id", None) == id and one.state in HOLDS_A_PLACE
        for one in backend.all_instances()
    )


def available(backend: Any, reservation: CapacityReservation) -> int:
    if reservation.state != "active":
        return 0
    return max(0, reservation.count - in_use(backend, reservation.id))


def reserved_beside(backend: Any) -> list[tuple[str, int]]:
    """Type and number of what is reserved on demand and not in use: quotas count it too."""
    return [
        (one.instance_type, available(backend, one))
        for one in reservations(backend).values()
        if one.kind == "default"
    ]


class ReservationRule(Rule):
    """A launch that names a reservation fits into it; one that does not takes an open one."""

    def __init__(self) -> None:
        self._places = threading.local()

    def check_request(self, request: Request) -> None:
        if request.market != BLOCK:
            return
        if not request.get(TARGET):
            raise refuse(
                "InvalidParameterCombination",
                "A Capacity Block launch must target the Capacity Block's reservation ID.",
            )
        if request.get("Placement.GroupName") or request.get("Placement.GroupId"):
            raise refuse(
                "InvalidParameterCombination",
                "You cannot specify a placement group when launching into a Capacity Block.",
            )
        if request.least != int(request.get("MaxCount", request.least)):
            raise refuse(
                "InvalidParameterCombination",
                "MinCount and MaxCount must be the same when launching into a Capacity Block.",
            )

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


def install() -> None:
    EC2_RESOURCE_TO_PREFIX["capacity-reservation"] = "cr"
    EC2_PREFIX_TO_RESOURCE["cr"] = "capacity-reservation"
    filter_dict_attribute_mapping["capacity-reservation-id"] = "capacity_reservation_id"
    add(EC2Response, create_capacity_reservation)
    add(EC2Response, describe_capacity_reservations)
    add(EC2Response, cancel_capacity_reservation)
    capacity.count_reserved(_set_aside)


def create_capacity_reservation(response: Any) -> ActionResult:
    ask = response._get_param
    for needed in ("InstanceType", "InstancePlatform", "InstanceCount"):
        if not ask(needed):
            name = needed[0].lower() + needed[1:]
            raise refuse("MissingParameter", f"The request must contain the parameter {name}")
    kind, zone, backend = ask("InstanceType"), ask("AvailabilityZone"), response.ec2_backend
    if kind not in INSTANCE_TYPES:
        raise refuse("InvalidParameterValue", f"Invalid value '{kind}' for InstanceType.")
    if zone not in offered_zones(backend.region_name, kind):
        raise refuse(
            "Unsupported",
            f"The requested instance type ({kind}) is not supported in the requested Availability "
            f"Zone ({zone}).",
        )
    response.error_on_dryrun()
    count = int(ask("InstanceCount"))
    if not capacity.has(kind, zone, count):
        raise EC2ServerError(capacity.CODE, capacity.refusal(kind, zone, []))
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
    """Add it, with the request's tags; what the answer says of it."""
    tags = convert_tag_spec(response._get_param("TagSpecifications", []))
    reservations(response.ec2_backend)[made.id] = made
    response.ec2_backend.create_tags([made.id], tags.get("capacity-reservation", {}))
    return describe(response.ec2_backend, made)


def describe_capacity_reservations(response: Any) -> ActionResult:
    backend, filters = response.ec2_backend, response._filters_from_querystring()
    ids = response._get_param("CapacityReservationIds", [])
    found = [find(backend, id) for id in ids] or list(reservations(backend).values())
    response.error_on_dryrun()
    shown = [describe(backend, one) for one in found]
    return ActionResult(
        {"CapacityReservations": [one for one in shown if _passes(backend, one, filters)]}
    )


def cancel_capacity_reservation(response: Any) -> ActionResult:
    found = find(response.ec2_backend, response._get_param("CapacityReservationId"))
    response.error_on_dryrun()
    if found.kind == BLOCK:
        raise refuse("UnsupportedOperation", "You cannot cancel a Capacity Block.")
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
        "AvailableInstanceCount": available(backend, one),
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


def _passes(backend: Any, shown: dict[str, Any], filters: dict[str, Any]) -> bool:
    attributes = {
        "instance-type": shown["InstanceType"],
        "owner-id": shown["OwnerId"],
        "instance-platform": shown["InstancePlatform"],
        "availability-zone": shown["AvailabilityZone"],
        "tenancy": shown["Tenancy"],
        "state": shown["State"],
        "end-date-type": shown["EndDateType"],
        "instance-match-criteria": shown["InstanceMatchCriteria"],
        "reservation-type": shown["ReservationType"],
    }
    return matches(attributes, backend.tags.get(shown["CapacityReservationId"], {}), filters)


def _places(launch: PendingLaunch) -> list[str]:
    """The reservations that the instances take, one each, as far as there are such."""
    request = launch.request
    wanted, preference = request.get(TARGET), request.get(PREFERENCE)
    if wanted:
        reservation = find(launch.backend, wanted)
        _check_market(request, reservation)
        room = _room(reservation, request, launch.backend, launch.zone)
        if room < launch.count:
            raise _exceeded()
        return [reservation.id] * launch.count
    places = [
        one.id
        for one in _open_ones(request, launch.backend)
        for _ in range(_room(one, request, launch.backend, launch.zone))
    ]
    if preference == "capacity-reservations-only" and len(places) < launch.count:
        raise _exceeded()
    return places[: launch.count]


def _set_aside(instance_type: str, zone: str) -> int:
    """How many reserved machines the launch of this thread may take, beside those of the zone."""
    request = current_request()
    if request is None or request.instance_type != instance_type:
        return 0
    return reserved_places(request, zone)


def reserved_places(request: Request, zone: str | None = None) -> int:
    """How many instances of the request have a reservation to go to, in the zone or in any."""
    backend, wanted = request.backend, request.get(TARGET)
    usable = [find(backend, wanted)] if wanted else _open_ones(request, backend)
    return sum(_room(one, request, backend, zone or one.zone) for one in usable)


def _open_ones(request: Request, backend: Any) -> list[CapacityReservation]:
    """Those that take instances without being named."""
    if request.get(PREFERENCE) == "none" or request.market != "on-demand":
        return []
    return [one for one in reservations(backend).values() if one.takes_any]


def _room(one: CapacityReservation, request: Request, backend: Any, zone: str) -> int:
    """Free places; none for another type, zone or platform."""
    asked = (request.instance_type, zone, PLATFORM)
    fits = asked == (one.instance_type, one.zone, one.platform)
    return available(backend, one) if fits else 0


def _check_market(request: Request, wanted: CapacityReservation) -> None:
    """A Capacity Block is a market of its own."""
    if request.market != (BLOCK if wanted.kind == BLOCK else "on-demand"):
        raise refuse(
            "InvalidParameterValue",
            "The market type (purchasing) option is not valid. Choose a different market type and "
            "try again.",
        )


def _exceeded() -> Exception:
    return refuse(
        "ReservationCapacityExceeded",
        "The requested reservation does not have sufficient compatible and available capacity for "
        "this request.",
    )
