"""The certificate of one copy: only programs that hold it can connect to each other."""

from __future__ import annotations

import socket
import ssl
import threading

import pytest

from clusterctl.copy.transfer import ephemeral_pem
from clusterctl.node.relay.wire import tls_contexts


def meet(server_pem: str, caller_pem: str) -> bytes:
    """Return what a client receives over TLS from the server. Raise ssl.SSLError."""
    ours, theirs = socket.socketpair()
    server = tls_contexts(server_pem)[0]
    caller = tls_contexts(caller_pem)[1]

    def serve():
        try:
            with server.wrap_socket(theirs, server_side=True) as talk:
                talk.sendall(b"hello")
        except (ssl.SSLError, OSError):
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with caller.wrap_socket(ours) as talk:
            assert talk.version() == "TLSv1.3"
            return talk.recv(5)
    finally:
        ours.close()
        thread.join()


def test_who_has_it_is_let_in_and_nobody_else():
    pem = ephemeral_pem()
    assert meet(pem, pem) == b"hello"
    with pytest.raises((ssl.SSLError, OSError)):
        meet(pem, ephemeral_pem())
