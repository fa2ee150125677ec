"""What a training shows of itself: a line for each epoch, and its stacks on request.

A log file cannot redraw Keras's progress bar, so the line is the bar at the end of an epoch.
"""

from __future__ import annotations

import faulthandler
import fcntl
import math
import os
import signal
import time
from typing import Any


class Diverged(Exception):
    """The loss is infinite or NaN."""


class EpochLog:
    """Prints `Epoch 1/12` and, at the end of the epoch,

        468/468 [==============================] - 3s 6ms/step - loss: 0.2451 - accuracy: 0.9266

    followed by the validation metrics and the learning rate. `speaks`: whether this rank prints.

    The pace is always in milliseconds, and metrics are plain decimals: SageMaker's metric
    definitions (regular expressions that search a log) expect that.
    """

    def __init__(self, epochs: int, steps: int, speaks: bool) -> None:
        self.epochs, self.steps, self.speaks = epochs, steps, speaks
        self.began = 0.0

    def begin(self, epoch: int, logs: Any = None) -> None:
        self.began = time.monotonic()
        if self.speaks:
            print(f"Epoch {epoch + 1}/{self.epochs}", flush=True)

    def end(self, epoch: int, logs: Any = None) -> None:
        """Print the line. Raise Diverged if the loss is not finite.

        `logs` are averages over all ranks, so all ranks stop together.
        """
        if self.speaks:
            seconds = time.monotonic() - self.began
            print(epoch_line(self.steps, seconds, logs or {}), flush=True)
        if not math.isfinite((logs or {}).get("loss", 0.0)):
            raise Diverged(
                f"the loss is {logs['loss']}: lower the learning rate, or warm up longer"
            )


def epoch_line(steps: int, seconds: float, metrics: dict[str, float]) -> str:
    """Return Keras's progress bar as it is at the end of an epoch."""
    values = [f"{name}: {value:.{6 if name == 'lr' else 4}f}" for name, value in metrics.items()]
    pace = f"{seconds:.0f}s {1000 * seconds / steps:.0f}ms/step"
    return " - ".join([f"{steps}/{steps} [{'=' * 30}]", pace, *values])


def offer_stacks() -> None:
    """Write this process's Python stacks to a file in memory on signal SIGRTMIN + 7.

    `clusterctl diagnose` sends this signal and reads the file if the kernel does not allow reading
    the process itself. Nothing else uses the signal.
    """
    if hasattr(os, "memfd_create"):
        memory = os.memfd_create("clusterctl-stacks")
        # The reader truncates the file before each request: append, so that no hole is left.
        fcntl.fcntl(memory, fcntl.F_SETFL, os.O_APPEND)
        faulthandler.register(signal.SIGRTMIN + 7, memory)
