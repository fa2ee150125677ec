"""Run one command on some targets and show the results: `runclust` and `clusterctl run`."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from clusterctl.cli import hostlines, output
from clusterctl.cli.params import json_option, timeout_option, together
from clusterctl.domain.errors import with_tilde
from clusterctl.domain.results import DEFAULT_FANOUT, CommandResult, HostOutcome, exit_status_of

if TYPE_CHECKING:
    from clusterctl.transport.connections import Connections
    from clusterctl.transport.dial import Target
    from clusterctl.transport.stdin import Stdin


MOST_AT_ONCE = 1024  # the largest --fanout


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


def piped_stdin(closed: bool, hosts: int) -> Stdin | bytes:
    """Return the standard input for this many hosts: what is piped or redirected into this program.

    It is empty with `closed` (--no-stdin), and if stdin is no pipe, file or socket.
    """
    if closed or sys.stdin is None or sys.stdin.closed:
        return b""
    from clusterctl.transport.stdin import StdinFile, StdinSource, StdinStream

    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return b""
    if stat.S_ISREG(mode):
        with contextlib.suppress(OSError):  # a file of /proc may have no end to go to
            return StdinFile(0)
    elif not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return b""
    return StdinStream(0) if hosts == 1 else StdinSource(0)


class QuotedCommand(click.Command):
    """A command whose COMMAND is one word. If it was typed as several, the error quotes it.

    In `run demo df -h` the help option belongs to COMMAND, which is all words from `df` on. For
    another option of one letter that is not certain: `uname -n` must not become `uname`.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        args = self._with_own_help(ctx, args)
        words = self._command(ctx, args)
        is_one_word = bool(words) and not re.search(r"\s", words[0])
        short = next((word for word in words[1:] if re.match("-[^-]", word)), "")
        if is_one_word and short and "--" not in args[: len(args) - len(words)]:
            whose = f"{short} may be COMMAND's or {ctx.command_path}'s, whose options go first"
            raise self._unquoted(ctx, args, words, whose)
        try:
            return super().parse_args(ctx, [*args])
        except click.BadParameter:
            raise
        except click.UsageError as wrong:
            words = self._command(ctx, args)
            if not words:
                raise
            raise self._unquoted(ctx, args, words, wrong.format_message().rstrip(".")) from None

    def _unquoted(
        self, ctx: click.Context, args: list[str], words: list[str], why: str
    ) -> click.UsageError:
        """Return the error for a COMMAND of these last words, with the line as it should be."""
        before = shlex.join(args[: len(args) - len(words)])
        command = shlex.quote(with_tilde(" ".join(words), str(Path.home())))
        quoted = " ".join(filter(None, [ctx.command_path, before, command]))
        return click.UsageError(f"{why}; all of COMMAND is quoted: {quoted}", ctx)

    def _with_own_help(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Return the words, with COMMAND quoted if a help option follows its first word."""
        command = [] if "--" in args else self._command(ctx, args)
        if not set(ctx.help_option_names) & set(command[1:]):
            return args
        return [*args[: len(args) - len(command)], shlex.join(command)]

    def _command(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Return the words of COMMAND, the last ones; none if the options before it are wrong."""
        options = [one for one in self.params if not isinstance(one, click.Argument)]
        parser = click.Command(None, params=options).make_parser(ctx)
        parser.allow_interspersed_args = False
        try:
            given, words, _ = parser.parse_args([*args])
            for _ in range(self.before_command(words, given) if words else 0):
                words = parser.parse_args(words[1:])[1]
        except click.UsageError:
            return []
        return words

    def before_command(self, words: list[str], given: Mapping[str, Any]) -> int:
        """Return how many of the words come before COMMAND, with these options given."""
        return 1


def run_on(
    connections: Connections,
    targets: Sequence[Target],
    command: str,
    options: FanoutOptions,
    verbose: bool = False,
) -> int:
    """Run the command on all targets, and show its output.

    Return the highest exit status of the hosts, 255 if one gave none.
    """
    lines = hostlines.HostLines()
    live = not (options.gather or options.as_json)
    stdin = piped_stdin(options.no_stdin, len(targets))

    def ended(outcome: HostOutcome[CommandResult]) -> None:
        lines.finish(outcome.host)
        if verbose and not options.as_json:
            hostlines.show_verbose(outcome)

    def one(target: Target) -> CommandResult:
        sink = functools.partial(lines.take, target.host) if live else None
        return connections.run(
            target, command, as_user=True, timeout_s=options.timeout_s, stdin=stdin, sink=sink
        )

    result = connections.each(targets, one, max_workers=options.fanout, on_outcome=ended)
    if options.as_json:
        output.data(hostlines.data_of(result))
    else:
        if options.gather:
            hostlines.show_grouped(result)
        hostlines.show_trouble(result)
    return exit_status_of(result)
