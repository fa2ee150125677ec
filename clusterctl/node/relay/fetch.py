"""Blocks that come from URLs: into a node's store, or straight on to the next relay."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from clusterctl.node.relay.layout import Layout
from clusterctl.node.relay.store import Store
from clusterctl.node.relay.waits import Waits
from clusterctl.node.relay.wanted import Wanted
from clusterctl.node.relay.wire import Link, send_whole


class UrlContent:
    """A source relay's blocks, read from the URLs as they are asked for."""

    def __init__(self, origin: Any, waits: Waits) -> None:
        self._origin, self._waits = origin, waits

    def send_block(self, link: Link, block: int) -> None:
        """Raises PeerError."""
        began = time.monotonic()
        data, bad = self._origin.read(block)
        self._waits.add("read", time.monotonic() - began)
        send_whole(link, data, bad)


class Fetcher:
    """Gets blocks from the URLs into the store, many at once."""

    def __init__(
        self, origin: Any, store: Store, layout: Layout, wanted: Wanted, waits: Waits
    ) -> None:
        self._origin, self._store, self._layout = origin, store, layout
        self._wanted, self._waits = wanted, waits

    def start(
        self,
        ranges: Sequence[tuple[int, int]],
        connections: int,
        broken: Callable[[BaseException], None],
    ) -> None:
        """Blocks [begin, end) of each range that the node lacks. Returns at once."""
        who = object()
        self._wanted.begin(who)
        for begin, end in ranges:
            self._wanted.offer(who, range(begin, end))
        for _ in range(connections):
            threading.Thread(target=self._work, args=(who, broken), daemon=True).start()

    def _work(self, who: object, broken: Callable[[BaseException], None]) -> None:
        try:
            while taken := self._wanted.take(who):
                [block] = taken
                began = time.monotonic()
                data, bad = self._origin.read(block)
                self._waits.add("receive", time.monotonic() - began)
                extents = self._layout.extents(block)
                self._store.accept(block, extents, memoryview(data), zlib.crc32(data), bad)
        except Exception as error:  # noqa: BLE001 - no way to the URLs, a full disk, or a bug
            broken(error)
