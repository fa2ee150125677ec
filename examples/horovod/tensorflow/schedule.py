"""How long to train, and at which learning rate. Plain numbers; step 0 is the first."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from typing import Callable

TRAINING_IMAGES = 1_281_167  # ImageNet's; an epoch of synthetic data is as long
LOWEST_RATE = 0.00001  # poly ends there
LARC_RATE = 3.7  # LARC limits each layer's step itself, so the rate need not fit the batch


@dataclass(frozen=True)
class Schedule:
    """The steps of one training; see make_schedule."""

    args: argparse.Namespace
    images: int  # training images, an epoch's length
    global_batch: int  # images of one step
    steps: int
    steps_per_epoch: int
    warmup_steps: int
    peak: float  # the learning rate after the warm-up

    def epoch(self, step: int) -> float:
        return step * self.global_batch / self.images

    def learning_rate(self, step: int) -> float:
        """First a straight line from --warmup_lr up to the peak, then the decay."""
        if step < self.warmup_steps:
            warmup_lr = self.args.warmup_lr
            return warmup_lr + (self.peak - warmup_lr) * step / self.warmup_steps
        return DECAYS[self.args.lr_decay_mode](self, step - self.warmup_steps)

    @property
    def decay_length(self) -> int:
        return self.steps - self.warmup_steps


def make_schedule(args: argparse.Namespace, size: int, images: int = TRAINING_IMAGES) -> Schedule:
    """The schedule of `size` processes, each with a batch of its own.

    Raises ValueError when there are fewer images than one step takes, or steps than --trace_steps.
    """
    global_batch = args.batch_size * size  # Horovod: a step sees the batches of all.
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
    """Raise ValueError where --trace_steps begins behind the last step, which is `steps` - 1."""
    if args.trace_steps and args.trace_steps[0] >= steps:
        first = args.trace_steps[0]
        raise ValueError(f"--trace_steps begins with step {first}, and the last one is {steps - 1}")


def rate_for(global_batch: int) -> float:
    # Horovod: more processes see more images in a step, and the rate grows with them.
    return 0.1 * global_batch / 256


def whole_epochs(step: int, images: int, global_batch: int) -> int:
    """The epochs that an evaluation tells, begun ones counted as whole."""
    return math.ceil(step / (images / global_batch))


# Below, `step` counts from the end of the warm-up.


def steps_decay(schedule: Schedule, step: int) -> float:
    boundaries, rates = decay_steps_and_rates(
        schedule.args, schedule.steps_per_epoch, schedule.peak
    )
    step += schedule.warmup_steps
    return rates[sum(step > boundary for boundary in boundaries)]


def decay_steps_and_rates(
    args: argparse.Namespace, steps_per_epoch: int, peak: float
) -> tuple[list[int], list[float]]:
    """The steps after which the rate changes, and the rates: one more than changes."""
    boundaries = [int(epoch) * steps_per_epoch for epoch in args.lr_decay_steps.split(",")]
    if boundaries != sorted(boundaries):
        raise ValueError(f"--lr_decay_steps {args.lr_decay_steps} does not rise")
    if not args.lr_decay_lrs:
        return boundaries, [peak * 0.1**i for i in range(len(boundaries) + 1)]
    rates = [float(rate) for rate in args.lr_decay_lrs.split(",")]
    if len(rates) != len(boundaries) + 1:
        raise ValueError("--lr_decay_lrs takes one rate more than --lr_decay_steps has epochs")
    return boundaries, rates


def poly_decay(schedule: Schedule, step: int, length: int | None = None) -> float:
    length = length or schedule.decay_length
    left = 1 - min(step, length) / length
    return (schedule.peak - LOWEST_RATE) * left**2 + LOWEST_RATE


def poly_cycle_decay(schedule: Schedule, step: int) -> float:
    periods = max(1, math.ceil(step / schedule.decay_length))
    return poly_decay(schedule, step, length=periods * schedule.decay_length)


def cosine_decay(schedule: Schedule, step: int) -> float:
    done = min(step, schedule.decay_length) / schedule.decay_length
    return schedule.peak * 0.5 * (1 + math.cos(math.pi * done))


def cosine_restarts_decay(schedule: Schedule, step: int) -> float:
    """Periods of cosine, each `t_mul` times as long and `m_mul` times as high as the last."""
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
    """https://arxiv.org/abs/1709.07417: a straight line down, times a cosine."""
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
