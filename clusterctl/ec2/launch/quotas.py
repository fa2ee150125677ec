"""The account's quotas of vCPUs, elastic addresses and network interfaces, and their use."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterctl.domain.cluster import Market
from clusterctl.domain.errors import AwsError
from clusterctl.domain.findings import Finding
from clusterctl.domain.units import count
from clusterctl.ec2.errors import paged, translated
from clusterctl.ec2.instances import PAGE, described_instances
from clusterctl.ec2.machines import MachineType, find_machine_types

if TYPE_CHECKING:
    from clusterctl.ec2.session import Clients


@dataclass(frozen=True)
class QuotaFamily:
    """Instance families that share a quota, and the quota's code for each market.

    An empty code means that AWS lists no such quota.
    """

    name: str
    on_demand: str
    spot: str

    def code(self, market: Market) -> str:
        """Return the quota's code; empty where AWS counts nothing, as for Capacity Blocks."""
        codes = {Market.ON_DEMAND: self.on_demand, Market.SPOT: self.spot}
        return codes.get(market, "")

    def title(self, market: Market) -> str:
        """Return the quota's name, nearly as the Service Quotas console shows it."""
        if market is Market.SPOT:
            return f"All {self.name} Spot Instance Requests"
        return f"Running On-Demand {self.name} instances"


STANDARD = QuotaFamily("Standard (A, C, D, H, I, M, R, T, Z)", "L-1216C47A", "L-34B43A08")
# Letters that the families' names begin with -> quota. The codes are the same in all regions.
BUCKETS = {
    ("p",): QuotaFamily("P", "L-417A185B", ""),
    ("g", "gr"): QuotaFamily("G and VT", "L-DB2E81BA", "L-3819A6DF"),
    ("trn",): QuotaFamily("Trn", "L-2C3B7624", "L-6B0D517C"),
    ("inf",): QuotaFamily("Inf", "L-1945791B", "L-B5D1601B"),
    ("dl",): QuotaFamily("DL", "L-6E869C2A", "L-85EED4F7"),
    ("x",): QuotaFamily("X", "L-7295265B", "L-E3A00192"),
    ("hpc",): QuotaFamily("HPC", "L-F7808C92", ""),
    ("u",): QuotaFamily("High Memory", "L-43DA4232", ""),
    ("a", "c", "d", "h", "i", "im", "is", "m", "r", "t", "z"): STANDARD,
}
_BUCKET_OF = {letters: bucket for family, bucket in BUCKETS.items() for letters in family}
# For spot the generations of P have quotas of their own. AWS lists none for P6 (EC2 user guide,
# "Spot Instance quotas", 2026).
_OLD_P = QuotaFamily("P4, P3 and P2", "", "L-7212CCBC")
SPOT_P = {"3": _OLD_P, "4": _OLD_P, "5": QuotaFamily("P5", "", "L-C4BD4855")}

# The states in which an instance counts against a quota, and a Capacity Reservation.
COUNTED = ("pending", "running")
RESERVED = ("active", "pending", "scheduled", "assessing", "delayed")
# DescribeInstances' InstanceLifecycle -> market.
_MARKET_OF = {"": Market.ON_DEMAND, "spot": Market.SPOT, "capacity-block": Market.CAPACITY_BLOCK}


def bucket_of(instance_type: str, market: Market = Market.ON_DEMAND) -> QuotaFamily | None:
    """Return the quota that a type such as `p4d.24xlarge` counts against.

    None for an unknown family.
    """
    letters, generation = _family(instance_type)
    spot_p = SPOT_P.get(generation) if market is Market.SPOT and letters == "p" else None
    return spot_p or _BUCKET_OF.get(letters)


def _family(instance_type: str) -> tuple[str, str]:
    """Return the family's letters and generation: `("p", "5")` for `p5en.48xlarge`."""
    match = re.match(r"([a-z]*)(\d*)", instance_type)
    return (match[1], match[2]) if match else ("", "")


def quota_code(instance_type: str, market: Market) -> str | None:
    """Return the code of the type's vCPU quota, such as `L-417A185B`; None without a known one."""
    bucket = bucket_of(instance_type, market)
    return (bucket.code(market) or None) if bucket else None


def find_quota(clients: Clients, code: str, service: str = "ec2") -> float | None:
    """Return the account's quota; None if it cannot be read. Raises no AwsError.

    AWS's default is used only where the account has no value of its own. If the account's value
    may not be read, the default could be too low and refuse a launch that the account is allowed.
    """
    try:
        with translated():
            answer: Any = clients.quotas.get_service_quota(ServiceCode=service, QuotaCode=code)
    except AwsError as error:
        absent = error.code.startswith("NoSuchResource")
        return _default_quota(clients, code, service) if absent else None
    return _value(answer)


def _default_quota(clients: Clients, code: str, service: str) -> float | None:
    try:
        with translated():
            answer: Any = clients.quotas.get_aws_default_service_quota(
                ServiceCode=service, QuotaCode=code
            )
    except AwsError:
        return None
    return _value(answer)


def _value(answer: Any) -> float | None:
    value = (answer.get("Quota") or {}).get("Value")
    return float(value) if value is not None and math.isfinite(value) else None


@dataclass(frozen=True)
class QuotaUse:
    """A quota and how much of it is in use.

    `limit` is None where it cannot be read. An empty `code` means that AWS lists no quota.
    `reserved` is unused reserved capacity that may count as well: some of it may be another
    account's, and nodes in an open reservation use it up instead of counting in addition.
    """

    title: str
    code: str
    used: int
    limit: float | None
    service: str = "ec2"
    reserved: int = 0

    def request(self, wanted: int, region: str) -> str:
        """Return the command that requests raising the quota to `wanted` in all.

        AWS takes hours to days to answer.
        """
        return (
            f"aws service-quotas request-service-quota-increase --service-code {self.service} "
            f"--quota-code {self.code} --desired-value {wanted} --region {region}"
        )


def find_quota_uses(
    clients: Clients, machines: Iterable[MachineType], market: Market
) -> dict[str, QuotaUse]:
    """Return the use of the vCPU quota of each type, by instance type. Raises AwsError.

    Empty for Capacity Blocks, which AWS does not count. Lists the running instances of these
    families and the Capacity Reservations once, and reads each quota once.
    """
    sizes = {machine.name: machine.vcpus for machine in machines}
    if market is Market.CAPACITY_BLOCK or not sizes:
        return {}
    codes = {name: quota_code(name, market) for name in sizes}
    buckets = {name: bucket_of(name, market) for name, code in codes.items() if code}
    described = _running(clients, buckets.values()) if buckets else []
    reserved = _unused_vcpus(clients, sizes) if buckets and market is Market.ON_DEMAND else {}
    limits = {code: find_quota(clients, code) for code in dict.fromkeys(codes.values()) if code}
    uses = {}
    for name, code in codes.items():
        bucket = buckets.get(name)
        if not bucket or not code:
            uses[name] = QuotaUse(market.value, "", 0, None)
            continue
        used = used_vcpus(described, bucket, market, sizes)
        unused = sum(vcpus for other, vcpus in reserved.items() if bucket_of(other) == bucket)
        uses[name] = QuotaUse(bucket.title(market), code, used, limits[code], reserved=unused)
    return uses


def find_address_use(clients: Clients) -> QuotaUse:
    """Return the use of the region's quota of elastic addresses. Raises AwsError."""
    with translated():
        used = len(clients.ec2.describe_addresses()["Addresses"])
    code = "L-0263D0A3"
    return QuotaUse("EC2-VPC Elastic IPs", code, used, find_quota(clients, code))


def find_interface_use(clients: Clients) -> QuotaUse:
    """Return the use of the region's quota of network interfaces. Raises AwsError.

    Lists all of them, because EC2 has no call that counts.
    """
    listed = ("describe_network_interfaces", "NetworkInterfaces")
    used = len(paged(clients.ec2, *listed, PaginationConfig=PAGE))
    code = "L-DF5E4CA3"
    limit = find_quota(clients, code, "vpc")
    return QuotaUse("Network interfaces per Region", code, used, limit, "vpc")


def _running(clients: Clients, buckets: Iterable[QuotaFamily | None]) -> list[Any]:
    # The patterns match more than these families (`m*` matches mac1.metal); `used_vcpus` does not.
    letters = [one for one, bucket in _BUCKET_OF.items() if bucket in buckets]
    if any(bucket in SPOT_P.values() for bucket in buckets):
        letters.append("p")
    filters: Any = [
        {"Name": "instance-state-name", "Values": list(COUNTED)},
        {"Name": "instance-type", "Values": [f"{one}*" for one in letters]},
    ]
    return described_instances(clients.ec2, Filters=filters, PaginationConfig=PAGE)


def _unused_vcpus(clients: Clients, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the vCPUs of unused reserved capacity, by instance type. Raises AwsError.

    They count against the quota of On-Demand instances from the request on (EC2 user guide,
    "On-Demand Instance quotas"). `sizes` are the vCPUs of types that are known already. Empty where
    the reservations may not be listed.
    """
    free: Counter[str] = Counter()
    try:
        listed = ("describe_capacity_reservations", "CapacityReservations")
        for one in paged(clients.ec2, *listed, PaginationConfig=PAGE):
            is_block = one.get("ReservationType") == "capacity-block"
            if one.get("State") in RESERVED and not is_block:
                free[one["InstanceType"]] += one.get("AvailableInstanceCount", 0)
    except AwsError as error:
        if error.code != "UnauthorizedOperation":
            raise
        return {}
    names = [name for name, number in free.items() if number]
    others = [name for name in names if name not in sizes]
    machines = find_machine_types(clients.ec2, others) if others else {}
    known = {**sizes, **{name: machine.vcpus for name, machine in machines.items()}}
    return {name: free[name] * known.get(name, 0) for name in names}


def used_vcpus(
    described: Iterable[Any],
    bucket: QuotaFamily,
    market: Market,
    vcpus: Mapping[str, int] | None = None,
) -> int:
    """Return how many vCPUs of these instances count against the quota.

    `described` is from DescribeInstances. `vcpus`, by type, is used for instances whose description
    has no CpuOptions.
    """
    return sum(
        _vcpus(instance, vcpus or {})
        for instance in described
        if instance["State"]["Name"] in COUNTED
        and bucket_of(instance["InstanceType"], market) == bucket
        and _MARKET_OF.get(instance.get("InstanceLifecycle") or "") is market
    )


def _vcpus(instance: Any, by_type: Mapping[str, int]) -> int:
    options = instance.get("CpuOptions") or {}
    cores, threads = options.get("CoreCount"), options.get("ThreadsPerCore")
    return int(cores * threads) if cores and threads else by_type.get(instance["InstanceType"], 0)


def quota_finding(use: QuotaUse, machine: MachineType, nodes: int, region: str) -> Finding | None:
    """Return a finding if `nodes` more machines exceed the vCPU quota; None if they fit.

    It is information where AWS lists no quota, or it cannot be read.
    """
    need = nodes * machine.vcpus
    wanted = f"{count(nodes, 'more node')} ({machine.name}) {'needs' if nodes == 1 else 'need'}"
    if not use.code:
        return Finding.info(
            "quota.vcpus",
            f"{wanted} {need} vCPUs; AWS lists no quota for {machine.name} as {use.title}, "
            "so only a launch shows whether there is one",
        )
    title = f"{use.title} ({use.code})"
    if use.limit is None:
        return Finding.info(
            "quota.vcpus",
            f"{wanted} {need} vCPUs; the quota {title} cannot be read",
            "to have it checked, allow servicequotas:GetServiceQuota",
        )
    if need <= 0:
        return None
    return quota_exceeded_finding("quota.vcpus", use, need, f"{wanted} {need} vCPUs", region)


def quota_exceeded_finding(
    check_id: str, use: QuotaUse, need: int, wanted: str, region: str
) -> Finding | None:
    """Return an error if `need` more exceed the quota; None if they fit or the limit is unknown.

    It is a warning if they fit only where unused reserved capacity does not count. `wanted` is the
    beginning of the message.
    """
    if use.limit is None or use.used + use.reserved + need <= use.limit:
        return None
    fits = use.used + need <= use.limit
    reserved = f", {use.reserved} are reserved and unused" if use.reserved else ""
    return (Finding.warning if fits else Finding.error)(
        check_id,
        f"{wanted}, {use.used} are in use{reserved}, "
        f"and the quota {use.title} ({use.code}) is {use.limit:g} in {region}",
        f"ask for more: {use.request(use.used + use.reserved + need, region)}",
    )
