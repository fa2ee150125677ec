"""Every API call of every command broken in turn: it converges, and nothing is ever leaked."""

from __future__ import annotations

import contextlib

import pytest

from clusterctl.domain.errors import UsageError
from tests.operations.deeds import COMMANDS, down, hasten, nothing, up
from tests.operations.slain import slayer as slayer_of
from tests.operations.wire import READS, Mode
from tests.operations.world import World, an_hour_later

LOOKS = (
    "DescribeSubnets DescribeVpcs DescribeKeyPairs DescribeSecurityGroups DescribePlacementGroups "
    "DescribeAddresses"
)
# For a launch.
CATALOGUE = (
    "DescribeInstanceTypes DescribeImages DescribeInstanceTypeOfferings DescribeInstances "
    "GetServiceQuota DescribeInstanceAttribute"
)
DISMISSAL = "DescribeInstances DescribeInstances TerminateInstances DescribeInstances"
CALLS = {
    "up": f"DescribeInstances {LOOKS} DescribeInstanceTypes GetParameter DescribeImages "
    "DescribeImages DescribeInstanceTypeOfferings GetProducts DescribeInstances GetServiceQuota "
    "CreatePlacementGroup ImportKeyPair CreateSecurityGroup AuthorizeSecurityGroupIngress "
    "AuthorizeSecurityGroupEgress DescribePlacementGroups RunInstances DescribeInstances "
    "AllocateAddress AssociateAddress DescribeInstances DescribeInstances",
    "down": "DescribeInstances TerminateInstances DescribeInstances DescribeAddresses "
    "ReleaseAddress DescribeSecurityGroups DeleteSecurityGroup DescribePlacementGroups "
    "DeletePlacementGroup DescribeKeyPairs DeleteKeyPair",
    "add": f"DescribeInstances {LOOKS} {CATALOGUE} CreateTags DescribePlacementGroups "
    "RunInstances DescribeInstances DescribeInstances",
    "remove": f"DescribeInstances CreateTags {DISMISSAL} DescribeInstances",
    "replace": f"DescribeInstances CreateTags DescribeInstances {LOOKS} {CATALOGUE} "
    f"DescribePlacementGroups RunInstances DescribeInstances {DISMISSAL}",
    "replace-head": f"DescribeInstances CreateTags DescribeInstances {LOOKS} {CATALOGUE} "
    "DescribePlacementGroups RunInstances DescribeInstances AssociateAddress DescribeInstances "
    f"{DISMISSAL}",
    "stop": "DescribeInstances StopInstances CreateTags DescribeInstances",
    "start": f"DescribeInstances {LOOKS} StartInstances DescribeInstances DescribeInstances",
}
FOR_CHANGES = (Mode.REFUSED, Mode.BROKEN, Mode.LOST, Mode.LOST_ONCE, Mode.INTERRUPTED, Mode.KILLED)


# Before these nothing is done that a second run would not do alike: it makes the same calls.
LASTING = {"up": "CreatePlacementGroup", "stop": "StopInstances", "start": "StartInstances"}
LASTING |= {"down": "TerminateInstances", "add": "CreateTags", "remove": "CreateTags"}
FOR_LOOKS = (Mode.REFUSED, Mode.STOPPED)


def first_looks(name: str) -> list[int]:
    calls = CALLS[name].split()
    end = calls.index(LASTING.get(name, "RunInstances"))
    return [number for number in range(end) if calls[number].startswith(READS)]


def cases(changes: tuple[Mode, ...], looks: tuple[Mode, ...] = (), only: str = ""):
    """(command, call, mode): every change in each of these ways, later looks in one of theirs."""
    for name in COMMANDS:
        first = first_looks(name)
        for number, call in enumerate(CALLS[name].split()):
            if call.startswith(READS):
                modes = (looks[number % len(looks)],) if looks and number not in first else ()
            else:
                modes = changes if only in call else ()
            for mode in modes:
                yield pytest.param(name, number, mode, id=f"{name}-{number}-{call}-{mode.name}")


@pytest.fixture(scope="module")
def world(moto_url, tmp_path_factory):
    return World(moto_url, tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def slayer(moto_url):
    with slayer_of(moto_url) as started:
        yield started


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    hasten(monkeypatch.setattr)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_calls_are_those_broken_here(world, name):
    world.prepare(COMMANDS[name].before)
    world.clients.wire.mend()
    COMMANDS[name].act(world.launcher)
    assert world.clients.wire.calls == CALLS[name].split()


@pytest.mark.parametrize(
    ("name", "number", "mode"),
    [
        *cases(FOR_CHANGES, FOR_LOOKS),
        *cases((Mode.FAILED, Mode.SLAIN), only="RunInstances"),
    ],
)
def test_once_more(world, slayer, monkeypatch, name, number, mode):
    command = COMMANDS[name]
    world.prepare(command.before)
    world.break_off(slayer, name, command, number, mode)
    converge(world, monkeypatch, name)


@pytest.mark.parametrize("mode", FOR_LOOKS)
@pytest.mark.parametrize("name", COMMANDS)
def test_once_more_after_every_first_look(world, slayer, monkeypatch, name, mode):
    command = COMMANDS[name]
    world.prepare(command.before)
    for number in first_looks(name):
        if world.break_off(slayer, name, command, number, mode):
            # What was asked for can be done without, a price for example: it is done.
            world.prepare(command.before)
    converge(world, monkeypatch, name)


def converge(world, monkeypatch, name):
    """Do it once more: all is as it is to be, and nobody finds anything to collect."""
    command = COMMANDS[name]
    with contextlib.suppress(UsageError) if name == "remove" else contextlib.nullcontext():
        # What has been removed is not known any more.
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


@pytest.mark.parametrize(("name", "number", "mode"), [*cases((Mode.BROKEN, Mode.KILLED))])
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
