"""Run under mpirun: does the trainer's step average gradients, and do two processes with half a
batch each train as one with all of it? Rank 0 prints the facts as JSON.

Every rank starts from weights and images of its own, on purpose.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(sys.argv[1]).parent))
import horovod.tensorflow as hvd  # noqa: E402
import tensorflow as tf  # noqa: E402
import train_imagenet_resnet_hvd as imagenet  # noqa: E402
from batches import synthetic_batch  # noqa: E402
from flags import parse_args  # noqa: E402
from model import build_resnet  # noqa: E402
from step import Trainer  # noqa: E402

FLAGS = ["--synthetic", "-m", "resnet18", "--image_size", "32", "-b", "2", "--nofp16"]
RATE = 0.05
STEPS = 3


def main() -> None:
    args = parse_args([*FLAGS, "--num_batches", "3"])
    imagenet.start(args)
    tf.keras.utils.set_random_seed(hvd.rank())
    images, labels = synthetic_batch(args, seed=hvd.rank())
    trainer = Trainer(args, build_resnet(args))

    facts: dict[str, Any] = {"images": everyones(checksum([images]))}
    facts["initial"] = everyones(checksum(trainer.weights))
    trainer.broadcast()
    facts["broadcast"] = everyones(checksum(trainer.weights))
    initial = [variable.numpy() for variable in trainer.model.variables]

    # The first step by hand, on the last layer: momentum starts at zero, so Nesterov's step is
    # rate x (1 + momentum) x the mean of the ranks' own gradients.
    kernel = trainer.weights[-2]
    with tf.GradientTape() as tape:
        final_loss = trainer.losses(images, labels)[1]
    own = tape.gradient(final_loss, kernel)
    for variable, value in zip(trainer.model.variables, initial):
        variable.assign(value)  # the forward pass moved the batch norms' means
    mean = tf.reduce_mean(hvd.allgather(own[tf.newaxis]), axis=0)
    expected = kernel - RATE * (1 + args.mom) * mean
    trainer.step(images, labels, tf.constant(RATE))
    facts["kernel_error"] = float(tf.reduce_max(tf.abs(kernel - expected)))
    facts["own_gradient_is_not_the_mean"] = float(tf.reduce_max(tf.abs(own - mean)))

    for _ in range(STEPS - 1):
        trainer.step(images, labels, tf.constant(RATE))
    facts["trained"] = everyones(checksum(trainer.weights + trainer.momenta))
    alone = as_one_process(args, initial, hvd.allgather(images), hvd.allgather(labels))
    facts["difference_from_one_process"] = largest_difference(alone, trainer.weights)
    facts["trained_that_far"] = largest_difference(
        initial_weights(trainer, initial), trainer.weights
    )
    if hvd.rank() == 0:
        print("FACTS " + json.dumps(facts), flush=True)


def as_one_process(args: Any, initial: list[Any], images: Any, labels: Any) -> list[Any]:
    """The same steps by one process alone that sees all images, and no Horovod.

    Batch norm counts over the images of one process, as in the original: so does it here, in
    halves. The rest is plain: the mean of all losses, its gradient, Keras' own optimizer.
    """
    model = build_resnet(args)
    for variable, value in zip(model.variables, initial):
        variable.assign(value)
    optimizer = tf.keras.optimizers.SGD(RATE, args.mom, nesterov=True)
    decayed = [w for w in model.trainable_variables if "batch_normalization" not in w.name]

    @tf.function(autograph=False)
    def step() -> None:
        with tf.GradientTape() as tape:
            parts = tf.split(images, hvd.size())
            logits = tf.concat([model(part, training=True) for part in parts], axis=0)
            losses = tf.keras.losses.sparse_categorical_crossentropy(labels, logits, True)
            decay = args.wdecay * tf.add_n([tf.reduce_sum(w**2) / 2 for w in decayed])
            loss = tf.reduce_mean(losses) + decay
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))

    for _ in range(STEPS):
        step()
    return list(model.trainable_variables)


def initial_weights(trainer: Any, initial: list[Any]) -> list[Any]:
    values = {v.ref(): value for v, value in zip(trainer.model.variables, initial)}
    return [values[w.ref()] for w in trainer.weights]


def largest_difference(some: list[Any], others: list[Any]) -> float:
    return max(float(tf.reduce_max(tf.abs(a - b))) for a, b in zip(some, others))


def checksum(tensors: list[Any]) -> str:
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in tensors)).hexdigest()


def everyones(text: str) -> list[str]:
    return list(hvd.allgather_object(text))


if __name__ == "__main__":
    main()
