"""Conversion of an image file into the record that trainers read."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from PIL import Image, UnidentifiedImageError
from records import Values

JPEG_MARK = b"\xff\xd8\xff"

warnings.filterwarnings("ignore", module="PIL")  # warnings about EXIF data, which is not used


class CorruptImage(Exception):
    """An image that cannot be decoded completely, or a record without an image."""


def image_features(data: bytes, name: str, synset: str, label: int) -> dict[str, Values | int]:
    """Return the features of an image file's record. Raise CorruptImage.

    Names that are not UTF-8 are written as their bytes.
    """
    encoded, width, height = as_rgb_jpeg(data)
    return {
        "image/height": height,
        "image/width": width,
        "image/channels": 3,
        "image/class/label": label,
        "image/class/synset": os.fsencode(synset),
        "image/colorspace": b"RGB",
        "image/format": b"JPEG",
        "image/filename": os.fsencode(name),
        "image/encoded": encoded,
    }


def as_rgb_jpeg(data: bytes) -> tuple[bytes, int, int]:
    """Return the image as an RGB or grey JPEG, with its width and height. Raise CorruptImage.

    Such a JPEG is returned unchanged, other images are converted: in ImageNet a PNG and 22 CMYK
    images have names of JPEGs. Each image is decoded completely, since a trainer that finds a
    broken one hours later cannot go on.
    """
    with decoding(data), Image.open(io.BytesIO(data)) as image:
        width, height = image.size
        if data.startswith(JPEG_MARK) and image.mode in ("RGB", "L"):
            # Decode as grey at an eighth of the size: all data is read, but few pixels computed.
            image.draft("L", (1, 1))
            image.load()
            return data, width, height
        return encode(as_rgb(image)), width, height


def as_rgb(image: Image.Image) -> Image.Image:
    """Return an image in RGB, with 8 bits for each colour. Raise CorruptImage.

    Pillow cuts values over 255 to 255 where it converts. Of 16 bits the upper 8 are taken, as
    TensorFlow's decoder does (libpng's strip_16). Values of 32 bits, whole or floating-point, have
    no range that the file tells.
    """
    if image.mode not in ("F", "I") and not image.mode.startswith("I;"):
        return image if image.mode == "RGB" else image.convert("RGB")
    # Pillow gives mode I to PNG and PGM files of 16 bits. The tag 258 of TIFF files is the number
    # of bits: those of 12 are not scaled to 16.
    sixteen = image.format in ("PNG", "PPM") if image.mode == "I" else image.mode != "F"
    bits = getattr(image, "tag_v2", {}).get(258, (16,))
    if not sixteen or bits[0] != 16:
        raise CorruptImage(
            f"the range of its grey values is not known (mode {image.mode}): images of 8 or 16 "
            "bits for each colour are read"
        )
    upper = image.tobytes("raw", "I;16B")[::2]
    return Image.frombytes("L", image.size, upper).convert("RGB")


@contextmanager
def decoding(data: bytes) -> Iterator[None]:
    """Raise any error of Pillow in the block as CorruptImage, except MemoryError."""
    try:
        yield
    except MemoryError:
        raise
    except UnidentifiedImageError:
        raise CorruptImage("this is no image" if data else "the file is empty") from None
    except Exception as error:  # for a damaged file, decoders raise errors of any kind
        raise CorruptImage(str(error) or type(error).__name__) from None


def encode(image: Image.Image) -> bytes:
    """Return an image as a JPEG of the best quality."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=100, subsampling=0)
    return buffer.getvalue()
