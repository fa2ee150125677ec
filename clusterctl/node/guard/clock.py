"""What time it is, and for how long this machine has run."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from clusterctl.node.guard.files import GuardFiles, put, read_object

KEEP_EVERY_S = 60.0
JUMP_S = 5.0
JUMP_HOLD_S = 60.0


@dataclass(frozen=True)
class Moment:
    """`boot_s` since this boot, suspends included; `used_s` in this and all earlier boots.

    `trusted`: the wall clock has not just jumped.
    """

    wall: float
    boot_s: float
    used_s: float
    trusted: bool = True


class Clock:
    """Reads the clocks. What earlier boots used is kept in a file, a minute's loss at most.

    The launcher reads it, too: EC2 does not say when a machine switched itself off. `since` is the
    Unix time at which the first of the `boots` began that are counted.
    """

    def __init__(self, place: GuardFiles) -> None:
        self._place = place
        self._boot_id = _boot_id()
        kept = read_object(place.used)
        before, last = (_seconds(kept.get(key)) for key in ("before_s", "boot_s"))
        is_this_boot = kept.get("boot_id") == self._boot_id
        self._before_s = before if is_this_boot else before + last
        self._boots = int(_seconds(kept.get("boots"))) + (not is_this_boot)
        began = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        # What an older guard has counted began nobody knows when.
        self._since = _seconds(kept.get("since")) if kept else began
        self._kept_at = -KEEP_EVERY_S
        self._jumps = Jumps()

    def read(self) -> Moment:
        boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        if boot_s - self._kept_at >= KEEP_EVERY_S:
            self._kept_at = boot_s
            kept = {
                "boot_id": self._boot_id,
                "before_s": self._before_s,
                "boot_s": boot_s,
                "since": self._since,
                "boots": self._boots,
            }
            put(self._place.used, json.dumps(kept) + "\n")
        wall = time.time()
        return Moment(wall, boot_s, self._before_s + boot_s, self._jumps.trusted(wall, boot_s))


class Jumps:
    """A wall clock that jumps is not believed for a minute, in which it may be set right.

    One that jumps again and again is believed every other minute: it cannot stop the guard.
    """

    def __init__(self) -> None:
        self._offset: float | None = None
        self._held_at = float("-inf")

    def trusted(self, wall: float, boot_s: float) -> bool:
        offset = wall - boot_s
        jumped = self._offset is not None and abs(offset - self._offset) > JUMP_S
        self._offset = offset
        if jumped and boot_s - self._held_at > 2 * JUMP_HOLD_S:
            self._held_at = boot_s
        return boot_s - self._held_at > JUMP_HOLD_S


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _seconds(value: object) -> float:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < 1e12 else 0.0  # type: ignore
