"""`gc`: find and remove orphans, the resources that clusters left behind, in one region or more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.domain.cluster import AWAKE, Disk, Market, is_cluster_name
from clusterctl.domain.errors import ClusterctlError
from clusterctl.domain.files import ClusterFolder, read_file, write_file
from clusterctl.domain.ranges import grouped
from clusterctl.domain.timeouts import Timeouts, backoff_delays
from clusterctl.ec2 import tags
from clusterctl.ec2.errors import translated
from clusterctl.ec2.gc.orphans import (
    STOPPED_FOUND,
    Classified,
    GcOptions,
    ResourceId,
    Rules,
    Verdict,
    classify,
    limits_of,
    resource_id,
    undated_orphans,
    without_stop_time,
)
from clusterctl.ec2.gc.removal import (
    RegionResources,
    RemainingResource,
    Unlisted,
    list_region,
    remove,
    still_exists_error,
    unreachable_region,
)
from clusterctl.ec2.instances import Instance, find_instances, missing_of
from clusterctl.ec2.money.prices import (
    PUBLIC_IPV4_HOUR_USD,
    disk_hourly_usd,
    find_prices,
    price_key,
)
from clusterctl.ec2.resources import Resource, ResourceKind
from clusterctl.node.record import from_json, to_json
from clusterctl.operations.costs import Region, record_lost_cost, record_removal_cost, spending_of
from clusterctl.operations.down import wait_for_unfinished_launches
from clusterctl.operations.local_state import locked, may_be_launching, why_locked
from clusterctl.operations.site import Site, check_account, kept_site, site_of
from clusterctl.transport.fanout import fan_out

if TYPE_CHECKING:
    from clusterctl.ec2.session import Clients


# Records when resources without a creation date at EC2 were first found unused. It is a file and
# not a tag, so that users with read-only permissions can record it, too.
FILE = "gc.json"


def record_unused(
    path: Path,
    accounts: Mapping[str, str],
    unused_since: Collection[ResourceId],
    incomplete: Collection[str],
) -> tuple[Mapping[ResourceId, datetime], ClusterctlError | None]:
    """Record since when unused resources have been found, and drop those that are used or gone.

    `accounts` has the site, as text, of each region that was read. `unused_since` are the unused
    resources of these regions. Entries of the `incomplete` regions, which could not be read in
    full, are kept. Returns since when each resource has been unused in `unused_since`, and the
    error if the file could not be read or written: they then count as unused from now on, and are
    kept for longer.
    """
    kept, failure = _read(path)
    now = datetime.now(timezone.utc).replace(microsecond=0)
    since: dict[ResourceId, datetime] = {}
    after = dict(kept)
    for region, account in accounts.items():
        known = kept.get(account, {})
        entries = dict(known) if region in incomplete else {}
        for resource in unused_since:
            if resource[0] == region:
                label = f"{resource[1].value} {resource[2]}"  # kind and id
                since[resource] = min(known.get(label, now), now)
                entries[label] = since[resource]
        after[account] = entries
    after = {account: entries for account, entries in after.items() if entries}
    if after == kept and not failure:
        return since, None
    try:
        write_file(path, to_json(_Unused(after)) + "\n")
    except OSError as error:
        return since, ClusterctlError(
            f"cannot write {path}: {error}", "groups and addresses stay until it can be written"
        )
    return since, failure


@dataclass(frozen=True)
class _Unused:
    """The content of the file: by site, the time since which each resource has been found
    unused."""

    unused_since: Mapping[str, Mapping[str, datetime]]


def _read(path: Path) -> tuple[Mapping[str, Mapping[str, datetime]], ClusterctlError | None]:
    """Return the recorded times by site and by resource, and the error if the file is damaged."""
    hint = "groups and addresses count as unused from now on, and stay a while longer"
    try:
        kept = read_file(path, partial(from_json, _Unused), hint)
    except ClusterctlError as error:
        return {}, error
    return kept.unused_since if kept else {}, None


@dataclass(frozen=True)
class LocalClusters:
    """The clusters with a folder on this machine, as pairs of region and name.

    A command of this machine is changing those in `locked`, or may be, or it is not known where
    they are: the value says which. Those in `unresolved` have a recent launch of unknown outcome.
    """

    here: frozenset[tuple[str, str]]
    locked: Mapping[tuple[str, str], str]
    unresolved: frozenset[tuple[str, str]]


def local_clusters(home: Path, sites: Mapping[str, Site]) -> LocalClusters:
    """Return the clusters with a folder in `home` that may be at these sites, given by region."""
    paths = [path for path in home.glob("*") if path.is_dir() and is_cluster_name(path.name)]
    regions = {folder: _regions(folder, sites) for folder in map(ClusterFolder, paths)}
    return LocalClusters(
        here=_identities(regions, regions),
        locked={
            one: why
            for folder in regions
            if (why := _why_unknown(folder) or why_locked(folder.path / "lock"))
            for one in _identities(regions, [folder])
        },
        unresolved=_identities(regions, [folder for folder in regions if may_be_launching(folder)]),
    )


@contextmanager
def locked_and_finished(
    clients: Clients, folder: ClusterFolder, notify: Callable[[str], None], timeouts: Timeouts
) -> Iterator[None]:
    """Hold the cluster's lock, after waiting for its launches of unknown outcome.

    Raises ClusterctlError if another command holds it, AwsError.
    """
    with locked(folder):
        wait_for_unfinished_launches(clients.ec2, folder, notify, timeouts)
        yield


def _regions(folder: ClusterFolder, sites: Mapping[str, Site]) -> frozenset[str]:
    """Return the regions where a folder's cluster may be: all if its site is not known."""
    kept = None if _why_unknown(folder) else kept_site(folder)
    return frozenset(region for region, site in sites.items() if kept in (None, site))


def _why_unknown(folder: ClusterFolder) -> str:
    """Return why the folder's record of the cluster's site cannot be read; empty if it can be."""
    try:
        kept_site(folder)
    except ClusterctlError as error:
        return error.message
    return ""


def _identities(
    regions: Mapping[ClusterFolder, frozenset[str]], folders: Iterable[ClusterFolder]
) -> frozenset[tuple[str, str]]:
    return frozenset((region, folder.name) for folder in folders for region in regions[folder])


class HourlyCosts:
    """The hourly costs of resources. Each price is read once."""

    def __init__(self, clients: Mapping[str, Clients]) -> None:
        self._clients = clients
        self._machines: dict[tuple[str, str, Market, str], float | None] = {}

    def of(self, one: Resource) -> float | None:
        """Return US dollars per hour; 0 for what is free, None if the price is not known."""
        if one.instance:
            awake = one.instance.node.state in AWAKE
            return self._machine(one.region, one.instance) if awake else 0.0
        if one.kind is ResourceKind.VOLUME:
            return disk_hourly_usd(Disk(one.size_gib, one.iops, one.throughput))
        return PUBLIC_IPV4_HOUR_USD if one.kind is ResourceKind.ADDRESS else 0.0

    def total(self, resources: Iterable[Resource]) -> tuple[float, bool]:
        """Return the sum of the known costs, and whether all costs are known."""
        costs = [self.of(one) for one in resources]
        return sum(cost or 0.0 for cost in costs), None not in costs

    def _machine(self, region: str, instance: Instance) -> float | None:
        key = (region, *price_key(instance))
        if key not in self._machines:
            [price] = find_prices(self._clients[region], [instance]).values()
            self._machines[key] = price.hourly_usd if price else None
        return self._machines[key]


# How often to list again after a removal: EC2 may show deleted resources for a while.
MOST_SWEEPS_AFTER = 8


@dataclass(frozen=True)
class Sweep:
    """The resources found, with a verdict on each.

    `failures` are the kinds that could not be read in a region. `record_error` is the error if
    these times could not be recorded.
    """

    classified: tuple[Classified, ...] = ()
    failures: tuple[Unlisted, ...] = ()
    record_error: ClusterctlError | None = None

    @property
    def orphans(self) -> tuple[Classified, ...]:
        return tuple(one for one in self.classified if one.verdict is Verdict.ORPHAN)

    @property
    def left(self) -> tuple[RemainingResource, ...]:
        """What stays of a cluster, all of which was to go: a command is at work on it."""
        kept = (one for one in self.classified if one.verdict is not Verdict.ORPHAN)
        return tuple(RemainingResource(ClusterctlError(one.why), one.resource) for one in kept)


@dataclass(frozen=True)
class GcReport:
    """The result of a removal.

    `left` was not removed, with the reason. `failures` are the kinds that could not be
    read in a region, before or after the removal.
    """

    removed: tuple[Resource, ...]
    left: tuple[RemainingResource, ...]
    failures: tuple[Unlisted, ...]


class GarbageCollector:
    """Finds and removes orphans in the regions of one account.

    `clients` are by region. `home` is the folder with the clusters' folders. `notify` receives
    lines about what is being waited for.
    """

    def __init__(
        self,
        clients: Mapping[str, Clients],
        home: Path,
        options: GcOptions = GcOptions(),
        notify: Callable[[str], None] = lambda text: None,
        timeouts: Timeouts = Timeouts(),
    ) -> None:
        self._timeouts = timeouts
        self._places = [Region(region, clients[region]) for region in clients]
        self._home = home
        self._options = options
        self._notify = notify
        self._lock = threading.Lock()
        # What has been removed so far, for the report after an interrupt.
        self.gone: list[Resource] = []

    def sweep(self) -> Sweep:
        """Read and classify all resources. Changes nothing at EC2, and only gc.json locally.

        Raises AwsError if the account cannot be determined, and UsageError if the folder of the
        chosen cluster is of another account.
        """
        if self._options.cluster is not None:
            clients = self._places[0].clients
            check_account(ClusterFolder(self._home / self._options.cluster), clients)
        local = self._local()
        listings = fan_out(self._list, self._places).outcomes
        found = [
            unreachable_region(one.host, one.error) if one.error else one.result()
            for one in listings
        ]
        resources = [one for region in found for one in region.resources]
        failures = tuple(one for region in found for one in region.failures)
        rules = replace(self._rules(local, failures), spent=self._spent(resources))
        failure = None
        if self._options.cluster is None:
            since, failure = record_unused(
                self._home / FILE,
                {region: str(site) for region, site in self._sites().items()},
                undated_orphans(resources, rules),
                {one.region for one in failures},
            )
            rules = replace(rules, unused_since=since)
        return Sweep(classify(resources, rules), failures, failure)

    def _spent(
        self, resources: Sequence[Resource]
    ) -> dict[tuple[str, str], tuple[float, float | None]]:
        """Return what each cluster with a budget has cost, and costs an hour."""
        clusters = grouped(
            ((one.region, one.cluster), one.instance)
            for one in resources
            if one.instance and one.cluster is not None and limits_of(one).budget_usd is not None
        )
        clients = {one.host: one.clients for one in self._places}
        found = {key: spending_of(clients[key[0]], clusters[key]) for key in clusters}
        return {key: (money.spent_usd, money.hourly_usd) for key, money in found.items()}

    def note_stops(self, sweep: Sweep) -> None:
        """Tag instances that stopped themselves with the present time. Raises AwsError.

        EC2 does not say when they stopped. A later `gc` counts their --stopped-days from the tag.
        """
        noted = {STOPPED_FOUND: datetime.now(timezone.utc).isoformat(timespec="seconds")}
        stopped = without_stop_time(sweep.classified)
        for place in self._places:
            ids = [one.id for one in stopped if one.region == place.host]
            if ids:
                with translated():
                    labels: Any = tags.tag_list(noted)
                    place.clients.ec2.create_tags(Resources=ids, Tags=labels)

    def remove(self, orphans: Sequence[Classified]) -> GcReport:
        """Delete these orphans, and report what is left. Can be interrupted and run again.

        All resources are classified once more first. What is in use by then stays, and so does what
        cannot be read again. If a cluster was chosen, orphans of it that appear meanwhile are
        deleted, too. Raises AwsError.
        """
        requested = {resource_id(one.resource): one.resource for one in orphans}
        if self._options.cluster is not None:
            self._await_launches(self._options.cluster)
        fresh = self.sweep()
        if self._options.cluster is not None:
            # Everything of the cluster goes. A resource that has appeared since may use its groups.
            requested |= {resource_id(one.resource): one.resource for one in fresh.orphans}
        now = {resource_id(one.resource): one for one in fresh.classified}
        # What could not be read again, with the error.
        blind = {(one.region, one.kind): one.error for one in fresh.failures}
        left = {}
        for key, one in requested.items():
            if (one.region, one.kind) in blind:
                why = f"could not be listed again: {blind[one.region, one.kind].message}"
                left[key] = RemainingResource(ClusterctlError(why, "run it again"), one)
            elif key in now and now[key].verdict is not Verdict.ORPHAN:
                sure = (one.region, ResourceKind.INSTANCE) not in blind
                why = f"{'no longer removable' if sure else 'not checked again'}: {now[key].why}"
                left[key] = RemainingResource(ClusterctlError(why), one)
        left |= self._remove_all(
            [requested[key] for key in requested if key in now.keys() - left.keys()]
        )
        after, shown = self._list_again(requested, waits=not left)
        if self._options.cluster is not None and shown.keys() - requested.keys():
            # A launch was under way, and EC2 has shown its instances only after the first removal.
            requested |= shown
            left |= self._remove_all([shown[key] for key in shown.keys() - left.keys()])
            after, shown = self._list_again(requested, waits=not left)
        failures = {(one.region, one.kind): one for one in (*fresh.failures, *after.failures)}
        still_blind = {(one.region, one.kind) for one in after.failures}
        # A resource remains if the last sweep shows it, or if it could not be removed and the last
        # sweep could not read its kind.
        remaining = {
            key: left.get(key) or RemainingResource(still_exists_error(one), one)
            for key, one in requested.items()
            if key in shown or (key in left and (one.region, one.kind) in still_blind)
        }
        new = shown.keys() - requested.keys()
        remaining |= {
            key: RemainingResource(still_exists_error(shown[key]), shown[key]) for key in new
        }
        gone = tuple(one for key, one in requested.items() if key not in remaining)
        if self._options.cluster is not None:
            kept = {resource_id(one.resource): one for one in after.left}
            remaining = {**kept, **remaining}
        return GcReport(gone, tuple(remaining.values()), tuple(failures.values()))

    def _await_launches(self, name: str) -> None:
        """Wait for the cluster's launches of unknown outcome, if it has a folder here."""
        here = self._local().here
        for place in self._places:
            if (place.host, name) in here:
                folder = ClusterFolder(self._home / name)
                # If another command holds the lock, `_remove` reports it.
                with (
                    suppress(ClusterctlError),
                    locked_and_finished(place.clients, folder, self._notify, self._timeouts),
                ):
                    pass

    def _local(self) -> LocalClusters:
        return local_clusters(self._home, self._sites())

    def _sites(self) -> dict[str, Site]:
        return {one.host: site_of(one.clients) for one in self._places}

    def _rules(self, local: LocalClusters, failures: Sequence[Unlisted]) -> Rules:
        options = self._options
        return Rules(
            now=datetime.now(timezone.utc),
            here=local.here,
            busy=local.locked,
            # A chosen cluster is removed with what its launches of unknown outcome have made.
            unresolved=local.unresolved if options.cluster is None else frozenset(),
            unlisted_kinds=frozenset((one.region, one.kind) for one in failures),
            options=options,
        )

    def _list(self, place: Region) -> RegionResources:
        """Read one region's resources; without networks if a cluster was chosen."""
        kinds = [
            kind
            for kind in ResourceKind
            if kind is not ResourceKind.NETWORK or self._options.cluster is None
        ]
        return list_region(place.clients, place.host, kinds)

    def _list_again(
        self, requested: Mapping[ResourceId, Resource], waits: bool
    ) -> tuple[Sweep, dict[ResourceId, Resource]]:
        """Return the last sweep, and the resources in it that should be gone, by id.

        Those are orphans and what was `requested` to be removed. With `waits`, the sweep is
        repeated until there are none, for some seconds at most.
        """
        for gap_s in islice(backoff_delays(0.2), MOST_SWEEPS_AFTER):
            after = self.sweep()
            shown = {
                resource_id(one.resource): one.resource
                for one in after.classified
                if one.verdict is Verdict.ORPHAN or resource_id(one.resource) in requested
            }
            if not shown or not waits:
                break
            time.sleep(gap_s)
        return after, shown

    def _remove_all(self, resources: Sequence[Resource]) -> dict[ResourceId, RemainingResource]:
        """Remove resources, all regions at the same time. Return what is left."""
        by_place = {
            place: [one for one in resources if one.region == place.host] for place in self._places
        }
        places = [place for place in self._places if by_place[place]]
        outcomes = fan_out(lambda place: self._remove(place, by_place[place]), places).outcomes
        left: dict[ResourceId, RemainingResource] = {}
        for place, outcome in zip(places, outcomes):
            if outcome.error:
                left |= {
                    resource_id(one): RemainingResource(outcome.error, one)
                    for one in by_place[place]
                }
            left |= {resource_id(one.resource): one for one in outcome.value or ()}
        return left

    def _remove(
        self, place: Region, resources: Sequence[Resource]
    ) -> tuple[RemainingResource, ...]:
        """Remove one region's resources, under the locks of their clusters. Return what is left."""
        here = self._local().here
        busy: dict[str, ClusterctlError] = {}
        with ExitStack() as held:
            for name in sorted({one.cluster for one in resources if one.cluster is not None}):
                if (place.host, name) in here:
                    try:
                        folder = ClusterFolder(self._home / name)
                        finished = (place.clients, folder, self._notify, self._timeouts)
                        held.enter_context(locked_and_finished(*finished))
                    except ClusterctlError as failure:
                        busy[name] = failure
            free = [one for one in resources if one.cluster not in busy]
            self._record_costs(place, free, here)
            left = remove(place.clients, place.host, free, self._notified, self._notify)
        taken = (
            RemainingResource(busy[one.cluster], one) for one in resources if one.cluster in busy
        )
        return (*left, *taken)

    def _record_costs(
        self, place: Region, resources: Sequence[Resource], here: Collection[tuple[str, str]]
    ) -> None:
        """Record what the instances among these have cost, before they are terminated; and of
        clusters of this machine, what those cost that ended by themselves, which EC2 forgets."""
        ending = (one.instance for one in resources if one.instance)
        for name, instances in grouped((one.cluster, one) for one in ending).items():
            record_removal_cost(self._home, place.clients, name, instances, self._notify)
        for name in sorted({one.cluster for one in resources if one.cluster is not None}):
            if (place.host, name) in here:
                there = find_instances(place.clients.ec2, name)
                ended = (self._home, place.clients, name, missing_of(there), there)
                record_lost_cost(*ended, self._notify)

    def _notified(self, resource: Resource) -> None:
        with self._lock:
            self.gone.append(resource)
