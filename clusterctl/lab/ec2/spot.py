"""Spot instances that RunInstances launches, and spot prices."""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from typing import Any

from moto.core.responses import ActionResult
from moto.core.utils import utcnow
from moto.ec2.models import EC2Backend
from moto.ec2.models.core import TaggedEC2Resource
from moto.ec2.responses import EC2Response
from moto.ec2.utils import convert_tag_spec, filter_dict_attribute_mapping, random_spot_request_id

from clusterctl.lab.data import table
from clusterctl.lab.ec2.completion import LAB, guard, override, setup
from clusterctl.lab.ec2.filters import matches
from clusterctl.lab.ec2.instance_types import offered_zones
from clusterctl.lab.ec2.launch import PendingLaunch, Request, Rule, refuse
from clusterctl.lab.ec2.pricing import ON_DEMAND_USD

PRODUCT = "Linux/UNIX"
FILTERS = ("AvailabilityZone", "InstanceType", "ProductDescription", "SpotPrice")
# Spot prices are between these fractions of the on-demand price. They change every CHANGE_H hours,
# and the price history shows the last SHOWN_CHANGES prices.
CHEAPEST, DEAREST, CHANGE_H, SHOWN_CHANGES = 0.3, 0.6, 6, 4
DEFAULT_KIND = "one-time"


class LaunchedRequest(TaggedEC2Resource):
    """The spot request that RunInstances makes for each instance."""

    def __init__(self, backend: Any, instance: Any, kind: str, behaviour: str) -> None:
        self.ec2_backend = backend
        self.id = random_spot_request_id()
        self.instance = instance
        self.type = kind
        self.instance_interruption_behavior = behaviour
        self.create_time = utcnow()
        self.product_description = PRODUCT
        self.launched_availability_zone = instance.placement.zone

    spot_instance_request_id = property(lambda self: self.id)
    instance_id = property(lambda self: str(self.instance.id))

    @property
    def state(self) -> str:
        return "closed" if self.instance.state in ("shutting-down", "terminated") else "active"

    @property
    def status(self) -> dict[str, str]:
        if self.state == "active":
            return {"Code": "fulfilled", "Message": "Your spot request is fulfilled."}
        by_ec2 = self.instance.state_reason.code == "Server.SpotInstanceTermination"
        code = f"instance-terminated-{'no-capacity' if by_ec2 else 'by-user'}"
        return {"Code": code, "Message": table("answers")["spot_ends"][code]}


class SpotRule(Rule):
    """A spot launch has options that go together, a type for spot, and a sufficient price.

    While `LAB.same_index` returns true, all instances of a launch have the AmiLaunchIndex 0.
    """

    def check_request(self, request: Request) -> None:
        if request.market != "spot":
            return
        kind, behaviour = _how(request)
        # One-time requests can only be terminated, persistent ones only stopped or hibernated.
        if (kind == DEFAULT_KIND) != (behaviour == "terminate"):
            raise refuse("spot-behaviour", kind, behaviour)
        if request.type_info and "spot" not in request.type_info["SupportedUsageClasses"]:
            raise refuse("no-spot", request.instance_type)

    def check_launch(self, launch: PendingLaunch) -> None:
        offered = launch.request.get("InstanceMarketOptions.SpotOptions.MaxPrice")
        if launch.request.market != "spot" or not offered:
            return
        least = spot_usd(launch.request.instance_type, launch.zone, utcnow())
        if least is not None and float(offered) < least:
            raise refuse("spot-price", offered, least)

    def mark(self, launch: PendingLaunch, instance: Any) -> None:
        if launch.request.market != "spot":
            return
        request = launch.request
        made = LaunchedRequest(launch.backend, instance, *_how(request))
        tags = convert_tag_spec(request.get("TagSpecifications", []))
        made.add_tags(tags.get("spot-instances-request", {}))
        launch.backend.spot_instance_requests[made.id] = made
        instance.lifecycle = "spot"
        instance.spot_instance_request_id = made.id
        instance.spot_kind = made.type
        if LAB.same_index():
            instance.ami_launch_index = 0


@setup
def _add_filters() -> None:
    filter_dict_attribute_mapping["instance-lifecycle"] = "lifecycle"
    filter_dict_attribute_mapping["spot-instance-request-id"] = "spot_instance_request_id"


@guard(EC2Backend)
def stop_instances(backend: Any, instance_ids: list[str]) -> None:
    for one in backend.get_multi_instances_by_id(instance_ids):
        if getattr(one, "spot_kind", None) == DEFAULT_KIND:
            raise refuse("stop-spot", one.id)


def spot_usd(instance_type: str, zone: str, when: datetime) -> float | None:
    """Return the spot price in USD per hour at a time; None for a type that has no price.

    It is derived from type, zone and period of the day, so that it is the same in every lab.
    """
    on_demand = ON_DEMAND_USD.get(instance_type)
    if on_demand is None:
        return None
    period = f"{when:%Y-%m-%d} {when.hour // CHANGE_H}"
    drawn = hashlib.sha256(f"{instance_type} {zone} {period}".encode()).digest()[0] / 255
    return round(on_demand * (CHEAPEST + (DEAREST - CHEAPEST) * drawn), 6)


@override(EC2Response)
def describe_spot_price_history(response: Any) -> ActionResult:
    """Return each type's prices, the newest first.

    With the present as StartTime these are only the present prices.
    """
    backend, filters = response.ec2_backend, response._filters_from_querystring()
    products = response._get_param("ProductDescriptions", [])
    since = response._get_param("StartTime")
    entries = []
    if not products or any(one in (PRODUCT, PRODUCT + " (Amazon VPC)") for one in products):
        kinds = response._get_param("InstanceTypes", []) or filters.get("instance-type", [])
        for kind in kinds or sorted(ON_DEMAND_USD):
            entries += _history(backend.region_name, kind, since)
    wanted_zone = response._get_param("AvailabilityZone")
    shown = [
        one
        for one in entries
        if wanted_zone in (None, one["AvailabilityZone"]) and matches(one, FILTERS, filters)
    ]
    return ActionResult({"SpotPriceHistory": shown, "NextToken": ""})


def _history(region: str, kind: str, since: datetime | None) -> list[dict[str, Any]]:
    now = utcnow()
    latest = now.replace(hour=now.hour // CHANGE_H * CHANGE_H, minute=0, second=0, microsecond=0)
    changes = [latest - timedelta(hours=CHANGE_H * back) for back in range(SHOWN_CHANGES)]
    if since is not None:
        begins = since.replace(tzinfo=None)
        # The price that was valid at StartTime is shown too.
        changes = changes[: 1 + sum(when > begins for when in changes[:-1])]
    return [
        {
            "AvailabilityZone": zone,
            "InstanceType": kind,
            "ProductDescription": PRODUCT,
            "SpotPrice": f"{price:.6f}",
            "Timestamp": when,
        }
        for when in changes
        for zone in offered_zones(region, kind)
        for price in [spot_usd(kind, zone, when)]
        if price is not None
    ]


def _how(request: Request) -> tuple[str, str]:
    """Return the type of a spot request, and what an interruption does."""
    kind, behaviour = (
        request.get(f"InstanceMarketOptions.SpotOptions.{name}")
        for name in ("SpotInstanceType", "InstanceInterruptionBehavior")
    )
    return kind or DEFAULT_KIND, behaviour or "terminate"
