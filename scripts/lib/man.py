"""Write the man pages of all commands into a folder: `python scripts/lib/man.py FOLDER`.

The pages are made from click's help texts, as `--help` prints them: clusterctl.1, clusterctl-up.1,
cctl.1 (a link to the first), runclust.1, copyclust.1. click-man does as much, but runs together the
lines of examples, and escapes nothing: a line that begins with a dot is lost.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import click

import clusterctl
from clusterctl.cli.copyclust import copyclust
from clusterctl.cli.main import COMMANDS, cli
from clusterctl.cli.runclust import runclust
from clusterctl.cli.verify import copyclust_verify

ROOTS = {
    "clusterctl": cli,
    "runclust": runclust,
    "copyclust": copyclust,
    "copyclust verify": copyclust_verify,
}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, command in ROOTS.items():
        root = click.Context(command, info_name=name, **command.context_settings)
        for context in contexts(root):
            file_of(folder, context.command_path).write_text(page(context), encoding="utf-8")
    link = file_of(folder, "cctl")
    link.unlink(missing_ok=True)
    link.symlink_to("clusterctl.1")


def file_of(folder: Path, path: str) -> Path:
    return folder / f"{path.replace(' ', '-')}.1"


def contexts(context: click.Context) -> Iterator[click.Context]:
    """Yield a command's context, and those of all commands below it."""
    yield context
    for name, command in below(context).items():
        yield from contexts(click.Context(command, info_name=name, parent=context))


def below(context: click.Context) -> dict[str, click.Command]:
    group = context.command
    if not isinstance(group, click.Group):
        return {}
    found = {name: group.get_command(context, name) for name in group.list_commands(context)}
    return {name: command for name, command in found.items() if command and not command.hidden}


def page(context: click.Context) -> str:
    """Return a command's page, in man's macros of troff."""
    path, command = context.command_path, context.command
    title = path.replace(" ", "-")
    lines = [
        # No date: the same sources make the same page.
        f'.TH "{title.upper()}" "1" "" "clusterctl {clusterctl.__version__}" "clusterctl"',
        *(".SH NAME", rf"{escaped(title)} \- {escaped(short(path, command))}"),
        *(".SH SYNOPSIS", f".B {escaped(path)}"),
        escaped(" ".join(command.collect_usage_pieces(context))),
        *(".SH DESCRIPTION", *paragraphs(command.help or "")),
    ]
    lines.append(".SH OPTIONS")  # each command has --help
    options = [one for one in command.get_params(context) if isinstance(one, click.Option)]
    # Those for the account too, which the help has in one line.
    records = (click.Option.get_help_record(one, context) for one in options)
    for names, text in filter(None, records):
        lines += [".TP", rf"\fB{escaped(names)}\fP", escaped(text)]
    inner = below(context)
    if inner:
        lines.append(".SH COMMANDS")
    for name, one in inner.items():
        lines += [".TP", rf"\fB{escaped(title)}\-{escaped(name)}\fP(1)"]
        lines.append(escaped(short(f"{path} {name}", one)))
    if context.parent:
        parent = context.parent.command_path.replace(" ", "-")
        lines += [".SH SEE ALSO", rf".BR {escaped(parent)} (1)"]
    return "\n".join(lines) + "\n"


def short(path: str, command: click.Command) -> str:
    """Return what the command does, in one line."""
    program, _, name = path.partition(" ")
    if program == "clusterctl" and name in COMMANDS:
        return COMMANDS[name][1].rstrip(".")
    return command.get_short_help_str(200).rstrip(".")


def paragraphs(text: str) -> Iterator[str]:
    """Yield the lines of a help text. Lines after a backspace, click's mark, are not joined."""
    for paragraph in inspect.cleandoc(text).split("\f")[0].split("\n\n"):
        yield ".PP"
        if paragraph.startswith("\b\n"):
            yield from (".nf", *map(escaped, paragraph[2:].splitlines()), ".fi")
        else:
            yield escaped(" ".join(paragraph.split()))


def escaped(line: str) -> str:
    """Return a line of text for troff. A hyphen stays one that can be copied and searched for."""
    line = line.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return rf"\&{line}" if line.startswith(".") else line


if __name__ == "__main__":
    main(Path(sys.argv[1]))
