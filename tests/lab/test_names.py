"""DNS in the lab's VPCs: what is answered to any packet."""

from __future__ import annotations

import struct

import pytest

from clusterctl.lab.hosts.names import PTR, A, respond


def query(name, kind=A, of_class=1):
    labels = b"".join(bytes([len(one)]) + one.encode() for one in name.split("."))
    head = struct.pack("!6H", 7, 0x0100, 1, 0, 0, 1)
    return head + labels + b"\0" + struct.pack("!HH", kind, of_class)


def lookup(asker, name, kind):
    assert asker == "10.0.0.9"
    return {"a.b": b"\x0a\x00\x00\x05" if kind == A else b""}.get(name)


@pytest.mark.parametrize(
    ("name", "kind", "of_class", "code", "data"),
    [
        ("a.b", A, 1, 0, b"\x0a\x00\x00\x05"),
        ("A.b", A, 1, 0, b"\x0a\x00\x00\x05"),
        ("a.b", 28, 1, 0, b""),
        ("a.b", A, 3, 3, b""),
        ("b.a", A, 1, 3, b""),
        ("5.0.0.10.in-addr.arpa", PTR, 1, 3, b""),
    ],
)
def test_answers(name, kind, of_class, code, data):
    asked = query(name, kind, of_class)
    said = respond(asked, "10.0.0.9", lookup)
    id, flags, questions, answers, *_ = struct.unpack_from("!6H", said)
    assert (id, flags & 0x8000, flags & 15, questions, answers) == (7, 0x8000, code, 1, bool(data))
    assert said[12:].startswith(asked[12:])
    assert said.endswith(data)


@pytest.mark.parametrize("packet", [b"", b"x", query("a.b")[:17], query("ü"), b"\xff" * 512])
def test_a_packet_that_is_no_query(packet):
    said = respond(packet, "10.0.0.9", lookup)
    assert (len(said), said[3] & 15) == (12, 1)
