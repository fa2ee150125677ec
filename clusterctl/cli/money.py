"""`clusterctl costs`: what clusters cost and have cost, as text, JSON and CSV."""

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
from clusterctl.domain.cluster import check_cluster_name, is_cluster_name
from clusterctl.domain.errors import UsageError
from clusterctl.domain.units import count, parse_duration_s
from clusterctl.ec2.money.costs import format_spent, format_usd

if TYPE_CHECKING:
    from clusterctl.operations.costs import ClusterCosts, CostReport, PastCost


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
    spent = format_spent(report.spent_usd, report.complete, report.at_most)
    output.line()
    output.line(
        f"total: {hourly}{format_usd(report.hourly_usd)} an hour, {spent} so far"
    )
    sources = dict.fromkeys(one.costs.price_source for one in report.clusters)
    known = "; ".join(source for source in sources if source)
    if known:
        output.line(f"prices: {known}")


def _row(one: ClusterCosts) -> tuple[str, ...]:
    from clusterctl.cli.status import limits_words, spent_words

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
        format_spent(one.spent_usd, one.complete, one.at_most),
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
    from clusterctl.operations.ended import no_cluster

    if as_json and as_csv:
        raise UsageError("--json and --csv exclude each other", "give one of them")
    start = None if since is None else _start(since)
    wanted = None if name is None else check_cluster_name(name)
    places = places_of(app, None, all_regions)
    report = cost_report(places, app.settings.home, wanted, start)
    known = (report.clusters, report.ended, report.ended_by_limit, report.failures)
    if wanted and not any(known):
        hint = "see `clusterctl costs`; what has ended is there with --since 30d"
        clients = places[report.left_behind[0].region] if report.left_behind else app.clients
        raise no_cluster(clients, app.folder(wanted), ", ".join(places), hint)
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
    for left in report.left_behind:
        output.note(f"warning: {left.message}", left.hint)
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
