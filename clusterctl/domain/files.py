"""Files on this machine."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


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
