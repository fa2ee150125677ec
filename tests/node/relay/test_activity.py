"""What a relay's heartbeat tells about its threads' work with files."""

from __future__ import annotations

import os
import threading

import pytest

from clusterctl.node.relay import activity
from clusterctl.node.relay.activity import READ, SYNC, WRITE, FileActivity, FileStep


@pytest.fixture
def clock(monkeypatch):
    """Return a list whose last value is the time."""
    now = [100.0]
    monkeypatch.setattr(activity.time, "monotonic", lambda: now[-1])
    return now


def test_the_longest_step_is_told_and_short_ones_are_not(clock):
    doing = FileActivity()
    doing.begin(READ, b"/data/a")
    begun = threading.Thread(target=doing.begin, args=(WRITE, b"/data/b"))
    clock.append(100.5)
    begun.start()
    begun.join()
    assert doing.longest() == FileStep()
    clock.append(101.0)
    assert doing.longest() == FileStep(READ, b"/data/a", 100.0)
    doing.end()
    clock.append(101.5)
    assert doing.longest() == FileStep(WRITE, b"/data/b", 100.5)


def test_each_piece_is_a_move_and_a_hang_is_none(clock):
    doing = FileActivity()
    told = []
    for act in (lambda: doing.begin(READ, "x"), doing.go_on, doing.end, lambda: None):
        act()
        told.append(doing.moves(doing.longest()))
    assert len(set(told[:3])) == 3
    assert told[3] == told[2]


def test_what_a_disk_has_written_is_a_move_of_a_step_that_waits_for_it(
    clock, tmp_path, monkeypatch
):
    doing = FileActivity()
    doing.writes_to(os.fspath(tmp_path))
    doing.begin(SYNC, "/data/x")
    clock.append(101.0)
    step = doing.longest()
    written = iter([8, 16, 16])
    monkeypatch.setattr(activity, "_written", lambda device: next(written))
    one, two, three = (doing.moves(step) for _ in range(3))
    assert one != two == three
    assert doing.moves(FileStep(READ, "/data/y", 100.0)) < one


def test_what_this_machines_disk_has_written_is_known(tmp_path):
    before = activity._written(os.stat(tmp_path).st_dev)
    assert isinstance(before, int)
