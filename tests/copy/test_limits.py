"""What limited a copy, from where the threads' time went."""

from __future__ import annotations

import pytest

from clusterctl.copy.limits import Use, limited_by


def use(cpu=1.0, moved=1, wall=10.0, threads=4, **waits):
    return Use(waits, cpu, wall, threads, moved)


SENDING = use(send=36, read=1)

CASES = {
    "nothing moved": (SENDING, [use(moved=0)], "nothing"),
    "no nodes": (SENDING, [], "nothing"),
    "waits for the network": (SENDING, [use(receive=38, write=1)], "link"),
    "one disk is full of work": (
        SENDING,
        [use(receive=38, write=1), use(receive=4, write=30, sync=5)],
        "target disk",
    ),
    "syncs": (SENDING, [use(receive=5, write=5, sync=28)], "target disk"),
    "the source reads": (use(read=35, send=2), [use(receive=38)], "source disk"),
    "a full core": (use(cpu=9.5, send=10), [use(receive=20, cpu=3)], "CPU"),
    "a full core on a node": (SENDING, [use(receive=20, cpu=9)], "CPU"),
    "no time at all": (Use({}, 0, 0), [Use({}, 0, 0, 4, 1)], "link"),
}


@pytest.mark.parametrize("name", CASES)
def test_limited_by(name):
    source, nodes, word = CASES[name]
    assert limited_by(source, nodes) == word


def test_a_busy_interpreter_is_not_a_slow_disk():
    """20,000 small files: their relays do nothing but open, read and close."""
    source = Use({"read": 8.0, "send": 1.0}, cpu=9.5, wall=10.0)
    node = Use({"receive": 5.0, "write": 4.0}, cpu=5.0, wall=10.0, moved_bytes=1)
    assert limited_by(source, [node]) == "CPU"
