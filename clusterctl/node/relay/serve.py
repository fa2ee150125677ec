"""The serving side of a relay: answers peers that know the transfer's secret."""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections import Counter
from typing import Any

from clusterctl.node.relay.blocks import BlockSet
from clusterctl.node.relay.parts import Parts
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
    admit,
)

# At the least; with many connections for each peer, those of so many peers.
MOST_CONNECTIONS, MOST_PEERS = 512, 16
# Connections that are not authenticated yet: in all, and from one address.
MOST_STRANGERS, MOST_FROM_ONE = 256, 48
# Seconds between answers to peers that wait for what is not here yet.
HEARTBEAT_S = 1.0
# Seconds without accepting, after that failed.
ACCEPT_AGAIN_S = 0.1


class Server:
    """Accepts connections while the relay runs, and answers requests.

    Content, and parts of `manifest`, may come later; peers wait for them. `content` sends the
    blocks that the `ledger` has.
    """

    def __init__(self, secret: bytes, tls: ssl.SSLContext | None) -> None:
        self._secret, self._tls = secret, tls
        self._lock = threading.Lock()
        self._strangers: Counter[str] = Counter()
        self._friends, self._most = 0, MOST_CONNECTIONS
        self.manifest = Parts()
        self._has_content = threading.Event()
        self._ledger: BlockSet | None = None
        self._content: Any = None

    def listen(self, bind: str, port: int) -> tuple[str, int]:
        """Start to accept connections. Return the address and port. Raises OSError."""
        family = socket.AF_INET6 if ":" in bind else socket.AF_INET
        listening = socket.create_server((bind, port), family=family, backlog=128)
        threading.Thread(target=self._accept, args=(listening,), daemon=True).start()
        address, port = listening.getsockname()[:2]
        return address, port

    def have_content(self, ledger: BlockSet, content: Any, streams: int) -> None:
        """Serve the blocks of this ledger from here on. `content` is a Source or a Store.

        Each peer opens `streams` connections for blocks, and one to watch for them.
        """
        self._most = max(MOST_CONNECTIONS, MOST_PEERS * (streams + 1))
        self._ledger, self._content = ledger, content
        self._has_content.set()

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                plain, peer = listening.accept()
            except OSError:
                # All descriptors are in use (EMFILE), or the new connection has an error
                # (accept(2)). Both pass. The pause is for EMFILE, which comes again at once.
                time.sleep(ACCEPT_AGAIN_S)
                continue
            with self._lock:
                crowded = (
                    sum(self._strangers.values()) >= MOST_STRANGERS
                    or self._strangers[peer[0]] >= MOST_FROM_ONE
                    or self._friends >= self._most
                )
                self._strangers[peer[0]] += not crowded
            if crowded:
                plain.close()
                continue
            threading.Thread(target=self._meet, args=(Link(plain), peer[0]), daemon=True).start()

    def _meet(self, link: Link, address: str) -> None:
        try:
            try:
                admit(link, self._secret, self._tls)
            finally:
                with self._lock:
                    self._strangers[address] -= 1
                    self._strangers += Counter()  # drops addresses whose count is 0
                    self._friends += 1
            self._converse(link)
        except (PeerError, OSError):
            pass  # The peer notices, and retries here or elsewhere.
        finally:
            link.close()
            with self._lock:
                self._friends -= 1

    def _converse(self, link: Link) -> None:
        request = memoryview(bytearray(REQUEST.size))
        sent: set[int] = set()
        poller = select.poll()
        poller.register(link.socket, select.POLLIN)
        while True:
            if not link.pending():
                # Without a timeout, unlike reads: a peer may request nothing for a long time.
                poller.poll()
            link.read_into(request)
            what, block = REQUEST.unpack(request)
            if what == MANIFEST:
                self._send_manifest(link, block)
            elif what == BLOCK:
                sent.add(block)
                self._send_block(link, block)
            elif what == CONFIRM:
                if block in sent:
                    self._content.confirm(block)
            elif what == WATCH:
                self._notify(link)
            else:
                raise PeerError("it requested a block that no peer has")

    def _send_manifest(self, link: Link, number: int) -> None:
        """Send the manifest from part `number` on, each part when it is here."""
        while not 0 <= self.manifest.last < number:
            part = self.manifest.get(number, HEARTBEAT_S)
            if part is None:
                link.send(LENGTH.pack(MISSING))
                continue
            link.send(LENGTH.pack(len(part)))
            link.send(part)
            number += 1

    def _send_block(self, link: Link, block: int) -> None:
        ledger = self._ledger
        if ledger is None or block >= ledger.blocks or block not in ledger:
            link.send(LENGTH.pack(MISSING))
        else:
            self._content.send_block(link, block)

    def _notify(self, link: Link) -> None:
        """Announce the blocks that are here, and others as they come, until the peer closes."""
        while not self._has_content.wait(HEARTBEAT_S) or (ledger := self._ledger) is None:
            link.send(RANGE.pack(0, 0))
        position = -1
        ledger.watchers += 1
        try:
            while True:
                position, ranges = ledger.added_since(position, HEARTBEAT_S)
                link.send(b"".join(RANGE.pack(*one) for one in ranges) or RANGE.pack(0, 0))
        finally:
            ledger.watchers -= 1
