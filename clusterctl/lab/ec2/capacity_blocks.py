"""Capacity Blocks: their offerings, and the purchase of one, which makes a reservation."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from moto.core.responses import ActionResult
from moto.core.utils import utcnow
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.responses import EC2Response
from moto.ec2.utils import random_id

from clusterctl.lab.ec2.completion import add
from clusterctl.lab.ec2.instance_types import offered_zones
from clusterctl.lab.ec2.launch import refuse
from clusterctl.lab.ec2.pricing import ON_DEMAND_USD
from clusterctl.lab.ec2.reservations import BLOCK, PLATFORM, CapacityReservation, keep

# A block lasts whole days, up to DAYS_APART_UNTIL days, or whole weeks, up to LONGEST_D days.
DAY_H, DAYS_APART_UNTIL, WEEK_D, LONGEST_D = 24, 14, 7, 182
MOST_INSTANCES = 64
# All blocks end at this time of day (UTC), whenever they begin.
ENDS_AT = timedelta(hours=11, minutes=30)
# Per hour, for a type that the price list lacks.
UNLISTED_USD = 60.0
# The attribute of moto's backend for what its offerings would reserve that are not bought, by id.
OFFERINGS = "capacity_block_offerings"


@add(EC2Response)
def describe_capacity_block_offerings(response: Any) -> ActionResult:
    """Offer blocks as requested, and remember them for a purchase."""
    ask, backend = response._get_param, response.ec2_backend
    kind, hours = ask("InstanceType"), int(ask("CapacityDurationHours") or 0)
    count = int(ask("InstanceCount") or 1)
    if BLOCK not in INSTANCE_TYPES.get(kind, {}).get("SupportedUsageClasses", []):
        raise refuse("block-type", kind)
    if not 1 <= count <= MOST_INSTANCES:
        raise refuse("block-count", MOST_INSTANCES)
    days = hours / DAY_H
    if days % (1 if days <= DAYS_APART_UNTIL else WEEK_D) or not 1 <= days <= LONGEST_D:
        raise refuse("block-hours", DAY_H, DAYS_APART_UNTIL, WEEK_D * DAY_H, LONGEST_D)
    response.error_on_dryrun()
    made = {
        random_id("cbo"): CapacityReservation(
            random_id("cr"), kind, PLATFORM, zone, count, BLOCK, "targeted", starts, ends
        )
        for zone in offered_zones(backend.region_name, kind)
        for starts, ends in _times(hours, ask("StartDateRange"), ask("EndDateRange"))
    }
    vars(backend).setdefault(OFFERINGS, {}).update(made)
    fee_usd = ON_DEMAND_USD.get(kind, UNLISTED_USD) * count * hours
    common = {"CapacityBlockDurationHours": hours, "UpfrontFee": f"{fee_usd:.4f}"}
    return ActionResult(
        {
            "CapacityBlockOfferings": [
                {
                    **common,
                    "CapacityBlockOfferingId": id,
                    "InstanceType": kind,
                    "AvailabilityZone": one.zone,
                    "InstanceCount": count,
                    "StartDate": one.starts,
                    "EndDate": one.ends,
                    "CurrencyCode": "USD",
                    "Tenancy": "default",
                }
                for id, one in made.items()
            ]
        }
    )


@add(EC2Response)
def purchase_capacity_block(response: Any) -> ActionResult:
    """Make a reservation of an offering, which can be bought once."""
    response.error_on_dryrun()
    wanted = response._get_param("CapacityBlockOfferingId")
    bought = vars(response.ec2_backend).get(OFFERINGS, {}).pop(wanted, None)
    if bought is None:
        raise refuse("block-offering", wanted)
    bought.platform = response._get_param("InstancePlatform") or PLATFORM
    bought.made = utcnow()
    return ActionResult({"CapacityReservation": keep(response, bought)})


def _times(
    hours: int, earliest: datetime | None, latest: datetime | None
) -> list[tuple[datetime, datetime]]:
    """Return start and end of the offered blocks: one begins at once, one tomorrow.

    Those outside of `earliest` and `latest` are left out.
    """
    now = utcnow()
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    tomorrow = today + timedelta(days=1) + ENDS_AT
    ends = (now + timedelta(hours=hours)).replace(hour=0, minute=0, second=0, microsecond=0)
    # moto's times have no zone.
    return [
        (starts, ends)
        for starts, ends in ((now, ends + ENDS_AT), (tomorrow, tomorrow + timedelta(hours=hours)))
        if ends > starts
        and (earliest is None or starts >= earliest.replace(tzinfo=None))
        and (latest is None or ends <= latest.replace(tzinfo=None))
    ]
