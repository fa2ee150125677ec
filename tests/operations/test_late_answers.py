"""EC2 shows what was changed late, and old answers after new ones: every command bears it."""

from __future__ import annotations

import contextlib
import itertools

import pytest

from clusterctl.domain.cluster import NodeState
from clusterctl.domain.errors import ClusterctlError, NoSuchCluster
from clusterctl.domain.timeouts import Timeouts
from clusterctl.ec2.instances import find_instances
from clusterctl.lab.faults.kinds import Lag
from tests.hostless import clear_faults
from tests.operations.commands import COMMANDS, NAME, down, nothing, shorten_timeouts
from tests.operations.commands import up as up_three
from tests.operations.wire import ApiCall, Mode
from tests.operations.world import ALONE, INTERFACES, World

pytestmark = pytest.mark.slow
LATE_S = 0.4
COMMANDS_FOR_ALL = ("up", "down", "replace-head", "start")
KINDS = ("tags", "states", "addresses", "groups", "volumes", "visible", "spot")


@pytest.fixture(autouse=True)
def soon(monkeypatch, world):
    shorten_timeouts(monkeypatch.setattr)
    monkeypatch.setattr(world, "timeouts", Timeouts(shown_s=10 * LATE_S, known_s=5 * LATE_S))


@pytest.fixture
def late(faults):
    """Return a function that has EC2 show what it names late."""

    def begin(kinds=KINDS, reordered=False) -> None:
        faults(Lag(**{f"{kind}_s": LATE_S for kind in kinds}, reordered=reordered))

    return begin


def cases():
    """Yield (command, what is late, reordered): each kind with each command, in one of the orders.

    Without --all, each kind once, and all at once with half of the commands.
    """
    orders = {False: "in order", True: "reordered"}
    for number, name in enumerate(COMMANDS):
        for which, kind in enumerate((*KINDS, "all")):
            usual = which == number if kind != "all" else name in COMMANDS_FOR_ALL
            reordered = kind == "all" or (which + number) % 2 == 1
            yield pytest.param(
                *(name, KINDS if kind == "all" else (kind,), reordered),
                id=f"{name}, {kind}, {orders[reordered]}",
                marks=() if usual else pytest.mark.all,
            )


@pytest.mark.parametrize(("name", "kinds", "reordered"), [*cases()])
def test_a_command_comes_to_its_end(world: World, late, name, kinds, reordered):
    command = COMMANDS[name]
    world.prepare(command.before)
    before = world.instance_ids
    late(kinds, reordered)
    command.act(world.launcher)
    clear_faults()
    world.check_end(name, before)


def interrupted():
    """Yield (what comes next, the call after which `up` is interrupted, reordered)."""
    steps = ("ImportKeyPair", "CreateSecurityGroup", "AuthorizeSecurityGroupIngress")
    steps_of_address = ("AllocateAddress", "RunInstances", "AssociateAddress")
    more = ("CreatePlacementGroup", *steps_of_address)
    for again, action in itertools.product((down, up_three), (*steps, *more)):
        for reordered in (False, True):
            usual = action in steps_of_address and not reordered
            yield pytest.param(again, action, reordered, marks=() if usual else pytest.mark.all)


@pytest.mark.parametrize(("again", "action", "reordered"), [*interrupted()])
def test_what_an_interrupted_up_has_made_is_not_made_twice_nor_left(
    world: World, late, again, action, reordered
):
    world.prepare(nothing)
    late(reordered=reordered)
    world.clients.wire.break_at(ApiCall(action), Mode.INTERRUPTED)
    with pytest.raises((KeyboardInterrupt, ClusterctlError)):
        up_three(world.launcher)
    world.clients.wire.mend()
    again(world.launcher)
    clear_faults()
    if again is down:
        world.check_nothing()
    else:
        world.check_whole(COMMANDS["up"])


def pairs():
    """Yield each pair of commands; without --all, each command once."""
    for (one, first), (two, second) in itertools.product(enumerate(COMMANDS), repeat=2):
        marks = () if (one + two) % 8 == 0 and one <= two else pytest.mark.all
        yield pytest.param(first, second, marks=marks)


@pytest.mark.parametrize(("first", "second"), [*pairs()])
def test_a_command_that_follows_at_once(world: World, late, first, second):
    """It begins when the changes of the first one are shown now and then. It may refuse."""
    world.prepare(COMMANDS[first].before)
    late(reordered=True)
    COMMANDS[first].act(world.launcher)
    try:
        COMMANDS[second].act(world.launcher)
    except ClusterctlError:
        clear_faults()
        with contextlib.suppress(NoSuchCluster):
            down(world.launcher)
        assert world.extra == {}, world.extra
        return
    clear_faults()
    there = find_instances(world.plain.ec2, NAME)
    alone = dict.fromkeys(ALONE, 1) if there else {}
    of_nodes = {"i": 1, "vol": 1, "eni": INTERFACES}
    assert world.extra == {kind: n * len(there) for kind, n in of_nodes.items() if there} | alone
    if second != "down":
        shown = {one.node.state for one in there}
        # Here nothing waits for SSH, so an answer from before `stop` has nodes run that only start.
        assert shown <= {COMMANDS[second].state, COMMANDS[first].state, NodeState.PENDING}
