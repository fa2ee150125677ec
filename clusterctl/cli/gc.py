"""`clusterctl gc`: find and remove what clusters have left behind, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Optional

import click

from clusterctl.cli import output
from clusterctl.cli.app_context import AppContext, account_options
from clusterctl.cli.params import (
    Duration,
    SelectionOption,
    all_regions_option,
    json_option,
    yes_option,
)
from clusterctl.domain.errors import AwsError, UsageError
from clusterctl.domain.ranges import grouped
from clusterctl.domain.units import count, format_duration
from clusterctl.ec2.gc.orphans import Classified, Verdict, age_s
from clusterctl.ec2.gc.removal import Unlisted
from clusterctl.ec2.money.costs import format_usd
from clusterctl.ec2.resources import Resource

if TYPE_CHECKING:
    from clusterctl.ec2.session import Clients
    from clusterctl.operations.gc import GarbageCollector, GcReport, HourlyCosts, Sweep


@click.command()
@click.option(
    "--regions",
    metavar="R,R",
    cls=SelectionOption,
    joins=True,
    help="These regions instead of the one in use.",
)
@all_regions_option
@click.option(
    "--cluster",
    metavar="NAME",
    cls=SelectionOption,
    help="Everything of this cluster, and nothing else.",
)
@click.option(
    "--older-than",
    "older_than_s",
    type=Duration(unit="h"),
    metavar="TIME",
    help="Also instances that have been up longer than this, whoever's.",
)
@click.option("--networks", is_flag=True, help="Also networks that no cluster is in.")
@click.option("--all", "everything", is_flag=True, help="Show also what is in use.")
@click.option("--delete", is_flag=True, help="Remove the orphans. Needs a confirmation, or --yes.")
@yes_option
@json_option("Leftovers")
@account_options
def gc(
    app: AppContext,
    regions: str | None,
    all_regions: bool,
    cluster: str | None,
    older_than_s: float | None,
    networks: bool,
    everything: bool,
    delete: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Find what clusters have left behind, and remove it with --delete.

    Reads everything with a tag of clusterctl: instances, volumes, addresses, network
    interfaces, placement groups, security groups, key pairs, networks.

    \b
    clusterctl gc
    clusterctl gc --all-regions --delete
    clusterctl gc --cluster demo --regions us-east-1,us-west-2 --delete --yes
    """
    from clusterctl.ec2.gc.orphans import GcOptions
    from clusterctl.operations.gc import GarbageCollector, GcReport, HourlyCosts

    # An empty name, of a shell's unset variable, must not mean all clusters.
    if cluster is not None and not cluster.strip():
        raise UsageError("--cluster needs a name", "clusterctl gc without it checks all clusters")
    if cluster is not None and (networks or older_than_s is not None):
        raise UsageError("--cluster goes with neither --networks nor --older-than", "leave it out")
    places = places_of(app, regions, all_regions)
    if len(places) > 1:
        output.note(f"looking at {len(places)} regions")
    collector = GarbageCollector(
        places, app.settings.home, GcOptions(cluster, older_than_s, networks), output.note
    )
    sweep = collector.sweep()
    costs = HourlyCosts(places)
    print_failures(sweep.failures)
    warn_not_recorded(sweep)
    _note_stops(collector, sweep)
    if as_json and not delete:
        output.data(sweep_report(sweep, costs, list(places)))
    elif not as_json:
        print_orphans(sweep, costs, everything)
    if not delete or not sweep.orphans:
        left = sweep.left if delete and cluster is not None else ()
        if cluster is not None and not sweep.classified:
            note_unknown_cluster(cluster, list(places), sweep)
        elif left:
            print_removal(GcReport((), left, ()))
        elif not as_json:
            print_total(sweep, costs, delete)
        if as_json and delete:
            output.data(GcReport((), left, sweep.failures))
        return 1 if left or sweep.failures else 0
    output.confirm(f"Remove {count(len(sweep.orphans), 'resource')}?", yes)
    removed = _remove(collector, sweep)
    if as_json:
        failures = tuple(dict.fromkeys((*sweep.failures, *removed.failures)))
        output.data(replace(removed, failures=failures))
    print_failures(removed.failures)
    print_removal(removed)
    return 1 if removed.left or removed.failures or sweep.failures else 0


def places_of(app: AppContext, regions: str | None, all_regions: bool) -> dict[str, Clients]:
    """Return the clients of each region to read. Raises UsageError, AwsError."""
    from clusterctl.ec2.gc.removal import all_regions as enabled_regions

    if regions and all_regions:
        raise UsageError("--regions and --all-regions exclude each other", "give one of them")
    if all_regions:
        names = enabled_regions(app.clients)
    elif regions is not None:
        names = tuple(dict.fromkeys(name.strip() for name in regions.split(",")))
        if "" in names:
            raise UsageError(f"not a list of regions: {regions!r}", "us-east-1,us-west-2")
        _check_known(names, app)
    else:
        return {app.ec2.meta.region_name: app.clients}
    return {name: app.clients.in_region(name) for name in names}


def _check_known(names: tuple[str, ...], app: AppContext) -> None:
    """Raise UsageError for regions that the account does not have."""
    from clusterctl.ec2.gc.removal import all_regions as enabled_regions

    try:
        known = enabled_regions(app.clients)
    except AwsError:
        # Regions may not be listed, or AWS may not answer: the sweep reports each region's error.
        return
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(
            f"not a region of this account: {', '.join(unknown)}", f"it has {', '.join(known)}"
        )


def _note_stops(collector: GarbageCollector, sweep: Sweep) -> None:
    """Record since when nodes are stopped; print a warning if that is not allowed."""
    try:
        collector.note_stops(sweep)
    except AwsError as failure:
        # A user who may only read gets the list all the same.
        output.note(f"warning: cannot note since when nodes are stopped: {failure.message}")


def _remove(collector: GarbageCollector, sweep: Sweep) -> GcReport:
    """Remove the orphans. After an interrupt, print which are left."""
    try:
        return collector.remove(sweep.orphans)
    except KeyboardInterrupt:
        _note_left(collector, sweep)
        raise


def _note_left(collector: GarbageCollector, sweep: Sweep) -> None:
    """Print which orphans an interrupted removal has left."""
    gone = {(one.region, one.kind, one.id) for one in collector.gone}
    left = [
        one.resource
        for one in sweep.orphans
        if (one.resource.region, one.resource.kind, one.resource.id) not in gone
    ]
    output.note(
        f"interrupted: {len(gone)} of {count(len(sweep.orphans), 'resource')} removed; "
        "run it again for the rest:"
    )
    for one in left:
        output.note(f"  {one.kind.value} {one.id} in {one.region}")


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
