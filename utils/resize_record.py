"""Resizing the image of one ImageNet record. It takes and returns a serialized record.

A part of tensorflow_image_resizer.py. It needs Pillow, not TensorFlow.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from image_record import CorruptImage, as_rgb, decoding
from PIL import Image
from records import RecordError, Values, decode_example, encode_example

# Features that a record gets if it lacks them. Bounding boxes are fractions of the sides, so
# resizing does not change them.
ADDED: dict[str, Values | bytes | int | float] = {
    "image/class/text": [b""],
    **{f"image/object/bbox/{side}": [] for side in ("xmin", "ymin", "xmax", "ymax")},
}
CHROMA_HALVED = 2  # Pillow's number for 4:2:0

Shrink = Callable[[Image.Image, tuple[int, int]], Image.Image]


@dataclass(frozen=True)
class Settings:
    """The form of the results: pixels of the shorter side, and JPEG quality.

    With `stretch` every image becomes a square of `size`.
    """

    size: int = 480
    quality: int = 85
    stretch: bool = False


@dataclass(frozen=True)
class Resized:
    """A JPEG and its size in pixels."""

    encoded: bytes
    width: int
    height: int


def target_size(width: int, height: int, settings: Settings) -> tuple[int, int]:
    """Return the (width, height) in pixels that an image gets.

    It is a square with `stretch`. Otherwise the shorter side becomes `size` at most, and no image
    is enlarged.
    """
    size = settings.size
    if settings.stretch:
        return size, size
    short, long = sorted((width, height))
    if short <= size:
        return width, height
    other = (long * size + short // 2) // short
    return (size, other) if width < height else (other, size)


def shrink(image: Image.Image, target: tuple[int, int]) -> Image.Image:
    """Resize an image with Pillow's bilinear filter.

    It averages all source pixels under an output pixel, so there is no aliasing at any ratio.
    """
    return image.resize(target, Image.Resampling.BILINEAR)


@contextmanager
def shrinking(threads: int) -> Iterator[Shrink]:
    """Yield a version of `shrink` that uses several threads. Its results are the same, bit for bit.

    Pillow scales along the rows first and then along the columns. So bands of rows, and later bands
    of columns, can be scaled independently.
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
    """Return `length` cut into at most `count` ranges (start, end) of about the same length.

    No range is empty.
    """
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
    """Return the image as an RGB JPEG of the wanted size. Raise CorruptImage.

    An RGB JPEG that has this size already keeps its bytes if encoding it again makes it larger.
    """
    with decoding(encoded):
        image = Image.open(io.BytesIO(encoded))
        source = image.size
        target = target_size(*source, settings)
        keepable = target == source and (image.format, image.mode) == ("JPEG", "RGB")
        # A JPEG decoder can scale by 1/2, 1/4 or 1/8 while it decodes, which is much faster.
        image.draft("RGB", target)
        image.load()
        pixels = as_rgb(image)
    if pixels.size != target:
        pixels = shrink(pixels, target)
    again = encode_jpeg(pixels, settings.quality)
    return Resized(encoded if keepable and len(encoded) <= len(again) else again, *target)


def encode_jpeg(image: Image.Image, quality: int) -> bytes:
    """Return a baseline JPEG with optimized Huffman tables and 4:2:0 chroma, as in the original."""
    image.info.clear()  # no comment or profile from the source
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality, optimize=True, subsampling=CHROMA_HALVED)
    return out.getvalue()


def resize_record(record: bytes, settings: Settings, shrink: Shrink = shrink) -> bytes:
    """Return the serialized Example with its image resized and its size updated.

    The other features stay as they are, and missing ones are ADDED. Raises CorruptImage.
    """
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
