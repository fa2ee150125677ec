"""Flags of both spellings, and what their values have to be, as argparse asks for it."""

from __future__ import annotations

import argparse
from typing import Any


def add_flag(parser: argparse.ArgumentParser, name: str, **settings: Any) -> None:
    """--model_dir and --model-dir alike."""
    other = name[2:].translate(str.maketrans("-_", "_-"))
    parser.add_argument(*dict.fromkeys((name, f"--{other}")), **settings)


def positive(kind: type) -> Any:
    """For a number of that kind (int, float) above zero."""

    def number(text: str) -> Any:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"{text} is not more than 0")
        return value

    return number


def local_folder(text: str) -> str:
    """For a path: models are not saved to a URL."""
    if "://" in text:
        raise argparse.ArgumentTypeError(
            f"{text} is no folder: save into one, and copy it there afterwards (aws s3 sync)"
        )
    return text
