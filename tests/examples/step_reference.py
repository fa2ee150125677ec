"""Compares the trainer's step with the same mathematics in NumPy (float64). Prints facts as JSON.

The model is small enough to write its gradients by hand: a dense layer, a batch norm, and a dense
layer of 1000 logits. The facts also have the errors of float16 gradients, with a loss scale and
without, and the differences of the learning rate's decays from TensorFlow's.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(sys.argv[1]).parent))
import tensorflow as tf  # noqa: E402
import train_imagenet_resnet_hvd as imagenet  # noqa: E402
from flags import parse_args  # noqa: E402
from log import ROW  # noqa: E402
from schedule import DECAYS, make_schedule  # noqa: E402
from step import Trainer, cross_entropy, larc  # noqa: E402

BATCH, WIDE, CLASSES = 6, 8, 1000
RATES = (0.5, 0.002, 0.3)  # LARC changes nothing at the second rate
LARGE_BATCH = ["--use_larc", "--mom", "0.977", "--wdecay", "0.0005", "--loss_scale", "256."]
CASES = {
    "plain": [],
    "no momentum": ["--mom", "0"],
    "weight decay": ["--wdecay", "0.1"],
    "loss scale": ["--fp16", "--loss_scale", "1024"],
    "label smoothing": ["--label_smoothing", "0.1"],
    "larc": ["--use_larc"],
    "all of them": [*LARGE_BATCH, "--label_smoothing", "0.2", "--fp16"],
    "all of them, fused": [*LARGE_BATCH, "--label_smoothing", "0.2", "--fp16", "--fused_update"],
}


def main() -> None:
    args = flags([])
    imagenet.start(args)
    facts: dict[str, Any] = {
        "errors": {name: error_of(flags(words)) for name, words in CASES.items()},
        "zero_norms": zero_norms(),
        "smoothed": smoothed(),
        "decays": {mode: decay_difference(mode) for mode in DECAYS},
        "fifty_steps": fifty_steps(),
        "row": ROW % (1, 0.0, 2215.4, 6.923, 7.837, 0.00305),
        "wide_row": ROW % (1400, 71.6, 143451.0, 1.189, 1.72, 0.1485),
    }
    # Last, since the policy applies to the whole process.
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    facts["float16"] = {scale: float16_error(scale) for scale in ("1", "65536")}
    print("FACTS " + json.dumps(facts), flush=True)


def flags(words: list[str]) -> Any:
    exact = [] if "--fp16" in words else ["--nofp16"]
    return parse_args(["--synthetic", "--num_batches", "1", *exact, *words])


def error_of(args: Any) -> float:
    """Return the largest difference after three steps, as a share of the weights' change."""
    model = small_model()
    trainer = Trainer(args, model)
    images, labels = some_images()
    reference = Reference(args, [w.numpy().astype(np.float64) for w in trainer.weights])
    start = [w.copy() for w in reference.weights]
    for rate in RATES:
        told = trainer.step(tf.constant(images, tf.float32), labels, tf.constant(rate))
        losses = reference.step(images.reshape(BATCH, -1), labels, rate)
        np.testing.assert_allclose([float(loss) for loss in told], losses, rtol=1e-5)
    moved = max(np.abs(a - b).max() for a, b in zip(reference.weights, start))
    error = max(np.abs(a - b.numpy()).max() for a, b in zip(reference.weights, trainer.weights))
    return float(error / moved)


def fifty_steps() -> dict[str, Any]:
    """Train 50 steps with the update of each recipe. In step 20 the images overflow.

    Return the largest relative difference of a step's loss, the largest difference of the weights
    and batch norms' averages at the end, and the loss scales.
    """
    trainers = [Trainer(flags(words), small_model()) for words in ([], ["--fused_update"])]
    for trainer in trainers:
        trainer.scale.is_fixed = False
        trainer.scale.value.assign(1024.0)
    rng, differences = np.random.default_rng(3), []
    for step in range(50):
        images = rng.normal(size=(BATCH, 2, 2, 3)).astype(np.float32)
        images[0] = np.inf if step == 20 else images[0]
        labels = rng.integers(0, CLASSES, BATCH).astype(np.int32)
        ours, theirs = (float(each.step(images, labels, tf.constant(0.1))[0]) for each in trainers)
        differences += [abs(ours - theirs) / ours] if step != 20 else []
    states = [[v.numpy() for v in (*each.model.variables, *each.momenta)] for each in trainers]
    return {
        "losses": max(differences),
        "state": float(max(np.abs(a - b).max() for a, b in zip(*states))),
        "scales": [str(each.scale) for each in trainers],
    }


def small_model(factor: float = 0.3) -> tf.keras.Model:
    rng = np.random.default_rng(1)
    images = tf.keras.Input((2, 2, 3))
    hidden = tf.keras.layers.Dense(WIDE)(tf.keras.layers.Flatten()(images))
    normal = tf.keras.layers.BatchNormalization(epsilon=1e-4)(hidden)
    logits = tf.keras.layers.Dense(CLASSES)(normal)
    model = tf.keras.Model(images, tf.keras.layers.Activation("linear", dtype="float32")(logits))
    for weight in model.trainable_variables:
        if "beta" not in weight.name:  # beta stays zero, for which LARC has a rule
            weight.assign(rng.normal(0, factor, weight.shape))
    return model


def some_images() -> tuple[Any, Any]:
    rng = np.random.default_rng(2)
    return rng.normal(size=(BATCH, 2, 2, 3)), rng.integers(0, CLASSES, BATCH).astype(np.int32)


@dataclass
class Reference:
    """The same training in NumPy. Weights: kernel, bias, gamma, beta, kernel, bias."""

    args: Any
    weights: list[Any]

    def __post_init__(self) -> None:
        self.momenta = [np.zeros_like(w) for w in self.weights]

    def step(self, x: Any, labels: Any, rate: float) -> tuple[float, float]:
        args = self.args
        loss, final_loss, gradients = self.gradients(x, labels)
        for i, gradient in enumerate(gradients):
            if args.use_larc:
                norm, slope = np.linalg.norm(self.weights[i]), np.linalg.norm(gradient)
                own_rate = args.leta * norm / slope if norm and slope else 1.0
                gradients[i] = gradient * min(own_rate / rate, 1.0)
            self.momenta[i] = args.mom * self.momenta[i] + gradients[i]
            # Nesterov's step uses the momentum that the next step will have.
            ahead = gradients[i] + args.mom * self.momenta[i]
            self.weights[i] = self.weights[i] - rate * ahead
        return loss, final_loss

    def gradients(self, x: Any, labels: Any) -> tuple[float, float, list[Any]]:
        k1, b1, gamma, beta, k2, b2 = self.weights
        hidden = x @ k1 + b1
        mean, deviation = hidden.mean(0), np.sqrt(hidden.var(0) + 1e-4)
        unit = (hidden - mean) / deviation
        normal = unit * gamma + beta
        logits = normal @ k2 + b2
        logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        targets = np.full_like(logs, self.args.label_smoothing / CLASSES)
        targets[np.arange(BATCH), labels] += 1 - self.args.label_smoothing
        loss = -(targets * logs).sum(1).mean()
        decay = self.args.wdecay
        squares = sum((w**2).sum() / 2 for w in (k1, b1, k2, b2))

        slope = (np.exp(logs) - targets) / BATCH
        back = slope @ k2.T
        ahead = back * gamma
        through = (ahead - ahead.mean(0) - unit * (ahead * unit).mean(0)) / deviation
        return (
            loss,
            loss + decay * squares,
            [
                x.T @ through + decay * k1,
                through.sum(0) + decay * b1,
                (back * unit).sum(0),
                back.sum(0),
                normal.T @ slope + decay * k2,
                slope.sum(0) + decay * b2,
            ],
        )


def zero_norms() -> list[list[float]]:
    """Return LARC's factors for weight 0, for gradient 0, and for neither, at rates 0.5 and 4."""
    weights = [tf.Variable([0.0, 0.0]), tf.Variable([3.0, 4.0]), tf.Variable([3.0, 4.0])]
    gradients = [tf.constant([1.0, 0.0]), tf.constant([0.0, 0.0]), tf.constant([0.0, 2.0])]
    told = [larc(weights, gradients, tf.constant(rate), 0.1) for rate in (0.5, 4.0)]
    return [[float(tf.reduce_sum(each)) for each in scaled] for scaled in told]


def smoothed() -> float:
    """Return the loss of equal logits: log 1000, whatever the label smoothing is."""
    return float(cross_entropy(tf.constant([3]), tf.zeros((1, CLASSES)), 0.3)[0])


def float16_error(scale: str) -> float:
    """Return the error of the first layer's gradient if its inputs from behind are below 6e-8."""
    args = flags(["--fp16", "--loss_scale", scale, "--mom", "0", "--wdecay", "0"])
    model = small_model()
    gamma = model.trainable_variables[2]
    gamma.assign(gamma * 1e-6)  # makes the gradients behind the batch norm this small
    trainer = Trainer(args, model)
    images, labels = some_images()
    reference = Reference(args, [w.numpy().astype(np.float64) for w in trainer.weights])
    true = reference.gradients(images.reshape(BATCH, -1), labels)[2][0]
    before = trainer.weights[0].numpy()
    rate = 1e5  # makes the step as large as the weights, so that their float32 can represent it
    trainer.step(tf.constant(images, tf.float16), labels, tf.constant(rate))
    found = (before - trainer.weights[0].numpy()) / rate
    return float(np.linalg.norm(found - true) / np.linalg.norm(true))


def decay_difference(mode: str) -> float:
    """Return the largest difference from TensorFlow's decay, which the original program used.

    It is a share of the peak rate.
    """
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
