"""How many vCPUs the account may run: by family, by market, by region."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterctl.domain.errors import AwsError
from clusterctl.domain.findings import Finding, Severity
from clusterctl.domain.spec import Market
from clusterctl.domain.units import count
from clusterctl.ec2.errors import translated
from clusterctl.ec2.machines import MachineType

if TYPE_CHECKING:
    from clusterctl.ec2.session import Clients


@dataclass(frozen=True)
class Bucket:
    """Families that share a quota, and its codes. An empty code: there is no such quota."""

    name: str
    on_demand: str
    spot: str

    def code(self, market: Market) -> str:
        """The quota's code; empty where nothing is counted, as for Capacity Blocks."""
        codes = {Market.ON_DEMAND: self.on_demand, Market.SPOT: self.spot}
        return codes.get(market, "")

    def title(self, market: Market) -> str:
        """As the Service Quotas console has it, or nearly so."""
        if market is Market.SPOT:
            return f"All {self.name} Spot Instance Requests"
        return f"Running On-Demand {self.name} instances"


STANDARD = Bucket("Standard (A, C, D, H, I, M, R, T, Z)", "L-1216C47A", "L-34B43A08")
# The same codes in every region and account.
BUCKETS = {
    ("p",): Bucket("P", "L-417A185B", "L-7212CCBC"),
    ("g", "gr", "vt"): Bucket("G and VT", "L-DB2E81BA", "L-3819A6DF"),
    ("trn",): Bucket("Trn", "L-2C3B7624", "L-6B0D517C"),
    ("inf",): Bucket("Inf", "L-1945791B", "L-B5D1601B"),
    ("dl",): Bucket("DL", "L-6E869C2A", "L-85EED4F7"),
    ("f",): Bucket("F", "L-74FC7D96", "L-88CF9481"),
    ("x",): Bucket("X", "L-7295265B", "L-E3A00192"),
    ("hpc",): Bucket("HPC", "L-F7808C92", ""),
    ("u",): Bucket("High Memory", "L-43DA4232", ""),
    ("a", "c", "d", "h", "i", "im", "is", "m", "r", "t", "z"): STANDARD,
}
_BUCKET_OF = {letters: bucket for family, bucket in BUCKETS.items() for letters in family}

COUNTED = ("pending", "running")
_MARKET_OF = {"": Market.ON_DEMAND, "spot": Market.SPOT, "capacity-block": Market.CAPACITY_BLOCK}


def bucket_of(instance_type: str) -> Bucket | None:
    """The quota that `p4d.24xlarge` counts against; None for a family that is not known."""
    return _BUCKET_OF.get(_letters(instance_type))


def _letters(instance_type: str) -> str:
    return re.split(r"[^a-z]", instance_type, maxsplit=1)[0]


def quota_code(instance_type: str, market: Market) -> str | None:
    """`L-417A185B`; None where no quota in vCPUs is known to apply."""
    bucket = bucket_of(instance_type)
    return (bucket.code(market) or None) if bucket else None


def find_quota(clients: Clients, code: str) -> float | None:
    """The account's quota; None when it cannot be read. Raises nothing of AWS's.

    Only where the account has none of its own does AWS's default hold: for who may not read the
    account's, the default would refuse what the account may do.
    """
    try:
        with translated():
            answer: Any = clients.quotas.get_service_quota(ServiceCode="ec2", QuotaCode=code)
    except AwsError as error:
        return _default_quota(clients, code) if error.code.startswith("NoSuchResource") else None
    return _value(answer)


def _default_quota(clients: Clients, code: str) -> float | None:
    try:
        with translated():
            answer: Any = clients.quotas.get_aws_default_service_quota(
                ServiceCode="ec2", QuotaCode=code
            )
    except AwsError:
        return None
    return _value(answer)


def _value(answer: Any) -> float | None:
    value = (answer.get("Quota") or {}).get("Value")
    return float(value) if value is not None and math.isfinite(value) else None


@dataclass(frozen=True)
class QuotaUse:
    """A quota in vCPUs, as far as an instance type is concerned. `limit` None: nobody says."""

    title: str
    code: str
    used: int
    limit: float | None


def find_quota_uses(
    clients: Clients, machines: Iterable[MachineType], market: Market
) -> dict[str, QuotaUse]:
    """By instance type; without those that nothing is counted of. Raises AwsError.

    One listing of the region's instances, and one question for each quota.
    """
    sizes = {machine.name: machine.vcpus for machine in machines}
    codes = {name: code for name in sizes if (code := quota_code(name, market))}
    if not codes:
        return {}
    described = _running(clients)
    limits = {code: find_quota(clients, code) for code in dict.fromkeys(codes.values())}
    uses = {}
    for name, code in codes.items():
        bucket = _BUCKET_OF[_letters(name)]
        used = used_vcpus(described, bucket, market, sizes)
        uses[name] = QuotaUse(bucket.title(market), code, used, limits[code])
    return uses


def _running(clients: Clients) -> list[Any]:
    states: Any = [{"Name": "instance-state-name", "Values": list(COUNTED)}]
    with translated():
        pages = clients.ec2.get_paginator("describe_instances").paginate(Filters=states)
        return [
            instance
            for page in pages
            for reservation in page["Reservations"]
            for instance in reservation["Instances"]
        ]


def used_vcpus(
    described: Iterable[Any],
    bucket: Bucket,
    market: Market,
    vcpus: Mapping[str, int] | None = None,
) -> int:
    """The vCPUs of those among these instances that count against the quota.

    `vcpus` by type serves where an instance does not say how many it has.
    """
    return sum(
        _vcpus(instance, vcpus or {})
        for instance in described
        if instance["State"]["Name"] in COUNTED
        and bucket_of(instance["InstanceType"]) == bucket
        and _MARKET_OF.get(instance.get("InstanceLifecycle") or "") is market
    )


def _vcpus(instance: Any, by_type: Mapping[str, int]) -> int:
    options = instance.get("CpuOptions") or {}
    cores, threads = options.get("CoreCount"), options.get("ThreadsPerCore")
    return int(cores * threads) if cores and threads else by_type.get(instance["InstanceType"], 0)


def quota_finding(use: QuotaUse, machine: MachineType, nodes: int, region: str) -> Finding | None:
    """Whether `nodes` more machines fit into the quota; None when they do."""
    need = nodes * machine.vcpus
    wanted = f"{count(nodes, 'more node')} ({machine.name}) {'needs' if nodes == 1 else 'need'}"
    title = f"{use.title} ({use.code})"
    if use.limit is None:
        return Finding(
            "quota.vcpus",
            Severity.INFO,
            f"{wanted} {need} vCPUs; the quota {title} cannot be read",
            hint="to have it checked, allow servicequotas:GetServiceQuota",
        )
    if need <= 0 or use.used + need <= use.limit:
        return None
    return Finding(
        "quota.vcpus",
        Severity.ERROR,
        f"{wanted} {need} vCPUs, {use.used} are in use, "
        f"and the quota {title} is {use.limit:g} in {region}",
        hint=f"ask for more: {increase_command(use.code, use.used + need, region)}",
    )


def increase_command(code: str, vcpus: int, region: str) -> str:
    """What to run to be allowed so many vCPUs. AWS takes hours to days."""
    return (
        "aws service-quotas request-service-quota-increase --service-code ec2 "
        f"--quota-code {code} --desired-value {vcpus} --region {region}"
    )
