"""Train a convolutional network on CIFAR-10 with Keras and Horovod, from TFRecords.

On one GPU, or on CPUs:

    python generate_cifar10_tfrecords.py --data-dir ~/data/cifar10
    python keras_cifar10.py --data-dir ~/data/cifar10

On two GPUs of a cluster:

    clusterctl train demo 2 --script '~/examples/horovod/cifar10/keras_cifar10.py' -- --epochs 10

The model is that of the Keras examples: twice two convolutions and a pooling, then two dense
layers. It is saved as a SavedModel that takes images of 0 to 255. evaluate_cifar10.py evaluates it.

Comments that start with `Horovod:` mark the lines that are needed only because several processes
train. Without those lines, this is a program for one GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from functools import partial
from pathlib import Path
from typing import Any

from cifar10_data import (
    IMAGES,
    DataError,
    count_records,
    first_line,
    parse_record,
    record_file,
    streamed_records,
)
from epoch_log import Diverged, EpochLog, offer_stacks
from flag_types import add_flag, local_folder, positive
from saved_model import save

# TensorFlow and Horovod, which start() imports: --help and a missing file are reported at once.
tf: Any = None
hvd: Any = None


# ---------------------------------------------------------------------------------------------
# Command line


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    environ = os.environ
    add = partial(add_flag, parser)
    add(
        "--data-dir",
        type=local_folder,
        default="~/data/cifar10",
        help="folder of the three TFRecord files",
    )
    for subset, images in IMAGES.items():
        folder = environ.get(f"SM_CHANNEL_{subset.upper()}")
        add(
            f"--{subset}",
            type=local_folder,
            default=folder,
            help=f"another folder for {subset}.tfrecords",
        )
        add(f"--{subset}-images", type=positive(int), default=images, help="in Pipe Mode")
    add(
        "--model-dir",
        type=local_folder,
        default=environ.get("SM_MODEL_DIR", "~/models/cifar10"),
        help="folder for the model: saved as version 1, 2, ...",
    )
    add("--epochs", type=positive(int), default=10, help="times to see all images")
    add("--batch-size", type=positive(int), default=128, help="images of one GPU in one step")
    add("--optimizer", choices=("adam", "rmsprop", "sgd"), default="adam", help="kind of step")
    add("--learning-rate", type=positive(float), default=0.001, help="of one GPU")
    add("--momentum", type=float, default=0.9, help="of sgd")
    add("--weight-decay", type=float, default=2e-4, help="learning rate / (1 + this x step)")
    add("--warmup-epochs", type=int, default=3, help="epochs up to the rate of all GPUs")
    add("--seed", type=int, default=0, help="of the weights and of the order of the images")
    return parser.parse_args(argv)


# ---------------------------------------------------------------------------------------------
# TensorFlow and Horovod


def start(seed: int) -> None:
    """Import TensorFlow, start Horovod, and select this process's GPU."""
    global tf, hvd
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import keras
    import tensorflow

    # Horovod: with Keras 3, it averages no gradients and reports no error.
    if int(keras.__version__.partition(".")[0]) >= 3:
        sys.exit(
            f"error: Keras {keras.__version__} (TensorFlow {tensorflow.__version__}): every rank "
            "would train a model of its own; use Keras 2, which TensorFlow has up to 2.15"
        )
    import horovod.tensorflow.keras

    tf, hvd = tensorflow, horovod.tensorflow.keras
    offer_stacks()
    hvd.init()  # Horovod: connect to the other processes; from here on each knows its rank.
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        # Horovod: one GPU for each process of a host.
        if hvd.local_rank() >= len(gpus):
            sys.exit(f"error: {hvd.local_size()} ranks on a host with {len(gpus)} GPUs")
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
    # Horovod: each rank shuffles and drops out differently; callbacks() copies rank 0's weights.
    tf.keras.utils.set_random_seed(seed + hvd.rank())


# ---------------------------------------------------------------------------------------------
# Data


def same_everywhere(**images: int) -> None:
    """Exit on all ranks if nodes have different numbers of images."""
    from horovod.tensorflow import allgather_object

    # Horovod: a rank with more steps than the others would wait for them forever.
    if len(set(allgather_object(tuple(images.values())))) > 1:
        here = ", ".join(f"{count} {name}" for name, count in images.items())
        sys.exit(
            f"error: {platform.node()}: images here: {here}; other nodes have more or fewer: "
            "copy the same files to all (clusterctl copy)"
        )


def training_batches(path: Path, count: int, args: argparse.Namespace) -> Any:
    """Return endless batches of this rank: shuffled, and randomly moved and mirrored."""
    images = own_records(path).map(parse_record)
    if path.is_file():
        images = images.cache()
    else:  # Each epoch reads the stream again. Training starts before all images have arrived.
        count = min(count, 10 * args.batch_size)
    images = images.shuffle(count, args.seed + hvd.rank()).repeat()
    images = images.map(augmented, num_parallel_calls=tf.data.AUTOTUNE)
    return images.batch(args.batch_size).prefetch(tf.data.AUTOTUNE)


def own_records(path: Path) -> Any:
    # Horovod: ranks have no record in common.
    return records_of(path).shard(hvd.size(), hvd.rank())


def records_of(path: Path) -> Any:
    return tf.data.TFRecordDataset(str(path)) if path.is_file() else streamed_records(str(path))


def augmented(image: Any, label: Any) -> tuple[Any, Any]:
    image = tf.pad(image, ((4, 4), (4, 4), (0, 0)))
    image = tf.image.random_crop(image, (32, 32, 3))
    return tf.image.random_flip_left_right(image), label


def test_batches(records: Any, args: argparse.Namespace) -> Any:
    return records.map(parse_record).batch(args.batch_size).prefetch(tf.data.AUTOTUNE)


# ---------------------------------------------------------------------------------------------
# Training


def build_model() -> Any:
    """Return a model from images (32, 32, 3) of 0 to 255 to the probabilities of ten classes."""
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Input((32, 32, 3)), layers.Rescaling(1 / 255)])
    for filters in (32, 64):
        model.add(layers.Conv2D(filters, 3, padding="same", activation="relu"))
        model.add(layers.Conv2D(filters, 3, activation="relu"))
        model.add(layers.MaxPooling2D())
        model.add(layers.Dropout(0.25))
    model.add(layers.Flatten())
    model.add(layers.Dense(512, activation="relu"))
    model.add(layers.Dropout(0.5))
    model.add(layers.Dense(10, activation="softmax"))
    return model


def rate_of_all(args: argparse.Namespace, size: int) -> float:
    """Return the learning rate of `size` GPUs, given that of one GPU.

    The rate of sgd grows with the images of a step, see https://arxiv.org/abs/1706.02677. That of
    adam and rmsprop grows up to four times: their steps do not shrink with the gradients, so the
    rate has a limit, however many images a step has.
    """
    return args.learning_rate * (size if args.optimizer == "sgd" else min(size, 4))


def compiled(model: Any, args: argparse.Namespace, rate: float) -> Any:
    optimizers = tf.keras.optimizers
    optimizer = {
        "adam": lambda: optimizers.Adam(rate),
        "rmsprop": lambda: optimizers.RMSprop(rate),
        "sgd": lambda: optimizers.SGD(rate, args.momentum, nesterov=True),
    }[args.optimizer]()
    # Horovod: each step uses the mean of all ranks' gradients.
    optimizer = hvd.DistributedOptimizer(optimizer)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def callbacks(args: argparse.Namespace, rate: float, steps: int) -> list[Any]:
    warmup = max(args.warmup_epochs, 0)
    log = EpochLog(args.epochs, steps, speaks=hvd.rank() == 0)  # Horovod: only rank 0 prints.
    listed = [
        # Horovod: all ranks start with the weights of rank 0.
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        # Horovod: average the metrics over all ranks, before other callbacks read them.
        hvd.callbacks.MetricAverageCallback(),
        # After the warm-up the rate falls, as in the Keras example that called it weight decay.
        hvd.callbacks.LearningRateScheduleCallback(
            rate,
            lambda epoch: 1 / (1 + args.weight_decay * (epoch - warmup) * steps),
            start_epoch=warmup,
            staircase=False,
            momentum_correction=False,
            steps_per_epoch=steps,
        ),
    ]
    if warmup:
        # Horovod: raise the rate from that of one GPU, see https://arxiv.org/abs/1706.02677.
        up = hvd.callbacks.LearningRateWarmupCallback(
            rate, warmup, momentum_correction=False, steps_per_epoch=steps
        )
        listed.append(up)
    listed.append(tf.keras.callbacks.LambdaCallback(on_epoch_begin=log.begin, on_epoch_end=log.end))
    return listed


def train(args: argparse.Namespace, files: dict[str, Path], counts: dict[str, int]) -> None:
    start(args.seed)
    if hvd.rank() == 0:  # Horovod: only rank 0 prints and saves.
        print(f"Horovod size: {hvd.size()}", flush=True)
        # Create the folder before the training, so that an error shows before it.
        Path(args.model_dir).expanduser().mkdir(parents=True, exist_ok=True)
    same_everywhere(**counts)
    # Horovod: every rank has the same number, since one with more steps would wait forever.
    count = counts["train"] // hvd.size()
    checks = counts["validation"] // hvd.size()
    if not count or not checks:
        sys.exit(
            f"error: {hvd.size()} ranks, but {counts['train']} images to train with "
            f"and {counts['validation']} to validate"
        )
    steps = -(-count // args.batch_size)
    rate = rate_of_all(args, hvd.size())  # Horovod: a step has the images of all ranks.
    model = compiled(build_model(), args, rate)
    try:
        model.fit(
            training_batches(files["train"], count, args),
            epochs=args.epochs,
            steps_per_epoch=steps,
            validation_data=test_batches(own_records(files["validation"]).take(checks), args),
            callbacks=callbacks(args, rate, steps),
            verbose=0,
        )
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
        raise DataError(
            f"{files['train']} or {files['validation']}: {first_line(error)}"
        ) from error
    if hvd.rank() == 0:
        records = test_batches(records_of(files["eval"]), args)
        loss, accuracy = model.evaluate(records, verbose=0)
        print(f"Test loss: {loss:.4f}\nTest accuracy: {accuracy:.4f}")
        print(f"Model saved in {save(model, args.model_dir)}", flush=True)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    try:
        channels = json.loads(os.environ.get("SM_INPUT_DATA_CONFIG", "{}"))
        files, counts = {}, {}
        for subset in IMAGES:
            folder = getattr(args, subset) or args.data_dir
            if channels.get(subset, {}).get("TrainingInputMode") == "Pipe":
                files[subset], counts[subset] = Path(folder), getattr(args, f"{subset}_images")
            else:
                files[subset] = record_file(folder, subset)
                counts[subset] = count_records(files[subset])
        train(args, files, counts)
    except (DataError, Diverged, ImportError, OSError) as error:
        sys.exit(f"error: {platform.node()}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
