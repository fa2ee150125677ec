"""ImageNet's records as batches of images: for training without an end, for evaluation once."""

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

BLOCK = 4096  # records that are shuffled among each other; three blocks are in memory
OPEN_FILES = 8  # that records are taken from in turn
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
    """Batches (images, int32 labels 0..999) from `first_step` on, without an end.

    They depend on the seed, the rank, the size and the step alone. `dtype` uint8 gives levels
    [n, size, size, 3] that `augment.normalized` turns, on the device, into what the others give.
    Raises DataError where a process would have no file or no record.
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
    """Batches (images, int32 labels 0..999) of a process's share; the last one may be smaller.

    All processes together see every record once, in files of their own where there are enough.
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
    """In which order one process reads its records: pass after pass, without an end.

    A pass reads every record of the files once: the files in a new order, each to its end,
    shuffled block by block. Steps and epochs cut nothing off it: a pass that is not over at the
    end of an epoch goes on in the next, so that no record is left out, however few files a process
    has. No state goes from one block to the next, so that reading can begin anywhere.
    """

    files: list[str]
    seed: list[int]

    def records(self, first: int) -> tf.data.Dataset:
        """Serialized records from number `first` on. Those before it are not decoded."""
        if next(iter(tf.data.TFRecordDataset(self.files).take(1)), None) is None:
            raise DataError(f"no records in {self.files[0]} and the process's other files")
        number, done = self._position(first)
        whole, skipped = divmod(done, BLOCK)
        later = tf.data.Dataset.range(number + 1, tf.int64.max)
        blocks = self._blocks(tf.constant(number, tf.int64), whole)
        blocks = blocks.concatenate(later.flat_map(lambda number: self._blocks(number, 0)))
        return blocks.prefetch(1).flat_map(shuffled).skip(skipped)

    def _position(self, first: int) -> tuple[int, int]:
        """The pass of record number `first`, and how many of the pass come before it.

        Files may hold any number of records, so all of them are counted; a run that begins at its
        beginning need not know.
        """
        return divmod(first, sum(map(records_in, self.files))) if first else (0, 0)

    def seed_of(self, purpose: int, *numbers: Any) -> Any:
        """A seed of its own for each purpose and tuple of numbers."""
        seed = tf.constant(self.seed, tf.int32)
        for number in (purpose, *numbers):
            seed = tf.random.experimental.stateless_fold_in(seed, number)
        return seed

    def _blocks(self, number: Any, first: int) -> tf.data.Dataset:
        """One pass's records as data sets of up to BLOCK, each with its seed, from `first` on."""
        order = permutation(len(self.files), self.seed_of(0, number))
        records = interleaved(tf.data.Dataset.from_tensor_slices(tf.gather(self.files, order)))
        blocks = records.skip(first * BLOCK).window(BLOCK).enumerate(first)
        return blocks.map(lambda block, each: (each, self.seed_of(1, number, block)))


def shuffled(block: tf.data.Dataset, seed: Any) -> tf.data.Dataset:
    tf.random.set_seed(1)  # of the graph of this function alone: the other seed decides
    return block.shuffle(BLOCK, tf.cast(seed[0], tf.int64))


def permutation(count: Any, seed: Any) -> Any:
    return tf.argsort(tf.random.stateless_uniform([count], seed), stable=True)


def interleaved(files: tf.data.Dataset) -> tf.data.Dataset:
    """The records of the files, one of each in turn."""
    return files.interleave(
        tf.data.TFRecordDataset,
        cycle_length=OPEN_FILES,
        num_parallel_calls=OPEN_FILES,
        deterministic=True,
    )


def parsed(record: Any) -> tuple[Any, Any]:
    """A record's JPEG and its label 0..999; files count labels from 1."""
    example = tf.io.parse_single_example(record, FEATURES)
    return example["image/encoded"], tf.cast(example["image/class/label"], tf.int32) - 1


def finished(
    batches: tf.data.Dataset, threads: int, channels_first: bool, dtype: Any
) -> tf.data.Dataset:
    """Batches of levels as the model takes them, made ahead on threads of their own."""

    def finish(images: Any, labels: Any) -> tuple[Any, Any]:
        known = tf.reduce_all((labels >= 0) & (labels < CLASSES))
        with tf.control_dependencies([tf.Assert(known, [f"labels are not 1..{CLASSES}"])]):
            labels = tf.identity(labels)
        if dtype != tf.uint8:
            images = augment.normalized(images, channels_first, dtype)
        return images, labels

    options = tf.data.Options()
    options.deterministic = True
    options.autotune.enabled = False  # every number is chosen here
    options.threading.private_threadpool_size = threads
    options.threading.max_intra_op_parallelism = 1  # images are the unit of parallel work
    return batches.map(finish, num_parallel_calls=2).prefetch(2).with_options(options)
