"""Whole files get their mode and time, reach the disk, and appear under their names."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import stat
import threading
import time
from collections.abc import Sequence

from clusterctl.data.node.manifest import FOLDER, LINK, UNKNOWN_MODE, Entry, text_of
from clusterctl.data.node.scan import STAGING
from clusterctl.data.node.staging import Staging
from clusterctl.data.node.waits import Waits

# More files than this at once reach the disk with one call for the whole file system.
TOGETHER = 8


class Publisher(threading.Thread):
    """Publishes entries by number as they become whole, in the order they come."""

    def __init__(self, staging: Staging, entries: Sequence[Entry], waits: Waits) -> None:
        super().__init__(name="publisher", daemon=True)
        self._staging, self._entries, self._waits = staging, entries, waits
        self._changed = threading.Condition()
        self._whole: list[tuple[int, bytes, bool]] = []
        self._ending = False
        # Threads that open and rename many files by turns get in each other's way.
        self.one_by_one = threading.Lock()
        self.written = 0
        self.refused: dict[int, str] = {}
        self.error: OSError | None = None

    def path(self, number: int) -> bytes:
        entry = self._entries[number]
        root = self._staging.root
        return root if entry.path == b"." else root + b"/" + entry.path

    def make_folders(self, numbers: Sequence[int]) -> None:
        """The folders among the entries, writable for now. Raises OSError."""
        for number in numbers:
            entry = self._entries[number]
            if entry.kind == FOLDER:
                path = self.path(number)
                if os.path.lexists(path) and not os.path.isdir(path):
                    os.unlink(path)
                os.makedirs(path, exist_ok=True)
                if entry.mode != UNKNOWN_MODE:
                    os.chmod(path, entry.mode | stat.S_IRWXU)

    def put(self, whole: Sequence[tuple[int, bytes, bool]]) -> None:
        """These entries are whole: number, part, and whether that has its mode and time."""
        with self._changed:
            self._whole.extend(whole)
            self._changed.notify()

    def finish(self) -> None:
        """Wait until all that was put is published."""
        with self._changed:
            self._ending = True
            self._changed.notify()
        self.join()

    def run(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._whole or self._ending)
                    batch, self._whole = self._whole, []
                    if not batch:
                        return
                self._publish(batch)
        except OSError as error:
            self.error = error

    def _publish(self, batch: Sequence[tuple[int, bytes, bool]]) -> None:
        for number, part, ready in batch:
            if not ready:
                self._prepare(self._entries[number], part)
        began = time.monotonic()
        self._sync([part for number, part, _ in batch if self._entries[number].data])
        self._waits.add("sync", time.monotonic() - began)
        with self.one_by_one:
            for number, part, ready in batch:
                if self._appear(number, part) and not ready:
                    self._staging.drop(self._entries[number])

    def _prepare(self, entry: Entry, part: bytes) -> None:
        times = (entry.mtime_ns, entry.mtime_ns)
        if entry.kind == LINK:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part)
            os.symlink(entry.link, part)
            os.utime(part, ns=times, follow_symlinks=False)
            return
        if not entry.data:
            os.close(os.open(part, os.O_WRONLY | os.O_CREAT, 0o600))
            os.truncate(part, entry.size)
        os.chmod(part, entry.mode)
        os.utime(part, ns=times)

    def _sync(self, parts: Sequence[bytes]) -> None:
        if len(parts) > TOGETHER:
            sync_file_system(self._staging.folder)
            return
        for part in parts:
            descriptor = os.open(part, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _appear(self, number: int, part: bytes) -> bool:
        """Whether it could. Else the part stays, since others may still ask for its blocks."""
        path = self.path(number)
        try:
            self._rename(part, path)
        except IsADirectoryError:
            self.refused[number] = f"{text_of(path)}: a folder with something in it is there"
            return False
        self.written += 1
        return True

    def _rename(self, part: bytes, path: bytes) -> None:
        try:
            os.rename(part, path)
        except IsADirectoryError:
            try:
                os.rmdir(path)
            except OSError:
                raise IsADirectoryError from None
            os.rename(part, path)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            self._rename(_beside(part, path), path)
            os.unlink(part)

    def settle_folders(self) -> list[str]:
        """Give the folders their modes and times, the deepest first; what was refused."""
        refused = []
        folders = [n for n, entry in enumerate(self._entries) if entry.kind == FOLDER]
        for number in reversed(folders):
            try:
                self.retouch(number)
            except OSError as error:
                refused.append(
                    f"{text_of(self.path(number))}: mode and time not set: {error.strerror}"
                )
        return refused

    def retouch(self, number: int) -> None:
        """Mode and time of an entry whose content is there. Raises OSError."""
        entry, path = self._entries[number], self.path(number)
        status = os.stat(path)
        if entry.mode not in (UNKNOWN_MODE, stat.S_IMODE(status.st_mode)):
            os.chmod(path, entry.mode)
        if status.st_mtime_ns != entry.mtime_ns:
            os.utime(path, ns=(entry.mtime_ns, entry.mtime_ns))

    def remove(self, names: Sequence[bytes]) -> int:
        """Remove what the source does not have, what is in a folder before it; how many."""
        removed = 0
        for name in names:
            path = self._staging.root + b"/" + name
            with contextlib.suppress(FileNotFoundError):
                if os.path.isdir(path) and not os.path.islink(path):
                    os.rmdir(path)
                else:
                    os.unlink(path)
                removed += 1
        return removed


def _beside(part: bytes, path: bytes) -> bytes:
    """The part on the disk that `path` is on, where a folder of the destination is on another."""
    name = STAGING + b"-" + os.path.basename(part)
    copy = os.path.join(os.path.dirname(path), name)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(copy)
    shutil.copy2(part, copy, follow_symlinks=False)
    if not os.path.islink(copy):
        descriptor = os.open(copy, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return copy


def sync_file_system(folder: bytes) -> None:
    """What is written to the file system of `folder` has reached the disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(descriptor)
