"""The guard's files on a node, and its clocks: the time, and how long this machine has run."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterctl.node.procfs import boot_id, boot_s

# The log is rotated at this size.
LOG_BYTES = 128 * 1024
# Larger settings are refused.
SETTINGS_BYTES = 256 * 1024


class GuardFiles:
    """The paths of the guard's files, below `root`: tests use a folder of their own. Files that
    cannot be written are left out, so a full disk does not stop the guard."""

    def __init__(self, root: str = "/") -> None:
        self.root = Path(root)
        self.kept = self.root / "var/lib/clusterctl"
        self.settings = self.kept / "guard.json"
        self.good = self.kept / "guard-good.json"
        self.used = self.kept / "guard-used.json"
        self.log_file = self.root / "var/log/clusterctl-guard.log"
        self.state = self.root / "run/clusterctl/guard-state.json"
        self.polled = self.root / "run/clusterctl/guard-asked"
        self.spot = self.root / "run/clusterctl/spot-interruption"
        self.console = self.root / "dev/console"

    def log(self, text: str) -> None:
        """Append a line to the log, and rotate the log when it is too long."""
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
    """Return a file's text. Raises OSError; ValueError if it is too large or no text."""
    with path.open("rb") as file:
        content = file.read(SETTINGS_BYTES + 1)
    if len(content) > SETTINGS_BYTES:
        raise ValueError(f"{path} is too large")
    return content.decode()


def parsed(text: str) -> Any:
    """Return the value of a JSON text; None for what is none.

    The guard has no room for node/record.py: it takes 1.5 of the 2.5 KB that EC2's limit leaves for
    the user's own user data.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def object_in(text: str) -> dict[str, Any]:
    """Return the JSON object in a text. Raises ValueError."""
    found = parsed(text)
    if not isinstance(found, dict):
        raise ValueError(f"not a JSON object: {text.strip()[:60]!r}")
    return found


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; empty if there is none."""
    try:
        return object_in(read_text(path))
    except (OSError, ValueError):
        return {}


def put(path: Path, text: str, in_place: bool = False) -> bool:
    """Write a file in one step. Return False if that is not possible.

    With `in_place`, a file that exists is overwritten if the disk has no room for a second one. Its
    texts should then be of one length, so that overwriting takes no room.
    """
    # An installation that runs at the same time writes to `.new`.
    new = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_text(text, encoding="utf-8")
        new.chmod(0o644)
        new.replace(path)
        return True
    except OSError:
        if not in_place:
            return False
    try:
        with path.open("r+", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        return False
    return True


# How often the clock is saved: after a crash this much may be missing.
KEEP_EVERY_S = 60.0
# The length of the record, which is longer than its numbers can be.
KEPT_BYTES = 256
# A change of the wall clock against the boot clock by more than this is a jump.
JUMP_S = 5.0
# For how long the wall clock is not trusted after a jump.
JUMP_HOLD_S = 60.0


@dataclass(frozen=True)
class Moment:
    """A reading of the clocks. `wall` is Unix time. `boot_s` is the seconds since the boot,
    suspends included; `used_s` the seconds that the machine has run in this and all earlier boots.

    `trusted` is False shortly after the wall clock has jumped.
    """

    wall: float
    boot_s: float
    used_s: float
    trusted: bool = True


class BootClock:
    """Reads the clocks, and keeps the running time of earlier boots in a file.

    The launcher reads that file, too, as EC2 does not report when a machine switched itself off.
    `since` is the Unix time at which the first of the `boots` that are counted began.
    """

    def __init__(self, place: GuardFiles) -> None:
        self._place = place
        self._boot_id = boot_id()
        kept = read_object(place.used)
        if not kept and place.used.exists():
            place.log(f"{place.used} is damaged: the time of earlier boots is not counted")
        before, last = (seconds(kept.get(key)) for key in ("before_s", "boot_s"))
        is_this_boot = kept.get("boot_id") == self._boot_id
        self._before_s = before if is_this_boot else before + last
        self._boots = int(seconds(kept.get("boots"))) + (not is_this_boot)
        began = time.time() - boot_s()
        self._since = seconds(kept.get("since", began))
        self._kept_at = -KEEP_EVERY_S
        self._jumps = Jumps()

    def used_s(self) -> float:
        """Return the seconds that the machine has run in this and all earlier boots."""
        return self._before_s + boot_s()

    def read(self) -> Moment:
        """Read the clocks, and save the running time once a minute."""
        now_s = boot_s()
        if now_s - self._kept_at >= KEEP_EVERY_S:
            self._kept_at = now_s
            kept = {
                "boot_id": self._boot_id,
                "before_s": self._before_s,
                "boot_s": now_s,
                "since": self._since,
                "boots": self._boots,
            }
            # The running time has to survive a reboot on a full disk, too.
            put(self._place.used, json.dumps(kept).ljust(KEPT_BYTES) + "\n", in_place=True)
        wall = time.time()
        return Moment(wall, now_s, self._before_s + now_s, self._jumps.trusted(wall, now_s))


class Jumps:
    """Detects jumps of the wall clock. After a jump the clock is not trusted for a minute, in which
    it may be set right. If it jumps again and again, it is trusted every other minute, so that it
    cannot disable the guard.
    """

    def __init__(self) -> None:
        self._offset: float | None = None
        self._held_at = float("-inf")

    def trusted(self, wall: float, boot_s: float) -> bool:
        """Return whether the wall clock can be trusted at this reading."""
        offset = wall - boot_s
        jumped = self._offset is not None and abs(offset - self._offset) > JUMP_S
        self._offset = offset
        if jumped and boot_s - self._held_at > 2 * JUMP_HOLD_S:
            self._held_at = boot_s
        return boot_s - self._held_at > JUMP_HOLD_S


def seconds(value: object) -> float:
    """Return a number of a file that may be broken; 0 for what is no time."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < 1e12 else 0.0  # type: ignore
