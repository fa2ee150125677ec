"""`clusterctl replace`: new machines for nodes that are not as they should be."""

from __future__ import annotations

import sys

import click

from clusterctl.cli.app_context import AppContext, ClusterCommand, account_options
from clusterctl.cli.launching import launcher_of, show_report, waiting_options
from clusterctl.cli.node_options import check_nodes, indices_of, unless_training
from clusterctl.cli.params import Indices, yes_option
from clusterctl.domain.ranges import fold_hosts


@click.command(cls=ClusterCommand, explicit=True)
@click.argument("name")
@click.argument("indices", nargs=-1, required=True, type=Indices(), metavar="INDEX...")
@account_options
@waiting_options
@yes_option
@click.option("--force", is_flag=True, help="Also while a job runs.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def replace(
    app: AppContext,
    name: str,
    indices: tuple[tuple[int, ...], ...],
    timeout_s: float | None,
    capacity_timeout_s: float,
    accept_new_host_keys: bool,
    yes: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Launch new machines for the nodes INDEX... of cluster NAME, then terminate the old ones.

    Same zone, placement group, image and index; what the old machines stored is gone. The old
    ones stay if no new one is to be had. In reserved capacity the old ones go first.

    \b
    clusterctl replace demo 2
    clusterctl replace demo 2 --capacity-timeout 1h --yes
    """
    from clusterctl.operations.members import replace_nodes

    chosen = indices_of(indices)
    check_nodes(app, name, chosen)
    if not yes and sys.stdin.isatty():
        nodes = fold_hosts([f"{name}-{index}" for index in chosen])
        click.confirm(f"Replace {nodes}, and lose what is stored there?", abort=True, err=True)
    if not force:
        unless_training(app, name, "it may run on the nodes to be replaced")
    with launcher_of(app, name, timeout_s, capacity_timeout_s, accept_new_host_keys) as launcher:
        report = replace_nodes(launcher, name, chosen)
    show_report(app, report, as_json)
