"""The relay on a node that gets the data: compares, pulls, passes on, publishes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any

from clusterctl.node.relay.base import Relay
from clusterctl.node.relay.destination import Destination
from clusterctl.node.relay.layout import Layout
from clusterctl.node.relay.messages import Begin, Done, Lost, Order, Progress, PullFrom
from clusterctl.node.relay.parts import Incoming
from clusterctl.node.relay.pull import AGAIN_S, Caller, Puller, Upstream, fetch_manifest
from clusterctl.node.relay.store import Store
from clusterctl.node.relay.wire import PeerError

# Seconds in which every connection to the upstream has failed, after which that is reported, and
# seconds between two reports.
CUT_FOR_S, REPORT_AGAIN_S = 1.0, 1.0
# Seconds between two checks for blocks that were not confirmed.
CHECK_EVERY_S = 0.25
# After so many seconds without confirmation a block is checked here: usually, and if all blocks
# have been received.
CONFIRMED_WITHIN_S, LAST_CONFIRMED_WITHIN_S = 2.0, 0.5


class PulledDestination(Destination):
    """A destination whose bytes come from another relay in blocks, and go on to the next one."""

    def open_content(self, begin: Begin) -> None:
        self.layout = Layout(self.entries, begin.block_bytes)
        self.store = Store(
            self.entries, self.layout, self.plan.missing, self.publisher, self._waits, begin.streams
        )
        self.wanted = self.store.wanted

    def bytes_missing(self) -> int:
        return sum(map(self.layout.length, self.store.ledger.missing()))

    def publish_whole(self) -> None:
        self.store.publish_whole(self.plan.missing)

    def bad(self) -> Iterable[int]:
        return self.store.bad

    def finish(self) -> Done:
        return super().finish()._replace(bytes=self.store.received)


class TargetRelay(Relay):
    """The relay of a node that gets the data and passes it on."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.target = PulledDestination(config, self.waits)
        self.caller = Caller(self.secret, self.caller_tls)
        self._lock = threading.Lock()
        self._orders = 0
        self._upstream: Upstream | None = None
        self._reported: dict[tuple[int, str], float] = {}
        self._begin = Begin()
        self._manifest = Incoming("", self.server.manifest)
        self._prepared = threading.Event()

    def handle(self, order: Order) -> None:
        if isinstance(order, Begin):
            self._begin = order
            self._manifest = Incoming(order.digest, self.server.manifest)
        elif isinstance(order, PullFrom):
            self._pull_from(order)

    def _pull_from(self, order: PullFrom) -> None:
        with self._lock:
            self._orders += 1
            upstream = Upstream(*order, self._orders) if order.name else None
            self._upstream = upstream
            self.caller.turn_to(upstream)
        if upstream and self._prepared.is_set():
            self._follow(upstream)
        elif upstream:
            self.guarded(self._get_manifest, self.caller, upstream)

    def _get_manifest(self, caller: Caller, upstream: Upstream) -> None:
        # The thread of a previous upstream may still get parts at the same time.
        while caller.current == upstream and not self._manifest.is_whole:
            try:
                has_last = fetch_manifest(caller, upstream, self._manifest)
            except PeerError as error:
                self._lost(upstream, error)
                time.sleep(AGAIN_S)
                continue
            if has_last:
                self._prepare()

    def _prepare(self) -> None:
        self.emit(self.target.prepare(self._manifest.entries, self._begin))
        if self.config.get("dry_run"):
            return
        store = self.target.store
        self._puller = Puller(self.caller, store, self._begin.streams, self._lost, self.fail)
        self.server.have_content(store.ledger, store, self._begin.streams)
        with self._lock:
            self._prepared.set()
            upstream = self._upstream
        if upstream:
            self._follow(upstream)
        while not store.wanted.wait(CHECK_EVERY_S):
            store.check_waiting(
                LAST_CONFIRMED_WITHIN_S if store.wanted.all_arrived else CONFIRMED_WITHIN_S
            )
        self.emit(self.target.finish())

    def _follow(self, upstream: Upstream) -> None:
        if self.target.wanted.left:
            self._puller.follow(upstream)

    def _lost(self, upstream: Upstream, error: PeerError) -> None:
        """Report a damaged block, or that no connection to the upstream works; nothing else.

        The report is repeated for as long as it is so. One lost connection of several means nothing
        about the upstream: it is opened again.
        """
        cut_for_s = self.caller.failing_for_s()
        is_corrupt = error.kind == "corrupt"
        if not is_corrupt and cut_for_s < CUT_FOR_S:
            return
        now, about = time.monotonic(), (upstream.order, "corrupt" if is_corrupt else "cut")
        with self._lock:
            if now - self._reported.get(about, float("-inf")) < REPORT_AGAIN_S:
                return
            self._reported[about] = now
        worked = self.caller.worked
        self.emit(Lost(upstream.name, str(error), error.kind, round(cut_for_s, 1), worked))

    def figures(self) -> Progress:
        if not self.target.compared:
            return super().figures()
        if self.target.publisher.error:
            raise self.target.publisher.error
        store = self.target.store
        behind = self.target.wanted.behind(self._upstream)
        return Progress(store.ledger.count, store.received, behind)

    def leave(self) -> bool:
        return self.target.leave()
