"""Whole copies in simulated time: what breaks holds nobody else back, and nothing hangs."""

from __future__ import annotations

import pytest

from clusterctl.copy.judge import Judge
from clusterctl.copy.member import SOURCE, Member, read_gap
from clusterctl.copy.relinks import Net, Patience
from tests.copy.simulated import World, scenario

# Detection and relinking, in simulated seconds.
NOTICED_S = 4.0


@pytest.mark.parametrize("count", [1, 2, 3, 8, 32])
def test_time_of_one_copy(count):
    world = World(count)
    took = world.run()
    world.check()
    assert took < world.ideal_s * 1.05 + 1.5 + count * 0.12
    assert not any(member.leaf for member in world.coordinator.net.members.values())


@pytest.mark.parametrize("blocks", [0, 1, 2])
def test_next_to_nothing(blocks):
    world = World(3, blocks=blocks)
    assert world.run() < 5
    world.check()


FAULTS = {
    "killed": lambda w: w.kill("n3"),
    "vanished": lambda w: w.kill("n3", noticed=False),
    "frozen": lambda w: w.freeze("n3"),
    "first killed": lambda w: w.kill("n0"),
    "first frozen": lambda w: w.freeze("n0"),
    "tail killed": lambda w: w.kill("n7"),
    "tail frozen": lambda w: w.freeze("n7"),
    "two neighbours killed": lambda w: w.kill("n3", "n4"),
    "two neighbours frozen": lambda w: w.freeze("n3", "n4"),
    "three neighbours vanished": lambda w: w.kill("n2", "n3", "n4", noticed=False),
    "every other one killed": lambda w: w.kill("n0", "n2", "n4", "n6"),
    "all but the last killed": lambda w: w.kill(*w.names[:-1]),
    "all but the first frozen": lambda w: w.freeze(*w.names[1:]),
}


def test_a_fast_leaf_that_lost_the_source_at_that_moment_ends_nothing():
    """Its order is to be given again: it has no upstream just then."""
    net = Net(["n0"], {SOURCE: Member(SOURCE), "n0": Member("n0")}, Patience(), blocks=100)
    leaf = net.members["n0"]
    leaf.joined, leaf.leaf, leaf.upstream, leaf.gap = True, True, SOURCE, read_gap({})
    for now in (99.0, 100.0):
        leaf.heard_at = now
        leaf.progressed(now, {"blocks": int(now) - 90, "bytes": int(now)}, 100)
    judge = Judge(net)
    judge.lost(leaf, 99.0, SOURCE, "closed")
    judge.look(100.0)
    assert (leaf.upstream, leaf.leaf) == ("", True)


@pytest.mark.parametrize("when", [0.0, 0.5, 0.95], ids=["early", "half", "late"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_holds_nobody_back(name, when):
    world = World(8)
    world.at(0.2 + when * world.ideal_s, FAULTS[name])
    world.run()
    world.check()
    healthy = [node for node in world.nodes.values() if not (node.dead or node.frozen)]
    assert max(node.got_at for node in healthy) < world.ideal_s + NOTICED_S + 2
    for node in world.nodes.values():
        error = world.coordinator.net.members[node.name].error
        assert bool(error) == (not node.whole), (node.name, error)


@pytest.mark.parametrize("slow", ["n0", "n1", "n3", "n6", "n7"])
def test_a_slow_node_gets_it_in_its_own_time(slow):
    world = World(8, blocks=1024)
    world.nodes[slow].down = world.nodes[slow].up = world.rate / 10
    world.run()
    world.check()
    others = [node.got_at for node in world.nodes.values() if node.name != slow]
    assert max(others) < world.ideal_s * 1.1 + 8, world.describe()
    assert world.nodes[slow].got_at < world.ideal_s * 10.5 + 8


def test_what_crosses_no_link_is_no_measure():
    """With --from 0 the relay on node 0 copies from disk to disk: the others are not slow."""
    world = World(8, blocks=1024)
    world.beside_source = "n0"
    world.source.up = world.nodes["n0"].down = world.rate * 10
    world.run()
    world.check()
    members = world.coordinator.net.members
    assert not any(member.leaf or member.moves for member in members.values())
    first = world.coordinator.heard.first_complete_at - world.coordinator.began_at
    assert world.ideal_s * 0.9 < first < world.ideal_s * 1.2


def test_the_last_one_is_not_waited_for_long():
    world = World(4)
    world.at(0.95 * world.ideal_s, lambda w: w.freeze("n3"))
    took = world.run()
    world.check()
    assert world.coordinator.net.members["n3"].error
    assert took < world.ideal_s + 2 * world.coordinator.net.patience.last_dead_s


@pytest.mark.parametrize("slow", ["n0", "n3", "n6"])
def test_a_slow_uplink_ends_at_the_tail(slow):
    world = World(8, blocks=1024)
    world.nodes[slow].up = world.rate / 5
    world.run()
    world.check()
    assert max(node.got_at for node in world.nodes.values()) < world.ideal_s * 1.1 + 14
    leaves = [m.name for m in world.coordinator.net.in_order if m.leaf]
    assert leaves == [slow], world.describe()


@pytest.mark.parametrize("slow", [("n2", "n3"), ("n0", "n1"), ("n1", "n5"), ("n6", "n7")])
def test_two_slow_nodes(slow):
    world = World(8, blocks=1024)
    for name in slow:
        world.nodes[name].down = world.nodes[name].up = world.rate / 10
    world.run()
    world.check()
    others = [node.got_at for node in world.nodes.values() if node.name not in slow]
    assert max(others) < world.ideal_s * 2 + 25, world.describe()


def test_one_that_thaws_ends_whole():
    world = World(8, blocks=512)
    world.at(5, lambda w: w.freeze("n2")).at(12, lambda w: w.thaw("n2"))
    world.run()
    world.check()
    assert world.nodes["n2"].whole


def test_a_late_node_joins_at_the_tail():
    world = World(8)
    world.nodes["n2"].listens_at = 6.0
    world.run()
    world.check()
    others = [node.got_at for node in world.nodes.values() if node.name != "n2"]
    assert max(others) < world.ideal_s * 1.05 + 3
    assert world.nodes["n2"].got_at < world.ideal_s * 2.1 + 8


def test_one_that_compares_for_long_holds_nobody_back():
    world = World(6)
    world.nodes["n0"].compare_s = world.nodes["n1"].compare_s = 9.0
    world.run()
    world.check()
    others = [world.nodes[name].got_at for name in world.names[2:]]
    assert max(others) < world.ideal_s * 1.1 + 4, world.describe()


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("slow", [None, "n2"])
def test_uneven_gaps(tells, slow):
    world = World(6, blocks=600)
    for number, node in enumerate(world.nodes.values()):
        node.have = set(range(100 * number, 600)) if number % 2 else set(range(90 * number))
        node.tells_behind = tells
    if slow:
        world.nodes[slow].down = world.rate / 10
    world.run()
    world.check()
    if tells:
        others = [node.got_at for node in world.nodes.values() if node.name != slow]
        assert max(others) < world.ideal_s * 1.1 + 8, world.describe()


def test_nothing_missing():
    world = World(4)
    for node in world.nodes.values():
        node.have = set(range(world.blocks))
    assert world.run() < 1
    assert not any(node.received for node in world.nodes.values())


def test_nodes_that_cannot_reach_each_other_pull_from_the_source():
    world = World(5, blocks=64)
    for node in world.nodes.values():
        node.blocked = set(world.names)
    world.run()
    world.check()


def test_a_node_that_reaches_nobody_fails_and_says_so():
    world = World(4)
    world.nodes["n1"].blocked = {*world.names, SOURCE}
    world.run()
    error = world.coordinator.net.members["n1"].error
    assert "blocked" in error.hint
    assert SOURCE in error.message
    assert [n.name for n in world.nodes.values() if n.whole] == ["n0", "n2", "n3"]


def test_one_that_nobody_can_pull_from_is_a_leaf():
    world = World(6, blocks=512)
    for name in ("n3", "n4", "n5"):
        world.nodes[name].blocked = {"n2"}
    world.run()
    world.check()
    assert max(node.got_at for node in world.nodes.values()) < world.ideal_s * 1.1 + 12


@pytest.mark.parametrize("noticed", [True, False])
def test_the_source_dies(noticed):
    world = World(4)
    world.at(5, lambda w: w.kill(SOURCE, noticed=noticed))
    assert world.run() < 30
    errors = [world.coordinator.net.members[name].error for name in world.names]
    assert all("the source died" in error.message for error in errors)


def test_the_source_dies_when_the_first_node_has_everything():
    world = World(4)
    world.nodes["n0"].have = set(range(world.blocks))
    world.at(5, lambda w: w.kill(SOURCE))
    world.run()
    world.check()


def test_a_program_that_was_suspended_blames_nobody():
    world = World(4)
    for _ in range(60):
        world.step()
    world.now += 300
    world.run()
    world.check()
    assert not any(member.leaf for member in world.coordinator.net.members.values())


def test_a_dry_run_moves_nothing():
    world = World(4, dry_run=True)
    for node in world.nodes.values():
        node.down = 0.0
    assert world.run() < 5
    assert all(m.gap and not m.error for m in world.coordinator.targets)


NONSENSE = [
    {},
    {"event": 3},
    {"event": "progress"},
    {"event": "progress", "blocks": "many", "bytes": [], "waits": 3, "cpu": {}},
    {"event": "progress", "blocks": -5, "bytes": float("nan")},
    {"event": "progress", "blocks": 1e300, "bytes": True, "behind": "x", "waits": {"read": "x"}},
    {"event": "listening", "address": 3, "port": "x"},
    {"event": "lost", "upstream": ["n0"], "kind": 4},
    {"event": "lost", "upstream": "nobody at all", "kind": "refused"},
    {"event": "gap", "files": None, "present_blocks": 10**9},
    {"event": "manifest", "bytes": 10**15},
    {"event": "done", "warnings": [3, None, "x" * 10**6]},
    {"event": "__class__"},
]


@pytest.mark.parametrize("event", NONSENSE, ids=repr)
def test_what_a_node_says_may_be_nonsense(event):
    world = World(3)
    for when in (0.0, 0.3, 4.0):
        world.at(when, lambda w: w.coordinator.hear(w.now, "n1", event))
    world.run()
    healthy = [world.nodes[name] for name in ("n0", "n2")]
    assert all(node.whole for node in healthy)


@pytest.mark.parametrize("seed", range(300))
def test_nothing_ever_hangs(seed):
    world = scenario(seed)
    world.run()
    world.check()
