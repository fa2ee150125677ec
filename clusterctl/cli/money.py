"""A cluster's money, for people and as JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from clusterctl.cli import output
from clusterctl.domain.findings import Severity
from clusterctl.domain.spec import Limits
from clusterctl.domain.units import count, format_duration

if TYPE_CHECKING:
    from clusterctl.cli.app_context import AppContext
    from clusterctl.ec2.launch.plan import LaunchPlan
    from clusterctl.ec2.money.spending import RunningCost, Spending


def agreement(app: AppContext, yes: bool) -> Callable[[LaunchPlan], None]:
    """Says what a plan's cluster is going to cost, and asks about it where somebody can answer.

    Not in the lab, which nobody pays for. A no raises click.Abort.
    """

    def agree(plan: LaunchPlan) -> None:
        from clusterctl.operations.costs import price_cache, running_cost

        if app.settings.lab:
            return
        cost = running_cost(app.clients, plan, price_cache(app.settings.home))
        output.note(f"price of {plan.spec.name}: {_running_words(cost)}")
        if yes or not output.can_ask():
            return
        # What --dry-run would tell, too: what the image lacks, when the budget ends it.
        output.findings([found for found in plan.findings if found.severity is Severity.INFO])
        click.confirm("Launch?" if plan.missing else "Start?", abort=True, err=True)

    return agree


def _running_words(cost: RunningCost) -> str:
    """`4 nodes, $88.17 an hour, $2,116.08 a day, $2.76 per GPU-hour (AWS's price list, …)`."""
    from clusterctl.ec2.money.costs import format_usd

    nodes, hourly = count(cost.nodes, "node"), cost.usd_per_hour
    if hourly is None:
        each = "it costs" if cost.nodes == 1 else "they cost"
        return f"{nodes}, and nobody knows what {each} an hour: look it up"
    per_gpu = f", {format_usd(hourly / cost.gpus)} per GPU-hour" if cost.gpus else ""
    source = f" ({cost.price_source})" if cost.price_source else ""
    daily = format_usd(hourly * 24)
    return f"{nodes}, {format_usd(hourly)} an hour, {daily} a day{per_gpu}{source}"


def print_spending(money: Spending) -> None:
    """What it costs and has cost; then its limits and which of them ends it, if it has any."""
    from clusterctl.ec2.money.costs import format_usd

    source = f" ({money.price_source})" if money.price_source else ""
    hourly = "unknown" if money.usd_per_hour is None else format_usd(money.usd_per_hour)
    output.line(f"costs: {hourly} an hour, {spent_words(money)} so far{source}")
    limits = limits_words(money.limits)
    if limits:
        output.line(f"limits: {limits}{_end(money)}")


def spent_words(money: Spending) -> str:
    """`$40.32`, `at least $40.32`."""
    from clusterctl.ec2.money.costs import format_usd

    return f"{'' if money.complete else 'at least '}{format_usd(money.spent_usd)}"


def limits_words(limits: Limits) -> str:
    """`8 h, $100.00, $90.00 an hour, stops after 30 min idle, goes after 3 d stopped`."""
    from clusterctl.ec2.money.costs import format_usd

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
