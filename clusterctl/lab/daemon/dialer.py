"""Connects into the lab for callers outside it, and hands them the connected socket."""

from __future__ import annotations

import os
import socket
import threading

from clusterctl.lab.daemon import syscalls

CONNECT_TIMEOUT_S = 20


def start(listening_fd: int) -> int:
    """The pid of a process that answers on the listening Unix socket."""
    pid = os.fork()
    if pid:
        return pid
    try:
        syscalls.die_with_parent()
        _serve(socket.socket(fileno=listening_fd))
    finally:
        os._exit(1)


def _serve(listener: socket.socket) -> None:
    while True:
        caller, _ = listener.accept()
        threading.Thread(target=_answer, args=(caller,), daemon=True).start()


def _answer(caller: socket.socket) -> None:
    """One `HOST PORT` line in; back comes a connected socket, or the error's text."""
    with caller:
        try:
            host, port = caller.recv(512).decode().split()
            connected = socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S)
            connected.setblocking(True)
            with connected:
                socket.send_fds(caller, [b"ok"], [connected.fileno()])
        except (OSError, ValueError) as failure:
            caller.sendall(f"error: {failure}".encode())
