"""Tunnels through SSH connections, as `ssh -R` and `ssh -L` make them."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any

import paramiko

from clusterctl.domain.errors import ClusterctlError, HostUnreachable
from clusterctl.transport.connections import Connections
from clusterctl.transport.dial import Target

HERE = "127.0.0.1"
# Bytes of one read.
CHUNK = 1 << 17
# Timeout of the connection to the local port, in seconds.
DIAL_S = 10.0


class ReverseTunnels:
    """Ports on the nodes' loopback interfaces that lead to one local address. Thread-safe.

    `address` and `port` are where this machine listens.
    """

    def __init__(self, connections: Connections, address: str, port: int) -> None:
        self._connections = connections
        self._goal = (address, port)
        self._ports: dict[str, tuple[paramiko.Transport, int]] = {}
        self._lock = threading.Lock()

    def open(self, target: Target) -> tuple[str, int]:
        """Return address and port on the node that lead here; open the tunnel if there is none.

        Raises HostError if the node is not reached or its SSH server does not forward ports.
        """
        with self._lock:
            known = self._ports.get(target.host)
        if known is None:
            known = self._open(target)
            with self._lock:
                self._ports[target.host] = known
        return HERE, known[1]

    def _open(self, target: Target) -> tuple[paramiko.Transport, int]:
        transport = self._connections.session(target).client.get_transport()
        if transport is None:
            raise HostUnreachable(target.host, "the connection to it is closed")
        try:
            return transport, transport.request_port_forward(HERE, 0, self._welcome)
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise HostUnreachable(
                target.host,
                f"its SSH server forwards no port to this machine: {error}",
                "its sshd_config must not have AllowTcpForwarding no or local",
            ) from error

    def close(self) -> None:
        """Close the ports, without waiting for the servers' answers."""
        with self._lock:
            ports, self._ports = self._ports, {}
        for transport, port in ports.values():
            threading.Thread(target=_cancel, args=(transport, port), daemon=True).start()

    def _welcome(self, channel: paramiko.Channel, origin: Any, server: Any) -> None:
        # paramiko calls this in the thread that reads all messages of the connection. It must not
        # block.
        threading.Thread(target=self._carry, args=(channel,), daemon=True).start()

    def _carry(self, channel: paramiko.Channel) -> None:
        try:
            here = socket.create_connection(self._goal, DIAL_S)
        except OSError:
            _close(channel)
            return
        here.settimeout(None)
        _join(here, channel)


class ForwardTunnel:
    """A port of this machine's loopback interface that leads to an address which a host reaches.

    Connections that are open when it is closed go on.
    """

    def __init__(self, connections: Connections, target: Target, address: str, port: int) -> None:
        self._connections, self._target, self._goal = connections, target, (address, port)
        self._listening = socket.create_server((HERE, 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept no further connections."""
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                here, _ = self._listening.accept()
                threading.Thread(target=self._carry, args=(here,), daemon=True).start()

    def _carry(self, here: socket.socket) -> None:
        try:
            channel = self._connections.session(self._target).open_tunnel(*self._goal, DIAL_S)
        except (ClusterctlError, OSError, EOFError, paramiko.SSHException):
            here.close()
            return
        _join(here, channel)


def _join(here: socket.socket, channel: paramiko.Channel) -> None:
    """Copy bytes in both directions until both have ended, and close both ends."""
    here.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    back = threading.Thread(target=_pump, args=(channel, here), daemon=True)
    back.start()
    _pump(here, channel)
    back.join()
    here.close()
    _close(channel)


def _cancel(transport: paramiko.Transport, port: int) -> None:
    with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
        transport.cancel_port_forward(HERE, port)


def _close(channel: paramiko.Channel) -> None:
    with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
        channel.close()


def _pump(source: Any, sink: Any) -> None:
    """Copy bytes until the source ends. Then close the sink for writing only.

    The other direction may go on.
    """
    with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
        while data := source.recv(CHUNK):
            sink.sendall(data)
    with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
        sink.shutdown(socket.SHUT_WR)
