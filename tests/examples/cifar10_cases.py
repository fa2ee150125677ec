"""Runs CIFAR-10's readers on valid and broken files, in the training environment.

    cifar10_cases.py FOLDER_OF_THE_EXAMPLE

Prints a JSON object for archives and record files: {case: what was read, or the DataError's text}.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Callable

import numpy as np

sys.path.insert(0, sys.argv[1])
import cifar10_data as data  # noqa: E402
import confusion_matrix  # noqa: E402
import generate_cifar10_tfrecords as generate  # noqa: E402
import make_sample_cifar10 as stand_in  # noqa: E402

IMAGES = np.arange(3 * 3072).astype(np.uint8).reshape(3, 3072)
LABELS = [0, 9, 4]
NAMES = [name for batches in data.SUBSETS.values() for name in batches]


class Order:
    """An object that makes a folder named `owned` when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("owned",)


def batch(images: Any = IMAGES, labels: Any = LABELS) -> bytes:
    return stand_in.pickled("a batch", images, labels)


def archive(last: bytes, mode: str = "w:gz", folder: str = "cifar-10-batches-py") -> bytes:
    """Make an archive of five valid batches and this one."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode=mode) as tar:
        for name in NAMES:
            member = tarfile.TarInfo(f"{folder}/{name}")
            pickled = last if name == NAMES[-1] else batch()
            member.size = len(pickled)
            tar.addfile(member, io.BytesIO(pickled))
    return content.getvalue()


def by_python_3(batch: dict[bytes, Any]) -> bytes:
    return pickle.dumps(batch)


ARCHIVES: dict[str, bytes | None] = {
    "whole": archive(batch()),
    "unpacked": None,
    "tar without gz": archive(batch(), "w"),
    "another folder": archive(batch(), folder="./x/y"),
    "by Python 3": archive(by_python_3({b"data": IMAGES, b"labels": LABELS})),
    "cut": archive(batch())[:-300],
    "empty": b"",
    "a page": b"<html>not found</html>",
    "an order": archive(pickle.dumps({b"data": Order()})),
    "no pickle": archive(b"hello"),
    "cut pickle": archive(batch()[:-20]),
    "a list": archive(pickle.dumps([1])),
    "text as keys": archive(pickle.dumps({"data": 1, "labels": 2})),
    "floats": archive(by_python_3({b"data": IMAGES / 255, b"labels": LABELS})),
    "other sizes": archive(by_python_3({b"data": IMAGES[:, 1:], b"labels": LABELS})),
    "one label": archive(by_python_3({b"data": IMAGES, b"labels": [1]})),
    "uneven labels": archive(by_python_3({b"data": IMAGES, b"labels": [1, [2], 3]})),
    "label 10": archive(by_python_3({b"data": IMAGES, b"labels": [1, 2, 10]})),
    "no images": archive(by_python_3({b"data": IMAGES[:0], b"labels": []})),
}


def of_archive(folder: Path, content: bytes | None) -> str:
    path = folder / "cifar.tar.gz"
    if content is None:
        path.mkdir()
        for name in NAMES:
            (path / name).write_bytes(batch())
    else:
        path.write_bytes(content)
    subsets = data.read_archive(path)
    assert all(
        (images == np.tile(IMAGES, (len(images) // 3, 1))).all() for images, _ in subsets.values()
    )
    return str({name: labels.tolist() for name, (_, labels) in subsets.items()})


def missing_batch(folder: Path, _: Any) -> str:
    (folder / "data_batch_1").write_bytes(batch())
    return str(data.read_archive(folder))


def records(tf: Any) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x" / "good.tfrecords"
        generate.write_records(path, IMAGES, LABELS)
        assert [file.name for file in path.parent.iterdir()] == [path.name]
        good = path.read_bytes()
        bad = Path(folder) / "bad"
        with tf.io.TFRecordWriter(str(bad)) as writer:
            writer.write(generate.example(tf, b"short", 1))
        short = bad.read_bytes()
        with tf.io.TFRecordWriter(str(bad)) as writer:
            writer.write(b"no example")
        return {
            "whole": good,
            "empty": b"",
            "cut": good[:-5],
            "cut header": good + b"123",
            "a flipped bit": good[:100] + bytes([good[100] ^ 1]) + good[101:],
            "a short image": short,
            "no example": bad.read_bytes(),
            "text": b"hello, this is no TFRecord file",
        }


def of_records(folder: Path, content: bytes) -> str:
    path = folder / "eval.tfrecords"
    path.write_bytes(content)
    images, labels = data.load_records(data.record_file(folder, "eval"))
    assert (images.transpose(0, 3, 1, 2).reshape(-1, 3072) == IMAGES).all()
    return f"{images.dtype} {images.shape} {labels.tolist()}"


def outcome(of: Callable[[Path, Any], str], content: Any) -> str:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            result = of(Path(folder), content)
        except data.DataError as error:
            result = str(error).replace(folder, "DIR")
        assert not Path("owned").exists(), "a pickle's order was carried out"
        os.chdir("/")
        return result


def confusion() -> list[Any]:
    matrix = confusion_matrix.confusion_matrix([0, 0, 2, 2, 2, 0], [0, 1, 2, 2, 0, 0], 3)
    return [matrix.tolist(), confusion_matrix.as_text(matrix, ["a", "bb", "cat"]).splitlines()]


def main() -> None:
    archives = {case: outcome(of_archive, content) for case, content in ARCHIVES.items()}
    archives["five missing"] = outcome(missing_batch, None)
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    files = {case: outcome(of_records, content) for case, content in records(tf).items()}
    facts = {"archives": archives, "records": files, "confusion": confusion()}
    print("FACTS " + json.dumps(facts))


if __name__ == "__main__":
    main()
