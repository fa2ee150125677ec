"""`clusterctl stop`: machines off, disks kept."""

from __future__ import annotations

import click

from clusterctl.cli import output
from clusterctl.cli.app_context import AppContext, ClusterCommand, account_options
from clusterctl.cli.cluster_table import cluster_data
from clusterctl.cli.launching import launcher_of
from clusterctl.cli.node_options import unless_training
from clusterctl.domain.errors import MissingTool


@click.command(cls=ClusterCommand, explicit=True)
@click.argument("name")
@click.option("--force", is_flag=True, help="Also while a job runs.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@account_options
def stop(app: AppContext, name: str, force: bool, as_json: bool) -> None:
    """Stop all nodes of cluster NAME, and wait until they are.

    Their root volumes are kept, and cost; what is on instance store (/opt/dlami/nvme) is lost.
    `clusterctl start` brings them back, if EC2 has machines in their zone then.

    \b
    clusterctl stop demo
    """
    from clusterctl.operations.power import stop as power_off

    with launcher_of(app, name) as launcher:
        found = power_off(
            launcher,
            name,
            lambda cluster: None if force else _check_jobs(app, name),
        )
    if as_json:
        output.data({**cluster_data(found.cluster), "stopped": found.stopped})
    elif not found.stopped:
        output.note(f"nothing to do: {name} is stopped")
    else:
        output.line(f"stopped {name}; its disks go on costing money")


def _check_jobs(app: AppContext, name: str) -> None:
    try:
        unless_training(app, name, "stopping the nodes ends it")
    except MissingTool as error:
        raise MissingTool(
            f"cannot ask whether a job runs: {error.message}",
            "copy the folder from the machine that ran `up`, or stop the nodes without asking: "
            f"clusterctl stop {name} --force",
        ) from error
