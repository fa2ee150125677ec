"""`gc`: what nobody needs any more, of any cluster, in any region; and away with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.domain.errors import ClusterctlError
from clusterctl.ec2 import tags
from clusterctl.ec2.errors import translated
from clusterctl.ec2.gc.orphans import (
    Judged,
    Rules,
    ThingId,
    Verdict,
    alone,
    judge,
    thing_id,
    without_stop_time,
)
from clusterctl.ec2.gc.removal import Left, remove, still_there
from clusterctl.ec2.gc.resources import STOPPED_SEEN, Resource, ResourceKind
from clusterctl.ec2.gc.sweep import RegionResources, Unseen, look, nothing_seen
from clusterctl.ec2.instances import Instance
from clusterctl.ec2.polling import gaps
from clusterctl.operations.costs import note_end
from clusterctl.operations.first_seen import FILE, note_alone
from clusterctl.operations.folder import ClusterFolder
from clusterctl.operations.local_clusters import LocalClusters, local_clusters, to_itself
from clusterctl.operations.local_state import Site, check_account, site_of
from clusterctl.transport.fanout import fan_out

if TYPE_CHECKING:
    from clusterctl.ec2.session import Clients

# EC2 may show for a while what it has deleted.
LOOKS_AFTER = 8


@dataclass(frozen=True)
class Wishes:
    """What a user says about orphans (see Rules)."""

    cluster: str | None = None
    older_than_s: float | None = None
    networks: bool = False


@dataclass(frozen=True)
class Sweep:
    """All that was found, judged, and what could not be looked at or remembered."""

    judged: tuple[Judged, ...] = ()
    unseen: tuple[Unseen, ...] = ()
    forgetful: ClusterctlError | None = None

    @property
    def orphans(self) -> tuple[Judged, ...]:
        return tuple(one for one in self.judged if one.verdict is Verdict.ORPHAN)


@dataclass(frozen=True)
class GcReport:
    """What is gone, what is not and why, and where nobody could look again."""

    gone: tuple[Resource, ...]
    left: tuple[Left, ...]
    unseen: tuple[Unseen, ...]


@dataclass(frozen=True)
class _Region:
    host: str  # A region, under the name that fan_out knows.
    clients: Clients


class GarbageCollector:
    """An account's regions, seen from the machine with the folder `home`.

    `tell` is told what is being waited for, one line at a time.
    """

    def __init__(
        self,
        clients: Mapping[str, Clients],
        home: Path,
        wishes: Wishes | None = None,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._places = [_Region(region, clients[region]) for region in clients]
        self._home = home
        self._wishes = wishes or Wishes()
        self._tell = tell
        self._lock = threading.Lock()
        # What has gone so far: for the one who interrupts.
        self.gone: list[Resource] = []

    def sweep(self) -> Sweep:
        """Look everywhere, change nothing.

        Raises AwsError where there is nobody to ask with, UsageError for a cluster whose folder
        says that it is in another account.
        """
        if self._wishes.cluster is not None:
            for place in self._places[:1]:
                check_account(ClusterFolder(self._home / self._wishes.cluster), place.clients)
        local = self._local()
        looks = fan_out(self._look, self._places).outcomes
        found = [one.value or nothing_seen(one.host, one.error) for one in looks]
        resources = [one for region in found for one in region.resources]
        unseen = tuple(one for region in found for one in region.unseen)
        rules = self._rules(local, unseen)
        failure = None
        if self._wishes.cluster is None:
            since, failure = note_alone(
                self._home / FILE,
                {region: str(site) for region, site in self._sites().items()},
                alone(resources, rules),
                {one.region for one in unseen},
            )
            rules = replace(rules, alone_since=since)
        return Sweep(judge(resources, rules), unseen, failure)

    def note_stops(self, sweep: Sweep) -> None:
        """Write on machines that stopped themselves that they are, so that a later look knows.

        Raises AwsError.
        """
        noted = {STOPPED_SEEN: datetime.now(timezone.utc).isoformat(timespec="seconds")}
        stopped = without_stop_time(sweep.judged)
        for place in self._places:
            ids = [one.id for one in stopped if one.region == place.host]
            if ids:
                with translated():
                    labels: Any = tags.tag_list(noted)
                    place.clients.ec2.create_tags(Resources=ids, Tags=labels)

    def remove(self, orphans: Sequence[Judged]) -> GcReport:
        """Delete these, look again, and say what is left. Can be interrupted and run again.

        What has found a use in the meantime stays, and so does what cannot be looked at again.
        Raises AwsError.
        """
        asked = {thing_id(one.resource): one.resource for one in orphans}
        if self._wishes.cluster is not None:
            self._await_launches(self._wishes.cluster)
        fresh = self.sweep()
        if self._wishes.cluster is not None:
            # All of the cluster was meant: what holds on to its groups, too.
            asked |= {thing_id(one.resource): one.resource for one in fresh.orphans}
        now = {thing_id(one.resource): one for one in fresh.judged}
        blind = {(one.region, one.kind): one.error for one in fresh.unseen}
        left = {}
        for key, one in asked.items():
            if (one.region, one.kind) in blind:
                why = f"could not be looked at again: {blind[one.region, one.kind].message}"
                left[key] = Left(one, ClusterctlError(why, "run it again"))
            elif key in now and now[key].verdict is not Verdict.ORPHAN:
                sure = (one.region, ResourceKind.INSTANCE) not in blind
                why = f"{'no longer an orphan' if sure else 'not judged again'}: {now[key].why}"
                left[key] = Left(one, ClusterctlError(why))
        left |= self._remove_all([asked[key] for key in asked if key in now.keys() - left.keys()])
        after, shown = self._look_again(asked, patient=not left)
        if self._wishes.cluster is not None and shown.keys() - asked.keys():
            # A launch that was under way has shown what it made.
            asked |= shown
            left |= self._remove_all([shown[key] for key in shown.keys() - left.keys()])
            after, shown = self._look_again(asked, patient=not left)
        unseen = {(one.region, one.kind): one for one in (*fresh.unseen, *after.unseen)}
        still_blind = {(one.region, one.kind) for one in after.unseen}
        remaining = {
            key: left.get(key) or Left(one, still_there(one))
            for key, one in asked.items()
            if key in shown or (key in left and (one.region, one.kind) in still_blind)
        }
        new = shown.keys() - asked.keys()
        remaining |= {key: Left(shown[key], still_there(shown[key])) for key in new}
        gone = tuple(one for key, one in asked.items() if key not in remaining)
        return GcReport(gone, tuple(remaining.values()), tuple(unseen.values()))

    def _await_launches(self, name: str) -> None:
        """Until launches of unknown outcome have shown what they made."""
        here = self._local().here
        for place in self._places:
            if (place.host, name) in here:
                folder = ClusterFolder(self._home / name)
                # Who is at work on it is told of when it comes to removing.
                with suppress(ClusterctlError), to_itself(place.clients, folder, self._tell):
                    pass

    def _local(self) -> LocalClusters:
        return local_clusters(self._home, self._sites())

    def _sites(self) -> dict[str, Site]:
        return {one.host: site_of(one.clients) for one in self._places}

    def _rules(self, local: LocalClusters, unseen: Sequence[Unseen]) -> Rules:
        wishes = self._wishes
        return Rules(
            now=datetime.now(timezone.utc),
            here=local.here,
            busy=local.locked,
            # Whoever names a cluster means what its unsettled launches will show, too.
            unsettled=local.unsettled if wishes.cluster is None else frozenset(),
            blind=frozenset((one.region, one.kind) for one in unseen),
            cluster=wishes.cluster,
            older_than_s=wishes.older_than_s,
            networks=wishes.networks,
        )

    def _look(self, place: _Region) -> RegionResources:
        kinds = [
            kind
            for kind in ResourceKind
            if kind is not ResourceKind.NETWORK or self._wishes.cluster is None
        ]
        return look(place.clients, place.host, kinds)

    def _look_again(
        self, asked: Mapping[ThingId, Resource], patient: bool
    ) -> tuple[Sweep, dict[ThingId, Resource]]:
        """The last look, and what it shows that should not be there."""
        for gap_s in islice(gaps(0.2), LOOKS_AFTER):
            after = self.sweep()
            shown = {
                thing_id(one.resource): one.resource
                for one in after.judged
                if one.verdict is Verdict.ORPHAN or thing_id(one.resource) in asked
            }
            if not shown or not patient:
                break
            time.sleep(gap_s)
        return after, shown

    def _remove_all(self, resources: Sequence[Resource]) -> dict[ThingId, Left]:
        by_place = {
            place: [one for one in resources if one.region == place.host] for place in self._places
        }
        places = [place for place in self._places if by_place[place]]
        outcomes = fan_out(lambda place: self._remove(place, by_place[place]), places).outcomes
        left: dict[ThingId, Left] = {}
        for place, outcome in zip(places, outcomes):
            if outcome.error:
                left |= {thing_id(one): Left(one, outcome.error) for one in by_place[place]}
            left |= {thing_id(one.resource): one for one in outcome.value or ()}
        return left

    def _remove(self, place: _Region, resources: Sequence[Resource]) -> tuple[Left, ...]:
        here = self._local().here
        busy: dict[str, ClusterctlError] = {}
        with ExitStack() as held:
            for name in sorted({one.cluster for one in resources if one.cluster is not None}):
                if (place.host, name) in here:
                    try:
                        folder = ClusterFolder(self._home / name)
                        held.enter_context(to_itself(place.clients, folder, self._tell))
                    except ClusterctlError as failure:
                        busy[name] = failure
            free = [one for one in resources if one.cluster not in busy]
            self._note_end(place, free)
            left = remove(place.clients, place.host, free, self._told, self._tell)
        taken = (Left(one, busy[one.cluster]) for one in resources if one.cluster in busy)
        return (*left, *taken)

    def _note_end(self, place: _Region, resources: Sequence[Resource]) -> None:
        ending: dict[str, list[Instance]] = {}
        for one in resources:
            if one.instance is not None:
                ending.setdefault(one.instance.cluster, []).append(one.instance)
        for name, instances in ending.items():
            note_end(self._home, place.clients, name, instances)

    def _told(self, resource: Resource) -> None:
        with self._lock:
            self.gone.append(resource)
