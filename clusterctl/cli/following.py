"""A job's log on the screen, with the progress of a training in the last line; and how it ended."""

from __future__ import annotations

import contextlib
import re
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.cli import output
from clusterctl.domain.errors import ClusterctlError, HostError
from clusterctl.domain.units import format_bytes, format_duration
from clusterctl.jobs.metrics.logs import EvaluationRow, GrowingLog, LogItem, TrainingRow
from clusterctl.node.jobs.spec import JobRecord, JobState

if TYPE_CHECKING:
    from clusterctl.domain.findings import Finding
    from clusterctl.operations.access import Access

# Part of a run that has to be done before the time left is estimated.
LEAST_DONE = 0.005


class TrainingStatus:
    """Reads a job's log as it grows, and sums up its progress."""

    def __init__(self, job: JobRecord) -> None:
        self._usd, self._hourly_usd = job.usd, job.hourly_usd
        # On this machine's clock: the head node's may be wrong.
        self._polled_at = time.monotonic()
        self._began = self._polled_at - job.duration_s
        self._log = GrowingLog()
        self._row: TrainingRow | None = None
        self._first_done = 0.0
        self._top1: float | None = None
        self._metrics: dict[str, float] = {}
        # The user's own options come after clusterctl's: the last one applies.
        found = re.findall(r" --num_(epochs|batches)[ =](\d+)", job.spec.line)
        self._unit, self._total = found[-1][0] if found else "", int(found[-1][1]) if found else 0

    def take(self, chunk: bytes) -> None:
        """Read a chunk of the log."""
        for shown in self._log.feed(chunk):
            self._learn(shown)

    def _learn(self, shown: LogItem) -> None:
        if isinstance(shown, tuple):
            self._metrics[shown[0]] = shown[1].value
        elif isinstance(shown, EvaluationRow):
            self._top1 = shown.top1
        else:
            if self._row is None:
                self._first_done = self._done(shown)
            self._row = shown

    def _done(self, row: TrainingRow) -> float:
        """Return the part of the run that is done, 0 to 1; 0 if its length is not known."""
        at = row.epoch if self._unit == "epochs" else row.step
        return min(1.0, at / self._total) if self._total else 0.0

    def text(self, now: float) -> str:
        """Return `step 350, epoch 2.2 of 90, 19000.0 images/s, 1 h 38 min left, $4.10 so far`.

        Empty before the first row or metric. The time left of a resumed run is estimated from what
        it has done since it was resumed.
        """
        elapsed_s = now - self._began
        parts = []
        row = self._row
        if row:
            epochs, steps = (
                f" of {self._total}" if self._unit == unit else "" for unit in ("epochs", "batches")
            )
            parts = [f"step {row.step}{steps}", f"epoch {row.epoch:.1f}{epochs}"]
            parts.append(f"{row.images_per_s:.1f} images/s")
            done = self._done(row)
            if done - self._first_done >= LEAST_DONE:
                left_s = (1 - done) * elapsed_s / (done - self._first_done)
                parts.append(f"{format_duration(left_s)} left")
        parts += [f"{name} {value:.4g}" for name, value in self._metrics.items() if not row]
        if parts and self._top1 is not None:
            parts.append(f"top-1 {self._top1:.2f} %")
        if parts and self._usd is not None and self._hourly_usd is not None:
            usd = self._usd + self._hourly_usd * (now - self._polled_at) / 3600
            parts.append(f"${usd:.2f} so far")
        return ", ".join(parts)


class StatusLine:
    """Keeps the status line below the log that is printed."""

    def __init__(self, status: TrainingStatus | None) -> None:
        self._status = status
        self._shown = False

    def raw(self, chunk: bytes, stream: str) -> None:
        """Print a part of the log, and the status below it."""
        self.clear()
        output.raw(chunk, stream)
        if self._status:
            self._status.take(chunk)
            # A status line would overwrite a log line that is not complete yet.
            text = self._status.text(time.monotonic()) if chunk.endswith(b"\n") else ""
            if text:
                self._shown = True
                output.status_line(text)

    def clear(self) -> None:
        """Remove the status line. Call this before anything else is printed."""
        if self._shown:
            output.status_line("")
        self._shown = False


def follow_to_end(
    access: Access,
    job_id: str,
    preset: str,
    as_json: bool = False,
    rank: int | None = None,
    last_read: JobRecord | None = None,
) -> int:
    """Show a job's log until it ends; return its exit status, or 130 after Ctrl-C.

    `rank` selects the log of one rank. `last_read` is the job's record, if it has just been read.
    On GPUs of several nodes it also prints which network NCCL uses between them.
    """
    from clusterctl.jobs.detached import LogFollower
    from clusterctl.jobs.nccl import TransportWatch
    from clusterctl.jobs.trainer import EFA
    from clusterctl.operations.logs import find, follow

    line = StatusLine(None)

    def show_finding(finding: Finding) -> None:
        line.clear()
        output.findings([finding])

    def lost(why: HostError, delay_s: float) -> None:
        line.clear()
        note_lost(why, delay_s)

    watch = TransportWatch(preset == EFA.name, show_finding)

    def show(chunk: bytes) -> None:
        line.raw(chunk, "stderr" if as_json else "stdout")
        watch.take(chunk)

    try:
        if output.has_status_line():
            with contextlib.suppress(HostError):  # `follow` connects again
                line = StatusLine(TrainingStatus(last_read or find(access, job_id)))
        try:
            job = follow(access, job_id, LogFollower(show, lost, rank), last_read)
        finally:
            line.clear()
    except KeyboardInterrupt:
        output.note(f"\nno longer following; that does not end job {job_id}")
        output.print_job_commands(access.cluster.name, job_id)
        return output.INTERRUPTED
    return print_end(access, job, as_json)


def print_end(access: Access, job: JobRecord, as_json: bool = False) -> int:
    """Print how a job ended; return its exit status.

    The logs of a job that failed are downloaded: their place and first error are printed.
    """
    from clusterctl.operations.logs import first_error, lost_in, with_reasons

    job, name = with_reasons(access, job), access.cluster.name
    if as_json:
        output.data(job.report())
    output.note(how_it_ended(job))
    lost = lost_in(job.status.attempts[-1]) if job.status.attempts else ""
    if lost:
        output.note(f"its last failed attempt lost {lost}")
        # It also tries the ways between the nodes: to EC2, and from here, all may be well.
        output.note(f"  the nodes, and the ways between them: clusterctl doctor {name}")
    if job.state in (JobState.FAILED, JobState.LOST):
        place = access.folder.failed_job(job.job_id)
        if fetched(access, job.job_id, place, "its logs"):
            lines: list[str] = []
            with contextlib.suppress(OSError):
                lines = first_error(place / "log", bool(lost))
            for line in lines:
                output.note(line)
            output.note(f"its record and logs are in {place}")
    return exit_status(job)


def fetched(access: Access, job_id: str, place: Path, what: str, model: bool = False) -> bool:
    """Fetch the record of a job that has ended, or with its model, and return whether that
    succeeded. An error is only printed, so that the caller can return the job's exit status."""
    from clusterctl.operations.fetch import Scope, can_write, fetch

    try:
        fetch(access, job_id, place, scope=Scope.ALL if model else Scope.RECORD)
    except (ClusterctlError, OSError) as error:
        why = error.message if isinstance(error, ClusterctlError) else error
        folder = place if can_write(place) else Path(job_id)
        again = f"clusterctl fetch {access.cluster.name} {job_id} {shlex.quote(str(folder))}"
        output.note(f"warning: {what} could not be copied here: {why}; try again: {again}")
        return False
    return True


def note_lost(why: HostError, delay_s: float) -> None:
    """Print that the connection to a log was lost, and is tried again."""
    output.note(f"{why.host}: {why.message}. Trying again in {format_duration(delay_s)}")


def how_it_ended(job: JobRecord) -> str:
    """Return `job … succeeded after 42 s`."""
    # A cancelled mpirun ends with 1 or 143, which means nothing.
    failed = job.exit_status and job.state is JobState.FAILED
    status = f" with exit status {job.exit_status}" if failed else ""
    lost = f": {job.why_lost}" if job.state is JobState.LOST else lost_output(job)
    return f"job {job.job_id} {job.state}{status} after {format_duration(job.duration_s)}{lost}"


def lost_output(job: JobRecord) -> str:
    """Return `; the log lacks its last 3.2 KiB: the disk was full`; empty if it is whole."""
    size = job.status.lost_bytes
    return f"; the log lacks its last {format_bytes(size)}: the disk was full" if size else ""


def exit_status(job: JobRecord) -> int:
    """Return the job's exit status; 1 if its end is not known."""
    return 1 if job.exit_status is None else job.exit_status
