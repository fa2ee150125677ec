"""Commands that pass arguments on to a program: those after `--`. The errors for others."""

from __future__ import annotations

import re
import shlex
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import click

from clusterctl.cli.app_context import ClusterCommand
from clusterctl.domain.errors import UsageError

_NUMBER = re.compile(r"-?\d*\.?\d+(e-?\d+)?", re.IGNORECASE)
# Likeness from which on a word is a misspelt option rather than one of the program's (difflib).
_MISSPELT = 0.85


@dataclass
class Typed:
    """A command line in parts: `words` without options, `options` with their values, and
    `arguments`, which go to the program. `unknown` are the options among these that were typed
    before `--`, `extra` the words there for which the command has no place."""

    words: list[str] = field(default_factory=list)
    options: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)

    def line(self, command: str) -> str:
        """Return it as a shell reads it, with the program's arguments after `--`."""
        arguments = ["--", *self.arguments] if self.arguments else []
        return f"{command} {shlex.join([*self.words, *self.options, *arguments])}"


def split(command: click.Command, args: Sequence[str]) -> Typed:
    """Return the parts of a command line. A word after an unknown option is taken for its value."""
    options = {flag: one for one in command.params for flag in (*one.opts, *one.secondary_opts)}
    places = sum(isinstance(one, click.Argument) and one.nargs == 1 for one in command.params)
    end = list(args).index("--") if "--" in args else len(args)
    typed, left = Typed(), deque(args[:end])
    while left:
        word = left.popleft()
        name, _, value = word.partition("=")
        if word[:1] != "-" or word == "-":
            # A cluster's name begins with a letter: with a number in front, NAME was left out.
            fits = len(typed.words) < places - bool(typed.words and typed.words[0].isdigit())
            fits = fits and not word.endswith(".py")
            (typed.words if fits else typed.extra).append(word)
            continue
        short = word[1:2] != "-" and word[:2] in options
        known = options.get(word[:2] if short else name)
        if known is None:
            typed.unknown.append(name)
            typed.arguments.append(word)
            if not value and left and (left[0][:1] != "-" or _NUMBER.fullmatch(left[0])):
                typed.arguments.append(left.popleft())
            continue
        typed.options.append(word)
        takes = isinstance(known, click.Option) and not (known.is_flag or known.count)
        if takes and left and (len(word) == 2 if short else "=" not in word):
            typed.options.append(left.popleft())
    typed.arguments[:0] = typed.extra
    typed.arguments += args[end + 1 :]
    return typed


class ProgramCommand(ClusterCommand):
    """A command for one cluster that passes what follows `--` on to a program."""

    runs_rest = True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, [*args])
        except click.NoSuchOption as unknown:
            if ctx.resilient_parsing:
                raise
            raise self.misplaced(ctx.command_path, split(self, args), unknown.option_name) from None

    def misplaced(self, path: str, typed: Typed, option: str) -> UsageError:
        """Return the error for `option`, which the command does not have: it is misspelt, or the
        program's."""
        import difflib

        flags = [flag for one in self.params for flag in one.opts]
        close = difflib.get_close_matches(option, flags, 1, _MISSPELT)
        meant = f"did you mean {close[0]}? " if close else ""
        return UsageError(
            f"no such option: {option}", f"{meant}program arguments go after --: {typed.line(path)}"
        )
