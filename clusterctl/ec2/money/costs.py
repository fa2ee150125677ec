"""What a cluster costs: an estimate before a launch, and the sum from its instances and tags.

docs/costs.md has the formula, its sources, and what is not counted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Optional

from clusterctl.domain.cluster import ASLEEP, AWAKE, Disk, Limits, Market, NodeState
from clusterctl.domain.findings import Finding
from clusterctl.domain.ranges import fold_hosts, grouped
from clusterctl.domain.units import count, format_duration
from clusterctl.ec2.instances import Instance, billing_reservations, first_launch, stopped_since
from clusterctl.ec2.money.prices import (
    LOAD_GIB_MIB_S_USD,
    PUBLIC_IPV4_HOUR_USD,
    Price,
    disk_hourly_usd,
    price_key,
)
from clusterctl.ec2.tags import limit_text, parse_limits
from clusterctl.node.guard.settings import GRACE_S


@dataclass(frozen=True)
class CostLine:
    """`count` items at `hourly_usd_each` each; None if the price is unknown."""

    what: str
    count: int
    hourly_usd_each: Optional[float]
    json_names = ("what", "count", "hourly_usd_each", "hourly_usd")

    @property
    def hourly_usd(self) -> Optional[float]:
        """The price of all `count` items; None if it is unknown."""
        return None if self.hourly_usd_each is None else self.count * self.hourly_usd_each


@dataclass(frozen=True)
class LoadCost:
    """What it costs once to fill the disks of new nodes from a snapshot at a rate of `mib_s`.

    EC2 bills the data in the snapshot, but does not list its amount. So `usd_each` is the most that
    one disk can cost, for a full snapshot of `gib`.
    """

    nodes: int
    gib: int
    mib_s: int
    json_names = ("nodes", "gib", "mib_s", "usd_each")

    @property
    def usd_each(self) -> float:
        return self.gib * self.mib_s * LOAD_GIB_MIB_S_USD


@dataclass(frozen=True)
class CostEstimate:
    """What a cluster costs an hour, part by part, and where the machine's price comes from.

    `once` is what the launch itself costs, not part of the hourly sum.
    """

    lines: tuple[CostLine, ...]
    price_source: str = ""
    once: Optional[LoadCost] = None
    json_names = ("hourly_usd", "lines", "once", "price_source")

    @property
    def hourly_usd(self) -> Optional[float]:
        """The sum in US dollars; None if the price of a part is unknown."""
        parts = [line.hourly_usd for line in self.lines]
        return None if None in parts else sum(part for part in parts if part is not None)


def estimate(
    price: Price | None,
    nodes: int,
    disk: Disk,
    public_addresses: int = 0,
    *,
    instance_type: str = "instance",
    market: Market = Market.ON_DEMAND,
) -> CostEstimate:
    """Estimate what `nodes` machines at this price cost while they run, each with such a disk."""
    lines = [machine_line(price, nodes, instance_type, market)]
    if disk.size_gib:
        what = f"gp3 disk of {disk.size_gib} GiB"
        lines.append(CostLine(what, nodes, disk_hourly_usd(disk)))
    if public_addresses:
        lines.append(CostLine("public IPv4 address", public_addresses, PUBLIC_IPV4_HOUR_USD))
    return CostEstimate(tuple(lines), "" if price is None else f"{price.source}, {price.as_of}")


def machine_line(price: Price | None, nodes: int, instance_type: str, market: Market) -> CostLine:
    """Return the cost of the machines only: 0 in a Capacity Block, which was paid in advance."""
    if market is Market.CAPACITY_BLOCK:
        return CostLine(f"{instance_type}, Capacity Block (paid in advance)", nodes, 0.0)
    return CostLine(
        f"{instance_type}, {market.value}", nodes, None if price is None else price.hourly_usd
    )


def format_usd(usd: float | None) -> str:
    """Format US dollars: `$87.83`, `$1,761.28`, `$0.0104` for small amounts, `unknown` for None."""
    if usd is None:
        return "unknown"
    digits = 4 if 0.00005 <= abs(usd) < 0.1 else 2
    return f"{'-' if usd < 0 else ''}${abs(usd):,.{digits}f}"


def format_spent(usd: float, complete: bool, at_most: bool) -> str:
    """Format what was spent: `$40.32`; `at least $40.32` where not all of it is known, `at most`
    where guards counted its time, and `about` for both."""
    bound = {(True, True): "at most ", (False, True): "about ", (False, False): "at least "}
    return bound.get((complete, at_most), "") + format_usd(usd)


def budget_findings(limits: Limits, estimate: CostEstimate, spent_usd: float) -> Iterator[Finding]:
    """Check an estimate against the limits, and report when the budget ends the cluster.

    `spent_usd` is what the cluster has cost so far.
    """
    hourly = estimate.hourly_usd
    if hourly is None:
        yield _unpriced(limits, estimate)
        return
    if limits.max_hourly_usd is not None and hourly > limits.max_hourly_usd:
        yield Finding.error(
            "cost.hourly",
            f"this costs {format_usd(hourly)} an hour; "
            f"--max-hourly allows {format_usd(limits.max_hourly_usd)}",
            "raise it: clusterctl up NAME --max-hourly USD; or request fewer or smaller nodes",
        )
    if limits.budget_usd is not None:
        yield from _budget(limits, limits.budget_usd, hourly, spent_usd)


def _budget(limits: Limits, budget: float, hourly: float, spent: float) -> Iterator[Finding]:
    hint = "raise it: clusterctl up NAME --budget USD; or request fewer or smaller nodes"
    if spent >= budget:
        text = f"the budget of {format_usd(budget)} is spent: {format_usd(spent)} so far"
        yield Finding.error("cost.budget", text, hint)
        return
    if hourly <= 0:
        return
    hours = (budget - spent) / hourly
    lasts = format_duration(hours * 3600)
    if hours < 1:
        text = (
            f"the budget of {format_usd(budget)} lasts {lasts} at {format_usd(hourly)} an hour, "
            "and has to last one hour"
        )
        yield Finding.error("cost.budget", text, hint)
    elif limits.max_hours is None or limits.max_hours > hours:
        before = "" if limits.max_hours is None else f", before --max-hours {limits.max_hours:g}"
        text = f"the budget of {format_usd(budget)} ends the cluster after {lasts}{before}"
        yield Finding.info("cost.budget", text)


# The check of a finding: a limit that is in the tags may not be in force.
EARLIER = "limits.earlier"
# New limits have to leave at least this: less is a slip, and would end what runs.
LEAST_LEFT_S = 300.0


def left_findings(
    limits: Limits,
    ran_h: float,
    spent_usd: float,
    hourly: float | None,
    at_most: bool = False,
    complete: bool = True,
) -> list[Finding]:
    """Refuse a time or budget that has passed, or that leaves less than five minutes, and a price
    an hour below that of the nodes.

    `ran_h` are the hours of the node that has run longest, `spent_usd` is what the cluster has
    cost, both as counted by guards if `at_most`; the cost lacks something unless it is `complete`.
    `hourly` is its price in US dollars an hour while all of it runs; None if it is unknown.
    """
    found: list[Finding] = []
    if limits.max_hourly_usd is not None and hourly is None:
        text = "the price of the nodes is not known: --max-hourly cannot be kept"
        found.append(Finding.error("cost.price", text, "allow pricing:GetProducts"))
    elif limits.max_hourly_usd is not None and hourly and hourly > limits.max_hourly_usd:
        text = f"--max-hourly {format_usd(limits.max_hourly_usd)} is less than the nodes cost"
        hint = f"give --max-hourly {math.ceil(hourly * 100) / 100:.2f} or more, or remove nodes"
        found.append(Finding.error("limits.passed", text, hint))
    if limits.max_hours is not None:
        ran = f"the nodes have run for {'at most ' * at_most}{format_duration(ran_h * 3600)}"
        least = math.ceil((ran_h + LEAST_LEFT_S / 3600) * 10 + 0.01) / 10
        found += _left(
            limit_text(limits, "--max-hours"),
            (limits.max_hours - ran_h) * 3600,
            ran if ran_h else "",
            f"it counts all hours since the launch: give --max-hours {least:g} or more",
        )
    if limits.budget_usd is not None:
        left_usd, spent = limits.budget_usd - spent_usd, format_spent(spent_usd, complete, at_most)
        left_s = left_usd / hourly * 3600 if hourly else math.copysign(math.inf, left_usd)
        least = math.ceil(spent_usd * 100 + (hourly or 0.0) * LEAST_LEFT_S / 36 + 0.01) / 100
        found += _left(
            f"--budget {format_usd(limits.budget_usd)}",
            left_s if left_usd > 0 else 0.0,
            f"the cluster has cost {spent}" if spent_usd else "",
            f"it counts all costs since the launch: give --budget {least:.2f} or more",
        )
    return found


def _left(limit: str, left_s: float, because: str, hint: str) -> Iterator[Finding]:
    reason = f": {because}" if because else ""
    if left_s <= 0:
        yield Finding.error("limits.passed", f"{limit} has been reached already{reason}", hint)
    elif left_s < LEAST_LEFT_S:
        text = f"{limit} would end the nodes in {format_duration(left_s)}{reason}"
        yield Finding.error("limits.passed", text, f"at least five minutes have to be left; {hint}")


def _unpriced(limits: Limits, estimate: CostEstimate) -> Finding:
    unknown = next(line for line in estimate.lines if line.hourly_usd_each is None)
    kept = [
        option
        for option, limit in (
            ("--budget", limits.budget_usd),
            ("--max-hourly", limits.max_hourly_usd),
        )
        if limit is not None
    ]
    text = f"the price of {count(unknown.count, 'node')} ({unknown.what}) is not known"
    if not kept:
        return Finding.warning(
            "cost.price", text, "check it before you launch, or allow pricing:GetProducts"
        )
    return Finding.error(
        "cost.price",
        f"{text}: {' and '.join(kept)} cannot be kept",
        "allow pricing:GetProducts, or limit the time instead: --max-hours",
    )


# A node that still runs this long after its cluster's end, and after its own start, does not end
# itself. Until then it may have booted, or run for the time that its guard leaves it.
OVERRUN_AFTER_H = 1.0
# `status` warns when less than this is left until a limit ends the cluster.
WARN_BELOW_H = 0.5


# AWS rejects requests signed by a clock that differs by more than this, so smaller differences of
# times may be due to clocks. A gap this short is counted as if the machine had run.
BRIEF_S = 300.0


@dataclass(frozen=True)
class NodeCost:
    """The cost of one node. `hourly_usd` is None if its price is unknown.

    `ran_h` are the hours of all its runs together. `missing` has the reasons why it has cost more
    than `spent_usd` and may have run for longer than `ran_h`. `at_most`: both may be up to ten
    minutes a boot too high, as the node's guard has counted them.
    """

    hourly_usd: float | None
    spent_usd: float
    ran_h: float = 0.0
    missing: tuple[str, ...] = ()
    at_most: bool = False

    @property
    def complete(self) -> bool:
        return not self.missing


@dataclass(frozen=True)
class RunningCost:
    """What a whole cluster costs an hour while it runs; None if the price is unknown."""

    nodes: int
    gpus: int
    hourly_usd: float | None
    price_source: str


@dataclass(frozen=True)
class PassedEnd:
    """A limit that was reached: its option, and how many hours ago, by today's price."""

    option: str
    hours_ago: float


def passed_end(
    limits: Limits, ran_h: float, spent_usd: float, hourly: float | None
) -> PassedEnd | None:
    """Return which limit a cluster has reached, the first one if several; None if none.

    `ran_h` are the hours of the node that has run longest. `hourly` is the price of the cluster in
    US dollars; None if it is unknown.
    """
    reached = []
    if limits.max_hours is not None and ran_h >= limits.max_hours:
        reached.append(PassedEnd("--max-hours", ran_h - limits.max_hours))
    if limits.budget_usd is not None and spent_usd >= limits.budget_usd:
        over_h = (spent_usd - limits.budget_usd) / hourly if hourly else 0.0
        reached.append(PassedEnd("--budget", over_h))
    return max(reached, key=lambda one: one.hours_ago, default=None)


def overrun_s(instance: Instance, end: PassedEnd | None, now: datetime) -> float | None:
    """Return for how many seconds a running node should have been off by now; None if it should
    not."""
    if end is None or instance.node.state not in AWAKE:
        return None
    since_h = min(end.hours_ago, _hours(instance.node.launched_at, now))
    return since_h * 3600 if since_h >= OVERRUN_AFTER_H else None


@dataclass(frozen=True)
class Spending:
    """What a cluster costs and has cost, and its limits.

    `spent_usd` lacks something unless it is `complete`, and may be too high if `at_most` (see
    `NodeCost`). `hourly_usd` is None if a price is
    unknown. `ran_h` are the hours of the node that has run longest. `ends_in_h` are the hours until
    the first limit ends the cluster, `ended_by` is that limit's option; None and empty if no limit
    ends it. `grace_due`: the nodes were started after that end, and no command has got them ready
    since.
    """

    hourly_usd: Optional[float]
    spent_usd: float
    complete: bool
    price_source: str
    limits: Limits
    since: datetime
    ran_h: float = 0.0
    ends_in_h: Optional[float] = None
    ended_by: str = ""
    grace_due: bool = False
    findings: tuple[Finding, ...] = ()
    at_most: bool = False
    json_names = (
        *("hourly_usd", "spent_usd", "complete", "at_most", "price_source", "since", "limits"),
        *("ends_in_s", "ended_by", "findings"),
    )

    @property
    def ends_in_s(self) -> Optional[float]:
        return None if self.ends_in_h is None else self.ends_in_h * 3600


def node_cost(
    instance: Instance, price: Price | None, now: datetime, used_h: float | None = None
) -> NodeCost:
    """Return what one node costs and has cost: the sum in its tag, plus the cost since then.

    EC2 records when the last run began and, if a stop was requested, when. It records neither
    earlier runs nor when a machine powered itself off. What is unknown is not counted, and is named
    in `missing`. `used_h` is the node's own count of the hours of all its runs, an upper bound;
    None where its guard did not answer.
    """
    node, disk, spent = instance.node, instance.disk, instance.spent
    billed = node.state in AWAKE
    machine = price.hourly_usd if price else 0.0
    held = disk_hourly_usd(disk)
    # A stopped machine keeps a public address only if it is an elastic one, which costs all the
    # time. `own` is true for such a machine.
    own = bool(node.public_ip) and not billed
    # EC2 removes other public addresses at a stop, but they cost money while the machine ran.
    has_none = instance.private or instance.several_interfaces  # EC2 gives it no public address
    had_address = node.public_ip or not (billed or has_none)
    address = PUBLIC_IPV4_HOUR_USD if had_address else 0.0
    hourly = held + (PUBLIC_IPV4_HOUR_USD if node.public_ip else 0.0) + (machine if billed else 0.0)
    unpriced = [] if price else [f"the price of {node.instance_type} is not known"]
    unpriced += ["the size of its disk is in no tag"] if disk.size_gib is None else []
    stopped = stopped_since(instance.transition_reason)
    if stopped and stopped < node.launched_at:
        stopped = None  # This is the time of an earlier stop.
    begin, why = _counted_until(instance)
    missing = [*unpriced, *why]
    if (begin - now).total_seconds() > BRIEF_S:
        what = "its cost tag" if spent else "its launch"
        missing.append(f"{what} has a date in the future by this machine's clock")
    if node.state not in (*AWAKE, *ASLEEP):
        # It is shutting down or terminated: its disk stopped costing when that was requested.
        hourly, now = 0.0, stopped or now
    started, ended = begin, now if billed else stopped
    if (node.launched_at - begin).total_seconds() > BRIEF_S:
        # `start` updates the tag before each start, so this node was started without it.
        started = node.launched_at
        missing.append(
            f"it was started {node.launched_at:%Y-%m-%d %H:%M} UTC; for how long it ran between "
            f"{begin:%Y-%m-%d %H:%M} and then is not known"
        )
    if ended is None:
        ended = started
        missing.append("it switched itself off, and EC2 does not say when")
    ran_h = _hours(started, ended)
    usd = (spent.usd if spent else 0.0) + ran_h * machine + _hours(begin, now) * held
    usd += address * (_hours(begin, now) if own else ran_h)
    ran_h += spent.ran_h if spent else 0.0
    at_most = bool(spent and spent.at_most)
    if used_h is not None and instance.first_launched_at and missing != unpriced:
        # The guard has counted all runs, so only unknown prices are missing. Its count is up to ten
        # minutes a boot too high: after short runs that is more than the machine can have run.
        used_h = min(used_h, _hours(instance.first_launched_at, now))
        at_most = at_most or used_h > ran_h
        ran_h, missing = max(ran_h, used_h), unpriced
        usd = max(
            usd, held * _hours(instance.first_launched_at, now) + used_h * (machine + address)
        )
    return NodeCost(hourly if price or not billed else None, usd, ran_h, tuple(missing), at_most)


def _counted_until(instance: Instance) -> tuple[datetime, list[str]]:
    """Return the time from which on the node's cost has to be counted, and what is missing before.

    This is the time in the node's tag; without a tag it is the first launch.
    """
    spent, launched_at = instance.spent, instance.node.launched_at
    if spent:
        return spent.until, ["an earlier run is not known whole"] if spent.at_least else []
    if instance.first_launched_at:
        return instance.first_launched_at, []
    return launched_at, ["EC2 does not say when it was launched first"]


def spending(
    instances: Sequence[Instance],
    prices: Mapping[tuple[str, Market, str], Price | None],
    now: datetime,
    used_h: Mapping[str, float] = MappingProxyType({}),
) -> Spending:
    """Return what a cluster costs and has cost. `instances` must not be empty.

    `prices` is by `price_key`. `used_h` has the hours of all runs by instance id, for the nodes
    whose guards have reported them.
    """
    costs = [
        node_cost(one, prices.get(price_key(one)), now, used_h.get(one.node.instance_id))
        for one in instances
    ]
    known = [cost.hourly_usd for cost in costs if cost.hourly_usd is not None]
    total = sum(known) if len(known) == len(costs) else None
    # The head node's limits count; if it is being replaced, those of its replacement.
    head = min(instances, key=lambda one: (one.retired, one.node.index))
    limits = parse_limits(head.limits_text)
    spent = sum(cost.spent_usd for cost in costs)
    ran_h = max(cost.ran_h for cost in costs)
    ends, by, grace_due = _end(instances, costs, limits, total, spent, now)
    passed = passed_end(limits, ran_h, spent, total)
    overrun = any(overrun_s(one, passed, now) for one in instances)
    return Spending(
        hourly_usd=total,
        spent_usd=spent,
        complete=all(cost.complete for cost in costs),
        at_most=any(cost.at_most for cost in costs),
        price_source=_sources(prices, instances),
        limits=limits,
        since=min(first_launch(one) for one in instances),
        ran_h=ran_h,
        ends_in_h=ends,
        ended_by=by,
        grace_due=grace_due,
        findings=(
            *_earlier(instances),
            *_endings(limits, total, spent, None if overrun else ends, by),
            *_passed(instances, passed, now),
            *_overdue(instances, limits, now),
            *_incomplete(instances, costs),
            *_reserved(instances, prices),
        ),
    )


def _end(
    instances: Sequence[Instance],
    costs: Sequence[NodeCost],
    limits: Limits,
    hourly: float | None,
    spent: float,
    now: datetime,
) -> tuple[float | None, str, bool]:
    """Return in how many hours which limit ends the nodes that run, and whether grace is due.

    All that shows, sends or records this end takes it from here: it is the one that nodes have.
    Nodes that were started after it run for GRACE_S from that start, and from when a command has
    got them ready, which their tag has. That of an earlier run is too early to count.
    """
    running = [(one, cost) for one, cost in zip(instances, costs) if one.node.state in AWAKE]
    ends: list[tuple[float, str]] = []
    if running and limits.max_hours is not None:
        ran = max(cost.ran_h for _, cost in running)
        ends.append((limits.max_hours - ran, "--max-hours"))
    if running and limits.budget_usd is not None and hourly:
        ends.append(((limits.budget_usd - spent) / hourly, "--budget"))
    if not ends:
        return None, "", False
    left, by = min(ends)
    started = max(one.node.launched_at for one, _ in running)
    if left + _hours(started, now) > 0:
        return max(0.0, left), by, False
    by_itself = started + timedelta(seconds=GRACE_S)
    until = max([by_itself, *(one.ends_at for one, _ in running if one.ends_at)])
    return _hours(now, until), by, until == by_itself


def _reserved(
    instances: Sequence[Instance], prices: Mapping[tuple[str, Market, str], Price | None]
) -> Iterator[Finding]:
    """Warn that reserved capacity of stopped nodes costs as much as if they ran.

    AWS bills an On-Demand Capacity Reservation until it is cancelled, used or not (EC2 user guide,
    "Capacity Reservation pricing and billing"). Whether it still exists is not checked.
    """
    asleep = [one for one in instances if one.node.state in ASLEEP]
    for reservation in billing_reservations(asleep):
        nodes = [one for one in asleep if one.reservation_id == reservation]
        known = [price.hourly_usd for one in nodes if (price := prices.get(price_key(one)))]
        dollars = format_usd(sum(known)) if len(known) == len(nodes) else "an unknown sum"
        yield Finding.warning(
            "cost.reservation",
            f"{count(len(nodes), 'stopped node')} in {reservation}: its capacity goes on costing "
            f"{dollars} an hour, unless it was cancelled; this sum and --budget leave that out",
            "cancel it: aws ec2 cancel-capacity-reservation --capacity-reservation-id "
            f"{reservation} --region " + _region_of(nodes[0].node.zone),
        )


def _region_of(zone: str) -> str:
    """Return the region that a zone's name begins with: that of us-west-2-lax-1a is us-west-2."""
    region = re.match(r"[a-z]+(-[a-z]+)+-\d+", zone)
    return region[0] if region else "REGION"


def _earlier(instances: Sequence[Instance]) -> Iterator[Finding]:
    """Warn of limits that not every node has yet."""
    nodes = grouped((one.earlier_limits, one.node.name) for one in instances if not one.retired)
    for earlier, names in nodes.items():
        if earlier:
            yield Finding.warning(
                EARLIER,
                f"may still have earlier limits: {earlier}",
                "send the new ones to all nodes: clusterctl up",
                fold_hosts(names),
            )


def _endings(
    limits: Limits, hourly: float | None, spent: float, ends: float | None, by: str
) -> Iterator[Finding]:
    if limits.max_hourly_usd is not None and hourly is not None and hourly > limits.max_hourly_usd:
        text = (
            f"it costs {format_usd(hourly)} an hour now, "
            f"more than --max-hourly {format_usd(limits.max_hourly_usd)}"
        )
        hint = "remove nodes: clusterctl remove; or all: clusterctl down"
        yield Finding.warning("cost.hourly", text, hint)
    if limits.budget_usd is not None and spent >= limits.budget_usd:
        text = f"the budget of {format_usd(limits.budget_usd)} is spent: {format_usd(spent)}"
        yield Finding.warning("cost.budget", text, "remove the cluster: clusterctl down")
    elif limits.budget_usd is not None and hourly is None:
        text = "the price is not known, nor how long the budget lasts"
        yield Finding.warning("cost.price", text, "allow pricing:GetProducts")
    if ends is not None and ends < WARN_BELOW_H:
        left = f"in {format_duration(ends * 3600)}" if ends else "any moment now"
        text = f"the nodes end {left} by {by}"
        yield Finding.warning("cost.ending", text, "write the last checkpoint by then")


def _passed(
    instances: Sequence[Instance], end: PassedEnd | None, now: datetime
) -> Iterator[Finding]:
    """Name the nodes that cost money though the end of their time or budget has passed."""
    if end is None:
        return
    late = {one.node.name: late_s for one in instances if (late_s := overrun_s(one, end, now))}
    if late:
        yield Finding.warning(
            "cost.overrun",
            f"{fold_hosts([*late])} should have ended {format_duration(max(late.values()))} ago by "
            f"{end.option}, and EC2 still shows {'it' if len(late) == 1 else 'them'} running: "
            "what runs there does not switch itself off",
            "end them: clusterctl down, or clusterctl gc --delete; to go on: a new limit with "
            "clusterctl up",
        )
    asleep = [one.node.name for one in instances if one.node.state is NodeState.STOPPED]
    if asleep:
        yield Finding.warning(
            "cost.ended",
            f"stopped, and its end by {end.option} has passed: its disk goes on costing",
            "remove the cluster: clusterctl down; to go on: a new limit with clusterctl up",
            fold_hosts(asleep),
        )


def _overdue(instances: Sequence[Instance], limits: Limits, now: datetime) -> Iterator[Finding]:
    asleep = [one for one in instances if one.node.state is NodeState.STOPPED]
    stops = [stop for one in asleep if (stop := stopped_since(one.transition_reason))]
    days = max((_hours(stop, now) / 24 for stop in stops), default=0.0)
    if limits.stopped_days is not None and asleep and days >= limits.stopped_days:
        yield Finding.warning(
            "cost.stopped",
            f"the cluster has been stopped for {days:.1f} days, and --stopped-days allows "
            f"{limits.stopped_days:g}: its disks go on costing",
            "remove it: clusterctl down, or clusterctl gc --delete",
        )


def _incomplete(instances: Sequence[Instance], costs: Sequence[NodeCost]) -> Iterator[Finding]:
    nodes = grouped(
        (why, one.node.name) for one, cost in zip(instances, costs) for why in cost.missing
    )
    for why, names in nodes.items():
        yield Finding.info(
            "cost.incomplete",
            f"the cost is incomplete: {why}",
            "all of it is on AWS's bill: see Cost Explorer",
            fold_hosts(names),
        )


def _sources(
    prices: Mapping[tuple[str, Market, str], Price | None], instances: Sequence[Instance]
) -> str:
    used = [prices.get(price_key(one)) for one in instances]
    return "; ".join(dict.fromkeys(f"{price.source}, {price.as_of}" for price in used if price))


def _hours(start: datetime, end: datetime) -> float:
    # EC2's clock and this machine's may differ, so a difference can be slightly negative.
    return max(0.0, (end - start).total_seconds() / 3600)
