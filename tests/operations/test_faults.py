"""Each API call of each command is broken in turn. Repeating the command completes it."""

from __future__ import annotations

import pytest

from clusterctl.cli.main import cli, run_command
from clusterctl.ec2 import session
from clusterctl.operations.members import set_quarantine
from tests.moto_ec2 import REGION
from tests.operations.commands import COMMANDS, SHORT, down, nothing, up
from tests.operations.fault_cases import (
    FOR_CHANGES,
    FOR_READS,
    LARGEST,
    LAUNCH,
    by_turns_and_all,
    changes_of,
    first_reads,
    in_turn,
    later_reads,
    named,
    one_of_each,
    others_in_turn,
    turn_of,
)
from tests.operations.wire import ApiCall, Mode
from tests.operations.world import World, an_hour_later

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("soon")]
# Commands that together make all resources of a cluster.
MAKING = ("up", "replace-head")


def test_each_call_has_its_turn_and_each_way():
    for count in range(1, 20):
        calls = [ApiCall("CreateTags", number + 1) for number in range(count)]
        turns = {mode: in_turn(calls, FOR_CHANGES, mode, count) for mode in FOR_CHANGES}
        assert all(turns.values())
        assert {call for each in turns.values() for call in each} == {*calls}


# How often a command reads instances. Reads that follow one another, until a state is reached,
# count once. One more needs a reason.
READS = {
    "up": 3,  # there, quota, launched and ready
    "add": 4,  # there, quota and lost nodes, launched and ready, tags to remove
    "remove": 3,  # there, after launches of unknown outcome, terminated and ready
    # there, with the old ones marked, quota and lost nodes, launched and ready, terminated
    "replace": 5,
    "replace-head": 6,  # and while the elastic address is not free
    "stop": 2,  # there, stopped
    "start": 3,  # there, stopped nodes whose cost is noted before each start, ready
    "down": 4,  # there, terminated, before what they used is deleted: with the tag, with the key
    "up demo --dry-run --nodes 4": 2,  # there, quota
    "hosts demo": 1,
    "costs demo": 2,  # there, ended by a limit
    "gc": 1,
    "quarantine": 1,
}


def test_state_is_read_once(world, monkeypatch):
    reads = {name: world.calls_of(name) for name in COMMANDS}
    world.prepare(up)
    for name, value in (("HOME", str(world.folder.home)), ("LAB", "0")):
        monkeypatch.setenv(f"CLUSTERCTL_{name}", value)
    monkeypatch.setattr(session, "Clients", lambda account: world.clients)
    set_quarantine(world.clients, world.folder, [1], "a broken GPU")
    reads["quarantine"] = tuple(world.clients.wire.calls)
    for line in READS.keys() - reads.keys():
        world.clients.wire.mend()
        where = ("--region", REGION, "--endpoint-url", world.clients.account.endpoint_url)
        run_command(cli, [*line.split(), *where], obj=SHORT)
        reads[line] = tuple(world.clients.wire.calls)
    polls = ("DescribeInstances", "DescribeInstanceStatus")
    counted = {
        name: sum(
            call.action == "DescribeInstances" and (before and before.action) not in polls
            for before, call in zip((None, *calls), calls)
        )
        for name, calls in reads.items()
    }
    assert counted == READS


@pytest.mark.parametrize(("name", "mode", "others"), [*by_turns_and_all(COMMANDS, FOR_CHANGES)])
def test_a_command_completes_when_repeated_after_a_broken_change(
    world, killer, monkeypatch, name, mode, others
):
    changes = changes_of(world.calls_of(name))
    chosen = in_turn(changes, FOR_CHANGES, mode, turn_of(name))
    if name == "up" and LAUNCH not in chosen:
        # A failed launch costs the most.
        chosen.append(LAUNCH)
    if others:
        chosen = others_in_turn(changes, FOR_CHANGES, mode, chosen)
    for call in chosen:
        check(world, killer, monkeypatch, name, call, mode, others)


@pytest.mark.parametrize("mode", [Mode.FAILED, Mode.KILLED_BEFORE], ids=lambda mode: mode.name)
def test_a_launch_that_was_not_carried_out_is_repeated(world, killer, monkeypatch, mode):
    check(world, killer, monkeypatch, "up", LAUNCH, mode)


@pytest.mark.parametrize(
    ("name", "mode", "others"), [*by_turns_and_all(COMMANDS, FOR_READS, LARGEST)]
)
def test_a_command_completes_when_repeated_after_a_broken_later_read(
    world, killer, monkeypatch, name, mode, others
):
    """Without `--all`, one read of each kind is broken, after the first change."""
    reads = later_reads(world.calls_of(name))
    chosen = in_turn(one_of_each(reads), FOR_READS, mode)
    if others:
        chosen = others_in_turn(reads, FOR_READS, mode, chosen)
    for call in chosen:
        check(world, killer, monkeypatch, name, call, mode, others)


@pytest.mark.parametrize("turn", [0, pytest.param(1, marks=pytest.mark.all)])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("up", "start") else pytest.mark.all)
        for name in COMMANDS
    ],
)
def test_a_command_completes_when_repeated_after_each_broken_first_read(
    world, killer, monkeypatch, name, turn
):
    calls, command = world.calls_of(name), COMMANDS[name]
    world.prepare(command.before)
    for number, call in enumerate(first_reads(calls)):
        mode = FOR_READS[(number + turn) % len(FOR_READS)]
        with named(name, calls, call, mode):
            if world.break_off(killer, name, call, mode):
                # The command succeeds without this call's answer, for example without a price.
                world.prepare(command.before)
    converge(world, monkeypatch, name)


def check(
    world: World, killer, monkeypatch, name: str, call: ApiCall, mode: Mode, others: bool = False
) -> None:
    """Break a call of a command, and complete the command."""
    calls = world.calls_of(name)
    world.prepare(COMMANDS[name].before)
    with named(name, calls, call, mode):
        done = world.break_off(killer, name, call, mode)
        # A search for orphans takes as long as a command.
        converge(world, monkeypatch, name, done, others or name in MAKING)


def converge(
    world: World, monkeypatch, name: str, done: bool = False, orphans: bool = True
) -> None:
    """Repeat the command unless it succeeded. Assert its result, and that nothing is left over.

    With `orphans`, assert that `gc` takes nothing of it for an orphan.
    """
    command = COMMANDS[name]
    if command.again or not done:
        command.once_more(world.launcher)
    world.check_whole(command)
    if orphans:
        with monkeypatch.context() as patches:
            an_hour_later(patches)
            assert world.orphans() == []
    if command.before is nothing:
        down(world.launcher)
        world.check_nothing()
        world.left_for(nothing)
    else:
        world.leave(command)
