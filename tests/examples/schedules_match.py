"""Compare the trainer's decays with TensorFlow's own, which the tutorial's trainer used.

Prints the largest difference of each mode, relative to the peak rate, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.insert(0, str(Path(sys.argv[1]).parent))
import tensorflow as tf  # noqa: E402
from flags import parse_args  # noqa: E402
from schedule import DECAYS, make_schedule  # noqa: E402


def main() -> None:
    print("DIFFERENCES " + json.dumps({mode: difference(mode) for mode in DECAYS}))


def difference(mode: str) -> float:
    flags = ["--synthetic", "--num_epochs", "90", "--warmup_epochs", "5", "--lr_decay_mode", mode]
    schedule = make_schedule(parse_args(flags), 256)
    steps = range(schedule.warmup_steps, schedule.steps, 7)
    return max(
        abs(schedule.learning_rate(step) - tensorflows(mode, schedule, step)) / schedule.peak
        for step in steps
    )


def tensorflows(mode: str, schedule: Any, step: int) -> float:
    v1, peak, args = tf.compat.v1.train, schedule.peak, schedule.args
    since, length = tf.constant(float(step - schedule.warmup_steps)), schedule.decay_length
    if mode == "steps":
        boundaries = [epochs * schedule.steps_per_epoch for epochs in (30, 60, 80)]
        rates = [peak, peak * 0.1, peak * 0.01, peak * 0.001]
        rate = v1.piecewise_constant(tf.constant(step), boundaries, rates)
    elif mode in ("poly", "poly_cycle"):
        cycle = mode == "poly_cycle"
        rate = v1.polynomial_decay(peak, since, length, 0.00001, power=2, cycle=cycle)
    elif mode == "cosine":
        rate = v1.cosine_decay(peak, since, length)
    elif mode == "cosine_decay_restarts":
        first = length * args.cdr_first_decay_ratio
        rate = v1.cosine_decay_restarts(
            peak, since, first, args.cdr_t_mul, args.cdr_m_mul, args.cdr_alpha
        )
    else:
        rate = v1.linear_cosine_decay(
            peak, since, length, args.lc_periods, args.lc_alpha, args.lc_beta
        )
    return float(rate() if callable(rate) else rate)


if __name__ == "__main__":
    main()
