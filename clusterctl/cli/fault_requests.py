"""What the commands of `clusterctl lab fault` share: their options, and the lab's page."""

from __future__ import annotations

from typing import Any

import click

from clusterctl.cli import output
from clusterctl.cli.running_lab import running_lab
from clusterctl.domain.errors import UsageError

PAGE = "/_lab/faults"

TIMES = click.option(
    "--times",
    default=1,
    show_default=True,
    type=click.IntRange(0),
    help="How often it strikes; 0: until it is cleared.",
)
SKIP = click.option(
    "--skip",
    default=0,
    show_default=True,
    type=click.IntRange(0),
    help="Let so many requests pass first.",
)


class Instance(click.ParamType):
    """An instance of the lab, by its id, `all`, or by its name: `demo-1`.

    Raises UsageError for a name that none or two of them have, LabError where no lab runs.
    """

    name = "instance"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        from clusterctl.lab import lifecycle

        if value == "all" or value.startswith("i-"):
            return value
        ids = [
            one["instance_id"]
            for one in lifecycle.instances(running_lab())
            if one["name"] == value and one["state"] != "terminated"
        ]
        if len(ids) > 1:
            raise UsageError(f"{', '.join(ids)} are called {value}", "name one of them by its id")
        if not ids:
            raise UsageError(f"no instance {value!r:.80}", "see `clusterctl lab status`")
        return ids[0]


def ask(method: str, query: str = "", body: object = None) -> Any:
    """What the page says. Raises UsageError if the lab refuses, LabError if there is none."""
    from clusterctl.lab import pages

    return pages.ask(running_lab(), PAGE + query, method, body)


def set_fault(kind: str, **fields: Any) -> None:
    """Set a fault, and print its id and what it is."""
    made = ask("POST", body={"kind": kind, **fields})
    output.line(f"{made['id']}: {made['text']}")
    note_problem(made)


def note_problem(fault: dict[str, Any]) -> None:
    """Say what keeps a host from being as its faults have it."""
    if fault["problem"]:
        output.note(f"{fault['id']}: not yet: {fault['problem']}")


def clear_faults(id: str | None) -> None:
    """Clear one or all, and print what is cleared. Raises UsageError if there is no such."""
    if id is not None and not (id.isascii() and id.isalnum()):
        raise UsageError(f"no fault {id!r:.80}", "see `clusterctl lab fault list`")
    cleared = ask("DELETE", f"?id={id}" if id is not None else "")["cleared"]
    for one in cleared:
        output.line(f"{one['id']}: cleared ({one['text']})")
        note_problem(one)
    if not cleared:
        output.note("no fault was set")
