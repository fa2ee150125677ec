"""Whether a job makes steps: from its output and the size of the trainer's metrics."""

from __future__ import annotations

import re
from typing import Optional

# A tag of mpirun's before a line: `[1,0]<stderr>:`. Open MPI 5 adds its job's name.
TAG = re.compile(rb"^\[(?:[^\s\[\]]{1,200}@)?\d{1,9},\d{1,6}\]<std\w{3}>: ?")
# Lines that are no sign of progress: clusterctl's own, Horovod's warnings about stalled ranks with
# the lists that follow them, and empty lines.
NO_STEP = re.compile(
    rb"^clusterctl|stall_inspector|tensors were submitted to be reduced|"
    rb"subset of ranks and are waiting|cause deadlock|^(Missing|Stalled) ranks:|^\d+!?: \[|^\s*$"
)
# Before its first step a job may be silent this many times as long as after it: it imports
# libraries, opens data and compiles the first batch.
START_UP = 3


class TrainingProgress:
    """What an attempt of a job has done. Times are seconds of a monotonic clock.

    `last` is the time of the last sign of progress.
    """

    def __init__(self, now: float, rows: int = 0) -> None:
        self.began = self.last = now
        self.has_stepped = False
        self._rows = rows
        self._rest = b""

    def add(self, content: bytes, now: float) -> None:
        """Add output, as it came. An incomplete last line counts when the rest of it comes."""
        *lines, self._rest = (self._rest + content).split(b"\n")
        self._rest = self._rest[-(1 << 16) :]
        if any(not NO_STEP.search(TAG.sub(b"", line).strip()) for line in lines):
            self.last = now

    def add_rows(self, size: int, now: float) -> None:
        """Add the size of the metrics, in bytes. They shrink when the job clears what an earlier
        job left; that is no step."""
        if size > self._rows:
            self.has_stepped, self.last = True, now
        self._rows = size

    def silent_s(self, after_s: float, now: float) -> Optional[float]:
        """Return the seconds since the last progress if that is too long, else None.

        Too long is more than `after_s`. Before the first step, nothing is too long until START_UP
        times `after_s` after the start.
        """
        if not self.has_stepped and now - self.began < START_UP * after_s:
            return None
        return now - self.last if now - self.last > after_s else None
