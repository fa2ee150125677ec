"""The guard's files on a node, what time it is, and for how long this machine has run."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LOG_BYTES = 128 * 1024
SETTINGS_BYTES = 256 * 1024


class GuardFiles:
    """Where the files are; tests have a root of their own. What cannot be written is left out:
    a full disk ends no guard."""

    def __init__(self, root: str = "/") -> None:
        self.root = Path(root)
        self.kept = self.root / "var/lib/clusterctl"
        self.settings = self.kept / "guard.json"
        self.good = self.kept / "guard-good.json"
        self.used = self.kept / "guard-used.json"
        self.log_file = self.root / "var/log/clusterctl-guard.log"
        self.state = self.root / "run/clusterctl/guard-state.json"
        self.spot = self.root / "run/clusterctl/spot-interruption"
        self.console = self.root / "dev/console"

    def log(self, text: str) -> None:
        """One line, in a log that does not grow without end."""
        line = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}\n"
        try:
            self.log_file.parent.mkdir(parents=True, exist_ok=True)
            if self.log_file.exists() and self.log_file.stat().st_size > LOG_BYTES:
                self.log_file.replace(self.log_file.with_suffix(".log.1"))
            with self.log_file.open("a", encoding="utf-8", errors="replace") as log:
                log.write(line)
        except OSError:
            pass


def read_text(path: Path) -> str:
    """The file's text. Raises OSError, or ValueError where it is none."""
    with path.open("rb") as file:
        content = file.read(SETTINGS_BYTES + 1)
    if len(content) > SETTINGS_BYTES:
        raise ValueError(f"{path} is too large")
    return content.decode()


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty where there is none."""
    try:
        found = json.loads(read_text(path))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def put(path: Path, text: str) -> bool:
    """The whole file or nothing; False where it could not be written."""
    new = path.with_name(path.name + ".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(text, encoding="utf-8")
        new.chmod(0o644)
        new.replace(path)
    except OSError:
        return False
    return True


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
