"""Reservations, Capacity Blocks, spot, quotas: whether machines are to be had. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clusterctl.domain.findings import Finding, Severity
from clusterctl.domain.spec import ClusterSpec, Limits, Market
from clusterctl.domain.units import count
from clusterctl.ec2.instances import Instance, standing
from clusterctl.ec2.launch.interfaces import efa_wanted, interfaces_needed, several
from clusterctl.ec2.launch.preflight.case import Case, error
from clusterctl.ec2.launch.quotas import full_finding, quota_finding
from clusterctl.ec2.launch.reservations import Reservation
from clusterctl.ec2.machines import MachineType
from clusterctl.ec2.money.limits_tag import format_limits, parse_limits

# States of a reservation that will become active.
TO_COME = ("pending", "payment-pending", "scheduled", "assessing", "delayed")


def offered(case: Case, machine: MachineType) -> Iterator[Finding]:
    zones = {subnet.zone for subnet in case.catalogue.subnets}
    offered = case.catalogue.offers.get(machine.name, frozenset())
    if not offered:
        yield error(
            "type.offered",
            f"no zone of {case.seen.region} offers {machine.name}",
            "choose another --region or --instance-type",
        )
    elif case.spec.zone and case.spec.zone not in offered:
        yield error(
            "type.offered",
            f"{machine.name} is not offered in {case.spec.zone}",
            f"it is in {', '.join(sorted(offered))}: choose another --zone",
        )
    elif zones and not offered & zones:
        yield error(
            "type.offered",
            f"{machine.name} is offered in {', '.join(sorted(offered))}; "
            f"the subnets are in {', '.join(sorted(zones))}",
            "choose a --subnet or --network in one of its zones",
        )


def reservation(case: Case) -> Iterator[Finding]:
    spec, found = case.spec, case.catalogue.reservation
    if spec.capacity_reservation is None:
        return
    if found is None:
        yield error(
            "reservation.none",
            f"there is no capacity reservation {spec.capacity_reservation} in {case.seen.region}",
            "see `aws ec2 describe-capacity-reservations`",
        )
        return
    name = found.reservation_id
    if found.state != "active":
        yield _not_active(found)
    elif found.free < case.missing:
        yield error(
            "reservation.free",
            f"{name} has {count(found.free, 'machine')} left of {case.missing} that are needed",
            "ask for fewer --nodes; a terminated instance frees its place within minutes",
        )
    if spec.types != (found.instance_type,):
        yield error(
            "reservation.type",
            f"{name} is for {found.instance_type}",
            f"give --instance-type {found.instance_type}, and no --or-type",
        )
    if spec.zone and spec.zone != found.zone:
        yield error("reservation.zone", f"{name} is in {found.zone}", "leave --zone out")
    if spec.market is Market.SPOT:
        yield error("reservation.spot", f"{name} is no spot capacity", "leave --spot out")
    if found.placement_group:
        yield error(
            "reservation.placement",
            f"{name} is for a placement group of its own, which clusterctl does not launch into",
            "make a reservation without a placement group",
        )
    if found.block:
        yield from _block(case)


def _not_active(found: Reservation) -> Finding:
    to_come = found.state in TO_COME
    when = f", from {found.starts_at:%Y-%m-%d %H:%M %Z}" if to_come and found.starts_at else ""
    return error(
        "reservation.state",
        f"{found.reservation_id} is {found.state}, not active{when}",
        "wait for its start" if to_come else "choose another: --capacity-reservation",
    )


def _block(case: Case) -> Iterator[Finding]:
    found = case.catalogue.reservation
    if case.spec.min_nodes is not None:
        yield error(
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


def spot(case: Case) -> Iterator[Finding]:
    if case.spec.market is Market.SPOT:
        yield Finding(
            "market.spot",
            Severity.WARNING,
            "EC2 may take spot nodes away with two minutes' notice, and one lost node ends an "
            "MPI job",
            hint="write checkpoints; each node notes the warning in /run/clusterctl",
        )


def limits(case: Case) -> Iterator[Finding]:
    yield from limit_findings(case.spec, case.market, case.seen.instances)


def limit_findings(
    spec: ClusterSpec, market: Market, there: Sequence[Instance]
) -> Iterator[Finding]:
    """What the limits cannot be, alone or together, and which of those that held are gone."""
    yield from _dropped(spec, there)
    if not spec.limits.idle_minutes:
        return
    if market is Market.SPOT:
        yield error(
            "market.idle",
            "spot nodes cannot be stopped, only terminated",
            "leave --idle-stop out, or limit the time with --max-hours",
        )
    elif spec.limits.ends:
        after = f"{spec.limits.stopped_days:g} days" if spec.limits.stopped_days else "N days"
        yield Finding(
            "limits.both",
            Severity.WARNING,
            "with --idle-stop the end of the time only stops the nodes, too: EC2 has one answer "
            "for every power-off. The machines cost nothing from then on, their disks do",
            hint=f"clusterctl down {spec.name} ends that; so does, after --stopped-days "
            f"({after}), clusterctl gc --delete; without --idle-stop the nodes are terminated",
        )


def _dropped(spec: ClusterSpec, there: Sequence[Instance]) -> Iterator[Finding]:
    before = parse_limits(standing(there)[0].limits_text) if there else Limits()
    held, hold = (format_limits(one).split() for one in (before, spec.limits))
    keys = {one.partition("=")[0] for one in hold}
    gone = [one for one in held if one.partition("=")[0] not in keys]
    if gone:
        ends = before.at_power_off == "stop" and spec.limits.at_power_off == "terminate"
        yield Finding(
            "limits.dropped",
            Severity.WARNING,
            f"the limits of this `up` replace the earlier ones: {', '.join(gone)} is gone"
            + (", and at the end the nodes are terminated now, with their disks" if ends else ""),
            hint=f"give all that are to hold in one: clusterctl up {spec.name}, with each of them",
        )


def sold(case: Case, machine: MachineType) -> Iterator[Finding]:
    if machine.usage_classes and case.market.value not in machine.usage_classes:
        yield error(
            "type.market",
            f"{machine.name} is not to be had as {case.market.value}",
            f"EC2 has it as {', '.join(machine.usage_classes)}",
        )


def quotas(case: Case, machine: MachineType) -> Iterator[Finding]:
    use = case.catalogue.quotas.get(machine.name)
    # What is reserved is counted already.
    if use and not case.spec.capacity_reservation:
        finding = quota_finding(use, machine, case.missing, case.seen.region)
        if finding:
            yield finding
    for finding in (_address(case, machine), _interfaces(case, machine)):
        if finding:
            yield finding


def _address(case: Case, machine: MachineType) -> Finding | None:
    use, efa = case.catalogue.addresses, efa_wanted(machine, case.spec.nodes, case.spec.efa)
    if use is None or not (case.spec.private or several(machine, efa)):
        return None
    wanted = "the head node, through which the others are reached, needs an elastic address"
    return full_finding("quota.addresses", use, 1, wanted, case.seen.region)


def _interfaces(case: Case, machine: MachineType) -> Finding | None:
    if case.catalogue.interfaces is None:
        return None
    need = interfaces_needed(machine, case.missing, case.spec)
    wanted = f"{count(case.missing, 'more node')} ({machine.name}) with {need} network interfaces"
    use, region = case.catalogue.interfaces, case.seen.region
    return full_finding("quota.interfaces", use, need, wanted, region)
