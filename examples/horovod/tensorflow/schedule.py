"""How long to train, and at which learning rate, in plain numbers. Step 0 is the first."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from typing import Callable

TRAINING_IMAGES = 1_281_167  # of ImageNet; an epoch of synthetic data has as many
LOWEST_RATE = 0.00001  # the learning rate at the end of the poly decays
# The default rate with --use_larc. LARC limits each layer's step, so the rate need not depend on
# the batch size.
LARC_RATE = 3.7


@dataclass(frozen=True)
class Schedule:
    """The length and learning rates of one training. make_schedule creates it."""

    args: argparse.Namespace
    images: int  # training images, the length of an epoch
    global_batch: int  # images of one step, of all processes together
    steps: int
    steps_per_epoch: int
    warmup_steps: int
    peak: float  # the learning rate after the warm-up

    def epoch(self, step: int) -> float:
        """Return how many epochs come before this step, as a fraction."""
        return step * self.global_batch / self.images

    def learning_rate(self, step: int) -> float:
        """Return the rate of a step: a line from --warmup_lr up to the peak, then the decay."""
        if step < self.warmup_steps:
            warmup_lr = self.args.warmup_lr
            return warmup_lr + (self.peak - warmup_lr) * step / self.warmup_steps
        return DECAYS[self.args.lr_decay_mode](self, step - self.warmup_steps)

    @property
    def decay_length(self) -> int:
        return self.steps - self.warmup_steps


def make_schedule(args: argparse.Namespace, size: int, images: int = TRAINING_IMAGES) -> Schedule:
    """Return the schedule of `size` processes, each with --batch_size images in a step.

    Raise ValueError if there are fewer images than one step takes, or if --trace_steps starts after
    the last step.
    """
    global_batch = args.batch_size * size  # Horovod: a step has the batches of all processes.
    if images < global_batch:
        raise ValueError(
            f"one step takes {global_batch} images and there are {images}: lower --batch_size"
        )
    steps_per_epoch = images // global_batch
    steps = images * args.num_epochs // global_batch if args.num_epochs else args.num_batches
    check_trace(args, steps)
    return Schedule(
        args=args,
        images=images,
        global_batch=global_batch,
        steps=steps,
        steps_per_epoch=steps_per_epoch,
        warmup_steps=steps_per_epoch * args.warmup_epochs,
        peak=args.lr or (LARC_RATE if args.use_larc else rate_for(global_batch)),
    )


def check_trace(args: argparse.Namespace, steps: int) -> None:
    """Raise ValueError if --trace_steps starts after the last step, which is `steps` - 1."""
    if args.trace_steps and args.trace_steps[0] >= steps:
        first = args.trace_steps[0]
        raise ValueError(f"--trace_steps begins with step {first}, and the last one is {steps - 1}")


def rate_for(global_batch: int) -> float:
    # Horovod: with more processes a step has more images, and the rate grows in proportion.
    return 0.1 * global_batch / 256


def whole_epochs(step: int, images: int, global_batch: int) -> int:
    """Return the epochs that an evaluation prints: an incomplete epoch counts as a whole one."""
    return math.ceil(step / (images / global_batch))


# In the decays below, `step` counts from the end of the warm-up.


def steps_decay(schedule: Schedule, step: int) -> float:
    """Return the rate that changes at --lr_decay_steps: a tenth each time, or --lr_decay_lrs."""
    boundaries, rates = decay_steps_and_rates(
        schedule.args, schedule.steps_per_epoch, schedule.peak
    )
    step += schedule.warmup_steps
    return rates[sum(step > boundary for boundary in boundaries)]


def decay_steps_and_rates(
    args: argparse.Namespace, steps_per_epoch: int, peak: float
) -> tuple[list[int], list[float]]:
    """Return the steps after which the rate changes, and the rates, one more than steps.

    Raise ValueError if the flags contradict each other.
    """
    epochs, rates = args.lr_decay_steps, args.lr_decay_lrs
    try:
        boundaries = [int(epoch) * steps_per_epoch for epoch in epochs.split(",")]
    except ValueError:
        raise ValueError(f"--lr_decay_steps {epochs}: whole epochs, as in 30,60,80") from None
    if boundaries != sorted(boundaries):
        raise ValueError(f"--lr_decay_steps {epochs} does not rise")
    if not rates:
        return boundaries, [peak * 0.1**i for i in range(len(boundaries) + 1)]
    try:
        rates = [float(rate) for rate in rates.split(",")]
    except ValueError:
        raise ValueError(f"--lr_decay_lrs {rates}: numbers, as in 0.4,0.04,0.004,0.0004") from None
    if not all(map(math.isfinite, rates)):
        raise ValueError(f"--lr_decay_lrs {args.lr_decay_lrs}: not all are numbers")
    if len(rates) != len(boundaries) + 1:
        raise ValueError("--lr_decay_lrs takes one rate more than --lr_decay_steps has epochs")
    return boundaries, rates


def poly_decay(schedule: Schedule, step: int, length: int | None = None) -> float:
    """Return a polynomial (power 2) from the peak to LOWEST_RATE over `length` or all steps."""
    length = length or schedule.decay_length
    left = 1 - min(step, length) / length
    return (schedule.peak - LOWEST_RATE) * left**2 + LOWEST_RATE


def poly_cycle_decay(schedule: Schedule, step: int) -> float:
    """Return poly_decay over the smallest multiple of the decay length that contains `step`."""
    periods = max(1, math.ceil(step / schedule.decay_length))
    return poly_decay(schedule, step, length=periods * schedule.decay_length)


def cosine_decay(schedule: Schedule, step: int) -> float:
    """Return half a cosine from the peak to 0."""
    done = min(step, schedule.decay_length) / schedule.decay_length
    return schedule.peak * 0.5 * (1 + math.cos(math.pi * done))


def cosine_restarts_decay(schedule: Schedule, step: int) -> float:
    """Return repeated half cosines, each `cdr_t_mul` times longer and `cdr_m_mul` times higher."""
    args = schedule.args
    done = step / (schedule.decay_length * args.cdr_first_decay_ratio)
    period, length = 0, 1.0
    while done >= length:
        done -= length
        length *= args.cdr_t_mul
        period += 1
    cosine = 0.5 * args.cdr_m_mul**period * (1 + math.cos(math.pi * done / length))
    return schedule.peak * ((1 - args.cdr_alpha) * cosine + args.cdr_alpha)


def linear_cosine_decay(schedule: Schedule, step: int) -> float:
    """Return a falling straight line times a cosine: https://arxiv.org/abs/1709.07417."""
    args = schedule.args
    done = min(step, schedule.decay_length) / schedule.decay_length
    cosine = 0.5 * (1 + math.cos(2 * math.pi * args.lc_periods * done))
    return schedule.peak * ((args.lc_alpha + 1 - done) * cosine + args.lc_beta)


DECAYS: dict[str, Callable[[Schedule, int], float]] = {
    "steps": steps_decay,
    "poly": poly_decay,
    "poly_cycle": poly_cycle_decay,
    "cosine": cosine_decay,
    "cosine_decay_restarts": cosine_restarts_decay,
    "linear_cosine": linear_cosine_decay,
}
