"""Clusters that a limit has ended: as long as EC2 shows their nodes, and afterwards.

EC2 shows a terminated instance for about an hour, but not when it switched itself off. That time
follows from the limit, by the calculation that gave the nodes their end. Later only
the folder of the machine that launched the cluster has it.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.domain.cluster import NodeState
from clusterctl.domain.errors import AwsError, ClusterctlError, NoSuchCluster, no_such_cluster
from clusterctl.domain.files import ClusterFolder
from clusterctl.domain.ranges import fold_hosts, grouped
from clusterctl.ec2.health import BY_CODE, BY_ITSELF, BY_USER, GONE, NOT_KNOWN, why_gone
from clusterctl.ec2.instances import (
    Instance,
    find_every_cluster,
    find_instances,
    first_launch,
    members_of,
)
from clusterctl.ec2.money.costs import Spending, format_spent, spending
from clusterctl.ec2.money.prices import Prices, find_prices
from clusterctl.ec2.resources import CREATED_BY, find_resources
from clusterctl.ec2.tags import limit_text, parse_limits
from clusterctl.operations.local_state import kept_end, may_be_launching, why_locked
from clusterctl.operations.site import kept_site, site_of

if TYPE_CHECKING:
    from clusterctl.ec2.session import Clients

# A guard checks once a minute, and a machine takes time to switch itself off and to be shown so.
EARLY_S = 300.0
# By how much this machine's clock may be ahead of EC2's.
SKEW_S = 60.0


@dataclass(frozen=True)
class EndedCluster:
    """A cluster that switched itself off at a limit. `by` is the limit: `--budget 5`.

    `spending` is that at its end, `instances` are its last nodes.
    """

    name: str
    instances: tuple[Instance, ...]
    ended_at: datetime
    by: str
    spending: Spending

    def __str__(self) -> str:
        money = self.spending
        spent = format_spent(money.spent_usd, money.complete, money.at_most)
        return f"ended {self.ended_at:%Y-%m-%d %H:%M} UTC by {self.by}: {spent}"


def end_of(
    name: str, gone: Sequence[Instance], prices: Prices, now: datetime
) -> EndedCluster | None:
    """Return how a cluster ended, of which EC2 shows these terminated nodes; None if it is another
    reason than a limit, or not known.

    Pure.
    """
    nodes = [one for one in _last_nodes(gone) if one.state_reason.startswith(BY_ITSELF)]
    if not nodes or not parse_limits(min(nodes, key=lambda one: one.node.index).limits_text).ends:
        return None
    # At the start of the last run, or when its cost was recorded since, the end was still to come.
    counted = [one.spent.until for one in nodes if one.spent]
    began = max([one.node.launched_at for one in nodes] + counted)
    ran = tuple(map(_as_it_ran, nodes))
    planned = spending(ran, prices, began)
    # Nodes that may have had earlier limits have ended by those, or by these.
    if planned.ends_in_h is None or any(one.earlier_limits for one in nodes):
        return None
    end = began + timedelta(hours=planned.ends_in_h)
    # What was launched later is of another cluster of that name, which has ended otherwise.
    if end > now + timedelta(seconds=EARLY_S) or any(one.node.launched_at > end for one in gone):
        return None
    end = min(end, now)
    by = limit_text(planned.limits, planned.ended_by)
    return EndedCluster(name, ran, end, by, spending(ran, prices, end))


def _last_nodes(gone: Sequence[Instance]) -> tuple[Instance, ...]:
    """Return the last instance of each node, by index, of the last cluster of that name.

    An earlier one may have had more nodes, which EC2 still shows.
    """
    last = {one.node.index: one for one in sorted(gone, key=lambda one: one.node.launched_at)}
    return members_of([last[index] for index in sorted(last)])


def _as_it_ran(instance: Instance) -> Instance:
    """Return a terminated instance as EC2 showed it while it ran.

    EC2 forgets its address and its network interface, which had the time of the first launch.
    """
    has_address = not (instance.private or instance.several_interfaces)
    address = instance.node.public_ip or ("forgotten" if has_address else None)
    node = replace(instance.node, state=NodeState.RUNNING, public_ip=address)
    first = instance.first_launched_at or instance.node.launched_at
    return replace(instance, node=node, first_launched_at=first)


def ended_clusters(clients: Clients, name: str | None = None) -> tuple[EndedCluster, ...]:
    """Return the clusters of this region, or cluster `name`, that EC2 shows ended by a limit.

    Clusters that have other instances are left out. Raises AwsError.
    """
    if name is None:
        found = find_every_cluster(clients.ec2, GONE)
    else:
        found = {name: find_instances(clients.ec2, name, GONE)}
    now = datetime.now(timezone.utc)
    ends = []
    for cluster, gone in found.items():
        if any(one.state_reason.startswith(BY_ITSELF) for one in gone):
            ends.append(end_of(cluster, gone, find_prices(clients, gone), now))
    return tuple(end for end in ends if end)


def gone_words(clients: Clients, folder: ClusterFolder) -> str:
    """Return how the folder's cluster, of which nothing runs, has ended; empty if not known."""
    by_limit = kept_end(folder, datetime.now(timezone.utc))
    with suppress(AwsError):
        for ended in ended_clusters(clients, folder.name):
            return str(ended)
        return by_limit or _taken_words(clients, folder)
    return by_limit


def _taken_words(clients: Clients, folder: ClusterFolder) -> str:
    """Return which of the folder's last nodes are gone, and why; empty for none. Raises AwsError.

    A request to EC2's API is told only of nodes that `launched_here` returns: others look so after
    a `down`.
    """
    gone = _last_nodes(find_instances(clients.ec2, folder.name, GONE))
    own = launched_here(folder, gone)
    reasons = ((why_gone(one).by or NOT_KNOWN, one) for one in gone)
    names = grouped(
        (why, one.node.name) for why, one in reasons if one in own or why != BY_CODE[BY_USER]
    )
    return "; ".join(f"{fold_hosts(nodes)} gone: {why}" for why, nodes in names.items())


def launched_here(folder: ClusterFolder, gone: Sequence[Instance]) -> tuple[Instance, ...]:
    """Return the last of these terminated nodes that the folder's cluster may have had, of which no
    `down` has run: those launched since the folder's key was made, by clocks that may differ."""
    with suppress(OSError):
        since = folder.key.stat().st_mtime - SKEW_S
        last = _last_nodes(gone) if folder.launched else ()
        return tuple(one for one in last if first_launch(one).timestamp() >= since)
    return ()


def no_cluster(
    clients: Clients, folder: ClusterFolder, regions: str = "", hint: str = ""
) -> NoSuchCluster:
    """Return the error for a folder's cluster that has no instance, with how it ended, or what a
    launch from here may still make or have left.

    `regions` are those that were read if they are not the one of `clients`. `hint` is for a
    cluster of which nothing is known to be left.
    """
    name, region = folder.name, clients.ec2.meta.region_name
    missing = no_such_cluster(name, regions or region)
    message, hint = missing.message, f"{did_you_mean(folder)}{hint or missing.hint}"
    if may_be_left(clients, folder):
        hint = "it was launched from here; what is left of it may cost: "
        hint += f"clusterctl down {name} --region {region}"
        if may_be_launching(folder):
            message = (
                f"EC2 shows no instance of {name} in {region}; what came of a launch from here is "
                "not known yet"
            )
    words = gone_words(clients, folder)
    return NoSuchCluster(f"{message}: {words}" if words else message, hint)


def may_be_left(clients: Clients, folder: ClusterFolder) -> bool:
    """Return whether something of the folder's cluster may be left in this region and account: `up`
    made something, and no `down` has found that nothing is left."""
    with suppress(ClusterctlError):  # where it is, or who these clients are, is not known
        made = folder.launched or folder.creations.exists()
        return made and kept_site(folder) == site_of(clients)
    return False


@dataclass(frozen=True)
class LeftBehind:
    """A cluster that was launched from here and has no instance, of which something may be left.

    `message` has why its nodes are gone, if that is known; `hint` is what removes the rest, or
    records its cost.
    """

    name: str
    region: str
    message: str
    hint: str


def left_behind(
    clients: Clients, home: Path, there: Collection[str], only: str | None = None
) -> Iterator[LeftBehind]:
    """Yield the clusters launched from here in this region and account of which EC2 shows what is
    left, or nodes that are gone, or `only` one, but for those `there` and those that a command is
    at work on."""
    for file in sorted(home.glob(f"{only or '*'}/account")):
        folder = ClusterFolder(file.parent)
        name, region = folder.name, clients.ec2.meta.region_name
        busy = name in there or why_locked(folder.path / "lock")
        if not busy and may_be_left(clients, folder):
            why, has_more = "", True
            with suppress(AwsError):
                why = _taken_words(clients, folder)
                made = (find_resources(clients.ec2, name, kind) for kind in CREATED_BY)
                has_more = may_be_launching(folder) or any(made)
            if not (why or has_more):
                continue
            message = f"{name} has no instance in {region}" + (f" ({why})" if why else "")
            down = f"clusterctl down {name} --region {region}"
            if has_more:
                message += "; what is left of it may cost"
            hint = f"remove it: {down}" if has_more else f"{down} records what it has cost"
            yield LeftBehind(name, region, message, hint)


def did_you_mean(folder: ClusterFolder) -> str:
    """Return `did you mean demo? ` if this machine has a cluster of a name like the folder's."""
    home = folder.home
    here = [one.parent.name for one in home.glob("*/account")] if home.is_dir() else []
    near = difflib.get_close_matches(folder.name, set(here) - {folder.name}, 1)
    return f"did you mean {near[0]}? " if near else ""
