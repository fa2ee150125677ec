"""What relays send and are sent: in any pieces, of any size, nonsense included."""

from __future__ import annotations

import json
import threading

import pytest

from clusterctl.copy.lines import LONGEST_LINE, MOST_UNREAD, Ended, EventLines, Inbox, Orders

EVENT = b'{"event": "progress", "blocks": 3}\n'


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_events_in_pieces(size):
    lines = EventLines()
    data = b"Welcome!\n" + EVENT + b"\n\xff\xfe\n" + EVENT
    found = []
    for at in range(0, len(data), size):
        found += lines.feed(data[at : at + size])
    assert found == [json.loads(EVENT)] * 2
    assert lines.spoke


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"{}",
        b"[1]",
        b'"event"',
        b'{"event": 3}',
        b'{"event": "x"',
        b'{"event": "x"} y',
        b"[" * 100_000,
        b'{"event": "' + b"[" * 1000,
        b'{"event": "x", "y": ' + b"[" * 100_000,
        b"\x00" * 1000,
    ],
    ids=repr,
)
def test_what_is_no_event_is_left_out(line):
    lines = EventLines()
    assert lines.feed(line[:200_000] + b"\n") == []
    assert lines.feed(EVENT) == [json.loads(EVENT)]


def test_a_greeting_without_an_end_of_line():
    assert EventLines().feed(b'say {"event"} $ ' + EVENT) == [json.loads(EVENT)]


def test_a_line_without_end_takes_no_memory():
    lines = EventLines()
    for _ in range(100):
        assert lines.feed(b"x" * 100_000) == []
        assert len(lines._partial) <= LONGEST_LINE
    assert lines.feed(b"\n" + EVENT) == [json.loads(EVENT)]


def test_an_event_that_is_too_long_is_none():
    lines = EventLines()
    assert lines.feed(b'{"event": "x", "y": "' + b"y" * 2 * LONGEST_LINE + b'"}\n') == []
    assert lines.feed(EVENT) == [json.loads(EVENT)]


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
        inbox.put("a", {"event": "progress", "blocks": number})
    inbox.put("a", {"event": "gap"})
    inbox.put("a", {"event": "progress", "blocks": 1000})
    inbox.put("b", {"event": "done"})
    assert inbox.take(0) == [
        ("a", {"event": "progress", "blocks": 999}),
        ("a", {"event": "gap"}),
        ("a", {"event": "progress", "blocks": 1000}),
        ("b", {"event": "done"}),
    ]
    assert inbox.take(0) == []


def test_a_node_that_floods_is_cut_short_but_its_end_is_heard():
    inbox = Inbox()
    for _ in range(100_000):
        inbox.put("a", {"event": "lost"})
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
    orders.give({"order": "begin"})
    assert read_all(orders) == b'program\n{"order": "begin"}\n'


def test_orders_end_when_closed():
    orders = Orders(b"p" * 200_000)
    orders.close()
    orders.give({"order": "too late"})
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
        orders.ping()
    assert len(orders._data) < 2 * MOST_UNREAD
