"""A job's log as it grows, across lost connections."""

from __future__ import annotations

import time
from collections.abc import Callable

from clusterctl.domain.errors import ConnectionLost, HostUnreachable
from clusterctl.jobs.detached import find_job
from clusterctl.jobs.record import JobRecord
from clusterctl.transport.connections import Connections
from clusterctl.transport.target import Target

BETWEEN_LOOKS_S = 0.2
RECONNECT_AFTER_S = (1.0, 2.0, 4.0, 8.0, 16.0)


def tail_command(job_id: str, offset: int, until_end: bool) -> str:
    """The log from byte `offset` on; `until_end` waits for more until the job has ended."""
    folder = f'"$HOME"/.clusterctl/jobs/{job_id}'
    wait = f'-f -s 0.2 --pid="$(cat {folder}/pid)" ' if until_end else ""
    return f"exec tail -c +{offset + 1} {wait}{folder}/log"


def follow_job(
    connections: Connections,
    head: Target,
    job_id: str,
    sink: Callable[[bytes], None],
    on_lost: Callable[[float], None] = lambda delay_s: None,
    offset: int = 0,
) -> JobRecord:
    """Pass the log on until the job has ended; what it came to.

    A lost connection is taken up again where it broke, `on_lost(delay_s)` being told before each
    attempt. Raises ConnectionLost or HostUnreachable when that fails again and again, UsageError
    when there is no such job.
    """
    failures = 0
    while True:
        received = _Counter(sink)
        try:
            job = find_job(connections, head, job_id)
            command = tail_command(job_id, offset, until_end=job.running)
            connections.run(head, command, sink=received)
            if not job.running:
                return job
            time.sleep(BETWEEN_LOOKS_S)
        except (ConnectionLost, HostUnreachable):
            failures = 1 if received.count else failures + 1
            if failures > len(RECONNECT_AFTER_S):
                raise
            delay_s = RECONNECT_AFTER_S[failures - 1]
            on_lost(delay_s)
            connections.forget(head)
            time.sleep(delay_s)
        offset += received.count


class _Counter:
    """Passes standard output on, and knows how much of it there was."""

    def __init__(self, sink: Callable[[bytes], None]) -> None:
        self._sink = sink
        self.count = 0

    def __call__(self, stream: str, chunk: bytes) -> None:
        if stream == "stdout":
            self.count += len(chunk)
            self._sink(chunk)
