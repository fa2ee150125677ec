"""What machines cost, whether that is within the limits, and the tag that keeps those. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterctl.domain.findings import Finding, Severity
from clusterctl.domain.spec import Limits, Market
from clusterctl.domain.units import count, format_duration

_FIELDS = {
    "max-hours": "max_hours",
    "budget": "budget_usd",
    "max-hourly": "max_hourly_usd",
    "idle-minutes": "idle_minutes",
    "stopped-days": "stopped_days",
}
_PART = re.compile(r"([a-z-]+)=(\d{1,9}(?:\.\d{1,6})?)", re.ASCII)


def format_limits(limits: Limits) -> str:
    """The limits that are set; empty without any."""
    values = {key: getattr(limits, field) for key, field in _FIELDS.items()}
    return " ".join(f"{key}={_number(value)}" for key, value in values.items() if value is not None)


def parse_limits(text: str) -> Limits:
    """The limits of such a tag. Tags can be edited by hand: what makes no sense is no limit."""
    found: dict[str, float] = {}
    for part in text.split():
        match = _PART.fullmatch(part)
        if match and match[1] in _FIELDS and float(match[2]) > 0:
            found[_FIELDS[match[1]]] = float(match[2])
    if "idle_minutes" not in found:
        found.pop("stopped_days", None)
    return Limits(**found)


def _number(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".")


# us-east-1 (https://aws.amazon.com/ebs/pricing, https://aws.amazon.com/vpc/pricing, 2026-11).
# Other regions are a little dearer; against the machines it is small change everywhere.
HOURS_PER_MONTH = 730
GP3_GIB_MONTH_USD = 0.08
GP3_IOPS_MONTH_USD = 0.005
GP3_MIB_S_MONTH_USD = 0.04
GP3_FREE_IOPS = 3000
GP3_FREE_MIB_S = 125
PUBLIC_IPV4_HOUR_USD = 0.005
# Once for each volume that is filled from a snapshot at a rate: by its GiB and the MiB/s (EBS
# pricing, example 12: $0.0036 a GiB at 300 MiB/s).
LOAD_GIB_MIB_S_USD = 0.000012


@dataclass(frozen=True)
class Price:
    """What one machine costs an hour. `source` says where that is from; `as_of` is an ISO date."""

    usd_per_hour: float
    source: str
    as_of: str


@dataclass(frozen=True)
class CostLine:
    """`count` of something at `usd_per_hour` each; None: nobody knows the price."""

    what: str
    count: int
    usd_per_hour: float | None

    @property
    def hourly_usd(self) -> float | None:
        return None if self.usd_per_hour is None else self.count * self.usd_per_hour


@dataclass(frozen=True)
class LoadCost:
    """What it costs once to fill the new nodes' disks from a snapshot of `gib` at a rate.

    EC2 bills what is in the snapshot, and does not tell how much that is: `usd_each` is the most.
    """

    nodes: int
    gib: int
    mib_s: int

    @property
    def usd_each(self) -> float:
        return self.gib * self.mib_s * LOAD_GIB_MIB_S_USD


@dataclass(frozen=True)
class CostEstimate:
    """What a cluster costs an hour, part by part, and where the machine's price is from.

    `once` is beside it: what a launch costs when it is made.
    """

    lines: tuple[CostLine, ...]
    price_source: str = ""
    once: LoadCost | None = None

    @property
    def hourly_usd(self) -> float | None:
        """The sum; None when a part has no known price."""
        parts = [line.hourly_usd for line in self.lines]
        return None if None in parts else sum(part for part in parts if part is not None)


def estimate(
    price: Price | None,
    nodes: int,
    disk_gib: int = 0,
    disk_iops: int | None = None,
    disk_throughput: int | None = None,
    public_addresses: int = 0,
    *,
    instance_type: str = "instance",
    market: Market = Market.ON_DEMAND,
) -> CostEstimate:
    """What `nodes` such machines cost while they run. Each has one gp3 disk of `disk_gib`."""
    lines = [machine_line(price, nodes, instance_type, market)]
    if disk_gib:
        each = disk_hourly_usd(disk_gib, disk_iops, disk_throughput)
        lines.append(CostLine(f"gp3 disk of {disk_gib} GiB", nodes, each))
    if public_addresses:
        lines.append(CostLine("public IPv4 address", public_addresses, PUBLIC_IPV4_HOUR_USD))
    return CostEstimate(tuple(lines), "" if price is None else f"{price.source}, {price.as_of}")


def machine_line(
    price: Price | None, nodes: int, instance_type: str, market: Market = Market.ON_DEMAND
) -> CostLine:
    """The machines alone. A Capacity Block's are paid for before the launch."""
    if market is Market.CAPACITY_BLOCK:
        return CostLine(f"{instance_type}, Capacity Block (paid in advance)", nodes, 0.0)
    return CostLine(
        f"{instance_type}, {market.value}", nodes, None if price is None else price.usd_per_hour
    )


def disk_hourly_usd(gib: int, iops: int | None = None, throughput: int | None = None) -> float:
    """One gp3 volume. It costs this while it exists, whether or not its machine runs."""
    extra_iops = max(0, (iops or 0) - GP3_FREE_IOPS)
    extra_mib_s = max(0, (throughput or 0) - GP3_FREE_MIB_S)
    month = (
        gib * GP3_GIB_MONTH_USD
        + extra_iops * GP3_IOPS_MONTH_USD
        + extra_mib_s * GP3_MIB_S_MONTH_USD
    )
    return month / HOURS_PER_MONTH


def format_usd(usd: float | None) -> str:
    """`$87.83`, `$1,761.28`, `$0.0104` where cents would hide it, `unknown`."""
    if usd is None:
        return "unknown"
    digits = 4 if 0.00005 <= abs(usd) < 0.1 else 2
    return f"{'-' if usd < 0 else ''}${abs(usd):,.{digits}f}"


def budget_findings(
    limits: Limits, estimate: CostEstimate, spent_usd: float = 0.0
) -> list[Finding]:
    """What speaks against launching this within these limits, and when they will end it."""
    hourly = estimate.hourly_usd
    if hourly is None:
        return [_unpriced(limits, estimate)]
    found = []
    if limits.max_hourly_usd is not None and hourly > limits.max_hourly_usd:
        found.append(
            Finding(
                "cost.hourly",
                Severity.ERROR,
                f"this costs {format_usd(hourly)} an hour; "
                f"--max-hourly allows {format_usd(limits.max_hourly_usd)}",
                hint="ask for fewer nodes or a smaller type, or raise --max-hourly",
            )
        )
    if limits.budget_usd is not None:
        found.extend(_budget(limits, limits.budget_usd, hourly, spent_usd))
    return found


def _budget(limits: Limits, budget: float, hourly: float, spent: float) -> list[Finding]:
    hint = "raise --budget, or ask for fewer nodes or a smaller type"
    if spent >= budget:
        text = f"the budget of {format_usd(budget)} is spent: {format_usd(spent)} so far"
        return [Finding("cost.budget", Severity.ERROR, text, hint=hint)]
    if hourly <= 0:
        return []
    hours = (budget - spent) / hourly
    lasts = format_duration(hours * 3600)
    if hours < 1:
        text = (
            f"the budget of {format_usd(budget)} lasts {lasts} at {format_usd(hourly)} an hour; "
            "an hour is the least"
        )
        return [Finding("cost.budget", Severity.ERROR, text, hint=hint)]
    if limits.max_hours is not None and limits.max_hours <= hours:
        return []
    before = "" if limits.max_hours is None else f", before --max-hours {limits.max_hours:g}"
    text = f"the budget of {format_usd(budget)} ends the cluster after {lasts}{before}"
    return [Finding("cost.budget", Severity.INFO, text)]


def _unpriced(limits: Limits, estimate: CostEstimate) -> Finding:
    unknown = next(line for line in estimate.lines if line.usd_per_hour is None)
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
        return Finding("cost.price", Severity.WARNING, text, hint="look it up before you launch")
    return Finding(
        "cost.price",
        Severity.ERROR,
        f"{text}: {' and '.join(kept)} cannot be kept",
        hint="allow pricing:GetProducts, or limit the time instead: --max-hours",
    )
