"""Runs MNIST's reader on valid and broken files, in the training environment.

    mnist_cases.py FOLDER_OF_THE_EXAMPLE

Prints a JSON object: {case: what was read, or the DataError's text}.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

sys.path.insert(0, sys.argv[1])
import make_sample_mnist  # noqa: E402
import mnist_data  # noqa: E402

IMAGES = np.arange(2 * 28 * 28).astype(np.uint8).reshape(2, 28, 28)
LABELS = np.array([3, 9])


def npz(data: Any = IMAGES, labels: Any = LABELS) -> dict[str, bytes]:
    return {"train.npz": saved(np.savez, data=data, labels=labels)}


def saved(save: Any, *arrays: Any, **named: Any) -> bytes:
    content = io.BytesIO()
    save(content, *arrays, **named)
    return content.getvalue()


def idx(array: Any) -> bytes:
    header = struct.pack(f">2xBB{array.ndim}I", 8, array.ndim, *array.shape)
    return header + array.astype(np.uint8).tobytes()


def of_idx(images: bytes, labels: bytes | None = None) -> dict[str, bytes]:
    packed = gzip.compress(idx(LABELS)) if labels is None else labels
    return {"train-images-idx3-ubyte": images, "train-labels-idx1-ubyte.gz": packed}


CASES: dict[str, dict[str, bytes]] = {
    "npz": npz(),
    "npz, labels as bytes": npz(labels=LABELS.astype(np.uint8)),
    "npz with a channel": npz(IMAGES[..., None]),
    "idx": of_idx(idx(IMAGES)),
    "npz before idx": {**npz(), **of_idx(b"")},
    "nothing": {},
    "half of idx": {"train-images-idx3-ubyte": idx(IMAGES)},
    "empty npz": {"train.npz": b""},
    "text": {"train.npz": b"hello\n"},
    "a bare array": {"train.npz": saved(np.save, IMAGES)},
    "cut npz": {"train.npz": npz()["train.npz"][:-400]},
    "npz of objects": npz(np.array([{}, []], dtype=object)),
    "npz without labels": {"train.npz": saved(np.savez, data=IMAGES)},
    "floats": npz(IMAGES / 255),
    "other sizes": npz(IMAGES[:, :27]),
    "no array at all": npz(np.uint8(3)),
    "one label": npz(labels=LABELS[:1]),
    "one-hot labels": npz(labels=np.eye(10)[LABELS]),
    "label 10": npz(labels=LABELS + 1),
    "label -1": npz(labels=LABELS - 4),
    "no images": npz(IMAGES[:0], LABELS[:0]),
    "idx of floats": of_idx(b"\0\0\x0d\3" + idx(IMAGES)[4:]),
    "cut idx": of_idx(idx(IMAGES)[:-1]),
    "long idx": of_idx(idx(IMAGES) + b"x"),
    "cut header": of_idx(idx(IMAGES)[:9]),
    "empty idx": of_idx(b""),
    "no dimensions": of_idx(b"\0\0\x08\0x"),
    "cut gz": of_idx(idx(IMAGES), gzip.compress(bytes(range(200)))[:-9]),
    "no gz": of_idx(idx(IMAGES), b"<html>not found</html>"),
    "swapped": of_idx(idx(LABELS), gzip.compress(idx(IMAGES))),
}


def outcome(files: dict[str, bytes]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        try:
            images, labels = mnist_data.load(folder, "train")
        except mnist_data.DataError as error:
            return str(error).replace(folder, "DIR")
    assert (images == IMAGES).all(), "what is written is read"
    return f"{images.dtype} {images.shape} {labels.dtype} {labels.tolist()}"


def bare_array_before_python_3_11() -> str:
    """Return the outcome of a bare array where `with` raises AttributeError for it."""

    def load(*_: Any, **__: Any) -> Any:
        raise AttributeError("__enter__")

    with patch.object(np, "load", load):
        return outcome(CASES["a bare array"])


def sample_is_the_same_in_both_formats() -> bool:
    with tempfile.TemporaryDirectory() as npz_dir, tempfile.TemporaryDirectory() as idx_dir:
        small = ["--images", "25", "--test_images", "10", "--data_dir"]
        make_sample_mnist.main([*small, npz_dir])
        make_sample_mnist.main([*small, idx_dir, "--idx"])
        with contextlib.suppress(SystemExit):  # load() would go on reading the .npz files
            make_sample_mnist.main([*small, npz_dir, "--idx"])
            return False
        return all(
            np.array_equal(one, other)
            for subset in ("train", "test")
            for one, other in zip(
                mnist_data.load(npz_dir, subset), mnist_data.load(idx_dir, subset)
            )
        )


def main() -> None:
    outcomes = {case: outcome(files) for case, files in CASES.items()}
    outcomes["a bare array, old Python"] = bare_array_before_python_3_11()
    same = sample_is_the_same_in_both_formats()
    print("FACTS " + json.dumps({"outcomes": outcomes, "sample is the same": same}))


if __name__ == "__main__":
    main()
