"""The folders in the destination for files that are not whole yet. They are removed at the end."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import socket
import stat
import struct
import threading
import weakref
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import BinaryIO

from clusterctl.node.procfs import boot_id
from clusterctl.node.relay.activity import ACTIVITY
from clusterctl.node.relay.hashing import PIECE, Crc32, Sum
from clusterctl.node.relay.manifest import Entry, text_of
from clusterctl.node.relay.scan import STAGING, segments_of
from clusterctl.node.relay.wire import thread_buffer

RECORD = struct.Struct(">QQQ")  # offset, length, checksum
# The suffix of journals.
JOURNALS = b".journal"
LOCK = b"lock"
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# The flags to open a journal with.
JOURNAL = os.O_WRONLY | os.O_CREAT | os.O_APPEND


class Busy(Exception):
    """Raised if another copy uses the same destination; the message says which."""


class Removed(Exception):
    """Raised if someone has removed files of this copy; the message says where."""


class Untrusted(Exception):
    """Raised if a staging folder is not only this user's; the message has its path, and why."""


class StagingFolder:
    """One staging folder, `PARENT/.clusterctl-copy`, held by one copy at a time.

    Others may have put a link or a folder of theirs there, and may exchange it at any time. So the
    folder is opened without following links, is used only if no other user may write to it, and
    what is in it is reached by its descriptor. `at` is the path by which that is done, `path` the
    one to name.
    """

    def __init__(self, parent: bytes) -> None:
        self.parent, self.path = parent, os.path.join(parent, STAGING)
        self.at = self.path
        self.journals: set[bytes] = set()
        self._lock = self._descriptor = -1
        # The mode of the parent folder before it was made writable, and that mode.
        self._modes: tuple[int, int] | None = None

    @property
    def held(self) -> bool:
        return self._lock >= 0

    def open(self) -> bool:
        """Open the folder. Return whether it is there. Raises Untrusted, OSError."""
        try:
            descriptor = os.open(self.path, FOLDER_FLAGS)
        except OSError:
            try:
                status = os.lstat(self.path)
            except OSError:  # nothing is there, or its parent is no folder or cannot be entered
                return False
            self._explain(status)
            raise
        if not _is_own(descriptor):
            status = os.fstat(descriptor)
            os.close(descriptor)
            self._explain(status)
            raise Untrusted(f"others may write to {text_of(self.path)}")
        with contextlib.suppress(OSError):  # the file system may have fixed modes
            os.fchmod(descriptor, 0o700)
        # Closed with this object, not before: a thread that still used the path would reach
        # whatever else had this number by then.
        weakref.finalize(self, os.close, descriptor)
        self._descriptor = descriptor
        self.at = b"/proc/self/fd/%d" % descriptor
        self.journals = _journals(descriptor)
        return True

    def _explain(self, status: os.stat_result) -> None:
        """Raise Untrusted if it is plain why the folder is no staging folder of this user."""
        if stat.S_ISLNK(status.st_mode):
            raise Untrusted(f"{text_of(self.path)} is a link")
        if not stat.S_ISDIR(status.st_mode):
            raise Untrusted(f"{text_of(self.path)} is no folder")
        if status.st_uid != os.geteuid():
            raise Untrusted(f"{text_of(self.path)} belongs to the user {status.st_uid}")

    def acquire(self, may_open: bool = False) -> None:
        """Make the folder and lock it. Raises Busy, Untrusted, OSError.

        `may_open`: the parent folder may be made writable for that; `release` takes it back.
        """
        while not self.held:
            with contextlib.suppress(FileExistsError):
                self._make(may_open)
            with contextlib.suppress(FileNotFoundError):  # another copy is just removing it
                if self.open():
                    self._lock = self._try()

    def _make(self, may_open: bool) -> None:
        try:
            os.mkdir(self.path, 0o700)
        except PermissionError:
            mode = stat.S_IMODE(os.stat(self.parent).st_mode)
            if not may_open or mode & stat.S_IRWXU == stat.S_IRWXU:
                raise
            self._modes = mode, mode | stat.S_IRWXU
            with contextlib.suppress(OSError):  # then the folder cannot be made either
                os.chmod(self.parent, self._modes[1])
            os.mkdir(self.path, 0o700)

    def _try(self) -> int:
        """Return the descriptor of the lock, or -1 to try again. Raises Busy, OSError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        lock = os.open(LOCK, flags, 0o600, dir_fd=self._descriptor)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another copy may have removed the file between open() and flock().
            if self._has(lock):
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

    def _has(self, lock: int) -> bool:
        """Return whether this folder is at its path, and the lock in it. Raises OSError."""
        there = os.path.samestat(
            os.stat(self.path, follow_symlinks=False), os.fstat(self._descriptor)
        )
        named = os.stat(LOCK, dir_fd=self._descriptor, follow_symlinks=False)
        return there and os.path.samestat(named, os.fstat(lock))

    def is_intact(self) -> bool:
        """Return whether the folder is still this copy's: someone may have removed it."""
        try:
            return self._has(self._lock)
        except OSError:
            return False

    def names(self) -> list[bytes]:
        """Return the names of what is in the folder, without the lock."""
        found = map(os.fsencode, os.listdir(self._descriptor))
        return [name for name in found if name != LOCK]

    def release(self, clear: bool) -> None:
        """Unlock the folder. `clear` removes it with all that is in it."""
        if not self.held:
            return
        if clear and self.is_intact():
            with contextlib.suppress(OSError):
                self._remove()
        if self._modes:
            with contextlib.suppress(OSError):
                if stat.S_IMODE(os.stat(self.parent).st_mode) == self._modes[1]:
                    os.chmod(self.parent, self._modes[0])
        os.close(self._lock)
        self._lock = -1

    def _remove(self) -> None:
        for name in self.names():
            path = os.path.join(self.at, name)
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                os.unlink(path)
        # The lock last: whoever takes it after that may write files here again.
        os.unlink(os.path.join(self.at, LOCK))
        before = os.stat(self.parent)
        mode = stat.S_IMODE(before.st_mode)
        try:
            os.rmdir(self.path)
        except PermissionError:  # the parent folder has its read-only mode already
            os.chmod(self.parent, mode | stat.S_IRWXU)
            try:
                os.rmdir(self.path)
            finally:
                os.chmod(self.parent, mode)
        os.utime(self.parent, ns=(before.st_atime_ns, before.st_mtime_ns))


def _is_own(descriptor: int) -> bool:
    """Return whether an open folder is this user's, and only this user may write to it.

    Some file systems give everything the same owner or mode (NFS with squashing, CIFS). There a
    folder counts that is as a new one is.
    """
    status = os.fstat(descriptor)
    if status.st_uid == os.geteuid() and not status.st_mode & 0o022:
        return True
    name = b"new-%d" % os.getpid()
    try:
        os.mkdir(name, 0o700, dir_fd=descriptor)
    except OSError:
        return False
    try:
        new = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
    finally:
        os.rmdir(name, dir_fd=descriptor)
    # Only the permissions: a folder may hand down its group and setgid bit.
    return (new.st_uid, new.st_mode & 0o777) == (status.st_uid, status.st_mode & 0o777)


class Staging:
    """The staging folders of a copy to ROOT: one in ROOT, and one on each other disk.

    A file that is not whole is a part in the folder that is on the disk of its destination, so that
    it gets its name by a rename. A part has a journal next to it of the pieces that have come and
    their checksums. After a reboot these pieces are read and checked, since they may not have
    reached the disk. Raises Untrusted if the folder in ROOT is there and not only this user's.
    """

    def __init__(self, root: bytes, sums: Callable[[], Sum] = Crc32) -> None:
        self.root = root
        self.new_sum = sums
        self.main = StagingFolder(root)
        self.folder = self.main.path
        # By folder of the copy at which another disk begins; and once each.
        self._others: dict[bytes, StagingFolder] = {}
        self._folders = [self.main]
        self._noting = threading.Lock()
        self._names: dict[bytes, tuple[Entry, bytes]] = {}  # of sparse files, by path
        # If it is not known, all pieces are checked.
        self._boot = boot_id().encode()[:36].ljust(36) if boot_id() else os.urandom(36)
        self.main.open()

    def use_disks(self, disks: Mapping[bytes, bytes]) -> None:
        """Keep parts on these disks, too: see `other_disks`. Raises Untrusted, OSError."""
        made = {self.root: self.main}
        for path, parent in disks.items():
            if parent not in made:
                made[parent] = StagingFolder(parent)
                made[parent].open()
            self._others[path] = made[parent]
        self._folders = list(made.values())

    @property
    def has_other_disks(self) -> bool:
        return bool(self._others)

    def folder_of(self, entry: Entry) -> StagingFolder:
        """Return the folder on the disk that an entry's destination is on."""
        if self._others:
            path = entry.path
            while path:
                path = os.path.dirname(path)
                if path in self._others:
                    return self._others[path]
        return self.main

    def left(self) -> bool:
        """Return whether an earlier copy has left a staging folder."""
        return any(os.path.lexists(folder.path) for folder in self._folders)

    def acquire(self, entries: Iterable[Entry] = (), known: Container[bytes] = ()) -> None:
        """Make and lock the folder in ROOT, and those that entries need, or that are there.

        `known` are the parents, of those folders, that may be made writable for that. Raises Busy,
        Untrusted, OSError; then `release` has to be called.
        """
        os.makedirs(self.root, exist_ok=True)
        needed = {id(self.folder_of(entry)) for entry in entries} if self._others else set()
        for folder in self._folders:
            if folder is self.main or id(folder) in needed or os.path.lexists(folder.path):
                folder.acquire(folder.parent in known)

    def check(self) -> None:
        """Raise Removed if a folder that is held is not at its path any more."""
        for folder in self._folders:
            if folder.held and not folder.is_intact():
                raise Removed(text_of(folder.path))

    def part(self, entry: Entry) -> bytes:
        """Return the path of an entry's part: the same for the same content, and for no other."""
        return self.folder_of(entry).at + b"/" + self._name(entry)

    def whole(self, number: int, entry: Entry) -> bytes:
        """Return the path of a file that comes in one piece. Such a file is never resumed."""
        return self.folder_of(entry).at + b"/%d" % number

    def tool_folder(self, entries: Sequence[Entry]) -> bytes:
        """Return the folder for a tool that puts all files into one: where most bytes belong."""
        sizes = dict.fromkeys(self._folders, 0)
        for entry in entries:
            sizes[self.folder_of(entry)] += entry.size
        return max(sizes, key=sizes.__getitem__).path

    def on_own_disk(self, entry: Entry, part: bytes) -> bytes:
        """Return the path of a part on the disk of its entry, copied there if need be, with holes.

        Raises OSError.
        """
        folder = self.folder_of(entry)
        if not self._others or os.path.dirname(part).startswith((folder.at, folder.path)):
            return part
        copy = self.part(entry)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(copy)
        copy_with_holes(part, copy)
        os.unlink(part)
        return copy

    def _name(self, entry: Entry) -> bytes:
        if not entry.segments:
            return _name(entry)
        # Text of many segments takes long to make, and is needed for each piece of such a file.
        known = self._names.get(entry.path)
        if known is None or known[0] != entry:
            known = self._names[entry.path] = entry, _name(entry)
        return known[1]

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
        journals = self.folder_of(entry).journals
        if not journals or self._name(entry) not in journals:
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

    def forget_others(self, wanted: Iterable[Entry]) -> None:
        """Remove what is left of files that are not among these entries, or have changed since."""
        held = [folder for folder in self._folders if folder.held]
        left = {(folder, name) for folder in held for name in folder.names()}
        if not left:
            return
        parts = {(folder, name.partition(b".")[0]) for folder, name in left}
        parts -= {one for one in map(self._part_of, wanted) if one in parts}
        for folder, name in left:
            if (folder, name.partition(b".")[0]) in parts:
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(folder.at, name))

    def _part_of(self, entry: Entry) -> tuple[StagingFolder, bytes]:
        return self.folder_of(entry), self._name(entry)

    def drop(self, entry: Entry) -> None:
        """Remove an entry's part and journal: it is published, or will never be."""
        # The journal first. If this process dies in between, a journal that is left would describe
        # the part that a later copy begins.
        for path in (self.part(entry) + JOURNALS, self.part(entry)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def held_paths(self) -> list[bytes]:
        """Return the paths of the folders that are held."""
        return [folder.path for folder in self._folders if folder.held]

    def holds_parts(self) -> bool:
        """Return whether something is here that a later copy can use."""
        return any(folder.names() for folder in self._folders if folder.held and folder.is_intact())

    def release(self, clear: bool) -> None:
        """Unlock the folders. `clear` removes them with all that is in them."""
        for folder in self._folders:
            folder.release(clear)


def copy_with_holes(part: bytes, copy: bytes) -> None:
    """Copy a file to a new one, which gets the same holes. Raises OSError."""
    with open(part, "rb", buffering=0) as old, open(copy, "xb", buffering=0) as new:
        size = os.fstat(old.fileno()).st_size
        for offset, length in segments_of(old.fileno(), size):
            at, end = offset, offset + length
            new.seek(at)
            while at < end:
                sent = os.sendfile(new.fileno(), old.fileno(), at, end - at)
                if not sent:  # it became shorter
                    break
                at += sent
        new.truncate(size)


def named(path: bytes) -> bytes:
    """Return the path to name for one that begins with a staging folder's `at`."""
    found = re.fullmatch(rb"(/proc/self/fd/\d+)(.*)", path, re.DOTALL)
    if not found:
        return path
    try:
        real = os.readlink(found[1])
    except OSError:
        return path
    return re.sub(rb" \(deleted\)\Z", b"", real) + found[2]


def _journals(folder: int) -> set[bytes]:
    """Return the names of the parts that have a journal, in an open folder."""
    names = map(os.fsencode, os.listdir(folder))
    return {name[: -len(JOURNALS)] for name in names if name.endswith(JOURNALS)}


def add_part(total: Sum, descriptor: int, offset: int, length: int) -> None:
    """Add a part of a file to a checksum, as far as the file has it."""
    buffer = thread_buffer(PIECE)
    while length and (size := os.preadv(descriptor, [buffer[:length]], offset)):
        ACTIVITY.go_on()
        total.update(buffer[:size])
        offset, length = offset + size, length - size


def _name(entry: Entry) -> bytes:
    identity = f"{entry.size} {entry.mtime_ns} {entry.changed_ns} {entry.segments}\n".encode()
    identity += entry.digest + entry.path
    return hashlib.blake2b(identity, digest_size=16).hexdigest().encode()


def _merged(pieces: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for offset, length in sorted(pieces):
        if merged and offset <= sum(merged[-1]):
            begin, had = merged[-1]
            merged[-1] = (begin, max(had, offset + length - begin))
        else:
            merged.append((offset, length))
    return merged
