"""The pulling side of a relay: requests blocks from its upstream over several connections."""

from __future__ import annotations

import random
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from clusterctl.node.relay.manifest import MOST_BYTES
from clusterctl.node.relay.parts import Incoming
from clusterctl.node.relay.store import Store
from clusterctl.node.relay.wire import (
    BLOCK,
    CONFIRM,
    LENGTH,
    MANIFEST,
    MISSING,
    RANGE,
    REQUEST,
    WATCH,
    Link,
    PeerError,
    aligned_buffer,
    dial,
)

# Seconds between two attempts over one connection: at first, and at most.
AGAIN_S, SELDOM_S = 0.2, 1.0
# Connections that are being opened at once. A server lets only so many in that have not proved yet
# who they are (serve.MOST_FROM_ONE).
DIALS_AT_ONCE = 8
# Bytes of blocks that each connection has requested and not received yet, so that it is not idle
# while a request travels. A request also waits behind the data that this node sends on.
AHEAD_BYTES = 1 << 20


class Upstream(NamedTuple):
    """The relay to pull from. `order` distinguishes two orders for the same relay."""

    name: str
    address: str
    port: int
    order: int


# A connection that has been open for so long has worked, and so has one that has waited for this
# time for an answer: a slow disk may need long.
STEADY_S, WAITS_S = 5.0, 1.0


class Caller:
    """Connections to the upstream, closed when the upstream changes. Thread-safe.

    `worked` is set once a connection to the present upstream has been opened.
    """

    def __init__(self, secret: bytes, tls: ssl.SSLContext | None) -> None:
        self._secret, self._tls = secret, tls
        self._lock = threading.Lock()
        self.current: Upstream | None = None
        self._restart(None)

    def _restart(self, upstream: Upstream | None) -> None:
        self.current, self.worked = upstream, False
        # When each was opened; since when each waits for an answer, if it does.
        self._links: dict[Link, float] = {}
        self._waiting: dict[Link, float] = {}
        self._answered_at = float("-inf")
        self._failing_since: float | None = None
        # Threads that still dial the previous upstream must not hold up those of this one.
        self._dialing = threading.BoundedSemaphore(DIALS_AT_ONCE)

    def turn_to(self, upstream: Upstream | None) -> None:
        """Change the upstream. Threads that wait for the previous one get a PeerError."""
        with self._lock:
            links = self._links
            self._restart(upstream)
        for link in links:
            link.wake()

    def dial(self, upstream: Upstream) -> Link:
        """Connect to an upstream. Raises PeerError, also if it is not the current one any more."""
        with self._dialing:
            if self.current != upstream:
                raise PeerError("the next request goes to another peer")
            link = dial(upstream.address, upstream.port, self._secret, self._tls)
        with self._lock:
            if self.current == upstream:
                self._links[link] = time.monotonic()
                self.worked = True
                return link
        link.close()
        raise PeerError("the next request goes to another peer")

    def waits(self, link: Link) -> None:
        """Record that an answer is to come over a connection."""
        with self._lock:
            self._waiting.setdefault(link, time.monotonic())

    def answered(self, link: Link) -> None:
        """Record that an answer came over a connection."""
        with self._lock:
            self._waiting.pop(link, None)
            self._answered_at, self._failing_since = time.monotonic(), None

    def drop(self, link: Link | None) -> None:
        """Close a connection, if there is one."""
        if link:
            with self._lock:
                self._waiting.pop(link, None)
                opened = self._links.pop(link, None)
                if opened is not None and time.monotonic() - opened >= STEADY_S:
                    self._failing_since = None
            link.close()

    def failing_for_s(self) -> float:
        """Return for how many seconds nothing but failures has come from the upstream.

        To be called at each failure. 0 while answers come over other connections, or are waited
        for.
        """
        now = time.monotonic()
        with self._lock:
            waits = any(now - since >= WAITS_S for since in self._waiting.values())
            if waits or now - self._answered_at < WAITS_S:
                self._failing_since = None
                return 0.0
            if self._failing_since is None:
                self._failing_since = now
            return now - self._failing_since


def fetch_manifest(caller: Caller, upstream: Upstream, manifest: Incoming) -> bool:
    """Get what is lacking of a manifest from the upstream. Return whether the last part came here.

    Waits while the upstream does not have it yet. Raises PeerError; what has come stays.
    """
    number, has_last = manifest.next, False
    link = caller.dial(upstream)
    try:
        link.send(REQUEST.pack(MANIFEST, number))
        while not manifest.is_whole:
            caller.waits(link)
            (length,) = LENGTH.unpack(link.read(LENGTH.size))
            caller.answered(link)
            if length == MISSING:
                continue
            if length > MOST_BYTES:
                raise PeerError("a part of its manifest is too large", "corrupt")
            link.carries_data = True
            blob = link.read(length)
            link.carries_data = False
            has_last = manifest.take(number, blob)
            number += 1
    finally:
        caller.drop(link)
    return has_last


class Puller:
    """Pulls what the node lacks from one upstream after another.

    A connection that fails is opened again, for as long as the upstream stays. `lost(upstream,
    error)` is called each time, and `broken(error)` if this node cannot store what comes.
    """

    def __init__(
        self,
        caller: Caller,
        store: Store,
        streams: int,
        lost: Callable[[Upstream, PeerError], None],
        broken: Callable[[BaseException], None],
    ) -> None:
        self._caller, self._store, self._streams = caller, store, streams
        self._layout, self._wanted = store.layout, store.wanted
        self._ahead = max(2, AHEAD_BYTES // store.layout.block_bytes)
        self._lost, self._broken = lost, broken

    def follow(self, upstream: Upstream) -> None:
        """Start to pull from `upstream`, until `caller.current` is another one."""
        self._wanted.begin(upstream)
        for work in [self._watch] + [self._work] * self._streams:
            threading.Thread(target=self._again, args=(work, upstream), daemon=True).start()

    def _again(self, work: Callable[[Upstream], None], upstream: Upstream) -> None:
        """Repeat `work` until nothing is missing or the upstream changes."""
        again_s = AGAIN_S
        try:
            while self._caller.current == upstream and self._wanted.left:
                began = time.monotonic()
                try:
                    work(upstream)
                except PeerError as error:
                    if self._caller.current == upstream and self._wanted.left:
                        self._lost(upstream, error)
                        lasted = time.monotonic() - began > SELDOM_S
                        again_s = AGAIN_S if lasted else min(2 * again_s, SELDOM_S)
                        # Not all at the same time.
                        time.sleep(again_s * random.uniform(0.5, 1.0))
        except Exception as error:  # noqa: BLE001 - a full disk or a bug: this node cannot go on
            self._broken(error)
        if self._caller.current != upstream:
            self._wanted.end(upstream)

    def _watch(self, upstream: Upstream) -> None:
        link = None
        try:
            link = self._caller.dial(upstream)
            link.send(REQUEST.pack(WATCH, 0))
            while self._wanted.left:
                begins, ends = RANGE.unpack(link.read(RANGE.size))
                if ends > self._layout.blocks:
                    raise PeerError("it has blocks that there are not", "corrupt")
                self._wanted.offer(upstream, range(begins, ends))
        finally:
            self._caller.drop(link)

    def _work(self, upstream: Upstream) -> None:
        buffer = aligned_buffer(self._layout.block_bytes)
        link = None
        pending: deque[int] = deque()
        try:
            link = self._caller.dial(upstream)
            link.carries_data = True
            while self._ask(link, upstream, pending):
                self._caller.waits(link)
                self._get(link, pending[0], buffer)
                pending.popleft()
                self._caller.answered(link)
        finally:
            for block in pending:
                self._wanted.give_back(block)
            self._caller.drop(link)

    def _ask(self, link: Link, upstream: Upstream, pending: deque[int]) -> bool:
        """Send requests, so that some are always under way. Return whether any are."""
        if not pending:
            self._confirm(link)  # before `take`, which may wait for a long time
        room = self._ahead - len(pending)
        more = self._wanted.take_more(upstream, room) if pending else self._wanted.take(upstream)
        pending.extend(more)
        self._confirm(link, b"".join(REQUEST.pack(BLOCK, block) for block in more))
        return bool(pending)

    def _confirm(self, link: Link, requests: bytes = b"") -> None:
        confirmations = [
            REQUEST.pack(CONFIRM, link.confirmed.popleft()) for _ in range(len(link.confirmed))
        ]
        link.send(b"".join(confirmations) + requests)

    def _get(self, link: Link, block: int, buffer: memoryview) -> None:
        (length,) = LENGTH.unpack(link.read(LENGTH.size))
        if length == MISSING:
            raise PeerError("it lacks a block that it announced")
        if length != self._layout.length(block):
            raise PeerError("a block came with a wrong length", "corrupt")
        self._store.receive(link, block, buffer)
