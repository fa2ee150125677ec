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
    ({"event": "progress", "blocks": "many", "bytes": [], "waits": 3, "cpu": {}}, Progress()),
    ({"event": "progress", "blocks": -5, "bytes": float("nan"), "behind": -3}, Progress()),
    ({"event": "progress", "blocks": True, "waits": {"read": "x"}}, Progress(waits={"read": 0.0})),
    ({"event": "listening", "address": 3, "port": float("inf")}, Listening()),
    (
        {"event": "gap", "files": None, "delete_names": ["a", 3], "writable": 0},
        Gap(delete_names=("a",)),
    ),
    ({"event": "done", "warnings": "abc", "more": 1}, Done()),
    ({"event": "__class__"}, None),
    ({"event": ["progress"]}, None),
    ({"event": 3}, None),
    ({}, None),
]


@pytest.mark.parametrize(("told", "meant"), NONSENSE, ids=repr)
def test_what_a_node_says_may_be_nonsense(told, meant):
    assert decode_event(json.dumps(told).encode()) == meant


@pytest.mark.parametrize(
    "line", [b"", b"Welcome!", b'{"event": "', b'{"event": "gap"', b"[" * 10**5]
)
def test_a_line_may_hold_no_event(line):
    assert decode_event(line) is None


def test_a_login_shell_may_greet_on_the_same_line():
    assert decode_event(b'hello {"event": "x"} ' + encode(Done(1))) == Done(1)


def test_what_is_shown_controls_no_terminal():
    assert printable("a\x1b[2J\n" + "b" * 5000) == "a?[2J?" + "b" * 1994
