"""One standard input for commands on many hosts: read once, and kept on disk when it is large."""

from __future__ import annotations

import os
import select
import tempfile
import threading
from typing import BinaryIO, Protocol

# Bytes of one read.
CHUNK = 1 << 16
# Bytes of input up to which it is kept in memory.
IN_MEMORY = 8 << 20


class Stdin(Protocol):
    """The standard input of a command."""

    def read_at(self, offset: int, wait_s: float) -> bytes | None:
        """Return bytes from `offset` on: b"" at the end, None if none arrive within `wait_s`."""


class StdinStream:
    """The input from a file descriptor, for one reader. It keeps nothing and ignores offsets."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read_at(self, offset: int, wait_s: float) -> bytes | None:
        try:
            if not select.select([self._descriptor], [], [], wait_s)[0]:
                return None
            return os.read(self._descriptor, CHUNK)
        except OSError:
            return b""


class StdinSource:
    """The input from a file descriptor, for any number of readers, each at its own pace."""

    def __init__(self, descriptor: int) -> None:
        self._spool: BinaryIO = tempfile.SpooledTemporaryFile(  # type: ignore[assignment]  # noqa: SIM115
            IN_MEMORY
        )
        self._size = 0
        self._ended = False
        self._error: OSError | None = None
        self._grown = threading.Condition()
        threading.Thread(target=self._copy, args=(descriptor,), daemon=True).start()

    def _copy(self, descriptor: int) -> None:
        while not self._ended:
            try:
                chunk = os.read(descriptor, CHUNK)
            except OSError:
                chunk = b""
            with self._grown:
                try:
                    self._spool.seek(self._size)
                    self._spool.write(chunk)
                except OSError as error:  # the disk is full
                    self._error = error
                self._size += len(chunk)
                self._ended = not chunk or self._error is not None
                self._grown.notify_all()

    def read_at(self, offset: int, wait_s: float) -> bytes | None:
        """Return bytes from `offset` on: b"" at the end, None if none arrive within `wait_s`.

        Raises OSError if the input could not be kept.
        """
        with self._grown:
            self._grown.wait_for(lambda: self._size > offset or self._ended, wait_s)
            if self._error:
                raise self._error
            if self._size > offset:
                self._spool.seek(offset)
                return self._spool.read(CHUNK)
            return b"" if self._ended else None
