"""The folder in the destination for files that are not whole yet. It is removed at the end."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from typing import BinaryIO

from clusterctl.node.relay.hashing import PIECE, Crc32, Sum
from clusterctl.node.relay.manifest import Entry
from clusterctl.node.relay.scan import STAGING
from clusterctl.node.relay.wire import thread_buffer

RECORD = struct.Struct(">QQQ")  # offset, length, checksum
# The suffix of journals. Not `.log`: older versions left those, with shorter records.
JOURNALS = b".journal"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
# The flags to open a journal with.
JOURNAL = os.O_WRONLY | os.O_CREAT | os.O_APPEND


class Busy(Exception):
    """Raised if another copy uses the same destination; the message says which."""


class Removed(Exception):
    """Raised if someone has removed files of this copy; the message says where."""


class Staging:
    """The staging folder `ROOT/.clusterctl-copy`, held by one copy at a time.

    A file that is not whole is a part there, with a journal beside it of the pieces that have come
    and their checksums. After a reboot these pieces are read and checked, since they may not have
    reached the disk.
    """

    def __init__(self, root: bytes, sums: Callable[[], Sum] = Crc32) -> None:
        self.root = root
        self.new_sum = sums
        self.folder = os.path.join(root, STAGING)
        self._lock = -1
        self._noting = threading.Lock()
        self._boot = boot_id()
        self._journals = _journals(self.folder)

    def acquire(self) -> None:
        """Make the folder and lock it. Raises Busy, OSError."""
        os.makedirs(self.root, exist_ok=True)
        while self._lock < 0:
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.folder, 0o700)
            with contextlib.suppress(FileNotFoundError):  # another copy is just removing it
                self._lock = self._try()
        self._journals = _journals(self.folder)

    def _try(self) -> int:
        """Return the descriptor of the lock, or -1 to try again. Raises Busy, OSError."""
        path = os.path.join(self.folder, b"lock")
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another copy may have removed the file between open() and flock().
            if os.path.samestat(os.stat(path), os.fstat(lock)):
                os.ftruncate(lock, 0)
                os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
                return lock
        except BlockingIOError:
            who = os.pread(lock, 200, 0).decode(errors="replace") or "another process"
            os.close(lock)
            raise Busy(who) from None
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)
        return -1

    def is_held(self) -> bool:
        """Return whether the folder is still this copy's: someone may have removed it."""
        try:
            lock = os.stat(os.path.join(self.folder, b"lock"))
        except OSError:
            return False
        return os.path.samestat(lock, os.fstat(self._lock))

    def part(self, entry: Entry) -> bytes:
        """Return the path of an entry's part: the same for the same content, and for no other."""
        return self.folder + b"/" + self._name(entry)

    def whole(self, number: int) -> bytes:
        """Return the path of a file that comes in one piece. Such a file is never resumed."""
        return self.folder + b"/%d" % number

    @staticmethod
    def beside(part: bytes, folder: bytes) -> bytes:
        """Return the path of a part's copy in a folder that is on another disk."""
        name = hashlib.blake2b(part, digest_size=16).hexdigest().encode()
        return folder + b"/" + STAGING + b"-" + name

    @staticmethod
    def _name(entry: Entry) -> bytes:
        told = f"{entry.size} {entry.mtime_ns} {entry.changed_ns} {entry.segments}\n".encode()
        told += entry.digest + entry.path
        return hashlib.blake2b(told, digest_size=16).hexdigest().encode()

    def note(self, entry: Entry, offset: int, length: int, checksum: int) -> None:
        """Record in the journal that a piece of a part has come."""
        record = RECORD.pack(offset, length, checksum)
        with self._noting:  # two threads must not both write the head of a journal
            journal = os.open(self.part(entry) + JOURNALS, JOURNAL, 0o600)
            try:
                head = b"" if os.fstat(journal).st_size else self._boot
                os.write(journal, head + record)
            finally:
                os.close(journal)

    def pieces(self, entry: Entry) -> list[tuple[int, int]]:
        """Return the pieces of an entry that an earlier copy left.

        They are (offset, length), sorted, and do not overlap.
        """
        if not self._journals or self._name(entry) not in self._journals:
            return []
        path = self.part(entry)
        try:
            with open(path + JOURNALS, "rb") as journal:
                boot, rows = journal.read(len(self._boot)), journal.read()
            with open(path, "rb", buffering=0) as part:
                size = os.fstat(part.fileno()).st_size
                # The last record may be incomplete.
                rows = rows[: len(rows) - len(rows) % RECORD.size]
                noted = sorted(set(RECORD.iter_unpack(rows)))
                found = [
                    (offset, length)
                    for offset, length, checksum in noted
                    if offset + length <= size
                    and (boot == self._boot or self._sum(part, offset, length) == checksum)
                ]
        except FileNotFoundError:
            self.drop(entry)
            return []
        return _merged(found)

    def _sum(self, part: BinaryIO, offset: int, length: int) -> int:
        total = self.new_sum()
        add_part(total, part.fileno(), offset, length)
        return total.value()

    def forget_others(self, wanted: Sequence[Entry]) -> None:
        """Remove what is left of files that are not among these entries, or have changed since."""
        left = os.listdir(self.folder)
        if left == [b"lock"]:
            return
        keep = {self._name(entry) for entry in wanted}
        for name in left:
            if name.partition(b".")[0] not in keep and name != b"lock":
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(self.folder, name))

    def drop(self, entry: Entry) -> None:
        """Remove an entry's part and journal: it is published, or will never be."""
        # The journal first. If this process dies in between, a journal that is left would describe
        # the part that a later copy begins.
        for path in (self.part(entry) + JOURNALS, self.part(entry)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def holds_parts(self) -> bool:
        """Return whether something is here that a later copy can use."""
        if self._lock < 0 or not os.path.isdir(self.folder):  # someone has removed the folder
            return False
        return os.listdir(self.folder) != [b"lock"]

    def release(self, clear: bool) -> None:
        """Unlock the folder. `clear` removes it with all that is in it."""
        if self._lock < 0:
            return
        if clear and self.is_held():
            shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)
        self._lock = -1


def _journals(folder: bytes) -> set[bytes]:
    """Return the names of the parts that have a journal."""
    try:
        names = os.listdir(folder)
    except OSError:
        return set()
    return {name[: -len(JOURNALS)] for name in names if name.endswith(JOURNALS)}


def boot_id() -> bytes:
    """Return an ID of 36 bytes that changes with each boot."""
    try:
        with open(BOOT_ID, "rb") as file:
            return file.read(36).ljust(36)
    except OSError:
        return os.urandom(36)  # differs each time, so that all pieces are checked


def add_part(total: Sum, descriptor: int, offset: int, length: int) -> None:
    """Add a part of a file to a checksum, as far as the file has it."""
    buffer = thread_buffer(PIECE)
    while length and (size := os.preadv(descriptor, [buffer[:length]], offset)):
        total.update(buffer[:size])
        offset, length = offset + size, length - size


def _merged(pieces: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for offset, length in sorted(pieces):
        if merged and offset <= sum(merged[-1]):
            begin, had = merged[-1]
            merged[-1] = (begin, max(had, offset + length - begin))
        else:
            merged.append((offset, length))
    return merged
