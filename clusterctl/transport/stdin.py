"""One standard input for commands on many hosts: a file is read where it is, a pipe only once.

What comes from a pipe is kept for the hosts that have not had it, on disk when it is large. It is
read as fast as the fastest host takes it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import tempfile
import threading
from typing import BinaryIO, Protocol

from clusterctl.domain.errors import ClusterctlError

# Bytes of one read.
CHUNK = 1 << 16
# Bytes of input up to which it is kept in memory, and is read before a host takes it.
IN_MEMORY = 8 << 20


def _read(descriptor: int) -> bytes | None:
    """Return the next bytes of an input: b"" at its end, None if none are there and it does not
    block. Raises ClusterctlError."""
    try:
        return os.read(descriptor, CHUNK)
    except BlockingIOError:  # another program that has the pipe, too, may have made it so
        return None
    except OSError as error:
        # nohup makes it one that cannot be read; a terminal has no input for the background.
        if error.errno == errno.EBADF or os.isatty(descriptor):
            return b""
        raise _unreadable(error) from None


def _unreadable(error: OSError) -> ClusterctlError:
    why = f"cannot read the standard input, here: {error.strerror}"
    return ClusterctlError(f"{why}; the commands have not got all of it")


class Stdin(Protocol):
    """The standard input of a command."""

    def read_at(self, offset: int, wait_s: float) -> bytes | None:
        """Return bytes from `offset` on: b"" at the end, None if none arrive within `wait_s`."""


class StdinStream:
    """The input from a file descriptor, for one reader. It keeps nothing and ignores offsets."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read_at(self, offset: int, wait_s: float) -> bytes | None:
        with contextlib.suppress(OSError):  # which reading it reports, too
            if not select.select([self._descriptor], [], [], wait_s)[0]:
                return None
        return _read(self._descriptor)


class StdinFile:
    """The input from the descriptor of a regular file, for any number of readers. It keeps nothing.

    The file counts as read, as after any program.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._start = os.lseek(descriptor, 0, os.SEEK_CUR)
        os.lseek(descriptor, 0, os.SEEK_END)

    def read_at(self, offset: int, wait_s: float) -> bytes | None:
        try:
            return os.pread(self._descriptor, CHUNK, self._start + offset)
        except OSError as error:
            raise _unreadable(error) from None


class StdinSource:
    """The input from a file descriptor, for any number of readers, each at its own pace."""

    def __init__(self, descriptor: int) -> None:
        self._spool: BinaryIO = tempfile.SpooledTemporaryFile(  # type: ignore[assignment]  # noqa: SIM115
            IN_MEMORY
        )
        self._size = self._wanted = 0
        self._ended = False
        self._error: ClusterctlError | None = None
        self._grown = threading.Condition()
        threading.Thread(target=self._copy, args=(descriptor,), daemon=True).start()

    def _copy(self, descriptor: int) -> None:
        while not self._ended:
            with self._grown:
                self._grown.wait_for(lambda: self._size < self._wanted + IN_MEMORY)
            chunk = b""
            try:
                while (piece := _read(descriptor)) is None:
                    select.select([descriptor], [], [])
                chunk = piece
            except ClusterctlError as error:
                self._error = error
            with self._grown:
                try:
                    self._spool.seek(self._size)
                    self._spool.write(chunk)
                except OSError as error:  # the disk is full
                    self._error = ClusterctlError(
                        f"cannot keep the standard input in {tempfile.gettempdir()}, here: "
                        f"{error.strerror}; the commands have got a part of it",
                        "redirect it from a file (< FILE), which needs no room; or name a folder "
                        "with room for all of it: TMPDIR=FOLDER",
                    )
                self._size += len(chunk)
                self._ended = not chunk or self._error is not None
                self._grown.notify_all()

    def read_at(self, offset: int, wait_s: float) -> bytes | None:
        """Return bytes from `offset` on: b"" at the end, None if none arrive within `wait_s`.

        Raises ClusterctlError if the input could not be read or kept.
        """
        with self._grown:
            if offset > self._wanted:
                self._wanted = offset
                self._grown.notify_all()
            self._grown.wait_for(lambda: self._size > offset or self._ended, wait_s)
            if self._error:
                raise self._error
            if self._size > offset:
                self._spool.seek(offset)
                return self._spool.read(CHUNK)
            return b"" if self._ended else None
