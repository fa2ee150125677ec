"""Time the trainer's step and a bare Keras step in turn, under mpirun. Rank 0 prints the times.

    step_race.py EXAMPLES_FOLDER ROUNDS STEPS

The bare step is the obvious program: the same model and loss, Horovod's gradient tape with its
defaults, and Keras' own optimizer. Both use the same batch in memory; nothing is read or decoded.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from typing import Any, Callable

sys.path.insert(0, sys.argv[1])
import horovod.tensorflow as hvd  # noqa: E402
import tensorflow as tf  # noqa: E402
import train_imagenet_resnet_hvd as imagenet  # noqa: E402
from batches import synthetic_batch  # noqa: E402
from flags import parse_args  # noqa: E402
from model import build_resnet, decayed_weights  # noqa: E402
from schedule import make_schedule  # noqa: E402
from step import Trainer  # noqa: E402

FLAGS = ["--synthetic", "--num_epochs", "90", "--image_size", "64", "-b", "8", "--nofp16"]


def main() -> None:
    rounds, steps = map(int, sys.argv[2:4])
    args = parse_args(FLAGS)
    imagenet.start(args)
    images, labels = synthetic_batch(args)
    racers = {"trainer": trainers_step(args), "bare Keras": bare_step(args)}
    first, seconds = {}, {name: [] for name in racers}
    for name, step in racers.items():
        first[name] = timed(partial(step, 0, images, labels), 1)
    for round_number in range(rounds):
        # They swap places from round to round.
        for name in sorted(racers, reverse=bool(round_number % 2)):
            step = partial(racers[name], 1, images, labels)
            seconds[name].append(timed(step, steps))
    if hvd.rank() == 0:
        images_per_step = args.batch_size * hvd.size()
        told = {"seconds": seconds, "first": first, "images_per_step": images_per_step}
        print("TIMES " + json.dumps(told), flush=True)


def timed(step: Callable[[], Any], steps: int) -> float:
    """Return the seconds per step. An allreduce makes all processes begin together."""
    hvd.allreduce(tf.constant(0.0), name="together")
    begun = time.perf_counter()
    for _ in range(steps):
        loss = step()
    float(loss)  # wait for the device
    return (time.perf_counter() - begun) / steps


def trainers_step(args: Any) -> Callable[[int, Any, Any], Any]:
    """Return a step as the trainer's loop calls it."""
    trainer = Trainer(args, build_resnet(args))
    trainer.broadcast()
    schedule = make_schedule(args, hvd.size())

    def step(number: int, images: Any, labels: Any) -> Any:
        return trainer.step(images, labels, tf.constant(schedule.learning_rate(number)))[1]

    return step


def bare_step(args: Any) -> Callable[[int, Any, Any], Any]:
    """Return the bare Keras step."""
    model = build_resnet(args)
    optimizer = tf.keras.optimizers.SGD(0.1, args.mom, nesterov=True)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    decayed = decayed_weights(model)
    hvd.broadcast_variables(model.variables, root_rank=0)

    @tf.function
    def step(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
            loss += args.wdecay * tf.add_n([tf.nn.l2_loss(w) for w in decayed])
        tape = hvd.DistributedGradientTape(tape)
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return loss

    return lambda number, images, labels: step(images, labels)


if __name__ == "__main__":
    main()
