"""Files on this machine."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from clusterctl.domain.errors import ClusterctlError

T = TypeVar("T")


def read_file(path: Path, parse: Callable[[bytes], T], hint: str) -> T:
    """Return what `parse` makes of a file's content.

    Raises FileNotFoundError without the file, and ClusterctlError with the file's name, the reason
    and `hint` if it cannot be read or `parse` raises ValueError: a damaged file is not an empty
    one.
    """
    try:
        return parse(path.read_bytes())
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ClusterctlError(f"cannot read {path}: {reason}", hint) from None


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
