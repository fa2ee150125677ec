"""A trace of a few steps by TensorFlow's profiler: a file for Perfetto, and one for TensorBoard."""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf
from log import Log


class StepTrace:
    """Traces the steps of --trace_steps START:STOP, without STOP, or fewer if the run ends before.

    Writes `trace-steps-START-STOP.json.gz` for Perfetto and `….xplane.pb` for TensorBoard. Traced
    steps take longer.
    """

    def __init__(self, args: argparse.Namespace, log: Log) -> None:
        # Horovod: only rank 0 is traced; the steps of the others are alike.
        self.first, self.stop = args.trace_steps if hvd.rank() == 0 and args.trace_steps else (0, 0)
        self.folder = Path(args.trace_dir or args.log_dir)
        self.log = log
        self.draft: str | None = None  # the profiler's folder during a trace

    @contextlib.contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Trace the block as step `number`, if this step is to be traced."""
        if not self.first <= number < self.stop:
            yield
            return
        if self.draft is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.draft = tempfile.mkdtemp(prefix=".trace-", dir=self.folder)
            tf.profiler.experimental.start(self.draft)
        # `_r=1` marks this event as a step for the profiler.
        with tf.profiler.experimental.Trace("step", step_num=number, _r=1):
            yield

    def after(self, steps: int, loss: tf.Tensor, last: bool) -> None:
        """Write the files if tracing ends after `steps` steps. `last`: the run ends there."""
        if self.draft is None or not (steps >= self.stop or last):
            return
        float(loss)  # waits for the device
        tf.profiler.experimental.stop()
        [written] = Path(self.draft).rglob("*.xplane.pb")
        stem = self.folder / f"trace-steps-{self.first}-{self.stop}"
        with gzip.open(f"{written}.json.gz", "wt") as file:
            json.dump({"traceEvents": list(chrome_events(written.read_bytes()))}, file)
        Path(f"{written}.json.gz").replace(f"{stem}.json.gz")
        written.replace(f"{stem}.xplane.pb")
        shutil.rmtree(self.draft)
        self.draft = None
        self.log.line(f"Traced up to step {steps - 1}: {stem}.json.gz")


def chrome_events(xspace: bytes) -> Iterator[dict[str, Any]]:
    """Yield the profiler's events in Chrome's trace format, with times in microseconds.

    A process is a device or the host. A thread is one of its queues or threads. The format:
    https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
    """
    from tensorflow.core.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace.FromString(xspace)
    began_ns = min((line.timestamp_ns for plane in space.planes for line in plane.lines), default=0)
    for pid, plane in enumerate(space.planes, 1):
        yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": plane.name}}
        for tid, line in enumerate(plane.lines, 1):
            place, name = {"pid": pid, "tid": tid}, line.display_name or line.name
            yield {"ph": "M", **place, "name": "thread_name", "args": {"name": name}}
            for event in line.events:
                about = plane.event_metadata[event.metadata_id]
                args = {
                    plane.stat_metadata[stat.metadata_id].name: stat_value(plane, stat)
                    for stat in event.stats
                }
                name = about.display_name or about.name
                yield {
                    "ph": "X",
                    **place,
                    "name": f"{name} {args['step_num']}" if "step_num" in args else name,
                    "ts": (line.timestamp_ns - began_ns) / 1e3 + event.offset_ps / 1e6,
                    "dur": event.duration_ps / 1e6,
                    "args": args,
                }


def stat_value(plane: Any, stat: Any) -> Any:
    kind = stat.WhichOneof("value")
    if kind == "ref_value":
        return plane.stat_metadata[stat.ref_value].name
    value = getattr(stat, kind) if kind else None
    return f"{len(value)} bytes" if isinstance(value, bytes) else value
