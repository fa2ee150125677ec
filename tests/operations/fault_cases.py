"""Which calls of a command are broken, and in which ways. The calls are recorded, not written here.

A case is a command and a way to break it, and breaks several calls one after the other. Without
`--all`, each call is broken in one of the ways in turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import pytest

from tests.operations.commands import COMMANDS
from tests.operations.wire import ApiCall, Mode

Way = TypeVar("Way")

FOR_CHANGES = (Mode.REFUSED, Mode.KILLED, Mode.BROKEN, Mode.INTERRUPTED, Mode.LOST, Mode.LOST_ONCE)
FOR_READS = (Mode.REFUSED, Mode.STOPPED)
LAUNCH = ApiCall("RunInstances")
# Commands that together make every kind of read after their first change.
LARGEST = ("up", "down")


def changes_of(calls: Sequence[ApiCall]) -> list[ApiCall]:
    changes = [call for call in calls if call.changes]
    assert changes, calls
    return changes


def first_reads(calls: Sequence[ApiCall]) -> list[ApiCall]:
    """Return the reads before the first change. A second run of the command makes them again."""
    return [*calls[: calls.index(changes_of(calls)[0])]]


def later_reads(calls: Sequence[ApiCall]) -> list[ApiCall]:
    first = first_reads(calls)
    return [call for call in calls if not call.changes and call not in first]


def in_turn(
    calls: Sequence[ApiCall], ways: Sequence[Way], way: Way, start: int = 0
) -> list[ApiCall]:
    """Return the calls whose turn it is with this way. Every call has one, and so has every way.

    The first call has its turn with the way number `start`, the next one with the next way.
    """
    return [
        calls[number % len(calls)]
        for number in range(max(len(calls), len(ways)))
        if calls and ways[(number + start) % len(ways)] == way
    ]


def others_in_turn(
    calls: Sequence[ApiCall], ways: Sequence[Way], way: Way, chosen: Sequence[ApiCall]
) -> list[ApiCall]:
    """Return the calls that `--all` breaks too: each with every other way."""
    start = ways.index(way)
    return [
        call
        for number, call in enumerate(calls)
        if (number + start) % 2 == 0 and call not in chosen
    ]


def turn_of(name: str) -> int:
    """Return where a command's turns start, so that calls common to commands differ in theirs."""
    return [*COMMANDS].index(name)


def one_of_each(calls: Iterable[ApiCall]) -> list[ApiCall]:
    """Return the first call of each action."""
    return [*{call.action: call for call in reversed([*calls])}.values()][::-1]


def by_turns_and_all(names: Iterable[str], ways: Iterable[Mode], usual: Iterable[str] = COMMANDS):
    """Yield (command, way, every): calls in turn with a way, and with `--all` the other ones.

    Without `--all`, only commands in `usual` run, with every other way; the largest with all.
    """
    ways, usual = [*ways], [*usual]
    for name in names:
        for number, way in enumerate(ways):
            paired = name in LARGEST or (turn_of(name) + number) % 2 == 0
            marks = () if name in usual and paired else pytest.mark.all
            yield pytest.param(name, way, False, id=f"{name}-{_id(way)}", marks=marks)
            yield pytest.param(
                name, way, True, id=f"{name}-{_id(way)}-others", marks=pytest.mark.all
            )


def _id(way: Mode | str) -> str:
    return way.name if isinstance(way, Mode) else way


@contextmanager
def named(name: str, calls: Sequence[ApiCall], call: ApiCall, way: object) -> Iterator[None]:
    """Name the broken call if the test fails."""
    try:
        yield
    except Exception as failure:
        where = f"{name}, call {calls.index(call)} ({call.action}, its {call.nth}.), {way}"
        raise AssertionError(f"{where}: {failure}") from failure
