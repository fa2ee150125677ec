"""`clusterctl up`: launch a cluster, or what is missing of it, and wait until it is ready."""

from __future__ import annotations

from pathlib import Path

import click

from clusterctl.cli import output
from clusterctl.cli.cluster_table import cluster_data, print_nodes
from clusterctl.cli.params import Duration
from clusterctl.cli.wiring import Wiring, account_options
from clusterctl.domain.errors import AwsError
from clusterctl.domain.spec import ClusterSpec


@click.command()
@click.argument("name")
@click.option("--nodes", type=int, required=True, metavar="N", help="How many machines.")
@click.option("--instance-type", required=True, metavar="TYPE", help="For example p4d.24xlarge.")
@click.option("--image", metavar="AMI", help="Default: the newest Deep Learning Base AMI.")
@click.option("--user", help="The login user. Default: the image's own.")
@click.option("--ssh-from", metavar="CIDR", help="Who may log in. Default: this machine only.")
@click.option(
    "--user-data",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A script or cloud-config that every node runs at its first boot.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=Duration(),
    default="10m",
    show_default=True,
    help="How long nodes may take to get ready.",
)
@click.option("--dry-run", is_flag=True, help="Show the steps and take none.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@account_options
def up(
    wiring: Wiring,
    name: str,
    nodes: int,
    instance_type: str,
    image: str | None,
    user: str | None,
    ssh_from: str | None,
    user_data: Path | None,
    timeout_s: float,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Launch cluster NAME and wait until all its nodes are ready.

    Run it again to go on after an interruption, or to replace nodes that are gone.

    \b
    clusterctl up demo --nodes 4 --instance-type p4d.24xlarge
    clusterctl up demo --nodes 4 --instance-type p4d.24xlarge --dry-run
    clusterctl up demo --nodes 2 --instance-type g5.12xlarge --lab
    """
    spec = ClusterSpec(
        name=name,
        nodes=nodes,
        instance_type=instance_type,
        image=image,
        ssh_user=user,
        ssh_from=ssh_from,
        user_data=user_data.read_bytes() if user_data else b"",
    )
    if dry_run:
        show_plan(wiring, spec, as_json)
    else:
        launch_and_show(wiring, spec, timeout_s, as_json)


def show_plan(wiring: Wiring, spec: ClusterSpec, as_json: bool) -> None:
    """The plan, its findings and its cost; exit status 2 when it would be refused."""
    from clusterctl.cli.plan_table import plan_data, print_plan
    from clusterctl.operations.up import Launcher, Refused, plan_up

    plan = plan_up(Launcher(wiring.clients, wiring.folder(spec.name)), spec)
    if as_json:
        output.data(plan_data(plan))
    else:
        print_plan(plan)
    if plan.refused:
        raise Refused(spec.name, () if as_json else plan.findings)


def launch_and_show(
    wiring: Wiring,
    spec: ClusterSpec,
    timeout_s: float,
    as_json: bool,
    capacity_timeout_s: float = 0.0,
) -> None:
    """Launch it, and show what it has become."""
    from clusterctl.cli.node_progress import node_progress
    from clusterctl.operations.up import Launcher
    from clusterctl.operations.up import up as launch

    folder = wiring.folder(spec.name)
    clients = wiring.clients
    try:
        with node_progress() as progress:
            report = launch(
                Launcher(
                    clients,
                    folder,
                    progress,
                    wiring.proxy_command,
                    timeout_s,
                    capacity_timeout_s,
                ),
                spec,
            )
    except KeyboardInterrupt:
        output.note(_left_behind(wiring, spec.name))
        raise
    cluster = report.cluster
    if as_json:
        data = cluster_data(cluster, report.gpus)
        output.data({**data, "launched": report.launched, "hosts_file": str(folder.hosts)})
        return
    if not report.launched:
        output.note(f"nothing to do: {spec.name} is up and ready")
    print_nodes(cluster, report.gpus)
    output.note(
        f"log in:   clusterctl ssh {spec.name}\n"
        f"run:      clusterctl run {spec.name} 'nvidia-smi -L'\n"
        f"remove:   clusterctl down {spec.name}"
    )


def _left_behind(wiring: Wiring, name: str) -> str:
    """What an interrupted `up` leaves, and the two ways on."""
    from clusterctl.operations.down import leftovers

    try:
        left = leftovers(wiring.ec2, name, wiring.folder(name))
    except AwsError:
        what = "there may be instances"
    else:
        nodes = f"{len(left.nodes)} instances" if left.nodes else "no instance yet"
        what = f"there is {nodes}" if len(left.nodes) < 2 else f"there are {nodes}"
        if left.nodes:
            what += ", which cost money"
    return f"{what}; run `up` again to go on, or: clusterctl down {name}"
