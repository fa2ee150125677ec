"""Train a small convolutional network on MNIST with Keras and Horovod.

On one GPU, or on CPUs:

    python mnist_hvd.py --data_dir ~/data/mnist

On two GPUs of a cluster:

    clusterctl train demo 2 --script '~/examples/horovod/mnist/mnist_hvd.py' -- --epochs 12

The data are train.npz and test.npz, or MNIST's four IDX files. They are in --data_dir, or in two
folders --train and --test, which SageMaker names in SM_CHANNEL_TRAIN and SM_CHANNEL_TEST. The model
is saved as a SavedModel that takes images as they are in the files. evaluate_mnist.py evaluates it.

Comments that start with `Horovod:` mark the lines that are needed only because several processes
train. Without those lines, this is a program for one GPU.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from functools import partial
from pathlib import Path
from typing import Any

from epoch_log import Diverged, EpochLog, offer_stacks
from flag_types import add_flag, add_mnist_folders, positive
from mnist_data import DataError, load
from mnist_model import build_model
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
    add = partial(add_flag, parser)
    add_mnist_folders(parser)
    add("--epochs", type=positive(int), default=12, help="times to see all images")
    add("--batch_size", type=positive(int), default=128, help="images of one GPU in one step")
    add("--lr", type=positive(float), default=0.001, help="learning rate of one GPU")
    add("--warmup_epochs", type=int, default=1, help="epochs up to the rate of all GPUs")
    add("--seed", type=int, default=0, help="of the weights and of the order of the images")
    return parser.parse_args(argv)


# ---------------------------------------------------------------------------------------------
# Training


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


def own_part(images: Any, labels: Any, name: str) -> tuple[Any, Any]:
    """Return this rank's images and labels. Ranks have no image in common."""
    # Horovod: every rank has the same number, since one with more steps would wait forever.
    count = len(images) // hvd.size()
    if not count:
        sys.exit(f"error: {len(images)} {name} images for {hvd.size()} ranks")
    return images[hvd.rank() :: hvd.size()][:count], labels[hvd.rank() :: hvd.size()][:count]


def rate_of_all(rate: float, size: int) -> float:
    """Return the learning rate of `size` GPUs, given that of one GPU.

    It grows up to four times. Adam's steps do not shrink with the gradients, so its rate has a
    limit, however many images a step has: this model learned at 0.004, and nothing at 0.008.
    """
    return rate * min(size, 4)


def compiled(model: Any, rate: float) -> Any:
    optimizer = tf.keras.optimizers.Adam(rate)
    # Horovod: each step uses the mean of all ranks' gradients.
    optimizer = hvd.DistributedOptimizer(optimizer)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def callbacks(args: argparse.Namespace, rate: float, steps: int) -> list[Any]:
    log = EpochLog(args.epochs, steps, speaks=hvd.rank() == 0)  # Horovod: only rank 0 prints.
    listed = [
        # Horovod: all ranks start with the weights of rank 0.
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        # Horovod: average the metrics over all ranks, before other callbacks read them.
        hvd.callbacks.MetricAverageCallback(),
    ]
    if args.warmup_epochs > 0:
        # Horovod: raise the rate from that of one GPU, see https://arxiv.org/abs/1706.02677.
        warmup = hvd.callbacks.LearningRateWarmupCallback(
            rate, args.warmup_epochs, momentum_correction=False, steps_per_epoch=steps
        )
        listed.append(warmup)
    listed.append(tf.keras.callbacks.LambdaCallback(on_epoch_begin=log.begin, on_epoch_end=log.end))
    return listed


def train(args: argparse.Namespace, training: Any, test: Any) -> None:
    start(args.seed)
    if hvd.rank() == 0:  # Horovod: only rank 0 prints and saves.
        print(f"Horovod size: {hvd.size()}", flush=True)
        # Create the folder before the training, so that an error shows before it.
        Path(args.model_dir).expanduser().mkdir(parents=True, exist_ok=True)
    same_everywhere(training=len(training[0]), test=len(test[0]))
    images, labels = own_part(*training, "training")
    steps = -(-len(images) // args.batch_size)
    rate = rate_of_all(args.lr, hvd.size())  # Horovod: a step has the images of all ranks.
    model = compiled(build_model(), rate)
    model.fit(
        images,
        labels,
        batch_size=args.batch_size,
        epochs=args.epochs,
        validation_data=own_part(*test, "test"),
        callbacks=callbacks(args, rate, steps),
        verbose=0,
    )
    if hvd.rank() == 0:
        loss, accuracy = model.evaluate(*test, args.batch_size, verbose=0)
        print(f"Test loss: {loss:.4f}\nTest accuracy: {accuracy:.4f}")
        print(f"Model saved in {save(model, args.model_dir)}", flush=True)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    try:
        training = load(args.train or args.data_dir, "train")
        test = load(args.test or args.data_dir, "test")
        train(args, training, test)
    except (DataError, Diverged, ImportError, OSError) as error:
        sys.exit(f"error: {platform.node()}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
