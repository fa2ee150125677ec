"""Generated logs in the trainer's format."""

from __future__ import annotations

from collections.abc import Sequence

HEADER = "  Step Epoch Speed   Loss  FinLoss   LR\n"
ROW = "%6i %5.1f %7.1f %6.3f %6.3f %7.5f\n"
BANNER = """\
PY3.11.2 (main, Apr 28 2025, 14:11:48) [GCC 12.2.0]TF2.15.1
Horovod size: {gpus}
Using data from: /home/ubuntu/data/tf-imagenet/
Found {samples} training samples
Using a learning rate of {rate}
Checkpointing every 1000 steps
Saving summary every 156 steps
Using preprocessing threads per GPU: 5
"""
EVALUATION = """\
Horovod size: 8
Evaluating
Validation dataset size: 50000
  step  epoch  top1    top5     loss   checkpoint_time
{row}
Finished evaluation
"""


def banner(gpus: int = 32, samples: int = 1_281_167, rate: float = 3.2) -> str:
    return BANNER.format(gpus=gpus, samples=samples, rate=rate)


def rows(steps: Sequence[int], per_step: float = 8192 / 1_281_167, speed: float = 19000.0) -> str:
    """Return rows of a run. Their values follow from the step."""
    return "".join(
        ROW % (step, step * per_step, speed, 7 - step / 5000, 8 - step / 5000, step / 1e6)
        for step in steps
    )


def evaluation(step: int = 14075, top1: float = 75.0) -> str:
    row = f"{step:5d}  {90.0:5.1f}  {top1:5.3f}  {92.5:6.2f}  {0.97:6.2f}  UTC:2026-11-20 10:00:00"
    return EVALUATION.format(row=row)
