"""A cluster's money, for people and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterctl.cli import output
from clusterctl.domain.spec import Limits
from clusterctl.domain.units import format_duration

if TYPE_CHECKING:
    from clusterctl.ec2.spending import Spending


def print_spending(money: Spending) -> None:
    """What it costs and has cost; then its limits and which of them ends it, if it has any."""
    from clusterctl.ec2.costs import format_usd

    source = f" ({money.price_source})" if money.price_source else ""
    hourly = "unknown" if money.usd_per_hour is None else format_usd(money.usd_per_hour)
    output.line(f"costs: {hourly} an hour, {spent_words(money)} so far{source}")
    limits = limits_words(money.limits)
    if limits:
        output.line(f"limits: {limits}{_end(money)}")


def spent_words(money: Spending) -> str:
    """`$40.32`, `at least $40.32`."""
    from clusterctl.ec2.costs import format_usd

    return f"{'' if money.complete else 'at least '}{format_usd(money.spent_usd)}"


def limits_words(limits: Limits) -> str:
    """`8 h, $100.00, $90.00 an hour, stops after 30 min idle, goes after 3 d stopped`."""
    from clusterctl.ec2.costs import format_usd

    words = {
        "max_hours": lambda value: _length(value, "h", 3600),
        "budget_usd": format_usd,
        "max_hourly_usd": lambda value: f"{format_usd(value)} an hour",
        "idle_minutes": lambda value: f"stops after {_length(value, 'min', 60)} idle",
        "stopped_days": lambda value: f"goes after {_length(value, 'd', 86400)} stopped",
    }
    values = {name: getattr(limits, name) for name in words}
    return ", ".join(words[name](value) for name, value in values.items() if value is not None)


def _length(value: float, unit: str, unit_s: float) -> str:
    """`3 d`; what is not whole in its own unit in smaller ones, `1 min 26 s`."""
    return f"{value:.0f} {unit}" if value == int(value) else format_duration(value * unit_s)


def _end(money: Spending) -> str:
    if money.ends_in_h is None:
        return ""
    return f"; ends in {format_duration(money.ends_in_h * 3600)} by {money.ended_by}"


def spending_data(money: Spending) -> dict[str, Any]:
    """The same for `--json`. `spent_usd` is the least, and all of it where `complete`."""
    return {
        "usd_per_hour": _rounded(money.usd_per_hour),
        "spent_usd": _rounded(money.spent_usd),
        "complete": money.complete,
        "price_source": money.price_source,
        "since": money.since.isoformat(),
        "limits": {name: value for name, value in vars(money.limits).items() if value is not None},
        "ends_in_s": None if money.ends_in_h is None else round(money.ends_in_h * 3600),
        "ended_by": money.ended_by or None,
        "findings": [output.finding_data(finding) for finding in money.findings],
    }


def _rounded(usd: float | None) -> float | None:
    return None if usd is None else round(usd, 4)
