"""Flags that can be spelled in two ways, and types that make argparse check their values."""

from __future__ import annotations

import argparse
from typing import Any


def add_flag(parser: argparse.ArgumentParser, name: str, **settings: Any) -> None:
    """Add a flag that can be written both as --model_dir and as --model-dir."""
    other = name[2:].translate(str.maketrans("-_", "_-"))
    parser.add_argument(*dict.fromkeys((name, f"--{other}")), **settings)


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
