"""Pull what a folder lacks from URLs: no relay, no peers, whole files by rename."""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from clusterctl.node.relay.httpget import SourceError
from clusterctl.node.relay.layout import Layout
from clusterctl.node.relay.manifest import FILE, FOLDER, Entry
from clusterctl.node.relay.urls import UrlOrigin, is_single, list_all

BLOCK_BYTES = 8 << 20
# Of this program's own: never one of the data set's.
STAGING = b".clusterctl-sync"
MARGIN_BYTES = 64 << 20


class Progress:
    """How far it is. Files that were there already are in `present`; `listed`: all is known."""

    def __init__(self) -> None:
        self.total_files = self.total_bytes = 0
        self.files = self.bytes = 0
        self.present = self.left_out = 0
        self.listed = False

    def as_data(self) -> dict[str, int]:
        return dict(vars(self))


class Sync:
    """One sync into one folder. `say` takes lines for the log."""

    def __init__(
        self, config: Mapping[str, Any], destination: bytes, say: Callable[[str], None]
    ) -> None:
        self.progress = Progress()
        self._config, self._destination, self._say = config, destination, say
        self._lock = threading.Lock()
        self._left: dict[int, int] = {}
        self._trouble: BaseException | None = None
        self._next = 0

    def run(self) -> None:
        """To the end. Raises SourceError, OSError."""
        entries, warnings, left_out = list_all(self._config)
        for warning in warnings:
            self._say(warning)
        root, entries = placed(self._destination, is_single(self._config, entries), entries)
        os.makedirs(root, exist_ok=True)
        missing = [entry for entry in entries if lacks(root, entry)]
        self._root, self._missing = root, missing
        self.progress.left_out = left_out
        files = [entry for entry in missing if entry.kind == FILE]
        self.progress.total_files = len(files)
        self.progress.total_bytes = sum(entry.size for entry in files)
        self.progress.present = sum(entry.kind == FILE for entry in entries) - len(files)
        self.progress.listed = True
        self._say(
            f"files to get: {len(files)}, {self.progress.total_bytes} bytes; "
            f"already there: {self.progress.present}"
        )
        staging = os.path.join(root, STAGING)
        lock = take_folder(staging)
        try:
            self._check_room()
            self._pull(staging)
            self._settle(entries)
        finally:
            # Threads that are still at work, when a signal ends it, see that it is over.
            self._trouble = self._trouble or SourceError("usage", "it is over")
            shutil.rmtree(staging, ignore_errors=True)
            os.close(lock)

    def _check_room(self) -> None:
        status = os.statvfs(self._root)
        free = status.f_bavail * status.f_frsize
        if self.progress.total_bytes + MARGIN_BYTES > free:
            raise SourceError(
                "space",
                f"{_text(self._root)} has {free} bytes free, "
                f"{self.progress.total_bytes} are to come",
                "make room there, or choose another destination",
            )

    def _pull(self, staging: bytes) -> None:
        layout = Layout(self._missing, BLOCK_BYTES)
        origin = UrlOrigin(self._config, self._missing, layout)
        self._staging, self._layout, self._origin = staging, layout, origin
        for number, entry in enumerate(self._missing):
            path = os.path.join(self._root, entry.path)
            if entry.kind == FOLDER:
                os.makedirs(path, exist_ok=True)
            elif entry.size:
                self._left[number] = entry.size
            else:
                os.close(os.open(self._part(number), os.O_WRONLY | os.O_CREAT, 0o600))
                self._publish(number)
        threads = [
            threading.Thread(target=self._work, daemon=True) for _ in range(_width(origin, layout))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            # In steps, so that a signal is heard.
            while thread.is_alive():
                thread.join(0.5)
        origin.close()
        if self._trouble:
            raise self._trouble

    def _work(self) -> None:
        try:
            while not self._trouble:
                with self._lock:
                    block, self._next = self._next, self._next + 1
                if block >= self._layout.blocks:
                    return
                self._get(block)
        except BaseException as error:  # noqa: BLE001 - raised again where all threads end
            self._trouble = self._trouble or error

    def _get(self, block: int) -> None:
        content, bad = self._origin.read(block)
        view, at = memoryview(content), 0
        for number, offset, length in self._layout.extents(block):
            if number not in bad:
                _write(self._part(number), view[at : at + length], offset)
            at += length
            with self._lock:
                self.progress.bytes += length
                self._left[number] -= length
                whole = not self._left[number]
            if whole:
                self._publish(number)

    def _part(self, number: int) -> bytes:
        return os.path.join(self._staging, b"%d" % number)

    def _publish(self, number: int) -> None:
        """A whole file gets its name; one that could not be read is left out."""
        entry, part = self._missing[number], self._part(number)
        error = self._origin.why.get(number)
        if error:
            self._say(f"left out {_text(entry.path)}: {error.why}")
            with self._lock:
                self.progress.left_out += 1
            return
        descriptor = os.open(part, os.O_RDWR)
        try:
            os.fchmod(descriptor, entry.mode)
            os.utime(descriptor, ns=(entry.mtime_ns, entry.mtime_ns))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(part, os.path.join(self._root, entry.path))
        with self._lock:
            self.progress.files += 1

    def _settle(self, entries: Sequence[Entry]) -> None:
        for entry in reversed(entries):
            if entry.kind == FOLDER:
                path = os.path.join(self._root, entry.path)
                os.utime(path, ns=(entry.mtime_ns, entry.mtime_ns))


def placed(destination: bytes, single: bool, entries: list[Entry]) -> tuple[bytes, list[Entry]]:
    """The folder that files go to, and their names there. One file may get a new name."""
    path = os.path.expanduser(destination)
    if not single or path.endswith(b"/") or os.path.isdir(path):
        return path, entries
    return os.path.dirname(path) or b".", [entries[0]._replace(path=os.path.basename(path))]


def lacks(root: bytes, entry: Entry) -> bool:
    """Whether there is no such file of this size, as new as the object or newer."""
    try:
        status = os.stat(os.path.join(root, entry.path))
    except OSError:
        return True
    if entry.kind == FOLDER:
        return not os.path.isdir(os.path.join(root, entry.path))
    return status.st_size != entry.size or status.st_mtime_ns < entry.mtime_ns


def take_folder(staging: bytes) -> int:
    """An empty folder for what is not whole yet. Raises SourceError while another has it."""
    os.makedirs(staging, exist_ok=True)
    lock = os.open(os.path.join(staging, b"lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise SourceError(
            "busy", f"another sync into {_text(os.path.dirname(staging))} is running", "wait for it"
        ) from None
    for name in os.listdir(staging):
        if name != b"lock":
            os.unlink(os.path.join(staging, name))
    return lock


def _width(origin: UrlOrigin, layout: Layout) -> int:
    return max(1, min(origin.connections, layout.blocks))


def _write(path: bytes, view: memoryview, at: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        while len(view):
            size = os.pwrite(descriptor, view, at)
            view, at = view[size:], at + size
    finally:
        os.close(descriptor)


def _text(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")
