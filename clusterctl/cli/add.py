"""`clusterctl add`: more nodes."""

from __future__ import annotations

import click

from clusterctl.cli.app_context import AppContext, ClusterCommand, account_options
from clusterctl.cli.launching import (
    launcher_of,
    show_plan,
    show_report,
    waiting_options,
)
from clusterctl.cli.money import agreement
from clusterctl.cli.params import yes_option


@click.command(cls=ClusterCommand)
@click.argument("name")
@click.argument("count", type=int, metavar="N")
@account_options
@waiting_options
@yes_option
@click.option("--dry-run", is_flag=True, help="Show the steps and what they cost; take none.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def add(
    app: AppContext,
    name: str,
    count: int,
    timeout_s: float | None,
    capacity_timeout_s: float,
    accept_new_host_keys: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Launch N more nodes for cluster NAME, as those that it has: type, image, zone, group.

    All nodes know each other afterwards, and the hosts file has them.

    \b
    clusterctl add demo 2
    clusterctl add demo 2 --dry-run
    """
    from clusterctl.operations.launcher import Launcher
    from clusterctl.operations.members import add as launch
    from clusterctl.operations.members import plan_add

    if dry_run:
        launcher = Launcher(app.clients, app.folder(name))
        show_plan(plan_add(launcher, name, count), as_json)
        return
    waiting = (timeout_s, capacity_timeout_s, accept_new_host_keys)
    with launcher_of(app, name, *waiting, agreement(app, yes)) as launcher:
        report = launch(launcher, name, count)
    show_report(app, report, as_json)
