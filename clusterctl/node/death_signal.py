"""What the kernel sends a process when the thread that started it has ended: PR_SET_PDEATHSIG of
prctl(2)."""

from __future__ import annotations

import ctypes
import os
import signal

_SET_DEATH_SIGNAL = 1
_LIBC = ctypes.CDLL(None)


def set_death_signal(number: int) -> None:
    """Of this process."""
    _LIBC.prctl(_SET_DEATH_SIGNAL, number)


def die_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Run in a new process: it gets this signal when `parent` has ended, however that comes."""
    set_death_signal(number)
    # It may have ended before: no signal comes then.
    if os.getppid() != parent:
        os._exit(1)
