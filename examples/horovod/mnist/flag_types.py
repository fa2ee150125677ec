"""Flags that can be spelled in two ways, and types that make argparse check their values."""

from __future__ import annotations

import argparse
import os
from typing import Any


def add_flag(parser: argparse.ArgumentParser, name: str, **settings: Any) -> None:
    """Add a flag that can be written both as --model_dir and as --model-dir."""
    other = name[2:].translate(str.maketrans("-_", "_-"))
    parser.add_argument(*dict.fromkeys((name, f"--{other}")), **settings)


def add_mnist_folders(parser: argparse.ArgumentParser) -> None:
    """Add the folders of images and model. SageMaker's variables are defaults of theirs."""
    environ = os.environ
    folders = {
        "--data_dir": ("~/data/mnist", "folder of the training and test images"),
        "--train": (environ.get("SM_CHANNEL_TRAIN"), "another for training images"),
        "--test": (environ.get("SM_CHANNEL_TEST"), "another for test images"),
        "--model_dir": (
            environ.get("SM_MODEL_DIR", "~/models/mnist"),
            "folder for the model: saved as version 1, 2, ...",
        ),
    }
    for name, (default, what) in folders.items():
        add_flag(parser, name, type=local_folder, default=default, help=what)


def positive(kind: type) -> Any:
    """Return an argparse type for numbers above zero. `kind` is int or float."""

    def number(text: str) -> Any:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"{text} is not more than 0")
        return value

    return number


def local_folder(text: str) -> str:
    """Return the path. As an argparse type, it refuses a URL, of which Path would make a folder."""
    if "://" in text:
        raise argparse.ArgumentTypeError(
            f"{text} is no path of this machine: copy from or to it with aws s3 sync"
        )
    return text
