"""The output of a run: its console and log file, JSON lines, and summaries for TensorBoard."""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf
from checkpoints import METRICS, clear
from schedule import Schedule
from step import LossScale

HEADER = "  Step Epoch Speed   Loss  FinLoss   LR"
ROW = "%6i %5.1f %7.1f %6.3f %6.3f %7.5f"


class Log:
    """Writes lines to the console and the log file, and JSON lines for programs to METRICS.

    Only rank 0 writes. Every line is flushed at once.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        # Horovod: one process of each host clears its folder. The log is opened after all have.
        if args.clear_log and not args.eval and hvd.local_rank() == 0:
            clear(args.log_dir, args.log_name)
        hvd.allreduce(tf.constant(0.0), name="log_cleared")
        self.file, self.writes_mllog = None, args.mllog
        if hvd.rank() == 0:  # Horovod: only rank 0 prints.
            path = Path(args.log_dir, f"eval_{args.log_name}" if args.eval else args.log_name)
            path.parent.mkdir(parents=True, exist_ok=True)
            self.file = path.open("a")
            # Several runs may write to one folder, so each JSON line names its run.
            self.run = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.getpid()}"
            self.metrics = path.with_name(METRICS).open("ab+")
            self._end_line()

    def line(self, text: str) -> None:
        if self.file:
            print(text, flush=True)
            print(text, file=self.file, flush=True)

    def record(self, kind: str, **values: Any) -> None:
        """Write a JSON line. A number that is not finite becomes null."""
        if not self.file:
            return
        for name, value in values.items():
            if isinstance(value, float) and not math.isfinite(value):
                values[name] = None
        line = {"run": self.run, "kind": kind, "time": round(time.time(), 3), **values}
        self.metrics.write(json.dumps(line).encode() + b"\n")
        self.metrics.flush()

    def mllog(
        self, key: str, value: Any = None, at_s: float | None = None, **metadata: Any
    ) -> None:
        """Write a line of MLPerf's log with --mllog. `at_s`: its time, if not now, since 1970.

        Format and keys: github.com/mlcommons/logging, mlperf_logging/mllog/{mllog,constants}.py.
        There a key that ends in _start or _stop begins or ends an interval.
        """
        if not self.writes_mllog:
            return
        events = {"start": "INTERVAL_START", "stop": "INTERVAL_END"}
        line = {
            "namespace": "",
            "time_ms": int(1000 * (time.time() if at_s is None else at_s)),
            "event_type": events.get(key.rpartition("_")[2], "POINT_IN_TIME"),
            "key": key,
            "value": value,
            "metadata": metadata,
        }
        self.line(f":::MLLOG {json.dumps(line)}")

    def _end_line(self) -> None:
        """End the line that a killed run may have left incomplete, so that ours starts anew."""
        size = self.metrics.seek(0, os.SEEK_END)
        self.metrics.seek(max(0, size - 1))
        if self.metrics.read(1) not in (b"", b"\n"):
            self.metrics.write(b"\n")


class Table:
    """The table of a training. Speed is in images/s of all processes since the previous row.

    If the loss scale or the number of skipped steps has changed since the previous row, an extra
    line shows both.
    """

    def __init__(self, log: Log, schedule: Schedule, scale: LossScale, first_step: int) -> None:
        self.log = log
        self.scale, self.last_scale = scale, str(scale)
        self.schedule = schedule
        self.last_row, self.last_time = first_step - 1, time.time()
        log.line(HEADER)

    def row(self, step: int, loss: float, final_loss: float) -> None:
        schedule, now = self.schedule, time.time()
        images = (step - self.last_row) * schedule.global_batch
        speed = images / (now - self.last_time)
        rate = schedule.learning_rate(step)
        epoch = schedule.epoch(step)
        self.log.line(ROW % (step, epoch, speed, loss, final_loss, rate))
        self.log.record(
            "train",
            step=step,
            epoch=epoch,
            images_per_s=speed,
            loss=loss,
            final_loss=final_loss,
            learning_rate=rate,
        )
        self.last_row, self.last_time = step, now
        if str(self.scale) != self.last_scale:
            self.last_scale = str(self.scale)
            self.log.line(self.last_scale)


class Summaries:
    """Loss, learning rate, loss scale and speed for TensorBoard, every --save_summary_steps steps.

    `images_per_s` is measured since the previous summary. The first summary lacks it, because it
    would include the start of the program.
    """

    def __init__(self, args: argparse.Namespace, schedule: Schedule, scale: LossScale) -> None:
        self.folder = args.log_dir
        self.schedule = schedule
        self.scale = scale
        self.every = args.save_summary_steps or schedule.steps_per_epoch
        self.writer: tf.summary.SummaryWriter | None = None  # created by the first summary
        self.last_step, self.last_time = 0, 0.0

    def after(self, step: int, loss: tf.Tensor, final_loss: tf.Tensor) -> None:
        """Write a summary of the last step if one is due after `step` steps."""
        if hvd.rank() != 0 or step % self.every:  # Horovod: only rank 0 writes.
            return
        value, now = float(loss), time.time()  # waits for the device
        self.writer = self.writer or tf.summary.create_file_writer(self.folder)
        with self.writer.as_default(step=step):
            tf.summary.scalar("loss", value)
            if self.last_step:
                images = (step - self.last_step) * self.schedule.global_batch
                tf.summary.scalar("images_per_s", images / (now - self.last_time))
            tf.summary.scalar("final_loss", final_loss)
            tf.summary.scalar("learning_rate", self.schedule.learning_rate(step - 1))
            tf.summary.scalar("loss_scale", self.scale.value)
            tf.summary.scalar("skipped_steps", self.scale.skipped)
        self.writer.flush()
        self.last_step, self.last_time = step, now


def summarize_scores(folder: str, scores: dict[int, dict[str, float]]) -> None:
    """Write an evaluation's scores, by step, for TensorBoard, beside the training's summaries."""
    if hvd.rank() != 0:  # Horovod: only rank 0 writes.
        return
    with tf.summary.create_file_writer(folder).as_default():
        for step, values in scores.items():
            for name, value in values.items():
                tf.summary.scalar(f"eval_{name}", value, step=step)
