"""Facts about a node's guard, by the state that it writes: is it at work, what counts as busy."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Optional

from clusterctl.node.facts.report import deadline
from clusterctl.node.guard.clock import GuardFiles, read_object
from clusterctl.node.procfs import boot_s

# The guard writes its state every 5 s. A node that boots starts it last, which may take minutes.
SILENT_S = 60.0
BOOT_S = 900.0
WRITES_WITHIN_S = 8.0


@deadline(2 * WRITES_WITHIN_S)
def guard_silence_s() -> Optional[float]:
    """Return for how many seconds the guard has written no state; None if it is at work.

    A step of the clock looks like silence until the guard writes again, which is awaited.
    """
    state, until = GuardFiles().state, time.monotonic() + WRITES_WITHIN_S
    first = _written_at(state)
    while True:
        written = _written_at(state)
        silence_s = max(0.0, boot_s() - BOOT_S) if written is None else time.time() - written
        if written != first or 0 <= silence_s < SILENT_S:
            return None
        if time.monotonic() > until:
            return abs(silence_s)
        time.sleep(0.5)


def guard_busy() -> tuple[str, ...]:
    """Return why the guard last counted this node, or as the head node's the cluster, as busy."""
    busy = read_object(GuardFiles().state).get("busy")
    return tuple(map(str, busy)) if isinstance(busy, list) else ()


def _written_at(path: Path) -> Optional[float]:
    with suppress(OSError):
        return path.stat().st_mtime
    return None
