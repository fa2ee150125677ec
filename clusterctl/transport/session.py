"""One SSH connection to one host, verified and authenticated."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import paramiko
from paramiko.auth_strategy import AuthStrategy, InMemoryPrivateKey

from clusterctl.domain.errors import (
    ClusterctlError,
    ConnectionLost,
    HostUnreachable,
    KeyRefused,
)
from clusterctl.domain.results import CommandResult
from clusterctl.transport.dial import dial
from clusterctl.transport.errors import translated, worth_retrying
from clusterctl.transport.execute import Exchange, Sink, execute
from clusterctl.transport.hostkeys import PinnedHostKeys, VerifyPinned
from clusterctl.transport.stdin import StdinSource
from clusterctl.transport.target import Target
from clusterctl.transport.wire import TunedTransport

LOGIN_ATTEMPTS = 4


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

    def __init__(self, target: Target, client: paramiko.SSHClient) -> None:
        self.target = target
        self.client = client

    @property
    def alive(self) -> bool:
        transport = self.client.get_transport()
        return transport is not None and transport.is_active()

    def run(
        self,
        command: str,
        *,
        timeout_s: float | None = None,
        stdin: StdinSource | bytes = b"",
        sink: Sink | None = None,
        started: Callable[[Exchange], None] | None = None,
    ) -> CommandResult:
        """Run `command` in the user's login shell on the host and wait for its end.

        Output goes to `sink(stream, chunk)` as it comes, else into the result (the first
        16 MiB per stream). Raises CommandTimeout with the output so far, ConnectionLost.
        """
        transport = self.client.get_transport()
        if transport is None:
            raise ConnectionLost(self.target.host, "the connection is closed")
        try:
            channel = transport.open_session(timeout=30)
            exchange = Exchange(self.target.host, command, channel, sink)
            if started:
                started(exchange)
            return execute(exchange, timeout_s, stdin)
        except (paramiko.SSHException, OSError, EOFError) as error:
            if not transport.is_active():
                raise ConnectionLost(
                    self.target.host, "the connection was lost while a command ran"
                ) from error
            raise translated(self.target, error) from error

    def close(self) -> None:
        self.client.close()


def connect(
    target: Target,
    identity: Identity,
    host_keys: PinnedHostKeys,
    connect_timeout_s: float = 10.0,
) -> Session:
    """Log in. Raises HostUnreachable, HostKeyUnknown, HostKeyChanged, KeyRefused."""
    if target.down:
        raise HostUnreachable(target.host, target.down)
    if not identity.keys:
        raise KeyRefused(
            target.host,
            f"there is no key to offer to {target.user}@{target.address}",
            "name one with --key FILE, or load one into an agent: ssh-add FILE",
        )
    for attempt in range(LOGIN_ATTEMPTS):
        try:
            return _login(target, identity, host_keys, connect_timeout_s)
        except Exception as error:
            if attempt + 1 < LOGIN_ATTEMPTS and worth_retrying(error):
                time.sleep(random.uniform(0.1, 0.5) * 2**attempt)
                continue
            raise _login_error(target, error) from error
    raise AssertionError("unreachable")


def _login(
    target: Target, identity: Identity, host_keys: PinnedHostKeys, timeout_s: float
) -> Session:
    def transport(sock: object, **options: object) -> TunedTransport:
        tuned = TunedTransport(sock, **options)  # type: ignore[arg-type]
        tuned.prefer(host_keys.algorithms(target))
        return tuned

    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(VerifyPinned(target, host_keys))
    try:
        client.connect(
            target.address,
            port=target.port,
            username=target.user,
            sock=dial(target, timeout_s),  # type: ignore[arg-type]
            timeout=timeout_s,
            banner_timeout=timeout_s,
            auth_timeout=timeout_s,
            transport_factory=transport,
            auth_strategy=_OfferKeys(target.user, identity.keys),
        )
    except BaseException:
        client.close()
        raise
    return Session(target, client)


def _login_error(target: Target, error: Exception) -> ClusterctlError:
    # paramiko folds everything that goes wrong during authentication into one AuthFailure.
    attempts = getattr(error, "result", None) or []
    causes = [getattr(attempt, "result", None) for attempt in attempts]
    if causes and not any(isinstance(cause, paramiko.AuthenticationException) for cause in causes):
        error = next((cause for cause in causes if isinstance(cause, Exception)), error)
    return translated(target, error)
