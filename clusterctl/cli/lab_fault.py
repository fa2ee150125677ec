"""`clusterctl lab fault`: what is to go wrong in the local EC2."""

from __future__ import annotations

import click

from clusterctl.cli import (
    lab_fault_api,
    lab_fault_boot,
    lab_fault_hosts,
    lab_fault_interrupt,
    output,
)
from clusterctl.cli.fault_requests import ask, clear_faults, note_problem, set_fault
from clusterctl.cli.params import Duration, Group


@click.group(cls=Group)
def fault() -> None:
    """Make the lab refuse, lose, lag and break as AWS does on a bad day.

    Faults hold until they are cleared, have struck as often as they are to, or the lab stops.

    \b
    Example:
      clusterctl lab fault capacity p4d.24xlarge us-east-1a 0
      clusterctl lab fault boot --dies Server.InternalError --node 3
      clusterctl lab fault list
      clusterctl lab fault clear
    """


@fault.command("list")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def list_(as_json: bool) -> None:
    """Show the faults that are set, and how late things are shown.

    \b
    Example:
      clusterctl lab fault list
    """
    found = ask("GET")
    if as_json:
        output.data(found)
        return
    rows = [
        (one["id"], one["kind"], one["times_left"] or "-", one["skip_left"] or "-", one["text"])
        for one in found["faults"]
    ]
    if rows:
        output.table(("FAULT", "KIND", "TIMES", "SKIP", "WHAT"), rows)
    else:
        output.line("no faults")
    for one in found["faults"]:
        note_problem(one)
    output.note(
        f"new instances are shown after {found['visibility_s']:g} s, "
        f"consoles after {found['console_delay_s']:g} s"
    )


@fault.command()
@click.argument("id", required=False)
def clear(id: str | None) -> None:
    """Clear one fault by its id, or all of them.

    \b
    Example:
      clusterctl lab fault clear f3
    """
    clear_faults(id)


@fault.command()
@click.argument("type", metavar="TYPE")
@click.argument("zone")
@click.argument("machines", metavar="N", type=click.IntRange(0))
def capacity(type: str, zone: str, machines: int) -> None:
    """N machines of a type are left in a zone, beside those that run now.

    Instances that end or are stopped give theirs back. A launch for which too few are left is
    refused with InsufficientInstanceCapacity, in AWS's words.

    \b
    Example:
      clusterctl lab fault capacity p4d.24xlarge us-east-1a 0
    """
    set_fault("capacity", instance_type=type, zone=zone, left=machines)


@fault.command()
@click.option(
    "--visible", "visible_s", type=Duration(none=True), help="Until a new instance is shown."
)
@click.option(
    "--console", "console_s", type=Duration(none=True), help="Until a console shows what it has."
)
def lag(visible_s: float | None, console_s: float | None) -> None:
    """Make EC2 show later what there is. Without this, new instances are hidden for 0.3 s.

    \b
    Example:
      clusterctl lab fault lag --visible 5s --console 30s
    """
    set_fault("lag", visible_s=visible_s, console_s=console_s)


@fault.command()
@click.argument("code")
@click.argument("value", type=click.FloatRange(0))
def quota(code: str, value: float) -> None:
    """Set a service quota, such as the vCPUs of on-demand P instances (L-417A185B).

    \b
    Example:
      clusterctl lab fault quota L-417A185B 128
    """
    set_fault("quota", code=code, value=value)


for _command in (
    *lab_fault_api.COMMANDS,
    *lab_fault_boot.COMMANDS,
    *lab_fault_hosts.COMMANDS,
    *lab_fault_interrupt.COMMANDS,
):
    fault.add_command(_command)
