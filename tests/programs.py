"""Programs that tests run to their end."""

from __future__ import annotations

import subprocess
from typing import Any


def completed(
    argv: list[Any], *, check: bool = False, timeout: float = 500, **more: Any
) -> subprocess.CompletedProcess[str]:
    """Return how a program ended, and its output as text."""
    more = {"capture_output": True, "text": True, **more}
    return subprocess.run(argv, check=check, timeout=timeout, **more)
