"""Publishes whole files: sets their mode and time, syncs them to disk, and renames them."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import threading
from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from clusterctl.node.relay.activity import ACTIVITY, DELETE, PUBLISH, SYNC
from clusterctl.node.relay.entries import Entries
from clusterctl.node.relay.hashing import SHA256_BYTES, has_digest
from clusterctl.node.relay.manifest import FILE, FOLDER, LINK, UNKNOWN_MODE, Entry, text_of
from clusterctl.node.relay.staging import Staging
from clusterctl.node.relay.wire import Waits, libc, waited_s

# More files than this at once are synced with one call for the whole file system.
TOGETHER = 8
# Errors of a single entry, after which the others go on. A full or failing disk ends the copy.
OF_ONE_ENTRY = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,  # a link may lead to a folder on another disk
    errno.EXDEV,  # a folder became a link to another disk, or has another project's quota
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.ENOTEMPTY,
    errno.EBUSY,
    errno.ELOOP,
    errno.EINVAL,  # a name that this file system cannot hold
    errno.ENAMETOOLONG,
}


def in_the_way(path: bytes) -> str:
    """Return the warning that a folder with content is where a file or a link belongs."""
    return f"{text_of(path)}: a folder with something in it is there: remove or rename it"


def no_folder(path: bytes) -> str:
    """Return the warning that something else stays where a folder belongs."""
    why = "what is there is no folder, and stays while something at the source is left out"
    return f"{text_of(path)}: {why}: remove or rename it"


class Publisher(threading.Thread):
    """A thread that publishes entries, given by number, in the order in which they become whole."""

    def __init__(self, staging: Staging, entries: Entries, waits: Waits) -> None:
        super().__init__(name="publisher", daemon=True)
        self.staging, self._entries, self._waits = staging, entries, waits
        self._changed = threading.Condition()
        self._whole: list[tuple[int, bytes, bool]] = []
        self._ending = False
        # Threads that open and rename many files at the same time slow each other down.
        self.one_by_one = threading.Lock()
        self.written = self.links = 0  # files, and links
        self.refused: dict[int, str] = {}
        self.error: Exception | None = None
        # By entry, the ctime (ns) of the file that was here before the copy, else 0. `retouch`
        # changes them while other threads send these files.
        self.stamps: array[int] = array("q")
        self._stamping = threading.Lock()
        # Entries that this copy published with more permissions than their mode.
        self._opened: set[int] = set()
        self._folders: dict[bytes, Entry] = {}
        # Folders to be removed that are not empty, with the mode of those made writable for that.
        self._unwanted: dict[bytes, int] = {}
        self._is_root = os.geteuid() == 0

    def path(self, number: int) -> bytes:
        """Return the path of an entry in the destination."""
        path, root = self._entries.path(number), self.staging.root
        return root if path == b"." else root + b"/" + path

    def stamp(self, number: int) -> int:
        """Return the ctime (ns) of the file that was here before the copy; 0 if there was none."""
        with self._stamping:
            return self.stamps[number]

    def mode_for_now(self, number: int) -> int:
        """Return an entry's mode, with read permission for this user, who has to pass it on.

        `close` takes the additional permission back.
        """
        entry = self._entries[number]
        needed = stat.S_IRUSR | (stat.S_IXUSR if entry.kind == FOLDER else 0)
        return entry.mode if self._is_root else entry.mode | needed

    def close(self) -> None:
        """Set the final modes, some of which deny reading to the owner.

        To be called when no other relay requests blocks any more.
        """
        for number in sorted(self._opened, reverse=True):
            with contextlib.suppress(OSError):
                os.chmod(self.path(number), self._entries[number].mode)

    def make_folders(self, numbers: Sequence[int]) -> None:
        """Make the folders among the entries, writable during the copy. Raises OSError."""
        for number in numbers:
            if self._entries.kind(number) == FOLDER:
                ACTIVITY.begin(PUBLISH, self.path(number))
                try:
                    self._make_folder(number)
                except OSError as error:
                    self._refuse(number, error)
        ACTIVITY.end()

    def _make_folder(self, number: int) -> None:
        entry, path = self._entries[number], self.path(number)
        if os.path.islink(path) or not os.path.isdir(path):
            with contextlib.suppress(FileNotFoundError):
                self._in_folder(path, os.unlink)
        self._in_folder(path, lambda path: os.makedirs(path, exist_ok=True))
        if entry.mode != UNKNOWN_MODE:
            with contextlib.suppress(PermissionError):  # another user's folder may be writable
                os.chmod(path, entry.mode | stat.S_IRWXU)

    def _refuse(self, number: int, error: OSError) -> None:
        """Record why an entry is not published. Raises the error if it concerns all entries."""
        if error.errno not in OF_ONE_ENTRY:
            raise error
        self.refused[number] = f"{text_of(self.path(number))}: {error.strerror}"

    def _in_folder(self, path: bytes, work: Callable[[bytes], None]) -> None:
        """Apply `work` to a path, and make its folder writable for that if need be, as rsync does.

        `finish` restores the folder's mode. Raises OSError.
        """
        try:
            work(path)
        except PermissionError:
            if not self._make_writable(os.path.dirname(path)):
                raise
            work(path)

    def _make_writable(self, folder: bytes) -> bool:
        """Make a folder writable; return whether that worked.

        Only done for folders whose mode is known from the source, since it is restored later, and
        for those to be removed.
        """
        if not self._folders:
            folders = map(self._entries.__getitem__, self._entries.of_kind(FOLDER))
            self._folders = {entry.path: entry for entry in folders}
        name = os.path.relpath(folder, self.staging.root)
        entry = self._folders.get(name)
        if (entry is None or entry.mode == UNKNOWN_MODE) and name not in self._unwanted:
            return False
        try:
            mode = stat.S_IMODE(os.stat(folder).st_mode)
            os.chmod(folder, mode | stat.S_IRWXU)
        except OSError:
            return False
        if entry is None and self._unwanted[name] < 0:
            self._unwanted[name] = mode
        return True

    def put(self, whole: Sequence[tuple[int, bytes, bool]]) -> None:
        """Add whole entries: number, path of the part, whether the part has its mode and time."""
        with self._changed:
            self._whole.extend(whole)
            self._changed.notify()

    def finish(self) -> None:
        """Wait until all entries that were added are published or refused, then end the thread."""
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
        except Exception as error:  # noqa: BLE001 - a bug: `finish` must not take it for success
            self.error = error

    def _publish(self, batch: Sequence[tuple[int, bytes, bool]]) -> None:
        self.staging.check()
        # Not under `one_by_one`: a tool's file may have to be copied to its disk.
        batch = [
            (number, self.staging.on_own_disk(self._entries[number], part), ready)
            for number, part, ready in batch
        ]
        for number, part, ready in batch:
            if not ready:
                # Over a network this writes what the kernel still holds of the file.
                ACTIVITY.begin(SYNC, self.path(number))
                self._prepare(number, part)
        ACTIVITY.end()
        batch = [one for one in batch if self._is_right(*one)]
        began = waited_s()
        try:
            self._sync([(self.path(n), part) for n, part, _ in batch if self._entries[n].data])
        except OSError:
            # The kernel may have dropped what it could not write, so no later copy may go on with
            # these parts.
            for number, _, _ in batch:
                with contextlib.suppress(OSError):
                    self.staging.drop(self._entries[number])
            raise
        finally:
            ACTIVITY.end()
        self._waits.add("sync", waited_s() - began)
        with self.one_by_one:
            for number, part, ready in batch:
                if self._appear(number, part) and not ready:
                    self.staging.drop(self._entries[number])

    def _is_right(self, number: int, part: bytes, ready: bool) -> bool:
        """Return whether a part has the content that the source listed, as far as that is known."""
        entry = self._entries[number]
        # An MD5 from S3 proves nothing: with a KMS key an ETag looks like an MD5, but is none.
        if len(entry.digest) != SHA256_BYTES or has_digest(part, entry.digest):
            return True
        if not ready:
            self.staging.drop(entry)
        why = "what came is not what the source had listed: run it again"
        self.refused[number] = f"{text_of(self.path(number))}: {why}"
        return False

    def _prepare(self, number: int, part: bytes) -> None:
        entry = self._entries[number]
        times = (entry.mtime_ns, entry.mtime_ns)
        if not entry.data:  # an earlier copy may have left it with a mode that denies access
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part)
        if entry.kind == LINK:
            os.symlink(entry.link, part)
            os.utime(part, ns=times, follow_symlinks=False)
            return
        if not entry.data:
            os.close(os.open(part, os.O_WRONLY | os.O_CREAT, 0o600))
            os.truncate(part, entry.size)
        os.chmod(part, self.mode_for_now(number))
        os.utime(part, ns=times)

    def _sync(self, files: Sequence[tuple[bytes, bytes]]) -> None:
        """Write files to disk, given as paths of the files and of their parts. Raises OSError."""
        if len(files) > TOGETHER:
            folders = {os.path.dirname(part): path for path, part in files}
            for folder, path in folders.items():
                ACTIVITY.begin(SYNC, path)
                ACTIVITY.writes_to(folder)
                sync_file_system(folder)
            return
        for path, part in files:
            ACTIVITY.begin(SYNC, path)
            ACTIVITY.writes_to(part)
            _sync_file(part)

    def _appear(self, number: int, part: bytes) -> bool:
        """Rename a part to its name; return whether that worked.

        If not, the part stays, since other relays may still request its blocks.
        """
        path = self.path(number)
        ACTIVITY.begin(PUBLISH, path)
        try:
            self._in_folder(path, lambda path: self._rename(part, path))
        except IsADirectoryError:
            self.refused[number] = in_the_way(path)
            return False
        except OSError as error:
            self._refuse(number, error)
            return False
        finally:
            ACTIVITY.end()
        self._note_opened(number)
        if self._entries[number].kind == LINK:
            self.links += 1
        else:
            self.written += 1
        return True

    def _note_opened(self, number: int) -> None:
        if self.mode_for_now(number) != self._entries[number].mode:
            self._opened.add(number)

    def _rename(self, part: bytes, path: bytes) -> None:
        try:
            os.rename(part, path)
        except IsADirectoryError:
            try:
                os.rmdir(path)
            except OSError:
                raise IsADirectoryError from None
            os.rename(part, path)

    def set_metadata(self, files: Iterable[int]) -> list[str]:
        """Set the modes and times of these files and then of all folders, the deepest first.

        Return a line for each failure.
        """
        refused = []
        folders = array("I", (n for n in self._entries.of_kind(FOLDER) if n not in self.refused))
        known = (n for n in reversed(folders) if self._entries[n].mode != UNKNOWN_MODE)
        for number in chain(files, known):
            ACTIVITY.begin(PUBLISH, self.path(number))
            try:
                self.retouch(number)
            except OSError as error:
                refused.append(
                    f"{text_of(self.path(number))}: mode and time not set: {error.strerror}"
                )
        ACTIVITY.end()
        return refused

    def retouch(self, number: int) -> None:
        """Set the mode and time of an entry whose content is in place. Raises OSError."""
        entry, path = self._entries[number], self.path(number)
        with self._stamping:
            status = os.stat(path)
            if entry.kind == FOLDER and not stat.S_ISDIR(status.st_mode):  # it could not be made
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            same = entry.kind == FILE and status.st_ctime_ns == self.stamps[number]
            mode = self.mode_for_now(number)
            if mode != stat.S_IMODE(status.st_mode):
                os.chmod(path, mode)
            if status.st_mtime_ns != entry.mtime_ns:
                os.utime(path, ns=(entry.mtime_ns, entry.mtime_ns))
            self._note_opened(number)
            if same:
                # This has changed the ctime, which must not count as a change of the content.
                self.stamps[number] = os.stat(path).st_ctime_ns

    def remove(self, names: Sequence[bytes]) -> tuple[int, list[str]]:
        """Remove paths that the source does not have; a folder has to come after its content.

        Return how many were removed, and a line for each failure.
        """
        removed, refused = 0, []
        above = set(map(os.path.dirname, names))
        self._unwanted = dict.fromkeys((name for name in names if name in above), -1)
        for name in names:
            path = self.staging.root + b"/" + name
            ACTIVITY.begin(DELETE, path)
            folder = os.path.isdir(path) and not os.path.islink(path)
            try:
                self._in_folder(path, os.rmdir if folder else os.unlink)
                removed += 1
            except FileNotFoundError:
                pass
            except OSError as error:
                refused.append(f"{text_of(path)}: not deleted: {error.strerror}")
        for name, mode in self._unwanted.items():
            if mode >= 0 and refused:
                with contextlib.suppress(OSError):
                    os.chmod(self.staging.root + b"/" + name, mode)
        ACTIVITY.end()
        return removed, refused


def _sync_file(path: bytes) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file_system(folder: bytes) -> None:
    """Write all data of the file system of `folder` to its disk (syncfs). Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if libc().syncfs(descriptor):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(descriptor)
