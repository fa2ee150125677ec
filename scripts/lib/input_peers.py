"""Time one way to make batches of images.

input_peers.py WAY FOLDER IMAGES THREADS prints {"images", "wall_s", "cpu_s"}. All ways crop, mirror
and resize at random. All but `levels` and `colors` make normalised float32 batches. It runs in the
training environment.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np

EXAMPLES = Path(__file__).parents[2] / "examples" / "horovod" / "tensorflow"
SIZE, BATCH, WARM = 224, 64, 4
MEAN, DEVIATION = np.float32([121, 115, 100]), np.float32([70, 68, 71])


def ours(files: list[str], threads: int, dtype: str = "float32", colors: bool = False) -> Any:
    """Return the trainer's own batches."""
    sys.path.insert(0, str(EXAMPLES))
    import data
    import tensorflow as tf

    return data.training_batches(
        files,
        rank=0,
        size=1,
        batch_size=BATCH,
        image_size=SIZE,
        threads=threads,
        seed=1,
        color=data.Color() if colors else None,
        channels_first=False,
        dtype=tf.as_dtype(dtype),
    )


def plain(files: list[str], threads: int) -> Any:
    """Return the pipeline of tutorials: decode, crop, resize, mirror and normalise each image."""
    import tensorflow as tf

    features = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    }

    def image_of(record: Any) -> tuple[Any, Any]:
        example = tf.io.parse_single_example(record, features)
        image = tf.io.decode_jpeg(example["image/encoded"], channels=3)
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.shape(image),
            tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
            min_object_covered=0.1,
            aspect_ratio_range=(3 / 4, 4 / 3),
            area_range=(0.08, 1.0),
        )
        image = tf.image.resize(tf.slice(image, begin, size), [SIZE, SIZE])
        image = tf.image.random_flip_left_right(tf.ensure_shape(image, [SIZE, SIZE, 3]))
        return (image - MEAN) / DEVIATION, example["image/class/label"] - 1

    records = tf.data.TFRecordDataset(files, num_parallel_reads=len(files))
    records = records.repeat().shuffle(1000)
    images = records.map(image_of, num_parallel_calls=threads)
    return images.batch(BATCH, drop_remainder=True).prefetch(2)


def pillow(files: list[str], threads: int) -> Iterator[tuple[Any, Any]]:
    """Yield batches made by Pillow in a pool of processes, which send back uint8 arrays."""
    with multiprocessing.get_context("spawn").Pool(threads) as pool:
        images, labels = [], []
        for image, label in pool.imap(pillow_image, jpegs(files), chunksize=8):
            images.append(image)
            labels.append(label)
            if len(images) == BATCH:
                yield (np.stack(images) - MEAN) / DEVIATION, np.array(labels)
                images, labels = [], []


def pillow_image(work: tuple[int, bytes]) -> tuple[np.ndarray, int]:
    """Decode, crop, resize and mirror one image at random."""
    from PIL import Image

    number, jpeg = work
    rng = np.random.default_rng(number)
    image = Image.open(io.BytesIO(jpeg)).convert("RGB")
    aspect = rng.uniform(3 / 4, 4 / 3)
    height = rng.uniform((0.1 / aspect) ** 0.5, min(1, 1 / aspect))
    left, top = rng.uniform(0, 1 - height * aspect), rng.uniform(0, 1 - height)
    corners = np.array([left, top, left + height * aspect, top + height])
    box = tuple(corners * ([image.width, image.height] * 2))
    image = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box)
    levels = np.asarray(image)
    return (levels[:, ::-1] if rng.random() < 0.5 else levels), number % 1000


def jpegs(files: list[str]) -> Iterator[tuple[int, bytes]]:
    """Yield the JPEGs in the records, again and again, numbered from 0."""
    found = []
    for file in files:
        content = Path(file).read_bytes()
        at = 0
        while at < len(content):
            length = int.from_bytes(content[at : at + 8], "little")
            record = content[at + 12 : at + 12 + length]
            found.append(record[record.index(b"\xff\xd8\xff") : record.rindex(b"\xff\xd9") + 2])
            at += 12 + length + 4
    number = 0
    while True:
        yield number, found[number % len(found)]
        number += 1


WAYS: dict[str, Callable[[list[str], int], Any]] = {
    "ours": ours,
    "levels": lambda files, threads: ours(files, threads, "uint8"),
    "colors": lambda files, threads: ours(files, threads, "uint8", colors=True),
    "plain": plain,
    "pillow": pillow,
}


def main() -> None:
    way, folder, images, threads = sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:5])
    files = sorted(str(path) for path in folder.glob("train-*"))
    batches = iter(WAYS[way](files, threads))
    for _ in range(WARM):
        next(batches)
    began, cpu = time.monotonic(), cpu_s()
    for _ in range(images // BATCH):
        next(batches)
    done = {"images": images // BATCH * BATCH, "wall_s": time.monotonic() - began}
    done["cpu_s"] = cpu_s() - cpu
    print(json.dumps(done), flush=True)
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(0)  # a normal exit may hang: the pool's feeding thread never ends


def cpu_s() -> float:
    """Return the CPU seconds of this process and of its running children."""
    total = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    for child in multiprocessing.active_children():
        fields = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


if __name__ == "__main__":
    main()
