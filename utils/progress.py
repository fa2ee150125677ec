"""A line that says how far a long run is: images done, images/s, time left."""

from __future__ import annotations

import sys
import time
from typing import TextIO

TERMINAL_EVERY_S = 0.5
PLAIN_EVERY_S = 30.0


class Progress:
    """Counts images towards `total`. One line that changes on a terminal, a line now and then
    elsewhere."""

    def __init__(self, total: int, title: str = "", stream: TextIO = sys.stderr) -> None:
        self.total = total
        self.title = f"{title}: " if title else ""
        self.stream = stream
        self.done = 0
        self.began = self.shown = time.monotonic()
        self.ended: float | None = None
        self.terminal = stream.isatty()

    @property
    def seconds(self) -> float:
        return (self.ended or time.monotonic()) - self.began

    @property
    def per_second(self) -> float:
        return self.done / max(self.seconds, 1e-9)

    def update(self, done: int) -> None:
        """Say that `done` images are done in all; shows it when it is time to."""
        self.done = done
        now = time.monotonic()
        if now - self.shown >= (TERMINAL_EVERY_S if self.terminal else PLAIN_EVERY_S):
            self.shown = now
            self.show()

    def show(self) -> None:
        text = self.title + describe(self.done, self.total, self.per_second)
        self.stream.write(f"\r\x1b[K{text}" if self.terminal else f"{text}\n")
        self.stream.flush()

    def close(self) -> None:
        """End the line. A run that never showed anything on a terminal stays quiet."""
        if self.ended is None:
            self.ended = time.monotonic()
            if self.terminal and self.done:
                self.show()
                self.stream.write("\n")


def describe(done: int, total: int, per_second: float) -> str:
    text = f"{done:,} of {total:,} images, {per_second:,.0f} images/s"
    if 0 < done < total and per_second > 0:
        text += f", {duration((total - done) / per_second)} left"
    return text


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
