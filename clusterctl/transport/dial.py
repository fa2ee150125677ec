"""A connected socket to a host, tuned for many short exchanges."""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import os
import resource
import select
import socket
import subprocess
import termios
import time
from collections.abc import Iterable
from typing import Any

from clusterctl.transport.target import Target

# A host that vanishes mid-command (no RST) is noticed after about this long.
SILENCE_LIMIT_S = 30


class HeardSocket:
    """What SSH is spoken over, and how often it was asked in vain whether anybody is there."""

    def __init__(self, sock: Any) -> None:
        self.sock = sock
        self.unanswered = 0

    def recv(self, size: int) -> bytes:
        data: bytes = self.sock.recv(size)
        self.unanswered = 0
        return data

    @property
    def watched(self) -> bool:
        """Whether something else notices that what was sent gets nowhere."""
        return False

    @property
    def has_room(self) -> bool:
        """Whether a question would not wait behind a writer who waits for room."""
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sock, name)


class QuickAckSocket(HeardSocket):
    """A TCP socket that acknowledges at once.

    Delayed acknowledgements cost an SSH login two stalls of 40 ms; Linux forgets TCP_QUICKACK
    after a while, so it is set again after each read.
    """

    def recv(self, size: int) -> bytes:
        data = super().recv(size)
        with contextlib.suppress(OSError):
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return data

    @property
    def watched(self) -> bool:
        # TCP_USER_TIMEOUT does, while anything that was sent is not acknowledged.
        unsent = array.array("i", [0])
        with contextlib.suppress(OSError):
            fcntl.ioctl(self.sock.fileno(), termios.TIOCOUTQ, unsent)
        return unsent[0] > 0


# Connections that are under way, and since when: `dial` takes them.
_begun: dict[tuple[str, int], tuple[socket.socket, float]] = {}
# An SSH server ends those that say nothing.
BEGUN_FOR_S, MOST_BEGUN = 10.0, 256
# A connection has a socket, and while a command runs a pipe.
FILES_PER_HOST = 3
# What this program has open beside: modules and keys are files, too.
OTHER_FILES = 64


def most_hosts() -> int:
    """How many hosts this process can be connected to at once.

    Lifts the soft limit on open files to the hard one: 1,024 is too few for some hundred hosts.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    if soft == resource.RLIM_INFINITY:
        soft = 1 << 20
    return max(1, (soft - OTHER_FILES) // FILES_PER_HOST)


def begin(targets: Iterable[Target]) -> None:
    """Have this machine connect to hosts and their servers get ready, while who asks gets ready.

    Only where that does not block: a name is looked up by `dial`.
    """
    most = min(MOST_BEGUN, most_hosts())
    for target in targets:
        while target.jump:
            target = target.jump  # noqa: PLW2901
        where = (target.address, target.port)
        known = target.proxy_command or target.down or where in _begun
        if known or len(_begun) >= most:
            continue
        family = socket.AF_INET6 if ":" in target.address else socket.AF_INET
        with contextlib.suppress(OSError):  # what is wrong `dial` says
            socket.inet_pton(family, target.address)
            sock = socket.socket(family)
            sock.setblocking(False)
            sock.connect_ex(where)
            _begun[where] = (sock, time.monotonic())


def _connect(where: tuple[str, int], timeout_s: float) -> socket.socket:
    sock, since = _begun.pop(where, (None, 0.0))
    if sock is None:
        return socket.create_connection(where, timeout_s)
    waited_s = time.monotonic() - since
    if waited_s > BEGUN_FOR_S:
        sock.close()
        return socket.create_connection(where, timeout_s)
    poller = select.poll()
    poller.register(sock, select.POLLOUT)
    answered = poller.poll(max(0.0, timeout_s - waited_s) * 1000)
    failed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) if answered else errno.ETIMEDOUT
    if failed:
        sock.close()
        raise OSError(failed, os.strerror(failed))
    sock.settimeout(timeout_s)
    return sock


def dial(target: Target, timeout_s: float) -> HeardSocket:
    """A connection to the target's SSH port. Raises OSError."""
    if not target.proxy_command:
        return _tuned(_connect((target.address, target.port), timeout_s))
    argv = proxy_argv(target)
    if target.proxy_passes_fd:
        return _tuned(_passed_socket(argv, timeout_s))
    import shlex

    from paramiko.proxy import ProxyCommand

    return HeardSocket(ProxyCommand(shlex.join(argv)))


def proxy_argv(target: Target) -> list[str]:
    """The proxy command with its %h, %p, %r and %% filled in."""
    values = {"%h": target.address, "%p": str(target.port), "%r": target.user, "%%": "%"}
    return [_expand(word, values) for word in target.proxy_command]


def _expand(word: str, values: dict[str, str]) -> str:
    parts, rest = [], word
    while "%" in rest:
        before, _, after = rest.partition("%")
        token = "%" + after[:1]
        parts += [before, values.get(token, token)]
        rest = after[1:]
    return "".join([*parts, rest])


def _passed_socket(argv: list[str], timeout_s: float) -> socket.socket:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(timeout_s)
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=theirs.fileno(), stderr=subprocess.PIPE
        )
        theirs.close()
        try:
            size = array.array("i", [0]).itemsize
            _, ancillary, _, _ = ours.recvmsg(1, socket.CMSG_SPACE(size))
        except TimeoutError:
            process.kill()
            raise
        finally:
            _, complaint = process.communicate()
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                return socket.socket(fileno=array.array("i", data[:size])[0])
    text = complaint.decode(errors="replace").strip()
    raise ConnectionRefusedError(text or f"{argv[0]} passed no connection")


def _tuned(sock: socket.socket) -> QuickAckSocket:
    for level, option, value in (
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_LIMIT_S * 1000),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENCE_LIMIT_S // 2),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    ):
        with contextlib.suppress(OSError):
            sock.setsockopt(level, option, value)
    return QuickAckSocket(sock)
