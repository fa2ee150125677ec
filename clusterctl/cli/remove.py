"""`clusterctl remove`: fewer nodes."""

from __future__ import annotations

import sys

import click

from clusterctl.cli import output
from clusterctl.cli.app_context import AppContext, ClusterCommand, account_options
from clusterctl.cli.cluster_table import cluster_data
from clusterctl.cli.launching import launcher_of
from clusterctl.cli.node_options import check_nodes, indices_of, unless_training
from clusterctl.cli.params import Indices, yes_option
from clusterctl.domain.ranges import fold_hosts, format_indices


@click.command(cls=ClusterCommand, explicit=True)
@click.argument("name")
@click.argument("indices", nargs=-1, required=True, type=Indices(), metavar="INDEX...")
@yes_option
@click.option("--force", is_flag=True, help="Also while a job runs.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@account_options
def remove(
    app: AppContext,
    name: str,
    indices: tuple[tuple[int, ...], ...],
    yes: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Terminate the nodes INDEX... of cluster NAME, and take them out of the others' hosts file.

    The head node (0) stays; nodes keep their index. Asks first on a terminal.

    \b
    clusterctl remove demo 3
    clusterctl remove demo 2-3 5 --yes
    """
    from clusterctl.operations.members import remove as take_away

    chosen = indices_of(indices)
    check_nodes(app, name, chosen)
    if not yes and sys.stdin.isatty():
        nodes = fold_hosts([f"{name}-{index}" for index in chosen])
        click.confirm(f"Terminate {nodes}?", abort=True, err=True)
    if not force:
        unless_training(app, name, "it may run on the nodes to be removed")
    with launcher_of(app, name) as launcher:
        removed = take_away(launcher, name, chosen)
    if as_json:
        output.data({**cluster_data(removed.cluster), "removed": removed.removed})
        return
    output.line(f"removed {fold_hosts(removed.removed)}")
    if not removed.settled:
        left = format_indices(node.index for node in removed.cluster.nodes)
        output.note(
            f"not all of the others ({left}) run: they learn of it by `clusterctl start {name}`"
        )
