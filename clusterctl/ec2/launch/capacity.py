"""Where and how much may be launched: zones that offer a type, reservations (On-Demand Capacity
Reservations and Capacity Blocks), the account's quotas and their use, and what a refusal of EC2
means, as a value: where to try next. What each error code calls for is in codes.toml.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any

from clusterctl.domain.cluster import Market
from clusterctl.domain.errors import AwsError
from clusterctl.domain.findings import Finding, Severity
from clusterctl.domain.units import count
from clusterctl.ec2.errors import codes, paged, translated
from clusterctl.ec2.instances import PAGE, Instance, described_instances
from clusterctl.ec2.machines import MachineType, find_machine_types
from clusterctl.ec2.network.vpcs import Subnet

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

    from clusterctl.ec2.session import Clients


@dataclass(frozen=True)
class Place:
    """Where a launch is tried: an instance type and a subnet, and so a zone."""

    instance_type: str
    zone: str
    subnet_id: str

    @property
    def in_local_zone(self) -> bool:
        """Whether the zone is a Local Zone."""
        return is_local_zone(self.zone)


def is_local_zone(zone: str) -> bool:
    """Return whether a zone is none of the region's own, such as us-west-2-lax-1a.

    The name of an availability zone is the region's and a letter.
    """
    return not re.fullmatch(r"[a-z]+(-[a-z]+)+-\d+[a-z]", zone)


def border_group(zone: str) -> str:
    """Return the network border group of a zone: where an elastic address of its nodes has to be.

    That of an availability zone is its region, that of a Local Zone its name without the letter
    (EC2 user guide, "Elastic IP addresses"; Local Zones user guide, "Available Local Zones").
    """
    return zone.rstrip("abcdefghijklmnopqrstuvwxyz")


class RefusalAction(Enum):
    """What to do after EC2 has refused a launch."""

    NEXT_PLACE = "try elsewhere"
    WAIT = "wait and try again"
    QUOTA = "ask for a larger quota"
    FIX = "ask for something else"
    ABORT = "give up"


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


def refusal_action(code: str) -> RefusalAction:
    """Return what an error code calls for: ABORT if the code has nothing to do with capacity."""
    listed = codes()["refusals"].items()
    found = (RefusalAction[name] for name, refusals in listed if code in refusals.split())
    return next(found, RefusalAction.ABORT)


def zones_offered(message: str) -> tuple[str, ...]:
    """Return the zones that have capacity by EC2's message.

    The message ends in `... or choosing us-east-1b, us-east-1c.`
    """
    # The text before `choosing` names the zone without capacity.
    sentences = _SENTENCE_END.split(message)
    named = [one.partition("choosing ")[2] for one in sentences]
    return tuple(dict.fromkeys(zone for text in named for zone in _ZONE.findall(text)))


def next_place(places: Sequence[Place], tried: Sequence[Place], message: str) -> Place | None:
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
    advice = _BOUND if bound else _FREE
    if failure.code == "Server.InternalError":  # no capacity helps where machines do not start
        advice = "EC2 failed to start the machines, which is no lack of capacity: run it again"
    return AwsError(
        failure.code,
        f"{what}: tried {where}. EC2's message: {failure.message}",
        f"nothing was launched; {advice}",
    )


# Instance type -> the zones that offer it.
Offers = Mapping[str, frozenset[str]]


def find_offers(client: EC2Client, types: Sequence[str]) -> Offers:
    """Return the zones of this region that offer each type. Raises AwsError."""
    offers: dict[str, set[str]] = {name: set() for name in types}
    named: Any = [{"Name": "instance-type", "Values": list(types)}]
    for offer in paged(
        *(client, "describe_instance_type_offerings", "InstanceTypeOfferings"),
        LocationType="availability-zone",
        Filters=named,
    ):
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
    taken, and only if it has `addresses_needed`. All places are in one network border group: an
    elastic address is allocated before it is known which of the places has room, and is good for
    one group only. It is the region's if any subnet may be used there: no account is in a Local
    Zone by default, which has other prices, without having named it or a subnet in it.
    """
    usable = [subnet for subnet in subnets if zone in (None, subnet.zone)]
    groups = {border_group(subnet.zone) for subnet in usable}
    # A Local Zone's group begins with the region's, and is longer.
    group = min(groups, key=lambda name: (len(name), name), default="")
    return tuple(
        Place(instance_type, subnet.zone, subnet.subnet_id)
        for instance_type in types
        for subnet in _roomiest(usable)
        if subnet.zone in offers.get(instance_type, frozenset())
        and border_group(subnet.zone) == group
        and subnet.free_addresses >= addresses_needed
    )


def _roomiest(subnets: Sequence[Subnet]) -> Iterator[Subnet]:
    by_zone: dict[str, Subnet] = {}
    for subnet in sorted(subnets, key=lambda one: -one.free_addresses):
        by_zone.setdefault(subnet.zone, subnet)
    return iter(by_zone[zone] for zone in sorted(by_zone))


# The platform of Ubuntu, Amazon Linux and other distributions that need no licence.
LINUX = "Linux/UNIX"


# EC2 begins to terminate a Capacity Block's machines this long before its end (EC2 user guide,
# "Capacity Blocks for ML").
CLEANED_BEFORE = timedelta(minutes=30)


@dataclass(frozen=True)
class Reservation:
    """A capacity reservation, or with `block` a Capacity Block, which ends at `ends_at`.

    `free` is the number of instances that it still has room for. `placement_group`: it is tied to
    a placement group. `interruptible`: its owner may take it back. `platform` is EC2's name of the
    operating system that it is billed for, `tenancy` is `default` or `dedicated`.
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
    interruptible: bool = False
    platform: str = LINUX
    tenancy: str = "default"

    @property
    def machines_end_at(self) -> datetime | None:
        """When EC2 begins to terminate the machines of a Capacity Block; None for others."""
        return self.ends_at - CLEANED_BEFORE if self.block and self.ends_at else None


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
            interruptible=bool(found.get("Interruptible")),
            platform=found.get("InstancePlatform") or LINUX,
            tenancy=found.get("Tenancy") or "default",
        )
    return None


def end_finding(at: datetime, severity: Severity) -> Finding:
    """Return the finding about the end of a Capacity Block's nodes, for before and after `up`."""
    return Finding(
        "reservation.end",
        severity,
        f"EC2 begins to terminate the nodes at {at:%Y-%m-%d %H:%M %Z}, 30 minutes before their "
        "Capacity Block ends",
        hint="write the last checkpoint by then; each node is warned 40, 15 and 10 minutes before",
    )


def block_end(client: EC2Client, instances: Iterable[Instance]) -> datetime | None:
    """Return when EC2 begins to terminate instances of a Capacity Block; None without a block.

    Raises AwsError.
    """
    ids = {one.reservation_id for one in instances if one.market is Market.CAPACITY_BLOCK} - {""}
    found = [find_reservation(client, one) for one in sorted(ids)]
    return min((one.machines_end_at for one in found if one and one.machines_end_at), default=None)


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
