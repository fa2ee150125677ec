"""The batches that the flags select: images of the data folder, or one image of noise."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import augment
import data
import horovod.tensorflow as hvd
import tensorflow as tf
from model import CLASSES, channels_first

Batches = Iterable["tuple[tf.Tensor, tf.Tensor]"]  # images, and labels from 0


@dataclass(frozen=True)
class Found:
    """The files of one subset ("train" or "validation") on this node."""

    files: list[str]
    images: int

    def __str__(self) -> str:
        return f"{len(self.files)} files with {self.images} images"


def look_for(data_dir: str, subset: str) -> Found:
    """Return the "train" or "validation" files. Raise DataError if any or all are missing."""
    files = data.files_of(data_dir, subset)
    return Found(files, data.count_records(files))


def training_batches(args: argparse.Namespace, found: Found | None, first_step: int) -> Batches:
    """Return endless batches from step `first_step` on. Without files, repeat one of noise."""
    if not found:
        return itertools.repeat(synthetic_batch(args))
    color = augment.Color(args.brightness, args.contrast, args.saturation, args.hue)
    batches = data.training_batches(
        found.files,
        seed=args.seed,
        first_step=first_step,
        color=color if args.increased_aug else None,
        **common(args),
    )
    gpus = tf.config.get_visible_devices("GPU")
    return batches.apply(tf.data.experimental.prefetch_to_device("/GPU:0")) if gpus else batches


def evaluation_batches(args: argparse.Namespace, found: Found) -> tf.data.Dataset:
    """Return this process's share of the validation images, each of them once."""
    return data.evaluation_batches(found.files, **common(args))


def common(args: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments that training and evaluation have in common."""
    return {
        "rank": hvd.rank(),  # Horovod: each process reads a share of the images.
        "size": hvd.size(),
        "batch_size": args.batch_size,
        "image_size": args.image_size,
        "threads": args.num_parallel_calls,
        "channels_first": channels_first(),
        "dtype": tf.uint8,
    }


def model_input(args: argparse.Namespace, images: tf.Tensor) -> tf.Tensor:
    """Return a batch as the model takes it.

    Images from files are copied to the device as bytes, a quarter of float32, and normalized there.
    """
    if images.dtype != tf.uint8:
        return images
    return augment.normalized(images, channels_first(), image_type(args))


def synthetic_batch(args: argparse.Namespace) -> tuple[tf.Tensor, tf.Tensor]:
    """Return a batch that repeats one image of noise and one label.

    It is the same on every process and in every step, as in the original program. It is made once
    and stays on the device. Such a run measures speed. One label is learned in a few steps; random
    labels would have to be memorized, and at a high learning rate the loss would become infinite
    or NaN.
    """
    random = tf.random.Generator.from_seed(args.seed)
    image = random.truncated_normal((1, args.image_size, args.image_size, 3), 112.0, 70.0)
    image = (image - data.MEAN) / data.DEVIATION
    if channels_first():
        image = tf.transpose(image, (0, 3, 1, 2))
    label = random.uniform((1,), maxval=CLASSES, dtype=tf.int32)
    images = tf.repeat(tf.cast(image, image_type(args)), args.batch_size, axis=0)
    return images, tf.repeat(label, args.batch_size)


def image_type(args: argparse.Namespace) -> tf.DType:
    return tf.float16 if args.fp16 else tf.float32
