"""`clusterctl status`: the nodes of a cluster, and its money."""

from __future__ import annotations

from typing import Any

import click

from clusterctl.cli import output
from clusterctl.cli.app_context import AppContext, ClusterCommand, account_options
from clusterctl.cli.cluster_table import cluster_data, print_nodes
from clusterctl.cli.hostlines import show_failures
from clusterctl.cli.money import print_spending, spending_data
from clusterctl.domain.cluster import Cluster, NodeState
from clusterctl.domain.errors import MissingTool
from clusterctl.domain.ranges import format_indices
from clusterctl.domain.results import HostOutcome
from clusterctl.domain.units import count

# Every look at a broken cluster takes so long: less than the 10 s of `run`.
LOGIN_WITHIN_S = 4.0


@click.command(cls=ClusterCommand)
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@account_options
def status(app: AppContext, name: str, as_json: bool) -> None:
    """Show the nodes of cluster NAME, as EC2 sees them, whether SSH reaches them, and what they
    cost. Why a node is not reached, and what helps, is below the table.

    \b
    clusterctl status demo
    clusterctl status demo --json
    """
    from clusterctl.operations.costs import price_cache, spending_of
    from clusterctl.operations.status import cluster_status

    found = cluster_status(app.clients, app.folder(name))
    outcomes = _log_in(app, found.cluster)
    reached = {one.host: one.error.message if one.error else "" for one in outcomes}
    money = spending_of(app.clients, found.instances, price_cache(app.settings.home))
    if as_json:
        output.data(
            {
                **cluster_data(found.cluster, reached=reached),
                "state": found.summary,
                "missing": found.cluster.missing,
                "leaving": [node.instance_id for node in found.leaving],
                "unfinished": vars(found.unfinished),
                "costs": spending_data(money),
            }
        )
        return
    print_nodes(found.cluster, reached=reached)
    show_failures(outcomes)
    output.line()
    print_spending(money)
    output.findings(money.findings)
    for node in found.leaving:
        output.note(
            f"{node.name} ({node.instance_id}, {node.state.value}) is being replaced or removed; "
            "`clusterctl up` finishes that"
        )
    if found.unfinished:
        output.note(
            f"asked for and not finished: {found.unfinished.told(name)}; "
            "`clusterctl up` finishes it"
        )
    if found.cluster.missing:
        indices = format_indices(found.cluster.missing)
        output.note(
            f"missing: {count(len(found.cluster.missing), 'node')} ({indices}); "
            "`clusterctl up` launches what is missing"
        )


def _log_in(app: AppContext, cluster: Cluster) -> tuple[HostOutcome[Any], ...]:
    """Each node's own outcome; none where nothing runs, or the key is elsewhere."""
    from clusterctl.operations.access import log_in_everywhere

    if all(node.state is not NodeState.RUNNING for node in cluster.nodes):
        return ()
    try:
        with app.access(cluster) as access:
            return log_in_everywhere(access, LOGIN_WITHIN_S).outcomes
    except MissingTool as missing:
        output.note(f"no login was tried: {missing.message}")
        return ()
