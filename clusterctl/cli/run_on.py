"""Run one command on some targets and show what came of it: `runclust` and `clusterctl run`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from clusterctl.cli import hostlines, output
from clusterctl.domain.results import CommandResult, HostOutcome, exit_status_of

if TYPE_CHECKING:
    from clusterctl.transport.connections import Connections
    from clusterctl.transport.stdin import StdinSource
    from clusterctl.transport.target import Target


class QuotedCommand(click.Command):
    """Tells who types a command's words without quotes how they go together."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, [*args])
        except click.BadParameter:
            raise
        except click.UsageError as wrong:
            count = self.before_command(args) if args else 0
            before, words = args[:count], args[count:]
            if not words or args[0].startswith("-"):
                raise
            quoted = " ".join([ctx.command_path, *before, shlex.quote(" ".join(words))])
            said = wrong.format_message().rstrip(".")
            raise click.UsageError(f"{said}; all of COMMAND is quoted: {quoted}", ctx) from None

    def before_command(self, words: list[str]) -> int:
        """How many of the words come before COMMAND."""
        return 1


def run_on(
    connections: Connections,
    targets: Sequence[Target],
    command: str,
    *,
    stdin: StdinSource | bytes,
    timeout_s: float | None,
    fanout: int,
    gather: bool = False,
    verbose: bool = False,
    as_json: bool = False,
) -> int:
    """The exit status for the whole: the highest of the hosts', 255 if one gave none."""
    lines = hostlines.HostLines()
    live = not (gather or as_json)

    def ended(outcome: HostOutcome[CommandResult]) -> None:
        lines.finish(outcome.host)
        if verbose and not as_json:
            hostlines.show_verbose(outcome)

    result = connections.run_all(
        targets,
        command,
        timeout_s=timeout_s,
        stdin=stdin,
        sink=lines.take if live else None,
        max_workers=fanout,
        on_outcome=ended,
    )
    if as_json:
        output.data([hostlines.as_data(outcome) for outcome in result.outcomes])
    else:
        if gather:
            hostlines.show_grouped(result)
        hostlines.show_trouble(result)
    return exit_status_of(result)
