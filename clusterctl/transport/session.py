"""One SSH connection to one host, verified and authenticated."""

from __future__ import annotations

import random
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import paramiko
from paramiko.auth_strategy import AuthStrategy, InMemoryPrivateKey
from paramiko.common import cMSG_GLOBAL_REQUEST

from clusterctl.domain.errors import (
    ClusterctlError,
    CommandFailed,
    ConnectionLost,
    HostError,
    HostUnreachable,
    KeyRefused,
)
from clusterctl.domain.results import CommandResult
from clusterctl.domain.timeouts import Timeouts
from clusterctl.node.framed import FramedCommand
from clusterctl.transport import dial
from clusterctl.transport.dial import KeepAliveSocket, Target
from clusterctl.transport.errors import as_host_error, jump_failed, worth_retrying
from clusterctl.transport.execute import CommandOptions, Exchange, execute
from clusterctl.transport.keys import KnownHostKeys, VerifyKnown
from clusterctl.transport.wire import TunedTransport, TunnelSocket

if TYPE_CHECKING:
    from typing_extensions import Unpack

LOGIN_ATTEMPTS = 4
# Bytes of a command's line: Linux starts no shell with a longer argument (MAX_ARG_STRLEN, of 32
# pages), and at 256 KiB sshd closes the connection (PACKET_MAX_SIZE of OpenSSH's packet.c).
LONGEST_LINE = (128 << 10) - 1
# Intervals into which `silence_s` of Timeouts is divided for keep-alive requests to a silent host.
KEEPALIVE_INTERVALS = 4
# Seconds after which paramiko's reading thread of an idle connection wakes up. paramiko uses 0.1 s,
# which a login needs for its deadlines. With 128 idle connections that would take much of a core.
IDLE_WAKE_S = 1.0


@dataclass(frozen=True)
class Identity:
    """The keys to offer, in order: `keys`, or for the hosts in `by_target` their own."""

    keys: Sequence[paramiko.PKey] = ()
    by_target: Mapping[Target, Sequence[paramiko.PKey]] = field(default_factory=dict)

    def keys_for(self, target: Target) -> Sequence[paramiko.PKey]:
        """Return the keys to offer to one host."""
        return self.by_target.get(target, self.keys)


class _OfferKeys(AuthStrategy):
    """Offers the given keys, and no password or key files."""

    def __init__(self, user: str, keys: Sequence[paramiko.PKey]) -> None:
        super().__init__(ssh_config=paramiko.SSHConfig())
        self._user = user
        self._keys = keys

    def get_sources(self):  # type: ignore[no-untyped-def]
        for key in self._keys:
            yield InMemoryPrivateKey(self._user, key)


class Session:
    """A connection that stays open. `run` may be called any number of times, from any thread."""

    def __init__(
        self, target: Target, client: paramiko.SSHClient, jump: Session | None = None
    ) -> None:
        self.target = target
        self.client = client
        self._jump = jump
        self.owns_jump = False  # `close` then also closes the connection to the jump host

    @property
    def alive(self) -> bool:
        """Whether the connection is open, and the one to the jump host if there is one."""
        if self._jump is not None and not self._jump.alive:
            return False
        transport = self.client.get_transport()
        return transport is not None and transport.is_active()

    def run(
        self,
        command: str,
        started: Callable[[Exchange], None] | None = None,
        open_timeout_s: float = 30.0,
        *,
        as_user: bool = False,
        **how: Unpack[CommandOptions],
    ) -> CommandResult:
        """Run `command` with /bin/sh on the host and wait for its end. With `as_user` it is run by
        the user's login shell. What the login files print is no part of the output.

        Output goes to `sink(stream, chunk)` as it arrives. Without a sink it is in the result (the
        first 16 MiB of each stream). `started` is called when the channel is open, before the
        command runs. `open_timeout_s` is the time in which the host must open the channel. Raises
        CommandTimeout with the output so far, CommandFailed for a command that is too long to send,
        CommandNotRun, ConnectionLost, another HostError if the channel cannot be opened, and the
        sink's OSError.
        """
        transport = self.client.get_transport()
        if transport is None:
            raise ConnectionLost(self.target.host, "the connection is closed")
        frame = FramedCommand(command, as_user)
        size = len(frame.line.encode(errors="surrogateescape"))
        if size > LONGEST_LINE:
            too_long = f"the command has {size:,} bytes, and a shell there takes {LONGEST_LINE:,}"
            raise CommandFailed(self.target.host, too_long, "copy it there as a file, and run that")
        exchange: Exchange | None = None
        try:
            channel = transport.open_session(timeout=open_timeout_s)
            exchange = Exchange(self.target.host, command, channel, frame, how.get("sink"))
            if started:
                started(exchange)
            return execute(exchange, how.get("timeout_s"), how.get("stdin", b""))
        except (paramiko.SSHException, OSError, EOFError) as error:
            if exchange is not None and exchange.own_error is error:
                raise
            if not transport.is_active():
                raise ConnectionLost(
                    self.target.host, "the connection was lost while a command ran"
                ) from error
            raise as_host_error(self.target, error) from error

    def answers(self, within_s: float) -> bool:
        """Return whether the host answers a request for a channel, also if it refuses."""
        transport = self.client.get_transport()
        if transport is None:
            return False
        try:
            transport.open_session(timeout=within_s).close()
        except paramiko.ChannelException:
            return True
        except (paramiko.SSHException, EOFError, OSError):
            return False
        return True

    def open_tunnel(self, address: str, port: int, timeout_s: float) -> paramiko.Channel:
        """Open a channel from the host, as TunnelTransport.open_tunnel does. Raise EOFError if the
        connection is closed."""
        transport = self.client.get_transport()
        if transport is None:
            raise EOFError
        return cast("TunedTransport", transport).open_tunnel(address, port, timeout_s)

    @property
    def round_trip_s(self) -> float | None:
        """The round trip that the kernel measured on this connection. It depends on the link only,
        however busy the host is. None if it is not known, as over a jump host."""
        transport = self.client.get_transport()
        return cast("KeepAliveSocket", transport.sock).round_trip_s if transport else None

    def limit_silence(self, silence_s: float) -> None:
        """Close the connection once the host gives no sign of life for about so many seconds."""
        transport = self.client.get_transport()
        if transport is not None:
            sock = cast("KeepAliveSocket", transport.sock)
            sock.limit_silence(silence_s)
            _keep_alive(transport, sock, silence_s)

    def close(self) -> None:
        """Close the connection."""
        transport = self.client.get_transport()
        try:
            self.client.close()
        except AttributeError:
            # paramiko lists a channel that another thread opens before it has a transport, and then
            # cannot close it.
            if transport is not None:
                transport.sock.close()
        if self._jump is not None and self.owns_jump:
            self._jump.close()


def connect(
    target: Target,
    identity: Identity,
    host_keys: KnownHostKeys,
    connect_timeout_s: float = 10.0,
    jumps: Callable[[Target], Session] | None = None,
) -> Session:
    """Log in. Raise HostUnreachable, HostKeyUnknown, HostKeyChanged or KeyRefused.

    `jumps` returns the connection to a jump host, which is shared and stays open. Without it the
    session opens and closes one of its own.
    """
    if target.down:
        raise HostUnreachable(target.host, target.down)
    if not identity.keys_for(target):
        raise KeyRefused(
            target.host,
            f"there is no key to offer to {target.user}@{target.address}",
            "load one into an agent: ssh-add FILE",
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
            raise jump_failed(target, target.jump, error) from error
        try:
            session = _log_in(target, identity, host_keys, connect_timeout_s, jump)
            session.owns_jump = jumps is None
            return session
        except BaseException as error:
            # If the connection to the jump host ended during the login, try once more with a new
            # one.
            again = attempt == 1 and isinstance(error, HostUnreachable) and not jump.alive
            if jumps is None:
                jump.close()
            if not again:
                raise
    raise AssertionError("unreachable")


def fetch_host_key(target: Target, timeout_s: float, jump: Session | None) -> paramiko.PKey:
    """Return the host key that the target shows, without checking it and without a login.

    For trust on first use, where the user chose it. Raises HostUnreachable.
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
        raise as_host_error(target, error) from error


def _log_in(
    target: Target,
    identity: Identity,
    host_keys: KnownHostKeys,
    timeout_s: float,
    jump: Session | None = None,
) -> Session:
    """Log in, with retries where sshd drops connections because of too many logins at once."""
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
    host_keys: KnownHostKeys,
    timeout_s: float,
    jump: Session | None,
) -> Session:
    def tuned(sock: object, **options: object) -> TunedTransport:
        made = TunedTransport(sock, **options)
        made.prefer(host_keys.algorithms(target))
        return made

    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(VerifyKnown(target, host_keys))
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
            auth_strategy=_OfferKeys(target.user, identity.keys_for(target)),
        )
    except BaseException:
        client.close()
        raise
    sock.settimeout(IDLE_WAKE_S)
    session = Session(target, client, jump)
    session.limit_silence(Timeouts.silence_s)
    return session


def open_socket(target: Target, timeout_s: float, jump: Session | None) -> KeepAliveSocket:
    """Open the connection for an SSH session: from this machine, or from the jump host.

    Raises OSError, and over a jump host EOFError or paramiko.SSHException.
    """
    if jump is None:
        return dial.dial(target, timeout_s)
    return TunnelSocket(jump.open_tunnel(target.address, target.port, timeout_s))


def _keep_alive(transport: paramiko.Transport, sock: KeepAliveSocket, silence_s: float) -> None:
    """Close the connection if the host vanishes or its sshd freezes.

    TCP's own keep-alive does not notice a frozen sshd, since the kernel acknowledges data that sshd
    does not read. So SSH requests (keepalive@openssh.com) are sent, which sshd answers.
    """
    # The packetizer, a part of the transport, keeps `ask`. A strong reference would be a cycle.
    reference = weakref.proxy(transport)

    def ask() -> None:
        if sock.watched:
            return
        if sock.unanswered == KEEPALIVE_INTERVALS - 1:
            # Requests are counted, not seconds: after this program was suspended, a long time has
            # passed in which it read no answers.
            sock.close()
            return
        sock.unanswered += 1
        # With a full window the send would block this thread, which also reads the answers.
        if sock.has_room:
            question = paramiko.Message()
            question.add_byte(cMSG_GLOBAL_REQUEST)
            question.add_string("keepalive@openssh.com")
            question.add_boolean(True)
            reference._send_user_message(question)

    transport.packetizer.set_keepalive(silence_s / KEEPALIVE_INTERVALS, ask)


def _login_error(target: Target, error: Exception) -> ClusterctlError:
    # paramiko reports every failure during authentication as one AuthFailure, also a lost
    # connection. If no key was refused, use the real cause.
    attempts = getattr(error, "result", None) or []
    causes = [getattr(attempt, "result", None) for attempt in attempts]
    if causes and not any(isinstance(cause, paramiko.AuthenticationException) for cause in causes):
        error = next((cause for cause in causes if isinstance(cause, Exception)), error)
    # paramiko's words for a connection that closed during a try. sshd closes it after a few tries.
    tried = [n for n, cause in enumerate(causes, start=1) if "transport shut down" in str(cause)]
    if tried and tried[0] < len(causes):
        return KeyRefused(
            target.host,
            f"closed the connection after {tried[0]} of {len(causes)} keys for user {target.user}",
            "sshd may allow few tries (MaxAuthTries): name the key that the host knows",
        )
    return as_host_error(target, error)
