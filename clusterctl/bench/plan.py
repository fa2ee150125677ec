"""The plan of a benchmark: its runs, their random order, and the trainer's flags."""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from clusterctl.domain.errors import UsageError
from clusterctl.jobs.trainer import TUTORIAL

SYNTHETIC, REAL = "synthetic", "real"
# Each run empties this folder, so it is not imagenet_resnet, which may have a user's checkpoints.
LOG_FOLDER = "imagenet_resnet_bench"
# Rows in the measured part: enough to see a dip in speed, few enough that reading the loss, which
# the trainer does for each row, costs nothing.
ROWS = 10
# Seconds from submitting a run to its first step: mpirun, TensorFlow's import, cuDNN's autotuning.
# The estimate assumes this until there is a finished run.
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
    """The settings that all runs of a benchmark share, kept in the benchmark's folder.

    Sizes and repeats are no part of them, and may be added later. `data_dir` is empty without real
    data. `steps` are measured, after `warmup` steps that are not.
    """

    cluster: str
    steps: int = 200
    warmup: int = 50
    synthetic: bool = True
    data_dir: str = ""
    preset: str = "auto"
    recipe: str = TUTORIAL.name
    arguments: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    mpi_arguments: tuple[str, ...] = ()

    def check_arguments(self) -> None:
        """Raise UsageError for a trainer's option that the benchmark sets itself, and if there is
        nothing to train on."""
        if not self.kinds:
            raise UsageError("bench trains on noise, on data_dir, or on both", "synthetic=True")
        own = {word for word in replace(self, arguments=()).flags() if word.startswith("--")}
        for word in self.arguments:
            flag = word.partition("=")[0]
            if flag in {*own, "--num_epochs"}:
                raise UsageError(
                    f"bench sets {flag} itself: its rows would not be those of the measured steps",
                    "the number of steps: --steps and --warmup",
                )

    @property
    def every(self) -> int:
        """Steps between rows: a divisor of `steps` and `warmup`, so that no row covers both."""
        about = max(1, self.steps // ROWS)
        return next(n for n in range(about, 0, -1) if not self.steps % n and not self.warmup % n)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of data of the runs: SYNTHETIC, REAL or both."""
        return (SYNTHETIC,) * self.synthetic + (REAL,) * bool(self.data_dir)

    def flags(self) -> tuple[str, ...]:
        """Return the trainer's flags of each run, with the user's at the end.

        A row with step N covers the steps up to N, and the first step is 0: so one step more than
        `warmup` + `steps` is run.
        """
        return (
            *("--num_batches", str(self.warmup + self.steps + 1)),
            *("--display_every", str(self.every)),
            *("--log_dir", LOG_FOLDER, "--clear_log", "--save_checkpoints_steps", "1000000000"),
            *self.arguments,
        )


def parse_sizes(text: str) -> tuple[int, ...]:
    """Return the numbers of GPUs in a text such as `1,8,16`, ascending and without duplicates.

    Raises UsageError.
    """
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
    """Return the runs that are not done, in a random order that depends only on the arguments.

    A cluster that warms up or drifts then adds noise to all sizes, and bias to none (Hoefler &
    Belli, SC'15, rule 9).
    """
    keys = [
        RunKey(gpus, data, repeat)
        for gpus in sizes
        for data in settings.kinds
        for repeat in range(1, repeats + 1)
    ]
    random.Random(seed).shuffle(keys)
    return [key for key in keys if key not in done]
