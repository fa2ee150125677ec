"""Evaluate a trained MNIST model: its accuracy, and which digits it confuses.

    python evaluate_mnist.py --model_dir ~/models/mnist --data_dir ~/data/mnist

This evaluates the newest model in --model_dir, and saves its confusion matrix there as a picture.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from confusion_matrix import as_text, confusion_matrix, draw
from flag_types import local_folder
from mnist_data import CLASSES, DataError, load
from saved_model import latest, predict


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add, environ = parser.add_argument, os.environ
    add(
        "--data-dir",
        "--data_dir",
        type=local_folder,
        default="~/data/mnist",
        help="folder of the test images",
    )
    add(
        "--test",
        type=local_folder,
        default=environ.get("SM_CHANNEL_TEST"),
        help="another, if they lie elsewhere",
    )
    model_dir = environ.get("SM_MODEL_DIR", "~/models/mnist")
    add("--model-dir", "--model_dir", type=local_folder, default=model_dir, help="of the model")
    add(
        "--picture",
        type=local_folder,
        help="file of the picture; left out: MODEL_DIR/confusion_matrix.png",
    )
    return parser.parse_args(argv)


def evaluate(args: argparse.Namespace) -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    model = latest(args.model_dir)
    if model is None:
        sys.exit(f"error: there is no model in {args.model_dir}: train one with mnist_hvd.py")
    images, labels = load(args.test or args.data_dir, "test")
    matrix = confusion_matrix(labels, predict(model, images), CLASSES)
    names = [str(digit) for digit in range(CLASSES)]
    print(f"Model: {model}\nTest images: {len(labels)}")
    print(f"Average accuracy: {matrix.trace() / len(labels):.2%}")
    print(as_text(matrix, names), flush=True)
    picture = args.picture or Path(args.model_dir).expanduser() / "confusion_matrix.png"
    try:
        draw(matrix, names, picture)
    except ImportError:
        sys.exit(f"error: a picture needs matplotlib: {sys.executable} -m pip install matplotlib")
    print(f"Confusion matrix: {picture}")


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    try:
        evaluate(args)
    except (DataError, ImportError, OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
