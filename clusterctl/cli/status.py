"""`clusterctl status`: the nodes of a cluster, and its money."""

from __future__ import annotations

import click

from clusterctl.cli import output
from clusterctl.cli.cluster_table import cluster_data, print_nodes
from clusterctl.cli.money import print_spending, spending_data
from clusterctl.cli.wiring import ClusterCommand, Wiring, account_options
from clusterctl.domain.ranges import format_indices
from clusterctl.domain.units import count


@click.command(cls=ClusterCommand)
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@account_options
def status(wiring: Wiring, name: str, as_json: bool) -> None:
    """Show the nodes of cluster NAME, as EC2 sees them, and what they cost.

    \b
    clusterctl status demo
    clusterctl status demo --json
    """
    from clusterctl.operations.costs import price_cache, spending_of
    from clusterctl.operations.status import cluster_status

    found = cluster_status(wiring.clients, wiring.folder(name))
    money = spending_of(wiring.clients, found.instances, price_cache(wiring.settings.home))
    if as_json:
        output.data(
            {
                **cluster_data(found.cluster),
                "state": found.summary,
                "missing": found.cluster.missing,
                "leaving": [node.instance_id for node in found.leaving],
                "costs": spending_data(money),
            }
        )
        return
    print_nodes(found.cluster)
    output.line()
    print_spending(money)
    output.findings(money.findings)
    for node in found.leaving:
        output.note(
            f"{node.name} ({node.instance_id}, {node.state.value}) is being replaced or removed; "
            "`clusterctl up` finishes that"
        )
    if found.cluster.missing:
        indices = format_indices(found.cluster.missing)
        output.note(
            f"missing: {count(len(found.cluster.missing), 'node')} ({indices}); "
            "`clusterctl up` launches what is missing"
        )
