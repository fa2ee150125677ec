"""A relay on a node: its command on the SSH connection, its lines in and out."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from typing import Any

from clusterctl.copy.failures import AGAIN, ended_early
from clusterctl.copy.lines import Ended, EventLines, Inbox, LoggedIn, Orders
from clusterctl.domain.errors import (
    ClusterctlError,
    CommandFailed,
    ConnectionLost,
    HostUnreachable,
)
from clusterctl.node.packer import JoinedProgram
from clusterctl.transport.connections import Connections
from clusterctl.transport.execute import Exchange
from clusterctl.transport.target import Target


class RemoteRelay:
    """Starts at once, on a thread of its own. `name` is what its news are put under.

    `logins` bounds how many log in at the same time.
    """

    def __init__(
        self,
        name: str,
        target: Target,
        connections: Connections,
        inbox: Inbox,
        logins: threading.Semaphore,
        program: JoinedProgram,
        config: Mapping[str, Any],
    ) -> None:
        self.name, self.target = name, target
        self._connections, self._inbox, self._logins = connections, inbox, logins
        self._command = program.command()
        self._orders = Orders(program.stdin(dict(config)))
        self._lines = EventLines()
        self._exchange: Exchange | None = None
        self._told_to_end = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def give(self, order: Mapping[str, Any]) -> None:
        """Send an order."""
        self._told_to_end = self._told_to_end or order.get("order") == "stop"
        self._orders.give(order)

    def ping(self) -> None:
        self._orders.ping()

    def end(self) -> None:
        """End it now: the input ends, and the channel is closed."""
        self._told_to_end = True
        self._orders.close()
        exchange = self._exchange
        if exchange:
            with contextlib.suppress(Exception):
                exchange.end()

    def join(self, wait_s: float) -> bool:
        """Whether it has ended within that time."""
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        error: ClusterctlError | None
        try:
            error = self._talk()
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

    def _talk(self) -> ClusterctlError | None:
        with self._logins:
            session = self._connections.session(self.target)
        self._inbox.put(self.name, LoggedIn())
        result = session.run(
            self._command, stdin=self._orders, sink=self._take, started=self._started
        )
        if self._told_to_end and result.ok:
            return None
        stderr = self._lines.stderr.decode(errors="replace")
        return ended_early(self.target.host, result.exit_status, stderr, self._lines.spoke)

    def _started(self, exchange: Exchange) -> None:
        self._exchange = exchange
        if self._told_to_end:
            exchange.end()

    def _take(self, stream: str, chunk: bytes) -> None:
        if stream == "stderr":
            self._lines.complain(chunk)
            return
        for event in self._lines.feed(chunk):
            self._inbox.put(self.name, event)
