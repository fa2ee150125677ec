"""Ports that nothing else on this machine takes while the tests of this process run."""

from __future__ import annotations

import socket

_HELD: list[socket.socket] = []


def free_port() -> int:
    """Return a port of 127.0.0.1 that refuses connections until a test's own server listens on it.

    It stays bound here: a port that is only seen to be free may be another process's a moment
    later. A server may listen on it all the same if it sets SO_REUSEADDR, as servers do.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    _HELD.append(held)
    return int(held.getsockname()[1])
