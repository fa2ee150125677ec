"""Instances that EC2 interrupts: spot interruptions with their notice, and Capacity Blocks' ends.

The page `/_lab/interruptions` takes POST with `{"instance_id": ..., "seconds": ...}`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from moto.core.utils import utcnow
from moto.ec2.models.instances import StateReason

from clusterctl.domain.errors import UsageError
from clusterctl.lab.ec2.reservations import BLOCK, CLEANED_BEFORE, CapacityReservation, reservations
from clusterctl.lab.faults.fields import number
from clusterctl.lab.faults.kinds import LONGEST_S
from clusterctl.lab.hosts.instances import LabInstance, all_lab_instances
from clusterctl.lab.wsgi import read_json

# AWS gives two minutes' notice.
NOTICE_S = 120.0
REASON = "Server.SpotInstanceTermination"


@dataclass(frozen=True)
class Notice:
    """When a notice was given, and when the instance is terminated."""

    given: datetime
    ends: datetime


# Instance id -> its notice.
NOTICES: dict[str, Notice] = {}


def interrupt(instance_id: object, seconds: object = NOTICE_S) -> Notice:
    """Give notice to a spot instance that it is terminated in so many seconds.

    An instance of a Capacity Block has no notice: the end of its block changes, so that EC2 begins
    to terminate the block's instances then. Raise UsageError if it is neither, if it does not run,
    or if the time is not valid.
    """
    found = [one for one in all_lab_instances() if one.id == instance_id]
    if not found:
        raise UsageError(f"no instance {instance_id!r:.80}", "see `clusterctl lab status`")
    if found[0].lifecycle not in ("spot", BLOCK):
        raise UsageError(
            f"{instance_id} is no spot instance and in no Capacity Block",
            "AWS does not interrupt others",
        )
    if found[0].state != "running":
        raise UsageError(f"{instance_id} is {found[0].state}, not running")
    within = timedelta(seconds=number("the time in seconds", seconds, LONGEST_S))
    now = datetime.now(timezone.utc)
    notice = Notice(now, now + within)
    block = _block_of(found[0])
    if block is None:
        NOTICES[found[0].id] = notice
    else:
        block.ends = utcnow() + within + CLEANED_BEFORE
    LabInstance.changed.set()
    return notice


def _block_of(instance: LabInstance) -> CapacityReservation | None:
    id = getattr(instance, "capacity_reservation_id", None)
    found = reservations(instance.ec2_backend).get(id) if id else None
    return found if found and found.kind == BLOCK else None


def terminate_if_due(instance: LabInstance) -> None:
    """Terminate the instance if its notice has run out, or if its Capacity Block is about to end.

    The supervisor calls this at every step.
    """
    block = _block_of(instance)
    if block and block.ends and utcnow() >= block.ends - CLEANED_BEFORE:
        with LabInstance.transition:
            if instance.state in ("pending", "running"):
                instance.terminate()
                # The code that AWS shows then is not known.
                _service_initiated(instance, StateReason())
        return
    notice = NOTICES.get(instance.id)
    if notice is None or datetime.now(timezone.utc) < notice.ends:
        return
    with LabInstance.transition:
        if instance.state in ("pending", "running"):
            instance.terminate()
            _service_initiated(
                instance, StateReason(f"{REASON}: Spot instance termination", REASON)
            )
        elif instance.state in ("stopping", "stopped"):
            # The notice was for the machine that the instance has left.
            NOTICES.pop(instance.id, None)


def _service_initiated(instance: LabInstance, reason: StateReason) -> None:
    """Replace the reason for a user's request, which terminate() has set, by that of EC2."""
    instance.state_reason = reason
    instance._reason = f"Service initiated ({utcnow():%Y-%m-%d %H:%M:%S} GMT)"


def serve(environ: dict[str, Any]) -> dict[str, str]:
    """Carry out a request for the page, and return its answer. Raise UsageError to refuse it."""
    wanted = read_json(environ)
    try:
        notice = interrupt(wanted["instance_id"], wanted.get("seconds", NOTICE_S))
    except (TypeError, KeyError, AttributeError):
        raise UsageError("an interruption is an object with an instance_id") from None
    return {"ends_at": notice.ends.isoformat(timespec="seconds")}
