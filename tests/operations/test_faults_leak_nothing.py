"""Each change of each command is broken in turn. Afterwards, `down` or `gc` leaves nothing."""

from __future__ import annotations

import pytest

from tests.operations.commands import COMMANDS, down, hasten, nothing, up
from tests.operations.fault_cases import changes
from tests.operations.wire import Mode

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    hasten(monkeypatch.setattr)


DOWN, GC, DOWN_LOST = ("down", Mode.KILLED), ("gc", Mode.KILLED), ("down", Mode.LOST)


@pytest.mark.parametrize(
    ("name", "number", "way", "mode"), [*changes([DOWN, GC, DOWN_LOST], [DOWN, GC])]
)
def test_nothing_is_left_afterwards(world, slayer, name, number, way, mode):
    command = COMMANDS[name]
    world.prepare(command.before)
    world.break_off(slayer, name, command, number, mode)
    if way == "down":
        down(world.launcher)
        world.check_nothing()
        world.left_for(nothing if command.before is nothing else up)
    else:
        world.collect()  # on a machine without the cluster's folder
        assert world.extra == {}
