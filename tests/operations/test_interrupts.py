"""Interrupted commands: repeating one continues it, and does nothing twice."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest

from clusterctl.domain.cluster import NodeState
from clusterctl.domain.errors import ClusterctlError, UsageError
from clusterctl.domain.files import ClusterFolder
from clusterctl.ec2.instances import find_instances, tag, unfinished_of
from clusterctl.ec2.launch.observe import fixed_request
from clusterctl.ec2.tags import RETIRED, UNFINISHED, Unfinished, read_unfinished
from clusterctl.operations import members, power
from clusterctl.operations.launcher import Launcher
from clusterctl.operations.up import plan_up, up
from tests.ec2.observed import instance
from tests.operations.commands import NAME, SPEC
from tests.operations.commands import up as up_three
from tests.operations.wire import Mode
from tests.operations.world import World

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("soon")]

INTERRUPTS = (Mode.STOPPED, Mode.INTERRUPTED)
FAILURES = (Mode.REFUSED, Mode.BROKEN, Mode.LOST, Mode.LOST_ONCE)


@pytest.mark.parametrize(
    "asked",
    [
        Unfinished(),
        Unfinished(add=(2,)),
        Unfinished(remove=(1, 3, 4)),
        Unfinished(add=(2, 3), remove=(1,), replace=(0, 7)),
    ],
)
def test_the_tag_is_read_as_it_was_written(asked):
    assert read_unfinished(asked.text) == asked
    assert set(asked.text) <= set("abcdefghijklmnopqrstuvwxyz0123456789 -")


@pytest.mark.parametrize("text", ["", "add", "add x", "do 1-2", "add  ", "add 9-1"])
def test_a_tag_that_makes_no_sense_says_nothing(text):
    assert read_unfinished(text) == Unfinished()


def cluster(present: Sequence[int], wanted: Sequence[int], unfinished: str, **more):
    said = {"wanted": tuple(wanted), "unfinished": read_unfinished(unfinished)}
    return [instance(index, **said, **more) for index in present]


@pytest.mark.parametrize(
    ("present", "wanted", "unfinished", "count", "under_way", "nodes"),
    [
        ([0, 1], [0, 1], "", 1, False, 3),
        # The same command again: it has launched its nodes, or is about to.
        ([0, 1], [0, 1, 2], "add 2-2", 1, False, 3),
        ([0, 1, 2], [0, 1, 2], "add 2-2", 1, False, 3),
        ([0, 1, 2], [0, 1, 2, 3], "add 2-3", 2, True, 4),
        # Another number, after the first command launched nothing.
        ([0, 1], [0, 1, 2], "add 2-2", 2, False, 4),
        ([0, 1], [0, 1, 2, 3], "add 2-3", 1, False, 3),
        ([0, 1], [0, 1, 2], "add 2-2", 2, True, "another `add` is not finished: that of demo-2"),
        ([0, 1, 2], [0, 1, 2], "add 2-2", 2, False, "clusterctl remove demo 2"),
        ([0, 1, 2], [0, 1, 2, 3], "add 2-3", 1, False, "clusterctl up demo"),
        # `remove` or `up --nodes` has withdrawn the command since.
        ([0, 1], [0, 1], "add 2-2", 1, False, 3),
        ([0, 1], [0, 1], "remove 2-2", 1, True, 3),
    ],
)
def test_which_nodes_a_repeated_add_asks_for(present, wanted, unfinished, count, under_way, nodes):
    there = cluster(present, wanted, unfinished)
    if isinstance(nodes, str):
        with pytest.raises(UsageError) as caught:
            members.grown("demo", there, count, under_way)
        assert nodes in f"{caught.value.message} {caught.value.hint}"
    else:
        made = members.grown("demo", there, count, under_way)
        assert (made.nodes, made.by_add) == (nodes, True)


def elsewhere(world: World) -> Launcher:
    """Return a launcher on another machine that has the key."""
    folder = ClusterFolder(world.folder.path.with_name("copy") / NAME)
    shutil.rmtree(folder.path.parent, ignore_errors=True)
    shutil.copytree(world.folder.path, folder.path)
    return Launcher(world.plain, folder)


def test_a_node_that_two_machines_have_launched_at_once_is_said_and_can_be_removed(world):
    world.prepare(up_three)
    other = elsewhere(world)

    def approve(plan):  # between the snapshot and the launch
        members.add(other, 1)

    late = replace(world.launcher, approve=approve)
    with pytest.raises(ClusterctlError, match="several instances for demo-3") as caught:
        members.add(late, 1)
    assert caught.value.hint.endswith("clusterctl remove demo 3")
    left = members.remove(world.launcher, [3])
    assert [node.index for node in left.nodes] == [0, 1, 2]
    nodes = find_instances(world.plain.ec2, NAME)
    assert [one.node.index for one in nodes] == [0, 1, 2]
    assert not any(one.unfinished for one in nodes)


@pytest.mark.parametrize(
    "act", [lambda one: members.add(one, 1), lambda one: members.remove(one, [1])]
)
def test_where_all_nodes_are_being_replaced_there_is_a_cluster_all_the_same(world, act):
    world.prepare(up_three)
    there = [one.node.instance_id for one in find_instances(world.plain.ec2, NAME)]
    # The state after `replace demo 0-2` was killed before its launch.
    tag(world.plain.ec2, there, {RETIRED: "yes", UNFINISHED: "replace 0-2"})
    with pytest.raises(UsageError, match="being replaced") as caught:
        act(world.launcher)
    assert caught.value.hint.endswith("clusterctl up demo")


@dataclass(frozen=True)
class Wish:
    """A command, the cluster's indices after it, and the number of new machines."""

    act: Callable[[Launcher], object]
    indices: tuple[int, ...]
    new: int = 0
    told: str = ""


class Owner:
    """Runs commands one after the other, and repeats each until it is done."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.chance = world, random.Random(seed)
        self.told: list[str] = []
        world.prepare(up_three)
        self.indices: tuple[int, ...] = (0, 1, 2)

    def ever(self) -> set[str]:
        """Return every machine so far: EC2 shows terminated ones for an hour."""
        found = find_instances(self.world.plain.ec2, NAME, states=())
        return {one.node.instance_id for one in found}

    def request(self) -> Wish:
        most = max(self.indices)
        workers = [index for index in self.indices if index]
        verbs = ["add", "replace", "stop and start", *(["remove"] * 2 if workers else [])]
        verb = self.chance.choice(verbs)
        if verb == "add":
            number = self.chance.choice((1, 1, 2))
            free = [index for index in range(most + 3) if index not in self.indices]
            return Wish(
                lambda launcher: members.add(launcher, number),
                tuple(sorted((*self.indices, *free[:number]))),
                number,
                f"add {number}",
            )
        if verb == "remove":
            gone = self.chance.sample(workers, self.chance.randint(1, min(2, len(workers))))
            return Wish(
                lambda launcher: members.remove(launcher, gone),
                tuple(index for index in self.indices if index not in gone),
                told=f"remove {gone}",
            )
        if verb == "replace":
            old = self.chance.sample(
                self.indices, self.chance.randint(1, min(2, len(self.indices)))
            )
            return Wish(
                lambda launcher: members.replace_nodes(launcher, old),
                self.indices,
                len(old),
                f"replace {old}",
            )
        return Wish(self._off_and_on, self.indices, told="stop and start")

    def _off_and_on(self, launcher: Launcher) -> None:
        power.stop(launcher)
        power.start(launcher)

    def ask(self, modes: Sequence[Mode]) -> None:
        request, before = self.request(), self.ever()
        tries, done = 0, False
        while not done:
            tries += 1
            # After some tries, the command is not interrupted any more.
            number = self.chance.randrange(30) if tries < 5 else -1
            mode = self.chance.choice(modes)
            done = self._once(request, number, mode)
            self.told.append(f"{request.told}: {mode.name} at {number}, done: {done}")
            if not done and self.chance.random() < 0.25:
                done = self._elsewhere(request)
        nodes = find_instances(self.world.plain.ec2, NAME)
        assert tuple(one.node.index for one in nodes) == request.indices, self.told
        assert {one.node.state for one in nodes} == {NodeState.RUNNING}, self.told
        assert {one.wanted for one in nodes} == {request.indices}, self.told
        assert not any(one.retired or one.unfinished for one in nodes), self.told
        if modes is INTERRUPTS:
            assert len(self.ever() - before) == request.new, self.told
        same = fixed_request(replace(SPEC, nodes=len(nodes)))
        assert plan_up(self.world.launcher, same).idle, self.told
        self.indices = request.indices

    def _once(self, request: Wish, number: int, mode: Mode) -> bool:
        launcher, wire = self.world.launcher, self.world.clients.wire
        wire.break_at(number, mode)
        try:
            request.act(launcher)
        except KeyboardInterrupt:
            # If the command was done before the interrupt, it must not be repeated.
            return launcher.progress.done
        except ClusterctlError as failure:
            self.told.append(str(failure))
            return False
        finally:
            wire.mend()
        return True

    def _elsewhere(self, request: Wish) -> bool:
        """Run `up` on another machine that has the key. It completes a command, or does nothing."""
        launcher = elsewhere(self.world)
        there = find_instances(self.world.plain.ec2, NAME)
        begun = bool(unfinished_of(there))
        spec = replace(SPEC, nodes=len({*there[0].wanted}))
        if begun:
            assert not plan_up(launcher, fixed_request(spec)).idle, self.told
        up(launcher, fixed_request(spec))
        nodes = find_instances(self.world.plain.ec2, NAME)
        now = tuple(one.node.index for one in nodes)
        assert now in (request.indices, self.indices), self.told
        self.told.append(f"up elsewhere: {now}, begun: {begun}")
        return begun if request.told != "stop and start" else True


@pytest.mark.parametrize(
    ("seed", "modes"),
    [
        pytest.param(0, INTERRUPTS, id="cut-0", marks=pytest.mark.all),
        pytest.param(1, (*INTERRUPTS, *FAILURES), id="failed-1"),
        pytest.param(1, INTERRUPTS, id="cut-1", marks=pytest.mark.all),
        pytest.param(0, (*INTERRUPTS, *FAILURES), id="failed-0", marks=pytest.mark.all),
    ],
)
def test_asked_for_until_done_it_is_done_once(world, seed, modes):
    owner = Owner(world, seed)
    for _ in range(6):
        owner.ask(modes)
