"""Resize the image of one ImageNet record: bytes in, bytes out, nothing else changed.

A sibling of tensorflow_image_resizer.py, which runs it. Needs Pillow, no TensorFlow.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from image_record import CorruptImage, decoding
from PIL import Image
from records import RecordError, Values, decode_example, encode_example

# What a record without them gets. Boxes are shares of the sides, so shrinking changes none.
ADDED: dict[str, Values | bytes | int | float] = {
    "image/class/text": [b""],
    **{f"image/object/bbox/{side}": [] for side in ("xmin", "ymin", "xmax", "ymax")},
}
CHROMA_HALVED = 2  # Pillow's word for 4:2:0

Shrink = Callable[[Image.Image, tuple[int, int]], Image.Image]


@dataclass(frozen=True)
class Settings:
    """What the images become: pixels of the shorter side, JPEG quality, or a square."""

    size: int = 480
    quality: int = 85
    stretch: bool = False


@dataclass(frozen=True)
class Resized:
    """A JPEG and its true size in pixels."""

    encoded: bytes
    width: int
    height: int


def target_size(width: int, height: int, settings: Settings) -> tuple[int, int]:
    """(width, height) in pixels: a square, or the shorter side at most `size`, never enlarged."""
    size = settings.size
    if settings.stretch:
        return size, size
    short, long = sorted((width, height))
    if short <= size:
        return width, height
    other = (long * size + short // 2) // short
    return (size, other) if width < height else (other, size)


def shrink(image: Image.Image, target: tuple[int, int]) -> Image.Image:
    """Bilinear, over all source pixels under an output pixel: no aliasing at any ratio."""
    return image.resize(target, Image.Resampling.BILINEAR)


@contextmanager
def shrinking(threads: int) -> Iterator[Shrink]:
    """`shrink` by several threads, bit for bit the same.

    Pillow scales along the rows first and then along the columns, so bands of rows, and then
    bands of columns, depend on nothing outside of them.
    """
    if threads <= 1:
        yield shrink
        return
    with ThreadPoolExecutor(threads) as pool:

        def in_bands(image: Image.Image, target: tuple[int, int]) -> Image.Image:
            width, height = target
            rows = [(0, top, image.width, end) for top, end in bands(image.height, threads)]
            parts = pool.map(lambda box: shrink_part(image, box, (width, box[3] - box[1])), rows)
            flat = paste_all(Image.new(image.mode, (width, image.height)), rows, parts)
            columns = [(left, 0, end, image.height) for left, end in bands(width, threads)]
            parts = pool.map(lambda box: shrink_part(flat, box, (box[2] - box[0], height)), columns)
            return paste_all(Image.new(image.mode, target), columns, parts)

        yield in_bands


def bands(length: int, count: int) -> list[tuple[int, int]]:
    """`length` cut into at most `count` ranges (start, end) of nearly one length, none empty."""
    edges = [length * index // count for index in range(count + 1)]
    return [(start, end) for start, end in zip(edges, edges[1:]) if end > start]


def shrink_part(
    image: Image.Image, box: tuple[int, int, int, int], target: tuple[int, int]
) -> Image.Image:
    return shrink(image.crop(box), target)


def paste_all(whole: Image.Image, boxes: list[Any], parts: Any) -> Image.Image:
    for box, part in zip(boxes, parts):
        whole.paste(part, box[:2])
    return whole


def resize_image(encoded: bytes, settings: Settings, shrink: Shrink = shrink) -> Resized:
    """The image as a JPEG in RGB of the wanted size; `CorruptImage` when it cannot be decoded.

    One that is small enough, and that coding again would make larger, keeps its bytes.
    """
    with decoding(encoded):
        image = Image.open(io.BytesIO(encoded))
        source = image.size
        target = target_size(*source, settings)
        keepable = target == source and (image.format, image.mode) == ("JPEG", "RGB")
        # A JPEG decoder halves, quarters or eighths an image while it decodes.
        image.draft("RGB", target)
        image.load()
        pixels = image if image.mode == "RGB" else image.convert("RGB")
    if pixels.size != target:
        pixels = shrink(pixels, target)
    again = encode_jpeg(pixels, settings.quality)
    return Resized(encoded if keepable and len(encoded) <= len(again) else again, *target)


def encode_jpeg(image: Image.Image, quality: int) -> bytes:
    """Baseline JPEG with its own Huffman tables and halved chroma, as the original wrote."""
    image.info.clear()  # no comment or profile from the source
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality, optimize=True, subsampling=CHROMA_HALVED)
    return out.getvalue()


def resize_record(record: bytes, settings: Settings, shrink: Shrink = shrink) -> bytes:
    """A serialized Example with its image resized, its size told truly, all else as it was."""
    try:
        features = decode_example(record)
    except RecordError as error:
        raise CorruptImage(str(error)) from error
    encoded = features.get("image/encoded")
    if not encoded or not isinstance(encoded[0], bytes):
        raise CorruptImage("the record has no image/encoded")
    resized = resize_image(encoded[0], settings, shrink)
    changed: dict[str, Values | bytes | int | float] = {
        "image/encoded": resized.encoded,
        "image/height": resized.height,
        "image/width": resized.width,
        "image/channels": 3,
        "image/colorspace": b"RGB",
        "image/format": b"JPEG",
    }
    return encode_example({**ADDED, **features, **changed})
