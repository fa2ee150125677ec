"""One SSH connection to one host, verified and authenticated."""

from __future__ import annotations

import random
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import paramiko
from paramiko.auth_strategy import AuthStrategy, InMemoryPrivateKey
from paramiko.common import cMSG_GLOBAL_REQUEST

from clusterctl.domain.errors import (
    ClusterctlError,
    ConnectionLost,
    HostError,
    HostUnreachable,
    KeyRefused,
)
from clusterctl.domain.results import CommandResult
from clusterctl.transport import dial
from clusterctl.transport.dial import HeardSocket
from clusterctl.transport.errors import jump_failed, translated, worth_retrying
from clusterctl.transport.execute import Exchange, Sink, execute
from clusterctl.transport.keys import PinnedHostKeys, VerifyPinned
from clusterctl.transport.stdin import Stdin
from clusterctl.transport.target import Target
from clusterctl.transport.wire import TunedTransport, open_tunnel

LOGIN_ATTEMPTS = 4
# How often a silent host is asked within dial.SILENCE_LIMIT_S.
QUESTIONS = 4
# How often paramiko's thread of a connection wakes up for nothing. Its own 0.1 s is for the
# deadlines of a login; 128 connections that only wait would take much of a core for it.
IDLE_WAKE_S = 1.0


@dataclass(frozen=True)
class Identity:
    """The keys to offer, in order."""

    keys: Sequence[paramiko.PKey] = field(default_factory=tuple)


class _OfferKeys(AuthStrategy):
    def __init__(self, user: str, keys: Sequence[paramiko.PKey]) -> None:
        super().__init__(ssh_config=paramiko.SSHConfig())
        self._user = user
        self._keys = keys

    def get_sources(self):  # type: ignore[no-untyped-def]
        for key in self._keys:
            yield InMemoryPrivateKey(self._user, key)


class Session:
    """A connection that stays open; `run` may be called any number of times."""

    def __init__(
        self, target: Target, client: paramiko.SSHClient, jump: Session | None = None
    ) -> None:
        self.target = target
        self.client = client
        self._jump = jump
        self._jump_is_own = False

    @property
    def alive(self) -> bool:
        if self._jump is not None and not self._jump.alive:
            return False
        transport = self.client.get_transport()
        return transport is not None and transport.is_active()

    def with_own_jump(self) -> Session:
        """The same, closing its jump host's connection with its own."""
        self._jump_is_own = True
        return self

    def run(
        self,
        command: str,
        *,
        timeout_s: float | None = None,
        stdin: Stdin | bytes = b"",
        sink: Sink | None = None,
        started: Callable[[Exchange], None] | None = None,
        open_timeout_s: float = 30.0,
    ) -> CommandResult:
        """Run `command` in the user's login shell on the host and wait for its end.

        Output goes to `sink(stream, chunk)` as it comes, else into the result (the first
        16 MiB per stream). Raises CommandTimeout with the output so far, ConnectionLost, and
        the sink's OSError. `started` is called before anything runs.
        """
        transport = self.client.get_transport()
        if transport is None:
            raise ConnectionLost(self.target.host, "the connection is closed")
        exchange: Exchange | None = None
        try:
            channel = transport.open_session(timeout=open_timeout_s)
            exchange = Exchange(self.target.host, command, channel, sink)
            if started:
                started(exchange)
            return execute(exchange, timeout_s, stdin)
        except (paramiko.SSHException, OSError, EOFError) as error:
            if exchange is not None and exchange.unheard is error:
                raise
            if not transport.is_active():
                raise ConnectionLost(
                    self.target.host, "the connection was lost while a command ran"
                ) from error
            raise translated(self.target, error) from error

    def answers(self, within_s: float) -> bool:
        """Whether the host says anything, be it no, when it is asked for a channel."""
        transport = self.client.get_transport()
        try:
            assert transport is not None
            transport.open_session(timeout=within_s).close()
        except paramiko.ChannelException:
            return True
        except (AssertionError, paramiko.SSHException, EOFError, OSError):
            return False
        return True

    def close(self) -> None:
        self.client.close()
        if self._jump is not None and self._jump_is_own:
            self._jump.close()


def connect(
    target: Target,
    identity: Identity,
    host_keys: PinnedHostKeys,
    connect_timeout_s: float = 10.0,
    jumps: Callable[[Target], Session] | None = None,
) -> Session:
    """Log in. Raises HostUnreachable, HostKeyUnknown, HostKeyChanged, KeyRefused.

    `jumps` gives the connection to a jump host; without it the session has one of its own.
    """
    if target.down:
        raise HostUnreachable(target.host, target.down)
    if not identity.keys:
        raise KeyRefused(
            target.host,
            f"there is no key to offer to {target.user}@{target.address}",
            "name one with --key FILE, or load one into an agent: ssh-add FILE",
        )
    if target.jump is None:
        return _log_in(target, identity, host_keys, connect_timeout_s)
    for attempt in (1, 2):
        try:
            if jumps is not None:
                jump = jumps(target.jump)
            else:
                jump = connect(target.jump, identity, host_keys, connect_timeout_s)
        except HostError as error:
            raise jump_failed(target, error) from error
        try:
            session = _log_in(target, identity, host_keys, connect_timeout_s, jump)
            return session if jumps is not None else session.with_own_jump()
        except BaseException as error:
            # The jump host's connection has ended under it: the next one may do better.
            again = attempt == 1 and isinstance(error, HostUnreachable) and not jump.alive
            if jumps is None:
                jump.close()
            if not again:
                raise
    raise AssertionError("unreachable")


def shown_key(target: Target, timeout_s: float, jump: Session | None = None) -> paramiko.PKey:
    """The host key that the target shows before anybody trusts it: for trust on first use, if
    asked for. Nobody logs in. Raises HostUnreachable.
    """
    try:
        transport = TunedTransport(open_socket(target, timeout_s, jump))
        transport.banner_timeout = timeout_s
        try:
            transport.prefer(())
            transport.start_client(timeout=timeout_s)
            return transport.get_remote_server_key()
        finally:
            transport.close()
    except Exception as error:
        raise translated(target, error) from error


def _log_in(
    target: Target,
    identity: Identity,
    host_keys: PinnedHostKeys,
    timeout_s: float,
    jump: Session | None = None,
) -> Session:
    for attempt in range(LOGIN_ATTEMPTS):
        try:
            return _attempt(target, identity, host_keys, timeout_s, jump)
        except Exception as error:
            if attempt + 1 < LOGIN_ATTEMPTS and worth_retrying(error):
                time.sleep(random.uniform(0.1, 0.5) * 2**attempt)
                continue
            raise _login_error(target, error) from error
    raise AssertionError("unreachable")


def _attempt(
    target: Target,
    identity: Identity,
    host_keys: PinnedHostKeys,
    timeout_s: float,
    jump: Session | None,
) -> Session:
    def tuned(sock: object, **options: object) -> TunedTransport:
        made = TunedTransport(sock, **options)
        made.prefer(host_keys.algorithms(target))
        return made

    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(VerifyPinned(target, host_keys))
    try:
        sock = open_socket(target, timeout_s, jump)
        client.connect(
            target.address,
            port=target.port,
            username=target.user,
            sock=cast("Any", sock),
            timeout=timeout_s,
            banner_timeout=timeout_s,
            auth_timeout=timeout_s,
            transport_factory=tuned,
            auth_strategy=_OfferKeys(target.user, identity.keys),
        )
    except BaseException:
        client.close()
        raise
    transport = client.get_transport()
    assert transport is not None
    _keep_alive(transport, sock)
    sock.settimeout(IDLE_WAKE_S)
    return Session(target, client, jump)


def open_socket(target: Target, timeout_s: float, jump: Session | None = None) -> HeardSocket:
    """What SSH is spoken over: a connection from here, or from the jump host. Raises OSError."""
    if jump is None:
        return dial.dial(target, timeout_s)
    transport = jump.client.get_transport()
    if transport is None:
        raise EOFError
    return open_tunnel(transport, target, timeout_s)


def _keep_alive(transport: paramiko.Transport, sock: HeardSocket) -> None:
    """Notice a host that vanishes or stands still: its kernel acknowledges what its sshd does not
    read, and so TCP's own keep-alive is content with it.
    """
    reference = weakref.proxy(transport)

    def ask() -> None:
        if sock.watched:
            return
        if sock.unanswered == QUESTIONS - 1:
            # Counted, not timed: who was suspended and goes on has not listened meanwhile.
            sock.close()
            return
        sock.unanswered += 1
        if sock.has_room:
            question = paramiko.Message()
            question.add_byte(cMSG_GLOBAL_REQUEST)
            question.add_string("keepalive@openssh.com")
            question.add_boolean(True)
            reference._send_user_message(question)

    transport.packetizer.set_keepalive(dial.SILENCE_LIMIT_S / QUESTIONS, ask)


def _login_error(target: Target, error: Exception) -> ClusterctlError:
    # paramiko folds everything that goes wrong during authentication into one AuthFailure.
    attempts = getattr(error, "result", None) or []
    causes = [getattr(attempt, "result", None) for attempt in attempts]
    if causes and not any(isinstance(cause, paramiko.AuthenticationException) for cause in causes):
        error = next((cause for cause in causes if isinstance(cause, Exception)), error)
    return translated(target, error)
