"""The faults of the lab's hosts: how they boot, and what befalls those that run."""

from __future__ import annotations

import click

from clusterctl.cli.fault_requests import TIMES, Span, ask, clear_faults, set_fault
from clusterctl.cli.params import Indices
from clusterctl.domain.errors import UsageError


@click.command()
@click.option("--slow", "slow_s", type=Span(), help="Stay pending that long.")
@click.option("--silent", is_flag=True, help="Run, but never start sshd nor print host keys.")
@click.option("--dies", metavar="CODE", help="Be terminated instead, with this StateReason.")
@click.option("--node", "nodes", type=Indices(), help="Only these nodes: 3 or 0-2,5.")
@TIMES
def boot(
    slow_s: float | None, silent: bool, dies: str | None, nodes: tuple[int, ...] | None, times: int
) -> None:
    """Have the next hosts boot late, without sshd, or not at all.

    \b
    Example:
      clusterctl lab fault boot --slow 2m --times 4
      clusterctl lab fault boot --dies Server.InsufficientInstanceCapacity --node 1
    """
    if dies == "":
        raise UsageError("--dies needs a code", "for example Server.InternalError")
    set_fault(
        "boot", slow_s=slow_s or 0, silent=silent, dies=dies or "", nodes=nodes or (), times=times
    )


@click.command()
@click.argument("instance")
def freeze(instance: str) -> None:
    """Stop all processes of a running host where they are, until `thaw`.

    \b
    Example:
      clusterctl lab fault freeze i-0123456789abcdef0
    """
    set_fault("freeze", instance_id=instance)


@click.command()
@click.argument("instance")
def thaw(instance: str) -> None:
    """Let a frozen host go on.

    \b
    Example:
      clusterctl lab fault thaw i-0123456789abcdef0
    """
    _clear("freeze", instance, "is not frozen")


@click.command()
@click.argument("instance")
def cut(instance: str) -> None:
    """Take a running host's network link down, until `mend`.

    \b
    Example:
      clusterctl lab fault cut i-0123456789abcdef0
    """
    set_fault("cut", instance_id=instance)


@click.command()
@click.argument("instance")
def mend(instance: str) -> None:
    """Bring the link of a host that was cut off up again.

    \b
    Example:
      clusterctl lab fault mend i-0123456789abcdef0
    """
    _clear("cut", instance, "is not cut off")


def _clear(kind: str, instance: str, otherwise: str) -> None:
    for one in ask("GET")["faults"]:
        if one["kind"] == kind and one["instance_id"] == instance:
            clear_faults(one["id"])
            return
    raise UsageError(f"{instance!r:.80} {otherwise}", "see `clusterctl lab fault list`")


COMMANDS = (boot, freeze, thaw, cut, mend)
