"""Each change of each command is broken in turn. Afterwards, `down` or `gc` leaves nothing."""

from __future__ import annotations

import pytest

from tests.operations.commands import COMMANDS, down, nothing
from tests.operations.fault_cases import (
    LAUNCH,
    by_turns_and_all,
    changes_of,
    in_turn,
    named,
    one_of_each,
    others_in_turn,
    turn_of,
)
from tests.operations.wire import Mode

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("soon")]

DOWN, GC, DOWN_LOST = "down", "gc", "down after no answer"
WAYS = (DOWN, GC, DOWN_LOST)


@pytest.mark.parametrize(("name", "way", "others"), [*by_turns_and_all(COMMANDS, WAYS, ("up",))])
def test_nothing_is_left_afterwards(world, killer, name, way, others):
    """Without `--all`, one change of each kind is broken, in `up` only, which makes all kinds."""
    command, calls = COMMANDS[name], world.calls_of(name)
    changes = changes_of(calls)
    chosen = in_turn(one_of_each(changes), WAYS, way, turn_of(name))
    if name == "up" and LAUNCH not in chosen:
        chosen.append(LAUNCH)
    if others:
        chosen = others_in_turn(changes, WAYS, way, chosen)
    for call in chosen:
        mode = Mode.LOST if way == DOWN_LOST else Mode.KILLED
        world.prepare(command.before)
        with named(name, calls, call, way):
            world.break_off(killer, name, call, mode)
            if way == GC:
                world.collect()  # on a machine without the cluster's folder
                assert world.extra == {}
            else:
                down(world.launcher)
                world.check_nothing()
                world.left_for(nothing)
