"""What a copy was limited by, from where its relays' threads spent their time. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

NOTHING, LINK, CPU = "nothing", "link", "CPU"
SOURCE_DISK, TARGET_DISK = "source disk", "target disk"
BUSY = 0.5
# Python's threads share one interpreter: above this a relay has no more to give.
CPU_FULL = 0.85


@dataclass(frozen=True)
class Use:
    """One relay: seconds of all its threads by kind, of its CPU, and of the clock."""

    waits: Mapping[str, float]
    cpu: float
    wall: float
    threads: int = 1
    moved_bytes: int = 0

    def share(self, *kinds: str) -> float:
        """The part of its threads' time that went into these."""
        spent = sum(self.waits.get(kind, 0.0) for kind in kinds)
        return spent / (self.wall * max(1, self.threads)) if self.wall > 0 else 0.0


def limited_by(source: Use, nodes: Sequence[Use]) -> str:
    """One of the five words of TransferReport."""
    moved = [node for node in nodes if node.moved_bytes]
    if not moved:
        return NOTHING
    if max(_cpu(use) for use in (source, *moved)) >= CPU_FULL:
        return CPU
    disk = max(node.share("write", "sync") for node in moved)
    waited = min(node.share("receive") for node in moved)
    if disk >= BUSY and disk > waited:
        return TARGET_DISK
    if source.share("read") >= BUSY and source.share("read") > source.share("send"):
        return SOURCE_DISK
    return LINK


def _cpu(use: Use) -> float:
    return use.cpu / use.wall if use.wall > 0 else 0.0
