"""Batches of images from ImageNet's record files: endless for training, one pass to evaluate."""

from __future__ import annotations

import dataclasses
from typing import Any

import augment
import tensorflow as tf
from augment import DEVIATION, MEAN, Color
from records import DataError, count_records, files_of, reason, records_in

__all__ = [
    "DEVIATION",
    "MEAN",
    "Color",
    "DataError",
    "count_records",
    "evaluation_batches",
    "files_of",
    "reason",
    "training_batches",
]

BLOCK = 4096  # records that are shuffled together; three blocks are in memory
OPEN_FILES = 8  # files that are read in turn
CLASSES = 1000
FEATURES = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
}


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
    color: Color | None,
    channels_first: bool,
    dtype: Any,
) -> tf.data.Dataset:
    """Return endless batches (images, int32 labels 0..999) from step `first_step` on.

    They depend only on the seed, the rank, the number of processes (`size`) and the step. `dtype`
    uint8 gives levels [n, image_size, image_size, 3]; `augment.normalized` turns them into the
    images of the other types later, on the device. Raise DataError if a process would have no file
    or no record.
    """
    if len(files) < size:
        raise DataError(
            f"{len(files)} training files are too few for {size} processes:"
            " each process reads files of its own"
        )
    order = Order(files[rank::size], [seed % 2**31, rank])
    steps = tf.data.Dataset.range(first_step, tf.int64.max)
    drawn = steps.map(lambda step: augment.draw(batch_size, order.seed_of(2, step), color))
    records = order.records(first_step * batch_size)

    def image_of(record: Any, drawn: dict[str, Any]) -> tuple[Any, Any]:
        jpeg, label = parsed(record)
        return augment.altered(jpeg, drawn, image_size), label

    images = tf.data.Dataset.zip((records, drawn.unbatch())).map(
        image_of, num_parallel_calls=threads, deterministic=True
    )
    return finished(images.batch(batch_size, drop_remainder=True), threads, channels_first, dtype)


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
    """Return one process's share as batches (images, int32 labels 0..999).

    The last batch may be smaller. All processes together read every record once. Each process reads
    its own files if there are enough of them, otherwise every `size`-th record of all files.
    """

    def image_of(record: Any) -> tuple[Any, Any]:
        jpeg, label = parsed(record)
        return augment.levels(augment.cropped(jpeg, augment.central_box(), image_size)), label

    if len(files) < size:
        records = interleaved(tf.data.Dataset.from_tensor_slices(files)).shard(size, rank)
    else:
        records = interleaved(tf.data.Dataset.from_tensor_slices(files[rank::size]))
    images = records.map(image_of, num_parallel_calls=threads, deterministic=True)
    return finished(images.batch(batch_size), threads, channels_first, dtype)


@dataclasses.dataclass(frozen=True)
class Order:
    """The order in which one process reads its records: endless passes over its files.

    A pass reads every record of the files once: the files in a new random order, each to its end,
    shuffled block by block. The end of an epoch does not cut off a pass: the next epoch continues
    it. So no record is left out, however few files a process has. Blocks share no state, so reading
    can start anywhere.
    """

    files: list[str]
    seed: list[int]

    def records(self, first: int) -> tf.data.Dataset:
        """Return the serialized records from number `first` on. Earlier ones are not decoded."""
        if next(iter(tf.data.TFRecordDataset(self.files).take(1)), None) is None:
            raise DataError(f"no records in {self.files[0]} and the process's other files")
        number, done = self._position(first)
        whole, skipped = divmod(done, BLOCK)
        later = tf.data.Dataset.range(number + 1, tf.int64.max)
        blocks = self._blocks(tf.constant(number, tf.int64), whole)
        blocks = blocks.concatenate(later.flat_map(lambda number: self._blocks(number, 0)))
        return blocks.prefetch(1).flat_map(shuffled).skip(skipped)

    def _position(self, first: int) -> tuple[int, int]:
        """Return the pass that has record number `first`, and its number of earlier records.

        Files may have different numbers of records, so all files are counted. For record 0 this is
        not necessary.
        """
        return divmod(first, sum(map(records_in, self.files))) if first else (0, 0)

    def seed_of(self, purpose: int, *numbers: Any) -> Any:
        """Return a seed for a purpose and numbers. Different ones have different seeds.

        Purposes are 0 (order of files), 1 (order within a block) and 2 (changes of images).
        """
        seed = tf.constant(self.seed, tf.int32)
        for number in (purpose, *numbers):
            seed = tf.random.experimental.stateless_fold_in(seed, number)
        return seed

    def _blocks(self, number: Any, first: int) -> tf.data.Dataset:
        """Return pass `number` from block `first` on: (data set of up to BLOCK records, seed)."""
        order = permutation(len(self.files), self.seed_of(0, number))
        records = interleaved(tf.data.Dataset.from_tensor_slices(tf.gather(self.files, order)))
        blocks = records.skip(first * BLOCK).window(BLOCK).enumerate(first)
        return blocks.map(lambda block, each: (each, self.seed_of(1, number, block)))


def shuffled(block: tf.data.Dataset, seed: Any) -> tf.data.Dataset:
    tf.random.set_seed(1)  # applies to this function's graph alone, so `seed` decides the order
    return block.shuffle(BLOCK, tf.cast(seed[0], tf.int64))


def permutation(count: Any, seed: Any) -> Any:
    return tf.argsort(tf.random.stateless_uniform([count], seed), stable=True)


def interleaved(files: tf.data.Dataset) -> tf.data.Dataset:
    """Return the records of the files, one from each of OPEN_FILES files in turn."""
    return files.interleave(
        tf.data.TFRecordDataset,
        cycle_length=OPEN_FILES,
        num_parallel_calls=OPEN_FILES,
        deterministic=True,
    )


def parsed(record: Any) -> tuple[Any, Any]:
    """Return a record's JPEG and its label 0..999. The files count labels from 1."""
    example = tf.io.parse_single_example(record, FEATURES)
    return example["image/encoded"], tf.cast(example["image/class/label"], tf.int32) - 1


def finished(
    batches: tf.data.Dataset, threads: int, channels_first: bool, dtype: Any
) -> tf.data.Dataset:
    """Check the labels of batches, normalize images unless `dtype` is uint8, and prefetch.

    The work is done on a private pool of `threads` threads.
    """

    def finish(images: Any, labels: Any) -> tuple[Any, Any]:
        known = tf.reduce_all((labels >= 0) & (labels < CLASSES))
        text = f"labels are not 1..{CLASSES}: preprocess_imagenet.py --verify names the records"
        with tf.control_dependencies([tf.Assert(known, [text])]):
            labels = tf.identity(labels)
        if dtype != tf.uint8:
            images = augment.normalized(images, channels_first, dtype)
        return images, labels

    options = tf.data.Options()
    options.deterministic = True
    options.autotune.enabled = False  # all numbers of threads and buffers are set here
    options.threading.private_threadpool_size = threads
    options.threading.max_intra_op_parallelism = 1  # images are the unit of parallel work
    return batches.map(finish, num_parallel_calls=2).prefetch(2).with_options(options)
