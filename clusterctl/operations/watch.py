"""What the nodes of a cluster do, as it happens: one program on each, over kept connections."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from clusterctl.diagnosis.evidence import JobEvidence
from clusterctl.domain.errors import ClusterctlError
from clusterctl.node.packer import program_of
from clusterctl.operations.access import Access
from clusterctl.operations.diagnose import job_of
from clusterctl.transport.target import Target

WATCH = program_of("clusterctl.node.diagnosis.watch")
# Until a node that was lost is tried again.
AGAIN_S = 3.0
ENDS_WITHIN_S = 1.0


@dataclass(frozen=True)
class WatchedNode:
    """A node's last line (`node/diagnosis/watch.py`) and when it came, by `time.monotonic`.

    `error`: why there is no connection now. A frozen node has none, only an old line.
    """

    host: str
    said: dict[str, Any] = field(default_factory=dict)
    at: float | None = None
    error: str = ""


class Watch:
    """The nodes as they were last heard of. `nodes` and `job` may be read at any time."""

    def __init__(self, access: Access, interval_s: float) -> None:
        self._access = access
        self._interval_s = interval_s
        self._ended = threading.Event()
        self._nodes = {target.host: WatchedNode(target.host) for target in access.targets}

    @property
    def nodes(self) -> list[WatchedNode]:
        return list(self._nodes.values())

    @property
    def job(self) -> JobEvidence | None:
        """What the head node last said of the job that runs, or of the latest."""
        told = self._nodes[self._access.head.host].said.get("job")
        return job_of(told, [], None) if told else None

    def read_at(self, offset: int, wait_s: float) -> bytes | None:
        """The nodes' programs (transport.stdin.Stdin), and no end before that of the watch."""
        program = WATCH.stdin()
        if offset < len(program):
            return program[offset:]
        return b"" if self._ended.wait(wait_s) else None

    def _follow(self, target: Target) -> None:
        is_head = target.host == self._access.head.host
        command = WATCH.command(str(self._interval_s), str(int(is_head)))
        while not self._ended.is_set():
            hear = _Lines(lambda said: self._set(WatchedNode(target.host, said, time.monotonic())))
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
    """Takes a program's output and passes on each JSON line of it."""

    def __init__(self, take: Any) -> None:
        self._take = take
        self._rest = b""
        self.complaint = ""

    def __call__(self, stream: str, chunk: bytes) -> None:
        if stream == "stderr":
            said = chunk.decode(errors="replace").strip().splitlines()
            self.complaint = said[-1] if said else self.complaint
            return
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            # A login shell may greet first.
            with contextlib.suppress(ValueError):
                said = json.loads(line)
                if isinstance(said, dict):
                    self._take(said)


@contextlib.contextmanager
def watching(access: Access, interval_s: float) -> Iterator[Watch]:
    """Look at all nodes for the time of the block."""
    watch = Watch(access, interval_s)
    # Daemons: one that waits for a frozen node's connection does not keep the command alive.
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
        # The libraries of those that still run may crash while the interpreter ends.
        until = time.monotonic() + ENDS_WITHIN_S
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
