"""The progress of a training in the last line of a terminal, below its log."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from clusterctl.cli import output
from clusterctl.domain.units import format_duration
from clusterctl.jobs.metrics.logs import EvaluationRow, GrowingLog, LogItem, TrainingRow

if TYPE_CHECKING:
    from clusterctl.node.jobs.spec import JobRecord

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
