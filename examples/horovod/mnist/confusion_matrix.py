"""The confusion matrix of a classifier: counts, a text and a picture."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


def confusion_matrix(truth: Any, predicted: Any, classes: int) -> Any:
    """Return counts (classes, classes). The row is the true class, the column the predicted one."""
    cells = np.bincount(np.asarray(truth) * classes + predicted, minlength=classes * classes)
    return cells.reshape(classes, classes)


def shares(matrix: Any) -> Any:
    """Divide each row by its sum. The row of a class without images is zero."""
    return matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)


def as_text(matrix: Any, names: Sequence[str]) -> str:
    """Return a line for each class: its images, the share predicted correctly, and the counts."""
    rows = [("", "images", "right", *(name[:5] for name in names))]
    for name, counts, part in zip(names, matrix, np.diag(shares(matrix))):
        rows.append((name, str(counts.sum()), f"{part:.1%}", *map(str, counts)))
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ("  ".join(word.rjust(n) for word, n in zip(row, widths)) for row in rows)
    return "\n".join(lines)


def draw(matrix: Any, names: Sequence[str], path: str | Path) -> None:
    """Save a picture of the matrix. Each cell shows its share of the row as a colour and a number.

    The suffix of `path` selects the format (.png, .pdf, .svg). Raise ImportError, OSError or
    ValueError.
    """
    # The backend that the user has configured may need a screen.
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
