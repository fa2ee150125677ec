"""Every change of every command broken in turn: then `down`, or `gc`, leaves nothing."""

from __future__ import annotations

import pytest

from tests.operations.commands import COMMANDS, down, hasten, nothing, up
from tests.operations.fault_cases import cases
from tests.operations.wire import Mode

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    hasten(monkeypatch.setattr)


@pytest.mark.parametrize(
    ("name", "number", "mode"), cases((Mode.LOST, Mode.KILLED), plain_modes=(Mode.KILLED,))
)
def test_down_afterwards(world, slayer, name, number, mode):
    command = COMMANDS[name]
    world.prepare(command.before)
    world.break_off(slayer, name, command, number, mode)
    down(world.launcher)
    world.check_nothing()
    world.left_for(nothing if command.before is nothing else up)


@pytest.mark.parametrize(("name", "number", "mode"), [*cases((Mode.KILLED,))])
def test_gc_afterwards_on_another_machine(world, slayer, name, number, mode):
    command = COMMANDS[name]
    world.prepare(command.before)
    world.break_off(slayer, name, command, number, mode)
    world.collect()
    assert world.extra == {}
