"""The encoded manifest on one machine, part by part: for peers, and while it comes. Thread-safe."""

from __future__ import annotations

import hashlib
import threading

from clusterctl.node.relay.entries import Entries
from clusterctl.node.relay.manifest import Decoder, digest_of
from clusterctl.node.relay.wire import PeerError

SHA256_BYTES = 32


class Parts:
    """The head and the parts of a manifest that are here. Number 0 is the head."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._here: list[bytes] = []

    @property
    def last(self) -> int:
        """The number of the last part; -1 while the head is not here."""
        return len(self._here[0]) // SHA256_BYTES if self._here else -1

    def add(self, blob: bytes) -> None:
        """Add the head, or the next part."""
        with self._changed:
            self._here.append(blob)
            self._changed.notify_all()

    def get(self, number: int, timeout_s: float) -> bytes | None:
        """Return the head or a part. None if it is not here within `timeout_s` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: number < len(self._here), timeout_s)
            return self._here[number] if number < len(self._here) else None


class Incoming:
    """A manifest that comes from peers, one after another. `entries` are those that have come.

    `digest` is that of its head. Each part is checked by the head, added to `parts`, from where it
    is passed on, and decoded.
    """

    def __init__(self, digest: str, parts: Parts) -> None:
        self._digest, self._parts = digest, parts
        self._lock = threading.Lock()
        self._decoder = Decoder()
        self._head = b""
        self.entries = Entries()
        self.next = 0  # the number of what is to come next

    @property
    def is_whole(self) -> bool:
        return self.next > self._parts.last >= 0

    def take(self, number: int, blob: bytes) -> bool:
        """Take the head, or a part. Return whether it was the last one.

        What another thread has taken already is ignored. Raises PeerError for what is not this
        manifest's, BadManifest.
        """
        with self._lock:
            if number != self.next:
                return False
            if number == 0:
                good = digest_of(blob) == self._digest and len(blob) % SHA256_BYTES == 0
                self._head = blob if good else b""
            else:
                at = (number - 1) * SHA256_BYTES
                good = hashlib.sha256(blob).digest() == self._head[at : at + SHA256_BYTES]
            if not good:
                raise PeerError("its manifest is not this transfer's", "corrupt")
            for entry in self._decoder.entries(blob) if number else ():
                self.entries.append(entry)
            self._parts.add(blob)
            self.next += 1
            return self.is_whole
