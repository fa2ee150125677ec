"""What a training run came to: the rows of its table, its evaluations, its speed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

# The trainer prints its first two rows after the steps 0 and 1: start-up counts in their speed.
LAST_STARTUP_STEP = 1
# The epoch column has one decimal.
EPOCH_ROUNDING = 0.05
IMAGENET_SAMPLES = 1_281_167


@dataclass(frozen=True)
class TrainingRow:
    """One row of the trainer's table.

    `images_per_s` is over all GPUs since the row before; `final_loss` is `loss` with weight decay.
    `startup`: the speed counts time in which the program started.
    """

    step: int
    epoch: float
    images_per_s: float
    loss: float
    final_loss: float
    learning_rate: float
    startup: bool = False


@dataclass(frozen=True)
class EvaluationRow:
    """One checkpoint on the validation images; `top1` and `top5` in percent, the time in UTC."""

    step: int
    epoch: float
    top1: float
    top5: float
    loss: float
    checkpoint_time: str


@dataclass(frozen=True)
class RunFacts:
    """What the log says beside its tables; None where it does not.

    `resumed_from`: the steps that were done when this part of the run began. `last_part_s`: how
    long the part that finished took, where the whole is not known since an earlier one was cut
    short or is not in the logs.
    """

    gpus: int | None = None
    data: str | None = None
    training_samples: int | None = None
    validation_samples: int | None = None
    peak_learning_rate: float | None = None
    tensorflow: str | None = None
    resumed_from: int | None = None
    finished_in_s: float | None = None
    last_part_s: float | None = None

    @property
    def finished(self) -> bool:
        """Whether the run came to its end, in one part or in several."""
        return self.finished_in_s is not None or self.last_part_s is not None

    @property
    def synthetic(self) -> bool:
        """Whether the log's banner is whole and names no data."""
        return self.peak_learning_rate is not None and not (self.data or self.training_samples)

    @property
    def other_data(self) -> bool:
        """Whether it trained on images that are not ImageNet's, give or take some corrupt ones."""
        lacking = abs((self.training_samples or IMAGENET_SAMPLES) - IMAGENET_SAMPLES)
        return self.synthetic or lacking > IMAGENET_SAMPLES / 100


@dataclass(frozen=True)
class Run:
    """One training run, in the order of its steps. `resumed_at`: steps at which it went on."""

    facts: RunFacts = RunFacts()
    rows: tuple[TrainingRow, ...] = ()
    evaluations: tuple[EvaluationRow, ...] = ()
    resumed_at: tuple[int, ...] = ()

    @cached_property
    def images_per_s(self) -> float | None:
        """All images by all seconds, of the rows without start-up; None when there are none."""
        return throughput(self.rows)

    @property
    def images_per_s_per_gpu(self) -> float | None:
        speed, gpus = self.images_per_s, self.facts.gpus
        return speed / gpus if speed is not None and gpus else None

    @cached_property
    def epochs_per_step(self) -> float | None:
        """Of all rows, since the column is rounded; None while it shows 0.0.

        A step is a whole number of images on each GPU: once that leaves only one, it is exact.
        """
        last = self.rows[-1] if self.rows else None
        if not (last and last.step and last.epoch):
            return None
        measured, rounding = last.epoch / last.step, EPOCH_ROUNDING / last.step
        samples = self.facts.training_samples or IMAGENET_SAMPLES
        gpus = self.facts.gpus or 0
        if gpus and rounding * samples < gpus / 2:
            exact = round(measured * samples / gpus) * gpus / samples
            if abs(exact - measured) <= rounding * (1 + 1e-9):
                return exact
        return measured

    @property
    def not_a_number_from(self) -> int | None:
        """The first step whose loss is not a finite number."""
        lost = (row for row in self.rows if not math.isfinite(row.loss + row.final_loss))
        return next((row.step for row in lost), None)

    @property
    def result(self) -> EvaluationRow | None:
        """The evaluation of the latest checkpoint."""
        return max(self.evaluations, key=lambda row: row.step, default=None)


def throughput(rows: Sequence[TrainingRow]) -> float | None:
    """Images per second over the rows: the steps of each weigh by the time they took.

    A gap in the table (lines that were left out) weighs as one ordinary interval, since the speed
    after it is of the interval before it alone.
    """
    usual = usual_interval(rows)
    steps = seconds = 0.0
    for before, row in zip((None, *rows), rows):
        if row.startup or not (math.isfinite(row.images_per_s) and row.images_per_s > 0):
            continue
        interval = row.step - before.step if before else usual
        weight = min(interval, usual) if interval > 0 else usual
        steps += weight
        seconds += weight / row.images_per_s
    return steps / seconds if seconds else None


def usual_interval(rows: Sequence[TrainingRow]) -> int:
    """Steps from row to row as most rows have it; 1 for a single row."""
    intervals = Counter(
        after.step - before.step for before, after in zip(rows, rows[1:]) if not after.startup
    )
    # Of two as frequent the longer: the row after step 1 has one step less to go.
    return max(intervals, key=lambda steps: (intervals[steps], steps), default=1)
