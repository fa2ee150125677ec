"""Talk with the program that looks at files: on nodes over SSH, here as a process of its own."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterctl.data.program import program_of
from clusterctl.data.verify import NodeTotal, Row
from clusterctl.domain.errors import ClusterctlError, CommandFailed, HostError
from clusterctl.transport.connections import Connections
from clusterctl.transport.fanout import fan_out
from clusterctl.transport.stdin import CHUNK, StdinSource
from clusterctl.transport.target import Target

PROGRAM = program_of(
    "manifest",
    "crc32c",
    "tfrecord",
    "contents",
    "listing",
    "looking",
    "places",
    "readers",
    "digests",
)
PAGE = 2000
PING_S = 5.0
SILENCE_S = 60.0
# Longer lines than this no node of ours sends.
LONGEST_LINE = 64 << 20
_KEPT_STDERR = 1 << 14

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
        lines = self._stderr.decode(errors="replace").strip().splitlines()
        said = lines[-1] if lines else f"exit status {exit_status}"
        no_python = exit_status == 127 or said.startswith("python3 is ")
        hint = "the nodes need python3 3.8 or newer" if no_python else ""
        self.failed(CommandFailed(self.host, f"looking at the files failed: {said}", hint))

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


@dataclass(frozen=True)
class _Asked:
    target: Target
    conversation: Conversation

    @property
    def host(self) -> str:
        return self.target.host


def _first(config: Mapping[str, Any]) -> bytes:
    return PROGRAM.stdin({**config, "silence_s": SILENCE_S})


@contextlib.contextmanager
def on_nodes(
    connections: Connections,
    targets: Sequence[Target],
    config: Mapping[str, Any],
    *,
    watch: Watch | None = None,
    timeout_s: float | None = None,
) -> Iterator[list[Conversation]]:
    """The program on every node at once, for as long as the block takes."""
    first = _first(config)
    items = [_Asked(target, Conversation(target.host, first, watch)) for target in targets]

    def one(asked: _Asked) -> None:
        talk = asked.conversation
        try:
            result = connections.run(
                asked.target,
                PROGRAM.command(),
                stdin=talk.orders,
                sink=talk.take,
                timeout_s=timeout_s,
            )
            talk.ended(result.exit_status)
        except ClusterctlError as error:
            talk.failed(error)
        except BaseException as error:
            # Nobody may wait for its answer; fan_out raises it.
            talk.failed(ClusterctlError(repr(error)))
            raise

    # All at once: no node is asked further before each has said what it has.
    thread = threading.Thread(
        target=lambda: fan_out(one, items, max_workers=max(1, len(items))), daemon=True
    )
    thread.start()
    try:
        yield [item.conversation for item in items]
    except BaseException:
        connections.interrupt()
        raise
    finally:
        for item in items:
            item.conversation.stop()
    thread.join()


@contextlib.contextmanager
def on_this_machine(
    name: str, config: Mapping[str, Any], *, watch: Watch | None = None
) -> Iterator[Conversation]:
    """The same program as a process of this machine, in the current folder."""
    talk = Conversation(name, _first({"base": str(Path.cwd()), **config}), watch)
    process = subprocess.Popen(
        PROGRAM.argv(python=sys.executable),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    threads = [
        threading.Thread(target=_feed, args=(process, talk.orders), daemon=True),
        threading.Thread(target=_read, args=(process, talk), daemon=True),
    ]
    for thread in threads:
        thread.start()
    try:
        yield talk
    finally:
        talk.stop()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=PING_S)
        process.kill()
        process.wait()


def _feed(process: subprocess.Popen[bytes], orders: Orders) -> None:
    assert process.stdin
    offset = 0
    with contextlib.suppress(OSError):
        while chunk := orders.read_at(offset, PING_S):
            process.stdin.write(chunk)
            process.stdin.flush()
            offset += len(chunk)
        process.stdin.close()


def _read(process: subprocess.Popen[bytes], talk: Conversation) -> None:
    assert process.stdout and process.stderr
    while chunk := process.stdout.read1(1 << 16):  # type: ignore[attr-defined]
        talk.take("stdout", chunk)
    talk.take("stderr", process.stderr.read())
    talk.ended(process.wait())
