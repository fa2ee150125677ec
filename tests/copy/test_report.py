"""The report of a copy: remaining time, silent nodes, and what limited its speed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.copy.plan import SourceSummary
from clusterctl.copy.report import (
    NodeReport,
    NodeStage,
    TimeUse,
    TransferReport,
    limited_by,
    progress_of,
)
from clusterctl.domain.errors import CommandFailed, HostUnreachable, UsageError
from clusterctl.node.relay.messages import Gap
from clusterctl.operations.copy import difference
from tests.copy.simulated import World


def told(world: World):
    return progress_of(world.coordinator, world.elapsed_s)


def until(world: World, seconds: float) -> None:
    while world.elapsed_s < seconds:
        world.step()


ERRORS = st.sampled_from(
    [None, None, CommandFailed("n0", "disk full"), HostUnreachable("n1", "no route")]
)
REFUSED = UsageError("--delete would remove SRC")
LEFT_OUT = st.sampled_from([(), (), ("a: Permission denied",), ("a: not a file", "b: changed")])
NODES = st.lists(st.tuples(ERRORS, LEFT_OUT), min_size=1, max_size=3)


@given(ERRORS | st.just(REFUSED), LEFT_OUT, NODES)
def test_whatever_any_end_lacks_is_a_problem_and_its_status(error, unread, ends):
    nodes = [
        NodeReport(f"n{at}", error=why, left_out=len(names), warnings=names)
        for at, (why, names) in enumerate(ends)
    ]
    source = SourceSummary(9, 9, 1, unread, len(unread))
    report = TransferReport(source, tuple(nodes), 1.0, error=error)
    errors = [one for one in (error, *(why for why, _ in ends)) if one]
    names = [name for some in (unread, *(some for _, some in ends)) for name in some]
    status = max((one.exit_status for one in errors), default=bool(names))
    assert report.exit_status == (2 if error is REFUSED else status)
    assert bool(report.problem) == bool(report.exit_status) == (not report.ok)
    if report.problem:
        assert report.problem in errors or all(one in report.problem.message for one in names)


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
    until(world, 20.0)
    now = told(world)
    assert "n1" in [node.host for node in now.nodes if node.slow]
    assert now.left_s is not None
    assert now.left_s < world.ideal_s
    until(world, world.ideal_s * 1.1 + 8)
    now = told(world)
    assert {node.stage for node in now.nodes if node.host != "n1"} == {NodeStage.DONE}
    assert now.left_s is not None
    assert now.left_s > world.ideal_s
    # How long a node has taken does not grow any more when it is done.
    until(world, world.ideal_s * 1.1 + 12)
    for before, after in zip(now.nodes, told(world).nodes, strict=True):
        assert 0 < before.duration_s <= world.ideal_s * 1.1 + 8
        assert (after.duration_s > before.duration_s) == (after.host == "n1")


def test_a_finished_node_has_all_bytes_that_it_needed():
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


def use(cpu=1.0, moved=1, wall=10.0, threads=4, cores=1, **waits):
    return TimeUse(waits, cpu, wall, threads, cores, moved)


SENDING = use(send=36, read=1)

CASES = {
    "nothing moved": (SENDING, [use(moved=0)], "nothing"),
    "no nodes": (SENDING, [], "nothing"),
    "waits for the network": (SENDING, [use(receive=38, write=1)], "link"),
    "one disk is full of work": (SENDING,
        [use(receive=38, write=1), use(receive=4, write=30, sync=5)], "target disk"),
    "syncs": (SENDING, [use(receive=5, write=5, sync=28)], "target disk"),
    "the source reads": (use(read=35, send=2), [use(receive=38)], "source disk"),
    "a full core": (use(cpu=9.5, send=10), [use(receive=20, cpu=3)], "CPU"),
    "a full core on a node": (SENDING, [use(receive=20, cpu=9)], "CPU"),
    "a full core of eight, and little waiting": (SENDING, [use(cpu=9, cores=8, receive=8)], "CPU"),
    "a full core of eight, and much waiting": (SENDING, [use(cpu=9, cores=8, receive=38)], "link"),
    "both cores": (SENDING, [use(cpu=18, cores=2, receive=38)], "CPU"),
    "a core and a half of two": (SENDING, [use(cpu=15, cores=2, receive=38)], "link"),
    # 20,000 small files: the relays only open, read and close files.
    "a busy interpreter is no slow disk": (use(threads=1, cpu=9.5, read=8, send=1),
        [use(threads=1, cpu=5, receive=5, write=4)], "CPU"),
    "no time at all": (TimeUse({}, 0, 0), [TimeUse({}, 0, 0, 4, 1, 1)], ""),
    "small files, with measured waits": (use(cpu=0.2, wall=2.27, cores=2, read=0.12),
        [use(cpu=0.45, wall=1.99, cores=2, write=0.28)], ""),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_limited_by(name):
    source, nodes, word = CASES[name]
    assert limited_by(source, nodes) == word


@pytest.mark.parametrize(
    ("gap", "words"),
    [
        (Gap(), ""),
        (Gap(1, missing=1, missing_names=("a",)), "differs from the source: a"),
        (
            Gap(2, missing=2, missing_names=("a", "b"), unread=1),
            "differs from the source: a; 1 file not",
        ),
        (Gap(1, missing=1, missing_names=("a",), unread=1), "not compared, since it cannot"),
        (Gap(0, delete=1, delete_names=("x",)), "differs from the source: x"),
        (
            Gap(1, missing=1, missing_names=("a",), unread=1, delete=1, delete_names=("x",)),
            "differs from the source: x; 1 file not",
        ),
    ],
)
def test_what_verify_finds_on_a_node(gap, words):
    found = difference(NodeReport("demo-0", gap=gap))
    assert (found.message if found else "").startswith(words)
    assert bool(found) == bool(words)
