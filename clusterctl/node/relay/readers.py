"""Processes that look at files side by side: Python in threads would look at one at a time."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_RECEIVED = 1 << 18


class ReaderLost(Exception):
    """A reading process ended by itself: killed, as a rule for want of memory."""


class Readers:
    """So many processes, each of which does `work(task, tell)` for one task after another.

    Tasks and results are JSON values; what `tell` is given arrives before its task's result.
    To be made while this process has one thread.
    """

    def __init__(self, number: int, work: Callable[[Any, Callable[[Any], None]], Any]) -> None:
        self._sockets: list[socket.socket] = []
        self._pids: list[int] = []
        self._ending = threading.Lock()
        for _ in range(number):
            ours, theirs = socket.socketpair()
            pid = os.fork()
            if not pid:
                _serve(theirs, [*self._sockets, ours], work)
            theirs.close()
            self._sockets.append(ours)
            self._pids.append(pid)

    def run(
        self,
        tasks: Iterator[Any],
        told: Callable[[Any], None],
        turn: Callable[[], None],
        every_s: float = 0.25,
    ) -> Iterator[Any]:
        """Each task's result, as they come. `turn` is called at least every so often."""
        partial = {link: bytearray() for link in self._sockets}
        idle = list(self._sockets)
        with selectors.DefaultSelector() as selector:
            for each in self._sockets:
                selector.register(each, selectors.EVENT_READ)
            while True:
                while idle:
                    task = next(tasks, None)
                    if task is None:
                        break
                    _send(idle.pop(), task)
                if len(idle) == len(self._sockets):
                    return
                for key, _ in selector.select(every_s):
                    link: Any = key.fileobj
                    for kind, value in _received(link, partial[link]):
                        if kind == "told":
                            told(value)
                        elif kind == "failed":
                            raise ReaderLost(value)
                        else:
                            idle.append(link)
                            yield value
                turn()

    def end(self) -> None:
        """The processes are gone when this returns, in whichever thread, and again."""
        with self._ending:
            for pid in self._pids:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            while self._pids:
                with contextlib.suppress(OSError):
                    os.waitpid(self._pids.pop(), 0)


def _serve(
    link: socket.socket, others: list[socket.socket], work: Callable[[Any, Any], Any]
) -> None:
    """In the new process, to its end: when the other side is closed."""
    status = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # Whoever holds the other end of a neighbour's would keep it from ending.
        for other in others:
            other.close()
        with link.makefile("rb") as lines:
            for line in lines:
                try:
                    result = work(json.loads(line), lambda value: _send(link, ["told", value]))
                except Exception as error:
                    _send(link, ["failed", repr(error)])
                    break
                _send(link, ["result", result])
        status = 0
    except BrokenPipeError:
        status = 0
    finally:
        # Whatever else the program has to do at its end is for the first process.
        os._exit(status)


def _send(link: socket.socket, value: Any) -> None:
    link.sendall(json.dumps(value, separators=(",", ":")).encode() + b"\n")


def _received(link: socket.socket, partial: bytearray) -> Iterator[Any]:
    data = link.recv(_RECEIVED)
    if not data:
        raise ReaderLost("a process that read files was ended")
    partial += data
    if b"\n" in data:
        *lines, rest = bytes(partial).split(b"\n")
        partial[:] = rest
        yield from map(json.loads, lines)
