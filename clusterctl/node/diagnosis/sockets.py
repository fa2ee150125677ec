"""The TCP connections of this node with their state, and the other ends of its Unix sockets."""

from __future__ import annotations

import socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

# States of include/net/tcp_states.h, and timers, by the names of `ss`.
TCP_STATES = (
    *("", "ESTAB", "SYN-SENT", "SYN-RECV", "FIN-WAIT-1", "FIN-WAIT-2", "TIME-WAIT", "UNCONN"),
    *("CLOSE-WAIT", "LAST-ACK", "LISTEN", "CLOSING", "NEW-SYN-RECV"),
)
# linux/netlink.h, linux/sock_diag.h; INET_DIAG_INFO of linux/inet_diag.h,
# UNIX_DIAG_PEER of linux/unix_diag.h.
NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, INFO, UNIX_PEER = 4, 20, 2, 2
TCP_TIMERS = {1: "on", 2: "keepalive", 3: "timewait", 4: "persist"}


def tcp_sockets() -> dict[str, dict[str, Any]]:
    """Return this host's TCP connections by inode, as `ss -tinO` shows them.

    They come from the same source (sock_diag(7), linux/inet_diag.h, struct tcp_info of
    linux/tcp.h), which any user may read. Raises OSError.
    """
    found: dict[str, dict[str, Any]] = {}
    for family in (socket.AF_INET, socket.AF_INET6):
        request = struct.pack("=BBBxI48x", family, socket.IPPROTO_TCP, 1 << INFO - 1, 0xFFF)
        found.update(map(connection, _dump(request)))
    return found


def unix_peers() -> dict[str, str]:
    """Return the other end of each connected Unix socket, by inode (linux/unix_diag.h). Raises
    OSError."""
    found = {}
    for one in _dump(struct.pack("=BxxxIII8x", socket.AF_UNIX, 0xFFF, 0, 1 << UNIX_PEER)):
        inode = struct.unpack_from("=I", one, 4)[0]
        peers = [raw for kind, raw in _attributes(one, 16) if kind == UNIX_PEER]
        if peers:
            found[str(inode)] = str(struct.unpack("=I", peers[0])[0])
    return found


def _dump(request: bytes) -> Iterator[bytes]:
    """Yield the messages with which the kernel answers a request for all sockets of a family."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(1.0)
        # A dump: NLM_F_REQUEST | NLM_F_ROOT | NLM_F_MATCH.
        head = (16 + len(request), SOCK_DIAG_BY_FAMILY, 0x301, 0, 0)
        kernel.send(struct.pack("=IHHII", *head) + request)
        while True:
            received = kernel.recv(1 << 18)
            while received:
                length, kind = struct.unpack_from("=IH", received)
                if kind != SOCK_DIAG_BY_FAMILY:
                    return  # NLMSG_DONE, or an error
                yield received[16:length]
                received = received[length + 3 & ~3 :]


def _attributes(message: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    """Yield kind and content of the attributes that begin there."""
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, at)
        yield kind, message[at + 4 : at + length]
        at += max(4, length + 3 & ~3)


def connection(content: bytes) -> tuple[str, dict[str, Any]]:
    """Parse a struct inet_diag_msg. Return the inode of the connection and its state."""
    family, state, timer, retransmits = content[:4]
    ports = struct.unpack_from("!HH", content, 4)
    received, unsent, _, inode = struct.unpack_from("=4I", content, 56)
    ends = [endpoint(family, content[at : at + 16], port) for at, port in zip((8, 24), ports)]
    one = {
        "local": ends[0],
        "peer": ends[1],
        "state": TCP_STATES[state],
        "send_queue_bytes": unsent,
        "receive_queue_bytes": received,
        "timer": TCP_TIMERS.get(timer, ""),
        "retransmits": retransmits,
    }
    for kind, info in _attributes(content, 72):
        # Older kernels have a shorter struct tcp_info.
        if kind == INFO and len(info) >= 184:
            one["rtt_s"] = struct.unpack_from("=I", info, 68)[0] / 1e6
            one["acked_bytes"] = struct.unpack_from("=Q", info, 120)[0]
            one["received_bytes"] = struct.unpack_from("=Q", info, 128)[0]
            one["received_segments"], one["sent_segments"] = struct.unpack_from("=II", info, 152)
            busy_us, closed_us = struct.unpack_from("=QQ", info, 168)
            one["sending_s"] = (busy_us - closed_us) / 1e6
    return str(inode), one


def endpoint(family: int, raw: bytes, port: int) -> str:
    """Return `127.0.0.1:8080` or `[::1]:8080`. IPv4 mapped into IPv6 is shown as IPv4."""
    if family == socket.AF_INET6 and raw.startswith(b"\0" * 10 + b"\xff\xff"):
        family, raw = socket.AF_INET, raw[12:]
    if family == socket.AF_INET:
        return f"{socket.inet_ntop(family, raw[:4])}:{port}"
    return f"[{socket.inet_ntop(family, raw)}]:{port}"
