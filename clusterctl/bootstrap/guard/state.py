"""What a node's guard says of itself, for the launcher's status. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

STALE_S = 60.0


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
