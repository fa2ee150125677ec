"""What `gc` found and removed, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Optional

from clusterctl.cli import output
from clusterctl.domain.ranges import grouped
from clusterctl.domain.units import count, format_duration
from clusterctl.ec2.gc.orphans import Classified, Verdict, age_s
from clusterctl.ec2.gc.sweep import Unlisted
from clusterctl.ec2.money.costs import format_usd
from clusterctl.ec2.resources import Resource

if TYPE_CHECKING:
    from clusterctl.operations.gc import GcReport, HourlyCosts, Sweep

HEADERS = ("KIND", "ID", "CLUSTER", "REGION", "AGE", "STATE", "$/H", "VERDICT", "WHY")


def print_orphans(sweep: Sweep, costs: HourlyCosts, everything: bool) -> None:
    """Print a table of orphans and of resources that were kept; with `everything`, of all."""
    now = datetime.now(timezone.utc)
    shown = [one for one in sweep.classified if everything or one.verdict is not Verdict.IN_USE]
    if not shown:
        return
    output.table(HEADERS, [_row(one, costs.of(one.resource), now) for one in shown])


def _row(one: Classified, hourly: float | None, now: datetime) -> tuple[object, ...]:
    found = one.resource
    age = age_s(found, now)
    return (
        found.kind.value,
        found.id,
        "-" if found.cluster is None else output.one_line(found.cluster) or "''",
        found.region,
        "unknown" if age is None else format_duration(max(0.0, age)),
        found.state or "-",
        "-" if hourly == 0 else format_usd(hourly),
        one.verdict.value,
        output.one_line(one.why),
    )


def print_total(sweep: Sweep, costs: HourlyCosts, delete: bool) -> None:
    """Print how many orphans there are, and what they cost an hour."""
    if not sweep.orphans:
        where = " among what could be listed" if sweep.failures else ""
        output.note(f"nothing to remove: there are no orphans{where}")
        return
    usd, all_known = costs.total(one.resource for one in sweep.orphans)
    least = "" if all_known else "at least "
    output.note(
        f"{count(len(sweep.orphans), 'orphan')}, {least}{format_usd(usd)} an hour"
        + ("" if delete else "; --delete removes them")
    )


def note_unknown_cluster(cluster: str, regions: Sequence[str], sweep: Sweep) -> None:
    """Print that nothing has this cluster's name.

    The name or region may be mistyped: "no orphans" would sound like success.
    """
    where = regions[0] if len(regions) == 1 else f"{len(regions)} regions"
    listed = " that could be listed" if sweep.failures else ""
    output.note(
        f"nothing to remove: nothing{listed} in {where} has the name {output.one_line(cluster)!r}"
    )


def warn_not_recorded(sweep: Sweep) -> None:
    """Warn if this sweep could not be recorded for the next one."""
    if sweep.record_error:
        output.note(f"warning: {sweep.record_error.message}", sweep.record_error.hint)


def print_failures(failures: Sequence[Unlisted]) -> None:
    """Print what could not be listed; kinds with the same reason share a line."""
    kinds = grouped(
        ((one.region, one.error.message, one.error.hint), one.kind.value) for one in failures
    )
    for (region, message, hint), names in kinds.items():
        plural = ", ".join(f"{name}s" if name[-1] != "s" else f"{name}es" for name in names)
        output.note(f"error: could not list {plural} in {region}: {message}", hint)


def print_removal(removed: GcReport) -> None:
    """Print how much was removed, and what was not, with the reason."""
    if removed.removed:
        output.note(f"removed {count(len(removed.removed), 'resource')}")
    for one in removed.left:
        found = one.resource
        what = f"{found.kind.value} {found.id} in {found.region}"
        output.note(f"error: {what} is left: {one.error.message}", one.error.hint)


@dataclass(frozen=True)
class FoundResource(Resource):
    """A resource that `gc` found, its price, and what is to become of it."""

    age_s: Optional[float] = None
    hourly_usd: Optional[float] = None
    verdict: Verdict = Verdict.KEPT
    reason: str = ""
    json_names = (*Resource.json_names, "age_s", "hourly_usd", "verdict", "reason")


@dataclass(frozen=True)
class SweepReport:
    """All that `gc` found, for `--json`. `orphans` is their number."""

    regions: Sequence[str]
    found: Sequence[FoundResource]
    orphans: int
    orphans_hourly_usd: Optional[float]
    failures: Sequence[Unlisted]


def sweep_report(sweep: Sweep, costs: HourlyCosts, regions: Sequence[str]) -> SweepReport:
    """Return everything that was found, for `--json`."""
    now = datetime.now(timezone.utc)
    usd, all_known = costs.total(one.resource for one in sweep.orphans)
    found = [
        FoundResource(
            **vars(one.resource),
            age_s=age_s(one.resource, now),
            hourly_usd=costs.of(one.resource),
            verdict=one.verdict,
            reason=one.why,
        )
        for one in sweep.classified
    ]
    orphans = len(sweep.orphans)
    return SweepReport(regions, found, orphans, usd if all_known else None, sweep.failures)
