"""A relay on the other side of a line, on a node or here: orders in, events out.

Whatever a node sends, memory here stays bounded.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any, Union

from clusterctl.copy.failures import AGAIN, ended_early
from clusterctl.domain.errors import (
    ClusterctlError,
    CommandFailed,
    ConnectionLost,
    HostUnreachable,
)
from clusterctl.node.packer import Program
from clusterctl.node.relay.messages import (
    Event,
    Order,
    Ping,
    Progress,
    Stop,
    decode_event,
    encode,
)
from clusterctl.transport.connections import Connections
from clusterctl.transport.execute import Exchange
from clusterctl.transport.target import Target

# A manifest with a hundred warnings is the longest that relays send.
LONGEST_LINE = 1 << 20
MOST_WAITING = 256
CHUNK = 1 << 16
KEPT_STDERR = 1 << 12
# A node that reads nothing gets no further pings.
MOST_UNREAD = 1 << 16
END_WITHIN_S = 2.0


class Orders:
    """A relay's standard input: its program, then orders as they are given. Thread-safe."""

    def __init__(self, first: bytes) -> None:
        self._data = bytearray(first)
        self._dropped = 0
        self._closed = False
        self._change = threading.Condition()

    def give(self, order: Order) -> None:
        """Send one order."""
        with self._change:
            crowded = isinstance(order, Ping) and len(self._data) > MOST_UNREAD
            if not self._closed and not crowded:
                self._data += encode(order)
                self._change.notify_all()

    def close(self) -> None:
        """The end of the input: the relay ends, too."""
        with self._change:
            self._closed = True
            self._change.notify_all()

    def read_at(self, offset: int, wait_s: float) -> bytes | None:
        """See clusterctl.transport.stdin. What comes before `offset` is forgotten."""
        with self._change:
            del self._data[: offset - self._dropped]
            self._dropped = offset
            self._change.wait_for(lambda: self._data or self._closed, wait_s)
            if self._data:
                return bytes(self._data[:CHUNK])
            return b"" if self._closed else None


class EventLines:
    """Takes a relay's output in chunks, gives its events. What is no event is left out."""

    def __init__(self) -> None:
        self._partial = bytearray()
        self.stderr = b""
        self.spoke = False

    def complain(self, chunk: bytes) -> None:
        """Keep the end of what came on stderr."""
        self.stderr = (self.stderr + chunk)[-KEPT_STDERR:]

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that are whole with this chunk."""
        *lines, rest = chunk.split(b"\n")
        found = []
        for line in lines:
            whole = bytes(self._partial) + line
            self._partial.clear()
            event = decode_event(whole) if len(whole) <= LONGEST_LINE else None
            if event is not None:
                found.append(event)
        self._partial += rest
        if len(self._partial) > LONGEST_LINE:
            del self._partial[:-CHUNK]
        self.spoke = self.spoke or bool(found)
        return found


@dataclass(frozen=True)
class LoggedIn:
    """The SSH connection to the node is there, and its relay is being started."""


@dataclass(frozen=True)
class Ended:
    """The relay's process is gone. `error` is what is known of the reason."""

    error: ClusterctlError | None = None


News = Union[Event, LoggedIn, Ended]


class Inbox:
    """What has come from all relays and is not taken yet. Thread-safe."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[News]] = {}
        self._change = threading.Condition()

    def put(self, node: str, news: News) -> None:
        """Only the last of several `Progress` in a row is kept."""
        with self._change:
            waiting = self._waiting.setdefault(node, deque())
            if waiting and isinstance(waiting[-1], Progress) and isinstance(news, Progress):
                waiting[-1] = news
            elif len(waiting) < MOST_WAITING or isinstance(news, (LoggedIn, Ended)):
                waiting.append(news)
            self._change.notify_all()

    def take(self, wait_s: float) -> list[tuple[str, News]]:
        """All there is, in each node's order; empty if nothing comes in time."""
        deadline = time.monotonic() + wait_s
        with self._change:
            while not self._waiting and (left := deadline - time.monotonic()) > 0:
                self._change.wait(left)
            found, self._waiting = self._waiting, {}
        return [(node, news) for node, waiting in found.items() for news in waiting]


class RelaySession(ABC):
    """Starts at once. `name` is what its news are put under in the inbox."""

    def __init__(
        self, name: str, inbox: Inbox, program: Program, config: Mapping[str, Any]
    ) -> None:
        self.name, self._inbox, self._program = name, inbox, program
        self._orders = Orders(program.stdin(dict(config)))
        self._lines = EventLines()
        self._told_to_end = False

    def give(self, order: Order) -> None:
        """Send an order."""
        self._told_to_end = self._told_to_end or isinstance(order, Stop)
        self._orders.give(order)

    @abstractmethod
    def end(self) -> None:
        """End it now."""

    @abstractmethod
    def join(self, wait_s: float) -> bool:
        """Whether it has ended within that time."""

    def _take(self, stream: str, chunk: bytes) -> None:
        if stream == "stderr":
            self._lines.complain(chunk)
            return
        for event in self._lines.feed(chunk):
            self._inbox.put(self.name, event)

    def _ended(self, host: str, exit_status: int) -> ClusterctlError | None:
        """What there is to say of it."""
        if self._told_to_end and not exit_status:
            return None
        stderr = self._lines.stderr.decode(errors="replace")
        return ended_early(host, exit_status, stderr, self._lines.spoke)


class RemoteRelay(RelaySession):
    """A relay on a node: a command on the SSH connection.

    `logins` bounds how many log in at the same time.
    """

    def __init__(
        self,
        name: str,
        target: Target,
        connections: Connections,
        inbox: Inbox,
        logins: threading.Semaphore,
        program: Program,
        config: Mapping[str, Any],
    ) -> None:
        super().__init__(name, inbox, program, config)
        self.target = target
        self._connections, self._logins = connections, logins
        self._exchange: Exchange | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """The input ends, and the channel is closed."""
        self._told_to_end = True
        self._orders.close()
        if self._exchange:
            with contextlib.suppress(Exception):
                self._exchange.end()

    def join(self, wait_s: float) -> bool:
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        error: ClusterctlError | None
        try:
            with self._logins:
                session = self._connections.session(self.target)
            self._inbox.put(self.name, LoggedIn())
            result = session.run(
                self._program.command(), stdin=self._orders, sink=self._take, started=self._started
            )
            error = self._ended(self.target.host, result.exit_status)
        except (ConnectionLost, HostUnreachable) as lost:
            error = lost
            if self._exchange is not None:
                # Its own message has the whole command in it.
                error = ConnectionLost(lost.host, "the connection to it was lost", AGAIN)
        except ClusterctlError as failure:
            error = failure
        except Exception as bug:  # noqa: BLE001 - or nobody would hear of the node again
            error = CommandFailed(self.target.host, f"{type(bug).__name__}: {bug}")
        self._inbox.put(self.name, Ended(error))

    def _started(self, exchange: Exchange) -> None:
        self._exchange = exchange
        if self._told_to_end:
            exchange.end()


class LocalRelay(RelaySession):
    """A relay on this machine: a process of its own, which never outlives this one.

    When this process dies, the relay's standard input ends, and so does the relay.
    """

    def __init__(
        self, name: str, inbox: Inbox, program: Program, config: Mapping[str, Any]
    ) -> None:
        super().__init__(name, inbox, program, config)
        # A session of its own: Ctrl-C is for this process, which ends it in order.
        self._process = subprocess.Popen(
            program.argv(python=sys.executable),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdin and self._process.stdout and self._process.stderr
        pipes = [("stderr", self._process.stderr), ("stdout", self._process.stdout)]
        self._readers = [
            threading.Thread(target=self._read, args=pipe, daemon=True) for pipe in pipes
        ]
        for thread in self._readers:
            thread.start()
        threading.Thread(target=self._feed, args=(self._process.stdin,), daemon=True).start()

    def end(self) -> None:
        self._told_to_end = True
        self._orders.close()
        if self._process.poll() is None:
            self._process.terminate()
            if not self.join(END_WITHIN_S):
                self._process.kill()
                self._process.wait()

    def join(self, wait_s: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(wait_s)
        return self._process.poll() is not None

    def _feed(self, stdin: IO[bytes]) -> None:
        offset = 0
        with contextlib.suppress(OSError, ValueError):
            while (chunk := self._orders.read_at(offset, 0.5)) != b"":
                if chunk:
                    stdin.write(chunk)
                    stdin.flush()
                    offset += len(chunk)
                elif self._process.poll() is not None:
                    break
        with contextlib.suppress(OSError):
            stdin.close()

    def _read(self, stream: str, pipe: IO[bytes]) -> None:
        while chunk := pipe.read1(CHUNK):  # type: ignore[attr-defined]
            self._take(stream, chunk)
        if stream == "stdout":
            status = self._process.wait()
            self._readers[0].join(1.0)
            error = self._ended(self.name, 128 - status if status < 0 else status)
            self._inbox.put(self.name, Ended(error))
