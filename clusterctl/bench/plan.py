"""Which runs a benchmark has, in which order, and the trainer's flags of each."""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from clusterctl.domain.errors import UsageError

SYNTHETIC, REAL = "synthetic", "real"
# A folder of its own: each run empties it, and imagenet_resnet may hold somebody's training.
LOG_FOLDER = "imagenet_resnet_bench"
# Rows in the measured part: enough to see a dip, few enough that reading the loss is free.
ROWS = 10
# From submitting a run to its first step: mpirun, TensorFlow's import, cuDNN's choices. Assumed
# for the estimate until there is a run that says better.
START_UP_S = 60.0


@dataclass(frozen=True, order=True)
class RunKey:
    """One run: `repeat` counts from 1. `data` is SYNTHETIC or REAL."""

    gpus: int
    data: str
    repeat: int

    def __str__(self) -> str:
        return f"{self.gpus} GPU{'s' * (self.gpus != 1)}, {self.data} data, repeat {self.repeat}"


@dataclass(frozen=True)
class BenchSettings:
    """What makes two runs comparable, as it is kept in the benchmark's folder.

    A folder holds runs of one such value; sizes and repeats may be added to it later. `data_dir`
    is empty without real data. `steps` are measured, after `warmup` steps that are not.
    """

    cluster: str
    steps: int = 200
    warmup: int = 50
    synthetic: bool = True
    data_dir: str = ""
    preset: str = "auto"
    arguments: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    mpi_arguments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("arguments", "variables", "mpi_arguments"):
            object.__setattr__(self, name, tuple(getattr(self, name)))

    @property
    def every(self) -> int:
        """Steps from row to row: a divisor of both lengths, so that no row mixes the two."""
        about = max(1, self.steps // ROWS)
        return next(n for n in range(about, 0, -1) if not self.steps % n and not self.warmup % n)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The data of its runs."""
        return (SYNTHETIC,) * self.synthetic + (REAL,) * bool(self.data_dir)

    def flags(self) -> tuple[str, ...]:
        """The trainer's flags of each run, before the user's. The row of step N is of the steps up
        to N, and the first step is 0: one more than both lengths is run."""
        return (
            *("--num_batches", str(self.warmup + self.steps + 1)),
            *("--display_every", str(self.every)),
            *("--log_dir", LOG_FOLDER, "--clear_log", "--save_checkpoints_steps", "1000000000"),
            *self.arguments,
        )

    def as_data(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def parse_sizes(text: str) -> tuple[int, ...]:
    """Sizes of `1,8,16`, each once, in rising order. Raises UsageError."""
    words = [word.strip() for word in text.split(",")]
    if not all(re.fullmatch("0*[1-9][0-9]{0,6}", word) for word in words):
        raise UsageError(f"not numbers of GPUs: {text!r}", "write them as 1,8,16,32")
    return tuple(sorted({int(word) for word in words}))


def order(
    settings: BenchSettings,
    sizes: Sequence[int],
    repeats: int,
    seed: int,
    done: Collection[RunKey] = (),
) -> list[RunKey]:
    """The runs that are not done, in random order: a cluster that warms up or drifts then adds
    noise to all sizes, and bias to none (Hoefler & Belli, SC'15, rule 9)."""
    keys = [
        RunKey(gpus, data, repeat)
        for gpus in sizes
        for data in settings.kinds
        for repeat in range(1, repeats + 1)
    ]
    random.Random(seed).shuffle(keys)
    return [key for key in keys if key not in done]
