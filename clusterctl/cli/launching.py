"""What the commands that launch machines share: progress, what an interrupt leaves, the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from clusterctl.cli import output
from clusterctl.cli.cluster_table import cluster_data, print_nodes
from clusterctl.cli.params import Duration
from clusterctl.cli.wiring import Wiring
from clusterctl.domain.errors import AwsError
from clusterctl.domain.units import count

if TYPE_CHECKING:
    from clusterctl.ec2.plan import LaunchPlan
    from clusterctl.operations.launcher import Launcher
    from clusterctl.operations.up import UpReport


trust_option = click.option(
    "--accept-new-host-keys",
    is_flag=True,
    help="Where neither console nor Systems Manager tells a node's host key, trust the one it "
    "shows. Whoever is in between then holds your session.",
)

yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


def waiting_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --timeout, --capacity-timeout and --accept-new-host-keys, for commands without the
    options of a launch."""
    for option in (
        trust_option,
        click.option(
            "--capacity-timeout",
            "capacity_timeout_s",
            type=Duration(),
            default=0.0,
            help="How long to wait for machines where EC2 has none. Default: not at all.",
        ),
        click.option(
            "--timeout",
            "timeout_s",
            type=Duration(),
            help="How long nodes may take to get ready. Default: 10m, and 30m from 4 GPUs a "
            "node on.",
        ),
    ):
        command = option(command)
    return command


@contextmanager
def launcher_of(
    wiring: Wiring,
    name: str,
    timeout_s: float | None = None,
    capacity_timeout_s: float = 0.0,
    accept_new_host_keys: bool = False,
    agree: Callable[[LaunchPlan], None] = lambda plan: None,
) -> Iterator[Launcher]:
    """A launcher that shows what it does. After an interrupt: what is left, and the ways on."""
    from clusterctl.cli.node_progress import node_progress
    from clusterctl.operations.launcher import Launcher

    folder, clients = wiring.folder(name), wiring.clients
    try:
        with node_progress() as progress:
            yield Launcher(
                clients,
                folder,
                progress,
                wiring.proxy_command,
                timeout_s,
                capacity_timeout_s,
                accept_new_host_keys,
                agree,
            )
    except KeyboardInterrupt:
        output.note(_left_behind(wiring, name))
        raise


def show_report(wiring: Wiring, report: UpReport, as_json: bool) -> None:
    """A cluster that is ready."""
    cluster = report.cluster
    if as_json:
        hosts_file = str(wiring.folder(cluster.name).hosts)
        data = cluster_data(cluster, report.gpus)
        output.data({**data, "launched": report.launched, "hosts_file": hosts_file})
        return
    if not report.launched and not report.started:
        output.note(f"nothing to do: {cluster.name} is up and ready")
    print_nodes(cluster, report.gpus)
    name = cluster.name
    install = "" if report.can_train else f"install:  clusterctl env install {name}\n"
    output.note(
        f"log in:   clusterctl ssh {name}\n"
        f"{install}"
        f"copy:     clusterctl copy {name} ~/data/tf-imagenet/ '~/data/tf-imagenet/'\n"
        f"train:    clusterctl train {name} {sum(report.gpus) or len(report.gpus)}\n"
        f"remove:   clusterctl down {name}"
    )


def show_plan(plan: LaunchPlan, as_json: bool) -> None:
    """The plan, its findings and its cost. Raises Refused where it would be."""
    from clusterctl.cli.plan_table import plan_data, print_plan
    from clusterctl.operations.launcher import Refused

    if as_json:
        output.data(plan_data(plan))
    else:
        print_plan(plan)
    if plan.refused:
        raise Refused(plan.spec.name, () if as_json else plan.findings)


def _left_behind(wiring: Wiring, name: str) -> str:
    from clusterctl.operations.down import launches_under_way, leftovers

    folder = wiring.folder(name)
    try:
        left = leftovers(wiring.clients, name, folder)
    except AwsError:
        what = "there may be instances"
    else:
        nodes = count(len(left.nodes), "instance") if left.nodes else "no instance yet"
        what = f"there is {nodes}" if len(left.nodes) < 2 else f"there are {nodes}"
        if left.nodes:
            what += ", which cost money"
        elif left.addresses:
            what += ", but an elastic address, which costs money"
    if launches_under_way(folder):
        what += "; a launch is under way, more may appear"
    return f"{what}; run the same command again to go on, or: clusterctl down {name}"
