"""TFRecord files: are they whole, how many records, and are those what was written. Pure.

A record is its length (8 bytes, little-endian), the masked CRC-32C of these 8 bytes, the data, and
their masked CRC-32C. https://www.tensorflow.org/tutorials/load_data/tfrecord
"""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING, NamedTuple

from clusterctl.node.relay.crc32c import crc32c, masked

if TYPE_CHECKING:
    from clusterctl.node.relay.crc32c import Crc

HEADER, FOOTER = 12, 4
_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")


class Records(NamedTuple):
    """What a TFRecord file has: `number` of them.

    `frame` is a digest of all lengths and stored CRCs; `problem` is empty for a file that is whole.
    """

    number: int
    frame: str
    problem: str


def begins_record(head: bytes) -> bool:
    """Whether these first bytes of a file are a length with its own CRC."""
    if len(head) < HEADER:
        return False
    _, check = _HEADER.unpack_from(head)
    return masked(crc32c(head[:8])) == check


class RecordParser:
    """Takes a file from its beginning in pieces of any size, and keeps none of its data.

    With `crc` the data have to be fed too; without, `skip` goes over them.
    """

    def __init__(self, size: int, crc: Crc | None = None) -> None:
        self._size = size
        self._crc = crc
        self._frame = hashlib.sha256()
        self._partial = b""
        # Where the record begins that is being read, and how much of its data is still to come;
        # None: its header is.
        self._begins = 0
        self._length = 0
        self._left: int | None = None
        self._so_far = 0
        self._corrupt = 0
        self.lost = False
        self.count = 0
        self.problem = ""

    @property
    def skippable(self) -> int:
        """So many of the bytes that follow need not be fed."""
        return 0 if self._left is None or self._crc else self._left

    def skip(self, size: int) -> None:
        """Of what is skippable, so much was left out."""
        assert self._left is not None
        self._left -= size

    def feed(self, data: memoryview) -> None:
        """What follows in the file. Behind a record that is not whole nothing can be found."""
        at = 0
        while at < len(data) and not self.lost:
            if self._left:
                piece = data[at : at + self._left]
                if self._crc:
                    self._so_far = self._crc(piece, self._so_far)
                self._left -= len(piece)
                at += len(piece)
                continue
            wanted = (HEADER if self._left is None else FOOTER) - len(self._partial)
            self._partial += data[at : at + wanted]
            at += wanted
            if at <= len(data):
                self._frame.update(self._partial)
                self._take(self._partial)
                self._partial = b""

    def _take(self, part: bytes) -> None:
        if self._left is None:
            self._take_header(part)
        else:
            self._take_footer(part)

    def _take_header(self, part: bytes) -> None:
        length, check = _HEADER.unpack(part)
        if masked(crc32c(part[:8])) != check:
            self._lose("does not begin as a record: a corrupt length, or garbage")
            return
        size, room = HEADER + length + FOOTER, self._size - self._begins
        if size > room:
            self._lose(f"is cut short: {room} of {size} bytes")
            return
        self._length = self._left = length
        self._so_far = 0

    def _take_footer(self, part: bytes) -> None:
        if self._crc and masked(self._so_far) != _FOOTER.unpack(part)[0]:
            self._corrupt += 1
            if self._corrupt == 1:
                self._say("has other data than were written: its CRC is wrong")
        self._begins += HEADER + self._length + FOOTER
        self._left = None
        self.count += 1

    def _where(self) -> str:
        return f"record {self.count + 1} (at byte {self._begins})"

    def _say(self, problem: str) -> None:
        self.problem = self.problem or f"{self._where()} {problem}"

    def _lose(self, problem: str) -> None:
        self.lost = True
        self._say(problem)

    def end(self) -> Records:
        """When all is fed or skipped. A file without a record is whole."""
        if self._partial and not self.lost:
            self._say(f"is cut short: {len(self._partial)} bytes are left")
        elif self._left is not None and not self.lost:
            self._say("is cut short")
        more = f" (and {self._corrupt - 1} more)" if self._corrupt > 1 else ""
        return Records(self.count, self._frame.hexdigest()[:32], self.problem + more)
