"""A host and the way to it, and TCP connections to SSH servers, tuned for many short exchanges."""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO, Any

from clusterctl.domain.errors import PROXY_ENDED
from clusterctl.domain.timeouts import Timeouts
from clusterctl.transport.ssh_config import user_shell


@dataclass(frozen=True)
class Target:
    """One host. `host` is the name that is shown to the user, `address` the one to connect to.

    `proxy_command` is OpenSSH's ProxyCommand, a command for the user's shell with its tokens
    replaced. With `proxy_passes_fd` the command passes a connected socket (ProxyUseFdpass) instead
    of carrying the bytes. With `jump` the connection is made from that host. `host_key_alias` is
    the name of the host in known_hosts files, if it is another one. `down` is empty, or the reason
    why there is nothing to connect to; a connection to such a host fails at once with that message.
    """

    host: str
    address: str
    user: str
    port: int = 22
    proxy_command: str = ""
    proxy_passes_fd: bool = False
    jump: Target | None = None
    host_key_alias: str = ""
    down: str = ""

    @property
    def known_hosts_name(self) -> str:
        """The name of the host in a known_hosts file."""
        if self.host_key_alias:
            return self.host_key_alias
        return self.address if self.port == 22 else f"[{self.address}]:{self.port}"


# tcpi_rtt, the smoothed round trip in microseconds, in struct tcp_info of linux/tcp.h.
RTT_AT = 68


class KeepAliveSocket:
    """The connection below an SSH session, with a count of keep-alive requests without an answer.

    Received data resets the count. transport/session.py sends the requests.
    """

    def __init__(self, sock: Any) -> None:
        self.sock = sock
        self.unanswered = 0

    def recv(self, size: int) -> bytes:
        data: bytes = self.sock.recv(size)
        self.unanswered = 0
        return data

    @property
    def watched(self) -> bool:
        """Whether the kernel watches unacknowledged data, so that no request is necessary."""
        return False

    @property
    def has_room(self) -> bool:
        """Whether a request can be sent without blocking on a full send window."""
        return True

    @property
    def round_trip_s(self) -> float | None:
        """The time in which the host's kernel acknowledges data, None if it is not known."""
        return None

    def limit_silence(self, silence_s: float) -> None:
        """End the connection if the host does not acknowledge data for so many seconds."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sock, name)


class QuickAckSocket(KeepAliveSocket):
    """A TCP socket that sends acknowledgements at once.

    Delayed acknowledgements cost an SSH login two stalls of 40 ms. Linux does not keep TCP_QUICKACK
    (man 7 tcp), so it is set again after each read. Options that this system lacks are not set:
    macOS has no TCP_QUICKACK, TCP_USER_TIMEOUT and TCP_INFO, and calls TCP_KEEPIDLE TCP_KEEPALIVE.
    """

    def recv(self, size: int) -> bytes:
        data = super().recv(size)
        self._set("TCP_QUICKACK", 1)
        return data

    def _set(self, name: str, value: int) -> None:
        """Set an option of TCP if this system has it."""
        option = getattr(socket, name, None)
        if option is not None:
            with contextlib.suppress(OSError):
                self.sock.setsockopt(socket.IPPROTO_TCP, option, value)

    @property
    def watched(self) -> bool:
        # TCP_USER_TIMEOUT ends the connection if sent data stays unacknowledged. SIOCOUTQ (the same
        # number as TIOCOUTQ) is the number of such bytes.
        unsent = array.array("i", [0])
        with contextlib.suppress(OSError):
            fcntl.ioctl(self.sock.fileno(), termios.TIOCOUTQ, unsent)
        return unsent[0] > 0

    @property
    def round_trip_s(self) -> float | None:
        try:
            info = self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, RTT_AT + 4)
        except (OSError, AttributeError):
            return None
        return int.from_bytes(info[RTT_AT:], sys.byteorder) / 1e6

    def limit_silence(self, silence_s: float) -> None:
        with contextlib.suppress(OSError):
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._set("TCP_USER_TIMEOUT", round(silence_s * 1000))
        idle = "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE"
        self._set(idle, max(1, round(silence_s / 2)))
        self._set("TCP_KEEPINTVL", 5)
        self._set("TCP_KEEPCNT", 3)


# Connections that `start_connecting` has started, and when (time.monotonic). `dial` takes them from
# here.
_started: dict[tuple[str, int], tuple[socket.socket, float]] = {}
# Age in seconds up to which a started connection is used, and the number of them. SSH servers close
# connections on which the client sends nothing.
STARTED_FOR_S, MOST_STARTED = 10.0, 256
# Open files for each connection: a socket, and the two ends of a pipe while a command runs.
FILES_PER_HOST = 3
# Open files that are kept free for the rest of the program, for example modules and keys.
OTHER_FILES = 64


def most_hosts() -> int:
    """Return how many hosts this process can be connected to at once.

    Raises the soft limit on open files to the hard limit. The usual soft limit of 1,024 is too low
    for a few hundred hosts.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    if soft == resource.RLIM_INFINITY:
        soft = 1 << 20
    return max(1, (soft - OTHER_FILES) // FILES_PER_HOST)


def start_connecting(targets: Iterable[Target]) -> None:
    """Start TCP connections to hosts in the background; `dial` uses them later.

    The kernel connects and the servers start their SSH processes while this program still imports
    paramiko. Hosts that are given by name are left out, since resolving a name would block.
    """
    most = min(MOST_STARTED, most_hosts())
    for target in targets:
        while target.jump:
            target = target.jump  # noqa: PLW2901
        where = (target.address, target.port)
        known = target.proxy_command or target.down or where in _started
        if known or len(_started) >= most:
            continue
        family = socket.AF_INET6 if ":" in target.address else socket.AF_INET
        with contextlib.suppress(OSError):  # `dial` connects again and reports the error
            socket.inet_pton(family, target.address)
            sock = socket.socket(family)
            sock.setblocking(False)
            sock.connect_ex(where)
            _started[where] = (sock, time.monotonic())


def _connect(where: tuple[str, int], timeout_s: float) -> socket.socket:
    sock, since = _started.pop(where, (None, 0.0))
    if sock is None:
        return socket.create_connection(where, timeout_s)
    waited_s = time.monotonic() - since
    if waited_s > STARTED_FOR_S:
        sock.close()
        return socket.create_connection(where, timeout_s)
    # A non-blocking connect has ended when the socket is writable; SO_ERROR then has its result.
    poller = select.poll()
    poller.register(sock, select.POLLOUT)
    answered = poller.poll(max(0.0, timeout_s - waited_s) * 1000)
    failed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) if answered else errno.ETIMEDOUT
    if failed:
        sock.close()
        raise OSError(failed, os.strerror(failed))
    sock.settimeout(timeout_s)
    return sock


def dial(target: Target, timeout_s: float) -> KeepAliveSocket:
    """Connect to the target's SSH port, by its proxy command if it has one. Raise OSError."""
    if not target.proxy_command:
        return _tuned(_connect((target.address, target.port), timeout_s))
    if target.proxy_passes_fd:
        return _tuned(_passed_socket(target.proxy_command, timeout_s))
    return _ProxySocket(target.proxy_command)


def _start_proxy(
    command: str, stdin: int, stdout: int, stderr: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start a ProxyCommand as OpenSSH does: the user's shell replaces itself by it."""
    return subprocess.Popen(
        [user_shell(), "-c", f"exec {command}"], stdin=stdin, stdout=stdout, stderr=stderr
    )


def _last_words(stderr: IO[bytes], command: str) -> str:
    """Return the last line that a proxy command wrote on stderr, or the command, which ended."""
    stderr.seek(0)
    lines = stderr.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else command


class _ProxySocket(KeepAliveSocket):
    """A socket to a running ProxyCommand, which has its other end as stdin and stdout."""

    def __init__(self, command: str) -> None:
        ours, theirs = socket.socketpair()
        super().__init__(ours)
        self._command = command
        self._began = False
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        with theirs:
            self._process = _start_proxy(command, theirs.fileno(), theirs.fileno(), self._stderr)

    def recv(self, size: int) -> bytes:
        try:
            data = super().recv(size)
        except ConnectionError:  # the command ended before it read what was sent
            data = b""
        if not data and not self._began:
            raise ConnectionRefusedError(
                f"{PROXY_ENDED}: {_last_words(self._stderr, self._command)}"
            )
        self._began = True
        return data

    def send(self, data: bytes) -> int:
        try:
            return int(self.sock.send(data))
        except ConnectionError:
            if self._began:
                raise
            # The command has ended. paramiko would hide why: the next `recv` says it.
            return len(data)

    def close(self) -> None:
        self.sock.close()
        # As ssh does. A command that ends with its input has ended before.
        self._process.send_signal(signal.SIGHUP)
        threading.Thread(target=self._process.wait, daemon=True).start()


def _passed_socket(command: str, timeout_s: float) -> socket.socket:
    """Run a proxy command that passes a connected socket over its stdout (ProxyUseFdpass).

    Raises OSError; if the command passed none, the message is the last line of its stderr.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs, tempfile.TemporaryFile() as stderr:
        ours.settimeout(timeout_s)
        process = _start_proxy(command, subprocess.DEVNULL, theirs.fileno(), stderr)
        theirs.close()
        try:
            size = array.array("i", [0]).itemsize
            _, ancillary, _, _ = ours.recvmsg(1, socket.CMSG_SPACE(size))
        except TimeoutError:
            process.kill()
            raise
        finally:
            process.wait()
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                return socket.socket(fileno=array.array("i", data[:size])[0])
        raise ConnectionRefusedError(_last_words(stderr, command))


def _tuned(sock: socket.socket) -> QuickAckSocket:
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    tuned = QuickAckSocket(sock)
    # For the login. A session then sets its own limit.
    tuned.limit_silence(Timeouts.silence_s)
    return tuned
