"""`clusterctl status`, `list` and `hosts`: what exists, what it costs, and when it ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Optional

import click

from clusterctl.cli import output
from clusterctl.cli.app_context import AppContext, account_options, cluster_command
from clusterctl.cli.hostlines import show_failures
from clusterctl.cli.params import json_option
from clusterctl.domain.cluster import Cluster, Limits, Node, NodeState
from clusterctl.domain.errors import MissingTool
from clusterctl.domain.findings import Finding
from clusterctl.domain.ranges import fold_hosts, format_indices
from clusterctl.domain.results import HostOutcome
from clusterctl.domain.units import count, format_duration
from clusterctl.ec2.health import WhyGone, why_gone
from clusterctl.ec2.money.costs import EARLIER, Spending, format_spent, format_usd
from clusterctl.ec2.tags import Unfinished, limit_text
from clusterctl.operations.status import ClusterStatus, describe_state

HEADERS = ("NODE", "STATE", "TYPE", "GPUS", "ADDRESS", "ZONE")
# By node: why SSH did not reach it, "" if it did. Nodes that were not tried are left out.
Reached = Mapping[str, str]


def print_nodes(cluster: Cluster, reached: Reached | None = None) -> None:
    """Print a table of the nodes: state, type, GPUs, address, zone, and whether SSH reaches
    them."""
    rows = [
        (node.name, node.shown_state, node.instance_type, node.gpus, node.address or "-", node.zone)
        for node in cluster.nodes
    ]
    if reached is None:
        output.table(HEADERS, rows)
        return
    shown = {None: "-", True: "yes", False: "no"}
    ssh = [shown[_is_reached(node, reached)] for node in cluster.nodes]
    output.table((*HEADERS, "SSH"), [(*row, word) for row, word in zip(rows, ssh)])


@dataclass(frozen=True)
class ReachedNode(Node):
    """A node, and whether SSH reaches it; null if it runs and was not tried. `unreachable_because`
    is the error, or the state of a machine that does not run, with the time and EC2's reason."""

    reachable: Optional[bool] = None
    unreachable_because: str = ""


@dataclass(frozen=True)
class GoneNode(WhyGone):
    """A node that is missing, its last instance, and why it is gone."""

    index: int = 0
    name: str = ""
    instance_id: str = ""


@dataclass(frozen=True)
class Status:
    """What `status` reports. `leaving` are the instances of nodes that are replaced or removed."""

    name: str
    region: str
    ssh_user: str
    nodes: tuple[ReachedNode, ...]
    state: str
    missing: tuple[int, ...]
    gone: tuple[GoneNode, ...]
    leaving: tuple[str, ...]
    unfinished: Unfinished
    instance_profiles: Mapping[str, str]
    findings: Sequence[Finding]
    costs: Spending


def _status(
    found: ClusterStatus, reached: Reached, health: Sequence[Finding], money: Spending
) -> Status:
    cluster = found.cluster
    off = {
        one.node.instance_id: describe_state(one)
        for one in found.instances
        if one.node.state is not NodeState.RUNNING
    }
    nodes = (
        ReachedNode(
            **vars(node),
            reachable=_is_reached(node, reached),
            unreachable_because=reached.get(node.name) or off.get(node.instance_id, ""),
        )
        for node in cluster.nodes
    )
    gone = (
        GoneNode(
            **vars(why_gone(instance)),
            index=index,
            name=f"{cluster.name}-{index}",
            instance_id=instance.node.instance_id if instance else "",
        )
        for index, instance in found.gone.items()
    )
    return Status(
        *(cluster.name, cluster.region, cluster.ssh_user, tuple(nodes), found.summary),
        *(cluster.missing, tuple(gone), tuple(node.instance_id for node in found.leaving)),
        *(found.unfinished, {one.node.name: one.instance_profile for one in found.instances}),
        *(health, money),
    )


def _is_reached(node: Node, reached: Reached) -> bool | None:
    """Return whether SSH reaches the node; None if it runs and was not tried."""
    if node.state is not NodeState.RUNNING:
        return False
    return not reached[node.name] if node.name in reached else None


def with_counts(cluster: Cluster, gpus: Sequence[int]) -> Cluster:
    """Return the cluster with the GPUs counted on its nodes in service in place of the types'."""
    counted = dict(zip((node.index for node in cluster.in_service), gpus))
    nodes = (replace(node, gpus=counted.get(node.index, node.gpus)) for node in cluster.nodes)
    return replace(cluster, nodes=tuple(nodes))


# `status` of a broken cluster takes this long each time: less than the 10 s of `run`.
LOGIN_WITHIN_S = 4.0


def print_spending(money: Spending) -> None:
    """Print the cost an hour and so far; then the limits, and which ends the cluster when."""
    source = f" ({money.price_source})" if money.price_source else ""
    hourly = "unknown" if money.hourly_usd is None else format_usd(money.hourly_usd)
    output.line(f"costs: {hourly} an hour, {spent_words(money)} so far{source}")
    limits = limits_words(money.limits)
    if limits:
        output.line(f"limits: {limits}{_end(money)}")


def spent_words(money: Spending) -> str:
    """Return `$40.32`, `at least $40.32` or `at most $40.32`."""
    return format_spent(money.spent_usd, money.complete, money.at_most)


def limits_words(limits: Limits) -> str:
    """Return `8 h, $100.00, $90.00 an hour, stops after 30 min idle, goes after 3 d stopped`."""
    words = {
        "max_hours": lambda value: _length(value, "h", 3600),
        "budget_usd": format_usd,
        "max_hourly_usd": lambda value: f"{format_usd(value)} an hour",
        "idle_minutes": lambda value: f"stops after {_length(value, 'min', 60)} idle",
        "idle_erases_store": lambda _: "which erases instance stores",
        "stopped_days": lambda value: f"goes after {_length(value, 'd', 86400)} stopped",
    }
    values = {name: getattr(limits, name) for name in words}
    return ", ".join(words[name](value) for name, value in values.items() if value)


def _length(value: float, unit: str, unit_s: float) -> str:
    """Return `3 d`; a value that is not whole in smaller units: `1 min 26 s`."""
    return f"{value:.0f} {unit}" if value == int(value) else format_duration(value * unit_s)


def _end(money: Spending) -> str:
    if any(one.check == EARLIER for one in money.findings):
        return "; not yet on every node"
    if money.ends_in_h is None:
        return ""
    if not money.ends_in_h:
        return f"; its end by {money.ended_by} has come"
    return f"; ends in {format_duration(money.ends_in_h * 3600)} by {money.ended_by}"


def end_words(money: Spending, now: datetime, kept: bool, block_ends_at: datetime | None) -> str:
    """Return when and why a running cluster ends, whose nodes were just notified; empty for never.

    `kept`: the nodes are stopped and not terminated. `block_ends_at` is the end of their Capacity
    Block.
    """
    effect = "the nodes are terminated, with their disks"
    if kept:
        effect = "the nodes are stopped; their disks are kept, and cost"
    ends = []
    if money.ends_in_h is not None:
        ends_at = now + timedelta(hours=money.ends_in_h)
        ends.append((ends_at, limit_text(money.limits, money.ended_by), effect))
    if block_ends_at:
        terminated = "EC2 terminates the nodes"
        ends.append((block_ends_at, "the end of its Capacity Block", terminated))
    words = []
    if ends:
        at, by, what = min(ends)
        left_s = max(0.0, (at - now).total_seconds())
        words.append(f"{at:%Y-%m-%d %H:%M} UTC, in {format_duration(left_s)}, by {by}: {what}")
    if money.limits.idle_minutes:
        idle = _length(money.limits.idle_minutes, "min", 60)
        before = "before that, " if ends else ""
        words.append(f"{before}the nodes are stopped when they have been idle for {idle}")
    return "; ".join(words)


@cluster_command()
@json_option("ClusterStatus")
def status(app: AppContext, name: str, as_json: bool) -> None:
    """Show the nodes of cluster NAME, as EC2 sees them, whether SSH reaches them, and what they
    cost. Why a node is not reached, and what helps, is below the table.

    \b
    clusterctl status demo
    clusterctl status demo --json
    """
    from clusterctl.ec2.health import health_findings
    from clusterctl.operations.costs import spending_of, with_gone

    found = app.status(name)
    health = (*found.duplicates, *health_findings(app.clients.ec2, found.instances))
    outcomes, silent = _log_in(app, found)
    health = (*health, *silent)
    reached = {one.host: one.error.message if one.error else "" for one in outcomes}
    money = spending_of(app.clients, found.instances)
    money = with_gone(money, name, found.gone)
    if as_json:
        output.data(_status(found, reached, health, money))
        return
    print_nodes(found.cluster, reached=reached)
    show_failures(outcomes)
    output.line()
    print_spending(money)
    output.findings((*health, *money.findings))
    for node in found.cluster.nodes:
        if node.quarantined:
            since, _, reason = node.quarantined.partition(" ")
            output.note(
                f"{node.name} is in quarantine since {since}{': ' if reason else ''}{reason}; "
                f"`clusterctl release {name} {node.index}` returns it to service, "
                f"`clusterctl replace {name} {node.index}` replaces the machine"
            )
    off: dict[str, list[str]] = {}
    for one in found.instances:
        if one.node.state is NodeState.STOPPED and not one.retired:
            off.setdefault(describe_state(one), []).append(one.node.name)
    for why, names in off.items():
        output.note(f"{fold_hosts(names)}: {why}; `clusterctl start {name}` starts the cluster")
    # `up` is refused while a node has several machines.
    finishes = "" if found.duplicates else "; `clusterctl up` finishes that"
    for node in found.leaving:
        output.note(
            f"{node.name} ({node.instance_id}, {node.state.value}) is being replaced or removed"
            + finishes
        )
    if found.unfinished:
        output.note(f"requested and not finished: {found.unfinished.described(name)}{finishes}")
    if found.cluster.missing and not found.duplicates:
        indices = format_indices(found.cluster.missing)
        output.note(
            f"missing: {count(len(found.cluster.missing), 'node')} ({indices}); "
            "`clusterctl up` launches what is missing"
        )


def _log_in(
    app: AppContext, found: ClusterStatus
) -> tuple[tuple[HostOutcome[Any], ...], list[Finding]]:
    """Return each node's login, and the guards that are not at work; empty if no node runs, or if
    the key is not on this machine."""
    from clusterctl.operations.access import log_in_everywhere
    from clusterctl.operations.guards import silent_guards

    if all(node.state is not NodeState.RUNNING for node in found.cluster.nodes):
        return (), []
    try:
        with app.access(found.cluster) as access:
            outcomes = log_in_everywhere(access, LOGIN_WITHIN_S).outcomes
            reached = {one.host for one in outcomes if not one.error}
            targets = [one for one in access.all_targets if one.host in reached]
            return outcomes, silent_guards(access.connections, targets, found.instances)
    except MissingTool as missing:
        output.note(f"no login was tried: {missing.message}")
        return (), []


@click.command("list")
@json_option("Clusters")
@account_options
def list_(app: AppContext, as_json: bool) -> None:
    """List the clusters in this region, whoever launched them.

    \b
    clusterctl list
    clusterctl list --region us-west-2 --json
    """
    from clusterctl.ec2.instances import as_cluster, find_every_cluster, first_launch
    from clusterctl.operations.ended import left_behind
    from clusterctl.operations.status import states

    found = find_every_cluster(app.ec2)
    clusters = [as_cluster(app.ec2, name, found[name]) for name in found]
    if as_json:
        output.data(clusters)
    elif not clusters:
        output.note(f"no clusters in {app.ec2.meta.region_name}")
    else:
        rows = [
            (
                cluster.name,
                states(cluster.nodes, len(cluster.missing)),
                "/".join(sorted({node.instance_type for node in cluster.nodes})),
                cluster.gpus,
                min(map(first_launch, found[cluster.name])).strftime("%Y-%m-%d %H:%M %Z"),
            )
            for cluster in clusters
        ]
        output.table(("CLUSTER", "NODES", "TYPE", "GPUS", "LAUNCHED"), rows)
    for left in left_behind(app.clients, app.settings.home, found):
        output.note(f"warning: {left.message}", left.hint)


@cluster_command()
@click.option(
    "--format",
    "style",
    type=click.Choice(["openmpi", "mpich", "addresses", "names"]),
    default="openmpi",
    help="`ADDRESS slots=N`, MPICH's `ADDRESS:N`, or nothing but addresses (pdsh, pssh) or names.",
)
@json_option("HostsFile")
def hosts(app: AppContext, name: str, style: str, as_json: bool) -> None:
    """Print the hosts file of cluster NAME, for mpirun, runclust and copyclust.

    Private addresses, the head node first; slots are GPUs, and 1 on a node without.

    \b
    clusterctl hosts demo > hosts
    clusterctl hosts demo --format mpich > hosts
    """
    from clusterctl.domain.hostsfile import parse_hosts_file
    from clusterctl.operations.local_state import hosts_text

    cluster = app.status(name).cluster
    text = hosts_text(cluster)
    if style == "openmpi" and not as_json:
        output.line(text.rstrip("\n"))
        return
    entries = parse_hosts_file(text).entries
    if as_json:
        output.data(entries)
        return
    for entry, node in zip(entries, cluster.in_service):
        mpich = f"{entry.host}:{entry.slots}"
        output.line({"mpich": mpich, "addresses": entry.host, "names": node.name}[style])
