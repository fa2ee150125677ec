"""Capacity that was reserved: On-Demand Capacity Reservations and Capacity Blocks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from clusterctl.domain.errors import AwsError
from clusterctl.ec2.errors import translated

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client


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
