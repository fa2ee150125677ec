"""A line that says how far a long run is: images (or bytes) done, per second, and time left."""

from __future__ import annotations

import sys
import time
from typing import TextIO

TERMINAL_EVERY_S = 0.5
PLAIN_EVERY_S = 30.0


class Progress:
    """Counts towards `total` (0: not known). On a terminal one line that changes, elsewhere a line
    now and then."""

    def __init__(
        self, total: int, title: str = "", unit: str = "images", stream: TextIO | None = None
    ) -> None:
        self.total = total
        self.title = f"{title}: " if title else ""
        self.unit = unit
        self.stream = stream or sys.stderr
        self.terminal = self.stream.isatty()
        self.done = 0
        self.first: int | None = None  # what an earlier run did does not count as speed
        self.began = self.shown = time.monotonic()
        self.ended: float | None = None

    @property
    def seconds(self) -> float:
        return (self.ended or time.monotonic()) - self.began

    @property
    def per_second(self) -> float:
        return (self.done - (self.first or 0)) / max(self.seconds, 1e-9)

    def resume(self, done: int) -> None:
        """Begin at `done`."""
        if self.first is None:
            self.first = self.done = done

    def update(self, done: int) -> None:
        """Say that `done` are done in all; shows it when it is time to."""
        self.done = done
        now = time.monotonic()
        if now - self.shown >= (TERMINAL_EVERY_S if self.terminal else PLAIN_EVERY_S):
            self.shown = now
            self.show()

    def show(self) -> None:
        text = self.title + describe(self.done, self.total, self.per_second, self.unit)
        self.stream.write(f"\r\x1b[K{text}" if self.terminal else f"{text}\n")
        self.stream.flush()

    def close(self) -> None:
        """End the line. A run that did nothing stays quiet."""
        if self.ended is None:
            self.ended = time.monotonic()
            if self.terminal and self.done:
                self.show()
                self.stream.write("\n")


def describe(done: int, total: int, per_second: float, unit: str = "images") -> str:
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
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
