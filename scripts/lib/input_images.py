"""Write records of pictures that take as long to decode as resized photos.

input_images.py FOLDER COUNT: write four files train-0000N-of-00004 with COUNT pictures in all, and
print the mean size of a picture in bytes. It runs in the training environment.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf
from PIL import Image

FILES = 4
DIFFERENT = 64  # number of different pictures, which are repeated
SIZES = ((500, 375), (375, 500), (640, 480), (500, 333), (480, 640), (500, 375), (720, 480))
QUALITY = 85  # the resizer's default; it does not change the size of photos of 500 x 375


def picture(rng: np.random.Generator, width: int, height: int) -> bytes:
    """Return a JPEG like a photo's: its amplitudes fall with frequency as in photos."""
    down, across = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None]
    frequency = np.hypot(down, across)
    frequency[0, 0] = np.inf
    planes = []
    for _ in range(4):
        waves = rng.normal(size=frequency.shape) + 1j * rng.normal(size=frequency.shape)
        plane = np.fft.irfft2(waves / frequency**1.5, s=(height, width))
        planes.append(plane / plane.std())
    grey, *colors = planes
    levels = 120 + 50 * np.stack([0.9 * grey + 0.35 * color for color in colors], axis=-1)
    buffer = io.BytesIO()
    Image.fromarray(levels.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()


def record(jpeg: bytes, label: int) -> bytes:
    def feature(value: bytes | int) -> tf.train.Feature:
        if isinstance(value, int):
            return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))

    values = {"image/encoded": jpeg, "image/class/label": label, "image/format": b"JPEG"}
    values |= {"image/height": 0, "image/width": 0, "image/channels": 3, "image/colorspace": b"RGB"}
    features = {name: feature(value) for name, value in values.items()}
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def main() -> None:
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    rng = np.random.default_rng(0)
    pictures = [picture(rng, *SIZES[index % len(SIZES)]) for index in range(DIFFERENT)]
    for index in range(FILES):
        name = folder / f"train-{index:05}-of-{FILES:05}"
        with tf.io.TFRecordWriter(str(name)) as file:
            for number in range(index, count, FILES):
                file.write(record(pictures[number % DIFFERENT], 1 + number % 1000))
    print(sum(map(len, pictures)) // DIFFERENT)


if __name__ == "__main__":
    main()
