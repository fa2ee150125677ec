"""Service quotas of EC2, and the refusal of launches that exceed them."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.servicequotas.exceptions import NoSuchResource
from moto.servicequotas.models import ServiceQuotasBackend
from moto.servicequotas.responses import ServiceQuotasResponse

from clusterctl.lab.data import table
from clusterctl.lab.ec2.completion import LAB, add, override
from clusterctl.lab.ec2.launch import PendingLaunch, Request, Rule, refuse
from clusterctl.lab.ec2.reservations import available, reservations, reserved_places

# Enough for every test. AWS gives a new account much less, often 0 for P instances.
MANY_VCPUS = 100_000.0
# States in which an instance counts against a quota.
COUNTED = ("pending", "running")
# Service code -> its name.
SERVICES = {
    "ec2": "Amazon Elastic Compute Cloud (Amazon EC2)",
    "vpc": "Amazon Virtual Private Cloud (Amazon VPC)",
}


@dataclass(frozen=True)
class Quota:
    """A service quota. `families` are the families of types whose vCPUs it limits, if it does."""

    code: str
    name: str
    families: tuple[str, ...] = ()
    spot: bool = False
    default: float = MANY_VCPUS
    service: str = "ec2"


ELASTIC = Quota("L-0263D0A3", "EC2-VPC Elastic IPs", default=5.0)
INTERFACES = Quota("L-DF5E4CA3", "Network interfaces per Region", default=5000.0, service="vpc")
QUOTAS = (
    *(Quota(**{**one, "families": tuple(one["families"])}) for one in table("quotas")["quotas"]),
    ELASTIC,
    INTERFACES,
)


class QuotaRule(Rule):
    """Limits the running vCPUs of a family, separately for on-demand and for spot instances.

    Capacity Blocks do not count.
    """

    def check_request(self, request: Request) -> None:
        """Refuse the launch, or lower its count to what the quota allows.

        This comes before the check of capacity. A dry run does not check quotas.
        """
        if request.market not in ("on-demand", "spot") or request.get("DryRun"):
            return
        spot, reserved = request.market == "spot", reserved_places(request)
        kind, most = request.instance_type, int(request.get("MaxCount", 1))
        room = _check_room(request.backend, kind, request.least - reserved, spot=spot) + reserved
        if room < most:
            # The number that moto launches.
            request.response.params["MinCount"] = int(room)

    def check_launch(self, launch: PendingLaunch) -> None:
        """Check vCPUs again, since another launch may have come between, and count interfaces."""
        each = max(1, len(launch.request.get("NetworkInterfaces") or []))
        if len(launch.backend.enis) + launch.count * each > value_of(INTERFACES):
            raise refuse("interfaces-quota")
        kind, market = launch.request.instance_type, launch.request.market
        if market in ("on-demand", "spot"):
            more = launch.count - reserved_places(launch.request, launch.zone)
            _check_room(launch.backend, kind, more, spot=market == "spot")

    def check_start(self, backend: Any, stopped: Sequence[Any]) -> None:
        """Check vCPUs: a stopped instance does not count, and counts again when it starts."""
        for kind, count in Counter(one.instance_type for one in stopped).items():
            _check_room(backend, kind, count, spot=False)


def _check_room(backend: Any, instance_type: str, least: int, *, spot: bool) -> float:
    """Return how many more instances of the type its quota allows; infinity without a quota.

    Raise EC2ClientError for fewer than `least`.
    """
    quota = quota_of(instance_type, spot=spot)
    if quota is None:
        return float("inf")
    limit = value_of(quota)
    room = (limit - vcpus_in_use(backend, quota)) // vcpus(instance_type)
    if room < least:
        raise refuse("spot-count") if spot else refuse("vcpus", limit)
    return room


def quota_of(instance_type: str, *, spot: bool) -> Quota | None:
    """Return the quota of a type; None if no quota has its family.

    The family of `p4d.24xlarge` is p for the on-demand quotas, and p4 for those of spot.
    """
    letters = re.match(r"([a-z]*)\d*", instance_type)
    names = {letters[0], letters[1]} if letters else set()
    found = (one for one in QUOTAS if names & {*one.families} and one.spot == spot)
    return next(found, None)


def value_of(quota: Quota) -> float:
    applied = LAB.quota(quota.code)
    return quota.default if applied is None else applied


def vcpus(instance_type: str) -> int:
    """Return the type's number of vCPUs; 1 for an unknown type."""
    return int(INSTANCE_TYPES.get(instance_type, {}).get("VCpuInfo", {}).get("DefaultVCpus", 1))


def vcpus_in_use(backend: Any, quota: Quota) -> int:
    """Return the vCPUs of running instances and of reserved capacity that is not in use."""
    market = "spot" if quota.spot else None
    kinds = [
        one.instance_type
        for one in backend.all_instances()
        if one.state in COUNTED and one.lifecycle == market
    ]
    for one in reservations(backend).values():
        if one.kind == "default" and not quota.spot:
            kinds += [one.instance_type] * available(backend, one)
    return sum(vcpus(kind) for kind in kinds if quota_of(kind, spot=quota.spot) == quota)


@override(ServiceQuotasBackend)
def list_aws_default_service_quotas(backend: Any, service_code: str) -> list[dict[str, Any]]:
    if service_code not in SERVICES:
        raise NoSuchResource
    found = [one for one in QUOTAS if one.service == service_code]
    return [_described(backend, one, one.default) for one in found]


@override(ServiceQuotasBackend)
def get_service_quota(backend: Any, service_code: str, quota_code: str) -> dict[str, Any]:
    for one in QUOTAS:
        if (one.service, one.code) == (service_code, quota_code):
            return _described(backend, one, value_of(one))
    raise NoSuchResource


@add(ServiceQuotasResponse)
def get_aws_default_service_quota(response: Any) -> str:
    request = json.loads(response.body)
    for one in response.backend.list_aws_default_service_quotas(request["ServiceCode"]):
        if one["QuotaCode"] == request["QuotaCode"]:
            return json.dumps({"Quota": one})
    raise NoSuchResource


@add(ServiceQuotasResponse)
def list_service_quotas(response: Any) -> str:
    request, ec2 = json.loads(response.body), response.backend
    service, code = request["ServiceCode"], request.get("QuotaCode")
    listed = [one["QuotaCode"] for one in ec2.list_aws_default_service_quotas(service)]
    shown = [ec2.get_service_quota(service, one) for one in listed if code in (None, one)]
    return json.dumps({"Quotas": shown})


def _described(backend: Any, quota: Quota, value: float) -> dict[str, Any]:
    where = f"{backend.region_name}:{backend.account_id}:{quota.service}"
    return {
        "ServiceCode": quota.service,
        "ServiceName": SERVICES[quota.service],
        "QuotaArn": f"arn:aws:servicequotas:{where}/{quota.code}",
        "QuotaCode": quota.code,
        "QuotaName": quota.name,
        "Value": value,
        "Unit": "None",
        "Adjustable": True,
        "GlobalQuota": False,
    }
