"""EC2's notices that machines are taken back, as the guard has written them (spot.py)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from clusterctl.node.guard.clock import GuardFiles
from clusterctl.node.record import RecordError, from_json
from clusterctl.node.untrusted import text_in


@dataclass(frozen=True)
class InterruptionNotice:
    """EC2's notice that it takes a node's machine back: it is to `action` it (terminate, stop,
    hibernate) at `time`, in UTC, or only likely to (rebalance)."""

    host: str
    action: str
    time: str


def notices() -> tuple[InterruptionNotice, ...]:
    """Return the notices that the guard has written since the boot, on the head node those of all
    nodes."""
    found = []
    for line in text_in(GuardFiles().spot).splitlines():
        with suppress(RecordError, KeyError):
            notice = from_json(dict, line)
            values = (str(notice[name]) for name in ("node", "action", "time"))
            found.append(InterruptionNotice(*values))
    return tuple(found)
