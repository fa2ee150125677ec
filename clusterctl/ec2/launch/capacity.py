"""Zones that offer a type, the account's quotas, and what to do when EC2 has no capacity.

Also reserved capacity (On-Demand Capacity Reservations and Capacity Blocks), and one table of the
error codes with which EC2 refuses a launch. The codes are from EC2's error list and from the lists
of capacity errors in Karpenter and AWS ParallelCluster.
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
from clusterctl.domain.findings import Finding
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


STANDARD = Bucket("Standard (A, C, D, H, I, M, R, T, Z)", "L-1216C47A", "L-34B43A08")
# Letters that the families' names begin with -> quota. The codes are the same in all regions.
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
# For spot the generations of P have quotas of their own. AWS lists none for P6 (EC2 user guide,
# "Spot Instance quotas", 2026).
_OLD_P = Bucket("P4, P3 and P2", "", "L-7212CCBC")
SPOT_P = {"2": _OLD_P, "3": _OLD_P, "4": _OLD_P, "5": Bucket("P5", "", "L-C4BD4855")}

# The states in which an instance counts against a quota.
COUNTED = ("pending", "running")
# DescribeInstances' InstanceLifecycle -> market.
_MARKET_OF = {"": Market.ON_DEMAND, "spot": Market.SPOT, "capacity-block": Market.CAPACITY_BLOCK}


def bucket_of(instance_type: str, market: Market = Market.ON_DEMAND) -> Bucket | None:
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
    """

    title: str
    code: str
    used: int
    limit: float | None
    service: str = "ec2"

    def request(self, wanted: int, region: str) -> str:
        """Return the command that asks AWS to raise the quota to `wanted` in all.

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
    families once, and reads each quota once.
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
    """Return the use of the region's quota of elastic addresses. Raises AwsError."""
    with translated():
        used = len(clients.ec2.describe_addresses()["Addresses"])
    code = "L-0263D0A3"
    return QuotaUse("EC2-VPC Elastic IPs", code, used, find_quota(clients, code))


def find_interface_use(clients: Clients) -> QuotaUse:
    """Return the use of the region's quota of network interfaces. Raises AwsError.

    Lists all of them, because EC2 has no call that counts.
    """
    with translated():
        pages = clients.ec2.get_paginator("describe_network_interfaces")
        used = sum(len(page["NetworkInterfaces"]) for page in pages.paginate(PaginationConfig=PAGE))
    code = "L-DF5E4CA3"
    limit = find_quota(clients, code, "vpc")
    return QuotaUse("Network interfaces per Region", code, used, limit, "vpc")


def _running(clients: Clients, buckets: Iterable[Bucket | None]) -> list[Any]:
    # The patterns match more than these families (`m*` matches mac1.metal); `used_vcpus` does not.
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
            "so only the launch tells whether there is one",
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
    return full_finding("quota.vcpus", use, need, f"{wanted} {need} vCPUs", region)


def full_finding(
    check_id: str, use: QuotaUse, need: int, wanted: str, region: str
) -> Finding | None:
    """Return an error if `need` more exceed the quota; None if they fit or the limit is unknown.

    `wanted` is the beginning of the message.
    """
    if use.limit is None or use.used + need <= use.limit:
        return None
    return Finding.error(
        check_id,
        f"{wanted}, {use.used} are in use, "
        f"and the quota {use.title} ({use.code}) is {use.limit:g} in {region}",
        f"ask for more: {use.request(use.used + need, region)}",
    )


@dataclass(frozen=True)
class Place:
    """Where a launch is tried: an instance type and a subnet, and so a zone."""

    instance_type: str
    zone: str
    subnet_id: str


class Move(Enum):
    """What to do after EC2 has refused a launch."""

    NEXT_PLACE = "try elsewhere"
    WAIT = "wait and try again"
    QUOTA = "ask for a larger quota"
    FIX = "ask for something else"
    ABORT = "give up"


# By error code of RunInstances, or by the state reason of an instance that died while starting.
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
# A zone's name, including local zones such as us-west-2-lax-1a.
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
# The white space keeps a full stop inside a name, such as p4d.24xlarge, from ending a sentence.
_SENTENCE_END = re.compile(r"\.\s")


def move_for(code: str) -> Move:
    """Return what an error code calls for: ABORT if the code has nothing to do with capacity."""
    return MOVES.get(code, Move.ABORT)


def zones_offered(message: str) -> tuple[str, ...]:
    """Return the zones that EC2's message says have capacity.

    The message ends in `... or choosing us-east-1b, us-east-1c.`
    """
    # The text before `choosing` names the zone without capacity.
    sentences = _SENTENCE_END.split(message)
    named = [one.partition("choosing ")[2] for one in sentences]
    return tuple(dict.fromkeys(zone for text in named for zone in _ZONE.findall(text)))


def next_place(places: Sequence[Place], tried: Sequence[Place], message: str = "") -> Place | None:
    """Return the place to try after EC2 refused `tried[-1]` with `message`; None if all were tried.

    First come the zones that EC2's message names, for the same type; then the type's other zones;
    then other types. `places` are sorted by type and zone already.
    """
    left = [place for place in places if place not in tried]
    same = [place for place in left if tried and place.instance_type == tried[-1].instance_type]
    for zone in zones_offered(message):
        for place in same:
            if place.zone == zone:
                return place
    return next(iter([*same, *left]), None)


def out_of_capacity(tried: Sequence[Place], failure: AwsError, bound: bool = False) -> AwsError:
    """Return the error for a launch that every place refused, with EC2's last message.

    `bound`: the nodes join an existing cluster, which determines their zone and type.
    """
    where = ", ".join(dict.fromkeys(f"{place.instance_type} in {place.zone}" for place in tried))
    scarce = "Capacity" in failure.code
    what = "nowhere are enough machines" if scarce else "no place takes this launch"
    return AwsError(
        failure.code,
        f"{what}: tried {where}. EC2 said: {failure.message}",
        f"nothing was launched; {_BOUND if bound else _FREE}",
    )


# Instance type -> the zones that offer it.
Offers = Mapping[str, frozenset[str]]


def find_offers(client: EC2Client, types: Sequence[str]) -> Offers:
    """Return the zones of this region that offer each type. Raises AwsError."""
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
    """Return every place that can take all nodes: types in the given order, zones by name.

    With `zone`, only places in that zone. Of each zone the subnet with most free addresses is
    taken, and only if it has `addresses_needed`.
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
    """A capacity reservation, or with `block` a Capacity Block, which ends at `ends_at`.

    `free` is the number of instances that it still has room for. `placement_group`: it is tied to
    a placement group.
    """

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
    """Return the reservation; None if the region has none of this id. Raises AwsError."""
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
