"""`clusterctl lab fault interrupt`: AWS takes a spot instance back."""

from __future__ import annotations

import click

from clusterctl.cli import output
from clusterctl.cli.fault_requests import Instance
from clusterctl.cli.params import Duration
from clusterctl.cli.running_lab import running_lab

PAGE = "/_lab/interruptions"


@click.command()
@click.argument("instance", type=Instance())
@click.option(
    "--in",
    "after_s",
    type=Duration(none=True),
    default="2m",
    show_default=True,
    help="How long after the notice it ends.",
)
def interrupt(instance: str, after_s: float) -> None:
    """Give a spot instance notice in its metadata, and terminate it when the time has come.

    \b
    Example:
      clusterctl lab fault interrupt demo-1 --in 30s
    """
    from clusterctl.lab import pages

    body = {"instance_id": instance, "seconds": after_s}
    said = pages.ask(running_lab(), PAGE, "POST", body)
    output.line(f"{instance}: terminated at {said['ends_at']}")


COMMANDS = (interrupt,)
