"""Sessions with relays, on nodes or on this machine: orders go in, events come out.

Memory use here is bounded, whatever a node sends.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Generic, TypeVar, Union

from clusterctl.copy.failures import AGAIN, ended_early
from clusterctl.domain.errors import ClusterctlError, CommandFailed, ConnectionLost, HostUnreachable
from clusterctl.node.packer import Program, program_of
from clusterctl.node.relay.messages import Event, Order, Ping, Progress, Stop, decode_event, encode
from clusterctl.transport.connections import Connections
from clusterctl.transport.dial import Target
from clusterctl.transport.execute import Exchange
from clusterctl.transport.session import Session

# Bytes of an event's line. The longest that relays send is a `Listed` with a hundred warnings.
LONGEST_LINE = 1 << 20
# Events of one node that the inbox keeps until they are taken.
MOST_WAITING = 256
# Bytes that are read or written at once.
CHUNK = 1 << 16
# Bytes that are kept of the end of a relay's stderr.
KEPT_STDERR = 1 << 12
# A relay with more unread bytes of orders gets no further pings: they would fill the memory.
MOST_UNREAD = 1 << 16
# Seconds between SIGTERM and SIGKILL for the relay on this machine.
END_WITHIN_S = 2.0
# SSH logins of a group at the same time.
MOST_LOGINS = 64
# The longest that one call of `updates` waits.
TURN_S = 0.25
# Time between two pings.
PING_S = 5.0
# A relay exits after this long without an order or ping: none outlives a lost connection.
SILENCE_S = 60.0
# The longest wait for all relays of a group to exit after the order to stop.
EXIT_WITHIN_S = 5.0

Why = TypeVar("Why")
Group = TypeVar("Group", bound="RelayGroup[Any]")


class Orders:
    """A relay's standard input: its program and configuration, then orders. Thread-safe."""

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
        """End the input. The relay ends with it."""
        with self._change:
            self._closed = True
            self._change.notify_all()

    def read_at(self, offset: int, wait_s: float) -> bytes | None:
        """Return what follows `offset` (see clusterctl.transport.stdin.Stdin).

        What comes before `offset` is discarded.
        """
        with self._change:
            del self._data[: offset - self._dropped]
            self._dropped = offset
            self._change.wait_for(lambda: self._data or self._closed, wait_s)
            if self._data:
                return bytes(self._data[:CHUNK])
            return b"" if self._closed else None


class EventLines:
    """Decodes the events in a relay's output, which comes in chunks. Other lines are ignored."""

    def __init__(self) -> None:
        self._partial = bytearray()
        self.stderr = b""
        self.spoke = False

    def complain(self, chunk: bytes) -> None:
        """Keep the end of what came on stderr, for error messages."""
        self.stderr = (self.stderr + chunk)[-KEPT_STDERR:]

    def feed(self, chunk: bytes) -> list[Event]:
        """Return the events whose lines end in this chunk."""
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
    """The SSH connection to the node is open, and its relay is being started."""


@dataclass(frozen=True)
class Ended:
    """The relay's process has ended. `error` is the reason; None if it ended as ordered."""

    error: ClusterctlError | None = None


Update = Union[Event, LoggedIn, Ended]


class Inbox:
    """Updates from all relays that are not taken yet. Thread-safe."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Update]] = {}
        self._change = threading.Condition()

    def put(self, node: str, updates: Update) -> None:
        """Add an update of a node. Of several `Progress` in a row only the last one is kept.

        A node with too many waiting events loses further ones, except LoggedIn and Ended.
        """
        with self._change:
            waiting = self._waiting.setdefault(node, deque())
            if waiting and isinstance(waiting[-1], Progress) and isinstance(updates, Progress):
                waiting[-1] = updates
            elif len(waiting) < MOST_WAITING or isinstance(updates, (LoggedIn, Ended)):
                waiting.append(updates)
            self._change.notify_all()

    def take(self, wait_s: float) -> list[tuple[str, Update]]:
        """Return all updates, each node's in order; empty if none come within `wait_s` seconds."""
        deadline = time.monotonic() + wait_s
        with self._change:
            while not self._waiting and (left := deadline - time.monotonic()) > 0:
                self._change.wait(left)
            found, self._waiting = self._waiting, {}
        return [(node, updates) for node, waiting in found.items() for updates in waiting]


class RelaySession(ABC):
    """A relay that is started at once. `name` is its name in the inbox."""

    def __init__(
        self, name: str, inbox: Inbox, program: Program, config: Mapping[str, Any]
    ) -> None:
        self.name, self._inbox, self._program = name, inbox, program
        self._orders = Orders(program.stdin(dict(config)))
        self._lines = EventLines()
        self._is_ending = False

    def give(self, order: Order) -> None:
        """Send an order."""
        self._is_ending = self._is_ending or isinstance(order, Stop)
        self._orders.give(order)

    @abstractmethod
    def end(self) -> None:
        """End the relay now."""

    @abstractmethod
    def join(self, wait_s: float) -> bool:
        """Wait at most `wait_s` seconds; return whether the relay has ended."""

    def _take(self, stream: str, chunk: bytes) -> None:
        if stream == "stderr":
            self._lines.complain(chunk)
            return
        for event in self._lines.feed(chunk):
            self._inbox.put(self.name, event)

    def _ended(self, host: str, exit_status: int) -> ClusterctlError | None:
        """Return the error for a relay that has ended, or None if it ended as ordered."""
        if self._is_ending and not exit_status:
            return None
        stderr = self._lines.stderr.decode(errors="replace")
        return ended_early(host, exit_status, stderr, self._lines.spoke)


class Logins:
    """Connections to nodes, of which at most `at_once` log in at the same time."""

    def __init__(self, connections: Connections, at_once: int) -> None:
        self._connections, self._at_once = connections, threading.Semaphore(max(1, at_once))

    def session(self, target: Target) -> Session:
        """Return the connection to a node. Raise HostError."""
        with self._at_once:
            return self._connections.session(target)


class RemoteRelay(RelaySession):
    """A relay on a node: a command on its SSH connection."""

    def __init__(
        self,
        name: str,
        target: Target,
        logins: Logins,
        inbox: Inbox,
        program: Program,
        config: Mapping[str, Any],
    ) -> None:
        super().__init__(name, inbox, program, config)
        self.target, self._logins = target, logins
        self._exchange: Exchange | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End the relay's input and close its channel."""
        self._is_ending = True
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
            session = self._logins.session(self.target)
            self._inbox.put(self.name, LoggedIn())
            result = session.run(
                self._program.command(), stdin=self._orders, sink=self._take, started=self._started
            )
            error = self._ended(self.target.host, result.exit_status)
        except (ConnectionLost, HostUnreachable) as lost:
            error = lost
            if self._exchange is not None:
                # The original message contains the whole command, which is a long program.
                error = ConnectionLost(lost.host, "the connection to it was lost", AGAIN)
        except ClusterctlError as failure:
            error = failure
        except Exception as bug:  # noqa: BLE001 - else the copy would wait for this node for ever
            error = CommandFailed(self.target.host, f"{type(bug).__name__}: {bug}")
        self._inbox.put(self.name, Ended(error))

    def _started(self, exchange: Exchange) -> None:
        self._exchange = exchange
        if self._is_ending:
            exchange.end()


class RelayGroup(Generic[Why]):
    """Relays of one role, one on each of some nodes. Leaving the block stops them.

    `failures` maps the hosts whose relays have failed to the reasons.
    """

    def __init__(
        self,
        connections: Connections,
        targets: Sequence[Target],
        config: Mapping[str, Any],
        module: str = "clusterctl.node.relay.relay",
    ) -> None:
        self.failures: dict[str, Why] = {}
        self._inbox, self._pinged_at = Inbox(), time.monotonic()
        logins = Logins(connections, MOST_LOGINS)
        program = program_of(module)
        config = {"report_s": 1.0, "silence_s": SILENCE_S, **config}
        self._relays = {
            target.host: RemoteRelay(target.host, target, logins, self._inbox, program, config)
            for target in targets
        }

    def __enter__(self: Group) -> Group:
        return self

    def __exit__(self, *error: object) -> None:
        going = [relay for host, relay in self._relays.items() if host not in self.failures]
        for relay in going:
            relay.give(Stop())
        deadline = time.monotonic() + EXIT_WITHIN_S
        for relay in going:
            relay.join(max(0.0, deadline - time.monotonic()))
            relay.end()

    def fail(self, host: str, why: Why) -> Why:
        """Stop a host's relay, and return why it failed: the first reason that was given."""
        if host not in self.failures:
            self.failures[host] = why
            self._relays[host].end()
        return self.failures[host]

    def updates(self) -> list[tuple[str, Update]]:
        """Return all updates; empty if none come within TURN_S seconds. Pings the relays."""
        updates, now = self._inbox.take(TURN_S), time.monotonic()
        if now - self._pinged_at >= PING_S:
            self._pinged_at = now
            for relay in self._relays.values():
                relay.give(Ping())
        return updates


class LocalRelay(RelaySession):
    """A relay on this machine: a separate process, which never outlives this one.

    When this process dies, the relay's standard input ends, and the relay ends with it.
    """

    def __init__(
        self, name: str, inbox: Inbox, program: Program, config: Mapping[str, Any]
    ) -> None:
        super().__init__(name, inbox, program, config)
        # In a session of its own: Ctrl-C must reach only this process, which ends the relay in
        # order.
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
        self._is_ending = True
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
            # A process that a signal killed has a negative status; shells report 128 plus signal.
            error = self._ended(self.name, 128 - status if status < 0 else status)
            self._inbox.put(self.name, Ended(error))
