"""`clusterctl list`: every cluster of the account in a region."""

from __future__ import annotations

import click

from clusterctl.cli import output
from clusterctl.cli.app_context import AppContext, account_options
from clusterctl.cli.cluster_table import cluster_data


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@account_options
def list_(app: AppContext, as_json: bool) -> None:
    """List the clusters in this region, whoever launched them.

    \b
    clusterctl list
    clusterctl list --region us-west-2 --json
    """
    from clusterctl.ec2.instances import list_clusters
    from clusterctl.operations.status import states

    clusters = list_clusters(app.ec2)
    if as_json:
        output.data([cluster_data(cluster) for cluster in clusters])
    elif not clusters:
        output.note(f"no clusters in {app.ec2.meta.region_name}")
    else:
        rows = [
            (
                cluster.name,
                states(cluster),
                "/".join(sorted({node.instance_type for node in cluster.nodes})),
                cluster.gpus,
                min(node.launched_at for node in cluster.nodes).strftime("%Y-%m-%d %H:%M %Z"),
            )
            for cluster in clusters
        ]
        output.table(("CLUSTER", "NODES", "TYPE", "GPUS", "LAUNCHED"), rows)
