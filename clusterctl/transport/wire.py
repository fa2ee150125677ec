"""paramiko's Transport with cheaper algorithms, fixes, and tunnels through a jump host."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import struct
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import paramiko
from paramiko.common import MSG_CHANNEL_REQUEST, cMSG_CHANNEL_REQUEST

from clusterctl.transport.dial import KeepAliveSocket

# Message numbers of RFC 4254, section 9, from SSH_MSG_CHANNEL_WINDOW_ADJUST to
# SSH_MSG_CHANNEL_FAILURE. All of them begin with the recipient's number of the channel.
_FIRST, _CLOSE, _LAST = 93, 97, 100
_HEAD = struct.Struct(">BI")


@contextlib.contextmanager
def _peeking(message: paramiko.Message) -> Iterator[None]:
    """Go back to the message's current position after the block, for paramiko to read it again."""
    position = message.packet.tell()
    yield
    message.packet.seek(position)


class OrderedTransport(paramiko.Transport):
    """Sends no message on a channel after the channel's close message.

    OpenSSH ends the whole connection if it gets such a message. paramiko builds a message under the
    channel's lock and sends it without the lock, so another thread can send the close message in
    between. This happens with commands that end at once. On the connection to a jump host it would
    end the connections to all hosts behind it.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._order = threading.Lock()
        self._closed_there: set[int] = set()
        super().__init__(*arguments, **options)

    def _send_user_message(self, message: paramiko.Message) -> None:
        data = message.asbytes()
        kind, channel = _HEAD.unpack_from(data) if len(data) >= _HEAD.size else (0, 0)
        if not _FIRST <= kind <= _LAST:
            super()._send_user_message(message)  # type: ignore[misc]
            return
        with self._order:
            if channel in self._closed_there:
                return
            if kind == _CLOSE:
                self._closed_there.add(channel)
            super()._send_user_message(message)  # type: ignore[misc]

    def _parse_channel_open(self, message: paramiko.Message) -> None:
        # The server opens a channel for a connection to a port that is forwarded to this machine.
        # It may use the number of a closed channel again.
        with _peeking(message), self._order:
            message.get_text()
            self._closed_there.discard(message.get_int())
        super()._parse_channel_open(message)  # type: ignore[misc]

    def _parse_channel_open_success(self, message: paramiko.Message) -> None:
        # The server may use the number of a closed channel again.
        with _peeking(message), self._order:
            message.get_int()
            self._closed_there.discard(message.get_int())
        super()._parse_channel_open_success(message)  # type: ignore[misc]


# SSH_OPEN_ADMINISTRATIVELY_PROHIBITED of RFC 4254, section 5.1.
PROHIBITED = 1
# OpenSSH gives the reason why a connection failed as the text of strerror.
_ERRNO = {
    os.strerror(number): number
    for number in (
        *(errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT),
        errno.ECONNRESET,
    )
}


class TunnelTransport(OrderedTransport):
    """Opens channels to other hosts for many threads at once, and reports why one failed.

    paramiko keeps one refusal per connection and drops the server's reason. If the server opens a
    channel after the caller's timeout, paramiko leaves it open; on a node that boots, such
    connections would pile up.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._requested = threading.local()
        self._refusals: dict[int, tuple[int, str]] = {}
        self._given_up: dict[int, paramiko.Channel | None] = {}
        super().__init__(*arguments, **options)

    def open_tunnel(self, address: str, port: int, timeout_s: float) -> paramiko.Channel:
        """Open a channel to `address`:`port` from the server.

        Raises OSError with the server's reason, PermissionError if the server does not allow it,
        TimeoutError, and paramiko.SSHException or EOFError if the connection is lost.
        """
        self._requested.channel_id = -1
        source = ("127.0.0.1", 0)
        try:
            return self.open_channel("direct-tcpip", (address, port), source, timeout=timeout_s)
        except (paramiko.SSHException, EOFError) as error:
            refusal = self._refusals.pop(self._requested.channel_id, None)
            if refusal:
                raise _as_os_error(*refusal) from error
            if not self.is_active():
                raise
            self._give_up(self._requested.channel_id)
            raise TimeoutError from error

    def _next_channel(self) -> int:
        # open_channel does not return the number of a channel that failed, so each thread notes it.
        channel_id: int = super()._next_channel()  # type: ignore[misc]
        self._requested.channel_id = channel_id
        return channel_id

    def _give_up(self, channel_id: int) -> None:
        """Close the channel, or have it closed later if the server has not answered yet."""
        with self.lock:
            channel = self._channels.get(channel_id)  # type: ignore[attr-defined]
            if channel_id in self.channel_events:
                self._given_up[channel_id] = channel
                return
        if channel:
            channel.close()

    def _parse_channel_open_success(self, message: paramiko.Message) -> None:
        with _peeking(message):
            channel_id = message.get_int()
        super()._parse_channel_open_success(message)
        channel = self._given_up.pop(channel_id, None)
        if channel:
            channel.close()

    def _parse_channel_open_failure(self, message: paramiko.Message) -> None:
        with _peeking(message):
            channel_id, code, words = message.get_int(), message.get_int(), message.get_text()
        if self._given_up.pop(channel_id, None) is None:
            self._refusals[channel_id] = (code, words)
        super()._parse_channel_open_failure(message)  # type: ignore[misc]


def _as_os_error(code: int, words: str) -> OSError:
    if code == PROHIBITED:
        return PermissionError(errno.EACCES, words)
    return OSError(_ERRNO.get(words, 0), words or "it gave no reason")


class TunnelSocket(KeepAliveSocket):
    """A channel through a jump host as the connection of an SSH session.

    TCP's own keep-alive only watches the connection to the jump host.
    """

    @property
    def has_room(self) -> bool:
        return bool(self.sock.out_window_size)


# Preferred algorithms. For the client, curve25519 takes 2 ms of CPU time and group16 66 ms. AES-GCM
# needs no separate MAC.
KEX = ("curve25519-sha256@libssh.org", "ecdh-sha2-nistp256")
CIPHERS = ("aes128-gcm@openssh.com", "aes128-ctr")


class TunedTransport(TunnelTransport):
    """The transport of all connections: cheap algorithms, and support for `exit-signal`."""

    def prefer(self, host_key_algorithms: tuple[str, ...]) -> None:
        """Put KEX and CIPHERS first, and negotiate only these host key algorithms if any is known.

        Call it before the connection starts.
        """
        options = self.get_security_options()
        options.kex = _first(KEX, options.kex)
        options.ciphers = _first(CIPHERS, options.ciphers)
        known = [name for name in host_key_algorithms if name in options.key_types]
        if known:
            options.key_types = tuple(known)


def _first(wanted: tuple[str, ...], available: Sequence[str]) -> tuple[str, ...]:
    head = [name for name in wanted if name in available]
    return (*head, *(name for name in available if name not in head))


def _handle_request(channel: Any, message: paramiko.Message) -> None:
    """Handle `exit-signal` (RFC 4254, section 6.10), which paramiko ignores.

    The exit status becomes 128 + the signal's number, as in a shell.
    """
    with _peeking(message):
        if message.get_text() == "exit-signal":
            message.get_boolean()
            channel.exit_status = 128 + signal_number(message.get_text())
            channel.status_event.set()
            return
    paramiko.Channel._handle_request(channel, message)  # type: ignore[attr-defined]


def signal_number(name: str) -> int:
    """Return the number of a signal, 15 for `TERM`; 0 for a name that this system does not have."""
    try:
        return signal.Signals[f"SIG{name}"].value
    except KeyError:
        return 0


TunedTransport._channel_handler_table = {  # type: ignore[attr-defined]
    **paramiko.Transport._channel_handler_table,  # type: ignore[attr-defined]
    MSG_CHANNEL_REQUEST: _handle_request,
}


def send_signal(channel: Any, name: str) -> None:
    """Ask the server to send a signal to the command (RFC 4254, section 6.9).

    OpenSSH supports this since 7.9.
    """
    message = paramiko.Message()
    message.add_byte(cMSG_CHANNEL_REQUEST)
    message.add_int(channel.remote_chanid)
    message.add_string("signal")
    message.add_boolean(False)
    message.add_string(name)
    channel.transport._send_user_message(message)
