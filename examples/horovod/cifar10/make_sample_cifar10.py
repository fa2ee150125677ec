"""Make a stand-in for CIFAR-10: coloured shapes in noise, as cifar-10-python.tar.gz.

    python make_sample_cifar10.py --data-dir ~/data/cifar10

The same seed makes the same images. The accuracy on them says nothing about CIFAR-10.
"""

from __future__ import annotations

import argparse
import io
import pickle
import struct
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from cifar10_data import NAMES, SIDE
from flag_types import local_folder

FOLDER = "cifar-10-batches-py"
COLOURS = ((160, 0, 0), (0, 160, 0), (0, 0, 160), (160, 160, 0), (0, 160, 160))
ACROSS, DOWN = np.meshgrid(np.arange(SIDE), np.arange(SIDE))


class AsPython2(pickle._Pickler):
    """Writes str and bytes as Python 2 wrote its strings: Python 2 wrote the published files."""

    dispatch = dict(pickle._Pickler.dispatch)

    def save_string(self, text: str | bytes) -> None:
        data = text.encode() if isinstance(text, str) else text
        self.write(pickle.BINSTRING + struct.pack("<i", len(data)) + data)
        self.memoize(text)

    dispatch[str] = dispatch[bytes] = save_string


def sample(count: int, random: np.random.Generator) -> tuple[Any, Any]:
    """Return images (count, 3072) as bytes, and labels: five colours, each as disc and as cross."""
    labels = random.permutation(np.arange(count) % len(NAMES))
    noise = random.uniform(0, 90, (count, 3, SIDE, SIDE))
    shapes = [one_shape(label, random) for label in labels]
    return (noise + shapes).astype(np.uint8).reshape(count, -1), labels


def one_shape(label: int, random: np.random.Generator) -> Any:
    """Return the shape of a label as (3, 32, 32): its colour inside, zero elsewhere."""
    x, y = ACROSS - random.uniform(10, 22), DOWN - random.uniform(10, 22)
    radius = random.uniform(6, 9)
    disc = np.hypot(x, y) < radius
    cross = (np.maximum(abs(x), abs(y)) < radius) & (np.minimum(abs(x), abs(y)) < radius / 4)
    colour = np.array(COLOURS[label // 2]) * random.uniform(0.7, 1)
    return (cross if label % 2 else disc) * colour.reshape(3, 1, 1)


def pickled(title: str, images: Any, labels: Any) -> bytes:
    batch = {
        "batch_label": title,
        "labels": [int(label) for label in labels],
        "data": images,
        "filenames": [f"{NAMES[label]}_{i:06}.png" for i, label in enumerate(labels)],
    }
    content = io.BytesIO()
    AsPython2(content, protocol=2).dump(batch)
    return content.getvalue()


def main(argv: list[str] | None = None) -> None:
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
        help="folder for the archive",
    )
    add("--images", type=int, default=1000, help="in each of the six batches")
    add("--seed", type=int, default=0, help="of all that is random")
    args = parser.parse_args(argv)
    if args.images < len(NAMES):
        parser.error(f"--images: {len(NAMES)} or more, for one of each class")
    try:
        write_sample(args)
    except OSError as error:
        sys.exit(f"error: {error}")


def write_sample(args: argparse.Namespace) -> None:
    path = Path(args.data_dir).expanduser() / "cifar-10-python.tar.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(args.seed)
    batches = {f"data_batch_{n}": f"training batch {n} of 5" for n in range(1, 6)}
    with tarfile.open(path, "w:gz") as tar:
        for name, title in {**batches, "test_batch": "testing batch 1 of 1"}.items():
            data = pickled(title, *sample(args.images, random))
            member = tarfile.TarInfo(f"{FOLDER}/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    print(f"six batches of {args.images} images in {path}")


if __name__ == "__main__":
    main()
