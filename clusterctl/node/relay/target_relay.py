"""The relay that gets the data, and passes it on."""

from __future__ import annotations

import threading
import time
from typing import Any

from clusterctl.node.relay.base import Relay
from clusterctl.node.relay.pull import AGAIN_S, Caller, Upstream, fetch_manifest
from clusterctl.node.relay.target import Target
from clusterctl.node.relay.wire import PeerError

CHECK_EVERY_S = 0.25


class TargetRelay(Relay):
    """Gets the data, and passes it on."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.target = Target(config, self.waits)
        self.caller = Caller(self.secret, self.caller_tls)
        self._lock = threading.Lock()
        self._orders = 0
        self._upstream: Upstream | None = None
        self._blamed: set[int] = set()
        self._begin: dict[str, Any] = {}
        self._has_manifest = False
        self._prepared = threading.Event()

    def on_begin(self, order: dict[str, Any]) -> None:
        self._begin = order

    def on_upstream(self, order: dict[str, Any]) -> None:
        """Pull from there from now on."""
        with self._lock:
            self._orders += 1
            named = (order["name"], order["address"], order["port"]) if order.get("name") else None
            upstream = Upstream(*named, self._orders) if named else None
            self._upstream = upstream
            self.caller.turn_to(upstream)
        if upstream and self._prepared.is_set():
            self._follow(upstream)
        elif upstream:
            self.guarded(self._get_manifest, self.caller, upstream)

    def _get_manifest(self, caller: Caller, upstream: Upstream) -> None:
        while caller.current == upstream and not self._has_manifest:
            try:
                blob = fetch_manifest(caller, upstream, self._begin["digest"])
            except PeerError as error:
                self._lost(upstream, error)
                time.sleep(AGAIN_S)
                continue
            with self._lock:
                mine, self._has_manifest = not self._has_manifest, True
            if mine:
                self._prepare(blob)

    def _prepare(self, blob: bytes) -> None:
        self.server.have_manifest(blob)
        self.emit("gap", **self.target.prepare(blob, self._begin))
        if self.config.get("dry_run"):
            return
        store = self.target.store
        self._puller = self.target.puller(
            self.caller, self._begin["streams"], self._lost, self.fail
        )
        self.server.have_content(store.ledger, store)
        with self._lock:
            self._prepared.set()
            upstream = self._upstream
        if upstream:
            self._follow(upstream)
        while not self.target.wanted.wait(CHECK_EVERY_S):
            store.check_waiting()
        self.emit("done", **self.target.finish())

    def _follow(self, upstream: Upstream) -> None:
        if self.target.wanted.left:
            self._puller.follow(upstream)

    def _lost(self, upstream: Upstream, error: PeerError) -> None:
        with self._lock:
            first = upstream.order not in self._blamed
            self._blamed.add(upstream.order)
        if first:
            self.emit("lost", upstream=upstream.name, why=str(error), kind=error.kind)

    def figures(self) -> dict[str, Any]:
        if not self.target.compared:
            return super().figures()
        if self.target.problem:
            raise self.target.problem
        store = self.target.store
        return {
            "blocks": store.ledger.count,
            "bytes": store.received,
            "written": self.target.written,
            "behind": self.target.wanted.behind(self._upstream),
        }

    def heard(self) -> float:
        return self.caller.heard

    def leave(self) -> bool:
        return self.target.leave()
