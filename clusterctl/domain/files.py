"""Files on this machine."""

from __future__ import annotations

import enum
import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from clusterctl.domain.errors import ClusterctlError

T = TypeVar("T")


def read_file(path: Path, parse: Callable[[bytes], T], hint: str) -> T | None:
    """Return what `parse` makes of a file's content; None without the file.

    Raises ClusterctlError with the file's name, the reason and `hint` if it cannot be read or
    `parse` raises ValueError: a damaged file is not an empty one.
    """
    try:
        return parse(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ClusterctlError(f"cannot read {path}: {reason}", hint) from None


class Lock(enum.Enum):
    """Whether this process has a lock, or another one. The file system may have no such locks: NFS
    has none of folders, since flock becomes a record lock there, of a file open for writing."""

    HELD = enum.auto()
    BUSY = enum.auto()
    MISSING = enum.auto()


@contextmanager
def file_lock(
    path: Path, *, creates: bool = False, shared: bool = False, waits: bool = False
) -> Iterator[Lock]:
    """Lock a file or folder against other processes for the block. With `creates` the path is that
    of a file, which is made if there is none.

    Yields whether it is locked: with `waits` this waits for another process. Raises OSError if it
    cannot be opened.
    """
    opened = os.open(path, os.O_RDWR | os.O_CREAT if creates else os.O_RDONLY, 0o666)
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        try:
            fcntl.flock(opened, kind if waits else kind | fcntl.LOCK_NB)
            # Who had it may have deleted the file: whoever comes next makes a new one, and a lock
            # of the old file would keep no one out.
            is_same = os.path.samestat(os.fstat(opened), path.stat())
            state = Lock.HELD if is_same else Lock.BUSY
        except (BlockingIOError, FileNotFoundError):
            state = Lock.BUSY
        except OSError:
            state = Lock.MISSING
        yield state
    finally:
        os.close(opened)


def append_line(path: Path, line: str) -> None:
    """Append a line to a file that only its owner can read, on disk when this returns.

    It is one write, so that the lines of two commands do not get mixed. A last line that a crash
    has cut short stays a line of its own. Raises OSError.
    """
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        size = os.lseek(file, 0, os.SEEK_END)
        is_cut = size and os.pread(file, 1, size - 1) != b"\n"
        os.write(file, b"\n" * bool(is_cut) + f"{line}\n".encode())
        os.fsync(file)
    finally:
        os.close(file)


def write_file(path: Path, content: str | bytes) -> None:
    """Replace a file atomically. Only its owner can read it. Raises OSError with its path."""
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # mkstemp creates the file with mode 0600.
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(draft).replace(path)
    except BaseException as failure:
        Path(draft).unlink(missing_ok=True)
        if isinstance(failure, OSError):
            failure.filename = str(path)  # a write to a full disk raises OSError without a path
        raise
