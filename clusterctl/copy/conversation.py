"""One conversation with the program that looks at files: orders one way, answers the other."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from clusterctl.copy.failures import ended_early
from clusterctl.copy.verify import NodeTotal, Row
from clusterctl.domain.errors import ClusterctlError, CommandFailed, HostError
from clusterctl.transport.stdin import CHUNK, StdinSource

PAGE = 2000
PING_S = 5.0
# Longer lines than this no node of ours sends.
LONGEST_LINE = 64 << 20
_KEPT_STDERR = 1 << 14

# Told of a host's `progress`: the files and bytes that it has read, and its seconds (`wall`).
Watch = Callable[[str, Mapping[str, Any]], None]


class NothingThere(HostError):
    """The host has nothing at the path."""

    exit_status = 1


class Orders(StdinSource):
    """A program's standard input that grows: the program, then lines as they are given.

    While nothing is given it sends empty lines: a node whose client is gone ends by itself.
    """

    def __init__(self, first: bytes) -> None:
        # Not StdinSource's own, which reads a file descriptor.
        self._first = first
        self._data = bytearray()
        self._closed = False
        self._change = threading.Condition()

    def give(self, order: Mapping[str, Any]) -> None:
        self._put(json.dumps(order).encode() + b"\n")

    def close(self) -> None:
        with self._change:
            self._closed = True
            self._change.notify_all()

    def _put(self, line: bytes) -> None:
        with self._change:
            self._data += line
            self._change.notify_all()

    def read_at(self, offset: int, wait_s: float) -> bytes | None:
        """See StdinSource.read_at."""
        if offset < len(self._first):
            return self._first[offset : offset + CHUNK]
        offset -= len(self._first)
        with self._change:
            more = self._change.wait_for(
                lambda: len(self._data) > offset or self._closed, max(wait_s, PING_S)
            )
            if not more:
                self._data += b"\n"
            return bytes(self._data[offset : offset + CHUNK])


class Conversation:
    """Questions to one program, and its answers. `host` is its name in messages."""

    def __init__(self, host: str, first: bytes, watch: Watch | None = None) -> None:
        self.host = host
        self.orders = Orders(first)
        self.lost = False
        self.error: ClusterctlError | None = None
        self._watch = watch
        self._partial = bytearray()
        self._stderr = b""
        self._answers: queue.SimpleQueue[Mapping[str, Any] | ClusterctlError] = queue.SimpleQueue()

    def take(self, stream: str, chunk: bytes) -> None:
        """What the program wrote; called by the thread that reads it."""
        if stream == "stderr":
            self._stderr = (self._stderr + chunk)[-_KEPT_STDERR:]
            return
        self._partial += chunk
        if b"\n" in chunk:
            *lines, rest = bytes(self._partial).split(b"\n")
            self._partial[:] = rest
            for line in lines:
                self._hear(line)
        elif len(self._partial) > LONGEST_LINE:
            self._partial.clear()
            self._answers.put(CommandFailed(self.host, "its answer is no line of text"))

    def _hear(self, line: bytes) -> None:
        if not line.startswith(b"{"):  # a login shell may greet first
            return
        try:
            event = json.loads(line)
        except ValueError:
            return
        if event.get("event") == "progress":
            if self._watch:
                self._watch(self.host, event)
        else:
            self._answers.put(event)

    def ended(self, exit_status: int) -> None:
        """The program did, with or without having answered."""
        stderr = self._stderr.decode(errors="replace")
        lines = stderr.strip().splitlines()
        said = lines[-1] if lines else f"exit status {exit_status}"
        if exit_status == 127 or said.startswith("python3 is "):
            self.failed(ended_early(self.host, exit_status, stderr, spoke=False))
            return
        self.failed(CommandFailed(self.host, f"looking at the files failed: {said}"))

    def failed(self, error: ClusterctlError) -> None:
        self._answers.put(error)

    def answer(self, event: str) -> Mapping[str, Any]:
        """The next one. Raises ClusterctlError; from then on `lost`."""
        if self.error is None:
            found = self._answers.get()
            if not isinstance(found, ClusterctlError) and found.get("event") == event:
                return found
            self.error = found if isinstance(found, ClusterctlError) else self._refusal(found)
            self.lost = True
        raise self.error

    def _refusal(self, event: Mapping[str, Any]) -> ClusterctlError:
        why = str(event.get("why", "it gave an answer to another question"))
        if event.get("kind") == "absent":
            return NothingThere(self.host, why)
        return CommandFailed(self.host, why)

    def total(self) -> NodeTotal:
        """When all is looked at. Raises ClusterctlError."""
        event = self.answer("total")
        return NodeTotal(
            host=self.host,
            digest=event["digest"],
            counts=event["counts"],
            problems=tuple((path, kind, text) for path, kind, text in event["problems"]),
            problem_count=event["problem_count"],
            read_bytes=event["read_bytes"],
            duration_s=event["seconds"],
            crc_with=event["crc_with"],
        )

    def folders(self) -> Iterator[tuple[str, str]]:
        return self._pages("folders")

    def rows(self, folder: str) -> Iterator[Row]:
        return self._pages("rows", folder=folder)

    def _pages(self, what: str, **more: str) -> Iterator[Any]:
        order = {"order": what, "first": 0, "number": PAGE, **more}
        # At once, and not when the first item is wanted: several nodes answer side by side.
        self.orders.give(order)
        return self._items(order)

    def _items(self, order: Mapping[str, Any]) -> Iterator[Any]:
        while not self.lost:
            try:
                items = self.answer(order["order"])["items"]
            except ClusterctlError:
                return
            yield from items
            if len(items) < PAGE:
                return
            order = {**order, "first": order["first"] + PAGE}
            self.orders.give(order)

    def stop(self) -> None:
        self.orders.give({"order": "stop"})
        self.orders.close()
