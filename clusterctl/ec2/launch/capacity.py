"""Where EC2 has machines, what the account may have of them, and what to do when there are none.

Which zones offer a type, capacity that was reserved (On-Demand Capacity Reservations and Capacity
Blocks), quotas, and one table of the codes with which EC2 refuses a launch. The codes are from
EC2's error list and from what karpenter and ParallelCluster keep of what cannot be filled now.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any

from clusterctl.domain.cluster import Market
from clusterctl.domain.errors import AwsError
from clusterctl.domain.findings import Finding, Severity
from clusterctl.domain.units import count
from clusterctl.ec2.errors import translated
from clusterctl.ec2.instances import PAGE
from clusterctl.ec2.machines import MachineType
from clusterctl.ec2.network.vpcs import Subnet

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

    from clusterctl.ec2.session import Clients


@dataclass(frozen=True)
class Bucket:
    """Families that share a quota, and its codes. An empty code: AWS lists no such quota."""

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
    ("p",): Bucket("P", "L-417A185B", ""),
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
# On spot the generations of P are apart; P6 is in AWS's list with none of them (EC2 user guide,
# "Spot Instance quotas", 2026).
_OLD_P = Bucket("P4, P3 and P2", "", "L-7212CCBC")
SPOT_P = {"2": _OLD_P, "3": _OLD_P, "4": _OLD_P, "5": Bucket("P5", "", "L-C4BD4855")}

COUNTED = ("pending", "running")
_MARKET_OF = {"": Market.ON_DEMAND, "spot": Market.SPOT, "capacity-block": Market.CAPACITY_BLOCK}


def bucket_of(instance_type: str, market: Market = Market.ON_DEMAND) -> Bucket | None:
    """The quota that `p4d.24xlarge` counts against; None for a family that is not known."""
    letters, generation = _family(instance_type)
    spot_p = SPOT_P.get(generation) if market is Market.SPOT and letters == "p" else None
    return spot_p or _BUCKET_OF.get(letters)


def _family(instance_type: str) -> tuple[str, str]:
    """`("p", "5")` of `p5en.48xlarge`."""
    match = re.match(r"([a-z]*)(\d*)", instance_type)
    return (match[1], match[2]) if match else ("", "")


def quota_code(instance_type: str, market: Market) -> str | None:
    """`L-417A185B`; None where no quota in vCPUs is known to apply."""
    bucket = bucket_of(instance_type, market)
    return (bucket.code(market) or None) if bucket else None


def find_quota(clients: Clients, code: str, service: str = "ec2") -> float | None:
    """The account's quota; None when it cannot be read. Raises nothing of AWS's.

    Only where the account has none of its own does AWS's default hold: for who may not read the
    account's, the default would refuse what the account may do.
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
    """A quota, and how much of it is in use. `limit` None: nobody says.

    An empty `code`: AWS lists no quota.
    """

    title: str
    code: str
    used: int
    limit: float | None
    service: str = "ec2"

    def request(self, wanted: int, region: str) -> str:
        """What to run to be allowed so many in all. AWS takes hours to days."""
        return (
            f"aws service-quotas request-service-quota-increase --service-code {self.service} "
            f"--quota-code {self.code} --desired-value {wanted} --region {region}"
        )


def find_quota_uses(
    clients: Clients, machines: Iterable[MachineType], market: Market
) -> dict[str, QuotaUse]:
    """By instance type; none where nothing is counted, as for Capacity Blocks. Raises AwsError.

    One listing of the running instances of these families, and one question for each quota.
    """
    sizes = {machine.name: machine.vcpus for machine in machines}
    if market is Market.CAPACITY_BLOCK or not sizes:
        return {}
    codes = {name: quota_code(name, market) for name in sizes}
    buckets = {name: bucket_of(name, market) for name, code in codes.items() if code}
    described = _running(clients, buckets.values()) if buckets else []
    limits = {code: find_quota(clients, code) for code in dict.fromkeys(codes.values()) if code}
    uses = {}
    for name, code in codes.items():
        bucket = buckets.get(name)
        if not bucket or not code:
            uses[name] = QuotaUse(market.value, "", 0, None)
            continue
        used = used_vcpus(described, bucket, market, sizes)
        uses[name] = QuotaUse(bucket.title(market), code, used, limits[code])
    return uses


def find_address_use(clients: Clients) -> QuotaUse:
    """The region's elastic addresses, whoever's. Raises AwsError."""
    with translated():
        used = len(clients.ec2.describe_addresses()["Addresses"])
    code = "L-0263D0A3"
    return QuotaUse("EC2-VPC Elastic IPs", code, used, find_quota(clients, code))


def find_interface_use(clients: Clients) -> QuotaUse:
    """The region's network interfaces, whoever's: EC2 has no shorter way to count them.

    Raises AwsError.
    """
    with translated():
        pages = clients.ec2.get_paginator("describe_network_interfaces")
        used = sum(len(page["NetworkInterfaces"]) for page in pages.paginate(PaginationConfig=PAGE))
    code = "L-DF5E4CA3"
    limit = find_quota(clients, code, "vpc")
    return QuotaUse("Network interfaces per Region", code, used, limit, "vpc")


def _running(clients: Clients, buckets: Iterable[Bucket | None]) -> list[Any]:
    letters = [one for one, bucket in _BUCKET_OF.items() if bucket in buckets]
    if any(bucket in SPOT_P.values() for bucket in buckets):
        letters.append("p")
    filters: Any = [
        {"Name": "instance-state-name", "Values": list(COUNTED)},
        {"Name": "instance-type", "Values": [f"{one}*" for one in letters]},
    ]
    with translated():
        pages = clients.ec2.get_paginator("describe_instances")
        return [
            instance
            for page in pages.paginate(Filters=filters, PaginationConfig=PAGE)
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
        and bucket_of(instance["InstanceType"], market) == bucket
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
    if not use.code:
        return Finding(
            "quota.vcpus",
            Severity.INFO,
            f"{wanted} {need} vCPUs; AWS lists no quota for {machine.name} as {use.title}, "
            "so only the launch tells whether there is one",
        )
    title = f"{use.title} ({use.code})"
    if use.limit is None:
        return Finding(
            "quota.vcpus",
            Severity.INFO,
            f"{wanted} {need} vCPUs; the quota {title} cannot be read",
            hint="to have it checked, allow servicequotas:GetServiceQuota",
        )
    if need <= 0:
        return None
    return full_finding("quota.vcpus", use, need, f"{wanted} {need} vCPUs", region)


def full_finding(
    check_id: str, use: QuotaUse, need: int, wanted: str, region: str
) -> Finding | None:
    """Whether `need` more go over the quota, which `wanted` says in words; None when not."""
    if use.limit is None or use.used + need <= use.limit:
        return None
    return Finding(
        check_id,
        Severity.ERROR,
        f"{wanted}, {use.used} are in use, "
        f"and the quota {use.title} ({use.code}) is {use.limit:g} in {region}",
        hint=f"ask for more: {use.request(use.used + need, region)}",
    )


@dataclass(frozen=True)
class Place:
    """A type of machine in one subnet, and so in one zone."""

    instance_type: str
    zone: str
    subnet_id: str


class Move(Enum):
    """What a refusal calls for."""

    NEXT_PLACE = "try elsewhere"
    WAIT = "wait and try again"
    QUOTA = "ask for a larger quota"
    FIX = "ask for something else"
    ABORT = "give up"


# A code of RunInstances, or of the state reason of an instance that died while it started.
MOVES = {
    "InsufficientInstanceCapacity": Move.NEXT_PLACE,
    "InsufficientHostCapacity": Move.NEXT_PLACE,
    "InsufficientReservedInstanceCapacity": Move.NEXT_PLACE,
    "InsufficientCapacity": Move.NEXT_PLACE,
    "UnfulfillableCapacity": Move.NEXT_PLACE,
    "Unsupported": Move.NEXT_PLACE,
    "InsufficientFreeAddressesInSubnet": Move.NEXT_PLACE,
    "SpotMaxPriceTooLow": Move.NEXT_PLACE,
    "Server.InsufficientInstanceCapacity": Move.NEXT_PLACE,
    "Server.SpotInstanceTermination": Move.NEXT_PLACE,
    "Server.InternalError": Move.NEXT_PLACE,
    "ReservationCapacityExceeded": Move.WAIT,
    "InsufficientAddressCapacity": Move.WAIT,
    "PendingVerification": Move.WAIT,
    "VcpuLimitExceeded": Move.QUOTA,
    "InstanceLimitExceeded": Move.QUOTA,
    "NetworkInterfaceLimitExceeded": Move.QUOTA,
    "MaxSpotInstanceCountExceeded": Move.QUOTA,
    "MaxFleetCountExceeded": Move.QUOTA,
    "VolumeLimitExceeded": Move.QUOTA,
    "Client.VolumeLimitExceeded": Move.QUOTA,
    "InvalidParameterValue": Move.FIX,
    "InvalidParameterCombination": Move.FIX,
    "InvalidBlockDeviceMapping": Move.FIX,
    "Client.InternalError": Move.FIX,
    "Client.InvalidSnapshot.NotFound": Move.FIX,
}
# Local zones, as us-west-2-lax-1a, among them.
_ZONE = re.compile(r"(?<![\w-])([a-z]{2,4}(?:-[a-z]+)+-\d+(?:-[a-z]+-\d+)?[a-z])(?![\w-])")
_FREE = (
    "wait for machines with --capacity-timeout 2h, accept fewer with --min-nodes, another type "
    "with --or-type, or another --region; a Capacity Block or reservation makes sure of them: "
    "--capacity-reservation"
)
_BOUND = (
    "new nodes join those that are there, in their zone and of their type: wait for machines "
    "with --capacity-timeout 2h"
)
# A sentence ends where another begins.
_SENTENCE_END = re.compile(r"\.\s")


def move_for(code: str) -> Move:
    """What is not in the table is none of capacity's business."""
    return MOVES.get(code, Move.ABORT)


def zones_offered(message: str) -> tuple[str, ...]:
    """The zones that EC2 says have capacity: `... or choosing us-east-1b, us-east-1c.`"""
    sentences = _SENTENCE_END.split(message)
    named = [one.partition("choosing ")[2] for one in sentences]
    return tuple(dict.fromkeys(zone for text in named for zone in _ZONE.findall(text)))


def next_place(places: Sequence[Place], tried: Sequence[Place], message: str = "") -> Place | None:
    """Where to try after `tried[-1]` was refused with `message`; None when all were tried.

    The zones that EC2 named for the same type first, then its other zones, then other types:
    `places` are in that order already.
    """
    left = [place for place in places if place not in tried]
    same = [place for place in left if tried and place.instance_type == tried[-1].instance_type]
    for zone in zones_offered(message):
        for place in same:
            if place.zone == zone:
                return place
    return next(iter([*same, *left]), None)


def out_of_capacity(tried: Sequence[Place], failure: AwsError, bound: bool = False) -> AwsError:
    """The error when every place was tried: what was tried, and what EC2 said last.

    `bound`: the nodes join a cluster that is there, whose place and type are given.
    """
    where = ", ".join(dict.fromkeys(f"{place.instance_type} in {place.zone}" for place in tried))
    scarce = "Capacity" in failure.code
    what = "nowhere are enough machines" if scarce else "no place takes this launch"
    return AwsError(
        failure.code,
        f"{what}: tried {where}. EC2 said: {failure.message}",
        f"nothing was launched; {_BOUND if bound else _FREE}",
    )


Offers = Mapping[str, frozenset[str]]


def find_offers(client: EC2Client, types: Sequence[str]) -> Offers:
    """The zones of this region that offer each type. Raises AwsError."""
    offers: dict[str, set[str]] = {name: set() for name in types}
    named: Any = [{"Name": "instance-type", "Values": list(types)}]
    with translated():
        pages = client.get_paginator("describe_instance_type_offerings").paginate(
            LocationType="availability-zone", Filters=named
        )
        for page in pages:
            for offer in page["InstanceTypeOfferings"]:
                offers[offer["InstanceType"]].add(offer["Location"])
    return {name: frozenset(zones) for name, zones in offers.items()}


def places(
    types: Sequence[str],
    offers: Offers,
    subnets: Sequence[Subnet],
    zone: str | None,
    addresses_needed: int,
) -> tuple[Place, ...]:
    """Every place that can take all nodes, best first: by type as asked, then by zone.

    `zone` is a must. A zone's subnet with most free addresses stands for the zone.
    """
    return tuple(
        Place(instance_type, subnet.zone, subnet.subnet_id)
        for instance_type in types
        for subnet in _roomiest(subnets)
        if subnet.zone in offers.get(instance_type, frozenset())
        and zone in (None, subnet.zone)
        and subnet.free_addresses >= addresses_needed
    )


def _roomiest(subnets: Sequence[Subnet]) -> Iterator[Subnet]:
    by_zone: dict[str, Subnet] = {}
    for subnet in sorted(subnets, key=lambda one: -one.free_addresses):
        by_zone.setdefault(subnet.zone, subnet)
    return iter(by_zone[zone] for zone in sorted(by_zone))


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
