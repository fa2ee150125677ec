"""One command on one open channel: its output as it comes, its end, its deadline."""

from __future__ import annotations

import contextlib
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import paramiko

from clusterctl.domain.errors import CommandTimeout, ConnectionLost
from clusterctl.domain.results import CommandResult
from clusterctl.transport.stdin import Stdin
from clusterctl.transport.wire import send_signal

Sink = Callable[[str, bytes], None]
CHUNK = 1 << 16
KEPT_BYTES = 16 << 20


@dataclass
class _Kept:
    """The first KEPT_BYTES of a stream; the rest is read and dropped."""

    chunks: list[bytes] = field(default_factory=list)
    size: int = 0
    truncated: bool = False

    def add(self, chunk: bytes) -> None:
        room = KEPT_BYTES - self.size
        self.truncated = self.truncated or len(chunk) > room
        if room > 0:
            self.chunks.append(chunk[:room])
            self.size += len(chunk[:room])

    def text(self) -> str:
        return b"".join(self.chunks).decode(errors="replace")


@dataclass
class Exchange:
    """A command on its channel, and what has come of it so far."""

    host: str
    command: str
    channel: paramiko.Channel
    sink: Sink | None = None
    stdout: _Kept = field(default_factory=_Kept)
    stderr: _Kept = field(default_factory=_Kept)
    interrupted: bool = False
    # What this program writes is not taken any more: no trouble of the host's.
    unheard: OSError | None = None

    def end(self) -> None:
        """Ask the server to end the command, and close the channel."""
        self.interrupted = True
        with contextlib.suppress(Exception):
            send_signal(self.channel, "TERM")
        with contextlib.suppress(Exception):
            self.channel.close()

    def drain(self) -> None:
        """Take what has arrived."""
        while self.channel.recv_ready():
            self._take("stdout", self.channel.recv(CHUNK))
        while self.channel.recv_stderr_ready():
            self._take("stderr", self.channel.recv_stderr(CHUNK))

    def _take(self, stream: str, chunk: bytes) -> None:
        if self.sink:
            try:
                self.sink(stream, chunk)
            except OSError as error:
                self.unheard = error
                raise
        else:
            (self.stdout if stream == "stdout" else self.stderr).add(chunk)


def execute(exchange: Exchange, timeout_s: float | None, stdin: Stdin | bytes) -> CommandResult:
    """Run it to its end. Raises CommandTimeout, ConnectionLost, paramiko.SSHException."""
    began = time.monotonic()
    deadline = began + timeout_s if timeout_s is not None else None
    # Bytes of an argument that are no UTF-8, as in names of files, get there as they were typed.
    exchange.channel.exec_command(exchange.command.encode(errors="surrogateescape"))
    if stdin == b"":
        _feed(exchange.channel, stdin)
    else:
        threading.Thread(target=_feed, args=(exchange.channel, stdin), daemon=True).start()
    try:
        ended = _follow(exchange, deadline) and exchange.channel.status_event.wait(_left(deadline))
    finally:
        if not exchange.channel.exit_status_ready():
            exchange.end()
    if not ended:
        raise CommandTimeout(
            exchange.host,
            f"did not end within {timeout_s:g} s: {exchange.command}",
            exchange.stdout.text(),
            exchange.stderr.text(),
        )
    exchange.drain()
    status = exchange.channel.exit_status
    exchange.channel.close()
    if status < 0 or exchange.interrupted:
        what = "interrupted" if exchange.interrupted else "the connection was lost"
        raise ConnectionLost(exchange.host, f"{what} while a command ran")
    return CommandResult(
        host=exchange.host,
        command=exchange.command,
        exit_status=status,
        stdout=exchange.stdout.text(),
        stderr=exchange.stderr.text(),
        duration_s=time.monotonic() - began,
        truncated=exchange.stdout.truncated or exchange.stderr.truncated,
    )


def _follow(exchange: Exchange, deadline: float | None) -> bool:
    """Take output until its end: True. False when the deadline passes first."""
    channel = exchange.channel
    poller = select.poll()
    poller.register(channel.fileno(), select.POLLIN)
    while not (channel.eof_received or channel.closed):
        left = _left(deadline)
        if left == 0:
            return False
        poller.poll(None if left is None else left * 1000)
        exchange.drain()
    exchange.drain()
    return True


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def _feed(channel: paramiko.Channel, stdin: Stdin | bytes) -> None:
    # A command may end without reading its input: then the channel closes under the send.
    with contextlib.suppress(OSError, paramiko.SSHException, EOFError):
        if isinstance(stdin, bytes):
            if stdin:
                channel.sendall(stdin)
        else:
            offset = 0
            while not channel.closed:
                chunk = stdin.read_at(offset, wait_s=0.5)
                if chunk == b"":
                    break
                if chunk:
                    channel.sendall(chunk)
                    offset += len(chunk)
        channel.shutdown_write()
