"""`clusterctl network`: a VPC for clusters."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from clusterctl.cli import output
from clusterctl.cli.app_context import AppContext, account_options
from clusterctl.cli.params import Duration, Group, dry_run_option, json_option
from clusterctl.domain.units import count

if TYPE_CHECKING:
    from clusterctl.ec2.network.stack import Network
    from clusterctl.operations.network import NetworkPlan

_timeout = click.option(
    "--timeout",
    "timeout_s",
    type=Duration(unit="m"),
    default="15m",
    show_default=True,
    metavar="TIME",
    help="How long to wait.",
)


@click.group(cls=Group)
def network() -> None:
    """A VPC for clusters: two public subnets, S3 endpoint, security group; free of charge.

    \b
    Example:
      clusterctl network up training
      clusterctl up demo --network training --nodes 4 --instance-type p4d.24xlarge
      clusterctl network down training
    """


@network.command()
@click.argument("name")
@click.option("--cidr", help="Its addresses, /16 to /24.  [default: 10.20.0.0/16]")
@click.option("--zones", metavar="A,B", help="Its two zones.  [default: the first two]")
@click.option("--for-type", metavar="TYPE", help="Prefer zones that offer this instance type.")
@click.option("--ssh-from", metavar="CIDR", help="Who may log in.  [default: this machine]")
@dry_run_option
@_timeout
@json_option("NetworkUp")
@account_options
def up(
    app: AppContext,
    name: str,
    cidr: str | None,
    zones: str | None,
    for_type: str | None,
    ssh_from: str | None,
    dry_run: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Make the network NAME, as the CloudFormation stack clusterctl-network-NAME.

    Run again with the same options, it does nothing; a new --ssh-from is applied. What an
    interrupted or failed run left is completed, or removed and made again.

    \b
    clusterctl network up training
    clusterctl network up training --zones a,b --ssh-from 203.0.113.7/32
    clusterctl network up training --for-type p4d.24xlarge --dry-run
    """
    from clusterctl.cli.launching import printed_progress
    from clusterctl.ec2.network.plan import Action, NetworkRequest
    from clusterctl.operations import network as operation

    request = NetworkRequest(
        name=name,
        cidr=cidr,
        zones=tuple(zone.strip() for zone in zones.split(",")) if zones is not None else None,
        ssh_from=ssh_from,
        for_type=for_type,
    )
    if dry_run:
        _show_plan(name, operation.plan_network(app.clients, request), as_json)
        return
    with _interruptible(f"clusterctl network up {name}", name):
        report = operation.network_up(
            app.clients, request, progress=printed_progress(), timeout_s=timeout_s
        )
    if as_json:
        output.data(report)
        return
    if report.done is Action.NOTHING:
        output.note(f"nothing to do: network {name} is there")
    _show_network(report.network)
    output.note(f"use it:  clusterctl up CLUSTER --network {name}")


@network.command()
@click.argument("name")
@_timeout
@json_option("NetworkDown")
@account_options
def down(app: AppContext, name: str, timeout_s: float, as_json: bool) -> None:
    """Remove the network NAME. Refused while there are instances in it.

    \b
    clusterctl network down training
    """
    from clusterctl.cli.launching import printed_progress
    from clusterctl.operations.network import network_down

    with _interruptible(f"clusterctl network down {name}", name):
        removed = network_down(app.clients, name, progress=printed_progress(), timeout_s=timeout_s)
    if as_json:
        output.data({"name": name, "removed": removed})
    elif removed:
        output.line(f"removed network {name}")
    else:
        output.note(f"nothing to do: there is no network {name}")


@network.command()
@click.argument("name")
@json_option("InNetwork")
@account_options
def status(app: AppContext, name: str, as_json: bool) -> None:
    """Show the network NAME: its subnets, free addresses, and the clusters in it.

    \b
    clusterctl network status training
    """
    from clusterctl.operations.network import network_status

    found = network_status(app.clients, name)
    if as_json:
        output.data(found)
        return
    output.line(f"network {name}: {found.status}" + (f": {found.reason}" if found.reason else ""))
    if found.network:
        output.line(f"SSH from {found.ssh_from}")
        _show_network(found.network)
    for cluster, number in sorted(found.clusters.items()):
        output.line(f"in it: {cluster}, {count(number, 'instance')}")
    for instance_id in found.instances:
        output.line(f"in it: {instance_id}")


@network.command()
@click.option("--subnet", "subnet_id", metavar="ID", help="This one, not the default VPC's.")
@dry_run_option
@json_option("S3Endpoint")
@account_options
def s3(app: AppContext, subnet_id: str | None, dry_run: bool, as_json: bool) -> None:
    """Give the subnets of the default VPC a gateway endpoint for S3, which is free.

    Nodes without a public address then reach S3 through it, and not through a NAT gateway. It stays
    until you delete it.

    \b
    clusterctl network s3
    clusterctl network s3 --subnet subnet-0123456789abcdef0 --dry-run
    """
    from clusterctl.operations.network import make_s3_endpoint, plan_s3_endpoint

    step = plan_s3_endpoint(app.clients, subnet_id)
    made = make_s3_endpoint(app.clients, step) if step and not dry_run else ""
    if as_json:
        planned = dict(step.arguments) if step else {}
        output.data({"endpoint_id": made or None, "request": planned})
    elif step and (dry_run or made):
        output.line(f"{made or 'would make'}: {step.summary}")
    else:
        output.note("nothing to do: there is an endpoint for S3")


def _show_plan(name: str, plan: NetworkPlan, as_json: bool) -> None:
    settings = plan.settings
    if as_json:
        output.data(plan)
        return
    output.line(f"network {name}: {plan.action.value}")
    if plan.stack:
        output.line(f"stack {plan.stack.name} is {plan.stack.status}")
    if settings:
        for key, value in settings.parameters().items():
            output.line(f"  {key}: {value}")
    output.line("cost: 0.00 USD per hour")


def _show_network(found: Network) -> None:
    output.line(f"{found.vpc_id}  {found.cidr}  {found.security_group_id}")
    output.table(
        ["SUBNET", "ZONE", "ADDRESSES", "FREE"],
        [
            [subnet.subnet_id, subnet.zone, subnet.cidr, subnet.free_addresses]
            for subnet in found.subnets
        ],
    )


@contextlib.contextmanager
def _interruptible(command: str, name: str) -> Iterator[None]:
    """After an interrupt, print how to wait for CloudFormation, which goes on, and how to undo."""
    try:
        yield
    except KeyboardInterrupt:
        output.note(
            f"AWS goes on by itself; to wait for it: {command}; "
            f"to remove the network: clusterctl network down {name}"
        )
        raise
