"""How a training is seen: a line for each epoch, as Keras leaves its progress bar (in a log no bar
can be redrawn), and on request its stacks."""

from __future__ import annotations

import faulthandler
import fcntl
import math
import os
import signal
import time
from typing import Any


class Diverged(Exception):
    """The loss is no number any more."""


class EpochLog:
    """Prints `Epoch 1/12` and, when the epoch is over,

        468/468 [==============================] - 3s 6ms/step - loss: 0.2451 - accuracy: 0.9266

    with the metrics of validation and the learning rate behind it. Always milliseconds and plain
    decimals, which is what metric definitions (regular expressions over a log) look for.
    """

    def __init__(self, epochs: int, steps: int, speaks: bool) -> None:
        self.epochs, self.steps, self.speaks = epochs, steps, speaks
        self.began = 0.0

    def begin(self, epoch: int, logs: Any = None) -> None:
        self.began = time.monotonic()
        if self.speaks:
            print(f"Epoch {epoch + 1}/{self.epochs}", flush=True)

    def end(self, epoch: int, logs: Any = None) -> None:
        """Raises Diverged. `logs` are averages over all ranks, so that all of them stop."""
        if self.speaks:
            seconds = time.monotonic() - self.began
            print(epoch_line(self.steps, seconds, logs or {}), flush=True)
        if not math.isfinite((logs or {}).get("loss", 0.0)):
            raise Diverged(
                f"the loss is {logs['loss']}: lower the learning rate, or warm up longer"
            )


def epoch_line(steps: int, seconds: float, metrics: dict[str, float]) -> str:
    values = [f"{name}: {value:.{6 if name == 'lr' else 4}f}" for name, value in metrics.items()]
    pace = f"{seconds:.0f}s {1000 * seconds / steps:.0f}ms/step"
    return " - ".join([f"{steps}/{steps} [{'=' * 30}]", pace, *values])


def offer_stacks() -> None:
    """Let `clusterctl diagnose` see where this process is, also where the kernel lets nobody look
    into it: on a signal that nothing else uses, its stacks are written to memory that it shares."""
    if hasattr(os, "memfd_create"):
        memory = os.memfd_create("clusterctl-stacks")
        # Whoever asks empties it first.
        fcntl.fcntl(memory, fcntl.F_SETFL, os.O_APPEND)
        faulthandler.register(signal.SIGRTMIN + 7, memory)
