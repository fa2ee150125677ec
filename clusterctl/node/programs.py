"""Other programs that are run on nodes for their output."""

from __future__ import annotations

import subprocess


def output(argv: list[str], timeout_s: float = 5.0, check: bool = True) -> str | None:
    """Return what a program prints; None if it is missing or takes too long, or with `check` if it
    fails."""
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError:
        return None
    try:
        out, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        # No wait: a process that hangs in the kernel does not die.
        process.kill()
        return None
    return None if check and process.returncode else out.decode(errors="replace")
