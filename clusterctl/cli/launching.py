"""What the commands that launch machines share: progress, what an interrupt leaves, the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from clusterctl.cli import output
from clusterctl.cli.app_context import AppContext
from clusterctl.cli.cluster_table import cluster_data, print_nodes
from clusterctl.cli.params import Duration
from clusterctl.domain.errors import ClusterctlError
from clusterctl.domain.units import count

if TYPE_CHECKING:
    from clusterctl.ec2.launch.plan import LaunchPlan
    from clusterctl.operations.launcher import Launcher
    from clusterctl.operations.up import UpReport


trust_option = click.option(
    "--accept-new-host-keys",
    is_flag=True,
    help="Where neither console nor Systems Manager tells a node's host key, trust the one it "
    "shows. Whoever is in between then holds your session.",
)


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
    app: AppContext,
    name: str,
    timeout_s: float | None = None,
    capacity_timeout_s: float = 0.0,
    accept_new_host_keys: bool = False,
    agree: Callable[[LaunchPlan], None] = lambda plan: None,
) -> Iterator[Launcher]:
    """A launcher that shows what it does. After an interrupt: what is left, and the ways on."""
    from clusterctl.cli.node_progress import node_progress
    from clusterctl.operations.launcher import Launcher

    folder, clients = app.folder(name), app.clients
    launcher = None
    try:
        with node_progress() as progress:
            launcher = Launcher(
                clients,
                folder,
                progress,
                app.proxy_command,
                timeout_s,
                capacity_timeout_s,
                accept_new_host_keys,
                agree,
            )
            yield launcher
    except KeyboardInterrupt:
        if launcher and launcher.progress.done:
            output.note("all that was asked for is done")
        else:
            output.note(_left_behind(app, name))
            output.note_way_on()
        raise


def show_report(app: AppContext, report: UpReport, as_json: bool) -> None:
    """A cluster that is ready."""
    cluster = report.cluster
    if as_json:
        hosts_file = str(app.folder(cluster.name).hosts)
        data = cluster_data(cluster, report.gpus)
        output.data({**data, "launched": report.launched, "hosts_file": hosts_file})
        return
    if report.finished:
        output.note(f"finished what was asked for before: {report.finished.told(cluster.name)}")
    elif not report.launched and not report.started:
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
    """The plan, its findings and its cost. Raises LaunchRefused where it would be."""
    from clusterctl.cli.plan_table import plan_data, print_plan
    from clusterctl.operations.launcher import LaunchRefused

    if as_json:
        output.data(plan_data(plan))
    else:
        print_plan(plan)
    if plan.refused:
        raise LaunchRefused(plan.spec.name, () if as_json else plan.findings)


def _left_behind(app: AppContext, name: str) -> str:
    """What there is, and what takes it away again where that was not there before."""
    from clusterctl.ec2.instances import find_instances, unfinished_of
    from clusterctl.ec2.network.vpcs import find_addresses
    from clusterctl.ec2.teardown import NOT_TERMINATED
    from clusterctl.operations.down import launches_under_way

    command = str(click.get_current_context().info_name)
    back = {
        "up": f"to remove it all: clusterctl down {name}",
        "start": f"to stop it again: clusterctl stop {name}",
    }.get(command, "")
    try:
        there = find_instances(app.ec2, name, NOT_TERMINATED)
        if there:
            verbs = ("is", "costs") if len(there) == 1 else ("are", "cost")
            what = f"there {verbs[0]} {count(len(there), 'instance')}, which {verbs[1]} money"
        elif find_addresses(app.ec2, name):
            what = "there is no instance yet, but an elastic address, which costs money"
        else:
            what = "there is no instance yet"
        added = unfinished_of(there).add
        if command == "add" and added:
            indices = " ".join(map(str, added))
            back = f"to do without them: clusterctl remove {name} {indices}"
    except ClusterctlError:
        what = "there may be instances"
    if launches_under_way(app.folder(name)):
        what += "; a launch is under way, more may appear"
    return f"{what}; {back}" if back else what
