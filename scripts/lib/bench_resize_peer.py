"""Parts of bench_resize.py that need TensorFlow: making images, and one record per session call.

python bench_resize_peer.py make FOLDER SHARDS IMAGES_PER_SHARD
python bench_resize_peer.py one_by_one SOURCE OUT
"""

from __future__ import annotations

import io
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from PIL import Image

# Width and height of 25 images, repeated. ImageNet's are 400 by 350 on average, a few very large.
SHAPES = (
    *((500, 375),) * 11,
    *((375, 500),) * 4,
    *((500, 333),) * 4,
    *((333, 500),) * 2,
    (640, 480),
    (1024, 768),
    (1600, 1200),
    (2272, 1704),
)
SIZE, QUALITY = 480, 85
THREADS = 2  # --num_intra_threads 2 --num_inter_threads 2
FEATURES = {
    "image/encoded": tf.string,
    "image/filename": tf.string,
    "image/class/label": tf.int64,
    "image/width": tf.int64,
    "image/height": tf.int64,
}


def make(folder: str, shards: str, images: str) -> dict[str, float]:
    """Write shards with so many images each. Return their bytes and pixels."""
    Path(folder).mkdir(parents=True)
    random = np.random.default_rng(0)
    pictures = itertools.cycle([(picture(random, *shape), shape) for shape in SHAPES])
    total, pixels = 0, 0
    for index in range(int(shards)):
        path = Path(folder) / f"train-{index:05d}-of-{int(shards):05d}"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for number in range(int(images)):
                encoded, (width, height) = next(pictures)
                values = (encoded, f"{index}-{number}.JPEG".encode(), 1, width, height)
                writer.write(example(dict(zip(FEATURES, values))))
                total, pixels = total + len(encoded), pixels + width * height
    return {"bytes": total, "pixels": pixels}


def picture(random: np.random.Generator, width: int, height: int) -> bytes:
    """Return a JPEG of smooth colours with noise, with as many bytes per pixel as a photograph."""
    coarse = random.integers(0, 256, (height // 24 + 2, width // 24 + 2, 3), dtype=np.uint8)
    smooth = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    noisy = np.asarray(smooth).astype(float) + random.normal(0, 8, (height, width, 3))
    out = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(out, "JPEG", quality=90)
    return out.getvalue()


def example(values: dict[str, Any]) -> bytes:
    features = {}
    for key, value in values.items():
        if isinstance(value, bytes):
            features[key] = tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
        else:
            features[key] = tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
    return bytes(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


def one_by_one(source: str, out: str) -> dict[str, float]:
    """Resize with one TensorFlow graph: a session call and a write for each record."""
    paths = sorted(map(str, Path(source).glob("train-*")))
    Path(out).mkdir(parents=True)
    v1 = tf.compat.v1
    config = v1.ConfigProto(
        intra_op_parallelism_threads=THREADS, inter_op_parallelism_threads=THREADS
    )
    with tf.Graph().as_default(), v1.Session(config=config) as session:
        record = v1.data.make_one_shot_iterator(tf.data.TFRecordDataset(paths)).get_next()
        fields = {key: tf.io.FixedLenFeature([], kind) for key, kind in FEATURES.items()}
        parsed = tf.io.parse_single_example(record, fields)
        parsed["image/encoded"] = resized(parsed["image/encoded"])
        done = 0
        began = time.monotonic()
        with tf.io.TFRecordWriter(str(Path(out) / "train")) as writer:
            while True:
                try:
                    values = session.run(parsed)
                except tf.errors.OutOfRangeError:
                    break
                plain = {
                    key: getattr(value, "item", lambda v=value: v)()
                    for key, value in values.items()
                }
                writer.write(example(plain))
                done += 1
        return {"images_per_s": done / (time.monotonic() - began)}


def resized(encoded: Any) -> Any:
    """Return the graph that resizes and encodes an image."""
    image = tf.io.decode_jpeg(encoded, channels=3)
    shape = tf.cast(tf.shape(image)[:2], tf.float32)
    scale = tf.minimum(SIZE / tf.reduce_min(shape), 1.0)
    target = tf.cast(shape * scale, tf.int32)
    smaller = tf.compat.v1.image.resize_bilinear(image[None], target)[0]
    return tf.io.encode_jpeg(
        tf.cast(smaller, tf.uint8),
        format="rgb",
        quality=QUALITY,
        optimize_size=True,
        chroma_downsampling=True,
    )


if __name__ == "__main__":
    print(json.dumps({"make": make, "one_by_one": one_by_one}[sys.argv[1]](*sys.argv[2:])))
