"""The images that the flags ask for, as batches: random ones, or those of the data folder."""

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
from schedule import Schedule

Batches = Iterable["tuple[tf.Tensor, tf.Tensor]"]  # images, and labels from 0


@dataclass(frozen=True)
class Found:
    """The files of one subset on this node."""

    files: list[str]
    images: int

    def __str__(self) -> str:
        return f"{len(self.files)} files with {self.images} images"


def look_for(data_dir: str, subset: str) -> Found:
    """The "train" or "validation" files. Raises DataError when there are none, or not all."""
    files = data.files_of(data_dir, subset)
    return Found(files, data.count_records(files))


def training_batches(
    args: argparse.Namespace, schedule: Schedule, found: Found | None, first_step: int
) -> Batches:
    """Batches without an end, from the one of step `first_step` on; without files random ones."""
    if not found:
        return synthetic_batches(args)
    color = augment.Color(args.brightness, args.contrast, args.saturation, args.hue)
    batches = data.training_batches(
        found.files,
        seed=args.seed,
        first_step=first_step,
        steps_per_epoch=schedule.steps_per_epoch,
        color=color if args.increased_aug else None,
        **common(args),
    )
    gpus = tf.config.get_visible_devices("GPU")
    return batches.apply(tf.data.experimental.prefetch_to_device("/GPU:0")) if gpus else batches


def evaluation_batches(args: argparse.Namespace, found: Found) -> tf.data.Dataset:
    """This process's share of the images, each once."""
    return data.evaluation_batches(found.files, **common(args))


def common(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "rank": hvd.rank(),  # Horovod: each process takes a share of the images.
        "size": hvd.size(),
        "batch_size": args.batch_size,
        "image_size": args.image_size,
        "threads": args.num_parallel_calls,
        "channels_first": channels_first(),
        "dtype": tf.uint8,
    }


def model_input(args: argparse.Namespace, images: tf.Tensor) -> tf.Tensor:
    """A batch as the model takes it. Files' images come to the device as bytes, a quarter as
    much to copy, and become numbers there."""
    if images.dtype != tf.uint8:
        return images
    return augment.normalized(images, channels_first(), image_type(args))


def synthetic_batches(args: argparse.Namespace) -> Batches:
    # Horovod: each process has images of its own.
    return itertools.repeat(synthetic_batch(args, seed=args.seed + 7 * (1 + hvd.rank())))


def synthetic_batch(args: argparse.Namespace, seed: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Random images and labels, made once: they stay on the device."""
    random = tf.random.Generator.from_seed(seed)
    shape = (args.batch_size, args.image_size, args.image_size, 3)
    images = random.truncated_normal(shape, mean=112.0, stddev=70.0)
    images = (images - data.MEAN) / data.DEVIATION
    if channels_first():
        images = tf.transpose(images, (0, 3, 1, 2))
    labels = random.uniform((args.batch_size,), maxval=CLASSES, dtype=tf.int32)
    return tf.cast(images, image_type(args)), labels


def image_type(args: argparse.Namespace) -> tf.DType:
    return tf.float16 if args.fp16 else tf.float32
