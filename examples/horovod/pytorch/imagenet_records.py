"""ImageNet's TFRecord files as a data set of PyTorch, without TensorFlow. It needs Pillow.

The files are those of the TensorFlow trainer (train-00000-of-01024 and so on). Their format has two
parts:

* A record is its length (8 bytes, little-endian), a checksum (4 bytes), the data, and another
  checksum (4): https://www.tensorflow.org/tutorials/load_data/tfrecord. Checksums are not compared:
  Python's standard library has no CRC-32C. Pillow refuses a JPEG that is cut short.
* The data is an Example, a protocol buffer of named values:
  https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/example/feature.proto
"""

from __future__ import annotations

import io
import os
import re
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import torch
from torch.utils.data import Dataset

try:
    from PIL import Image
except ImportError:  # then images of noise alone are possible
    Image = None

SHARD = re.compile(r"train-(?P<index>\d{5,})-of-(?P<count>\d{5,})")
HEAD, TAIL = 12, 4  # bytes of a record before and after its data
CLASSES = 1000
LEAST_AREA = 0.1  # smallest crop, as a share of the image
ASPECTS = (3 / 4, 4 / 3)  # range of width / height of a crop
DELIMITED, VARINT = 2, 0  # wire types of protocol buffers


class DataError(Exception):
    """The data cannot be used. The text has the reason and a remedy."""


def files_of(folder: str) -> list[str]:
    """Return the paths of the train-* files, sorted. They are counted from 0 or from 1.

    Raises DataError if there are none, if one is missing, or if files of two sets are there.
    """
    if Image is None:
        raise DataError(
            "images from files need Pillow: apt-get install python3-pil for the Python of Debian "
            f"or Ubuntu, else {sys.executable} -m pip install pillow"
        )
    path = Path(folder).expanduser()
    try:
        shards = [match for match in map(SHARD.fullmatch, os.listdir(path)) if match]  # noqa: PTH208
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    if not shards:
        raise DataError(f"no files train-00000-of-... in {path}")
    counts = {int(match["count"]) for match in shards}
    indexes = sorted(int(match["index"]) for match in shards)
    first = min(indexes[0], 1)
    if len(counts) > 1 or indexes != list(range(first, first + max(counts))):
        named = " and ".join(str(count) for count in sorted(counts))
        raise DataError(
            f"{path} has {len(shards)} train files of {named}: copy them again, one set alone"
        )
    return sorted(str(path / match[0]) for match in shards)


def bounds_in(path: str) -> array[int]:
    """Return where each record of a file begins, in bytes, and the file's end.

    Only lengths are read. Raises DataError if the file is cut short or is no TFRecord file.
    """
    try:
        with Path(path).open("rb", buffering=0) as file:
            descriptor, at = file.fileno(), 0
            end = os.fstat(descriptor).st_size
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # read nothing ahead
            bounds = array("q", [0])
            while at < end:
                length = os.pread(descriptor, 8, at)
                at += HEAD + int.from_bytes(length, "little") + TAIL
                if len(length) < 8 or at > end:
                    raise DataError(
                        f"{path} is cut short, or is no TFRecord file: copy or make it again"
                    )
                bounds.append(at)
            return bounds
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None


class TrainingImages(Dataset):
    """The training images: random crops of size x size pixels, half of them mirrored.

    Item n is (uint8 [size, size, 3] of levels 0..255, label 0..999). `bounds` are those of each
    file. Crops are distributed as in the TensorFlow trainer (../tensorflow/augment.py). Pillow's
    bilinear resizing also averages over the pixels that it leaves out, TensorFlow's does not.
    """

    def __init__(self, files: list[str], bounds: list[array[int]], size: int) -> None:
        self.files, self.bounds, self.size = files, bounds, size
        self.first = list(accumulate((len(each) - 1 for each in bounds), initial=0))

    def __len__(self) -> int:
        return self.first[-1]

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        file = bisect_right(self.first, number) - 1
        within = number - self.first[file]
        begin, end = self.bounds[file][within : within + 2]
        try:
            with Path(self.files[file]).open("rb", buffering=0) as opened:
                data = os.pread(opened.fileno(), end - begin - HEAD - TAIL, begin + HEAD)
            jpeg, label = image_and_label(data)
            return self.altered(jpeg), label
        except (ValueError, IndexError, OSError, SyntaxError) as error:  # Pillow raises all four
            raise DataError(f"{self.files[file]}, record {within}: {error}") from None

    def altered(self, jpeg: bytes) -> torch.Tensor:
        """Return a random crop of the image, mirrored or not. Raises OSError for a damaged one."""
        draws = torch.rand(5).tolist()
        with Image.open(io.BytesIO(jpeg)) as image:
            box = crop(*draws[:4], *image.size)
            side = (self.size, self.size)
            resized = image.convert("RGB").resize(side, Image.BILINEAR, box=box)
        pixels = torch.frombuffer(bytearray(resized.tobytes()), dtype=torch.uint8)
        pixels = pixels.view(self.size, self.size, 3)
        return pixels.flip(1) if draws[4] < 0.5 else pixels


def crop(
    aspect: float, height: float, top: float, left: float, columns: int, rows: int
) -> tuple[float, float, float, float]:
    """Return left, top, right, bottom of a crop in pixels, from four random numbers of 0..1.

    Aspect and height refer to the image stretched to a square: augment.boxes in ../tensorflow.
    """
    aspect = ASPECTS[0] + aspect * (ASPECTS[1] - ASPECTS[0])
    lowest, highest = (LEAST_AREA / aspect) ** 0.5, min(1.0, 1 / aspect)
    height = lowest + height * (highest - lowest)
    width = min(1.0, height * aspect)
    x, y = left * (1 - width) * columns, top * (1 - height) * rows
    return x, y, min(x + width * columns, columns), min(y + height * rows, rows)


def image_and_label(data: bytes) -> tuple[bytes, int]:
    """Return the JPEG of a serialized Example, and its label 0..999; the file counts from 1.

    Raises ValueError or IndexError if it is something else.
    """
    values: dict[bytes, memoryview] = {}
    for features in fields(memoryview(data), 1):
        for entry in fields(features, 1):
            [name], value = fields(entry, 1), list(fields(entry, 2))
            values[bytes(name)] = value[-1] if value else memoryview(b"")
    if not {b"image/encoded", b"image/class/label"} <= values.keys():
        raise ValueError("a record without image/encoded and image/class/label")
    # A Feature is a list of bytes (field 1) or of integers (field 3), packed or not.
    [jpeg] = (one for listed in fields(values[b"image/encoded"], 1) for one in fields(listed, 1))
    [label] = (one for listed in fields(values[b"image/class/label"], 3) for one in numbers(listed))
    if not 1 <= label <= CLASSES:
        raise ValueError(f"the label {label} is not 1..{CLASSES}")
    return bytes(jpeg), label - 1


def fields(message: memoryview, wanted: int) -> Iterator[memoryview]:
    """Yield the contents of a message's delimited fields of one number."""
    for number, content in contents(message):
        if number == wanted and isinstance(content, memoryview):
            yield content


def numbers(message: memoryview) -> Iterator[int]:
    """Yield the integers of an Int64List."""
    for number, content in contents(message):
        if number == 1 and isinstance(content, int):
            yield content
        elif number == 1:
            at = 0
            while at < len(content):
                value, at = varint(content, at)
                yield value


def contents(message: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """Yield number and content of each field. Raises ValueError or IndexError if it is damaged."""
    at = 0
    while at < len(message):
        key, at = varint(message, at)
        if key & 7 == VARINT:
            value, at = varint(message, at)
            yield key >> 3, value
            continue
        lengths = {1: 8, 5: 4}  # of fixed64 and fixed32
        if key & 7 == DELIMITED:
            length, at = varint(message, at)
        elif key & 7 in lengths:
            length = lengths[key & 7]
        else:
            raise ValueError("not an Example")
        if at + length > len(message):
            raise ValueError("not an Example: a field reaches past the end")
        yield key >> 3, message[at : at + length]
        at += length


def varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return the varint at index `at`, and the index after it."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
