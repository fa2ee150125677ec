"""A relay on this machine: a process of its own, which never outlives this one."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import IO, Any

from clusterctl.copy.failures import ended_early
from clusterctl.copy.lines import CHUNK, Ended, EventLines, Inbox, Orders
from clusterctl.node.packer import JoinedProgram

END_WITHIN_S = 2.0


class LocalRelay:
    """Starts at once. `name` is what its news are put under.

    When this process dies, its standard input ends, and so does it.
    """

    def __init__(
        self, name: str, inbox: Inbox, program: JoinedProgram, config: Mapping[str, Any]
    ) -> None:
        self.name = name
        self._inbox = inbox
        self._orders = Orders(program.stdin(dict(config)))
        self._lines = EventLines()
        self._told_to_end = False
        # A session of its own: Ctrl-C is for this process, which ends it in order.
        self._process = subprocess.Popen(
            program.argv(python=sys.executable),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._readers = [
            threading.Thread(target=self._complain, args=(self._process.stderr,), daemon=True),
            threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True),
        ]
        for thread in self._readers:
            thread.start()
        threading.Thread(target=self._feed, args=(self._process.stdin,), daemon=True).start()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def give(self, order: Mapping[str, Any]) -> None:
        """Send an order."""
        self._told_to_end = self._told_to_end or order.get("order") == "stop"
        self._orders.give(order)

    def ping(self) -> None:
        self._orders.ping()

    def end(self) -> None:
        """End it now."""
        self._told_to_end = True
        self._orders.close()
        if self._process.poll() is None:
            self._process.terminate()
            if not self.join(END_WITHIN_S):
                self._process.kill()
                self._process.wait()

    def join(self, wait_s: float) -> bool:
        """Whether it has ended within that time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(wait_s)
        return self._process.poll() is not None

    def _feed(self, stdin: IO[bytes]) -> None:
        offset = 0
        with contextlib.suppress(OSError, ValueError):
            while (chunk := self._orders.read_at(offset, 0.5)) != b"":
                if chunk:
                    stdin.write(chunk)
                    stdin.flush()
                    offset += len(chunk)
                elif not self.running:
                    break
        with contextlib.suppress(OSError):
            stdin.close()

    def _complain(self, stderr: IO[bytes]) -> None:
        while chunk := stderr.read(1 << 10):
            self._lines.complain(chunk)

    def _read(self, stdout: IO[bytes]) -> None:
        while chunk := stdout.read1(CHUNK):  # type: ignore[attr-defined]
            for event in self._lines.feed(chunk):
                self._inbox.put(self.name, event)
        status = self._process.wait()
        self._readers[0].join(1.0)
        error = None
        if status or not self._told_to_end:
            complaint = self._lines.stderr.decode(errors="replace")
            exit_status = 128 - status if status < 0 else status
            error = ended_early(self.name, exit_status, complaint, self._lines.spoke)
        self._inbox.put(self.name, Ended(error))
