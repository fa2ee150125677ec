"""Files on this machine."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
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
