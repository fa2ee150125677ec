"""The VPCs' resolver: DNS by which hosts find each other's names."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable
from typing import NoReturn

from clusterctl.lab.hosts.instances import all_lab_instances
from clusterctl.lab.hosts.metadata import instance_at

# Types of records, and the class of all of them.
A, PTR, INTERNET = 1, 12, 1
# The flags of answers: a response, authoritative, with recursion desired and available.
FLAGS, MALFORMED, NO_SUCH_NAME = 0x8580, 1, 3
TTL_S = 5
REVERSE = ".in-addr.arpa"
# How names are resolved: from the asking host's address, the name in lower case and the type of
# record to its data, empty if the name has no such record, None if there is no such name.
Lookup = Callable[[str, str, int], "bytes | None"]


def serve(listening: socket.socket) -> NoReturn:
    while True:
        query, asker = listening.recvfrom(512)
        with contextlib.suppress(OSError):
            listening.sendto(respond(query, asker[0], look_up), asker)


def respond(query: bytes, asker: str, lookup: Lookup) -> bytes:
    """Return the answer to one query (RFC 1035). It repeats the question and no other section."""
    try:
        name, end = _name(query)
        kind, of_class = struct.unpack_from("!HH", query, end)
    except (IndexError, UnicodeDecodeError, struct.error):
        return query[:2].ljust(2, b"\0") + struct.pack("!5H", FLAGS | MALFORMED, 0, 0, 0, 0)
    question = query[12 : end + 4]
    found = lookup(asker, name.lower(), kind) if of_class == INTERNET else None
    code = NO_SUCH_NAME if found is None else 0
    head = query[:2] + struct.pack("!5H", FLAGS | code, 1, 1 if found else 0, 0, 0)
    if not found:
        return head + question
    # 0xC00C points to the question's name.
    record = struct.pack("!HHHIH", 0xC00C, kind, INTERNET, TTL_S, len(found))
    return head + question + record + found


def look_up(asker: str, name: str, kind: int) -> bytes | None:
    """Resolve a name as EC2 does for a host: public names, too, lead to private addresses.

    A VPC's private names are known in it only.
    """
    own = instance_at(asker)
    if own is None:
        return None
    there = [one for one in all_lab_instances() if one.private_ip_address]
    inside = [one for one in there if one.vpc_id == own.vpc_id]
    if name.endswith(REVERSE):
        address = ".".join(reversed(name[: -len(REVERSE)].split(".")))
        named = [one for one in inside if one.private_ip_address == address]
        if not named or kind != PTR:
            return b"" if named else None
        labels = named[0].private_dns_name.split(".")
        return b"".join(bytes([len(label)]) + label.encode() for label in labels) + b"\0"
    addresses: dict[str | None, str | None] = {
        **{one.public_dns_name: one.public_ip_address for one in there if one.public_ip_address},
        **{one.public_dns_name: one.private_ip_address for one in inside if one.public_ip_address},
        **{one.private_dns_name: one.private_ip_address for one in inside},
    }
    address = addresses.get(name) or ""
    if not address:
        return None
    return socket.inet_aton(address) if kind == A else b""


def _name(query: bytes) -> tuple[str, int]:
    """Return the requested name, and where it ends."""
    labels, at = [], 12
    while size := query[at]:
        labels.append(query[at + 1 : at + 1 + size].decode("ascii"))
        at += 1 + size
    return ".".join(labels), at + 1
