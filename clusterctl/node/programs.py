"""Other programs that are run on nodes for their output."""

from __future__ import annotations

import subprocess


def output(
    argv: list[str], check: bool = True, errors: bool = False, cwd: str | None = None
) -> str | None:
    """Return what a program prints, with `errors` also on stderr; None if it is missing,
    or with `check` if it fails.

    There is no timeout: at the deadline of a fact all its processes are killed.
    """
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if errors else subprocess.DEVNULL,
            cwd=cwd,
            check=False,
        )
    except OSError:
        return None
    return None if check and done.returncode else done.stdout.decode(errors="replace")
