"""The progress line of a long run: images or bytes done, their rate, and the time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

# Seconds between two updates of the line on a terminal, and between two lines elsewhere.
TERMINAL_EVERY_S = 0.5
PLAIN_EVERY_S = 30.0


class Progress:
    """Shows progress towards `total`, or without a total if it is 0.

    On a terminal it is one line that is updated. Elsewhere it prints a line at long intervals.
    `now` returns the time in seconds.
    """

    def __init__(
        self,
        total: int,
        title: str = "",
        unit: str = "images",
        stream: TextIO | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.now = now
        self.total = total
        self.title = f"{title}: " if title else ""
        self.unit = unit
        self.stream = stream or sys.stderr
        self.terminal = self.stream.isatty()
        self.done = 0
        self.first: int | None = None  # done by an earlier run; left out of the rate
        self.began = self.shown = self.now()
        self.ended: float | None = None

    @property
    def seconds(self) -> float:
        return (self.ended or self.now()) - self.began

    @property
    def per_second(self) -> float:
        return (self.done - (self.first or 0)) / max(self.seconds, 1e-9)

    def resume(self, done: int) -> None:
        """Set what an earlier run has done. Only the first call counts."""
        if self.first is None:
            self.first = self.done = done

    def update(self, done: int) -> None:
        """Set how many are done in all. Show it if the last update is long enough ago."""
        self.done = done
        now = self.now()
        if now - self.shown >= (TERMINAL_EVERY_S if self.terminal else PLAIN_EVERY_S):
            self.shown = now
            self.show()

    def show(self) -> None:
        text = self.title + describe(self.done, self.total, self.per_second, self.unit)
        self.stream.write(f"\r\x1b[K{text}" if self.terminal else f"{text}\n")
        self.stream.flush()

    def close(self) -> None:
        """Show the final state and end the line. A run that did nothing prints nothing."""
        if self.ended is None:
            self.ended = self.now()
            if self.terminal and self.done:
                self.show()
                self.stream.write("\n")


def describe(done: int, total: int, per_second: float, unit: str = "images") -> str:
    """Return `120 of 500 images, 40 images/s, 10 s left`."""
    if unit == "bytes":
        amount = f"{done / 1e9:,.2f}" + (f" of {total / 1e9:,.2f}" if total else "")
        text = f"{amount} GB, {per_second / 1e6:,.1f} MB/s"
    else:
        amount = f"{done:,}" + (f" of {total:,}" if total else "")
        text = f"{amount} {unit}, {per_second:,.0f} {unit}/s"
    if 0 < done < total and per_second > 0:
        text += f", {duration((total - done) / per_second)} left"
    return text


def duration(seconds: float) -> str:
    """Return `2 h 07 min`, `3 min 05 s` or `42 s`."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
