"""What a classifier takes for what: counted, as text, and as a picture."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


def confusion_matrix(truth: Any, predicted: Any, classes: int) -> Any:
    """Counts (classes, classes): row = what it is, column = what it was taken for."""
    cells = np.bincount(np.asarray(truth) * classes + predicted, minlength=classes * classes)
    return cells.reshape(classes, classes)


def shares(matrix: Any) -> Any:
    """Each row divided by its sum; a class without images has zeros."""
    return matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)


def as_text(matrix: Any, names: Sequence[str]) -> str:
    """A line for each class: its images, the share that is right, and the counts."""
    rows = [("", "images", "right", *(name[:5] for name in names))]
    for name, counts, part in zip(names, matrix, np.diag(shares(matrix))):
        rows.append((name, str(counts.sum()), f"{part:.1%}", *map(str, counts)))
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ("  ".join(word.rjust(n) for word, n in zip(row, widths)) for row in rows)
    return "\n".join(lines)


def draw(matrix: Any, names: Sequence[str], path: str | Path) -> None:
    """Save a picture in which colour and figure are the share of a row.

    The end of `path` names the format (.png, .pdf, .svg). Raises ImportError, OSError, ValueError.
    """
    # Not the user's backend, which may want a screen.
    os.environ["MPLBACKEND"] = "Agg"
    from matplotlib.figure import Figure

    part = shares(matrix)
    figure = Figure(figsize=(9, 8), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(part, cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right")
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("taken for")
    axes.set_ylabel("true class")
    for (row, column), share in np.ndenumerate(part):
        colour = "white" if share > 0.5 else "black"
        axes.text(column, row, f"{share:.2f}", ha="center", va="center", color=colour, fontsize=8)
    figure.colorbar(image, shrink=0.8)
    figure.savefig(path)
