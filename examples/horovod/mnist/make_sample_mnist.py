"""Make a stand-in for MNIST: printed digits, moved about, in noise. Real file formats, no download.

    python make_sample_mnist.py --data_dir ~/data/mnist

The same seed makes the same files. The accuracy on them says nothing about MNIST.
"""

from __future__ import annotations

import argparse
import gzip
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
from flag_types import local_folder

# Each digit as seven rows of five pixels.
GLYPHS = (
    "01110 10001 10011 10101 11001 10001 01110",
    "00100 01100 00100 00100 00100 00100 01110",
    "01110 10001 00001 00110 01000 10000 11111",
    "11111 00010 00100 00010 00001 10001 01110",
    "00010 00110 01010 10010 11111 00010 00010",
    "11111 10000 11110 00001 00001 10001 01110",
    "00110 01000 10000 11110 10001 10001 01110",
    "11111 00001 00010 00100 01000 01000 01000",
    "01110 10001 10001 01110 10001 10001 01110",
    "01110 10001 10001 01111 00001 00010 01100",
)


def sample(count: int, random: np.random.Generator) -> tuple[Any, Any]:
    """Return images (count, 28, 28) as bytes, and labels. Each digit is equally frequent."""
    glyphs = [
        np.kron([[int(bit) for bit in row] for row in glyph.split()], np.ones((3, 3)))
        for glyph in GLYPHS
    ]
    labels = random.permutation(np.arange(count) % 10)
    images = random.uniform(0, 90, (count, 28, 28))
    for image, label in zip(images, labels):
        top, left = random.integers(0, (8, 14))
        height, width = glyphs[label].shape
        window = image[top : top + height, left : left + width]
        window += glyphs[label] * random.uniform(90, 160)
    return images.astype(np.uint8), labels


def write_npz(folder: Path, subset: str, images: Any, labels: Any) -> None:
    np.savez(folder / f"{subset}.npz", data=images, labels=labels)


def write_idx(folder: Path, subset: str, images: Any, labels: Any) -> None:
    """Write a subset in MNIST's own format; mnist_data.py describes it."""
    name = {"train": "train", "test": "t10k"}[subset]
    for kind, array in (("images-idx3", images), ("labels-idx1", labels.astype(np.uint8))):
        # 0x08: the elements are unsigned bytes. mtime=0: the same seed makes the same files.
        header = struct.pack(f">2xBB{array.ndim}I", 0x08, array.ndim, *array.shape)
        packed = gzip.compress(header + array.tobytes(), mtime=0)
        (folder / f"{name}-{kind}-ubyte.gz").write_bytes(packed)


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
        default="~/data/mnist",
        help="folder for the files",
    )
    add("--images", type=int, default=6000, help="for training")
    add("--test-images", "--test_images", type=int, default=1000, help="for testing")
    add("--idx", action="store_true", help="IDX files, not train.npz and test.npz")
    add("--seed", type=int, default=0, help="of all that is random")
    args = parser.parse_args(argv)
    if min(args.images, args.test_images) < 10:
        parser.error("--images and --test_images: 10 or more, for one of each digit")
    try:
        write_sample(args)
    except OSError as error:
        sys.exit(f"error: {error}")


def write_sample(args: argparse.Namespace) -> None:
    folder = Path(args.data_dir).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(args.seed)
    first = next((path for path in folder.glob("t*.npz") if args.idx), None)
    if first:
        sys.exit(f"error: {first} is there: programs would read it, and no IDX files")
    write = write_idx if args.idx else write_npz
    for subset, count in (("train", args.images), ("test", args.test_images)):
        write(folder, subset, *sample(count, random))
    print(f"{args.images} training images and {args.test_images} test images in {folder}")


if __name__ == "__main__":
    main()
