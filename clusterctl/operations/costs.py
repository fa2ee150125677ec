"""What clusters cost, and have cost: those that are there, and those that this machine removed.

EC2 forgets a terminated machine within the hour. What nodes had cost when this machine removed
them is kept in CLUSTERCTL_HOME/costs.jsonl, one JSON line a removal.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from clusterctl.domain.cluster import ASLEEP, AWAKE, NodeState
from clusterctl.domain.errors import AwsError, ClusterctlError
from clusterctl.ec2.instances import Instance, find_every_cluster, find_instances, members_of, tag
from clusterctl.ec2.money.costs import (
    RunningCost,
    Spending,
    first_launch,
    node_cost,
    price_key,
    spending,
)
from clusterctl.ec2.money.prices import find_prices
from clusterctl.ec2.tags import SPENT, Spent, spent_text
from clusterctl.operations.folder import ClusterFolder
from clusterctl.operations.local_state import check_account, parse_site, site_of
from clusterctl.transport.fanout import fan_out

if TYPE_CHECKING:
    from clusterctl.ec2.launch.plan import LaunchPlan
    from clusterctl.ec2.session import Clients


FILE = "costs.jsonl"


@dataclass(frozen=True)
class PastCost:
    """Nodes of one cluster that were removed together. `usd` has what each instance cost.

    Not `complete`: they cost more than is known. `account` is the site (see local_state.Site): the
    local EC2's clusters cost nothing that anybody pays.
    """

    account: str
    name: str
    region: str
    instance_type: str
    market: str
    since: datetime
    ended_at: datetime
    usd: Mapping[str, float]
    complete: bool = True

    @property
    def spent_usd(self) -> float:
        return sum(self.usd.values())


def append_ended(home: Path, ended: PastCost) -> None:
    """One more line. Raises OSError."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = json.dumps(
        {
            "account": ended.account,
            "name": ended.name,
            "region": ended.region,
            "type": ended.instance_type,
            "market": ended.market,
            "since": ended.since.isoformat(),
            "ended_at": ended.ended_at.isoformat(),
            "usd": {key: round(usd, 4) for key, usd in ended.usd.items()},
            "complete": ended.complete,
        }
    )
    # One write of one line: two commands at once do not mix theirs.
    file = os.open(home / FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, text.encode() + b"\n")
    finally:
        os.close(file)


def read_ended(home: Path, there: Collection[str] = ()) -> tuple[PastCost, ...]:
    """Return all that was noted, in that order; lines that make no sense are passed over.

    An instance that was noted twice, as when `down` was run again, counts as it was noted last;
    one that is `there` still has not ended.
    """
    try:
        lines = (home / FILE).read_bytes().splitlines()
    except OSError:
        return ()
    entries = [entry for line in lines if (entry := _read(line))]
    last = {key: position for position, entry in enumerate(entries) for key in entry.usd}
    kept = []
    for position, entry in enumerate(entries):
        usd = {
            key: value
            for key, value in entry.usd.items()
            if last[key] == position and key not in there
        }
        if usd:
            kept.append(PastCost(**{**vars(entry), "usd": usd}))
    return tuple(kept)


def _read(line: bytes) -> PastCost | None:
    try:
        found: Any = json.loads(line)
        return PastCost(
            account=_word(found["account"]),
            name=_word(found["name"]),
            region=_word(found["region"]),
            instance_type=_word(found["type"]),
            market=_word(found["market"]),
            since=_time(found["since"]),
            ended_at=_time(found["ended_at"]),
            usd={str(key): _usd(value) for key, value in found["usd"].items()},
            complete=found.get("complete") is True,
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _word(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[\w.,:/ -]*", value, re.ASCII):
        raise ValueError(f"not a word: {value!r}")
    return value


def _time(value: Any) -> datetime:
    read = datetime.fromisoformat(value)
    if read.tzinfo is None:
        raise ValueError("no time zone")
    return read


def _usd(value: Any) -> float:
    if isinstance(value, bool) or not 0 <= value < 1e9:
        raise ValueError(f"not dollars: {value!r}")
    return float(value)


@dataclass(frozen=True)
class ClusterCosts:
    """One cluster that is there, and its money. Nodes that are being replaced cost, too."""

    name: str
    region: str
    instances: tuple[Instance, ...]
    spending: Spending

    @property
    def types(self) -> str:
        """`p4d.24xlarge`."""
        return "/".join(sorted({one.node.instance_type for one in self.instances}))

    @property
    def markets(self) -> str:
        """`on-demand`, `on-demand/spot`."""
        return "/".join(sorted({one.market.value for one in self.instances}))

    @property
    def states(self) -> str:
        """`3 running, 1 stopped`."""
        counts = Counter(one.node.state.value for one in self.instances)
        return ", ".join(f"{count} {state}" for state, count in counts.most_common())


@dataclass(frozen=True)
class CostReport:
    """What costs now, what has ended since the day asked for, and the regions nobody could see."""

    clusters: tuple[ClusterCosts, ...]
    ended: tuple[PastCost, ...] = ()
    unseen: tuple[tuple[str, ClusterctlError], ...] = ()

    @property
    def usd_per_hour(self) -> float:
        """Of what is known."""
        return sum(one.spending.usd_per_hour or 0.0 for one in self.clusters)

    @property
    def spent_usd(self) -> float:
        """Of what is known."""
        there = sum(one.spending.spent_usd for one in self.clusters)
        return there + sum(one.spent_usd for one in self.ended)

    @property
    def hourly_known(self) -> bool:
        """Whether `usd_per_hour` is all of it."""
        return not self.unseen and all(
            one.spending.usd_per_hour is not None for one in self.clusters
        )

    @property
    def complete(self) -> bool:
        """Whether `spent_usd` is all of it."""
        there = all(one.spending.complete for one in self.clusters)
        return there and not self.unseen and all(one.complete for one in self.ended)


@dataclass(frozen=True)
class Region:
    """A region to look in, as a host of fan_out."""

    host: str  # A region, under the name that fan_out knows.
    clients: Clients


def price_cache(home: Path) -> Path:
    """Return the file that keeps prices between two commands."""
    return home / "prices.json"


def spending_of(
    clients: Clients,
    instances: Sequence[Instance],
    cache: Path | None,
    used_h: Mapping[str, float] = MappingProxyType({}),
) -> Spending:
    """A cluster's money; `instances` are all of it. Raises nothing of AWS's."""
    return spending(instances, find_prices(clients, instances, cache), _now(), used_h)


def running_cost(clients: Clients, plan: LaunchPlan, cache: Path | None) -> RunningCost:
    """What the plan's whole cluster costs once it runs. Raises nothing of AWS's."""
    nodes = len(plan.wanted)
    if plan.estimate and plan.seen.catalogue:
        gpus = plan.seen.catalogue.machines[plan.places[0].instance_type].gpus
        return RunningCost(
            nodes, nodes * gpus, plan.estimate.hourly_usd, plan.estimate.price_source
        )
    members = members_of(plan.seen.instances)
    awake = [replace(one, node=replace(one.node, state=NodeState.RUNNING)) for one in members]
    money = spending_of(clients, awake, cache)
    gpus = sum(one.node.gpus for one in awake)
    return RunningCost(nodes, gpus, money.usd_per_hour, money.price_source)


def note_spent(
    clients: Clients,
    instances: Sequence[Instance],
    cache: Path | None,
    used_h: Mapping[str, float] = MappingProxyType({}),
) -> None:
    """Write into their tags what these nodes have cost up to now: before EC2 forgets their runs.

    It can be repeated, and be cut off anywhere. Never fails: what is not noted is missed later,
    and the sum is said to be the least.
    """
    now = _now().replace(microsecond=0)
    ids: dict[str, list[str]] = {}
    with suppress(AwsError):
        prices = find_prices(clients, instances, cache)
        for one in instances:
            id = one.node.instance_id
            cost = node_cost(one, prices[price_key(one)], now, used_h.get(id))
            spent = Spent(cost.spent_usd, cost.ran_h, now, at_least=not cost.complete)
            ids.setdefault(spent_text(spent), []).append(id)
        for text, noted in ids.items():
            tag(clients.ec2, noted, {SPENT: text})


def cost_report(
    places: Mapping[str, Clients],
    home: Path,
    name: str | None = None,
    since: datetime | None = None,
) -> CostReport:
    """Look in these regions. A region that refuses is named, and keeps nobody from the others.

    Raises AwsError where there is only one and it refuses, UsageError where the folder of cluster
    `name` says that it is in another account.
    """
    if name is not None:
        for clients in list(places.values())[:1]:
            check_account(ClusterFolder(home / name), clients)
    looks = fan_out(
        lambda place: _look(place.clients, home, name),
        [Region(region, places[region]) for region in places],
    ).outcomes
    if len(looks) == 1 and looks[0].error:
        raise looks[0].error
    clusters = tuple(cluster for look in looks for cluster in look.value or ())
    # A removal that was cut off has noted nodes that are still there.
    there = {one.node.instance_id for cluster in clusters for one in cluster.instances}
    return CostReport(
        clusters=clusters,
        ended=_ended(home, places, name, since, there) if since else (),
        unseen=tuple((look.host, look.error) for look in looks if look.error),
    )


def _look(clients: Clients, home: Path, name: str | None) -> list[ClusterCosts]:
    if name is None:
        found = find_every_cluster(clients.ec2)
    else:
        found = {name: find_instances(clients.ec2, name)}
    return [
        ClusterCosts(
            cluster_name,
            str(clients.ec2.meta.region_name),
            tuple(instances),
            spending_of(clients, instances, price_cache(home)),
        )
        for cluster_name, instances in found.items()
        if instances
    ]


def _ended(
    home: Path,
    places: Mapping[str, Clients],
    name: str | None,
    since: datetime,
    there: Collection[str],
) -> tuple[PastCost, ...]:
    sites = [site_of(clients) for clients in places.values()]
    return tuple(
        entry
        for entry in read_ended(home, there)
        if any(parse_site(entry.account).may_be(site) for site in sites)
        and entry.ended_at >= since
        and name in (None, entry.name)
    )


def note_end(home: Path, clients: Clients, name: str, instances: Sequence[Instance]) -> None:
    """Remember what these nodes have cost: to be called before they are terminated.

    `instances` as EC2 showed them while they were there; those that are gone already cost
    nothing more and are not noted. Never fails: what was not noted is only not in the report.
    """
    going = [one for one in instances if one.node.state in (*AWAKE, *ASLEEP)]
    if not going:
        return
    now = _now()
    with suppress(OSError, AwsError):
        prices = find_prices(clients, going, price_cache(home))
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
                usd={key: cost.spent_usd for key, cost in costs.items()},
                complete=all(cost.complete for cost in costs.values()),
            ),
        )


def _now() -> datetime:
    return datetime.now(timezone.utc)
