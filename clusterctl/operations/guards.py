"""The guards on the nodes: told by the user data first, and again when the cluster changes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from clusterctl.bootstrap.guard.config import first_settings, joined_settings
from clusterctl.bootstrap.guard.install import guard_update_script
from clusterctl.bootstrap.guard.userdata import with_guard
from clusterctl.bootstrap.trust import Member
from clusterctl.domain.cluster import Cluster
from clusterctl.domain.errors import CommandFailed
from clusterctl.domain.results import CommandResult
from clusterctl.domain.spec import ClusterSpec, Limits, Market
from clusterctl.ec2.instances import find_instances, members_of
from clusterctl.ec2.likeness import like
from clusterctl.ec2.observe import Observed
from clusterctl.ec2.user_data import find_user_data
from clusterctl.operations.costs import spending_of
from clusterctl.operations.failures import check_all
from clusterctl.operations.launcher import Launcher
from clusterctl.transport.connections import Connections
from clusterctl.transport.fanout import fan_out
from clusterctl.transport.target import Target

if TYPE_CHECKING:
    from clusterctl.ec2.session import Clients

TIMEOUT_S = 60.0


def with_user_data(clients: Clients, spec: ClusterSpec, seen: Observed) -> ClusterSpec:
    """The spec with all of the user data that new nodes get: the user's own, and the guard's.

    Nodes that join a cluster get what its head node got.
    """
    if seen.catalogue is None:
        return spec
    # Those that are being replaced will do, where there is no other.
    there = members_of(seen.instances) or seen.instances
    if there and not spec.user_data:
        head = find_user_data(clients.ec2, there[0].node.instance_id)
        return replace(spec, user_data=head)
    settled = like(spec, seen.instances)
    prices = [price.usd_per_hour for price in seen.catalogue.prices.values() if price]
    # Which type it will be is not known yet: the dearest ends the budget first. `up` corrects it.
    hourly = settled.nodes * max(prices) if prices else None
    settings = first_settings(spec.name, settled.limits, hourly, spot=settled.market is Market.SPOT)
    return replace(spec, user_data=with_guard(spec.user_data, settings))


def update_guards(
    launcher: Launcher,
    cluster: Cluster,
    connections: Connections,
    targets: Sequence[Target],
    members: Sequence[Member],
    had_limits: bool,
) -> None:
    """Tell every node when to end, and the head node whom to look after. `members`: head first.

    Raises ClusterctlError naming the nodes that could not be told.
    """
    instances = find_instances(launcher.clients.ec2, cluster.name)
    spending = spending_of(launcher.clients, instances, launcher.prices)
    spot = any(found.market is Market.SPOT for found in instances)
    if spending.limits == Limits() and not spot and not had_limits:
        return
    ends_at = None if spending.ends_in_h is None else time.time() + spending.ends_in_h * 3600
    first = first_settings(
        cluster.name,
        # The end is known to the second here; what idles is for the guards to see.
        replace(spending.limits, max_hours=None, budget_usd=None),
        spot=spot,
    )
    settings = {
        target.host: joined_settings(first, index, cluster.ssh_user, members, ends_at)
        for index, target in enumerate(targets)
    }

    def one(target: Target) -> CommandResult:
        script = guard_update_script(settings[target.host]).encode()
        result = connections.run(target, "sh -s", timeout_s=TIMEOUT_S, stdin=script)
        if not result.ok or not result.stdout.endswith("complete\n"):
            reason = result.stderr.strip() or f"exit status {result.exit_status}"
            raise CommandFailed(
                target.host,
                f"its guard could not be set: {reason}",
                "limits are kept by the nodes: give the login user `sudo -n`, or no limits",
            )
        return result

    check_all(cluster, fan_out(one, targets))
