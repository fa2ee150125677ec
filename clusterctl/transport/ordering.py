"""Nothing is said on a channel after its close: OpenSSH ends the whole connection for that.

paramiko builds a message under the channel's lock and sends it outside. A command that ends at
once can have its channel closed in between, and then takes all other channels of the connection
with it: the hosts behind a jump host.
"""

from __future__ import annotations

import struct
import threading
from typing import Any

import paramiko

# RFC 4254 9: from SSH_MSG_CHANNEL_WINDOW_ADJUST to SSH_MSG_CHANNEL_FAILURE; the number of the
# channel, as the server has it, comes first in all of them.
_FIRST, _CLOSE, _LAST = 93, 97, 100
_HEAD = struct.Struct(">BI")


class OrderedTransport(paramiko.Transport):
    """Drops what comes too late for its channel."""

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
        # One that the server opens: a connection to a port that is forwarded to here.
        position = message.packet.tell()
        message.get_text()
        number = message.get_int()
        message.packet.seek(position)
        with self._order:
            self._closed_there.discard(number)
        super()._parse_channel_open(message)  # type: ignore[misc]

    def _parse_channel_open_success(self, message: paramiko.Message) -> None:
        # The server uses its numbers again.
        position = message.packet.tell()
        message.get_int()
        number = message.get_int()
        message.packet.seek(position)
        with self._order:
            self._closed_there.discard(number)
        super()._parse_channel_open_success(message)  # type: ignore[misc]
