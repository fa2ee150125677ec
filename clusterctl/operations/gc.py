"""`gc`: what nobody needs any more, of any cluster, in any region; and away with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.domain.errors import AwsError, ClusterctlError
from clusterctl.ec2 import tags
from clusterctl.ec2.errors import translated
from clusterctl.ec2.orphans import judge, without_stop_time
from clusterctl.ec2.polling import gaps
from clusterctl.ec2.removal import Left, remove
from clusterctl.ec2.resources import STOPPED_SEEN, Kind, Resource
from clusterctl.ec2.sweep import Found, Unseen, look
from clusterctl.ec2.teardown import await_launches
from clusterctl.ec2.verdicts import Judged, Rules, Verdict
from clusterctl.operations.down import LAUNCH_SHOWS_WITHIN_S
from clusterctl.operations.folder import ClusterFolder
from clusterctl.operations.keep import account_of, locked
from clusterctl.operations.local_clusters import LocalClusters, local_clusters, sent_launches
from clusterctl.transport.fanout import fan_out

if TYPE_CHECKING:
    from clusterctl.ec2.session import Clients

# EC2 may show for a while what it has deleted.
LOOKS_AFTER = 8

_Key = tuple[str, Kind, str]


@dataclass(frozen=True)
class Wishes:
    """What a user says about orphans (see Rules)."""

    cluster: str | None = None
    older_than_s: float | None = None
    networks: bool = False


@dataclass(frozen=True)
class Sweep:
    """All that was found, judged, and what could not be looked at."""

    judged: tuple[Judged, ...] = ()
    unseen: tuple[Unseen, ...] = ()

    @property
    def orphans(self) -> tuple[Judged, ...]:
        return tuple(one for one in self.judged if one.verdict is Verdict.ORPHAN)


@dataclass(frozen=True)
class Removed:
    """What is gone, what is not and why, and where nobody could look afterwards."""

    gone: tuple[Resource, ...]
    left: tuple[Left, ...]
    unseen: tuple[Unseen, ...]


@dataclass(frozen=True)
class _Place:
    host: str  # A region, under the name that fan_out knows.
    clients: Clients


class GarbageCollector:
    """An account's regions, seen from the machine with the folder `home`."""

    def __init__(
        self, clients: Mapping[str, Clients], home: Path, wishes: Wishes | None = None
    ) -> None:
        self._places = [_Place(region, clients[region]) for region in clients]
        self._home = home
        self._wishes = wishes or Wishes()
        self._lock = threading.Lock()
        # What has gone so far: for the one who interrupts.
        self.gone: list[Resource] = []

    def sweep(self) -> Sweep:
        """Look everywhere, change nothing. Raises AwsError where there is nobody to ask with."""
        local = self._local()
        looks = fan_out(self._look, self._places).outcomes
        found = [one.value or _nothing_seen(one.host, one.error) for one in looks]
        judged = judge([one for region in found for one in region.resources], self._rules(local))
        return Sweep(judged, tuple(one for region in found for one in region.unseen))

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

    def remove(self, orphans: Sequence[Judged]) -> Removed:
        """Delete these, look again, and say what is left. Can be interrupted and run again.

        What has found a use in the meantime stays. Raises AwsError.
        """
        asked = {_key(one.resource): one.resource for one in orphans}
        fresh = self.sweep()
        now = {_key(one.resource): one for one in fresh.judged}
        blind = {(one.region, one.kind) for one in fresh.unseen}
        left = {
            key: Left(asked[key], ClusterctlError(f"no longer an orphan: {now[key].why}"))
            for key in asked
            if key in now and now[key].verdict is not Verdict.ORPHAN
        }
        known = {key for key, one in asked.items() if (one.region, one.kind) in blind or key in now}
        left |= self._remove_all([asked[key] for key in asked if key in known - left.keys()])
        after, shown = self._look_again(asked, patient=not left)
        if self._wishes.cluster is not None and shown.keys() - asked.keys():
            # A launch that was under way has shown what it made.
            asked |= shown
            left |= self._remove_all([shown[key] for key in shown.keys() - left.keys()])
            after, shown = self._look_again(asked, patient=not left)
        blind = {(one.region, one.kind) for one in after.unseen}
        remaining = {
            key: left.get(key) or Left(one, _still_there(one))
            for key, one in asked.items()
            if key in shown or (key in left and (one.region, one.kind) in blind)
        }
        new = shown.keys() - asked.keys()
        remaining |= {key: Left(shown[key], _still_there(shown[key])) for key in new}
        gone = tuple(one for key, one in asked.items() if key not in remaining)
        return Removed(gone, tuple(remaining.values()), after.unseen)

    def _local(self) -> LocalClusters:
        accounts = {one.host: account_of(one.clients.ec2) for one in self._places}
        return local_clusters(self._home, accounts)

    def _rules(self, local: LocalClusters) -> Rules:
        wishes = self._wishes
        return Rules(
            now=datetime.now(timezone.utc),
            here=local.here,
            # Whoever names a cluster means what its unsettled launches will show, too.
            busy=local.locked if wishes.cluster is not None else local.locked | local.unsettled,
            cluster=wishes.cluster,
            older_than_s=wishes.older_than_s,
            networks=wishes.networks,
        )

    def _look(self, place: _Place) -> Found:
        kinds = [kind for kind in Kind if kind is not Kind.NETWORK or self._wishes.cluster is None]
        return look(place.clients, place.host, kinds)

    def _look_again(
        self, asked: Mapping[_Key, Resource], patient: bool
    ) -> tuple[Sweep, dict[_Key, Resource]]:
        """The last look, and what it shows that should not be there."""
        for gap_s in islice(gaps(0.2), LOOKS_AFTER):
            after = self.sweep()
            shown = {
                _key(one.resource): one.resource
                for one in after.judged
                if one.verdict is Verdict.ORPHAN or _key(one.resource) in asked
            }
            if not shown or not patient:
                break
            time.sleep(gap_s)
        return after, shown

    def _remove_all(self, resources: Sequence[Resource]) -> dict[_Key, Left]:
        by_place = {
            place: [one for one in resources if one.region == place.host] for place in self._places
        }
        places = [place for place in self._places if by_place[place]]
        outcomes = fan_out(lambda place: self._remove(place, by_place[place]), places).outcomes
        left: dict[_Key, Left] = {}
        for place, outcome in zip(places, outcomes):
            if outcome.error:
                left |= {_key(one): Left(one, outcome.error) for one in by_place[place]}
            left |= {_key(one.resource): one for one in outcome.value or ()}
        return left

    def _remove(self, place: _Place, resources: Sequence[Resource]) -> tuple[Left, ...]:
        here = self._local().here
        busy: dict[str, ClusterctlError] = {}
        with ExitStack() as held:
            for name in sorted({one.cluster for one in resources if one.cluster is not None}):
                if (place.host, name) in here:
                    try:
                        folder = ClusterFolder(self._home / name)
                        held.enter_context(_to_itself(place.clients, folder))
                    except ClusterctlError as failure:
                        busy[name] = failure
            free = [one for one in resources if one.cluster not in busy]
            left = remove(place.clients, place.host, free, self._told)
        taken = (Left(one, busy[one.cluster]) for one in resources if one.cluster in busy)
        return (*left, *taken)

    def _told(self, resource: Resource) -> None:
        with self._lock:
            self.gone.append(resource)


@contextmanager
def _to_itself(clients: Clients, folder: ClusterFolder) -> Iterator[None]:
    """No other command works on the cluster, and its launches have shown what they made."""
    with locked(folder):
        sent = sent_launches(folder)
        until = max((one.sent_at + LAUNCH_SHOWS_WITHIN_S for one in sent), default=0.0)
        await_launches(clients.ec2, [one.token for one in sent], until)
        yield


def _key(one: Resource) -> _Key:
    return one.region, one.kind, one.id


def _still_there(one: Resource) -> ClusterctlError:
    return ClusterctlError(f"still there ({one.state})" if one.state else "still there")


def _nothing_seen(region: str, error: ClusterctlError | None) -> Found:
    assert error is not None
    failure = error if isinstance(error, AwsError) else AwsError("", error.message, error.hint)
    return Found(unseen=tuple(Unseen(kind, region, failure) for kind in Kind))
