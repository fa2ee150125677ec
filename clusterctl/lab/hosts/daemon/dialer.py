"""Connects to hosts for programs outside of the lab, and passes them the connected socket."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network

from clusterctl.lab.hosts.daemon import syscalls

CONNECT_TIMEOUT_S = 20


def start(listening_fd: int, networks: Sequence[IPv4Network], control: socket.socket) -> int:
    """Fork a process that answers on the listening Unix socket, and return its pid.

    It connects only to addresses in `networks`. It closes the daemon's `control` socket.
    """
    pid = os.fork()
    if pid:
        return pid
    try:
        syscalls.die_with_parent()
        control.close()
        listener = socket.socket(fileno=listening_fd)
        while True:
            caller, _ = listener.accept()
            threading.Thread(target=_answer, args=[caller, networks], daemon=True).start()
    finally:
        os._exit(1)


def _answer(caller: socket.socket, networks: Sequence[IPv4Network]) -> None:
    """Read a line `HOST PORT`, and answer with a connected socket or the text of an error."""
    with caller:
        try:
            host, port = caller.recv(512).decode().split()
            if not any(IPv4Address(host) in network for network in networks):
                raise ValueError(f"{host} does not answer from outside the lab")
            connected = socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S)
            # The timeout made it non-blocking, which ssh would see.
            connected.setblocking(True)
            with connected:
                socket.send_fds(caller, [b"ok"], [connected.fileno()])
        except (OSError, ValueError) as failure:
            caller.sendall(f"error: {failure}".encode())
