"""Other programs, none of which can hold the guard up."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence


class StartedProgram:
    """A program that has been started. What does not end in time is killed and forgotten:
    one that hangs in the kernel cannot even be waited for."""

    def __init__(self, argv: Sequence[str], timeout_s: float) -> None:
        self._deadline = time.monotonic() + timeout_s
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )

    def end(self) -> tuple[int, str]:
        """Its exit status and output, with what it complained about when it failed.

        Raises TimeoutError.
        """
        try:
            out, err = self._process.communicate(
                timeout=max(0.0, self._deadline - time.monotonic())
            )
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise TimeoutError("no answer in time") from None
        return self._process.returncode, out if self._process.returncode == 0 else out + err


def run(argv: Sequence[str], timeout_s: float) -> tuple[int, str]:
    """Exit status and output. Raises OSError: it is not there, or (TimeoutError) hangs."""
    return StartedProgram(argv, timeout_s).end()
