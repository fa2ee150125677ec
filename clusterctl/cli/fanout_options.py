"""The options and the standard input of commands that run on many hosts."""

from __future__ import annotations

import functools
import os
import stat
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from clusterctl.cli.params import json_option, timeout_option, together

if TYPE_CHECKING:
    from clusterctl.transport.stdin import StdinSource

# Hosts at once: the largest --fanout, and its default.
MOST_AT_ONCE = 1024
DEFAULT_FANOUT = 256


class FanoutOptions(NamedTuple):
    """How a command runs on many hosts: `fanout` is how many at once."""

    gather: bool
    no_stdin: bool
    timeout_s: float | None
    fanout: int
    as_json: bool


_options = together(
    click.option("-b", "--gather", is_flag=True, help="Fold hosts with identical output together."),
    click.option("-n", "--no-stdin", is_flag=True, help="Give the command no standard input."),
    timeout_option,
    click.option(
        "--fanout",
        type=click.IntRange(1, MOST_AT_ONCE),
        default=DEFAULT_FANOUT,
        show_default=True,
        help="How many hosts at once.",
    ),
    json_option("Outputs"),
)


def fanout_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of FanoutOptions; pass `options`."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        given = {name: kwargs.pop(name) for name in FanoutOptions._fields}
        return command(*args, options=FanoutOptions(**given), **kwargs)

    return _options(wrapped)


def piped_stdin(closed: bool) -> StdinSource | bytes:
    """Return the standard input for every host: what is piped or redirected into this program.

    It is empty with `closed` (--no-stdin), and if stdin is a terminal.
    """
    if closed or not _stdin_is_piped():
        return b""
    from clusterctl.transport.stdin import StdinSource

    return StdinSource(0)


def _stdin_is_piped() -> bool:
    """Return whether the standard input is a pipe, a file or a socket."""
    if sys.stdin is None or sys.stdin.closed:
        return False
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)
