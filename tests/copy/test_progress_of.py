"""What is told of a copy under way: how long it takes still, and of whom nobody knows."""

from __future__ import annotations

import pytest

from clusterctl.copy.progress_of import progress_of
from clusterctl.copy.report import NodeStage
from tests.copy.simulated import World


def told(world: World):
    return progress_of(world.coordinator, world.elapsed_s)


def until(world: World, seconds: float) -> None:
    while world.elapsed_s < seconds:
        world.step()


def test_a_silent_node_is_named_and_not_in_the_estimate():
    world = World(4, blocks=1024)
    until(world, 5.0)
    assert not any(node.silent for node in told(world).nodes)
    world.freeze("n3")
    until(world, 8.0)
    now = told(world)
    assert [(node.host, node.note) for node in now.nodes if node.silent] == [("n3", "is silent")]
    assert now.left_s == pytest.approx(world.ideal_s - 8.0, rel=0.3)


def test_nobody_knows_how_long_only_silent_ones_take():
    world = World(2, blocks=1024)
    until(world, 5.0)
    world.freeze("n0", "n1")
    until(world, 7.0)
    assert told(world).left_s is None


def test_a_slow_node_is_not_in_the_estimate_while_others_are_under_way():
    world = World(4, blocks=1024)
    world.nodes["n1"].down = world.rate / 10
    until(world, 15.0)
    now = told(world)
    assert "n1" in [node.host for node in now.nodes if node.slow]
    assert now.left_s is not None
    assert now.left_s < world.ideal_s
    until(world, world.ideal_s * 1.1 + 8)
    now = told(world)
    assert {node.stage for node in now.nodes if node.host != "n1"} == {NodeStage.DONE}
    assert now.left_s is not None
    assert now.left_s > world.ideal_s


def test_what_is_done_has_all_that_it_needs():
    world = World(3)
    world.run()
    assert all(node.bytes == node.needed_bytes > 0 for node in told(world).nodes)


def test_a_dry_run_does_not_copy():
    world = World(3, dry_run=True)
    seen = set()
    for _ in range(100):
        world.step()
        seen |= {node.stage for node in told(world).nodes}
    assert NodeStage.COPYING not in seen
    assert {node.stage for node in told(world).nodes} == {NodeStage.DONE}
