"""What the coordinator knows of one relay: read from its events, which may say anything."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from clusterctl.copy.report import Gap, NodeStage
from clusterctl.domain.errors import ClusterctlError

# The relay that has the data. No host can be called this.
SOURCE = "the source"
WINDOW_S = 2.0
MOST_MOVES = 20
MOST_WARNINGS = 100
MOST_NAMES = 20
LONGEST_TEXT = 2000


@dataclass
class Member:
    """One relay. Times are the coordinator's; `blocks` counts what it has, `bytes` what it got.

    A `leaf` is in the way of others; a `late` one still compares while others could go on, a
    `young` one joined at the tail and has not caught up yet.
    `slow_under` are the upstreams it was slow with, `avoid` those it lost, with the reason.
    """

    name: str
    stage: NodeStage = NodeStage.CONNECTING
    alive: bool = True
    error: ClusterctlError | None = None
    address: str = ""
    port: int = 0
    client_address: str = ""
    heard_at: float = 0.0
    awaited: bool = False
    beats: bool = False
    blocks: int = 0
    bytes: int = 0
    behind: int | None = None
    gap: Gap | None = None
    done: Mapping[str, Any] | None = None
    waits: Mapping[str, float] = field(default_factory=dict)
    cpu: float = 0.0
    wall: float = 0.0
    joined: bool = False
    joined_at: float = 0.0
    ended_at: float = 0.0
    leaf: bool = False
    upstream: str = ""
    linked_at: float = 0.0
    shared_at: float = 0.0
    grew_at: float = 0.0
    late: bool = False
    young: bool = False
    may_return: bool = True
    demoted_at: float = 0.0
    slow_under: list[str] = field(default_factory=list)
    avoid: dict[str, str] = field(default_factory=dict)
    source_losses: int = 0
    moves: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    _window: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=256))

    @property
    def in_path(self) -> bool:
        """Whether others may pull from it."""
        return self.alive and self.joined and not self.leaf and not self.late

    def progressed(self, now: float, event: Mapping[str, Any], most_blocks: int) -> None:
        """Take a `progress` event."""
        blocks = min(number(event, "blocks"), most_blocks)
        received = max(self.bytes, number(event, "bytes"))
        if received > self.bytes or blocks > self.blocks:
            self.grew_at = now
        self.blocks, self.bytes = blocks, received
        self.behind = number(event, "behind") if "behind" in event else None
        self._window.append((now, received))
        self.cpu, self.wall = seconds(event, "cpu"), seconds(event, "wall")
        waits = event.get("waits")
        if isinstance(waits, Mapping):
            kinds = ("receive", "write", "read", "send", "sync")
            self.waits = {kind: seconds(waits, kind) for kind in kinds if kind in waits}

    def rate(self, now: float) -> float:
        """Bytes a second over the last WINDOW_S."""
        while len(self._window) > 2 and self._window[1][0] <= now - WINDOW_S:
            self._window.popleft()
        if not self._window:
            return 0.0
        began, first = self._window[0]
        return (self._window[-1][1] - first) / max(now - began, WINDOW_S / 4)

    def moved(self, what: str) -> None:
        """Remember a relink for the report."""
        if len(self.moves) < MOST_MOVES:
            self.moves.append(what)

    def warn(self, warnings: object) -> None:
        """Keep the warnings of an event."""
        for warning in warnings if isinstance(warnings, list) else ():
            if isinstance(warning, str) and len(self.warnings) < MOST_WARNINGS:
                self.warnings.append(shortened(warning))


def number(event: Mapping[str, Any], key: str) -> int:
    """A count that a node sent; 0 for anything else."""
    value = event.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return 0
    return max(0, int(value))


def seconds(event: Mapping[str, Any], key: str) -> float:
    """A duration that a node sent; 0 for anything else."""
    value = event.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return 0.0
    return max(0.0, float(value))


def text(event: Mapping[str, Any], key: str) -> str:
    """A text that a node sent, shortened and fit for a terminal; empty for anything else."""
    value = event.get(key)
    return shortened(value) if isinstance(value, str) else ""


def shortened(value: str) -> str:
    """At most LONGEST_TEXT characters, none of them controlling a terminal."""
    return "".join(char if char.isprintable() else "?" for char in value[:LONGEST_TEXT])


def read_gap(event: Mapping[str, Any]) -> Gap:
    """The `gap` event of a target."""
    return Gap(
        files=number(event, "files"),
        bytes=number(event, "bytes"),
        blocks=number(event, "blocks"),
        delete=number(event, "delete"),
        free_bytes=number(event, "free_bytes"),
        delete_names=_names(event, "delete_names"),
        writable=event.get("writable") is not False,
        missing=number(event, "missing"),
        missing_names=_names(event, "missing_names"),
    )


def _names(event: Mapping[str, Any], key: str) -> tuple[str, ...]:
    names = event.get(key)
    given = names[:MOST_NAMES] if isinstance(names, list) else []
    return tuple(shortened(name) for name in given if isinstance(name, str))
