"""Connections of systems that lack options of Linux: what macOS has no name for is taken away."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading

import pytest

from clusterctl.transport.dial import Target, dial
from tests.programs import completed

MISSING = {
    socket: ("TCP_USER_TIMEOUT", "TCP_QUICKACK", "TCP_KEEPIDLE", "TCP_INFO", "SO_PEERCRED"),
    os: ("memfd_create", "pipe2", "splice", "sched_getaffinity", "O_TMPFILE", "posix_fallocate"),
}


@pytest.fixture
def macos(monkeypatch):
    for module, names in MISSING.items():
        for name in names:
            monkeypatch.delattr(module, name, raising=False)
    # Its name there is TCP_KEEPALIVE; the number is that of this system.
    monkeypatch.setattr(socket, "TCP_KEEPALIVE", 4, raising=False)


def test_a_connection_works_on_macos(macos):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address, port = server.getsockname()

        def echo():
            peer, _ = server.accept()
            with peer:
                peer.sendall(peer.recv(100))

        thread = threading.Thread(target=echo)
        thread.start()
        connection = dial(Target("h", address=address, user="u", port=port), 10.0)
        with contextlib.closing(connection):
            connection.limit_silence(20.0)
            connection.send(b"hello")
            assert connection.recv(100) == b"hello"
            assert connection.round_trip_s is None
            assert connection.watched in (False, True)
            option = connection.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPALIVE)
            assert option == 10
        thread.join()


IMPORTS = """
import os, socket
for module, names in ((socket, {socket}), (os, {os})):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
import clusterctl.cli.main, clusterctl.cli.copyclust, clusterctl.cli.runclust
"""


def test_the_commands_load_on_macos():
    program = IMPORTS.format(socket=MISSING[socket], os=MISSING[os])
    done = completed([sys.executable, "-c", program], timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
