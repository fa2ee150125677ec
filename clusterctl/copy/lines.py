"""Lines of JSON to and from a relay. Whatever a node sends, memory here stays bounded."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Union

from clusterctl.domain.errors import ClusterctlError

# A manifest with a hundred warnings is the longest that relays send.
LONGEST_LINE = 1 << 20
BEGINNING = b'{"event": "'
MOST_WAITING = 256
CHUNK = 1 << 16
KEPT_STDERR = 1 << 12
# A node that reads nothing gets no further pings.
MOST_UNREAD = 1 << 16


class Orders:
    """A relay's standard input: its program, then orders as they are given. Thread-safe."""

    def __init__(self, first: bytes) -> None:
        self._data = bytearray(first)
        self._dropped = 0
        self._closed = False
        self._change = threading.Condition()

    def give(self, order: Mapping[str, Any]) -> None:
        """Send one order."""
        self._put(json.dumps(order).encode() + b"\n")

    def ping(self) -> None:
        """Show that this side is there."""
        with self._change:
            crowded = len(self._data) > MOST_UNREAD
        if not crowded:
            self.give({"order": "ping"})

    def close(self) -> None:
        """The end of the input: the relay ends, too."""
        with self._change:
            self._closed = True
            self._change.notify_all()

    def _put(self, line: bytes) -> None:
        with self._change:
            if not self._closed:
                self._data += line
                self._change.notify_all()

    def read_at(self, offset: int, wait_s: float) -> bytes | None:
        """See clusterctl.transport.stdin. What comes before `offset` is forgotten."""
        with self._change:
            del self._data[: offset - self._dropped]
            self._dropped = offset
            self._change.wait_for(lambda: self._data or self._closed, wait_s)
            if self._data:
                return bytes(self._data[:CHUNK])
            return b"" if self._closed else None


class EventLines:
    """Takes a relay's output in chunks, gives its events. What is no event is left out."""

    def __init__(self) -> None:
        self._partial = bytearray()
        self.stderr = b""
        self.spoke = False

    def complain(self, chunk: bytes) -> None:
        """Keep the end of what came on stderr."""
        self.stderr = (self.stderr + chunk)[-KEPT_STDERR:]

    def feed(self, chunk: bytes) -> list[dict[str, Any]]:
        """The events that are whole with this chunk."""
        *lines, rest = chunk.split(b"\n")
        found = []
        for line in lines:
            event = _event(bytes(self._partial) + line)
            self._partial.clear()
            if event is not None:
                found.append(event)
        self._partial += rest
        if len(self._partial) > LONGEST_LINE:
            del self._partial[:-CHUNK]
        self.spoke = self.spoke or bool(found)
        return found


def _event(line: bytes) -> dict[str, Any] | None:
    # A login shell may greet first, and not end its line. Inside of an event, quotes are escaped.
    begin = line.rfind(BEGINNING)
    if begin < 0 or len(line) - begin > LONGEST_LINE:
        return None
    try:
        event = json.loads(line[begin:])
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None


@dataclass(frozen=True)
class LoggedIn:
    """The SSH connection to the node is there, and its relay is being started."""


@dataclass(frozen=True)
class Ended:
    """The relay's process is gone. `error` is what is known of the reason."""

    error: ClusterctlError | None = None


News = Union[dict[str, Any], LoggedIn, Ended]


class Inbox:
    """What has come from all relays and is not taken yet. Thread-safe."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[News]] = {}
        self._change = threading.Condition()

    def put(self, node: str, news: News) -> None:
        """Only the last of several `progress` events in a row is kept."""
        with self._change:
            waiting = self._waiting.setdefault(node, deque())
            if waiting and _is_progress(waiting[-1]) and _is_progress(news):
                waiting[-1] = news
            elif len(waiting) < MOST_WAITING or not isinstance(news, dict):
                waiting.append(news)
            self._change.notify_all()

    def take(self, wait_s: float) -> list[tuple[str, News]]:
        """All there is, in each node's order; empty if nothing comes in time."""
        deadline = time.monotonic() + wait_s
        with self._change:
            while not self._waiting and (left := deadline - time.monotonic()) > 0:
                self._change.wait(left)
            found, self._waiting = self._waiting, {}
        return [(node, news) for node, waiting in found.items() for news in waiting]


def _is_progress(news: News) -> bool:
    return isinstance(news, dict) and news.get("event") == "progress"
