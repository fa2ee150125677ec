"""The open connections of one program run: one per host, kept until closed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import paramiko

from clusterctl.domain.errors import ConnectionLost, HostError, HostUnreachable
from clusterctl.domain.results import CommandResult, FanoutResult, HostOutcome
from clusterctl.transport.errors import jump_failed
from clusterctl.transport.execute import Exchange, Sink
from clusterctl.transport.fanout import DEFAULT_FANOUT, fan_out
from clusterctl.transport.first_contact import shown_key
from clusterctl.transport.hostkeys import PinnedHostKeys
from clusterctl.transport.limits import raise_open_files
from clusterctl.transport.session import Identity, Session, connect
from clusterctl.transport.stdin import Stdin
from clusterctl.transport.target import Target


class _Opening:
    """A connection that one thread opens and others wait for."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.session: Session | None = None
        self.error: BaseException | None = None

    def wait(self) -> Session:
        self.ended.wait()
        if self.session is None:
            assert self.error
            raise self.error
        return self.session


class Connections:
    """Opens what is needed and keeps it. Use as a context manager: leaving it closes all.

    `explain` says more of a host that could not be reached or was lost, where more is known.
    """

    def __init__(
        self,
        identity: Identity,
        host_keys: PinnedHostKeys,
        connect_timeout_s: float = 10.0,
        explain: Callable[[Target, HostError], HostError] = lambda target, error: error,
    ) -> None:
        self.explain = explain
        self.identity = identity
        self.host_keys = host_keys
        self.connect_timeout_s = connect_timeout_s
        self._sessions: dict[Target, Session] = {}
        self._opening: dict[Target, _Opening] = {}
        self._exchanges: dict[int, Exchange] = {}
        self._lock = threading.Lock()
        raise_open_files()

    def __enter__(self) -> Connections:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def session(self, target: Target) -> Session:
        """The connection to `target`, opened if there is none alive."""
        with self._lock:
            session = self._sessions.get(target)
            if session is not None and session.alive:
                return session
            opening = self._opening.get(target)
            if opening is None:
                # Whoever comes first opens it; those behind the same jump host share what comes.
                mine = self._opening[target] = _Opening()
        if opening is not None:
            return opening.wait()
        try:
            try:
                mine.session = self.open_another(target, self.connect_timeout_s)
            except HostUnreachable as error:
                raise self.explain(target, error) from error.__cause__
            with self._lock:
                self._sessions[target] = mine.session
            return mine.session
        except BaseException as error:
            mine.error = error
            raise
        finally:
            with self._lock:
                del self._opening[target]
            mine.ended.set()

    def open_another(self, target: Target, connect_timeout_s: float) -> Session:
        """A connection of the caller's own, through the kept one to its jump host."""
        return connect(target, self.identity, self.host_keys, connect_timeout_s, self.session)

    def shown_key(self, target: Target) -> paramiko.PKey:
        """The host key that the target shows, whatever is pinned. Raises HostError."""
        jump = None
        if target.jump:
            try:
                jump = self.session(target.jump)
            except HostError as error:
                raise jump_failed(target, error) from error
        return shown_key(target, self.connect_timeout_s, jump)

    def forget(self, target: Target) -> None:
        """Close the connection to one host, for example before it reboots."""
        with self._lock:
            session = self._sessions.pop(target, None)
        if session:
            session.close()

    def run(
        self,
        target: Target,
        command: str,
        *,
        timeout_s: float | None = None,
        stdin: Stdin | bytes = b"",
        sink: Sink | None = None,
    ) -> CommandResult:
        """One command on one host. Raises HostError; see Session.run."""
        started: list[Exchange] = []

        def remember(exchange: Exchange) -> None:
            started.append(exchange)
            with self._lock:
                self._exchanges[id(exchange)] = exchange

        try:
            return self.session(target).run(
                command, timeout_s=timeout_s, stdin=stdin, sink=sink, started=remember
            )
        except ConnectionLost as error:
            if any(exchange.interrupted for exchange in started):
                raise
            raise self.explain(target, error) from error.__cause__
        finally:
            with self._lock:
                for exchange in started:
                    self._exchanges.pop(id(exchange), None)

    def run_all(
        self,
        targets: Sequence[Target],
        command: str | Callable[[Target], str],
        *,
        timeout_s: float | None = None,
        stdin: Stdin | bytes = b"",
        sink: Callable[[str, str, bytes], None] | None = None,
        max_workers: int = DEFAULT_FANOUT,
        on_outcome: Callable[[HostOutcome[CommandResult]], None] | None = None,
    ) -> FanoutResult[CommandResult]:
        """The command on every host, at most `max_workers` at a time; one outcome per host.

        On KeyboardInterrupt the running commands are ended on their hosts.
        """

        def one(target: Target) -> CommandResult:
            return self.run(
                target,
                command if isinstance(command, str) else command(target),
                timeout_s=timeout_s,
                stdin=stdin,
                sink=None if sink is None else _for_host(sink, target.host),
            )

        try:
            return fan_out(one, targets, max_workers=max_workers, on_outcome=on_outcome)
        except KeyboardInterrupt:
            self.interrupt()
            raise

    def interrupt(self) -> None:
        """End every command that is running."""
        with self._lock:
            running = list(self._exchanges.values())
        for exchange in running:
            exchange.end()

    def close(self) -> None:
        with self._lock:
            sessions = list(self._sessions.values())
            self._sessions.clear()
        for session in sessions:
            session.close()


def _for_host(sink: Callable[[str, str, bytes], None], host: str) -> Sink:
    return lambda stream, chunk: sink(host, stream, chunk)
