"""EC2 shows tags a moment after they were written: no command may decide by those of before."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from clusterctl.operations import members
from tests.operations.commands import COMMANDS
from tests.operations.commands import up as up_three
from tests.operations.world import World

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("soon")]
TAGGING = ("CreateTags", "DeleteTags")
# After the last change of tags, whether the n-th read shows the tags of before it.
LATE: dict[str, Callable[[int], bool]] = {
    "from the second read on": lambda read: read < 2,
    "from the fourth read on": lambda read: read < 4,
    "never": lambda read: True,
    "now and then": lambda read: read % 2 == 0,
}


@pytest.fixture
def late_tags(world):
    """Return a function that has EC2 show tags late, by one of LATE. Undone at the end."""
    client = world.clients.ec2
    registered = []

    def begin(stale: Callable[[int], bool]) -> None:
        before: dict[str, list] = {}
        reads = itertools.count(1)

        def changes(params, **_):
            nonlocal reads
            reads = itertools.count(1)
            found = world.plain.ec2.describe_instances(InstanceIds=params["Resources"])
            for reservation in found["Reservations"]:
                for one in reservation["Instances"]:
                    before.setdefault(one["InstanceId"], one.get("Tags", []))

        def show(parsed, **_):
            if stale(next(reads)):
                for reservation in parsed.get("Reservations", ()):
                    for one in reservation["Instances"]:
                        one["Tags"] = before.get(one["InstanceId"], one.get("Tags", []))

        registered.extend((f"before-parameter-build.ec2.{one}", changes) for one in TAGGING)
        registered.append(("after-call.ec2.DescribeInstances", show))
        for event, handler in registered:
            client.meta.events.register(event, handler)

    yield begin
    for event, handler in registered:
        client.meta.events.unregister(event, handler)


def cases():
    """Yield (command, lateness). Without --all, those that once terminated or launched wrongly."""
    for name in COMMANDS:
        for late in LATE:
            usual = name in ("remove", "replace") and late in ("from the second read on", "never")
            yield pytest.param(name, late, marks=() if usual else pytest.mark.all)


@pytest.mark.parametrize(("name", "late"), [*cases()])
def test_a_command_counts_its_own_tags(world: World, late_tags, name, late):
    command = COMMANDS[name]
    world.prepare(command.before)
    before = world.instance_ids
    late_tags(LATE[late])
    command.act(world.launcher)
    world.check_end(name, before)


@pytest.mark.parametrize("late", ["never", "now and then"])
def test_quarantine_is_reported_as_it_was_requested(world: World, late_tags, late):
    world.prepare(up_three)
    late_tags(LATE[late])
    away = members.set_quarantine(world.clients, world.folder, [1], "a broken GPU")
    assert [node.index for node in away.in_service] == [0, 2]
    back = members.set_quarantine(world.clients, world.folder, [1], None)
    assert [node.index for node in back.in_service] == [0, 1, 2]


@pytest.mark.parametrize("late", ["from the fourth read on"])
def test_a_command_cut_short_is_completed_by_the_next(world: World, late_tags, late):
    """`remove` has tagged the others and terminated nothing when it was interrupted."""
    world.prepare(up_three)
    late_tags(LATE[late])

    def interrupt(**_):
        raise KeyboardInterrupt

    events = world.clients.ec2.meta.events
    events.register("before-call.ec2.TerminateInstances", interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            members.remove(world.launcher, [1])
    finally:
        events.unregister("before-call.ec2.TerminateInstances", interrupt)
    members.remove(world.launcher, [1])
    world.check_whole(COMMANDS["remove"])
