"""The protocol between relays: authentication, requests, and the transport of bytes.

Both sides prove that they know the transfer's secret, by an HMAC over the other's nonce. Peers that
cannot are not answered. Then the caller sends requests (REQUEST), one after another, and gets

    MANIFEST n  for its head (n = 0) and its parts (1, 2 …), from n on: LENGTH (MISSING: not here
                yet, and the same again), then so many bytes
    BLOCK n     LENGTH (MISSING: not here), the bytes, TRAILER, `bad` times a NUMBER
    WATCH       a RANGE of blocks that are here, repeatedly as they come; (0, 0) each second
    CONFIRM n   nothing: block n, which came over this connection, has the right checksum

Memory use is bounded, whatever a peer sends: every length is checked against the expected one.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import hashlib
import hmac
import mmap
import os
import select
import socket
import ssl
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from clusterctl.node.relay.activity import ACTIVITY

MAGIC = b"clusterctl-copy 1\n"
NONCE_BYTES = 32
MAC_BYTES = 32
REQUEST = struct.Struct(">BI")  # kind, number of a block or part, or 0
LENGTH = struct.Struct(">I")
TRAILER = struct.Struct(">QI")  # checksum of the block's bytes, number of bad entries
NUMBER = struct.Struct(">I")  # of an entry
RANGE = struct.Struct(">II")  # first block, last block + 1
MANIFEST, BLOCK, WATCH, CONFIRM = 1, 2, 3, 4
MISSING = 0xFFFFFFFF
# Seconds that authentication may take in all.
HANDSHAKE_S = 10.0
# Later on nothing times out here: a peer may take minutes to read a block from a slow disk, and
# whether it lives is known by its heartbeat to the client. TCP itself finds that a path is cut:
# the caller, which sends little, after about 14 s, by the first three figures; a server whose data
# is not taken, after UNSENT_S.
KEEP_IDLE_S, KEEP_EVERY_S, KEEP_COUNT = 5, 3, 3
TOO_LONG = "it takes too long to say who it is"
UNSENT_S = 60
# The select module has no name for it on macOS.
POLLRDHUP = getattr(select, "POLLRDHUP", select.POLLHUP)
# Bytes that are read or sent at once; that are received before they are counted.
CHUNK, COUNTED = 256 * 1024, 64 * 1024
# A pipe of 64 KiB, the default, costs 43 % more CPU time than one of 1 MiB.
PIPE_BYTES = 1 << 20
SET_PIPE_SIZE, GET_PIPE_SIZE = 1031, 1032  # the fcntl module names them from Python 3.10 on


class PeerError(Exception):
    """A peer does not answer, is not of this transfer, or violates the protocol.

    `kind` is that of a `Lost` event: refused, denied, silent, closed or corrupt.
    """

    def __init__(self, message: str, kind: str = "closed") -> None:
        super().__init__(message)
        self.kind = kind


def aligned_buffer(size: int) -> memoryview:
    """Return a buffer that begins at a page, and takes memory only where it is used.

    Large bytearrays and bytes never begin at a multiple of 32 bytes. The kernel's copies into such
    a buffer take 3.3 times as long (Zen 3).
    """
    return memoryview(mmap.mmap(-1, size))


_OF_THREAD = threading.local()


def thread_buffer(size: int) -> memoryview:
    """Return an aligned buffer that is kept for this thread.

    The pages of a new buffer would cost more than summing the data in them.
    """
    buffer: memoryview | None = getattr(_OF_THREAD, "buffer", None)
    if buffer is None or len(buffer) < size:
        buffer = _OF_THREAD.buffer = aligned_buffer(size)
    return buffer[:size]


@functools.lru_cache(maxsize=None)
def libc() -> Any:
    """Return the C library, opened once: that takes longer than some of its functions."""
    return ctypes.CDLL(None, use_errno=True)


def _splice(source: int, sink: int, size: int, offset_dst: int | None = None) -> int:
    """Do what os.splice does, which Python has from 3.10 on."""
    at = None if offset_dst is None else ctypes.byref(ctypes.c_int64(offset_dst))
    splice = libc().splice
    splice.restype = ctypes.c_ssize_t
    moved: int = splice(source, None, sink, at, ctypes.c_size_t(size), ctypes.c_uint(0))
    if moved < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return moved


splice = getattr(os, "splice", _splice)


class Link:
    """A connection to a peer. Reads return when all is there."""

    def __init__(self, plain: socket.socket) -> None:
        self.socket: Any = plain
        self.secured = False
        # Whether what is read counts as data that has arrived.
        self.carries_data = False
        # The deadline for authentication, by the monotonic clock: a peer that sends a byte now and
        # then must not hold its place for ever.
        self._proven_by: float | None = None
        self._pipe: tuple[int, ...] = ()
        # Blocks that came over it and are right, for the thread that reads to confirm. Any thread
        # may add to it.
        self.confirmed: deque[int] = deque()
        plain.setblocking(True)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def expect_proof(self, within_s: float) -> None:
        """Let all reads and writes until `proven` end within so many seconds."""
        self._proven_by = time.monotonic() + within_s

    def proven(self, silent_after_s: float) -> None:
        """Let reads and writes wait without end from here on, as long as TCP reaches the peer.

        An idle connection is found dead by keep-alive; one whose data is not acknowledged, after
        `silent_after_s` seconds.
        """
        self._proven_by = None
        self.socket.settimeout(None)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # macOS, on which a source may be, lacks some of these.
        for name, value in (
            ("TCP_KEEPIDLE", KEEP_IDLE_S),
            ("TCP_KEEPINTVL", KEEP_EVERY_S),
            ("TCP_KEEPCNT", KEEP_COUNT),
            ("TCP_USER_TIMEOUT", round(silent_after_s * 1000)),
        ):
            if hasattr(socket, name):
                self.socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def _await_proof(self) -> None:
        """Give the next system call the time that is left for authentication. Raises PeerError."""
        if self._proven_by is not None:
            left_s = self._proven_by - time.monotonic()
            if left_s <= 0:
                raise PeerError(TOO_LONG, "silent")
            self.socket.settimeout(left_s)

    def set_timeout(self, seconds: float) -> None:
        """Set how long reads and writes wait for the peer. Not for TLS: its reads would repeat."""
        # As an option of the socket: with Python's own timeout each call costs a poll, too.
        limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def secure(self, context: ssl.SSLContext, server: bool) -> None:
        """Use TLS from here on. Raises PeerError."""
        self._await_proof()  # the timeout holds for the whole handshake of TLS
        try:
            self.socket = context.wrap_socket(self.socket, server_side=server)
        except socket.timeout:
            raise PeerError(TOO_LONG, "silent") from None
        except (OSError, ValueError) as error:
            raise PeerError(f"no TLS with it: {error}", "denied") from None
        self.secured = True

    def read_into(self, view: memoryview) -> None:
        """Fill `view`. Raises PeerError."""
        got = 0
        while got < len(view):
            self._await_proof()
            try:
                piece = view[got : got + COUNTED]
                if self.secured:
                    size = self.socket.recv_into(piece)
                else:
                    size = self.socket.recv_into(piece, 0, socket.MSG_WAITALL)
            except OSError as error:
                raise self._failed(error, "read timed out") from None
            if not size:
                raise PeerError("it closed the connection")
            got += size
            if self.carries_data:
                ACTIVITY.arrived += size

    def _failed(self, error: OSError, silence: str) -> PeerError:
        """Return the error of a read or a write. `silence` is that of the socket's own timeout."""
        if self._proven_by is not None and isinstance(error, socket.timeout):
            return PeerError(TOO_LONG, "silent")
        if isinstance(error, BlockingIOError):
            return PeerError(silence, "silent")
        return PeerError(error.strerror or str(error))

    def pipe_bytes(self) -> int:
        """Return the size of the pipe for `fill_pipe`; 0 if it cannot be used.

        A user's pipes may have 64 MiB in all. Further pipes have one or two pages (pipe(7),
        pipe-user-pages-soft), which is too small.
        """
        if not self._pipe and not self.secured and sys.platform == "linux":
            self._pipe = os.pipe()
            with contextlib.suppress(OSError):
                fcntl.fcntl(self._pipe[1], SET_PIPE_SIZE, PIPE_BYTES)
        size = fcntl.fcntl(self._pipe[1], GET_PIPE_SIZE) if self._pipe else 0
        return size if size >= PIPE_BYTES // 16 else 0

    def fill_pipe(self, most: int) -> int:
        """Move up to `most` bytes, at least one, from the peer to the pipe. Raises PeerError.

        `drain_pipe` writes them. Return how many they are.
        """
        try:
            size: int = splice(self.socket.fileno(), self._pipe[1], most)
        except OSError as error:
            raise self._failed(error, "read timed out") from None
        if not size:
            raise PeerError("it closed the connection")
        if self.carries_data:
            ACTIVITY.arrived += size
        return size

    def is_gone(self) -> bool:
        """Return whether the peer has closed the connection."""
        poll = select.poll()
        poll.register(self.socket, POLLRDHUP)
        return bool(poll.poll(0))

    def drain_pipe(self, descriptor: int, at: int, size: int) -> None:
        """Write the `size` bytes in the pipe to a file. Raises OSError."""
        end = at + size
        while at < end:
            try:
                at += splice(self._pipe[0], descriptor, end - at, offset_dst=at)
            except OSError as error:
                if error.errno != errno.EINVAL:  # GPFS, vboxsf and others do not support splice
                    raise
                data = memoryview(os.read(self._pipe[0], end - at))
                write_at(descriptor, data, at)
                at += len(data)

    def pending(self) -> bool:
        """Return whether TLS has buffered bytes, for which poll() would not wake up."""
        return self.secured and self.socket.pending() > 0

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes. Raises PeerError."""
        data = bytearray(size)
        self.read_into(memoryview(data))
        return bytes(data)

    def send(self, data: Any) -> None:
        """Send all of `data`. Raises PeerError."""
        self._await_proof()
        try:
            if len(data):
                self.socket.sendall(data)
        except OSError as error:
            raise self._failed(error, "write timed out") from None

    def send_file(self, descriptor: int, offset: int, length: int) -> None:
        """Send a part of a file. Raises PeerError, also if the file is shorter."""
        end = offset + length
        while offset < end:
            size = 0 if self.secured else self._sendfile(descriptor, offset, end - offset)
            if not size:
                data = os.pread(descriptor, min(CHUNK, end - offset), offset)
                size = len(data)
                self.send(data)
            if not size:
                raise PeerError("a file here became shorter")
            offset += size

    def _sendfile(self, descriptor: int, offset: int, length: int) -> int:
        """Return how many bytes were sent; 0 if the file system does not support sendfile."""
        try:
            return os.sendfile(self.socket.fileno(), descriptor, offset, length)
        except BlockingIOError:
            raise PeerError("write timed out", "silent") from None
        except OSError as error:
            if error.errno == errno.EINVAL:
                return 0
            raise PeerError(error.strerror or str(error)) from None

    def wake(self) -> None:
        """Shut the connection down, so that a thread that waits for it wakes up."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection. To be called by the thread that uses it; others call `wake`.

        The kernel reuses the numbers of closed descriptors: a thread that still uses one would read
        or write another file.
        """
        self.wake()
        with contextlib.suppress(OSError):
            self.socket.close()
        pipe, self._pipe = self._pipe, ()
        for end in pipe:
            os.close(end)


def write_at(descriptor: int, view: memoryview, at: int) -> None:
    """Write all of `view` to a file at this offset. Raises OSError."""
    while len(view):
        size = os.pwrite(descriptor, view, at)
        view, at = view[size:], at + size


def trailer(checksum: int, bad: Sequence[int]) -> bytes:
    """Return what follows a block's bytes. `bad` are entries whose bytes in it are not good."""
    return TRAILER.pack(checksum, len(bad)) + b"".join(map(NUMBER.pack, bad))


def send_whole(link: Link, data: bytes, checksum: int, bad: Sequence[int]) -> None:
    """Send the whole answer to BLOCK. Raises PeerError."""
    link.send(LENGTH.pack(len(data)))
    link.send(data)
    link.send(trailer(checksum, bad))


def dial(
    address: str,
    port: int,
    secret: bytes,
    tls: ssl.SSLContext | None,
    timeout_s: float = 3.0,
    handshake_s: float = HANDSHAKE_S,
) -> Link:
    """Connect to a relay; both sides authenticate. Raises PeerError."""
    try:
        plain = socket.create_connection((address, port), timeout_s)
    except ConnectionRefusedError:
        raise PeerError("it refuses connections", "refused") from None
    except (TimeoutError, socket.timeout):
        raise PeerError(f"no answer within {timeout_s:g} s", "refused") from None
    except OSError as error:
        raise PeerError(error.strerror or str(error), "refused") from None
    link = Link(plain)
    try:
        link.expect_proof(handshake_s)
        if tls:
            link.secure(tls, server=False)
        _prove(link, secret)
        link.proven(KEEP_IDLE_S + KEEP_EVERY_S * KEEP_COUNT)
    except BaseException:
        link.close()
        raise
    return link


def _prove(link: Link, secret: bytes) -> None:
    """Authenticate as the caller, and check the server. Raises PeerError."""
    theirs = link.read(len(MAGIC) + NONCE_BYTES)
    if not theirs.startswith(MAGIC):
        raise PeerError("what answers there is no relay of this version", "denied")
    challenge, mine = theirs[len(MAGIC) :], os.urandom(NONCE_BYTES)
    link.send(MAGIC + mine + _mac(secret, b"caller", challenge, mine))
    try:
        answer = link.read(MAC_BYTES)
    except PeerError as error:
        if error.kind == "silent":
            raise
        raise PeerError("it belongs to another transfer", "denied") from None
    if not hmac.compare_digest(answer, _mac(secret, b"server", mine, challenge)):
        raise PeerError("it does not know this transfer's secret", "denied")


def admit(
    link: Link, secret: bytes, tls: ssl.SSLContext | None, handshake_s: float = HANDSHAKE_S
) -> None:
    """Authenticate as the server.

    Raises PeerError for a caller that does not prove within `handshake_s` seconds that it knows
    the secret.
    """
    link.expect_proof(handshake_s)
    if tls:
        link.secure(tls, server=True)
    challenge = os.urandom(NONCE_BYTES)
    link.send(MAGIC + challenge)
    theirs = link.read(len(MAGIC) + NONCE_BYTES + MAC_BYTES)
    nonce = theirs[len(MAGIC) : -MAC_BYTES]
    proven = hmac.compare_digest(theirs[-MAC_BYTES:], _mac(secret, b"caller", challenge, nonce))
    if not theirs.startswith(MAGIC) or not proven:
        raise PeerError("it does not know this transfer's secret", "denied")
    link.send(_mac(secret, b"server", nonce, challenge))
    link.proven(UNSENT_S)


def _mac(secret: bytes, side: bytes, theirs: bytes, mine: bytes) -> bytes:
    return hmac.new(secret, MAGIC + side + theirs + mine, hashlib.sha256).digest()


def tls_contexts(pem: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return contexts for servers and for callers: TLS 1.3 between holders of this certificate.

    `pem` is the certificate and its key.
    """
    # The ssl module reads only files: use one in memory, so that the key reaches no disk.
    descriptor = os.memfd_create("clusterctl")
    try:
        os.write(descriptor, pem.encode())
        path = f"/proc/self/fd/{descriptor}"
        both = []
        for purpose in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
            context = ssl.SSLContext(purpose)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.check_hostname = False
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_cert_chain(path)
            context.load_verify_locations(path)
            both.append(context)
    finally:
        os.close(descriptor)
    return both[0], both[1]


# What threads wait for.
KINDS = ("receive", "write", "read", "send", "sync")


def waited_s() -> float:
    """Return the time of a clock that stands still while this thread uses a processor.

    Time in the kernel, for example for copies, counts as processor time, too.
    """
    return time.monotonic() - time.thread_time()


class Waits:
    """The seconds that all threads together have waited, by kind. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = dict.fromkeys(KINDS, 0.0)

    def add(self, kind: str, seconds: float) -> None:
        """Add seconds that a thread has waited."""
        with self._lock:
            self._seconds[kind] += seconds

    def seconds(self) -> dict[str, float]:
        """Return the seconds so far, by kind."""
        with self._lock:
            return {kind: round(value, 3) for kind, value in self._seconds.items()}
