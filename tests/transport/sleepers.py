"""Processes `sleep` that a test can find again."""

from __future__ import annotations

import contextlib
import itertools
import os
from pathlib import Path

# Times for `sleep` that no other process has, so that it can be found.
NUMBERS = itertools.count(77_000_000 + 1000 * os.getpid())


def sleepers(number: int) -> list[int]:
    """Return the processes `sleep NUMBER`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes() == f"sleep\0{number}\0".encode():
                found.append(int(path.parent.name))
    return found
