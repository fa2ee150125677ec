"""The faults of the lab's hosts at boot."""

from __future__ import annotations

import click

from clusterctl.cli.fault_requests import TIMES, set_fault
from clusterctl.cli.params import Duration, Indices
from clusterctl.domain.errors import UsageError


@click.command()
@click.option("--slow", "slow_s", type=Duration(none=True), help="Stay pending that long.")
@click.option("--silent", is_flag=True, help="Run, but never start sshd nor print host keys.")
@click.option("--dies", metavar="CODE", help="Be terminated instead, with this StateReason.")
@click.option("--node", "nodes", type=Indices(named=False), help="Only these nodes: 3 or 0-2,5.")
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


COMMANDS = (boot,)
