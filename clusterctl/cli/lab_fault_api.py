"""The faults of the lab's API: requests throttled, refused, delayed, never answered."""

from __future__ import annotations

from typing import Any

import click

from clusterctl.cli.fault_requests import SKIP, TIMES, set_fault
from clusterctl.cli.params import Duration


@click.command()
@click.argument("action")
@click.option("--rate", required=True, type=float, help="Requests a second that come to it.")
@click.option("--burst", required=True, type=click.IntRange(1), help="Requests it can hold.")
def throttle(action: str, rate: float, burst: int) -> None:
    """Answer requests that come too fast with RequestLimitExceeded.

    ACTION is an API action, or '*': then each action has a bucket of its own.

    \b
    Example:
      clusterctl lab fault throttle DescribeInstances --rate 0.5 --burst 3
    """
    set_fault("throttle", action=action, rate=rate, burst=burst)


@click.command()
@click.argument("action")
@click.argument("code")
@click.option("--message", default="", help="The error's text; AWS's own for the code.")
@click.option("--status", default=0, type=int, help="The HTTP status; AWS's own for the code.")
@click.option("--after", is_flag=True, help="Carry the request out first.")
@TIMES
@SKIP
def error(action: str, code: str, **how: Any) -> None:
    """Answer requests with an error.

    \b
    Example:
      clusterctl lab fault error RunInstances InternalError --after
      clusterctl lab fault error '*' RequestLimitExceeded --skip 4 --times 2
    """
    set_fault("error", action=action, code=code, **how)


@click.command()
@click.argument("action")
@TIMES
@SKIP
def lost(action: str, times: int, skip: int) -> None:
    """Carry requests out and close the connection without an answer.

    \b
    Example:
      clusterctl lab fault lost RunInstances
    """
    set_fault("lost", action=action, times=times, skip=skip)


@click.command()
@click.argument("action")
@click.argument("seconds", metavar="DURATION", type=Duration(none=True))
def delay(action: str, seconds: float) -> None:
    """Let requests wait before they are carried out.

    \b
    Example:
      clusterctl lab fault delay DescribeInstances 2s
    """
    set_fault("delay", action=action, seconds=seconds)


COMMANDS = (throttle, error, lost, delay)
