"""What the values of flags have to be, as argparse asks for it."""

from __future__ import annotations

import argparse
from typing import Any


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
