"""`clusterctl up`: launch a cluster, or what is missing of it, and wait until it is ready."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from clusterctl.cli import output
from clusterctl.cli.app_context import AppContext, ClusterCommand, account_options
from clusterctl.cli.launching import launcher_of, show_plan, show_report, trust_option
from clusterctl.cli.money import agreement
from clusterctl.cli.params import yes_option
from clusterctl.cli.spec_options import spec_options
from clusterctl.domain.errors import UsageError
from clusterctl.domain.findings import Finding, Severity
from clusterctl.domain.spec import ClusterSpec

if TYPE_CHECKING:
    from clusterctl.configuration.effective import SpecDraft
    from clusterctl.ec2.instances import Instance


@click.command(cls=ClusterCommand, explicit=True)
@click.argument("name")
@account_options
@spec_options
@trust_option
@yes_option
@click.option("--dry-run", is_flag=True, help="Show the steps and what they cost; take none.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def up(
    app: AppContext,
    name: str,
    draft: SpecDraft,
    capacity_timeout_s: float,
    timeout_s: float | None,
    accept_new_host_keys: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Launch cluster NAME and wait until all its nodes are ready.

    Run it again to go on after an interruption, to start what is stopped, or to launch anew what
    is gone. What it is to be comes from the options and from clusterctl.yaml.

    \b
    clusterctl up demo --nodes 4 --instance-type p4d.24xlarge
    clusterctl up demo --nodes 4 --instance-type p4d.24xlarge --dry-run
    clusterctl up demo --nodes 2 --instance-type g5.12xlarge --lab
    """
    from clusterctl.operations.launcher import Launcher
    from clusterctl.operations.up import plan_up
    from clusterctl.operations.up import up as launch

    spec = _spec(app, draft)
    if dry_run:
        show_plan(plan_up(Launcher(app.clients, app.folder(name)), spec), as_json)
        return
    waiting = (timeout_s, capacity_timeout_s, accept_new_host_keys)
    with launcher_of(app, name, *waiting, agreement(app, yes)) as launcher:
        report = launch(launcher, spec)
    show_report(app, report, as_json)
    _say_what_it_costs(app, name, report.instances)


def _say_what_it_costs(app: AppContext, name: str, instances: Sequence[Instance]) -> None:
    """Of a cluster that nothing ends but its owner."""
    from clusterctl.ec2.money.costs import format_usd
    from clusterctl.operations.costs import price_cache, spending_of

    money = spending_of(app.clients, instances, price_cache(app.settings.home))
    if money.limits.ends or money.limits.idle_minutes:
        return
    daily = None if money.usd_per_hour is None else money.usd_per_hour * 24
    output.findings(
        [
            Finding(
                "cost.unlimited",
                Severity.WARNING,
                f"NOTHING ENDS THIS CLUSTER: it costs {format_usd(daily)} a day until removed",
                hint=f"have its nodes end themselves: clusterctl up {name} --max-hours 24",
            )
        ]
    )


def _spec(app: AppContext, draft: SpecDraft) -> ClusterSpec:
    """A cluster that is there says itself how many nodes of which type it has."""
    try:
        return draft.spec()
    except UsageError:
        if "nodes" in draft.values and "instance-type" in draft.values:
            raise
        there = _nodes_of(app, draft.name)
        if not there:
            raise
        return draft.spec(nodes=len(there), instance_type=there[0])


def _nodes_of(app: AppContext, name: str) -> list[str]:
    """The type of each node that the cluster is to have; none for a cluster that is not there."""
    from clusterctl.ec2.launch.inherited import spec_of
    from clusterctl.operations.status import find_own

    instances = find_own(app.clients, app.folder(name))
    if not instances:
        return []
    spec = spec_of(name, instances)
    return [spec.instance_type] * spec.nodes
