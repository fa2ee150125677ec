"""Checks the trainer's step on two ranks under mpirun. Rank 0 prints facts as JSON.

The facts are whether gradients are averaged, whether two processes with half a batch each train
like one with the whole batch, and what happens if one rank overflows, if gradients are sent as
float16, or if ranks disagree on a value; and what is requested for GPUs. Each rank starts with its
own weights and images on purpose.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(sys.argv[1]).parent))
import agreement  # noqa: E402
import horovod.tensorflow as hvd  # noqa: E402
import step as step_module  # noqa: E402
import tensorflow as tf  # noqa: E402
import train_imagenet_resnet_hvd as imagenet  # noqa: E402
from flags import parse_args  # noqa: E402
from model import BLOCKS, build_resnet  # noqa: E402
from step import Trainer  # noqa: E402

FLAGS = ["--synthetic", "-m", "resnet18", "--image_size", "32", "-b", "2", "--nofp16"]
RATE = 0.05
STEPS = 3
# Half of the blocks have all kinds of layers, and TensorFlow traces them in half the time.
BLOCKS["resnet18"] = ((1, 1, 1, 1), False)


def main() -> None:
    args = parse_args([*FLAGS, "--num_batches", "3"])
    imagenet.start(args)
    tf.keras.utils.set_random_seed(hvd.rank())
    images, labels = random_batch(seed=hvd.rank())
    trainer = Trainer(args, build_resnet(args))

    facts: dict[str, Any] = {"images": everyones(checksum([images]))}
    facts["initial"] = everyones(checksum(trainer.weights))
    trainer.broadcast()
    facts["broadcast"] = everyones(checksum(trainer.weights))
    initial = [variable.numpy() for variable in trainer.model.variables]

    # The first step of the last layer by hand: momentum starts at zero, so Nesterov's step is
    # rate x (1 + momentum) x the mean of the ranks' own gradients.
    kernel = trainer.weights[-2]
    with tf.GradientTape() as tape:
        final_loss = trainer.losses(images, labels)[1]
    own = tape.gradient(final_loss, kernel)
    for variable, value in zip(trainer.model.variables, initial):
        variable.assign(value)  # because the forward pass changed the batch norms' averages
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
    facts["told"] = what_differs()
    facts["sent_as_float16"] = sent_as_float16(images, labels)
    facts["means_of_float16"] = [mean_of_float16(each) for each in (50_000.0, 2**-22, 2**-24)]
    facts["overflow"] = overflow()
    facts["gpus"] = hvd.allgather_object(requested_for_gpus())
    facts["threads"] = threads()
    if hvd.rank() == 0:
        print("FACTS " + json.dumps(facts), flush=True)


def random_batch(seed: int, dtype: Any = tf.float32) -> tuple[Any, Any]:
    random = tf.random.Generator.from_seed(seed)
    images = tf.cast(random.normal((2, 32, 32, 3)), dtype)
    return images, random.uniform((2,), maxval=1000, dtype=tf.int32)


def what_differs() -> list[str]:
    """Return rank 0's message if one rank differs or fails. All hosts have the same name."""
    agreement.one_node = lambda: False
    agreement.socket.gethostname = lambda: "ubuntu"

    def fail() -> int:
        if hvd.rank() == 1:
            raise OSError("no disk")
        return 3

    def differ() -> str:
        return "4 files" if hvd.rank() == 0 else "3 files"

    told = []
    for ask in (lambda: agreement.together(fail), lambda: agreement.same_everywhere(differ)):
        try:
            told.append(str(ask()))
        except agreement.CommonProblem as error:
            told.append(str(error))
    return told


def sent_as_float16(images: Any, labels: Any) -> list[bool]:
    """Return, with --fp16_allreduce and without, whether the first step's gradients are float16
    values, and whether they are the same on both ranks.
    """
    told = []
    for words in (["--fp16_allreduce"], []):
        args = parse_args([*FLAGS, "--num_batches", "3", *words])
        trainer = Trainer(args, build_resnet(args))
        trainer.broadcast()
        trainer.step(images, labels, tf.constant(RATE))  # makes the momentum equal the gradient
        short = [tf.cast(tf.cast(m, tf.float16), tf.float32) for m in trainer.momenta]
        told.append(checksum(short) == checksum(trainer.momenta))
        told.append(len(set(everyones(checksum(trainer.momenta)))) == 1)
    return told


def requested_for_gpus() -> list[str]:
    """Return what the trainer requests for GPUs on a node that has two, in that order."""
    told: list[str] = []

    def told_of(kind: str) -> Any:
        return lambda gpu, value: told.append(f"{kind} {gpu} {value}")

    with (
        mock.patch.object(tf.config, "list_physical_devices", lambda kind: ["first", "second"]),
        mock.patch.object(tf.config, "set_visible_devices", told_of("visible")),
        mock.patch.object(tf.config.experimental, "set_memory_growth", told_of("growth")),
    ):
        imagenet.start(parse_args([*FLAGS, "--num_batches", "3"]))
    return told


def threads() -> dict[str, int]:
    """Return how many threads prepare images on machines of two sockets, by how ranks are bound."""
    first, second = range(48), range(48, 96)
    return {
        "unbound": imagenet.input_threads(range(96), [range(96)] * 8, 2),
        "by socket": imagenet.input_threads(first, [first] * 4 + [second] * 4, 2),
        "apart": imagenet.input_threads(range(12), [range(n, n + 12) for n in range(0, 96, 12)], 2),
        "alone at its socket": imagenet.input_threads(
            second, [range(24), range(24, 48), second], 2
        ),
        "all": imagenet.input_threads(range(96), [range(96)] * 8, 0),
        "few": imagenet.input_threads([3], [[3], [3]], 2),
    }


def mean_of_float16(gradient: float) -> float:
    """Return the mean of gradients, sent as float16, which is this on each rank."""
    weight = tf.Variable(0.0)
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(1,))])
    trainer = Trainer(parse_args([*FLAGS, "--num_batches", "3", "--fp16_allreduce"]), model)
    with tf.GradientTape() as tape:
        loss = gradient * weight
    tape = hvd.DistributedGradientTape(tape, **trainer.sending())
    [mean] = tape.gradient(loss, [weight])
    return float(mean)


def overflow() -> list[Any]:
    """Make three steps in float16, then good ones until the loss scale grows.

    Rank 1's image overflows in the second step. Return the state of both ranks after each step.
    """
    args = parse_args([*FLAGS[:-1], "--num_batches", "3"])
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    step_module.GROWS_AFTER = 3
    trainer = Trainer(args, build_resnet(args))
    trainer.broadcast()
    images, labels = random_batch(hvd.rank(), tf.float16)
    bad = images + (60000.0 if hvd.rank() == 1 else 0.0)
    told = []
    for batch in (images, bad, images, images, images):
        trainer.step(batch, labels, tf.constant(RATE))
        state = [*trainer.weights, *trainer.momenta]
        finite = all(bool(tf.reduce_all(tf.math.is_finite(v))) for v in trainer.model.variables)
        ranks = everyones(json.dumps([checksum(state), str(trainer.scale), finite]))
        averages = everyones(checksum(trainer.model.non_trainable_variables))
        told.append([*map(json.loads, ranks), averages])
    return told


def as_one_process(args: Any, initial: list[Any], images: Any, labels: Any) -> list[Any]:
    """Make the same steps in a single process with all images, without Horovod.

    Batch norm uses the images of one process, as in the original program. So it uses halves of the
    batch here. The rest is the mean of all losses, its gradient, and Keras's own optimizer.
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
