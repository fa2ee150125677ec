"""A plan, for people and as JSON: findings, steps, places, money."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clusterctl.cli import output
from clusterctl.ec2.money.costs import format_usd

if TYPE_CHECKING:
    from clusterctl.ec2.launch.plan import LaunchPlan


def print_plan(plan: LaunchPlan) -> None:
    """Every step and what it costs an hour, where else it would be tried, and the sum."""
    if not plan.refused:
        output.findings(plan.findings)
    for number, step in enumerate(plan.steps, start=1):
        cost = "" if step.hourly_usd is None else f"  [{format_usd(step.hourly_usd)} an hour]"
        output.line(f"{number}. {step.describe()}{cost}")
    if len(plan.places) > 1 and plan.steps:
        others = ", ".join(f"{place.instance_type} in {place.zone}" for place in plan.places[1:])
        output.line(f"if there is no capacity: {others}")
    if plan.estimate:
        for each in plan.estimate.lines:
            output.line(f"{each.count} x {each.what}: {format_usd(each.hourly_usd)} an hour")
        output.line(f"in all: {format_usd(plan.estimate.hourly_usd)} an hour")
        once = plan.estimate.once
        if once:
            output.line(
                f"once: {once.nodes} x disk filled from its image at {once.mib_s} MiB/s: "
                f"at most {format_usd(once.nodes * once.usd_each)}"
            )
        if plan.estimate.price_source:
            output.note(f"price: {plan.estimate.price_source}")
    if not plan.refused:
        output.note("nothing to do" if plan.idle else "nothing was done")


def plan_data(plan: LaunchPlan) -> dict[str, Any]:
    """The same for `--json`."""
    costs = plan.estimate
    return {
        "launch_id": plan.launch_id,
        "wanted": plan.wanted,
        "missing": plan.missing,
        "findings": [output.finding_data(finding) for finding in plan.findings],
        "steps": [
            {
                "operation": step.operation,
                "arguments": readable(step.arguments),
                "summary": step.summary,
                "hourly_usd": step.hourly_usd,
            }
            for step in plan.steps
        ],
        "places": [vars(place) for place in plan.places],
        "hourly_usd": costs.hourly_usd if costs else None,
        "cost": [{**vars(each), "hourly_usd": each.hourly_usd} for each in costs.lines]
        if costs
        else [],
        "once_usd": costs.once.nodes * costs.once.usd_each if costs and costs.once else 0.0,
        "price_source": costs.price_source if costs else "",
    }


def readable(value: Any) -> Any:
    """Arguments as JSON takes them."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, dict):
        return {key: readable(part) for key, part in value.items()}
    return [readable(part) for part in value] if isinstance(value, list) else value
