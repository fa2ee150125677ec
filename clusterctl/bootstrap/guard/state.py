"""What a node's guard says of itself, for the launcher's status. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

STALE_S = 60.0
# The first boot of a machine begins this late after its launch at most.
FIRST_BOOT_WITHIN_S = 1800.0
# What a boot may have cost that its guard has not counted: firmware and memory tests, which large
# machines need minutes for, and the last minute, which may not have been kept.
UNCOUNTED_S = 600.0


@dataclass(frozen=True)
class GuardState:
    """`left_s` until the end; `idle_for_s` of `idle_s` seconds without anything going on, which
    the head node alone counts, and `busy` what keeps it from that. `spot` is EC2's notice:
    terminate, stop, hibernate or rebalance. `alive`: it has written this within a minute."""

    alive: bool
    cluster: str
    index: int | None
    left_s: float | None
    used_s: float
    idle_s: float | None
    idle_for_s: float | None
    busy: tuple[str, ...]
    spot: str | None
    ending: str | None
    problem: str | None


def guard_state_command() -> str:
    """One line for a POSIX shell; any login user may run it."""
    return 'echo "now $(date +%s)"; cat /run/clusterctl/guard-state.json 2>/dev/null || :'


def parse_guard_state(stdout: str) -> GuardState | None:
    """The state that `guard_state_command` printed; None where there is no guard."""
    now, found = 0.0, None
    for line in stdout.splitlines():
        word, _, rest = line.partition(" ")
        if word == "now" and rest.isdigit():
            now = float(rest)
        elif line.startswith("{"):
            found = _object(line)
    if found is None:
        return None
    spot = found.get("spot")
    return GuardState(
        alive=abs(now - (_number(found.get("at")) or 0.0)) < STALE_S,
        cluster=str(found.get("cluster", "")),
        index=found["index"] if isinstance(found.get("index"), int) else None,
        left_s=_number(found.get("left_s")),
        used_s=_number(found.get("used_s")) or 0.0,
        idle_s=_number(found.get("idle_s")),
        idle_for_s=_number(found.get("idle_for_s")),
        busy=tuple(map(str, found.get("busy") or ())),
        spot=str(spot.get("action")) if isinstance(spot, dict) else None,
        ending=_text(found.get("ending")),
        problem=_text(found.get("problem")),
    )


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


def _text(value: object) -> str | None:
    return str(value) if value else None
