"""CIFAR-10 as it is published, and as TFRecords.

The published cifar-10-python.tar.gz has five training batches and a test batch. A batch is a
pickled dictionary of `data` (n x 3072 bytes: red, green, blue, each row by row) and `labels`; see
https://www.cs.toronto.edu/~kriz/cifar.html.

The TFRecord files are train/train.tfrecords (batches 1 to 4), validation/validation.tfrecords
(batch 5) and eval/eval.tfrecords (the test batch). In a record, `image` has those 3072 bytes and
`label` is a number from 0 to 9.
"""

from __future__ import annotations

import io
import itertools
import pickle
import re
import struct
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

NAMES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
SIDE = 32
IMAGE_BYTES = 3 * SIDE * SIDE
IMAGES = {"train": 40_000, "validation": 10_000, "eval": 10_000}
SUBSETS = {
    "train": tuple(f"data_batch_{number}" for number in range(1, 5)),
    "validation": ("data_batch_5",),
    "eval": ("test_batch",),
}


class DataError(Exception):
    """A file is missing or invalid. The text names it."""


# ---------------------------------------------------------------------------------------------
# As published


class ArraysOnly(pickle.Unpickler):
    """Unpickles NumPy arrays and nothing else: a pickle can call any function that it names."""

    ALLOWED = {
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "_reconstruct"),
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module, name)


def read_batch(pickled: bytes, name: str) -> tuple[Any, Any]:
    """Return images (n, 3072) as bytes and labels (n,) of a pickled batch. Raise DataError."""
    try:
        # Python 2 wrote the batches. Its strings, such as the keys, become bytes.
        batch = ArraysOnly(io.BytesIO(pickled), encoding="bytes").load()
        images, labels = batch[b"data"], np.asarray(batch[b"labels"])
    except Exception as error:  # invalid pickles raise almost any exception
        raise DataError(f"{name} is no batch of CIFAR-10: {error!r}") from error
    if getattr(images, "dtype", None) != np.uint8 or images.shape[1:] != (IMAGE_BYTES,):
        raise DataError(f"{name}: its images are not bytes (n, {IMAGE_BYTES})")
    if labels.shape != (len(images),) or labels.dtype.kind not in "iu" or not len(labels):
        raise DataError(f"{name}: {len(images)} images, and labels {labels.dtype} {labels.shape}")
    if labels.min() < 0 or labels.max() >= len(NAMES):
        raise DataError(f"{name}: labels from {labels.min()} to {labels.max()}, not 0 to 9")
    return images, labels


def read_archive(path: Path) -> dict[str, tuple[Any, Any]]:
    """Return {subset: (images, labels)} of the .tar.gz or its extracted folder. Raise DataError."""
    names = [name for batches in SUBSETS.values() for name in batches]
    pickles = folder_files(path, names) if path.is_dir() else archive_files(path, names)
    missing = [name for name in names if name not in pickles]
    if missing:
        raise DataError(f"{path} has no {', '.join(missing)}")
    batches = {name: read_batch(pickles[name], f"{path}: {name}") for name in names}
    return {
        subset: tuple(np.concatenate(arrays) for arrays in zip(*(batches[name] for name in parts)))
        for subset, parts in SUBSETS.items()
    }


def archive_files(path: Path, names: list[str]) -> dict[str, bytes]:
    try:
        with tarfile.open(path) as tar:
            found = {}
            for member in tar:
                name = member.name.rpartition("/")[2]
                content = tar.extractfile(member) if name in names and member.isfile() else None
                if content:
                    found[name] = content.read()
            return found
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        why = str(error).partition("\n")[0]  # tarfile adds a line for each compression
        raise DataError(f"{path} cannot be read: {why}") from error


def folder_files(path: Path, names: list[str]) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in names if (path / name).is_file()}


# ---------------------------------------------------------------------------------------------
# As TFRecords


def record_file(folder: str | Path, subset: str) -> Path:
    """Return SUBSET.tfrecords of the folder, or of its subfolder SUBSET. Raise DataError."""
    folder = Path(folder).expanduser()
    name = f"{subset}.tfrecords"
    for path in (folder / name, folder / subset / name):
        if path.is_file():
            return path
    raise DataError(f"no {name} in {folder}: generate_cifar10_tfrecords.py makes it")


def count_records(path: Path) -> int:
    """Return the number of records in a TFRecord file, from their lengths. Raise DataError."""
    # A record is its length (8 bytes), a CRC (4 bytes), the data, and another CRC (4 bytes).
    size, position, count = path.stat().st_size, 0, 0
    with path.open("rb") as file:
        while position < size:
            file.seek(position)
            header = file.read(12)
            if len(header) < 12:
                break
            position += 16 + struct.unpack("<Q", header[:8])[0]
            count += 1
    if position != size or not count:
        raise DataError(f"{path} is {'cut short' if count else 'empty'}")
    return count


def streamed_records(channel: str) -> Any:
    """Return the records of a channel in Pipe Mode as a data set.

    Its FIFOs are CHANNEL_0, CHANNEL_1, …. Each iterator over the data set reads the next FIFO.
    TFRecordDataset cannot read them, because it seeks.
    """
    import tensorflow as tf

    epochs = itertools.count()

    def records() -> Iterator[bytes]:
        with open(f"{channel}_{next(epochs)}", "rb") as fifo:  # noqa: PTH123
            while True:
                header = fifo.read(12)
                if not header:
                    return
                size = struct.unpack("<Q", header[:8])[0] if len(header) == 12 else 0
                record = fifo.read(size + 4)
                if not size or len(record) < size + 4:
                    raise DataError(f"{channel}: its last record is cut short")
                yield record[:-4]

    return tf.data.Dataset.from_generator(records, output_signature=tf.TensorSpec((), tf.string))


def parse_record(record: Any) -> tuple[Any, Any]:
    """Return a record's image (32, 32, 3) as bytes and its label, as tensors."""
    import tensorflow as tf

    features = tf.io.parse_single_example(
        record,
        {
            "image": tf.io.FixedLenFeature((), tf.string),
            "label": tf.io.FixedLenFeature((), tf.int64),
        },
    )
    image = tf.reshape(tf.io.decode_raw(features["image"], tf.uint8), (3, SIDE, SIDE))
    return tf.transpose(image, (1, 2, 0)), features["label"]


def load_records(path: Path) -> tuple[Any, Any]:
    """Return images (n, 32, 32, 3) as bytes and labels (n,) of a file. Raise DataError."""
    import tensorflow as tf

    records = tf.data.TFRecordDataset(str(path)).map(parse_record).batch(count_records(path))
    try:
        images, labels = next(records.as_numpy_iterator())
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
        raise DataError(f"{path}: {first_line(error)}") from error
    return images, labels


def first_line(error: Any) -> str:
    """Return the first line of TensorFlow's message, without the names of graph nodes."""
    return re.sub(r"{{[^}]*}}|\[Op:.*", "", error.message).strip().splitlines()[0]
