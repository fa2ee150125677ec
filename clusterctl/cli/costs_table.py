"""What clusters cost: as a table, as JSON, as CSV."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

from clusterctl.cli import output
from clusterctl.cli.money import limits_words, spending_data, spent_words
from clusterctl.domain.cluster import is_cluster_name

if TYPE_CHECKING:
    from clusterctl.operations.cost_history import PastCost
    from clusterctl.operations.costs import ClusterCosts, CostReport

HEADERS = (
    "CLUSTER",
    "REGION",
    "NODES",
    "TYPE",
    "MARKET",
    "SINCE (UTC)",
    "AN HOUR",
    "SO FAR",
    "LIMITS",
)
COLUMNS = (
    "cluster",
    "region",
    "nodes",
    "type",
    "market",
    "since",
    "ended_at",
    "usd_per_hour",
    "spent_usd",
    "complete",
)


def print_costs(report: CostReport) -> None:
    """A row per cluster, one per removal; the sums."""
    from clusterctl.ec2.money.costs import format_usd

    rows = [_row(one) for one in report.clusters] + [_ended_row(one) for one in report.ended]
    if not rows:
        return
    output.table(HEADERS, rows)
    hourly = "" if report.hourly_known else "at least "
    spent = "" if report.complete else "at least "
    output.line()
    output.line(
        f"total: {hourly}{format_usd(report.usd_per_hour)} an hour, "
        f"{spent}{format_usd(report.spent_usd)} so far"
    )
    sources = dict.fromkeys(one.spending.price_source for one in report.clusters)
    known = "; ".join(source for source in sources if source)
    if known:
        output.line(f"prices: {known}")


def _row(one: ClusterCosts) -> tuple[str, ...]:
    from clusterctl.ec2.money.costs import format_usd

    money = one.spending
    return (
        _shown(one.name),
        one.region,
        one.states,
        one.types,
        one.markets,
        f"{money.since:%Y-%m-%d %H:%M}",
        format_usd(money.usd_per_hour),
        spent_words(money),
        limits_words(money.limits) or "-",
    )


def _ended_row(one: PastCost) -> tuple[str, ...]:
    from clusterctl.ec2.money.costs import format_usd

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


def costs_data(report: CostReport) -> dict[str, Any]:
    """The same for `--json`."""
    return {
        "clusters": [
            {
                "name": one.name,
                "region": one.region,
                "nodes": len(one.instances),
                "states": one.states,
                "type": one.types,
                "market": one.markets,
                **spending_data(one.spending),
            }
            for one in report.clusters
        ],
        "ended": [
            {
                "name": one.name,
                "region": one.region,
                "nodes": len(one.usd),
                "type": one.instance_type,
                "market": one.market,
                "since": one.since.isoformat(),
                "ended_at": one.ended_at.isoformat(),
                "spent_usd": round(one.spent_usd, 4),
                "complete": one.complete,
            }
            for one in report.ended
        ],
        "total": {
            "usd_per_hour": round(report.usd_per_hour, 4),
            "spent_usd": round(report.spent_usd, 4),
            "complete": report.complete,
        },
        "unseen": [{"region": region, "message": error.message} for region, error in report.unseen],
    }


def costs_csv(report: CostReport) -> str:
    """The same for a spreadsheet: dollars as plain numbers, times as ISO 8601."""
    data = costs_data(report)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for one in (*data["clusters"], *data["ended"]):
        known = {**one, "cluster": _shown(one["name"])}
        writer.writerow([_cell(known.get(column)) for column in COLUMNS])
    return text.getvalue().rstrip("\n")


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else value


def _shown(name: str) -> str:
    """The name; quoted where it is none of ours: a tag can hold commands for a terminal."""
    return name if is_cluster_name(name) else repr(name)
