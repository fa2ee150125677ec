"""Whole copies without SSH: real relays as processes on this machine, and the real Coordinator."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from clusterctl.copy.coordinator import Coordinator
from clusterctl.copy.session import Ended, Inbox, LocalRelay, LoggedIn
from clusterctl.copy.topology import SOURCE, CopyTimeouts, Peer
from clusterctl.node.packer import Program, program_of
from clusterctl.node.relay.messages import Lost, Ping, PullFrom
from tests.copy.simulated import Plan

SECRET = "5e" * 32
RELAY = program_of("clusterctl.node.relay.relay")


def changed(lines: str) -> Program:
    """Return the relay's program with these lines run before it begins."""
    head, modules, rest = RELAY.text.rpartition("sys.modules[")
    program = Program(RELAY.names)
    program.__dict__["text"] = f"{head}\n{lines}\n{modules}{rest}"
    return program


class Copy:
    """A copy of `source` to several folders; the keys of `targets` are the nodes' names.

    `source_lines` and `target_lines` change the relays' programs. `through` maps a node to what
    makes another address of the one that it is ordered to pull from.
    """

    def __init__(
        self,
        source: Path,
        targets: dict[str, Path],
        *,
        block_bytes: int = 1 << 20,
        streams: int = 4,
        timeouts: CopyTimeouts | None = None,
        source_lines: str = "",
        target_lines: str = "",
        through: dict[str, Callable[[PullFrom], PullFrom]] | None = None,
        **config: Any,
    ) -> None:
        plan = Plan(tuple(targets), block_bytes, streams)
        self.coordinator = Coordinator([*targets], lambda *_: plan, timeouts=timeouts)
        self.lost: list[tuple[str, Lost]] = []
        self.orders: list[tuple[str, str]] = []
        self._inbox, self._through, self._pinged_at = Inbox(), through or {}, 0.0
        common = {"secret": SECRET, "bind": "127.0.0.1", **config}
        self.relays = {
            SOURCE: LocalRelay(
                SOURCE,
                self._inbox,
                changed(source_lines),
                {**common, "role": "source", "sources": [f"{source}/"], "base": "/"},
            )
        }
        for name, folder in targets.items():
            mine = {**common, "role": "target", "destination": str(folder)}
            self.relays[name] = LocalRelay(name, self._inbox, changed(target_lines), mine)
        for name in self.relays:
            self.coordinator.started(time.monotonic(), name)

    def run(self, each_turn: Callable[[Copy], None] = lambda copy: None) -> Sequence[Peer]:
        """Run to the end, and return the targets' peers."""
        try:
            while not self.coordinator.stopped:
                self._turn()
                each_turn(self)
        finally:
            for relay in self.relays.values():
                relay.end()
        return self.coordinator.targets

    def _turn(self) -> None:
        for node, news in self._inbox.take(0.1):
            if isinstance(news, Ended):
                self.coordinator.ended(time.monotonic(), node, news.error)
            elif not isinstance(news, LoggedIn):
                if isinstance(news, Lost):
                    self.lost.append((node, news))
                self.coordinator.handle_event(time.monotonic(), node, news)
        for node, order in self.coordinator.tick(time.monotonic()):
            given = order
            if isinstance(order, PullFrom):
                self.orders.append((node, order.name))
                if order.name and node in self._through:
                    given = self._through[node](order)
            self.relays[node].give(given)
        if time.monotonic() - self._pinged_at > 2:
            self._pinged_at = time.monotonic()
            for relay in self.relays.values():
                relay.give(Ping())
