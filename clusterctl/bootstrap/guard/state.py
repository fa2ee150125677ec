"""What a node's guard has counted, for the launcher. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

# The first boot of a machine begins this late after its launch at most.
FIRST_BOOT_WITHIN_S = 1800.0
# What a boot may have cost that its guard has not counted: firmware and memory tests, which large
# machines need minutes for, and the last minute, which may not have been kept.
UNCOUNTED_S = 600.0


def used_command() -> str:
    """For a POSIX shell; any login user may run it."""
    files = "/var/lib/clusterctl/guard-used.json /proc/sys/kernel/random/boot_id /proc/uptime"
    return f"for file in {files}; do cat $file 2>/dev/null; echo; done"


def parse_used_h(stdout: str, made_at: float) -> float | None:
    """For how many hours a machine that was made then (Unix time) has run at most, in all boots.

    `stdout` is what `used_command` printed. None where no guard has counted from the first boot on.
    """
    lines = [line for line in stdout.splitlines() if line]
    kept = _object(lines[0]) if len(lines) == 3 else None
    if kept is None:
        return None
    before, last, since, boots = (
        _number(kept.get(key)) or 0.0 for key in ("before_s", "boot_s", "since", "boots")
    )
    uptime = lines[2].partition(" ")[0]
    if abs(since - made_at) > FIRST_BOOT_WITHIN_S or not re.fullmatch(r"\d+(\.\d+)?", uptime):
        return None
    if kept.get("boot_id") != lines[1].strip():
        before, boots = before + last, boots + 1
    return (before + float(uptime) + boots * UNCOUNTED_S) / 3600


def _object(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None
