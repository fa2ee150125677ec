"""Watch the nodes of a cluster live: one program on each node reports over a kept connection."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from clusterctl.diagnosis.evidence import JobEvidence
from clusterctl.domain.errors import ClusterctlError
from clusterctl.node.diagnosis.job import JobOnHead
from clusterctl.node.packer import program_of
from clusterctl.node.record import from_json, salvage
from clusterctl.operations.access import Access
from clusterctl.operations.diagnose import job_of
from clusterctl.operations.logs import find
from clusterctl.transport.target import Target

WATCH = program_of("clusterctl.node.diagnosis.watch")
# Seconds until a lost node is connected to again.
AGAIN_S = 3.0
# The longest wait for the threads at the end.
ENDS_WITHIN_S = 1.0


@dataclass(frozen=True)
class WatchedNode:
    """A node's last report (`node/diagnosis/watch.py`), and when it came, by `time.monotonic`.

    `error` is the reason if there is no connection. A frozen node has no error, only an old report.
    `since` is when the watch began.
    """

    host: str
    facts: dict[str, Any] = field(default_factory=dict)
    at: float | None = None
    error: str = ""
    since: float = 0.0


class Watch:
    """The last reports of the nodes, updated by threads. All properties may be read at any time."""

    def __init__(self, access: Access, interval_s: float, job_id: str | None = None) -> None:
        self._access, self._job_id = access, job_id
        self._interval_s = interval_s
        self._ended = threading.Event()
        now = time.monotonic()
        self._nodes = {one.host: WatchedNode(one.host, since=now) for one in access.targets}

    @property
    def nodes(self) -> list[WatchedNode]:
        return list(self._nodes.values())

    @property
    def head(self) -> WatchedNode:
        """The head node, which alone knows the job."""
        name = self._access.head_name
        return self._nodes.get(name) or WatchedNode(name, error="it is gone")

    @property
    def job(self) -> JobEvidence | None:
        """The job that is watched, or else the running or the latest job, by the head node's last
        report; None without."""
        report = self.head.facts.get("job")
        return job_of(salvage(JobOnHead, report)[0], [], None) if report else None

    def read_at(self, offset: int, wait_s: float) -> bytes | None:
        """Give each node its program as standard input (see transport.stdin.Stdin), and end the
        input only when the watch ends, because that ends the program."""
        program = WATCH.stdin()
        if offset < len(program):
            return program[offset:]
        return b"" if self._ended.wait(wait_s) else None

    def _follow(self, target: Target) -> None:
        """Run the program on one node, again whenever it ends, until the watch ends."""
        is_head = target.host == self._access.head_name
        command = WATCH.command(str(self._interval_s), str(int(is_head)), self._job_id or "")
        while not self._ended.is_set():
            hear = _Lines(
                lambda facts: self._set(WatchedNode(target.host, facts, time.monotonic()))
            )
            why = "its program ended"
            try:
                result = self._access.connections.run(target, command, stdin=self, sink=hear)
                why = hear.complaint or f"its program ended with {result.exit_status}"
            except ClusterctlError as error:
                why = error.message
            self._set(replace(self._nodes[target.host], error=why))
            self._ended.wait(AGAIN_S)

    def _set(self, node: WatchedNode) -> None:
        self._nodes[node.host] = node


class _Lines:
    """A sink for a program's output that passes each JSON object to `take`. `complaint` is the last
    line of standard error."""

    def __init__(self, take: Any) -> None:
        self._take = take
        self._rest = b""
        self.complaint = ""

    def __call__(self, stream: str, chunk: bytes) -> None:
        if stream == "stderr":
            facts = chunk.decode(errors="replace").strip().splitlines()
            self.complaint = facts[-1] if facts else self.complaint
            return
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            # A login shell may print a greeting first, which is no JSON.
            with contextlib.suppress(ValueError):
                self._take(from_json(dict, line))


@contextlib.contextmanager
def watching(access: Access, interval_s: float, job_id: str | None = None) -> Iterator[Watch]:
    """Watch all nodes in service during the block, with a report every `interval_s` seconds.

    Raise UsageError if the head node has no job `job_id`, and HostError.
    """
    if job_id:
        find(access, job_id)
    watch = Watch(access, interval_s, job_id)
    # Daemon threads, so that one that waits for a frozen node does not keep the command alive.
    threads = [
        threading.Thread(target=watch._follow, args=(target,), daemon=True)
        for target in access.targets
    ]
    for thread in threads:
        thread.start()
    try:
        yield watch
    finally:
        watch._ended.set()
        access.connections.interrupt(for_good=True)
        # Threads that still run while the interpreter exits may crash inside native libraries.
        until = time.monotonic() + ENDS_WITHIN_S
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
