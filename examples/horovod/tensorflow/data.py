"""ImageNet's records as batches of images: which files, how many records, and the pipelines."""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf
from augment import Color

MEAN = (121.0, 115.0, 100.0)
DEVIATION = (70.0, 68.0, 71.0)
SHARD = re.compile(r"(?P<subset>[a-z]+)-(?P<index>\d{5})-of-(?P<count>\d{5})")


class DataError(Exception):
    """The data cannot be used as it lies there; the text says why and what to do."""


def files_of(data_dir: str, subset: str) -> list[str]:
    """The shards of "train" or "validation", sorted. Raises DataError when any is missing."""
    found = sorted(tf.io.gfile.glob(f"{data_dir}/{subset}-*"))
    if not found:
        raise DataError(f"no {subset} files in {data_dir}")
    return found


def count_records(files: list[str]) -> int:
    """Records of all files when all but the last hold as many as the first."""
    return records_in(files[0]) * (len(files) - 1) + records_in(files[-1])


def records_in(path: str) -> int:
    return sum(1 for _ in tf.data.TFRecordDataset(path))


def training_batches(
    files: list[str],
    *,
    rank: int,
    size: int,
    batch_size: int,
    image_size: int,
    threads: int,
    seed: int,
    first_step: int = 0,
    steps_per_epoch: int,
    color: Color | None,
    channels_first: bool,
    dtype: Any,
) -> tf.data.Dataset:
    """Endless batches (images, labels 0..999), from `first_step` on."""
    if len(files) < size:
        raise DataError(f"{len(files)} files for {size} processes")
    records = tf.data.TFRecordDataset(files[rank::size]).shuffle(1000, seed).repeat()
    records = records.skip(first_step * batch_size)
    return batches(records, batch_size, image_size, threads, channels_first, dtype, True)


def evaluation_batches(
    files: list[str],
    *,
    rank: int,
    size: int,
    batch_size: int,
    image_size: int,
    threads: int,
    channels_first: bool,
    dtype: Any,
) -> tf.data.Dataset:
    """Batches (images, labels 0..999) of this process's share, every record once."""
    records = tf.data.TFRecordDataset(files).shard(size, rank)
    return batches(records, batch_size, image_size, threads, channels_first, dtype, False)


def batches(
    records: tf.data.Dataset,
    batch_size: int,
    image_size: int,
    threads: int,
    channels_first: bool,
    dtype: Any,
    drop_remainder: bool,
) -> tf.data.Dataset:
    def image_of(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        features = {
            "image/encoded": tf.io.FixedLenFeature([], tf.string),
            "image/class/label": tf.io.FixedLenFeature([], tf.int64),
        }
        parsed = tf.io.parse_single_example(record, features)
        image = tf.io.decode_jpeg(parsed["image/encoded"], channels=3)
        image = tf.image.resize(image, [image_size, image_size])
        image = (image - MEAN) / DEVIATION
        if channels_first:
            image = tf.transpose(image, [2, 0, 1])
        return tf.cast(image, dtype), tf.cast(parsed["image/class/label"], tf.int32) - 1

    images = records.map(image_of, num_parallel_calls=threads)
    return images.batch(batch_size, drop_remainder).prefetch(2)
