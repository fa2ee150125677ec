"""Facts about a node's guard, by the state that it writes: is it at work, what counts as busy."""

from __future__ import annotations

from typing import Optional

from clusterctl.node.guard.clock import BootClock, GuardFiles, read_object
from clusterctl.node.procfs import boot_s

# The guard writes its state every 5 s. A node that boots starts it last, which may take minutes.
SILENT_S = 60.0
BOOT_S = 900.0


def guard_silence_s() -> Optional[float]:
    """Return for how many seconds of running time the guard has written no state; None if it is at
    work. Whoever sets the node's clock changes nothing."""
    place = GuardFiles()
    written_s = read_object(place.state).get("used_s")
    if isinstance(written_s, (int, float)):
        silence_s = BootClock(place).used_s() - written_s
    else:
        silence_s = boot_s() - BOOT_S
    return silence_s if silence_s >= SILENT_S else None


def guard_busy() -> tuple[str, ...]:
    """Return why the guard last counted this node, or as the head node's the cluster, as busy."""
    busy = read_object(GuardFiles().state).get("busy")
    return tuple(map(str, busy)) if isinstance(busy, list) else ()
