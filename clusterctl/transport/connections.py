"""The open connections of one program run: one per host, kept until closed."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence

import paramiko

from clusterctl.domain.errors import ConnectionLost, HostError, HostUnreachable
from clusterctl.domain.results import CommandResult, FanoutResult, HostOutcome
from clusterctl.transport.dial import most_hosts
from clusterctl.transport.errors import jump_failed
from clusterctl.transport.execute import Exchange, Sink
from clusterctl.transport.fanout import DEFAULT_FANOUT, fan_out
from clusterctl.transport.keys import PinnedHostKeys
from clusterctl.transport.session import Identity, Session, connect, shown_key
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
    With `doubt_after_s` a kept connection gets so long to take a command before it is made anew:
    where they are kept for minutes, hosts reboot meanwhile. Without `ask_again` a host that could
    not be reached is not tried a second time.
    """

    doubt_after_s: float | None = None
    ask_again = True

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
        self._failed: dict[Target, HostUnreachable] = {}
        self._lock = threading.Lock()
        self._ended = False
        self.most_hosts = most_hosts()

    def __enter__(self) -> Connections:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def session(self, target: Target) -> Session:
        """The connection to `target`, opened if there is none alive."""
        with self._lock:
            if target in self._failed:
                raise self._failed[target]
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
                explained = self.explain(target, error)
                if not self.ask_again and isinstance(explained, HostUnreachable):
                    self._failed[target] = explained
                raise explained from error.__cause__
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
            with self._lock:
                if self._ended:
                    exchange.interrupted = True
                    raise ConnectionLost(target.host, "interrupted before the command ran")
                started.append(exchange)
                self._exchanges[id(exchange)] = exchange

        def run(session: Session, open_timeout_s: float = 30.0) -> CommandResult:
            return session.run(
                command,
                timeout_s=timeout_s,
                stdin=stdin,
                sink=sink,
                started=remember,
                open_timeout_s=open_timeout_s,
            )

        try:
            kept = self._sessions.get(target)
            session = self.session(target)
            if session is not kept:
                return run(session)
            try:
                return run(session, self.doubt_after_s or 30.0)
            except HostError as error:
                # Before it started, nothing ran: the connection may have died unseen.
                if started or self._ended or not self._drop_dead(target, session, error):
                    raise
            return run(self.session(target))
        except ConnectionLost as error:
            if self._ended or any(exchange.interrupted for exchange in started):
                raise
            raise self.explain(target, error) from error.__cause__
        finally:
            with self._lock:
                for exchange in started:
                    self._exchanges.pop(id(exchange), None)

    def _drop_dead(self, target: Target, session: Session, error: HostError) -> bool:
        """Close a kept connection that took no command; False if it is to stay.

        Its jump host's is closed with it, if that says nothing either.
        """
        if isinstance(error.__cause__, paramiko.ChannelException):  # the server is there, and full
            return False
        if session.alive and not isinstance(error.__cause__, (EOFError, OSError)):
            with self._lock:
                busy = any(one.host == target.host for one in self._exchanges.values())
            if not self.doubt_after_s or busy:
                return False
            if target.jump:
                jump = self._sessions.get(target.jump)
                if jump and not jump.answers(self.doubt_after_s):
                    self._forget(target.jump, jump)
        self._forget(target, session)
        return True

    def _forget(self, target: Target, session: Session) -> None:
        with self._lock:
            if self._sessions.get(target) is session:
                del self._sessions[target]
        session.close()

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

        too_many = len(targets) > self.most_hosts

        def one(target: Target) -> CommandResult:
            try:
                return self.run(
                    target,
                    command if isinstance(command, str) else command(target),
                    timeout_s=timeout_s,
                    stdin=stdin,
                    sink=None if sink is None else _for_host(sink, target.host),
                )
            finally:
                if too_many:
                    self.forget(target)

        try:
            at_once = min(max_workers, self.most_hosts)
            return fan_out(one, targets, max_workers=at_once, on_outcome=on_outcome)
        except KeyboardInterrupt:
            self.interrupt()
            raise

    def apart(self) -> Connections:
        """The same connections, for commands that are interrupted by themselves."""
        other = copy.copy(self)
        other._exchanges = {}
        return other

    def interrupt(self, for_good: bool = False) -> None:
        """End every command that is running; `for_good`: and start none any more."""
        with self._lock:
            self._ended = for_good
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
