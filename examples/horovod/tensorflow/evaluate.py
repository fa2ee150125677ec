"""Evaluate checkpoints on the validation images: top-1 and top-5 accuracy, and the loss."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import Any, Callable

import horovod.tensorflow as hvd
import tensorflow as tf
from agreement import CommonProblem, from_rank_0, same_everywhere
from batches import evaluation_batches, look_for, model_input
from checkpoints import KEPT, Deleted, Saved, is_by_time, number_in, restore, saved_in
from log import Log, summarize_scores
from model import build_resnet
from schedule import whole_epochs
from step import cross_entropy

Count = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]

# Top-1 accuracy, in percent, that a run of MLPerf's ResNet benchmark has to reach
# (closed_resnet.yaml of its compliance checker).
MLPERF_TARGET = 75.9

BY_TIME_TEXT = (
    f"Of checkpoints that are saved by time only the newest {KEPT} are kept: to evaluate earlier"
    " ones, train with --save_checkpoints_steps"
)
HEADER = "  step  epoch  top1    top5     loss   checkpoint_time(UTC)"


@dataclass(frozen=True)
class Score:
    """Accuracies in percent, and the mean cross-entropy, over all validation images."""

    top1: float
    top5: float
    loss: float


def evaluate(args: argparse.Namespace, log: Log) -> None:
    """Print one row for the last checkpoint of the log folder, and every --eval_interval-th one."""
    # Horovod: rank 0 has the checkpoints, so it chooses for all.
    chosen = from_rank_0(lambda: choose(saved_in(args.log_dir), args.eval_interval))
    if not chosen:
        raise CommonProblem(f"{args.log_dir} holds no checkpoint: train first, or pass --log_dir")
    # The last one: a training that runs meanwhile deletes others first.
    images, images_per_step = from_rank_0(lambda: training_of(args, chosen[-1]))
    validation = same_everywhere(lambda: look_for(args.data_dir, "validation"))
    log.line("Evaluating")
    log.line(f"Validation dataset size: {validation.images}")
    if args.eval_interval and from_rank_0(lambda: any(map(is_by_time, chosen))):
        log.line(BY_TIME_TEXT)
    model = build_resnet(args)
    batches = evaluation_batches(args, validation)
    count = counter_of(args, model, batches.element_spec)
    state = tf.train.Checkpoint(model=model)
    log.line(HEADER)
    log.record(
        "begin",
        gpus=hvd.size(),  # Horovod: the number of ranks that evaluate.
        tensorflow=tf.__version__,
        data=args.data_dir,
        validation_samples=validation.images,
    )
    log.mllog("eval_samples", validation.images)
    scores = {}
    for saved in chosen:
        gone = from_rank_0(lambda saved=saved: restored(state, saved))
        if gone:
            log.line(f"{gone}: not evaluated")
            continue
        hvd.broadcast_variables(model.variables, root_rank=0)  # Horovod: from rank 0 to all.
        epoch = whole_epochs(saved.step, images, images_per_step)
        log.mllog("eval_start", epoch_num=epoch)
        score = score_of(count, batches)
        log.mllog("eval_accuracy", score.top1 / 100, epoch_num=epoch)
        log.mllog("eval_stop", epoch_num=epoch)
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(saved.time))
        log.line(row(saved.step, epoch, score, when))
        values = {name: float(value) for name, value in vars(score).items()}
        log.record("eval", step=saved.step, epoch=epoch, **values, checkpoint_time=when)
        scores[saved.step] = values
    if not scores:
        raise CommonProblem("no checkpoint is left to evaluate: evaluate again")
    reached = any(values["top1"] >= MLPERF_TARGET for values in scores.values())
    log.mllog("run_stop", status="success" if reached else "aborted")
    summarize_scores(args.log_dir, scores)
    log.line("Finished evaluation")


def restored(state: tf.train.Checkpoint, saved: Saved) -> str:
    """Restore a checkpoint. Return why it is to be left out; empty if it was restored."""
    try:
        restore(state, saved)
    except Deleted as error:
        return str(error)
    return ""


def training_of(args: argparse.Namespace, saved: Saved) -> tuple[int, int]:
    """Return the training's images per epoch and per step, from its checkpoint.

    With `--num_gpus`, a step has --batch_size images on each of that many GPUs. A checkpoint of an
    earlier version lacks the images per epoch: then the train-* files are counted. Raise Problem or
    DataError.
    """
    images = number_in(saved, "besides/images") or look_for(args.data_dir, "train").images
    if args.num_gpus:
        return int(images), args.batch_size * args.num_gpus
    images_per_step = number_in(saved, "images_per_step")
    return int(images), int(images_per_step or args.batch_size)


def choose(saved: list[Saved], interval: int | None) -> list[Saved]:
    """Return the last one. With `interval`, put the first and every `interval`-th before it."""
    before = saved[:-1:interval] if interval else []
    return [*before, *saved[-1:]]


def counter_of(args: argparse.Namespace, model: tf.keras.Model, batch: Any) -> Count:
    """Return a function from a batch to four sums: top-1 hits, top-5 hits, losses and images.

    `batch` is the specification of a batch of any size, so that the last, smaller batch needs no
    graph of its own.
    """

    @tf.function(autograph=False, input_signature=batch)
    def count(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        logits = model(model_input(args, images), training=False)
        each = [
            tf.math.in_top_k(labels, logits, 1),
            tf.math.in_top_k(labels, logits, 5),
            cross_entropy(labels, logits, 0.0),
            tf.ones_like(labels),
        ]
        return tf.stack([tf.reduce_sum(tf.cast(values, tf.float64)) for values in each])

    return count


def score_of(count: Count, batches: tf.data.Dataset) -> Score:
    """Return the score over the batches of all processes. Raise CommonProblem without images."""
    sums = tf.zeros(4, tf.float64)
    for images, labels in batches:
        sums += count(images, labels)
    # Horovod: add up the sums of all processes, whose numbers of images may differ.
    top1, top5, loss, total = hvd.allreduce(sums, op=hvd.Sum, name="score").numpy()
    if not total:
        raise CommonProblem("the validation files hold no image")
    return Score(100 * top1 / total, 100 * top5 / total, loss / total)


def row(step: int, epoch: float, score: Score, when: str) -> str:
    return (
        f"{step:5d}  {epoch:5.1f}  {score.top1:5.3f}  {score.top5:6.2f}  {score.loss:6.2f}  {when}"
    )
