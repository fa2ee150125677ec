"""Launches into Capacity Reservations and Capacity Blocks."""

from __future__ import annotations

import threading
from typing import Any

from clusterctl.lab.ec2 import capacity
from clusterctl.lab.ec2.launch import LabLaunch, Request, Rule, current_request, refuse
from clusterctl.lab.ec2.reservations import BLOCK, LabReservation, available, find, reservations

TARGET = "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId"
PREFERENCE = "CapacityReservationSpecification.CapacityReservationPreference"
PLATFORM = "Linux/UNIX"


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

    def check_launch(self, launch: LabLaunch) -> None:
        self._places.ids = _places(launch)

    def mark(self, launch: LabLaunch, instance: Any) -> None:
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
    capacity.count_reserved(_set_aside)


def _places(launch: LabLaunch) -> list[str]:
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


def _open_ones(request: Request, backend: Any) -> list[LabReservation]:
    """Those that take instances without being named."""
    if request.get(PREFERENCE) == "none" or request.market != "on-demand":
        return []
    return [one for one in reservations(backend).values() if one.takes_any]


def _room(one: LabReservation, request: Request, backend: Any, zone: str) -> int:
    """Free places; none for another type, zone or platform."""
    asked = (request.instance_type, zone, PLATFORM)
    fits = asked == (one.instance_type, one.zone, one.platform)
    return available(backend, one) if fits else 0


def _check_market(request: Request, wanted: LabReservation) -> None:
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
