"""A host behind another: a `direct-tcpip` channel of the jump host's connection, as a socket."""

from __future__ import annotations

import errno
import os
import threading
from typing import Any

import paramiko

from clusterctl.transport.dial import HeardSocket
from clusterctl.transport.ordering import OrderedTransport
from clusterctl.transport.target import Target

# RFC 4254 5.1
PROHIBITED = 1
# The server's words for why it got no connection are strerror's.
_ERRNO = {
    os.strerror(number): number
    for number in (
        errno.ECONNREFUSED,
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
        errno.ETIMEDOUT,
        errno.ECONNRESET,
    )
}


class TunnelTransport(OrderedTransport):
    """Opens channels to other hosts, for many threads at once, and tells each why not.

    paramiko keeps one refusal per connection and drops the server's words. And it leaves open what
    the server opens after the caller gave up: a node that boots would be full of such logins.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._asked = threading.local()
        self._refusals: dict[int, tuple[int, str]] = {}
        self._given_up: dict[int, paramiko.Channel | None] = {}
        super().__init__(*arguments, **options)

    def open_tunnel(self, address: str, port: int, timeout_s: float) -> paramiko.Channel:
        """Raises OSError (PermissionError: not allowed), paramiko.SSHException if it is lost."""
        self._asked.channel_id = -1
        source = ("127.0.0.1", 0)
        try:
            return self.open_channel("direct-tcpip", (address, port), source, timeout=timeout_s)
        except (paramiko.SSHException, EOFError) as error:
            refusal = self._refusals.pop(self._asked.channel_id, None)
            if refusal:
                raise _as_os_error(*refusal) from error
            if not self.is_active():
                raise
            self._give_up(self._asked.channel_id)
            raise TimeoutError from error

    def _next_channel(self) -> int:
        # open_channel does not say which number it took.
        channel_id: int = super()._next_channel()  # type: ignore[misc]
        self._asked.channel_id = channel_id
        return channel_id

    def _give_up(self, channel_id: int) -> None:
        with self.lock:
            channel = self._channels.get(channel_id)  # type: ignore[attr-defined]
            if channel_id in self.channel_events:
                self._given_up[channel_id] = channel
                return
        if channel:
            channel.close()

    def _parse_channel_open_success(self, message: paramiko.Message) -> None:
        channel_id = _peek(message)
        super()._parse_channel_open_success(message)
        channel = self._given_up.pop(channel_id, None)
        if channel:
            channel.close()

    def _parse_channel_open_failure(self, message: paramiko.Message) -> None:
        position = message.packet.tell()
        channel_id, code, words = message.get_int(), message.get_int(), message.get_text()
        message.packet.seek(position)
        if self._given_up.pop(channel_id, None) is None:
            self._refusals[channel_id] = (code, words)
        super()._parse_channel_open_failure(message)  # type: ignore[misc]


def _peek(message: paramiko.Message) -> int:
    position = message.packet.tell()
    number = message.get_int()
    message.packet.seek(position)
    return number


def _as_os_error(code: int, words: str) -> OSError:
    if code == PROHIBITED:
        return PermissionError(errno.EACCES, words)
    return OSError(_ERRNO.get(words, 0), words or "it gave no reason")


class TunnelSocket(HeardSocket):
    """A channel. TCP's own keep-alive reaches no further than the jump host."""

    @property
    def has_room(self) -> bool:
        return bool(self.sock.out_window_size)


def open_tunnel(jump: paramiko.Transport, target: Target, timeout_s: float) -> TunnelSocket:
    """A connection from the jump host to the target. Raises OSError, paramiko.SSHException."""
    assert isinstance(jump, TunnelTransport)
    return TunnelSocket(jump.open_tunnel(target.address, target.port, timeout_s))
