"""The costs of existing clusters, and of nodes that were removed from this machine.

EC2 forgets a terminated instance within the hour. So the costs of removed nodes are recorded in
CLUSTERCTL_HOME/costs.jsonl, one JSON line for each removal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from clusterctl.domain.cluster import ASLEEP, AWAKE, NodeState
from clusterctl.domain.errors import AwsError, ClusterctlError
from clusterctl.domain.files import ClusterFolder, append_line, read_file
from clusterctl.domain.findings import Finding
from clusterctl.domain.ranges import fold_hosts, grouped
from clusterctl.domain.results import WithError
from clusterctl.ec2.health import GONE, NOT_SHOWN, find_gone, why_gone
from clusterctl.ec2.instances import (
    Instance,
    find_every_cluster,
    find_instances,
    first_launch,
    members_of,
    missing_of,
    tag,
    wanted_of,
)
from clusterctl.ec2.money.costs import RunningCost, Spending, node_cost, spending
from clusterctl.ec2.money.prices import find_prices, price_key
from clusterctl.ec2.tags import ENDS_AT, SPENT, Spent, spent_text, time_text
from clusterctl.node.guard.settings import GRACE_S
from clusterctl.node.record import Rows, read_rows, to_json
from clusterctl.operations.ended import (
    EndedCluster,
    LeftBehind,
    end_of,
    ended_clusters,
    launched_here,
    left_behind,
)
from clusterctl.operations.local_state import kept_end
from clusterctl.operations.site import check_account, kept_site, parse_site, site_of
from clusterctl.operations.status import states
from clusterctl.transport.fanout import fan_out

if TYPE_CHECKING:
    from clusterctl.ec2.launch.plan import LaunchPlan
    from clusterctl.ec2.session import Clients


FILE = "costs.jsonl"
# Machines, and when they ended.
_Ended = tuple[Sequence[Instance], datetime]


@dataclass(frozen=True)
class PastCost:
    """The costs of nodes of one cluster that were removed together.

    `usd` has the US dollars that each instance cost, by instance id. `complete` and `at_most` are
    those of `Spending`. `account` is the text of the site (see site.Site), so that clusters of
    the local EC2 are not taken for paid ones. `since` is the first launch of any of them.
    """

    account: str
    name: str
    region: str
    instance_type: str
    market: str
    since: datetime
    ended_at: datetime
    usd: Mapping[str, float]
    complete: bool
    at_most: bool = False
    json_names = (
        *("account", "name", "region", "instance_type", "market", "since", "ended_at", "usd"),
        *("complete", "at_most", "spent_usd"),
    )

    def __post_init__(self) -> None:
        """Raise ValueError for what cannot be a cost or is no word to show on a terminal."""
        for word in (self.account, self.name, self.region, self.instance_type, self.market):
            if not re.fullmatch(r"[\w.,:/ -]*", word, re.ASCII):
                raise ValueError(f"not a word: {word!r}")
        for id, usd in self.usd.items():
            if not 0 <= usd < 1e9:
                raise ValueError(f"usd.{id}: not dollars: {usd!r}")

    @property
    def spent_usd(self) -> float:
        return sum(self.usd.values())


def append_ended(home: Path, ended: PastCost) -> None:
    """Append one line to the file in `home`. Raises OSError."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    append_line(home / FILE, to_json(ended))


def read_ended(home: Path, there: Collection[str] = ()) -> Rows[PastCost]:
    """Return what was recorded in `home`, oldest first. Raises ClusterctlError for an unreadable
    file.

    An instance that was recorded twice, as when `down` is run again, counts with its last record.
    Instances in `there`, by id, still exist and are left out.
    """
    kept_rows = read_file(
        home / FILE,
        lambda text: read_rows(PastCost, text, is_whole=True),
        "make it readable, or move it to another folder: "
        "the costs of removed nodes are in no other file",
    )
    found = kept_rows or Rows[PastCost]()
    last = {key: position for position, entry in enumerate(found.rows) for key in entry.usd}
    kept = []
    for position, entry in enumerate(found.rows):
        usd = {
            key: value
            for key, value in entry.usd.items()
            if last[key] == position and key not in there
        }
        if usd:
            kept.append(replace(entry, usd=usd))
    return Rows(tuple(kept), found.damaged)


@dataclass(frozen=True)
class ClusterCosts:
    """An existing cluster and its costs. `instances` include nodes that are being replaced.

    `missing` is the number of nodes that it should have and has not.
    """

    name: str
    region: str
    instances: tuple[Instance, ...]
    costs: Spending
    missing: int = 0
    json_names = ("name", "region", "nodes", "states", "instance_type", "market", "costs")

    @property
    def nodes(self) -> int:
        return len(self.instances)

    @property
    def instance_type(self) -> str:
        """The instance types, as a rule one: `p4d.24xlarge`."""
        return "/".join(sorted({one.node.instance_type for one in self.instances}))

    @property
    def market(self) -> str:
        """How the nodes are paid for: `on-demand`, `on-demand/spot`."""
        return "/".join(sorted({one.market.value for one in self.instances}))

    @property
    def states(self) -> str:
        """The nodes counted by state: `3 running, 1 stopped, 1 missing`."""
        return states((one.node for one in self.instances), self.missing)


@dataclass(frozen=True)
class FailedRegion(WithError):
    """A region that could not be queried, and why."""

    region: str
    json_names = ("region", "message", "hint")


@dataclass(frozen=True)
class CostReport:
    """The costs of existing clusters and of removed nodes.

    `failures` are the regions that could not be queried. `ended_by_limit` has what is known of
    clusters that a limit has ended, in words, by name. `left_behind` are clusters launched from
    here that have no instance, of which something may be left: the sums lack them. `damaged`
    describes the lines of the record of removed nodes that cannot be read.
    """

    clusters: tuple[ClusterCosts, ...]
    ended: tuple[PastCost, ...] = ()
    damaged: tuple[str, ...] = ()
    failures: tuple[FailedRegion, ...] = ()
    ended_by_limit: Mapping[str, str] = field(default_factory=dict)
    left_behind: tuple[LeftBehind, ...] = ()
    json_names = (
        *("clusters", "ended", "hourly_usd", "hourly_known", "spent_usd", "complete", "at_most"),
        *("ended_by_limit", "left_behind", "damaged", "failures"),
    )

    @property
    def hourly_usd(self) -> float:
        """The sum of the known costs per hour of existing clusters."""
        return sum(one.costs.hourly_usd or 0.0 for one in self.clusters)

    @property
    def spent_usd(self) -> float:
        """The sum of the known costs so far, including those of removed nodes."""
        there = sum(one.costs.spent_usd for one in self.clusters)
        return there + sum(one.spent_usd for one in self.ended)

    @property
    def hourly_known(self) -> bool:
        """Whether `hourly_usd` leaves out nothing."""
        known = not self.failures and not self.left_behind
        return known and all(one.costs.hourly_usd is not None for one in self.clusters)

    @property
    def complete(self) -> bool:
        """Whether `spent_usd` leaves out nothing."""
        there = all(one.costs.complete for one in self.clusters)
        known = not self.failures and not self.damaged and not self.left_behind
        return there and known and all(one.complete for one in self.ended)

    @property
    def at_most(self) -> bool:
        """Whether `spent_usd` has times of guards, which may be too high."""
        there = any(one.costs.at_most for one in self.clusters)
        return there or any(one.at_most for one in self.ended)


@dataclass(frozen=True)
class Region:
    """A region to query, as an item for `fan_out`. `host` is the region's name."""

    host: str
    clients: Clients


def spending_of(
    clients: Clients,
    instances: Sequence[Instance],
    used_h: Mapping[str, float] = MappingProxyType({}),
) -> Spending:
    """Return what a cluster costs and has cost. `instances` are all of its instances.

    `used_h` are the hours that nodes have run in all, by instance id, where their guards counted
    them. A price that AWS does not give is taken from clusterctl's table or counts as unknown; no
    AwsError is raised.
    """
    return spending(instances, find_prices(clients, instances), _now(), used_h)


def with_gone(money: Spending, cluster: str, gone: Mapping[int, Instance | None]) -> Spending:
    """Return a cluster's costs with a finding on its missing nodes, which it leaves out.

    `gone` is that of `find_gone`. Pure.
    """
    names = grouped(
        (f"gone, {why_gone(one)}" if one else NOT_SHOWN, f"{cluster}-{index}")
        for index, one in gone.items()
    )
    found = [
        Finding.info(
            "cost.gone",
            f"this leaves out the cost of {fold_hosts(nodes)}: {why}",
            "what it cost is on AWS's bill: see Cost Explorer",
        )
        for why, nodes in names.items()
    ]
    return replace(money, complete=money.complete and not gone, findings=(*money.findings, *found))


def running_cost(clients: Clients, plan: LaunchPlan) -> RunningCost:
    """Return what the plan's whole cluster costs per hour once all its nodes run.

    Raises no AwsError; see `spending_of`.
    """
    nodes = len(plan.wanted)
    if plan.estimate:
        gpus = plan.observed.catalogue.machines[plan.places[0].instance_type].gpus
        return RunningCost(
            nodes, nodes * gpus, plan.estimate.hourly_usd, plan.estimate.price_source
        )
    members = members_of(plan.observed.instances)
    awake = [replace(one, node=replace(one.node, state=NodeState.RUNNING)) for one in members]
    money = spending_of(clients, awake)
    gpus = sum(one.node.gpus for one in awake)
    return RunningCost(nodes, gpus, money.hourly_usd, money.price_source)


def note_spent(
    clients: Clients,
    instances: Sequence[Instance],
    used_h: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """Record in the tags of these nodes what they have cost so far.

    To be called before a stop or start, after which EC2 has forgotten the times of earlier runs.
    Can be repeated, and interrupted at any point. Raises no AwsError: a cost that could not be
    recorded is missing later, and the sum is then reported as a minimum. `used_h` is
    described at `spending_of`.
    """
    now = _now().replace(microsecond=0)
    ids: dict[str, list[str]] = {}
    with suppress(AwsError):
        prices = find_prices(clients, instances)
        for one in instances:
            id = one.node.instance_id
            cost = node_cost(one, prices[price_key(one)], now, used_h.get(id))
            spent = Spent(cost.spent_usd, cost.ran_h, now, not cost.complete, cost.at_most)
            ids.setdefault(spent_text(spent), []).append(id)
        for text, noted in ids.items():
            tag(clients.ec2, noted, {SPENT: text})


def give_grace(clients: Clients, instances: Sequence[Instance]) -> list[Instance]:
    """Record in tags that these nodes, which were started after their end, run GRACE_S from now.

    Returns the nodes with that end. Raises AwsError.
    """
    ends_at = _now().replace(microsecond=0) + timedelta(seconds=GRACE_S)
    tag(clients.ec2, [one.node.instance_id for one in instances], {ENDS_AT: time_text(ends_at)})
    return [replace(one, ends_at=ends_at) for one in instances]


def cost_report(
    places: Mapping[str, Clients],
    home: Path,
    name: str | None = None,
    since: datetime | None = None,
) -> CostReport:
    """Return the costs in these regions, of all clusters or of cluster `name`.

    With `since`, the nodes removed at or after that time are included. A region that refuses is in
    `failures` and does not affect the others. Raises AwsError if there is only one region and it
    refuses, and UsageError if the folder of cluster `name` is of another account.
    """
    if name is not None:
        check_account(ClusterFolder(home / name), next(iter(places.values())))
    regions_found = fan_out(
        lambda place: _region_costs(place.clients, name),
        [Region(region, places[region]) for region in places],
    ).outcomes
    if len(regions_found) == 1 and regions_found[0].error:
        raise regions_found[0].error
    regions = [found_region.value for found_region in regions_found if found_region.value]
    clusters = tuple(cluster for found, _ in regions for cluster in found)
    shown = {one.name: str(one) for _, by_limit in regions for one in by_limit}
    names = {one.name for one in clusters}
    present = grouped((one.region, one.name) for one in clusters)
    failed = {one.host for one in regions_found if one.error}
    # An interrupted removal has recorded nodes that still exist. They must not be counted twice.
    there = {one.node.instance_id for cluster in clusters for one in cluster.instances}
    past = read_ended(home, there) if since else Rows[PastCost]()
    return CostReport(
        clusters=clusters,
        ended=_ended(past.rows, places, name, since) if since else (),
        damaged=past.damaged,
        ended_by_limit=_by_limit(places, home, name, shown, names),
        left_behind=tuple(
            one
            for region, clients in places.items()
            if region not in failed
            for one in left_behind(clients, home, present.get(region, ()), name)
        ),
        failures=tuple(
            FailedRegion(found_region.error, found_region.host)
            for found_region in regions_found
            if found_region.error
        ),
    )


def _region_costs(
    clients: Clients, name: str | None
) -> tuple[list[ClusterCosts], tuple[EndedCluster, ...]]:
    """Return the costs of one region's clusters, and those that a limit ended. Raises AwsError."""
    if name is None:
        found = find_every_cluster(clients.ec2)
    else:
        found = {name: find_instances(clients.ec2, name)}
    costs = []
    for cluster, instances in found.items():
        if not instances:
            continue
        missing = missing_of(instances)
        money = spending_of(clients, instances)
        money = with_gone(money, cluster, find_gone(clients.ec2, cluster, missing, instances))
        region = str(clients.ec2.meta.region_name)
        costs.append(ClusterCosts(cluster, region, tuple(instances), money, len(missing)))
    return costs, ended_clusters(clients, name)


def _by_limit(
    places: Mapping[str, Clients],
    home: Path,
    name: str | None,
    shown: Mapping[str, str],
    there: Collection[str],
) -> dict[str, str]:
    """Return what is known of clusters that a limit has ended, by name.

    `shown` are those that EC2 shows. Others are known from the folders here.
    """
    found = dict(shown)
    for file in sorted(home.glob(f"{name or '*'}/end.json")):
        folder = ClusterFolder(file.parent)
        try:
            site = kept_site(folder)
        except ClusterctlError as error:
            found.setdefault(folder.name, f"it is not known where it was: {error.message}")
            continue
        if any(site == site_of(one) for one in places.values()):
            found.setdefault(folder.name, kept_end(folder, _now()))
    return {one: words for one, words in found.items() if words and one not in there}


def _ended(
    past: Sequence[PastCost], places: Mapping[str, Clients], name: str | None, since: datetime
) -> tuple[PastCost, ...]:
    """Return those of the recorded costs of these regions and this account since that time."""
    sites = [site_of(clients) for clients in places.values()]
    return tuple(
        entry
        for entry in past
        if parse_site(entry.account) in sites
        and entry.ended_at >= since
        and name in (None, entry.name)
    )


def record_removal_cost(
    home: Path,
    clients: Clients,
    name: str,
    instances: Sequence[Instance],
    notify: Callable[[str], None],
) -> None:
    """Record in `home` what these nodes have cost. To be called before they are terminated.

    `instances` are as EC2 last showed them. Those that already shut down are left out, since they
    cost nothing more. If the costs cannot be recorded, which later reports then lack, `notify` gets
    a warning, and nothing is raised.
    """
    going = [one for one in instances if one.node.state in (*AWAKE, *ASLEEP)]
    _record_cost(home, clients, name, lambda: (going, _now()), notify)


def record_lost_cost(
    home: Path,
    clients: Clients,
    name: str,
    missing: Collection[int],
    there: Sequence[Instance],
    notify: Callable[[str], None],
) -> None:
    """Record in `home` what the missing nodes cost that EC2 shows as terminated.

    A retired one that the record has is left out: the command that terminated it recorded it. To be
    called before others are launched in their place, since they are then no longer missing. `there`
    are the cluster's instances. Without any, the cluster that was launched from its folder counts,
    if the record lacks it. Failures are those of `record_removal_cost`.
    """
    folder = ClusterFolder(home / name)

    def find_lost() -> _Ended:
        recorded = {id for past in read_ended(home).rows for id in past.usd}
        if there:
            found = find_gone(clients.ec2, name, missing, there)
            hidden = [
                f"{name}-{index}" for index in wanted_of(there) if found.get(index, there) is None
            ]
            if hidden:
                notify(
                    f"warning: {fold_hosts(hidden)}: {NOT_SHOWN}. "
                    "`clusterctl costs --since` may lack what it cost"
                )
            # A retired one may have ended before the command that retired it recorded its cost.
            lost = [one for one in found.values() if one]
            lost = [one for one in lost if not one.retired or one.node.instance_id not in recorded]
            ended = end_of(name, lost, find_prices(clients, lost), _now())
            # When a budget ended them does not follow from the cost of a part of the nodes.
            by_time = ended and ended.spending.limits.budget_usd is None
            if ended and by_time and len(ended.instances) == len(lost):
                return ended.instances, ended.ended_at
            return lost, _now()
        shown = find_instances(clients.ec2, name, GONE)
        gone = [one for one in shown if one.node.instance_id not in recorded]
        ended = end_of(name, gone, find_prices(clients, gone), _now())
        if ended:
            return ended.instances, ended.ended_at
        return launched_here(folder, gone), _now()

    if missing if there else folder.launched or folder.end.exists():
        _record_cost(home, clients, name, find_lost, notify)


def _record_cost(
    home: Path,
    clients: Clients,
    name: str,
    find: Callable[[], _Ended],
    notify: Callable[[str], None],
) -> None:
    nodes = "lost nodes"
    try:
        going, now = find()
        if not going:
            return
        nodes = fold_hosts([one.node.name for one in going])
        prices = find_prices(clients, going)
        costs = {one.node.instance_id: node_cost(one, prices[price_key(one)], now) for one in going}
        append_ended(
            home,
            PastCost(
                account=str(site_of(clients, going)),
                name=name,
                region=str(clients.ec2.meta.region_name),
                instance_type="/".join(sorted({one.node.instance_type for one in going})),
                market="/".join(sorted({one.market.value for one in going})),
                since=min(first_launch(one) for one in going),
                ended_at=now,
                usd={key: round(cost.spent_usd, 4) for key, cost in costs.items()},
                complete=all(cost.complete for cost in costs.values()),
                at_most=any(cost.at_most for cost in costs.values()),
            ),
        )
    except (OSError, ClusterctlError) as error:
        why = error.message if isinstance(error, ClusterctlError) else error.strerror or error
        notify(
            f"warning: what {nodes} cost cannot be recorded in {home / FILE}: {why}. "
            "`clusterctl costs --since` will lack it"
        )


def _now() -> datetime:
    return datetime.now(timezone.utc)
