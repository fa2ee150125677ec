"""Signals that end a command, one for each press, and raised only where it can be ended.

A closed terminal sends SIGHUP twice, a millisecond apart: the kernel one, the shell the other. The
default handlers would raise the second one wherever the program then is, such as in the code that
handles the first.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from clusterctl.domain.timeouts import Clock

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Signals that follow one that counted within so many seconds belong to it: a key that was pressed
# twice, or the signals of a closed terminal.
ONE_PRESS_S = 2.0
REASONS = {
    signal.SIGINT: "Ctrl-C",
    signal.SIGTERM: "SIGTERM",
    signal.SIGHUP: "SIGHUP, as from a terminal that is closed",
}

Result = TypeVar("Result")


class Interrupts:
    """Counts the signals that ask for an end, and raises KeyboardInterrupt for them on request.

    `reason` is the first signal in words; empty if none has come. `presses` counts those that
    a user sends on purpose: not a SIGHUP, and not one within ONE_PRESS_S of another signal.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at = float("-inf")
        self._armed = False
        self._beyond: int | None = None
        self.reason = ""
        self.presses = 0

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle the signals in the block. Those that are ignored, as by nohup, stay ignored.

        Only the main thread can do this. The former handlers are restored.
        """
        kept = {number: signal.getsignal(number) for number in SIGNALS}
        kept = {number: own for number, own in kept.items() if own not in (signal.SIG_IGN, None)}
        try:
            for number in kept:
                signal.signal(number, self._receive)
            yield
        finally:
            for number, own in kept.items():
                signal.signal(number, own)

    def note(self, number: signal.Signals = signal.SIGINT) -> None:
        """Note that a signal has come."""
        self.reason = self.reason or REASONS[number]

    def interruptible(self, action: Callable[[], Result], beyond: int | None = None) -> Result:
        """Return the result of `action`, in which signals raise KeyboardInterrupt.

        By default any signal does, also one that has come before. `beyond` is a number of presses:
        then only a press beyond that number does. Two raises are at least ONE_PRESS_S apart.
        """
        try:
            try:
                self._beyond, self._armed = beyond, True
                if self._is_due():
                    raise KeyboardInterrupt
                return action()
            finally:
                self._armed = False
        except KeyboardInterrupt:
            # It may have come in place of the assignment above.
            self._armed = False
            raise

    def _is_due(self) -> bool:
        if not self._armed:
            return False
        return bool(self.reason) if self._beyond is None else self.presses > self._beyond

    def _receive(self, number: int, frame: Any) -> None:
        now = self._clock.monotonic()
        if now - self._at < ONE_PRESS_S:
            return
        self._at = now
        is_first = not self.reason
        self.note(signal.Signals(number))
        if number != signal.SIGHUP:
            self.presses += 1
        elif not is_first:
            return
        if self._is_due():
            raise KeyboardInterrupt
