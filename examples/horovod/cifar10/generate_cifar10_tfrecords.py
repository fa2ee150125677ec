"""Turn CIFAR-10 as it is published into TFRecords for training, validation and evaluation.

    python generate_cifar10_tfrecords.py --data-dir ~/data/cifar10

This reads cifar-10-python.tar.gz in that folder, and first downloads it (163 MiB) if it is missing.
It writes train/train.tfrecords with 40,000 images, validation/validation.tfrecords with 10,000, and
eval/eval.tfrecords with the 10,000 test images.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

from cifar10_data import DataError, read_archive, record_file
from flag_types import local_folder

ARCHIVE = "cifar-10-python.tar.gz"
URL = f"https://www.cs.toronto.edu/~kriz/{ARCHIVE}"
MD5 = "c58f30108f718f92721af3b95e74349a"  # from CIFAR-10's web page
BLOCK_BYTES = 1 << 20
TIMEOUT_S = 60.0


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--data-dir",
        "--data_dir",
        type=local_folder,
        default="~/data/cifar10",
        help="folder for all of it",
    )
    add(
        "--archive",
        type=local_folder,
        help="the .tar.gz, or the folder it unpacks to, if it lies elsewhere",
    )
    add("--url", default=URL, help="where the .tar.gz is downloaded from")
    add("--md5", default=MD5, help="of the .tar.gz there")
    return parser.parse_args(argv)


def download(url: str, md5: str, path: Path) -> None:
    """Download a file. It gets its name when it is complete. Raise OSError or ValueError."""
    digest, done = hashlib.md5(), 0
    temporary = path.with_name(path.name + ".part")
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer, temporary.open("wb") as file:
        while block := answer.read(BLOCK_BYTES):
            digest.update(block)
            done += file.write(block)
            if sys.stderr.isatty():
                print(f"\r{path.name}: {done >> 20} MiB", end="", file=sys.stderr, flush=True)
    if digest.hexdigest() != md5:
        temporary.unlink()
        raise ValueError(f"{url}: {done} bytes with MD5 {digest.hexdigest()}, not {md5}: try again")
    temporary.rename(path)


def write_records(path: Path, images: Any, labels: Any) -> None:
    """Write a TFRecord file. It gets its name when it is complete. Raise OSError."""
    import tensorflow as tf

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.part")
    with tf.io.TFRecordWriter(str(temporary)) as writer:
        for image, label in zip(images, labels):
            writer.write(example(tf, image.tobytes(), int(label)))
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.rename(path)


def example(tf: Any, image: bytes, label: int) -> bytes:
    features = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def generate(args: argparse.Namespace) -> None:
    folder = Path(args.data_dir).expanduser()
    archive = Path(args.archive).expanduser() if args.archive else folder / ARCHIVE
    if not args.archive and not archive.exists():
        folder.mkdir(parents=True, exist_ok=True)
        print(f"Downloading {args.url}", flush=True)
        try:
            download(args.url, args.md5, archive)
        except (URLError, HTTPException) as error:
            why = error if isinstance(error, HTTPError) else getattr(error, "reason", error)
            raise DataError(f"cannot get it ({why}): put {ARCHIVE} into {folder}") from None
    subsets = read_archive(archive)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    for subset, (images, labels) in subsets.items():
        write_records(folder / subset / f"{subset}.tfrecords", images, labels)
        print(f"{len(images)} images in {record_file(folder, subset)}", flush=True)


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    try:
        generate(args)
    except (DataError, ImportError, OSError, ValueError, HTTPException) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
