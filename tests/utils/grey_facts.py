"""Makes records' images of grey images with more than 8 bits: the first pixels, or the reason."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "utils"))

from image_record import CorruptImage, as_rgb_jpeg
from PIL import Image
from resize_record import Settings, resize_image

SOURCES = (
    ("PNG", "I;16"),
    ("TIFF", "I;16"),
    ("TIFF", "I;16B"),
    ("PPM", "I"),
    ("TIFF", "I"),
    ("TIFF", "F"),
)


def main() -> None:
    facts = {}
    for form, mode in SOURCES:
        image = Image.new(mode, (64, 64))
        image.putdata([column * 1024 for _ in range(64) for column in range(64)])
        file = io.BytesIO()
        image.save(file, form)
        facts[f"{form} {mode}"] = [made(file.getvalue(), how) for how in (as_rgb_jpeg, resized)]
    print("FACTS " + json.dumps(facts))


def resized(data: bytes) -> tuple[bytes, int, int]:
    small = resize_image(data, Settings(64))
    return small.encoded, 64, 64


def made(data: bytes, how) -> str | list[int]:  # type: ignore[no-untyped-def]
    """Return the red of columns 8, 24 and 40, whose upper bytes are 32, 96 and 160."""
    try:
        encoded, _, _ = how(data)
    except CorruptImage as error:
        return str(error)
    with Image.open(io.BytesIO(encoded)) as image:
        return [image.getpixel((column, 32))[0] for column in (8, 24, 40)]


if __name__ == "__main__":
    main()
