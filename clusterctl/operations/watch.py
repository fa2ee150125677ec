"""Watch the nodes of a cluster live: one program on each node reports over a kept connection."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from clusterctl.diagnosis.evidence import JobEvidence
from clusterctl.domain.errors import ClusterctlError
from clusterctl.domain.results import python_lacking
from clusterctl.node.diagnosis.job import JobOnHead
from clusterctl.node.packer import program_of
from clusterctl.node.record import from_json, salvage
from clusterctl.operations.access import Access
from clusterctl.operations.diagnose import job_of
from clusterctl.operations.logs import find
from clusterctl.transport.call import HostConnections
from clusterctl.transport.dial import Target

WATCH = program_of("clusterctl.node.diagnosis.watch")
# Seconds until a lost node is connected to again.
AGAIN_S = 3.0
# The longest wait for the threads at the end.
ENDS_WITHIN_S = 1.0


@dataclass(frozen=True)
class WatchedNode:
    """A node's last report (`node/diagnosis/watch.py`), and when it came, by `time.monotonic`.

    `error` is the reason if there is no connection, or with `is_reached` if the program cannot run
    there. A frozen node has no error, only an old report. `since` is when the watch began.
    """

    host: str
    facts: dict[str, Any] = field(default_factory=dict)
    at: float | None = None
    error: str = ""
    since: float = 0.0
    is_reached: bool = False


class Watch:
    """The last reports of the nodes, updated by threads. All properties may be read at any time.

    Use as a context manager: it watches within the block. `head` is the name of the head node; None
    for hosts without a cluster.
    """

    def __init__(
        self,
        connections: HostConnections,
        targets: Sequence[Target],
        head: str | None,
        interval_s: float,
        job_id: str | None = None,
    ) -> None:
        self._connections, self._targets, self._head = connections, targets, head
        self._interval_s, self._job_id = interval_s, job_id
        self._ended = threading.Event()
        now = time.monotonic()
        self._nodes = {one.host: WatchedNode(one.host, since=now) for one in targets}
        # Daemon threads, so that one that waits for a frozen node does not keep the command alive.
        self._threads = [
            threading.Thread(target=self._follow, args=(target,), daemon=True) for target in targets
        ]

    def __enter__(self) -> Watch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._connections.interrupt(for_good=True)
        # Threads that still run while the interpreter exits may crash inside native libraries.
        until = time.monotonic() + ENDS_WITHIN_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    @property
    def nodes(self) -> list[WatchedNode]:
        return list(self._nodes.values())

    @property
    def head(self) -> WatchedNode | None:
        """The head node, the only one that knows the job; None without a cluster."""
        if self._head is None:
            return None
        return self._nodes.get(self._head) or WatchedNode(self._head, error="it is gone")

    @property
    def job(self) -> JobEvidence | None:
        """The job that is watched, or else the running or the latest job, by the head node's last
        report, or that of the first host with an mpirun; None without."""
        return self._reported[0]

    @property
    def group(self) -> str:
        """What the ranks of an mpirun that was started by hand have in common; empty if unknown."""
        return self._reported[1]

    @property
    def _reported(self) -> tuple[JobEvidence | None, str]:
        for node in [self.head] if self.head else self.nodes:
            report = node.facts.get("job")
            found = salvage(JobOnHead, report)[0] if report else None
            if found and (job := job_of(found, [], None)):
                return job, found.group
        return None, ""

    def read_at(self, offset: int, wait_s: float) -> bytes | None:
        """Give each node its program as standard input (see transport.stdin.Stdin), and end the
        input only when the watch ends, because that ends the program."""
        program = WATCH.stdin()
        if offset < len(program):
            return program[offset:]
        return b"" if self._ended.wait(wait_s) else None

    def _follow(self, target: Target) -> None:
        """Run the program on one node, again whenever it ends, until the watch ends."""
        is_head = self._head in (None, target.host)
        command = WATCH.command(str(self._interval_s), str(int(is_head)), self._job_id or "")
        while not self._ended.is_set():
            hear = _Lines(
                lambda facts: self._set(WatchedNode(target.host, facts, time.monotonic()))
            )
            is_reached = False
            try:
                result = self._connections.run(target, command, stdin=self, sink=hear)
                is_reached = True
                lacking = python_lacking(result.exit_status, hear.complaint)
                why = hear.complaint or f"its program ended with {result.exit_status}"
                why = f"{lacking[0]}; {lacking[1]}" if lacking else why
            except ClusterctlError as error:
                why = error.message
            self._set(replace(self._nodes[target.host], error=why, is_reached=is_reached))
            self._ended.wait(AGAIN_S)

    def _set(self, node: WatchedNode) -> None:
        self._nodes[node.host] = node


class _Lines:
    """A sink for a program's output that passes each JSON object to `take`. `complaint` is the last
    line of standard error."""

    def __init__(self, take: Callable[[dict[str, Any]], None]) -> None:
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


def watch_cluster(access: Access, interval_s: float, job_id: str | None = None) -> Watch:
    """Return the watch of all nodes in service, with a report every `interval_s` seconds: it lasts
    for a `with` block.

    Raise UsageError if the head node has no job `job_id`, and HostError.
    """
    if job_id:
        find(access, job_id)
    return Watch(access.connections, access.targets, access.head_name, interval_s, job_id)
