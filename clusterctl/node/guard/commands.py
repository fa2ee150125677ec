"""Other programs, run with a timeout so that they cannot delay the guard."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence


class StartedProgram:
    """A started program. If it does not end in time, it is killed and not waited for: a process
    that hangs in the kernel does not die."""

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
        """Wait for its end. Return its exit status and output, with stderr if it failed.

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
    """Return exit status and output. Raises FileNotFoundError without the program, TimeoutError if
    it takes too long, OSError."""
    return StartedProgram(argv, timeout_s).end()
