"""Each API call of each command is broken in turn. Repeating the command completes it."""

from __future__ import annotations

import itertools

import pytest

from tests.operations.commands import COMMANDS, down, hasten, nothing, up
from tests.operations.fault_cases import (
    CALLS,
    FOR_CHANGES,
    FOR_LOOKS,
    LARGEST,
    LAUNCH,
    changes,
    first_looks,
    later_looks,
)
from tests.operations.wire import Mode
from tests.operations.world import an_hour_later

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    hasten(monkeypatch.setattr)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_calls_are_those_broken_here(world, name):
    world.prepare(COMMANDS[name].before)
    world.clients.wire.mend()
    COMMANDS[name].act(world.launcher)
    # The number of polls until a state is reached depends on timing.
    assert once_each(world.clients.wire.calls) == once_each(CALLS[name].split())


def once_each(calls):
    """Return the calls without repetitions."""
    return [call for call, _ in itertools.groupby(calls)]


@pytest.mark.parametrize(
    ("name", "number", "mode"),
    [
        *changes(
            [(mode,) for mode in FOR_CHANGES], [(Mode.REFUSED,), (Mode.LOST,), (Mode.KILLED,)]
        ),
        *later_looks(),
        ("up", CALLS["up"].split().index(LAUNCH), Mode.FAILED),
        ("up", CALLS["up"].split().index(LAUNCH), Mode.SLAIN),
    ],
)
def test_a_command_completes_when_repeated_after_a_broken_change(
    world, slayer, monkeypatch, name, number, mode
):
    command = COMMANDS[name]
    world.prepare(command.before)
    done = world.break_off(slayer, name, command, number, mode)
    converge(world, monkeypatch, name, done)


@pytest.mark.parametrize("turn", [0, pytest.param(1, marks=pytest.mark.all)])
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in LARGEST else pytest.mark.all) for name in COMMANDS],
)
def test_a_command_completes_when_repeated_after_each_broken_first_read(
    world, slayer, monkeypatch, name, turn
):
    command = COMMANDS[name]
    world.prepare(command.before)
    for number in first_looks(name):
        mode = FOR_LOOKS[(number + turn) % len(FOR_LOOKS)]
        if world.break_off(slayer, name, command, number, mode):
            # The command succeeds without this call's answer, for example without a price.
            world.prepare(command.before)
    converge(world, monkeypatch, name)


def converge(world, monkeypatch, name, done=False):
    """Repeat the command unless it succeeded. Assert its result, and that nothing is left over."""
    command = COMMANDS[name]
    if command.again or not done:
        command.once_more(world.launcher)
    world.check_whole(command)
    an_hour_later(monkeypatch)
    assert world.orphans() == []
    if command.before is nothing:
        down(world.launcher)
        world.check_nothing()
        world.left_for(nothing)
    elif command.before is up and command.indices != (0, 1, 2, 3):
        world.left_for(up)
