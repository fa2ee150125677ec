"""`clusterctl start`: a stopped cluster runs again."""

from __future__ import annotations

import click

from clusterctl.cli.app_context import AppContext, ClusterCommand, account_options
from clusterctl.cli.launching import launcher_of, show_report, waiting_options
from clusterctl.cli.money import agreement
from clusterctl.cli.params import yes_option


@click.command(cls=ClusterCommand)
@click.argument("name")
@account_options
@waiting_options
@yes_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def start(
    app: AppContext,
    name: str,
    timeout_s: float | None,
    capacity_timeout_s: float,
    accept_new_host_keys: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Start the stopped nodes of cluster NAME, and wait until all are ready.

    Addresses change: hosts file, known_hosts and ssh_config follow. A node that is gone is
    launched anew, as `up` would.

    \b
    clusterctl start demo
    clusterctl start demo --capacity-timeout 2h
    """
    from clusterctl.operations.power import start as power_on

    waiting = (timeout_s, capacity_timeout_s, accept_new_host_keys)
    with launcher_of(app, name, *waiting, agreement(app, yes)) as launcher:
        report = power_on(launcher, name)
    show_report(app, report, as_json)
