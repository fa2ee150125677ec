"""`clusterctl start`: a stopped cluster runs again."""

from __future__ import annotations

import click

from clusterctl.cli.launching import launcher_of, show_report, waiting_options
from clusterctl.cli.money import agreement
from clusterctl.cli.params import yes_option
from clusterctl.cli.wiring import ClusterCommand, Wiring, account_options


@click.command(cls=ClusterCommand)
@click.argument("name")
@account_options
@waiting_options
@yes_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def start(
    wiring: Wiring,
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
    with launcher_of(wiring, name, *waiting, agreement(wiring, yes)) as launcher:
        report = power_on(launcher, name)
    show_report(wiring, report, as_json)
