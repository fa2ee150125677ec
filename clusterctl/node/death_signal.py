"""The signal that the kernel sends a process when the thread that started it ends: PR_SET_PDEATHSIG
of prctl(2)."""

from __future__ import annotations

import ctypes
import os
import signal

_SET_DEATH_SIGNAL = 1
_LIBC = ctypes.CDLL(None)


def set_death_signal(number: int) -> None:
    """Have the kernel send this process signal `number` when its parent ends."""
    _LIBC.prctl(_SET_DEATH_SIGNAL, number)


def die_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Call in a new process: have the kernel send it signal `number` when `parent` ends."""
    set_death_signal(number)
    # If `parent` ended before the call of prctl, no signal comes.
    if os.getppid() != parent:
        os._exit(1)
