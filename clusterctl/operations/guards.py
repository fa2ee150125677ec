"""The guards on the nodes: told by the user data first, and again when the cluster changes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from clusterctl.bootstrap.guard import (
    first_settings,
    guard_update_script,
    joined_settings,
    parse_used_h,
    used_command,
    with_guard,
)
from clusterctl.bootstrap.trust import NodeIdentity
from clusterctl.domain.cluster import Cluster, Market
from clusterctl.domain.errors import CommandFailed
from clusterctl.domain.findings import Finding, Severity
from clusterctl.domain.results import CommandResult, FanoutResult
from clusterctl.ec2.instances import (
    Instance,
    find_instances,
    find_user_data,
    set_at_power_off,
    standing,
)
from clusterctl.ec2.launch.observe import Observed
from clusterctl.node.guard.settings import GuardSettings, Worker, parse_settings
from clusterctl.operations.access import Access
from clusterctl.operations.costs import note_spent, spending_of
from clusterctl.operations.launcher import Launcher, check_all
from clusterctl.transport.connections import Connections
from clusterctl.transport.fanout import fan_out
from clusterctl.transport.target import Target

if TYPE_CHECKING:
    from clusterctl.ec2.session import Clients

TIMEOUT_S = 60.0
SETTINGS_COMMAND = "sudo -n cat /var/lib/clusterctl/guard.json 2>/dev/null || :"
# Between a new end and the nodes' switching off EC2 has to hear what that means.
LEAST_LEFT_S = 120.0


def with_user_data(clients: Clients, seen: Observed) -> Observed:
    """Settle all of the user data that new nodes get, too: the user's own, and the guard's.

    Nodes that join a cluster get what its head node got. Raises AwsError.
    """
    spec = seen.spec
    if seen.catalogue is None:
        return seen
    there = standing(seen.instances)
    if there and not spec.user_data:
        data = find_user_data(clients.ec2, there[0].node.instance_id)
    else:
        prices = [price.usd_per_hour for price in seen.catalogue.prices.values() if price]
        # Which type it will be is not known yet: the dearest ends the budget first. `up` corrects.
        hourly = spec.nodes * max(prices) if prices else None
        spot = spec.market is Market.SPOT
        off = "" if spot else spec.limits.at_power_off
        settings = first_settings(spec.name, spec.limits, hourly, spot, off)
        data = with_guard(spec.user_data, settings)
    return replace(seen, spec=replace(spec, user_data=data))


def update_guards(
    launcher: Launcher,
    cluster: Cluster,
    connections: Connections,
    targets: Sequence[Target],
    members: Sequence[NodeIdentity],
    away: Sequence[Target] = (),
) -> None:
    """Tell every node when to end, and the head node whom to look after; and EC2 what a power-off
    means. `members`: head first. `away`: nodes in quarantine, which cost as others do. One that
    cannot be told is a finding.

    Raises AwsError, and ClusterctlError naming the other nodes that could not be told.
    """
    instances = find_instances(launcher.clients.ec2, cluster.name)
    spending = spending_of(launcher.clients, instances, launcher.prices)
    spot = any(found.market is Market.SPOT for found in instances)
    if not spending.complete:
        used_h = _used_h(instances, connections, targets)
        known = [one for one in instances if one.node.instance_id in used_h]
        note_spent(launcher.clients, known, launcher.prices, used_h)
        spending = spending_of(launcher.clients, instances, launcher.prices, used_h)
        for finding in spending.findings:
            if finding.check_id == "cost.incomplete" and spending.limits.ends:
                launcher.progress.finding(replace(finding, severity=Severity.WARNING))
    left_s = None if spending.ends_in_h is None else spending.ends_in_h * 3600
    ends_at = None if left_s is None else time.time() + max(left_s, LEAST_LEFT_S)
    first = first_settings(
        cluster.name,
        # The end is known to the second here; what idles is for the guards to see.
        replace(spending.limits, max_hours=None, budget_usd=None),
        spot=spot,
        at_power_off="" if spot else spending.limits.at_power_off,
    )
    settings = {
        target.host: joined_settings(first, index, cluster.ssh_user, members, ends_at)
        for index, target in enumerate(targets)
    }
    # The head node does not ask them whether they idle: each judges for itself.
    alone = joined_settings(first, None, cluster.ssh_user, members, ends_at)
    settings |= {target.host: alone for target in away}

    def one(target: Target) -> CommandResult:
        return _tell(connections, target, settings[target.host])

    def tell_guards() -> None:
        told = fan_out(one, (*targets, *away)).outcomes
        check_all(cluster, FanoutResult(told[: len(targets)]))
        for failure in told[len(targets) :]:
            if failure.error and spending.limits.ends:
                index = failure.host.rpartition("-")[2]
                launcher.progress.finding(
                    Finding(
                        "cost.untold",
                        Severity.WARNING,
                        "in quarantine, it could not be told when to end (what it was told before, "
                        f"if anything, holds): {failure.error.message}",
                        failure.host,
                        f"when it answers: clusterctl up {cluster.name}; or: clusterctl remove "
                        f"{cluster.name} {index}",
                    )
                )

    ids = [found.node.instance_id for found in instances]
    change_limits(
        "" if spot else spending.limits.at_power_off,
        set_behavior=lambda behavior: set_at_power_off(launcher.clients.ec2, ids, behavior),
        tell_guards=tell_guards,
    )


def regroup(access: Access, indices: Sequence[int]) -> FanoutResult[bool]:
    """After these nodes went into quarantine, or came back: have the head node's guard ask those in
    service only whether they idle, and theirs judge for themselves. True: it ends for idleness.

    One that does not answer is a failure; none is asked where idleness ends nothing.
    """
    service = access.cluster.in_service
    workers = tuple(Worker(node.name, node.private_ip) for node in service[1:])
    own = {node.name: node.index for node in service}

    def one(target: Target) -> bool:
        said = access.connections.run(target, SETTINGS_COMMAND, timeout_s=TIMEOUT_S).stdout
        settings = parse_settings(said) if said.strip() else None
        if settings is None or settings.idle_s is None:
            return False
        is_head = target.host == access.head.host
        index = 0 if is_head else own.get(target.host)
        new = replace(settings, index=index, workers=workers if is_head else ())
        if new != settings:
            _tell(access.connections, target, new)
        return True

    head = fan_out(one, (access.head,))
    if not any(head.values):
        return head
    return FanoutResult((*head.outcomes, *fan_out(one, access.select(indices)).outcomes))


def _tell(connections: Connections, target: Target, settings: GuardSettings) -> CommandResult:
    """Give a guard its settings. Raises CommandFailed, HostError."""
    script = guard_update_script(settings).encode()
    result = connections.run(target, "sh -s", timeout_s=TIMEOUT_S, stdin=script)
    if not result.ok or not result.stdout.endswith("complete\n"):
        reason = result.stderr.strip() or f"exit status {result.exit_status}"
        raise CommandFailed(
            target.host,
            f"its guard could not be set: {reason}",
            "limits are kept by the nodes: give the login user `sudo -n`, or no limits",
        )
    return result


def _used_h(
    instances: Sequence[Instance], connections: Connections, targets: Sequence[Target]
) -> dict[str, float]:
    """For how long these have run in all, by instance, as far as their guards know it."""
    made = {one.node.name: one for one in instances if not one.retired and one.made_at}

    def one(target: Target) -> float | None:
        found = made.get(target.host)
        if found is None or found.made_at is None:
            return None
        said = connections.run(target, used_command(), timeout_s=TIMEOUT_S).stdout
        return parse_used_h(said, found.made_at.timestamp())

    outcomes = fan_out(one, targets).outcomes
    return {made[one.host].node.instance_id: one.value for one in outcomes if one.value is not None}


def change_limits(
    at_power_off: str, set_behavior: Callable[[str], None], tell_guards: Callable[[], None]
) -> None:
    """Both, in an order in which no moment between them costs anybody a disk.

    A guard that may stop for idleness is told so only where a power-off is a stop already, and a
    power-off becomes an end only when no guard stops for idleness any more. A spot node is always
    terminated: there is nothing to set.
    """
    if at_power_off == "stop":
        set_behavior("stop")
    tell_guards()
    if at_power_off == "terminate":
        set_behavior("terminate")
