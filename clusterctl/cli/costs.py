"""`clusterctl costs`: what all clusters cost, and have cost."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import click

from clusterctl.cli import output
from clusterctl.cli.app_context import AppContext, ClusterName, account_options
from clusterctl.cli.costs_table import costs_csv, costs_data, print_costs
from clusterctl.domain.cluster import check_cluster_name
from clusterctl.domain.errors import NoSuchCluster, UsageError
from clusterctl.domain.units import count, parse_duration_s

if TYPE_CHECKING:
    from clusterctl.ec2.session import Clients


@click.command()
@click.argument("name", required=False, type=ClusterName())
@click.option("--all-regions", is_flag=True, help="All regions enabled for the account.")
@click.option(
    "--since",
    metavar="DATE",
    help="Also what this machine has removed since: 2026-11-01 (UTC), or 30d.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
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
    from clusterctl.operations.costs import cost_report

    if as_json and as_csv:
        raise UsageError("--json and --csv exclude each other", "give one of them")
    start = None if since is None else _start(since)
    wanted = None if name is None else check_cluster_name(name)
    places = _places(app, all_regions)
    report = cost_report(places, app.settings.home, wanted, start)
    if wanted and not (report.clusters or report.ended or report.unseen):
        raise NoSuchCluster(
            f"there is no cluster {wanted} in {', '.join(places)}",
            "see `clusterctl costs`; what has ended is there with --since 30d",
        )
    if as_json:
        output.data(costs_data(report))
    elif as_csv:
        output.line(costs_csv(report))
    else:
        print_costs(report)
        where = count(len(places), "region") if all_regions else ", ".join(places)
        if not report.clusters and not report.ended:
            output.note(f"nothing costs anything in {where}")
        for one in report.clusters:
            down = f"clusterctl down {one.name} --region {one.region}"
            for found in one.spending.findings:
                hint = found.hint.replace("clusterctl down", down)
                output.findings([replace(found, host=one.name, hint=hint)])
    for region, error in report.unseen:
        output.note(f"warning: not seen: {region}: {error.message}")
    return 1 if report.unseen else 0


def _places(app: AppContext, all_regions: bool) -> dict[str, Clients]:
    from clusterctl.ec2.gc.sweep import all_regions as enabled_regions

    if not all_regions:
        return {str(app.ec2.meta.region_name): app.clients}
    return {region: app.clients.in_region(region) for region in enabled_regions(app.clients)}


def _start(text: str) -> datetime:
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=timezone.utc)
    except ValueError:
        pass
    try:
        return datetime.now(timezone.utc) - timedelta(seconds=parse_duration_s(text))
    except (UsageError, OverflowError):
        raise UsageError(f"not a date: {text!r}", "write it as 2026-11-01 or 30d") from None
