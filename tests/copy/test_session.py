"""Messages from and to relays: in pieces, of any size, valid or not."""

from __future__ import annotations

import threading

import pytest

from clusterctl.copy.session import LONGEST_LINE, MOST_UNREAD, Ended, EventLines, Inbox, Orders
from clusterctl.node.relay.messages import Begin, Done, Gap, Lost, Ping, Progress, encode

EVENT = encode(Progress(3))


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_events_in_pieces(size):
    lines = EventLines()
    data = b"Welcome!\n" + EVENT + b"\n\xff\xfe\n" + EVENT
    found = []
    for at in range(0, len(data), size):
        found += lines.feed(data[at : at + size])
    assert found == [Progress(3)] * 2
    assert lines.spoke


@pytest.mark.parametrize(
    "said",
    [
        b"[" * 200_000 + b"\n",
        b'say {"event"} $ ',  # a greeting without an end of line
        b'{"event": "done", "y": "' + b"y" * 2 * LONGEST_LINE + b'"}\n',
    ],
)
def test_what_is_no_event_is_left_out(said):
    lines = EventLines()
    assert lines.feed(said) == []
    assert lines.feed(EVENT) == [Progress(3)]


def test_a_line_without_end_takes_no_memory():
    lines = EventLines()
    for _ in range(100):
        assert lines.feed(b"x" * 100_000) == []
        assert len(lines._partial) <= LONGEST_LINE
    assert lines.feed(b"\n" + EVENT) == [Progress(3)]


def test_stderr_keeps_its_end():
    lines = EventLines()
    for _ in range(100):
        lines.complain(b"x" * 10_000)
    lines.complain(b"the end")
    assert lines.stderr.endswith(b"the end")
    assert len(lines.stderr) < 10_000


def test_the_inbox_keeps_one_progress_and_the_order():
    inbox = Inbox()
    for number in range(1000):
        inbox.put("a", Progress(number))
    inbox.put("a", Gap())
    inbox.put("a", Progress(1000))
    inbox.put("b", Done())
    assert inbox.take(0) == [
        ("a", Progress(999)),
        ("a", Gap()),
        ("a", Progress(1000)),
        ("b", Done()),
    ]
    assert inbox.take(0) == []


def test_a_node_that_floods_is_cut_short_but_its_end_is_heard():
    inbox = Inbox()
    for _ in range(100_000):
        inbox.put("a", Lost())
    inbox.put("a", Ended())
    taken = inbox.take(0)
    assert len(taken) < 1000
    assert taken[-1] == ("a", Ended())


def test_the_inbox_wakes_who_waits():
    inbox = Inbox()
    threading.Timer(0.05, inbox.put, ("a", Ended())).start()
    assert inbox.take(30) == [("a", Ended())]


def read_all(orders: Orders) -> bytes:
    found = b""
    while chunk := orders.read_at(len(found), 0.01):
        found += chunk
    return found


def test_orders_come_after_the_program():
    orders = Orders(b"program\n")
    orders.give(Begin(1 << 20))
    assert read_all(orders) == b"program\n" + encode(Begin(1 << 20))


def test_orders_end_when_closed():
    orders = Orders(b"p" * 200_000)
    orders.close()
    orders.give(Begin())
    assert read_all(orders) == b"p" * 200_000
    assert orders.read_at(200_000, 0) == b""


def test_what_is_sent_is_forgotten():
    orders = Orders(b"secret")
    assert orders.read_at(0, 0) == b"secret"
    assert orders.read_at(6, 0) is None
    assert not orders._data


def test_who_reads_nothing_gets_no_more_pings():
    orders = Orders(b"x")
    for _ in range(100_000):
        orders.give(Ping())
    assert len(orders._data) < 2 * MOST_UNREAD
