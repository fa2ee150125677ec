"""An image file as the record of it that trainers read."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from PIL import Image, UnidentifiedImageError
from records import Values

JPEG_MARK = b"\xff\xd8\xff"

warnings.filterwarnings("ignore", module="PIL")  # about EXIF blocks, which nobody reads here


class CorruptImage(Exception):
    """An image that cannot be decoded to its end, or a record without one; the message says why."""


def image_features(data: bytes, name: str, synset: str, label: int) -> dict[str, Values | int]:
    """The features of an image. Raises CorruptImage."""
    encoded, width, height = as_rgb_jpeg(data)
    return {
        "image/height": height,
        "image/width": width,
        "image/channels": 3,
        "image/class/label": label,
        "image/class/synset": synset.encode(),
        "image/colorspace": b"RGB",
        "image/format": b"JPEG",
        "image/filename": name.encode(),
        "image/encoded": encoded,
    }


def as_rgb_jpeg(data: bytes) -> tuple[bytes, int, int]:
    """A JPEG of colours or greys as it is, anything else converted; its width and height.

    ImageNet holds a PNG and 22 CMYK pictures under names of JPEGs. Each image is decoded to its
    end, since a trainer that meets a broken one hours later has no way on.
    """
    with decoding(data), Image.open(io.BytesIO(data)) as image:
        width, height = image.size
        if data.startswith(JPEG_MARK) and image.mode in ("RGB", "L"):
            # Grey, at an eighth of the size: every bit is read, few pixels are computed.
            image.draft("L", (1, 1))
            image.load()
            return data, width, height
        return encode(image.convert("RGB")), width, height


@contextmanager
def decoding(data: bytes) -> Iterator[None]:
    """Whatever Pillow raises at damaged bytes becomes CorruptImage."""
    try:
        yield
    except MemoryError:
        raise
    except UnidentifiedImageError:
        raise CorruptImage("this is no image" if data else "the file is empty") from None
    except Exception as error:  # a damaged file can make a decoder raise anything
        raise CorruptImage(str(error) or type(error).__name__) from None


def encode(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=100, subsampling=0)
    return buffer.getvalue()
