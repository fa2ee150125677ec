"""Whole copies in simulated time: a fault does not delay other nodes, and nothing hangs."""

from __future__ import annotations

import random
import time

import pytest

from clusterctl.copy.coordinator import Coordinator
from clusterctl.copy.health import Health
from clusterctl.copy.topology import SOURCE, CopyTimeouts, Peer, PeerState, Topology
from clusterctl.domain.errors import UsageError
from clusterctl.node.relay.messages import (
    Begin,
    Done,
    Failed,
    Gap,
    Listed,
    Listening,
    Lost,
    Progress,
)
from tests.copy.simulated import MIB, Plan, World, every, restless, scenario

# Simulated seconds to detect a fault and to link the nodes anew.
NOTICED_S = 4.0


def times(world: World, *left_out: str) -> list[float]:
    """Return the times at which the other nodes were complete."""
    return [node.got_at for node in world.nodes.values() if node.name not in left_out]


@pytest.mark.parametrize("count", [1, 2, 3, 8, 32])
def test_time_of_one_copy(count):
    world = World(count)
    took = world.run()
    world.check()
    assert took < world.ideal_s * 1.05 + 1.5 + count * 0.12
    assert not any(peer.in_tail for peer in world.coordinator.targets)


@pytest.mark.parametrize("blocks", [0, 1, 2])
def test_a_copy_of_a_few_blocks_takes_seconds(blocks):
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
        error = world.coordinator.net.peers[node.name].error
        assert bool(error) == (not node.whole), (node.name, error)


def slow(*names: str, up: float = 10, down: float = 10):
    """Give the links of these nodes a tenth of the others' rate."""

    def slowed(world: World) -> None:
        for name in names:
            world.nodes[name].up, world.nodes[name].down = world.rate / up, world.rate / down

    return slowed


def for_a_while(*names: str, at: float, share: float, to: float = 1e9):
    """Give the links of these nodes a share of their rate for some time."""

    def change(world: World, rate: float) -> None:
        for name in names:
            world.all[name].up = world.all[name].down = rate

    def later(world: World) -> None:
        world.at(at, lambda w: change(w, w.rate * share)).at(to, lambda w: change(w, w.rate))

    return later


def unsteady(world: World) -> None:
    rng = random.Random(1)
    for when in range(1, 200):
        for node in world.all.values():
            factors = rng.uniform(0.5, 1), rng.uniform(0.5, 1)
            world.at(when, lambda w, n=node, f=factors: _set(n, w.rate, f))


def _set(node, rate, factors) -> None:
    node.up, node.down = (rate * factor for factor in factors)


def compares(seconds: float, *names: str):
    def busy(world: World) -> None:
        for name in names:
            world.nodes[name].compare_s = seconds

    return busy


def cannot_reach(*unreached: str, names: tuple[str, ...] = ()):
    def cut_off(world: World) -> None:
        for name in names or world.names:
            world.nodes[name].blocked = set(unreached) - {name}

    return cut_off


def thaws(world: World) -> None:
    world.at(5, lambda w: w.freeze("n2")).at(12, lambda w: w.thaw("n2"))


def gives_nothing(name: str):
    """Make a node's disk hang: the node still reports, but sends no data."""
    return lambda world: world.at(8, lambda w: setattr(w.nodes[name], "up", 0.0))


def joins_late(world: World) -> None:
    world.nodes["n2"].listens_at = 6.0


def uneven(world: World) -> None:
    all_blocks = every(world.blocks)
    for number, node in enumerate(world.nodes.values()):
        node.have = all_blocks & ~every(100 * number) if number % 2 else every(90 * number)


# The fault, the nodes that may take longer, and the limit for the others, in times of one copy.
SCENARIOS = {
    "nothing": (None, "", 1.06),
    "one slow": (slow("n3"), "n3", 1.2),
    "the first slow": (slow("n0"), "n0", 1.2),
    "the last slow": (slow("n7"), "n7", 1.2),
    "two slow": (slow("n1", "n5"), "n1 n5", 1.3),
    "two slow neighbours": (slow("n2", "n3"), "n2 n3", 1.4),
    "the first two slow": (slow("n0", "n1"), "n0 n1", 1.4),
    "the last two slow": (slow("n6", "n7"), "n6 n7", 1.4),
    "a slow uplink": (slow("n3", up=5, down=1), "", 1.3),
    "the first's uplink slow": (slow("n0", up=5, down=1), "", 1.3),
    "the last but one's uplink slow": (slow("n6", up=5, down=1), "", 1.3),
    "the first's downlink slow": (slow("n0", up=1), "n0", 1.2),
    "slow for ten seconds": (for_a_while("n3", at=5, to=15, share=0.1), "", 1.35),
    "the first slow for ten seconds": (for_a_while("n0", at=5, to=15, share=0.1), "", 1.35),
    "freezes for seven seconds": (thaws, "", 1.35),
    "gives nothing": (gives_nothing("n3"), "", 1.3),
    "compares for 9 s": (compares(9.0, "n0", "n1"), "n0 n1", 1.3),
    "compares for long": (compares(30.0, "n3"), "n3", 1.2),
    "joins late": (joins_late, "n2", 1.3),
    "nobody reaches one": (cannot_reach("n2"), "", 1.35),
    "has other parts": (uneven, "", 1.1),
    "unsteady": (unsteady, "", 1.8),
}


VARIANTS = (
    *("the first slow", "the last slow", "two slow", "the first two slow", "the last two slow"),
    *("the first's uplink slow", "the last but one's uplink slow", "the first's downlink slow"),
    *("the first slow for ten seconds", "compares for long"),
)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=(pytest.mark.all,) if name in VARIANTS else ())
        for name in SCENARIOS
    ],
)
def test_who_is_slow_holds_nobody_back(name):
    wrong, own_time, share = SCENARIOS[name]
    world = World(8, blocks=1024)
    if wrong:
        wrong(world)
    world.run()
    world.check()
    assert max(times(world, *own_time.split())) < world.ideal_s * share, world.describe()
    assert max(times(world)) < world.ideal_s * 10.5 + 8, "a slow one has a tenth of the rate"


def test_a_slow_uplink_is_last_for_good():
    world = World(8, blocks=1024)
    slow("n3", up=5, down=1)(world)
    world.run()
    states = {peer.name: peer.moves for peer in world.coordinator.targets}
    assert "slow to pass it on" in states["n3"], world.describe()
    assert "fast again" not in states["n3"], world.describe()


def test_what_crosses_no_link_is_no_measure():
    """With --from 0, the relay on node 0 copies from disk to disk: the other nodes do not count as
    slow in comparison."""
    world = World(8, blocks=1024)
    world.beside_source = "n0"
    world.source.up = world.nodes["n0"].down = world.rate * 10
    world.run()
    world.check()
    assert not any(peer.moves for peer in world.coordinator.targets)
    first = world.coordinator.first_complete_at - world.coordinator.began_at
    assert world.ideal_s * 0.9 < first < world.ideal_s * 1.2


def test_the_last_one_is_not_waited_for_long():
    world = World(4)
    world.at(0.95 * world.ideal_s, lambda w: w.freeze("n3"))
    took = world.run()
    world.check()
    assert world.coordinator.net.peers["n3"].error
    assert took < world.ideal_s + 2 * world.coordinator.timeouts.last_dead_s


def test_nothing_missing():
    world = World(4)
    for node in world.nodes.values():
        node.have = every(world.blocks)
    assert world.run() < 1
    assert not any(node.received for node in world.nodes.values())


def test_a_node_that_reaches_nobody_fails_and_says_so():
    world = World(4)
    cannot_reach(*world.names, SOURCE, names=("n1",))(world)
    world.run()
    error = world.coordinator.net.peers["n1"].error
    assert "blocked" in error.hint
    assert SOURCE in error.message
    assert [n.name for n in world.nodes.values() if n.whole] == ["n0", "n2", "n3"]


@pytest.mark.parametrize("noticed", [True, False])
def test_the_source_dies(noticed):
    world = World(4)
    world.at(5, lambda w: w.kill(SOURCE, noticed=noticed))
    assert world.run() < 30
    errors = [world.coordinator.net.peers[name].error for name in world.names]
    assert all("the source died" in error.message for error in errors)


def test_the_source_dies_when_the_first_node_has_everything():
    world = World(4)
    world.nodes["n0"].have = every(world.blocks)
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
    assert not any(peer.in_tail for peer in world.coordinator.targets)


def test_a_dry_run_moves_nothing():
    world = World(4, dry_run=True)
    for node in world.nodes.values():
        node.down = 0.0
    assert world.run() < 5
    assert all(peer.gap and not peer.error for peer in world.coordinator.targets)


def test_a_fast_node_of_the_tail_that_lost_the_source_at_that_moment_ends_nothing():
    """The node has no upstream at that moment, so it receives its order again."""
    peer = Peer("n0", PeerState.TAIL, upstream=SOURCE, gap=Gap())
    net = Topology({SOURCE: Peer(SOURCE, PeerState.READY), "n0": peer}, [peer], blocks=100)
    for now in (99.0, 100.0):
        peer.last_event_at = now
        peer.take_progress(now, Progress(9, int(now)), 100)
    health = Health(net, CopyTimeouts())
    peer.data_at = 99.0
    net.source.last_event_at = 99.5
    health.lost(peer, 99.0, Lost(SOURCE, "closed", "closed", for_s=5.0))
    health.check(100.0)
    assert (peer.upstream, peer.state) == ("", PeerState.TAIL)


@pytest.mark.parametrize("without", ["", "n1", SOURCE, "late"])
def test_blocks_are_summed_by_gmac_where_all_that_may_take_part_can(without):
    coordinator = Coordinator(["n0", "n1"], lambda *_: Plan(("n0", "n1")))
    orders = []
    for now, name in enumerate((SOURCE, "n0", "n1")):
        coordinator.handle_event(0.5 * now, name, Listed("d", 1, 1 << 20))
        if without != "late" or name != "n1":
            coordinator.handle_event(0.5 * now, name, Listening(name, 4000, gmac=name != without))
        orders += coordinator.tick(0.5 * now)
    for tenth in range(100):
        orders += coordinator.tick(1.0 + tenth / 10)
    begun = {order.gmac for _, order in orders if isinstance(order, Begin)}
    assert begun == {not without}


@pytest.mark.parametrize("host", ["a", "b"])
def test_no_node_begins_where_delete_would_remove_the_source(host):
    coordinator = Coordinator(["n0", "n1"], lambda *_: Plan(("n0", "n1")))
    coordinator.handle_event(0.0, SOURCE, Listed("d", 1, 1 << 20, host="a", endangered="/x/set"))
    for name, at in ((SOURCE, "a"), ("n0", host), ("n1", "c")):
        coordinator.handle_event(0.0, name, Listening(name, 4000, host=at))
    if host == "a":
        with pytest.raises(UsageError, match="/x/set is what is copied"):
            coordinator.tick(0.0)
    else:
        assert any(isinstance(order, Begin) for _, order in coordinator.tick(0.0))


@pytest.mark.parametrize(
    ("machine", "says"), [("a", "it is the same machine as n0"), ("b", "another copy")]
)
def test_two_names_of_one_machine_are_told_where_they_would_share_the_destination(machine, says):
    coordinator = Coordinator(["n0", "n1"], lambda *_: Plan(("n0", "n1")))
    for name, at in ((SOURCE, "c"), ("n0", "a"), ("n1", machine)):
        coordinator.handle_event(0.0, name, Listening(name, 4000, host=at))
    coordinator.handle_event(0.1, "n1", Failed("another copy is running", "", "busy"))
    error = coordinator.net.peers["n1"].error
    assert error is not None
    assert error.message.startswith(says)
    assert "another copy is running" in error.message


NONSENSE = [
    Listening("x", 10**9),
    Progress(10**18, 10**18, 10**18),
    Progress(),
    Lost("nobody at all", "", "refused"),
    Lost("n1"),
    Gap(files=10**9),
    Listed(bytes=10**15),
    Done(warnings=("x" * 10**6,) * 1000),
]


@pytest.mark.parametrize("event", NONSENSE, ids=lambda event: type(event).__name__)
def test_what_a_node_says_may_be_nonsense(event):
    world = World(3)
    for when in (0.0, 0.3, 4.0):
        world.at(when, lambda w: w.coordinator.handle_event(w.now, "n1", event))
    world.run()
    assert all(world.nodes[name].whole for name in ("n0", "n2"))


@pytest.mark.parametrize(
    "seed", [*range(16), *(pytest.param(seed, marks=pytest.mark.all) for seed in range(16, 60))]
)
def test_nothing_ever_hangs(seed):
    world = scenario(seed)
    world.run()
    world.check()


@pytest.mark.parametrize(
    "seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.all) for seed in range(8, 60))]
)
def test_no_trouble_on_the_way_fails_a_healthy_node(seed):
    """Every failure is named with its true cause, and nobody is told of a firewall."""
    world = restless(seed)
    world.run()
    world.check()
    for name, node in world.nodes.items():
        error = world.coordinator.net.peers[name].error
        if error:
            assert node.dead or node.frozen or node.hangs, (error, world.describe())
            assert "is blocked" not in error.hint


def linked(count: int = 1, **figures) -> tuple[World, str]:
    """Return a cluster whose first node has begun to pull, and that node's name."""
    world = World(count, blocks=200, **figures)
    while not world.nodes["n0"].received:
        world.step()
    return world, "n0"


def test_a_node_that_loses_its_source_for_good_fails_in_the_end_with_the_reason():
    world, name = linked()
    world.nodes[name].blocked = {SOURCE}
    world.run(400)
    error = world.coordinator.net.peers[name].error
    assert "its connections fail: refused" in error.message
    assert "is blocked" not in error.hint
    assert world.relinks < 100


def test_a_cut_that_is_over_is_no_reason_to_fail():
    """The source then has nothing for the node for longer than a node may get nothing."""
    world, name = linked(rate=MIB)
    world.nodes[name].blocked = {SOURCE}
    while not world.coordinator.net.peers[name].cut:
        world.step()
    world.nodes[name].blocked = set()
    world.source.up, world.source.reads_slowly = 0.0, True
    world.at(world.elapsed_s + 200.0, World.read_fast)
    world.run(1000)
    world.check()


def test_damage_from_the_source_that_comes_again_and_again_ends():
    world, name = linked(rate=MIB)
    node = world.nodes[name]

    def damage(_):
        node.muted = True
        node.arrived += MIB
        told = Lost(SOURCE, "a block came with a wrong checksum", "corrupt", 0.0, True)
        world.coordinator.handle_event(world.now, name, told)

    for second in range(60):
        world.at(world.elapsed_s + second, damage)
    world.run(100)
    assert "damaged" in world.coordinator.net.peers[name].error.message
    assert world.relinks < 10


@pytest.mark.parametrize("source_too", [False, True])
def test_data_that_arrives_slower_than_a_block_a_minute_is_no_silence(source_too):
    """Blocks of all streams may become whole at about the same time."""
    world = World(3, blocks=3, rate=MIB / 100 if source_too else MIB)
    world.nodes["n1"].down = MIB / 100
    world.run()
    world.check()
    moves = [move for name in world.names for move in world.coordinator.net.peers[name].moves]
    assert not [move for move in moves if "nothing came" in move]


def test_a_manifest_that_takes_minutes_is_waited_for():
    world = World(2)
    world.manifest_s = 200.0
    world.run()
    world.check()
    assert world.relinks <= 4


def test_a_dry_run_with_a_blocked_port_ends():
    world = World(2, dry_run=True)
    for node in world.nodes.values():
        node.blocked = {SOURCE, "n0", "n1"}
    world.run(120)
    assert all(peer.error for peer in world.coordinator.targets)


@pytest.mark.slow
@pytest.mark.all
def test_a_tick_takes_time_linear_in_the_nodes():
    """A tick for 256 nodes takes much less than the 0.1 s until the next tick."""
    spent = {}
    for count in (64, 256):
        world = World(count, blocks=4096)
        while world.elapsed_s < 3:
            world.step()
        began = time.process_time()
        for number in range(20):
            world.coordinator.tick(world.now + number / 1000)
        spent[count] = time.process_time() - began
    assert spent[256] < 8 * spent[64] + 0.01, spent
