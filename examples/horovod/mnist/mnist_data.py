"""Reads MNIST from train.npz and test.npz, or from the four IDX files of its publication.

The .npz files have two arrays, `data` (n x 28 x 28, bytes) and `labels` (n). The IDX files are

    train-images-idx3-ubyte.gz  train-labels-idx1-ubyte.gz
    t10k-images-idx3-ubyte.gz   t10k-labels-idx1-ubyte.gz

with or without .gz. Their format is described at http://yann.lecun.com/exdb/mnist/. This module
needs NumPy only.
"""

from __future__ import annotations

import gzip
import math
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

CLASSES = 10
SIDE = 28
IDX_NAMES = {"train": "train", "test": "t10k"}
IDX_BYTES = 0x08  # the third byte of an IDX file whose elements are unsigned bytes


class DataError(Exception):
    """A file is missing or invalid. The text names it."""


def load(folder: str | Path, subset: str) -> tuple[Any, Any]:
    """Return images (n, 28, 28) as bytes and labels (n,) of "train" or "test". Raise DataError."""
    folder = Path(folder).expanduser()
    npz = folder / f"{subset}.npz"
    if npz.exists():
        return checked(*read_npz(npz), str(npz))
    images = find_idx(folder, f"{IDX_NAMES[subset]}-images-idx3-ubyte")
    labels = find_idx(folder, f"{IDX_NAMES[subset]}-labels-idx1-ubyte")
    if images and labels:
        return checked(read_idx(images), read_idx(labels), str(images))
    raise DataError(
        f"no {npz.name} in {folder}, and not both of "
        f"{IDX_NAMES[subset]}-images-idx3-ubyte.gz and {IDX_NAMES[subset]}-labels-idx1-ubyte.gz: "
        "put MNIST's files there, on every node, or make some with make_sample_mnist.py"
    )


def find_idx(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / f"{name}.gz", folder / name) if path.exists()), None)


def read_npz(path: Path) -> tuple[Any, Any]:
    """Return the arrays `data` and `labels` of a file. Raise DataError."""
    try:
        # Arrays of Python objects are refused: loading them can run any code that the file names.
        with np.load(path, allow_pickle=False) as arrays:
            return arrays["data"], arrays["labels"]
    except KeyError as error:
        raise DataError(f"{path}: {str(error.args[0]).splitlines()[0]}") from error
    # For a file that is not an archive, np.load returns a bare array, for which `with` raises
    # TypeError, and before Python 3.11 AttributeError.
    except (
        *(OSError, EOFError, ValueError, TypeError, AttributeError),
        *(zipfile.BadZipFile, zlib.error),
    ) as error:
        raise DataError(f"{path} cannot be read as .npz: {error}") from error


def read_idx(path: Path) -> Any:
    """Return the array of an IDX file of bytes. Raise DataError."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != IDX_BYTES:
        raise DataError(f"{path} is no IDX file of bytes")
    start = 4 + 4 * data[3]
    if len(data) < start:
        raise DataError(f"{path} ends in its header")
    shape = struct.unpack(f">{data[3]}I", data[4:start])
    if len(data) - start != math.prod(shape):
        raise DataError(f"{path} holds {len(data) - start} bytes of {math.prod(shape)}")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def checked(images: Any, labels: Any, name: str) -> tuple[Any, Any]:
    """Return the arrays. Raise DataError if their types, shapes or labels are not MNIST's."""
    if images.ndim == 4 and images.shape[3] == 1:
        images = images[..., 0]
    if images.dtype != np.uint8 or images.shape[1:] != (SIDE, SIDE):
        raise DataError(f"{name}: images are {images.dtype} {images.shape}, not bytes (n, 28, 28)")
    if labels.shape != (len(images),) or labels.dtype.kind not in "iu":
        raise DataError(f"{name}: {len(images)} images, but labels {labels.dtype} {labels.shape}")
    if not len(images):
        raise DataError(f"{name}: there are no images")
    if labels.min() < 0 or labels.max() >= CLASSES:
        raise DataError(f"{name}: labels from {labels.min()} to {labels.max()}, not 0 to 9")
    return images, labels.astype(np.int64)
