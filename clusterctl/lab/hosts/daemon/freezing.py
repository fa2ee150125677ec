"""Stop all processes of a host where they are, and let them go on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path


def freeze(init: int) -> None:
    """Stop every process of the host whose PID 1 this is, those that it is just forking too."""
    stopped: set[int] = set()
    while running := set(processes_of(init)) - stopped:
        for pid in running:
            _signal(pid, signal.SIGSTOP)
        stopped |= running


def thaw(init: int) -> None:
    for pid in processes_of(init):
        _signal(pid, signal.SIGCONT)


def processes_of(init: int) -> Iterator[int]:
    """The processes in the PID namespace of a host."""
    own = _namespace(init)
    for entry in Path("/proc").iterdir():
        if own and entry.name.isdigit() and _namespace(int(entry.name)) == own:
            yield int(entry.name)


def _namespace(pid: int) -> str:
    """Empty for a process that is gone."""
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
