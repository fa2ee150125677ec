"""Execution of one command on an open SSH channel: its output, its end and its deadline."""

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

# Called with the stream's name ("stdout" or "stderr") and a chunk of output.
Sink = Callable[[str, bytes], None]
# Bytes of one read.
CHUNK = 1 << 16
# Bytes of each stream that are kept for the result.
KEPT_BYTES = 16 << 20


@dataclass
class _OutputBuffer:
    """The first KEPT_BYTES of a stream. The rest is read and dropped."""

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
    """A command on its channel, and its output so far."""

    host: str
    command: str
    channel: paramiko.Channel
    sink: Sink | None = None
    stdout: _OutputBuffer = field(default_factory=_OutputBuffer)
    stderr: _OutputBuffer = field(default_factory=_OutputBuffer)
    interrupted: bool = False
    # The error of the sink, for example a closed pipe at this program's own stdout. It is not an
    # error of the host.
    unheard: OSError | None = None

    def end(self) -> None:
        """Ask the server to send SIGTERM to the command, and close the channel."""
        self.interrupted = True
        with contextlib.suppress(Exception):
            send_signal(self.channel, "TERM")
        with contextlib.suppress(Exception):
            self.channel.close()

    def drain(self) -> None:
        """Read the output that has arrived, without blocking."""
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
    """Run the command to its end. Raise CommandTimeout, ConnectionLost or paramiko.SSHException.

    `timeout_s` None means no deadline. Errors of the sink are raised as they are.
    """
    began = time.monotonic()
    deadline = began + timeout_s if timeout_s is not None else None
    # Arguments may have bytes that are not UTF-8, such as file names. Python holds them as
    # surrogates; this restores the original bytes.
    exchange.channel.exec_command(exchange.command.encode(errors="surrogateescape"))
    # Input is sent from a thread: a command that blocks on its output may read no input meanwhile.
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
    """Read output until its end and return True. Return False if the deadline passes first."""
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
    """Return the seconds until the deadline, 0 if it has passed, None without one."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def _feed(channel: paramiko.Channel, stdin: Stdin | bytes) -> None:
    # A command may end before it has read its input. The channel then closes during the send.
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
