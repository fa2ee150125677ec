"""The open SSH connections of one program run: one per host, kept until closed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import paramiko

from clusterctl.domain.errors import (
    ConnectionLost,
    HostError,
    HostUnreachable,
    Interrupted,
    KeyRefused,
)
from clusterctl.domain.results import DEFAULT_FANOUT, CommandResult, FanoutResult, HostOutcome
from clusterctl.domain.timeouts import Timeouts
from clusterctl.transport.dial import Target, most_hosts
from clusterctl.transport.errors import jump_failed
from clusterctl.transport.execute import WITHIN_S, CommandOptions, Exchange, interruption
from clusterctl.transport.fanout import fan_out, in_thread
from clusterctl.transport.keys import KnownHostKeys
from clusterctl.transport.session import Identity, Session, connect, fetch_host_key

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")


class Connections:
    """Opens connections when they are needed and keeps them. Thread-safe.

    As a context manager it closes all connections at the end. `explain` turns the error of a host
    that was not reached or was lost into one that has more, for example the state in EC2.

    `doubt_after_s` is for connections that are kept for minutes, during which hosts may reboot: a
    kept connection that does not accept a command within this time is replaced by a new one. If
    `ask_again` is false, a host that was not reached once is not tried a second time.
    """

    doubt_after_s: float | None = None
    ask_again = True

    def __init__(
        self,
        identity: Identity,
        host_keys: KnownHostKeys,
        connect_timeout_s: float = 10.0,
        explain: Callable[[Target, HostError], HostError] = lambda target, error: error,
        timeouts: Timeouts = Timeouts(),
    ) -> None:
        self._silence_s = timeouts.silence_s
        self.explain = explain
        self.identity = identity
        self.host_keys = host_keys
        self.connect_timeout_s = connect_timeout_s
        self._sessions: dict[Target, Session] = {}
        self._opening: dict[Target, Future[Session]] = {}
        # The running commands.
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
        """Return the connection to `target`; open one if there is none alive. Raise HostError."""
        with self._lock:
            if target in self._failed:
                raise self._failed[target]
            session = self._sessions.get(target)
            if session is not None and session.alive:
                return session
            opening = self._opening.get(target)
            if opening is None:
                # The first thread opens the connection. The others wait for it: all hosts behind
                # one jump host need the same connection to that jump host at the same time.
                mine = self._opening[target] = Future()
        if opening is not None:
            return opening.result()
        try:
            try:
                session = self.open_another(target, self.connect_timeout_s)
            except (HostUnreachable, KeyRefused) as error:
                explained = self.explain(target, error)
                if not self.ask_again and isinstance(explained, HostUnreachable):
                    self._failed[target] = explained
                raise explained from error.__cause__
            with self._lock:
                self._sessions[target] = session
            mine.set_result(session)
            return session
        except BaseException as error:
            mine.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._opening[target]

    def open_another(self, target: Target, connect_timeout_s: float) -> Session:
        """Open a connection that the caller owns and closes. Raise HostError.

        A jump host is reached by its kept connection.
        """
        session = connect(target, self.identity, self.host_keys, connect_timeout_s, self.session)
        session.limit_silence(self._silence_s)
        return session

    def shown_key(self, target: Target) -> paramiko.PKey:
        """Return the host key that the target shows, without checking it. Raise HostError."""
        jump = None
        if target.jump:
            try:
                jump = self.session(target.jump)
            except HostError as error:
                raise jump_failed(target, target.jump, error) from error
        return fetch_host_key(target, self.connect_timeout_s, jump)

    def forget(self, target: Target) -> None:
        """Close the connection to one host, for example before it reboots."""
        with self._lock:
            session = self._sessions.pop(target, None)
        if session:
            session.close()

    def run(
        self, target: Target, command: str, *, as_user: bool = False, **how: Unpack[CommandOptions]
    ) -> CommandResult:
        """Run one command on one host; see Session.run. Raise HostError.

        If a kept connection turns out to be dead before the command started, the command runs over
        a new connection. On KeyboardInterrupt the command is ended on its host. `sink` is called in
        another thread.
        """
        started: list[Exchange] = []
        interrupted = False

        def remember(exchange: Exchange) -> None:
            with self._lock:
                if self._ended or interrupted:
                    exchange.interrupted = True
                    raise ConnectionLost(target.host, "interrupted before the command ran")
                started.append(exchange)
                self._exchanges[id(exchange)] = exchange

        def run(session: Session, open_timeout_s: float = 30.0) -> CommandResult:
            return session.run(command, remember, open_timeout_s, as_user=as_user, **how)

        def connect_and_run() -> CommandResult:
            try:
                kept = self._sessions.get(target)
                session = self.session(target)
                if session is not kept:
                    return run(session)
                try:
                    return run(session, self.doubt_after_s or 30.0)
                except HostError as error:
                    # If the command has not started, nothing ran on the host and a second try is
                    # safe. The kept connection may have died unnoticed.
                    if started or self._ended or not self._drop_dead(target, session, error):
                        raise
                return run(self.session(target))
            except ConnectionLost as error:
                if self._ended or interrupted or any(exchange.interrupted for exchange in started):
                    raise
                raise self.explain(target, error) from error.__cause__
            finally:
                with self._lock:
                    for exchange in started:
                        self._exchanges.pop(id(exchange), None)

        if threading.current_thread() is not threading.main_thread():
            return connect_and_run()
        # paramiko takes its locks by acquire() and then enters `try`. In the main thread a
        # KeyboardInterrupt can come in between: the lock is never released, and every later command
        # on this connection hangs.
        try:
            return in_thread(connect_and_run)
        except KeyboardInterrupt:
            with self._lock:
                interrupted = True
            raise interruption(in_thread(lambda: end_all(started))) from None

    def _drop_dead(self, target: Target, session: Session, error: HostError) -> bool:
        """Close a kept connection that took no command. Return False if it must stay open.

        If the host's jump host does not answer either, the connection to it is closed too.
        """
        # A refused channel is an answer: the server is alive, and its MaxSessions is reached.
        if isinstance(error.__cause__, paramiko.ChannelException):
            return False
        if session.alive and not isinstance(error.__cause__, (EOFError, OSError)):
            # The host did not answer in time. It may only be slow, so the connection stays if a
            # command is running over it.
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
        command: str,
        *,
        as_user: bool = False,
        **how: Unpack[CommandOptions],
    ) -> FanoutResult[CommandResult]:
        """Run a command on every host; see `run` and `each`."""
        return self.each(targets, lambda one: self.run(one, command, as_user=as_user, **how))

    def each(
        self,
        targets: Sequence[Target],
        work: Callable[[Target], T],
        *,
        max_workers: int = DEFAULT_FANOUT,
        on_outcome: Callable[[HostOutcome[T]], None] | None = None,
    ) -> FanoutResult[T]:
        """Do `work`, which runs commands, for every host, for at most `max_workers` at a time.

        The result has one outcome per host, in the order of `targets`. On KeyboardInterrupt the
        running commands are stopped on their hosts.
        """
        # With more hosts than open files allow, no connection is kept after its command.
        too_many = len(targets) > self.most_hosts

        def one(target: Target) -> T:
            try:
                return work(target)
            finally:
                if too_many:
                    self.forget(target)

        try:
            at_once = min(max_workers, self.most_hosts)
            return fan_out(one, targets, max_workers=at_once, on_outcome=on_outcome)
        except KeyboardInterrupt as interrupted:
            # With one host, `run` has ended its command already.
            left, is_ours = self.interrupt(), isinstance(interrupted, Interrupted)
            raise interrupted if is_ours else interruption(left) from None

    def interrupt(self, for_good: bool = False) -> dict[str, str]:
        """End every command that is running. With `for_good`, commands that start later fail.

        Returns, by host, what is left of the commands there, for the hosts where something is left.
        """
        with self._lock:
            self._ended = self._ended or for_good
            running = list(self._exchanges.values())
        return end_all(running)

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            sessions = list(self._sessions.values())
            self._sessions.clear()
        for session in sessions:
            session.close()


def end_all(exchanges: Sequence[Exchange]) -> dict[str, str]:
    """End commands on their hosts, all at once. Return what is left there, by host."""
    for exchange in exchanges:
        exchange.end()
    deadline = time.monotonic() + WITHIN_S
    found = {
        exchange.host: str(exchange.wait_ended(max(0.0, deadline - time.monotonic())) or "")
        for exchange in exchanges
    }
    return {host: left for host, left in found.items() if left}


def read_data(
    connections: Connections,
    target: Target,
    command: str,
    take: Callable[[bytes], object],
    *,
    stdin: bytes = b"",
    timeout_s: float | None = None,
) -> CommandResult:
    """Run one command on one host, and pass its stdout to `take`.

    The result has the command's status and stderr; its stdout is empty. Raise HostError, and the
    OSError of `take`.
    """
    errors = bytearray()

    def sink(stream: str, chunk: bytes) -> None:
        (errors.extend if stream == "stderr" else take)(chunk)

    result = connections.run(target, command, stdin=stdin, timeout_s=timeout_s, sink=sink)
    return replace(result, stdout="", stderr=errors.decode(errors="replace"))
