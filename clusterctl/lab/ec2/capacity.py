"""How many machines of a type a zone has: any number, or what `LAB.capacity_left` returns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from clusterctl.lab.data import table
from clusterctl.lab.ec2.completion import LAB
from clusterctl.lab.ec2.instance_types import offered_zones
from clusterctl.lab.ec2.launch import EC2ServerError, Rule, all_instances

CODE = "InsufficientInstanceCapacity"
TEXTS: dict[str, str] = table("answers")["capacity"]
# States in which an instance occupies no machine.
NO_MACHINE = ("stopped", "terminated")


class CapacityRule(Rule):
    """A stopped instance that starts again needs a machine, as a new one does."""

    def check_start(self, backend: Any, stopped: Sequence[Any]) -> None:
        wanted = Counter((one.instance_type, one.placement.zone) for one in stopped)
        if not all(has(*kind, count) for kind, count in wanted.items()):
            raise EC2ServerError(CODE, "Insufficient capacity.")


def available(instance_type: str, zone: str) -> int | None:
    """Return how many more machines this thread's launch can have; None for no limit."""
    left = LAB.capacity_left(instance_type, zone, used(instance_type, zone))
    return None if left is None else left + LAB.reserved(instance_type, zone)


def used(instance_type: str, zone: str) -> int:
    """Return the number of instances that occupy a machine, those in reservations excluded."""
    return sum(
        (one.instance_type, one.placement.zone) == (instance_type, zone)
        and one.state not in NO_MACHINE
        and not getattr(one, "capacity_reservation_id", None)
        for one in all_instances()
    )


def has(instance_type: str, zone: str, count: int) -> bool:
    """Return whether this thread's launch can have so many more machines."""
    left = available(instance_type, zone)
    return left is None or left >= count


def grant(region: str, wanted: tuple[str, str], least: int, most: int) -> int:
    """Return how many machines a launch of (type, zone) gets, at most `most`.

    Raise EC2ServerError if there are fewer than `least`.
    """
    instance_type, zone = wanted
    left = available(instance_type, zone)
    if left is None or left >= most:
        return most
    if left >= least:
        return left
    others = [one for one in offered_zones(region, instance_type) if one != zone]
    raise refusal(instance_type, zone, [one for one in others if has(instance_type, one, least)])


def refusal(instance_type: str, zone: str, others: list[str]) -> EC2ServerError:
    """Return the error of a launch. `others` are the zones that have enough machines."""
    text = TEXTS["zone"].format(instance_type, zone)
    return EC2ServerError(
        CODE, text + (TEXTS["others"].format(instance_type, ", ".join(others)) if others else "")
    )
