"""Other programs that are run on nodes for their output."""

from __future__ import annotations

import subprocess


def output(
    argv: list[str],
    timeout_s: float | None = None,
    check: bool = True,
    errors: bool = False,
    cwd: str | None = None,
) -> str | None:
    """Return what a program prints, with `errors` also on stderr; None if it is missing or takes
    too long, or with `check` if it fails.

    Facts give no timeout: at the deadline of a fact all its processes are killed. With two
    deadlines of one length it would be chance which of them strikes.
    """
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if errors else subprocess.DEVNULL,
            cwd=cwd,
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
