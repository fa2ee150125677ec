"""Run a program that has the terminal, as a child of this process."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from typing import Any

from clusterctl.domain.errors import MissingTool


def run_in_foreground(argv: Sequence[str]) -> int:
    """Run a program as if it had replaced this one, and return its exit status.

    That is 128 + the number of a signal that killed it. Signals of the terminal (Ctrl-C) reach it
    directly; SIGTERM and SIGHUP to this process are passed on. When it is suspended, so is this
    process. Raises MissingTool if this machine lacks the program.
    """
    started: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def pass_on(number: int, frame: Any) -> None:
        # The signal may come before Popen has returned: it is passed on below.
        if not started:
            early.append(number)
        for process in started:
            process.send_signal(number)

    # Functions, not SIG_IGN: a child inherits ignored signals, and Ctrl-C would not reach it.
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
    except FileNotFoundError:
        hint = "install OpenSSH's client" if argv[0] == "ssh" else ""
        raise MissingTool(f"there is no `{argv[0]}` here", hint) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(pid: int) -> int:
    while True:
        _, status = os.waitpid(pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            os.kill(os.getpid(), signal.SIGSTOP)
            # SIGCONT may have been sent to this process only (kill -CONT): pass it on.
            os.kill(pid, signal.SIGCONT)
        elif os.WIFSIGNALED(status):
            return 128 + os.WTERMSIG(status)
        else:
            return os.WEXITSTATUS(status)
