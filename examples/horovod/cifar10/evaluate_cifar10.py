"""Evaluate a trained CIFAR-10 model: its accuracy, and which classes it confuses.

    python evaluate_cifar10.py --model-dir ~/models/cifar10 --data-dir ~/data/cifar10

    python evaluate_cifar10.py --endpoint http://127.0.0.1:8501/v1/models/cifar10

This evaluates the newest model in --model-dir, or the one that is served at --endpoint. It saves
the confusion matrix in --model-dir as a picture.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from cifar10_data import NAMES, DataError, load_records, record_file
from confusion_matrix import as_text, confusion_matrix, draw
from flag_types import local_folder
from saved_model import latest, predict, predict_at


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
        default="~/data/cifar10",
        help="folder of eval.tfrecords",
    )
    add(
        "--eval",
        type=local_folder,
        default=environ.get("SM_CHANNEL_EVAL"),
        help="another, if it lies elsewhere",
    )
    model_dir = environ.get("SM_MODEL_DIR", "~/models/cifar10")
    add(
        "--model-dir",
        "--model_dir",
        type=local_folder,
        default=model_dir,
        help="folder of the model",
    )
    add("--endpoint", metavar="URL", help="ask this server (http://HOST:PORT/v1/models/NAME)")
    add(
        "--picture",
        type=local_folder,
        help="file of the picture; left out: MODEL_DIR/confusion_matrix.png",
    )
    return parser.parse_args(argv)


def evaluate(args: argparse.Namespace) -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    model = args.endpoint or latest(args.model_dir)
    if model is None:
        sys.exit(f"error: there is no model in {args.model_dir}: train one with keras_cifar10.py")
    images, labels = load_records(record_file(args.eval or args.data_dir, "eval"))
    predicted = predict_at(model, images) if args.endpoint else predict(model, images)
    matrix = confusion_matrix(labels, predicted, len(NAMES))
    print(f"Model: {model}\nTest images: {len(labels)}")
    print(f"Average accuracy: {matrix.trace() / len(labels):.2%}")
    print(as_text(matrix, NAMES), flush=True)
    picture = args.picture or Path(args.model_dir).expanduser() / "confusion_matrix.png"
    Path(picture).parent.mkdir(parents=True, exist_ok=True)
    try:
        draw(matrix, NAMES, picture)
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
