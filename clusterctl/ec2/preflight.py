"""Everything that speaks against a launch, found before anything is created. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from clusterctl.domain.findings import Finding, Severity
from clusterctl.domain.spec import ClusterSpec, Market
from clusterctl.domain.units import count
from clusterctl.ec2.costs import budget_findings, estimate
from clusterctl.ec2.image_checks import image_findings
from clusterctl.ec2.images import Image
from clusterctl.ec2.interfaces import efa_wanted, several
from clusterctl.ec2.machines import MachineType
from clusterctl.ec2.observe import Catalogue, Observed
from clusterctl.ec2.quotas import quota_finding
from clusterctl.ec2.retired import retired_finding

# gp3, EBS user guide (2026): IOPS and MiB/s, and what each needs of the other.
GP3_IOPS, GP3_MIB_S, GP3_GIB = (3000, 80_000), (125, 2000), (1, 65_536)
IOPS_PER_GIB, MIB_S_PER_IOPS = 500, 0.25


@dataclass(frozen=True)
class Case:
    """What every check looks at. `missing` nodes are to be launched."""

    spec: ClusterSpec
    seen: Observed
    catalogue: Catalogue
    missing: int
    market: Market

    @property
    def known(self) -> list[MachineType]:
        return [
            self.catalogue.machines[name]
            for name in self.spec.types
            if name in self.catalogue.machines
        ]


def preflight(
    spec: ClusterSpec, seen: Observed, catalogue: Catalogue, missing: int, market: Market
) -> list[Finding]:
    """All findings, the errors first; each names what to do about it."""
    case = Case(spec, seen, catalogue, missing, market)
    found = [finding for check in CHECKS for finding in check(case)]
    order = [Severity.ERROR, Severity.WARNING, Severity.INFO]
    return sorted(dict.fromkeys(found), key=lambda finding: order.index(finding.severity))


def _types(case: Case) -> Iterator[Finding]:
    for name in case.spec.types:
        known = name in case.catalogue.machines
        retired = retired_finding(name, known, case.seen.region)
        if retired:
            yield retired
        elif not known:
            yield _error(
                "type.unknown",
                f"EC2 has no instance type {name} in {case.seen.region}",
                "see `aws ec2 describe-instance-types`, or choose another --region",
            )


def _offered(case: Case) -> Iterator[Finding]:
    zones = {subnet.zone for subnet in case.catalogue.subnets}
    for machine in case.known:
        offered = case.catalogue.offers.get(machine.name, frozenset())
        if not offered:
            yield _error(
                "type.offered",
                f"no zone of {case.seen.region} offers {machine.name}",
                "choose another --region or --instance-type",
            )
        elif case.spec.zone and case.spec.zone not in offered:
            yield _error(
                "type.offered",
                f"{machine.name} is not offered in {case.spec.zone}",
                f"it is in {', '.join(sorted(offered))}: choose another --zone",
            )
        elif zones and not offered & zones:
            yield _error(
                "type.offered",
                f"{machine.name} is offered in {', '.join(sorted(offered))}; "
                f"the subnets are in {', '.join(sorted(zones))}",
                "choose a --subnet or --network in one of its zones",
            )


def _images(case: Case) -> Iterator[Finding]:
    for machine in case.known:
        yield from image_findings(case.catalogue.images.get(machine.name), machine, case.spec.image)


def _addresses(case: Case) -> Iterator[Finding]:
    subnets = [subnet for subnet in case.catalogue.subnets if case.spec.zone in (None, subnet.zone)]
    if not subnets:
        where = f" in {case.spec.zone}" if case.spec.zone else ""
        yield _error(
            "subnet.none",
            f"there is no subnet to launch into{where}",
            "run `aws ec2 create-default-subnet`, or choose a --subnet or --network",
        )
    elif all(subnet.free_addresses < case.missing for subnet in subnets):
        most = max(subnets, key=lambda subnet: subnet.free_addresses)
        yield _error(
            "subnet.addresses",
            f"{count(case.missing, 'node')} need as many addresses; the roomiest subnet, "
            f"{most.subnet_id} in {most.zone}, has {most.free_addresses} left",
            "choose a larger subnet with --subnet, or make a network: clusterctl network up NAME",
        )


def _disk(case: Case) -> Iterator[Finding]:
    disk = case.spec.disk
    images = {image for image in case.catalogue.images.values() if image}
    yield from _snapshot(disk.size_gib, images)
    for what, value, (least, most), option in (
        ("GiB", disk.size_gib, GP3_GIB, "--disk-gib"),
        ("IOPS", disk.iops, GP3_IOPS, "--disk-iops"),
        ("MiB/s", disk.throughput_mib_s, GP3_MIB_S, "--disk-throughput"),
    ):
        if value is not None and not least <= value <= most:
            yield _error(
                "disk.limits",
                f"a gp3 volume has {least} to {most} {what}, not {value}",
                f"choose another {option}",
            )
    if disk.iops and disk.size_gib and disk.iops > IOPS_PER_GIB * disk.size_gib:
        yield _error(
            "disk.iops",
            f"{disk.iops} IOPS need a volume of {-(-disk.iops // IOPS_PER_GIB)} GiB",
            "raise --disk-gib, or lower --disk-iops",
        )
    iops = disk.iops or GP3_IOPS[0]
    if disk.throughput_mib_s and disk.throughput_mib_s > MIB_S_PER_IOPS * iops:
        needed = round(disk.throughput_mib_s / MIB_S_PER_IOPS)
        yield _error(
            "disk.throughput",
            f"{disk.throughput_mib_s} MiB/s need {needed} IOPS",
            f"give --disk-iops {needed}",
        )


def _snapshot(size_gib: int | None, images: set[Image]) -> Iterator[Finding]:
    for image in sorted(images, key=lambda one: one.image_id):
        if size_gib is not None and size_gib < image.root_gib:
            yield _error(
                "disk.size",
                f"a root volume of {size_gib} GiB is smaller than the image's snapshot: "
                f"{image.image_id} has {image.root_gib} GiB",
                f"give --disk-gib {image.root_gib} or more, or leave it out",
            )


def _interfaces(case: Case) -> Iterator[Finding]:
    for machine in case.known:
        efa = efa_wanted(machine, case.spec.nodes, case.spec.efa)
        if case.spec.efa and not machine.efa_interfaces:
            yield _error(
                "network.efa",
                f"{machine.name} has no EFA",
                "leave --efa out, or take a larger type",
            )
        if several(machine, efa) and not case.spec.private:
            yield Finding(
                "network.public",
                Severity.INFO,
                f"{machine.name} gets several network interfaces, with which EC2 gives no public "
                "address: the head node gets an elastic one, the others are reached through it",
            )


def _placement(case: Case) -> Iterator[Finding]:
    if not case.spec.placement_group:
        return
    if case.market is Market.CAPACITY_BLOCK:
        yield _error(
            "placement.block",
            "a Capacity Block and a placement group exclude each other",
            "leave --placement-group out: a block's machines are close to each other anyway",
        )
    for machine in case.known:
        if "cluster" not in machine.placement_strategies:
            yield _error(
                "placement.type",
                f"{machine.name} takes no cluster placement group",
                "give --no-placement-group",
            )


def _reservation(case: Case) -> Iterator[Finding]:
    spec, found = case.spec, case.catalogue.reservation
    if spec.capacity_reservation is None:
        return
    if found is None:
        yield _error(
            "reservation.none",
            f"there is no capacity reservation {spec.capacity_reservation} in {case.seen.region}",
            "see `aws ec2 describe-capacity-reservations`",
        )
        return
    name = found.reservation_id
    if found.state != "active":
        when = f", from {found.starts_at:%Y-%m-%d %H:%M %Z}" if found.starts_at else ""
        yield _error(
            "reservation.state", f"{name} is {found.state}, not active{when}", "wait for its start"
        )
    elif found.free < case.missing:
        yield _error(
            "reservation.free",
            f"{name} has {found.free} machines left, {case.missing} are needed",
            "ask for fewer --nodes; a terminated instance frees its place within minutes",
        )
    if spec.types != (found.instance_type,):
        yield _error(
            "reservation.type",
            f"{name} is for {found.instance_type}",
            f"give --instance-type {found.instance_type}, and no --or-type",
        )
    if spec.zone and spec.zone != found.zone:
        yield _error("reservation.zone", f"{name} is in {found.zone}", "leave --zone out")
    if spec.market is Market.SPOT:
        yield _error("reservation.spot", f"{name} is no spot capacity", "leave --spot out")
    if found.block:
        yield from _block(case)


def _block(case: Case) -> Iterator[Finding]:
    found = case.catalogue.reservation
    if case.spec.min_nodes is not None:
        yield _error(
            "reservation.min",
            "a Capacity Block launches all nodes or none",
            "leave --min-nodes out",
        )
    if found and found.ends_at:
        yield Finding(
            "reservation.end",
            Severity.WARNING,
            f"EC2 begins to terminate the nodes 30 minutes before the block ends: "
            f"{found.ends_at:%Y-%m-%d %H:%M %Z}",
            hint="let the last checkpoint be written by then",
        )


def _spot(case: Case) -> Iterator[Finding]:
    if case.spec.market is Market.SPOT:
        yield Finding(
            "market.spot",
            Severity.WARNING,
            "EC2 may take spot nodes away with two minutes' notice, and one lost node ends an "
            "MPI job",
            hint="write checkpoints; each node notes the warning in /run/clusterctl",
        )
        if case.spec.limits.idle_minutes:
            yield _error(
                "market.idle",
                "spot nodes cannot be stopped, only terminated",
                "leave --idle-stop out, or limit the time with --max-hours",
            )


def _quotas(case: Case) -> Iterator[Finding]:
    for machine in case.known:
        use = case.catalogue.quotas.get(machine.name)
        if use:
            finding = quota_finding(use, machine, case.missing, case.seen.region)
            if finding:
                yield finding


def _money(case: Case) -> Iterator[Finding]:
    for machine in case.known:
        costs = estimate(
            case.catalogue.prices.get(machine.name),
            case.spec.nodes,
            instance_type=machine.name,
            market=case.market,
        )
        spent = sum(found.spent_usd for found in case.seen.instances)
        yield from budget_findings(case.spec.limits, costs, spent)


CHECKS: tuple[Callable[[Case], Iterator[Finding]], ...] = (
    _types,
    _offered,
    _images,
    _addresses,
    _disk,
    _interfaces,
    _placement,
    _reservation,
    _spot,
    _quotas,
    _money,
)


def _error(check_id: str, message: str, hint: str) -> Finding:
    return Finding(check_id, Severity.ERROR, message, hint=hint)
