"""`clusterctl hosts`: the hosts file of a cluster."""

from __future__ import annotations

import click

from clusterctl.cli import output
from clusterctl.cli.app_context import AppContext, ClusterCommand, account_options


@click.command(cls=ClusterCommand)
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@account_options
def hosts(app: AppContext, name: str, as_json: bool) -> None:
    """Print the hosts file of cluster NAME, for mpirun, runclust and copyclust.

    Private addresses, the head node first; slots are GPUs, and 1 on a node without.

    \b
    clusterctl hosts demo > hosts
    """
    from clusterctl.domain.hostsfile import parse_hosts_file
    from clusterctl.operations.status import cluster_status
    from clusterctl.operations.views import hosts_text

    text = hosts_text(cluster_status(app.clients, app.folder(name)).cluster)
    if as_json:
        entries = parse_hosts_file(text).entries
        output.data([{"host": entry.host, "slots": entry.slots} for entry in entries])
    else:
        output.line(text.rstrip("\n"))
