"""What clusters cost and when their limits end them, as text, JSON and CSV; `clusterctl costs`."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import click

from clusterctl.cli import output
from clusterctl.cli.app_context import AppContext, ClusterName, account_options
from clusterctl.cli.params import all_regions_option, json_option
from clusterctl.domain.cluster import Limits, check_cluster_name, is_cluster_name
from clusterctl.domain.errors import NoSuchCluster, UsageError
from clusterctl.domain.units import count, format_duration, parse_duration_s
from clusterctl.ec2.money.costs import EARLIER, format_usd
from clusterctl.ec2.tags import limit_text

if TYPE_CHECKING:
    from clusterctl.ec2.money.costs import Spending
    from clusterctl.operations.costs import ClusterCosts, CostReport, PastCost


def print_spending(money: Spending) -> None:
    """Print the cost an hour and so far; then the limits, and which ends the cluster when."""
    source = f" ({money.price_source})" if money.price_source else ""
    hourly = "unknown" if money.hourly_usd is None else format_usd(money.hourly_usd)
    output.line(f"costs: {hourly} an hour, {spent_words(money)} so far{source}")
    limits = limits_words(money.limits)
    if limits:
        output.line(f"limits: {limits}{_end(money)}")


def spent_words(money: Spending) -> str:
    """Return `$40.32`, or `at least $40.32` where not all of it is known."""
    return f"{'' if money.complete else 'at least '}{format_usd(money.spent_usd)}"


def limits_words(limits: Limits) -> str:
    """Return `8 h, $100.00, $90.00 an hour, stops after 30 min idle, goes after 3 d stopped`."""
    words = {
        "max_hours": lambda value: _length(value, "h", 3600),
        "budget_usd": format_usd,
        "max_hourly_usd": lambda value: f"{format_usd(value)} an hour",
        "idle_minutes": lambda value: f"stops after {_length(value, 'min', 60)} idle",
        "idle_erases_store": lambda _: "which erases instance stores",
        "stopped_days": lambda value: f"goes after {_length(value, 'd', 86400)} stopped",
    }
    values = {name: getattr(limits, name) for name in words}
    return ", ".join(words[name](value) for name, value in values.items() if value)


def _length(value: float, unit: str, unit_s: float) -> str:
    """Return `3 d`; a value that is not whole in smaller units: `1 min 26 s`."""
    return f"{value:.0f} {unit}" if value == int(value) else format_duration(value * unit_s)


def _end(money: Spending) -> str:
    if any(one.check == EARLIER for one in money.findings):
        return "; not yet on every node"
    if money.ends_in_h is None:
        return ""
    if not money.ends_in_h:
        return f"; its end by {money.ended_by} has come"
    return f"; ends in {format_duration(money.ends_in_h * 3600)} by {money.ended_by}"


def end_words(money: Spending, now: datetime, kept: bool, block_ends_at: datetime | None) -> str:
    """Return when and why a running cluster ends, whose nodes were just notified; empty for never.

    `kept`: the nodes are stopped and not terminated. `block_ends_at` is the end of their Capacity
    Block.
    """
    effect = "the nodes are terminated, with their disks"
    if kept:
        effect = "the nodes are stopped; their disks are kept, and cost"
    ends = []
    if money.ends_in_h is not None:
        ends_at = now + timedelta(hours=money.ends_in_h)
        ends.append((ends_at, limit_text(money.limits, money.ended_by), effect))
    if block_ends_at:
        terminated = "EC2 terminates the nodes"
        ends.append((block_ends_at, "the end of its Capacity Block", terminated))
    words = []
    if ends:
        at, by, what = min(ends)
        left_s = max(0.0, (at - now).total_seconds())
        words.append(f"{at:%Y-%m-%d %H:%M} UTC, in {format_duration(left_s)}, by {by}: {what}")
    if money.limits.idle_minutes:
        idle = _length(money.limits.idle_minutes, "min", 60)
        before = "before that, " if ends else ""
        words.append(f"{before}the nodes are stopped when they have been idle for {idle}")
    return "; ".join(words)


# Of the table.
HEADERS = (
    *("CLUSTER", "REGION", "NODES", "TYPE", "MARKET", "SINCE (UTC)", "AN HOUR", "SO FAR", "LIMITS"),
)
# Of the CSV.
COLUMNS = (
    *("cluster", "region", "nodes", "type", "market", "since", "ended_at", "hourly_usd"),
    *("spent_usd", "complete"),
)


def print_costs(report: CostReport) -> None:
    """Print a row per cluster and per removal, the total, and where prices come from."""
    rows = [_row(one) for one in report.clusters] + [_ended_row(one) for one in report.ended]
    if not rows:
        return
    output.table(HEADERS, rows)
    hourly = "" if report.hourly_known else "at least "
    spent = "" if report.complete else "at least "
    output.line()
    output.line(
        f"total: {hourly}{format_usd(report.hourly_usd)} an hour, "
        f"{spent}{format_usd(report.spent_usd)} so far"
    )
    sources = dict.fromkeys(one.costs.price_source for one in report.clusters)
    known = "; ".join(source for source in sources if source)
    if known:
        output.line(f"prices: {known}")


def _row(one: ClusterCosts) -> tuple[str, ...]:
    money = one.costs
    return (
        _shown(one.name),
        one.region,
        one.states,
        one.instance_type,
        one.market,
        f"{money.since:%Y-%m-%d %H:%M}",
        format_usd(money.hourly_usd),
        spent_words(money),
        limits_words(money.limits) or "-",
    )


def _ended_row(one: PastCost) -> tuple[str, ...]:
    return (
        one.name,
        one.region,
        f"{len(one.usd)} removed",
        one.instance_type,
        one.market,
        f"{one.since:%Y-%m-%d %H:%M}",
        "-",
        f"{'' if one.complete else 'at least '}{format_usd(one.spent_usd)}",
        f"ended {one.ended_at:%Y-%m-%d %H:%M}",
    )


def costs_csv(report: CostReport) -> str:
    """Return the same as CSV: dollars as plain numbers, times in ISO 8601."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for one in report.clusters:
        money = one.costs
        writer.writerow(
            (_shown(one.name), one.region, one.nodes, one.instance_type, one.market)
            + (money.since.isoformat(), "", *map(_cell, (money.hourly_usd, money.spent_usd)))
            + (_cell(money.complete),)
        )
    for past in report.ended:
        writer.writerow(
            (past.name, past.region, len(past.usd), past.instance_type, past.market)
            + (past.since.isoformat(), past.ended_at.isoformat(), "", _cell(past.spent_usd))
            + (_cell(past.complete),)
        )
    return text.getvalue().rstrip("\n")


def _cell(value: float | bool | None) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else round(value, 4)


def _shown(name: str) -> str:
    """Return the name, quoted if it is no valid one: a tag may hold a terminal's control codes."""
    return name if is_cluster_name(name) else repr(name)


@click.command()
@click.argument("name", required=False, type=ClusterName())
@all_regions_option
@click.option(
    "--since",
    metavar="DATE",
    help="Also what this machine has removed since: 2026-11-01 (UTC), or 30d.",
)
@json_option("Costs")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@account_options
def costs(
    app: AppContext,
    name: str | None,
    all_regions: bool,
    since: str | None,
    as_json: bool,
    as_csv: bool,
) -> int:
    """Show what the clusters cost, or cluster NAME: an hour, and so far.

    \b
    clusterctl costs
    clusterctl costs --all-regions --since 2026-11-01
    clusterctl costs --since 30d --csv
    """
    from clusterctl.cli.gc import places_of
    from clusterctl.operations.costs import FILE, cost_report
    from clusterctl.operations.ended import gone_words

    if as_json and as_csv:
        raise UsageError("--json and --csv exclude each other", "give one of them")
    start = None if since is None else _start(since)
    wanted = None if name is None else check_cluster_name(name)
    places = places_of(app, None, all_regions)
    report = cost_report(places, app.settings.home, wanted, start)
    known = (report.clusters, report.ended, report.ended_by_limit, report.failures)
    if wanted and not any(known):
        taken = "" if all_regions else gone_words(app.clients, app.folder(wanted))
        raise NoSuchCluster(
            f"there is no cluster {wanted} in {', '.join(places)}" + (taken and f": {taken}"),
            "see `clusterctl costs`; what has ended is there with --since 30d",
        )
    if as_json:
        output.data(report)
    elif as_csv:
        output.line(costs_csv(report))
    else:
        print_costs(report)
        where = count(len(places), "region") if all_regions else ", ".join(places)
        for ended, words in report.ended_by_limit.items():
            output.note(f"{_shown(ended)}: {words}")
        if not report.clusters and not report.ended:
            none = f"{_shown(wanted)} has no" if wanted else "no cluster has an"
            output.note(f"{none} instance in {where}")
        for one in report.clusters:
            down = f"clusterctl down {one.name} --region {one.region}"
            for found in one.costs.findings:
                hint = found.hint.replace("clusterctl down", down)
                output.findings([replace(found, host=one.name, hint=hint)])
    for failed in report.failures:
        output.note(f"warning: not listed: {failed.region}: {failed.message}")
    if report.damaged:
        lines = count(len(report.damaged), "damaged line")
        output.note(f"warning: {app.settings.home / FILE}: without {lines}: {report.damaged[0]}")
    return 1 if report.failures else 0


def _start(text: str) -> datetime:
    """Return the time of a date (UTC), or that long ago. Raises UsageError."""
    now = datetime.now(timezone.utc)
    try:
        start = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=timezone.utc)
    except ValueError:
        pass
    else:
        if start > now:
            raise UsageError(f"{text} has not come yet", f"today is {now:%Y-%m-%d} (UTC)")
        return start
    try:
        return now - timedelta(seconds=parse_duration_s(text))
    except (UsageError, OverflowError):
        raise UsageError(f"not a date: {text!r}", "write it as 2026-11-01 or 30d") from None
