"""Checkpoints: <log_dir>/model.ckpt-STEP.*, where STEP is the number of finished steps."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import horovod.tensorflow as hvd
import tensorflow as tf
from agreement import Problem, from_rank_0, one_line
from schedule import Schedule
from step import Trainer

UNFIT = "it is damaged, or of another --model"
METRICS = "metrics.jsonl"
# The ends of a checkpoint's files. The index is written last and deleted first: without it there is
# no checkpoint.
DATA_END, INDEX_END = ".data-00000-of-00001", ".index"
INDEX = re.compile(r"model\.ckpt-(\d+)\.index")
# How many of the checkpoints that are saved by time, or because of a notice, are kept: TensorFlow's
# own default (keep_checkpoint_max). A slow training would fill the disk.
KEPT = 5
BY_TIME = "by_time"  # the variable with 1 in these checkpoints, and 0 in others
# The notice that a node is about to be taken away.
NOTICE = "/run/clusterctl/spot-interruption"
# Files that a training writes, and the folder in which TensorFlow starts a checkpoint. It does not
# match copies made by the user, such as model.ckpt-best.
WRITTEN = re.compile(
    r"\.?model\.ckpt-\d+(\.|_temp).*|events\.out\.tfevents\..*"
    r"|trace-steps-\d+-\d+\.(json\.gz|xplane\.pb)|\.trace-.*"
)


class Deleted(Problem):
    """A checkpoint that was there is there no more: a training deletes its older ones."""


@dataclass(frozen=True, order=True)
class Saved:
    """A complete checkpoint."""

    step: int
    prefix: str  # the files' path without their endings
    time: float  # when it was saved, seconds since 1970


class Checkpoints:
    """The checkpoints of one training: loads the last one, and saves new ones."""

    def __init__(self, args: argparse.Namespace, schedule: Schedule, trainer: Trainer) -> None:
        self.folder = args.log_dir
        self.last_step = schedule.steps
        # Steps between checkpoints; None: they are saved by time.
        self.every = args.save_checkpoints_steps
        if self.every == 0:
            self.every = schedule.steps_per_epoch
        self.seconds = args.save_checkpoints_secs
        self.saved_at = time.monotonic()
        self.by_time: list[int] = []  # the steps that are kept of those saved by time or notice
        # Horovod: only rank 0 saves, or with --local_ckpt one process of each node.
        self.saves = (hvd.local_rank() if args.local_ckpt else hvd.rank()) == 0
        self.agree_every = args.display_every if args.local_ckpt else None
        self.images_per_step = tf.Variable(schedule.global_batch, dtype=tf.int64)
        images = tf.Variable(schedule.images, trainable=False, dtype=tf.int64)
        self.trainer = trainer
        self.is_by_time = tf.Variable(0, trainable=False, dtype=tf.int64)
        self.besides = {"images": images, BY_TIME: self.is_by_time, **trainer.scale.variables}
        self.state = self._state(self.besides)
        self.notice = changed_at(NOTICE)

    def _state(self, besides: dict[str, tf.Variable]) -> tf.train.Checkpoint:
        """Return what a checkpoint holds. `besides` are the variables that older ones lack."""
        return tf.train.Checkpoint(
            model=self.trainer.model,
            momenta=self.trainer.momenta,
            images_per_step=self.images_per_step,
            besides=besides,
        )

    def resume(self, line: Callable[[str], None]) -> int:
        """Load the last checkpoint on rank 0, and return its number of finished steps.

        Return 0 if there is no checkpoint. Report a checkpoint with `line`. Raise Problem if it
        belongs to a different training.
        """
        saved = from_rank_0(self._restore_last)
        if self.saves:  # what earlier programs of this training have left, also killed ones
            for half in Path(self.folder).glob(".model.ckpt-*"):
                with suppress(OSError):
                    remove(half)
            self.by_time = [each.step for each in saved_in(self.folder) if is_by_time(each)]
        if not saved:
            return 0
        if saved.step < self.last_step:
            line(f"Going on from {saved.prefix}: {saved.step} of {self.last_step} steps are done")
        else:
            line(
                f"Nothing to train: {saved.prefix} has all {self.last_step} steps;"
                " --clear_log starts again, --eval evaluates it"
            )
        return saved.step

    def _restore_last(self) -> Saved | None:
        saved = saved_in(self.folder)
        # A finished run is checked as well: with other images per step, its last step would differ.
        if saved:
            wanted = int(self.images_per_step)
            try:
                self._read(saved[-1])
            except Deleted:
                raise
            except Problem as error:
                raise Problem(f"{error}; {self._remedy(saved)}") from error
            found = int(self.images_per_step)
            if found != wanted:
                # Horovod: each process takes its share of a step's images.
                each, left = divmod(found, hvd.size())
                same = f"a number of ranks that divides {found}" if left else f"-b {each}"
                raise Problem(
                    f"{saved[-1].prefix} is of a training with {found} images a step, and this one"
                    f" has {wanted}: take {same} to continue it, another --log_dir to keep it, or"
                    " --clear_log to delete it"
                )
        return saved[-1] if saved else None

    def _read(self, saved: Saved) -> None:
        """Restore a checkpoint. Raise Deleted or Problem, as `restore`."""
        # Earlier versions saved fewer variables, and a run with a fixed loss scale saves no scale:
        # restore only what the checkpoint has.
        found_besides = {
            name: variable
            for name, variable in self.besides.items()
            if name != "images" and number_in(saved, f"besides/{name}") is not None
        }
        restore(self._state(found_besides), saved)

    def _remedy(self, saved: list[Saved]) -> str:
        """Return how to go on without the last checkpoint, by trying those before it."""
        for number in range(len(saved) - 2, -1, -1):
            with suppress(Problem):
                self._read(saved[number])
                unfit = " ".join(f"{each.prefix}.*" for each in saved[number + 1 :])
                return f"to go on from step {saved[number].step}, move {unfit} to another folder"
        return "take another --log_dir to keep it, or --clear_log to delete it"

    @property
    def interval(self) -> str:
        return f"{self.every} steps" if self.every else f"{self.seconds} seconds"

    def due(self, step: int) -> bool:
        """Return whether the state after `step` steps is to be saved, at whatever time that is."""
        return bool(self.every and step % self.every == 0) or step == self.last_step

    def overdue(self, step: int) -> bool:
        """Return whether this process is to save the state after `step` steps by time.

        All processes have to call this after the same steps.
        """
        if self.every:
            return False
        if self.agree_every and step % self.agree_every:
            return False
        late = time.monotonic() - self.saved_at >= self.seconds
        if not self.agree_every:
            return self.saves and late  # rank 0 saves alone: the others need not know
        # Horovod: with --local_ckpt every node saves the same step, so rank 0's clock decides for
        # all. They agree every few steps only, since that waits for the slowest process.
        said = hvd.broadcast(tf.constant(float(late)), root_rank=0, name="checkpoint_overdue")
        return bool(said) and self.saves

    def noticed(self) -> bool:
        """Return whether this process saves, and a node is newly known to be taken away soon.

        That is for example a spot instance, of which EC2 gives two minutes' notice. clusterctl's
        guard writes the notice to a file on every node.
        """
        if not self.saves:
            return False
        before, self.notice = self.notice, changed_at(NOTICE)
        return self.notice is not None and self.notice != before

    def save(self, step: int, by_time: bool = False) -> None:
        if self.saves:
            self.is_by_time.assign(int(by_time))
            save(self.state, self.folder, step)
        self.saved_at = time.monotonic()

    def save_by_time(self, step: int) -> None:
        """Save by time or because of a notice, and delete the oldest checkpoints of that kind."""
        self.save(step, by_time=True)
        # A node's folder may have a later one than the training goes on from (--local_ckpt).
        self.by_time = [*(each for each in self.by_time if each != step), step]
        while len(self.by_time) > KEPT:
            delete(self.folder, self.by_time.pop(0))


def changed_at(path: str) -> int | None:
    """Return when the file was written, in nanoseconds; None if there is none."""
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return None


def saved_in(folder: str) -> list[Saved]:
    """Return all checkpoints of a log folder, in the order of their steps."""
    found = []
    for path in Path(folder).glob("model.ckpt-*.index"):
        match = INDEX.fullmatch(path.name)
        if match:
            prefix = str(path.with_suffix(""))
            with suppress(FileNotFoundError):  # a training has deleted it since
                found.append(Saved(int(match[1]), prefix, path.stat().st_mtime))
    return sorted(found)


def save(state: tf.train.Checkpoint, folder: str, step: int) -> None:
    """Write model.ckpt-STEP, under a hidden name until it is complete.

    If that fails, for example on a full disk, raise Problem and leave no files behind.
    """
    prefix = Path(folder, f"model.ckpt-{step}")
    hidden = Path(folder, f".{prefix.name}")
    try:
        prefix.parent.mkdir(parents=True, exist_ok=True)
        state.write(str(hidden))
        for ending in (DATA_END, INDEX_END):
            part = Path(f"{hidden}{ending}")
            with part.open("rb") as file:
                os.fsync(file.fileno())
            part.replace(f"{prefix}{ending}")
    except (OSError, tf.errors.OpError) as error:
        for left in Path(folder).glob(f"{hidden.name}*"):
            remove(left)
        raise Problem(f"{prefix} cannot be saved: {one_line(error)}") from error


def delete(folder: str, step: int) -> None:
    """Delete model.ckpt-STEP."""
    for ending in (INDEX_END, DATA_END):
        with suppress(OSError):  # the user may have removed it
            Path(folder, f"model.ckpt-{step}{ending}").unlink()


def restore(state: tf.train.Checkpoint, saved: Saved) -> None:
    """Give the state's variables their saved values.

    Raise Deleted if the checkpoint is not there any more, and Problem if it does not fit.
    """
    try:
        state.read(saved.prefix).expect_partial().assert_existing_objects_matched()
    except Exception as error:  # truncated files alone cause three kinds, one is IndexError
        raise unreadable(saved) from error


def number_in(saved: Saved, name: str) -> float | None:
    """Return a number from a checkpoint, such as images_per_step, or None if it lacks the name.

    Raise Deleted if the checkpoint is not there any more, and Problem if it cannot be read.
    """
    try:
        reader = tf.train.load_checkpoint(saved.prefix)
        key = f"{name}/.ATTRIBUTES/VARIABLE_VALUE"
        return float(reader.get_tensor(key)) if reader.has_tensor(key) else None
    except Exception as error:  # see restore
        raise unreadable(saved) from error


def is_by_time(saved: Saved) -> bool:
    """Return whether a checkpoint was saved by time or notice; False if it cannot be read."""
    try:
        return bool(number_in(saved, f"besides/{BY_TIME}"))
    except Problem:
        return False


def unreadable(saved: Saved) -> Problem:
    """Return why a checkpoint cannot be read: only files that are there can be damaged."""
    if not Path(f"{saved.prefix}{INDEX_END}").exists():
        return Deleted(f"{saved.prefix} was deleted by the training meanwhile")
    if not Path(f"{saved.prefix}{DATA_END}").exists():
        return Problem(f"{saved.prefix}{DATA_END} is missing: copy it again")
    return Problem(f"{saved.prefix} does not fit: {UNFIT}")


def clear(folder: str, log_name: str) -> None:
    """Delete the files that a training and its evaluation wrote into the folder, and no others."""
    logs = (log_name, f"eval_{log_name}")
    for path in Path(folder).glob("*"):
        if WRITTEN.fullmatch(path.name):
            remove(path)
        elif (path.name in logs and path.is_file()) or is_metrics(path):
            path.unlink()


def is_metrics(path: Path) -> bool:
    """Return whether a training wrote this file: other programs also use the name METRICS."""
    if path.name != METRICS or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(8) == b'{"run": '


def remove(path: Path) -> None:
    """Delete a file, or the folder in which TensorFlow starts a checkpoint."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
