"""What a cluster has cost so far, and how long its limits let it go on. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from clusterctl.domain.cluster import NodeState
from clusterctl.domain.findings import Finding, Severity
from clusterctl.domain.spec import Limits, Market
from clusterctl.domain.units import format_duration
from clusterctl.ec2.costs import PUBLIC_IPV4_HOUR_USD, Price, disk_hourly_usd, format_usd
from clusterctl.ec2.instances import Instance
from clusterctl.ec2.limits_tag import parse_limits
from clusterctl.ec2.resources import stopped_since

# EC2 bills a machine in these states; in others only what it holds.
BILLED = (NodeState.PENDING, NodeState.RUNNING)
ASLEEP = (NodeState.STOPPING, NodeState.STOPPED)
WARN_BELOW_H = 0.5


@dataclass(frozen=True)
class NodeCost:
    """One node. `usd_per_hour` None: its price is not known. Not `complete`: it cost more."""

    usd_per_hour: float | None
    spent_usd: float
    complete: bool = True


@dataclass(frozen=True)
class Running:
    """What a whole cluster costs an hour while it runs; None: nobody knows the price."""

    nodes: int
    gpus: int
    usd_per_hour: float | None
    price_source: str


@dataclass(frozen=True)
class Spending:
    """A cluster's money. `spent_usd` is the least it has cost, and all of it if `complete`.

    `ends_in_h` is until the first of its limits ends it, which `ended_by` names; None without.
    """

    usd_per_hour: float | None
    spent_usd: float
    complete: bool
    price_source: str
    limits: Limits
    since: datetime
    ends_in_h: float | None = None
    ended_by: str = ""
    findings: tuple[Finding, ...] = ()


def price_key(instance: Instance) -> tuple[str, Market, str]:
    """What a node's price depends on: type, market, and for spot the zone."""
    zone = instance.node.availability_zone if instance.market is Market.SPOT else ""
    return instance.node.instance_type, instance.market, zone


def node_cost(instance: Instance, price: Price | None, now: datetime) -> NodeCost:
    """One node now. What it cost in earlier runs is in its tag.

    A stop by `clusterctl stop` has put the run into the tag; a machine that stopped itself has
    not, and EC2 does not always say when that was.
    """
    node, disk = instance.node, instance.disk
    held = disk_hourly_usd(disk.size_gib or 0, disk.iops, disk.throughput_mib_s)
    # A stopped machine has a public address only if it is one of its own, which costs as before.
    held += PUBLIC_IPV4_HOUR_USD if node.public_ip else 0.0
    machine = price.usd_per_hour if price else None
    before = instance.spent_usd
    if node.state in BILLED:
        hours = _hours(node.launched_at, now)
        run = before + hours * (held + (machine or 0.0))
        return NodeCost(None if machine is None else machine + held, run, machine is not None)
    if node.state not in ASLEEP:
        return NodeCost(0.0, before)
    stopped = stopped_since(instance.state_since)
    if before and stopped and "UserInitiated" in instance.state_reason:
        return NodeCost(held, before + _hours(stopped, now) * held)
    ran = _hours(node.launched_at, stopped) if stopped else 0.0
    spent = before + _hours(node.launched_at, now) * held + ran * (machine or 0.0)
    return NodeCost(held, spent, stopped is not None and machine is not None)


def spending(
    instances: Sequence[Instance],
    prices: Mapping[tuple[str, Market, str], Price | None],
    now: datetime,
) -> Spending:
    """A cluster's money; `instances` is not empty, `prices` has each price_key."""
    costs = [node_cost(one, prices.get(price_key(one)), now) for one in instances]
    known = [cost.usd_per_hour for cost in costs if cost.usd_per_hour is not None]
    total = sum(known) if len(known) == len(costs) else None
    # Not that of a head node that is being replaced.
    head = min(instances, key=lambda one: (one.retired, one.node.index))
    limits = parse_limits(head.limits_text)
    spent = sum(cost.spent_usd for cost in costs)
    ends, by = _end(instances, costs, limits, total, spent, now)
    return Spending(
        usd_per_hour=total,
        spent_usd=spent,
        complete=all(cost.complete for cost in costs),
        price_source=_sources(prices, instances),
        limits=limits,
        since=min(one.node.launched_at for one in instances),
        ends_in_h=ends,
        ended_by=by,
        findings=(
            *_endings(limits, total, spent, ends, by),
            *_overdue(instances, limits, now),
        ),
    )


def _end(
    instances: Sequence[Instance],
    costs: Sequence[NodeCost],
    limits: Limits,
    hourly: float | None,
    spent: float,
    now: datetime,
) -> tuple[float | None, str]:
    running = [(one, cost) for one, cost in zip(instances, costs) if one.node.state in BILLED]
    ends: list[tuple[float, str]] = []
    if running and limits.max_hours is not None:
        ran = max(_hours_run(one, cost, now) for one, cost in running)
        ends.append((limits.max_hours - ran, "--max-hours"))
    if running and limits.budget_usd is not None and hourly:
        ends.append(((limits.budget_usd - spent) / hourly, "--budget"))
    if not ends:
        return None, ""
    left, by = min(ends)
    return max(0.0, left), by


def _hours_run(one: Instance, cost: NodeCost, now: datetime) -> float:
    # Earlier runs are known by what they cost only.
    earlier = one.spent_usd / cost.usd_per_hour if cost.usd_per_hour else 0.0
    return _hours(one.node.launched_at, now) + earlier


def _endings(
    limits: Limits, hourly: float | None, spent: float, ends: float | None, by: str
) -> list[Finding]:
    found = []
    if limits.max_hourly_usd is not None and hourly is not None and hourly > limits.max_hourly_usd:
        text = (
            f"it costs {format_usd(hourly)} an hour now, "
            f"more than --max-hourly {format_usd(limits.max_hourly_usd)}"
        )
        found.append(_warning("cost.hourly", text, "remove nodes, or the cluster"))
    if limits.budget_usd is not None and spent >= limits.budget_usd:
        text = f"the budget of {format_usd(limits.budget_usd)} is spent: {format_usd(spent)}"
        found.append(_warning("cost.budget", text, "remove the cluster: clusterctl down"))
    elif limits.budget_usd is not None and hourly is None:
        text = "the price is not known: nobody can say how long the budget lasts"
        found.append(_warning("cost.price", text, "allow pricing:GetProducts"))
    if ends is not None and ends < WARN_BELOW_H:
        text = f"the nodes end in {format_duration(ends * 3600)} by {by}"
        found.append(_warning("cost.ending", text, "let the last checkpoint be written by then"))
    return found


def _overdue(instances: Sequence[Instance], limits: Limits, now: datetime) -> list[Finding]:
    asleep = [one for one in instances if one.node.state is NodeState.STOPPED]
    if limits.stopped_days is None or not asleep:
        return []
    stops = [stop for one in asleep if (stop := stopped_since(one.state_since))]
    days = max((_hours(stop, now) / 24 for stop in stops), default=0.0)
    if days < limits.stopped_days:
        return []
    text = f"stopped for {days:.1f} days, {limits.stopped_days:g} were allowed: its disks cost"
    return [_warning("cost.stopped", text, "remove it: clusterctl down, or clusterctl gc --delete")]


def _sources(
    prices: Mapping[tuple[str, Market, str], Price | None], instances: Sequence[Instance]
) -> str:
    used = [prices.get(price_key(one)) for one in instances]
    return "; ".join(dict.fromkeys(f"{price.source}, {price.as_of}" for price in used if price))


def _warning(check_id: str, message: str, hint: str) -> Finding:
    return Finding(check_id, Severity.WARNING, message, hint=hint)


def _hours(start: datetime, end: datetime) -> float:
    # The two clocks may differ by a little.
    return max(0.0, (end - start).total_seconds() / 3600)
