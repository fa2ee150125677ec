"""What befalls the lab's hosts that run: pairs of commands, of which one undoes the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from clusterctl.cli.fault_requests import Instance, ask, clear_faults, set_fault
from clusterctl.cli.params import BitRate, Size
from clusterctl.domain.errors import UsageError

SOME_NODE = "demo-1"


def _as_given(**options: Any) -> dict[str, Any]:
    return options


def _rates(rate: int | None, down: int | None, up: int | None) -> dict[str, int]:
    """Of each direction its own rate, or that of both, or none."""
    return {"down": down or rate or 0, "up": up or rate or 0}


@dataclass(frozen=True)
class Pair:
    """A fault of running hosts. `fields` makes its fields of the options; `example` shows some."""

    kind: str
    does: str
    undo: str
    undoes: str
    otherwise: str
    options: Sequence[click.Option] = ()
    fields: Callable[..., dict[str, Any]] = _as_given
    example: str = SOME_NODE


PAIRS = (
    Pair(
        "freeze",
        "Stop all processes of a running host where they are, until `thaw`.",
        "thaw",
        "Let a frozen host go on.",
        "is not frozen",
    ),
    Pair(
        "cut",
        "Take a running host's network link down, until `mend`.",
        "mend",
        "Bring the link of a host that was cut off up again.",
        "is not cut off",
    ),
    Pair(
        "shape",
        "Give a running host's link a rate, until `unshape`. The instance `all` is every host that "
        "runs or will run, and has no rate of its own.",
        "unshape",
        "Let a host's link be as fast as it can.",
        "is not shaped",
        (
            click.Option(["--rate"], type=BitRate(), help="Both ways at once: 160mbit or 2.5gbit."),
            click.Option(["--down"], type=BitRate(), help="To the host."),
            click.Option(["--up"], type=BitRate(), help="From the host."),
        ),
        _rates,
        "all --rate 160mbit",
    ),
    Pair(
        "fill",
        "Have a running host's /data be full, until `drain`.",
        "drain",
        "Give a host's /data its room back.",
        "is not filled",
        (
            click.Option(
                ["--left"],
                type=Size(most=2**50),
                default="0",
                help="So much is left: 10MiB; default: none.",
            ),
        ),
        example=f"{SOME_NODE} --left 10MiB",
    ),
    Pair(
        "readonly",
        "Make a running host's /data read-only, as a volume that failed is, until `writable`.",
        "writable",
        "Have a host's /data be written to again.",
        "is not read-only",
    ),
)


def _commands(pair: Pair) -> tuple[click.Command, click.Command]:
    def inflict(instance: str, **options: Any) -> None:
        set_fault(pair.kind, instance_id=instance, **pair.fields(**options))

    def undo(instance: str) -> None:
        for one in ask("GET")["faults"]:
            if one["kind"] == pair.kind and one["instance_id"] == instance:
                clear_faults(one["id"])
                return
        raise UsageError(f"{instance!r:.80} {pair.otherwise}", "see `clusterctl lab fault list`")

    undo_example = pair.example.partition(" ")[0]
    return (
        _command(pair.kind, inflict, _help(pair.does, f"{pair.kind} {pair.example}"), pair.options),
        _command(pair.undo, undo, _help(pair.undoes, f"{pair.undo} {undo_example}")),
    )


def _command(
    name: str, run: Callable[..., None], help: str, options: Sequence[click.Option] = ()
) -> click.Command:
    instance = click.Argument(["instance"], type=Instance())
    return click.Command(name, callback=run, params=[instance, *options], help=help)


def _help(does: str, example: str) -> str:
    return f"{does}\n\n\b\nExample:\n  clusterctl lab fault {example}"


COMMANDS = tuple(command for pair in PAIRS for command in _commands(pair))
