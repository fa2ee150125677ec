"""Shards for the resizer's tests: `make FOLDER` writes the input, `read FOLDER...` prints JSON.

TensorFlow writes and reads them, which also checks our own reader and writer.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import tensorflow as tf
from resizer_pictures import coded, features, pixels, record

TRAIN_SHARDS = 4
# Features that older readers of this format need.
ASKED = {
    "image/class/text": tf.io.FixedLenFeature([], tf.string, default_value=""),
    "image/object/bbox/xmin": tf.io.VarLenFeature(tf.float32),
}
IMAGES = (6, 6, 6, 3)


def make(folder: Path) -> None:
    """Make `good` (train shards from number 1, validation ones from 0) and `bad` (two broken)."""
    for name in ("good", "bad"):
        (folder / name).mkdir(parents=True)
    for shard, images in enumerate(IMAGES):
        rows = [image_record(shard, index) for index in range(images)]
        write(folder / "good" / f"train-{shard + 1:05d}-of-{TRAIN_SHARDS:05d}", rows)
        if shard == 2:
            rows[4] = record(b"\xff\xd8 no image", image__filename="Bär's\n4.JPEG".encode())
            rows[5] = record(None)
        write(folder / "bad" / f"train-{shard:05d}-of-{TRAIN_SHARDS:05d}", rows)
    write(folder / "good" / "validation-00000-of-00001", [image_record(9, i) for i in range(3)])
    damaged = folder / "bad" / "train-00001-of-00004"
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)


def image_record(shard: int, index: int) -> bytes:
    width, height = ((80, 60), (60, 90), (40, 30))[index % 3]
    image = coded(pixels(width, height, seed=10 * shard + index), quality=95)
    name = f"image {shard}-{index}.JPEG".encode()
    label = 1000 - 10 * shard - index
    return record(image, image__filename=name, image__class__label=label)


def write(path: Path, rows: list[bytes]) -> None:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for row in rows:
            writer.write(row)


def read(folder: Path) -> dict[str, list[Any]]:
    """Return, by shard, each record's name, label, stated width and height, and the image's own."""
    found = {}
    for path in sorted(folder.glob("[tv]*-of-*")):
        rows = []
        for row in tf.data.TFRecordDataset([str(path)]).as_numpy_iterator():
            tf.io.parse_single_example(row, ASKED)
            values = features(row)
            shape = tf.image.decode_jpeg(values["image/encoded"][0]).shape
            told = [values["image/width"][0], values["image/height"][0]]
            name, label = values["image/filename"][0].decode(), values["image/class/label"][0]
            rows.append([name, label, told, [shape[1], shape[0]]])
        found[path.name] = rows
    return found


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]))
    else:
        print("FACTS", json.dumps({Path(name).name: read(Path(name)) for name in sys.argv[2:]}))
