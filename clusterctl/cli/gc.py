"""`clusterctl gc`: find and remove what clusters have left behind."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from clusterctl.cli import output
from clusterctl.cli.app_context import AppContext, account_options
from clusterctl.cli.orphan_table import (
    note_unknown_cluster,
    print_failures,
    print_orphans,
    print_removal,
    print_total,
    sweep_report,
    warn_not_recorded,
)
from clusterctl.cli.params import Duration, all_regions_option, json_option, yes_option
from clusterctl.domain.errors import AwsError, UsageError
from clusterctl.domain.units import count

if TYPE_CHECKING:
    from clusterctl.ec2.session import Clients
    from clusterctl.operations.gc import GarbageCollector, GcReport, Sweep


@click.command()
@click.option("--regions", metavar="R,R", help="These regions instead of the one in use.")
@all_regions_option
@click.option("--cluster", metavar="NAME", help="Everything of this cluster, and nothing else.")
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
        if cluster is not None and not sweep.classified:
            note_unknown_cluster(cluster, list(places), sweep)
        elif not as_json:
            print_total(sweep, costs, delete)
        if as_json and delete:
            output.data(GcReport((), (), sweep.failures))
        return 1 if sweep.failures else 0
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
    from clusterctl.ec2.gc.sweep import all_regions as enabled_regions

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
    from clusterctl.ec2.gc.sweep import all_regions as enabled_regions

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
