"""A job's log as it grows, across lost connections."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timezone

from clusterctl.domain.errors import ConnectionLost, HostError, HostUnreachable
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
    on_lost: Callable[[HostError, float], None] = lambda why, delay_s: None,
) -> JobRecord:
    """Pass the log on until the job has ended; what it came to.

    A lost connection is taken up again where it broke, `on_lost(why, delay_s)` being told before
    each attempt. Raises ConnectionLost or HostUnreachable, with what was last known of the job,
    when that fails again and again or the head node is off; UsageError where there is no such job.
    """
    failures, offset, known = 0, 0, f"of job {job_id} nothing was heard"
    while True:
        received = _Counter(sink)
        try:
            job = find_job(connections, head, job_id)
            known = _known(job)
            command = tail_command(job_id, offset, until_end=job.running)
            connections.run(head, command, sink=received)
            if not job.running:
                return job
            time.sleep(BETWEEN_LOOKS_S)
        except (ConnectionLost, HostUnreachable) as lost:
            failures = 1 if received.count else failures + 1
            if received.count:
                known = _known(job, received.at)
            if lost.is_off or failures > len(RECONNECT_AFTER_S):
                raise type(lost)(lost.host, f"{lost.message}; {known}", lost.hint) from lost
            delay_s = RECONNECT_AFTER_S[failures - 1]
            on_lost(lost, delay_s)
            connections.forget(head)
            time.sleep(delay_s)
        offset += received.count


def _known(job: JobRecord, line_at: datetime | None = None) -> str:
    """All that is certain of a job on a head node that is silent."""
    at = line_at or datetime.now(timezone.utc)
    what = "wrote its last line that came" if line_at else f"was {job.state.value}"
    return f"job {job.job_id} {what} at {at:%H:%M:%S} UTC; what became of it since is not known"


class _Counter:
    """Passes standard output on, and knows how much of it there was, and when it last came."""

    def __init__(self, sink: Callable[[bytes], None]) -> None:
        self._sink = sink
        self.count = 0
        self.at: datetime | None = None

    def __call__(self, stream: str, chunk: bytes) -> None:
        if stream == "stdout":
            self.count += len(chunk)
            self.at = datetime.now(timezone.utc)
            self._sink(chunk)
