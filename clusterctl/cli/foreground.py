"""A program that has the terminal while it runs, and somebody who is still there afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from typing import Any


def run_in_foreground(argv: Sequence[str]) -> int:
    """Run a program to its end as if in our place; its exit status, 128 + signal after a death.

    What the terminal sends reaches it directly; what is sent to us is passed on, and when it is
    suspended so are we. Raises FileNotFoundError.
    """
    started: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def pass_on(number: int, frame: Any) -> None:
        # The program may run before Popen has returned.
        if not started:
            early.append(number)
        for process in started:
            process.send_signal(number)

    # A function, since what is ignored here would be ignored by the program, too.
    handlers = {
        **dict.fromkeys((signal.SIGTERM, signal.SIGHUP), pass_on),
        **dict.fromkeys((signal.SIGINT, signal.SIGQUIT), lambda number, frame: None),
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        started.append(subprocess.Popen(argv))
        for number in early:
            started[0].send_signal(number)
        return _wait(started[0].pid)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(pid: int) -> int:
    while True:
        _, status = os.waitpid(pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            os.kill(os.getpid(), signal.SIGSTOP)
            # Whoever has us go on may have meant us alone.
            os.kill(pid, signal.SIGCONT)
        elif os.WIFSIGNALED(status):
            return 128 + os.WTERMSIG(status)
        else:
            return os.WEXITSTATUS(status)
