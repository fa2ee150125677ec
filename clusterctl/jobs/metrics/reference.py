"""The training runs that the tutorial shows, and the comparison of a run with one of them."""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional

from clusterctl.jobs.metrics.logs import TrainingRow
from clusterctl.jobs.metrics.runs import Run, read_runs, usual_interval
from clusterctl.jobs.trainer import IMAGENET_IMAGES

FOLDER = Path(__file__).parent / "reference-runs"
# Values are interpolated between two rows at most this many usual intervals apart: a wider gap
# means that rows are missing, and the values between them are unknown.
WIDEST_BRIDGE = 1.5


@dataclass(frozen=True)
class Reference:
    """A run of ResNet-50 that the tutorial shows (2018, p3.16xlarge); its table is an excerpt."""

    name: str
    gpus: int
    batch_size: int = 256
    synthetic: bool = False

    @functools.cached_property
    def run(self) -> Run:
        """The run as it is read from the table."""
        [run] = read_runs([(FOLDER / f"{self.name}.txt").read_text()])
        samples = None if self.synthetic else IMAGENET_IMAGES
        return replace(run, facts=replace(run.facts, gpus=self.gpus, training_samples=samples))

    @property
    def title(self) -> str:
        data = ", synthetic data" if self.synthetic else ""
        return f"the tutorial's run on {self.gpus} GPUs{data}"

    def epoch(self, step: int) -> float:
        """Return the epoch at a step; the table has it only rounded to one decimal."""
        return step * self.batch_size * self.gpus / IMAGENET_IMAGES


REFERENCES = (
    Reference("imagenet-32", 32),
    Reference("imagenet-256", 256),
    Reference("synthetic-4", 4, synthetic=True),
)


@dataclass(frozen=True)
class ComparedRow:
    """Both runs at one epoch of the reference; the other run's values are interpolated."""

    epoch: float
    loss: float
    reference_loss: float
    final_loss: float
    reference_final_loss: float
    learning_rate: float
    reference_learning_rate: float


@dataclass(frozen=True)
class Comparison:
    """A run compared with one of the tutorial's. What cannot be compared is None or left out.

    The differences are the run's accuracy minus the reference's, in percentage points.
    """

    reference: Reference
    rows: tuple[ComparedRow, ...]
    images_per_s_per_gpu: Optional[float]
    reference_images_per_s_per_gpu: Optional[float]
    top1_difference: Optional[float]
    top5_difference: Optional[float]
    json_names = (
        *("reference", "images_per_s_per_gpu", "reference_images_per_s_per_gpu", "speed_ratio"),
        *("top1_difference", "top5_difference", "rows"),
    )

    @property
    def speed_ratio(self) -> Optional[float]:
        """The run's speed per GPU divided by the reference's; None if either is unknown."""
        ours, theirs = self.images_per_s_per_gpu, self.reference_images_per_s_per_gpu
        return ours / theirs if ours is not None and theirs else None


def choose_reference(run: Run) -> Reference:
    """Return the reference whose number of GPUs is nearest by ratio; 32 if the run's is unknown.

    A run on synthetic data is compared with the reference on synthetic data.
    """
    if run.facts.synthetic:
        return next(each for each in REFERENCES if each.synthetic)
    gpus = run.facts.gpus or 32
    real = [each for each in REFERENCES if not each.synthetic]
    return min(real, key=lambda each: abs(math.log(each.gpus / gpus)))


def compare(run: Run, reference: Reference) -> Comparison:
    """Compare a run with a reference at every epoch that both have rows for.

    Accuracies are compared only if both were evaluated within half an epoch, on ImageNet.
    """
    theirs = reference.run
    top1 = top5 = None
    ours, best = run.result, theirs.result
    if ours and best and not run.facts.other_data and abs(ours.epoch - best.epoch) <= 0.5:
        top1, top5 = ours.top1 - best.top1, ours.top5 - best.top5
    return Comparison(
        reference=reference,
        rows=tuple(_compared_rows(run, reference)),
        images_per_s_per_gpu=run.images_per_s_per_gpu,
        reference_images_per_s_per_gpu=theirs.images_per_s_per_gpu,
        top1_difference=top1,
        top5_difference=top5,
    )


def _compared_rows(run: Run, reference: Reference) -> list[ComparedRow]:
    # Losses on different images cannot be compared.
    if run.facts.other_data or reference.synthetic or not run.epochs_per_step:
        return []
    compared = []
    for theirs in reference.run.rows:
        epoch = reference.epoch(theirs.step)
        ours = at_step(run.rows, epoch / run.epochs_per_step)
        if ours is not None and theirs.step != 1:
            both = zip(ours, (theirs.loss, theirs.final_loss, theirs.learning_rate))
            compared.append(ComparedRow(epoch, *(value for pair in both for value in pair)))
    return compared


def at_step(rows: Sequence[TrainingRow], step: float) -> tuple[float, float, float] | None:
    """Return loss, final loss and learning rate at a step, interpolated linearly between two rows.

    Return None if there is no row close enough on both sides.
    """
    if abs(step - round(step)) < 1e-6 * max(1.0, step):
        step = round(step)  # a whole step, but for the rounding of floating point numbers
    index = bisect_left([row.step for row in rows], step)
    if index == len(rows):
        return None
    after = rows[index]
    if after.step == step:
        return after.loss, after.final_loss, after.learning_rate
    if index == 0:
        return None
    before = rows[index - 1]
    if after.step - before.step > WIDEST_BRIDGE * usual_interval(rows):
        return None
    share = (step - before.step) / (after.step - before.step)

    def between(name: str) -> float:
        first, second = getattr(before, name), getattr(after, name)
        return float(first + share * (second - first))

    return between("loss"), between("final_loss"), between("learning_rate")
