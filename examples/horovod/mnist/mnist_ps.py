"""Train the network of mnist_hvd.py with TensorFlow's parameter servers.

On one machine:

    python mnist_ps.py --data_dir ~/data/mnist

On the nodes of a cluster, with mnist_ps.yaml beside this file:

    clusterctl train demo --job-file mnist_ps.yaml

The variable TF_CONFIG makes a process the chief, a worker or a parameter server. The chief assigns
steps to the workers. For a step, a worker reads the weights from the parameter servers and sends
its gradients to them. Workers do not wait for each other.

Comments that start with `Parameter servers:` mark what a program for one GPU does not need.
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

# TensorFlow, which start() imports, so that --help is answered at once.
tf: Any = None


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = partial(add_flag, parser)
    add_mnist_folders(parser)
    add("--epochs", type=positive(int), default=12, help="times to see as many images as there are")
    add("--batch_size", type=positive(int), default=128, help="images of one worker in one step")
    add("--lr", type=positive(float), default=0.001, help="learning rate")
    add("--seed", type=int, default=0, help="of the weights and of the order of the images")
    return parser.parse_args(argv)


def start(seed: int) -> Any:
    """Import TensorFlow and take the role that TF_CONFIG gives. Return the chief's strategy.

    On a worker or a parameter server, serve the chief and never return.
    """
    global tf
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # Parameter servers: a call to a worker that has not started yet fails and is repeated.
    os.environ.setdefault("GRPC_FAIL_FAST", "use_caller")
    import keras
    import tensorflow

    if int(keras.__version__.partition(".")[0]) >= 3:
        sys.exit(
            f"error: Keras {keras.__version__} (TensorFlow {tensorflow.__version__}) knows no "
            "parameter servers: use Keras 2, which TensorFlow has up to 2.15"
        )
    tf = tensorflow
    offer_stacks()
    tf.keras.utils.set_random_seed(seed)
    if "TF_CONFIG" not in os.environ:
        return tf.distribute.get_strategy()
    # Parameter servers: all processes but the chief serve it until they are killed from outside.
    here = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if here.task_type in ("worker", "ps"):
        tf.distribute.Server(here.cluster_spec(), here.task_type, here.task_id).join()
    print(f"Workers: {here.cluster_spec().num_tasks('worker')}", flush=True)
    return tf.distribute.ParameterServerStrategy(here)


def train(args: argparse.Namespace, strategy: Any, training: Any, test: Any) -> None:
    # Create the folder before the training, so that an error shows before it.
    Path(args.model_dir).expanduser().mkdir(parents=True, exist_ok=True)
    with strategy.scope():  # Parameter servers: the variables are created on them.
        model = build_model()
        optimizer = tf.keras.optimizers.Adam(args.lr)
        model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])

    def dataset(context: Any) -> Any:
        """Return endless batches.

        Parameter servers: each worker runs this, and has all images in an order of its own.
        """
        images = tf.data.Dataset.from_tensor_slices(training)
        return images.shuffle(len(training[0])).repeat().batch(args.batch_size).prefetch(2)

    steps = -(-len(training[0]) // args.batch_size)
    log = EpochLog(args.epochs, steps, speaks=True)
    model.fit(
        tf.keras.utils.experimental.DatasetCreator(dataset),
        epochs=args.epochs,
        steps_per_epoch=steps,
        callbacks=[
            tf.keras.callbacks.LambdaCallback(on_epoch_begin=log.begin, on_epoch_end=log.end)
        ],
        verbose=0,
    )
    # Parameter servers: copy the weights into a model of the chief's own. It works without them.
    own = build_model()
    own.set_weights(model.get_weights())
    own.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    loss, accuracy = own.evaluate(*test, args.batch_size, verbose=0)
    print(f"Test loss: {loss:.4f}\nTest accuracy: {accuracy:.4f}")
    print(f"Model saved in {save(own, args.model_dir)}", flush=True)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    try:
        strategy = start(args.seed)
        # Parameter servers: only the chief reads the data. It sends them to the workers.
        training = load(args.train or args.data_dir, "train")
        test = load(args.test or args.data_dir, "test")
        train(args, strategy, training, test)
    except (DataError, Diverged, ImportError, OSError) as error:
        sys.exit(f"error: {platform.node()}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
