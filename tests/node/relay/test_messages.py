"""Messages between relays and the client: each is sent unchanged, and invalid ones are ignored."""

from __future__ import annotations

import json

import pytest

from clusterctl.node.relay.messages import (
    EVENTS,
    ORDERS,
    Begin,
    Done,
    Gap,
    Listed,
    Listening,
    Lost,
    Progress,
    PullFrom,
    decode_event,
    decode_order,
    encode,
    printable,
)

TOLD = [
    Listening("10.0.0.1", 4000, "10.0.0.9", 8, True),
    Listed("d1", 3, 10**12, ("a: \x1b",), 1, True, "host", ("/a/\udcff",)),
    Gap(1, 2, 3, ("x",), 4, False),
    Progress(5, 10**12, 0, {"read": 0.5}, 1.25, 2.5),
    Lost("n1", 'it said "no"\n', "refused"),
    Done(1, 2, 3, 4, ("w",)),
    Begin(1 << 20, 8, "d1", True, 2, "host", ("/a",), True),
    PullFrom("n1", "10.0.0.1", 4000),
]


@pytest.mark.parametrize("told", TOLD, ids=lambda told: type(told).__name__)
def test_a_message_survives_the_wire(told):
    decode = decode_event if type(told) in EVENTS.values() else decode_order
    assert decode(encode(told)) == told


@pytest.mark.parametrize("kind", [*EVENTS.values(), *ORDERS.values()])
def test_what_is_not_told_has_its_default(kind):
    decode = decode_event if kind in EVENTS.values() else decode_order
    assert decode(encode(kind())) == kind()


NONSENSE = [
    {"event": "progress", "blocks": "many"},
    {"event": "progress", "blocks": -1},
    {"event": "progress", "behind": -2},
    {"event": "progress", "wall": float("nan")},
    {"event": "progress", "waits": {"read": -1.0}},
    {"event": "progress", "blocks": True},
    {"event": "listening", "port": float("inf")},
    {"event": "gap", "delete_names": ["a", 3]},
    {"event": "done", "warnings": "abc"},
    {"event": "__class__"},
    {"event": ["progress"]},
    {"event": 3},
    {},
    [],
]


@pytest.mark.parametrize("told", NONSENSE, ids=repr)
def test_a_wrong_value_makes_a_line_no_event_and_no_number_is_made_up(told):
    assert decode_event(json.dumps(told).encode()) is None


def test_a_newer_relay_may_send_more():
    assert decode_event(b'{"event": "done", "files": 3, "more": [1]}') == Done(3)


@pytest.mark.parametrize(
    "line", [b"", b"Welcome!", b'{"event": "', b'{"event": "gap"', b"[" * 10**5]
)
def test_a_line_may_hold_no_event(line):
    assert decode_event(line) is None


def test_a_login_shell_may_greet_on_the_same_line():
    assert decode_event(b'hello {"event": "x"} ' + encode(Done(1))) == Done(1)


def test_what_is_shown_controls_no_terminal():
    assert printable("a\x1b[2J\n" + "b" * 5000) == "a?[2J?" + "b" * 1994
