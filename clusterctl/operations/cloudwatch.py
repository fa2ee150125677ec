"""Send a job's training rows and metrics to CloudWatch, without those sent from here before."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from clusterctl.domain.errors import NotFound
from clusterctl.domain.files import read_file, write_file
from clusterctl.ec2.cloudwatch import AcceptablePoints, Point, put, sort_out
from clusterctl.jobs.metrics.logs import EvaluationRow, TrainingRow
from clusterctl.node.record import from_json, to_json
from clusterctl.operations.results import Results

if TYPE_CHECKING:
    from clusterctl.domain.files import ClusterFolder
    from clusterctl.ec2.session import Clients
    from clusterctl.node.jobs.spec import JobRecord

# A file in the job's folder on this machine that records what was sent. It maps namespace -> metric
# -> place and time of the last value that CloudWatch accepted. CloudWatch cannot be queried for
# this: it may show a value only hours or days later, and it counts a value twice if it is sent
# twice.
SENT = "cloudwatch.json"
Mark = tuple[float, float]
Marks = Mapping[str, Mark]

# Field of a TrainingRow or EvaluationRow -> name of the metric and CloudWatch's unit.
TRAINING = {
    "images_per_s": ("images_per_s", "Count/Second"),
    "loss": ("loss", "None"),
    "final_loss": ("final_loss", "None"),
    "learning_rate": ("learning_rate", "None"),
}
EVALUATION = {
    "top1": ("top1", "Percent"),
    "top5": ("top5", "Percent"),
    "loss": ("eval_loss", "None"),
}


@dataclass(frozen=True)
class Pushed:
    """The result of `push`: the number of values sent, of how many metrics, and sent by an earlier
    call (`before`). `untimed` counts rows without a time, which are not sent. `left_out` counts
    values that CloudWatch would refuse."""

    sent: int
    metrics: int
    before: int
    untimed: int
    left_out: AcceptablePoints


def push(clients: Clients, folder: ClusterFolder, found: Results, namespace: str) -> Pushed:
    """Send a job's values that were not sent before, with the cluster and the job as dimensions.

    Each request that CloudWatch accepts is recorded on disk at once, so an interrupted `push` can
    be repeated. Raise NotFound without a job, ClusterctlError for an unreadable record, AwsError.
    """
    if found.job is None:
        raise NotFound(
            "--cloudwatch is for a job, and none is recorded", "see `clusterctl jobs NAME`"
        )
    path = folder.path / "jobs" / found.job.job_id / SENT
    hint = "delete it: what was sent is sent again, and counts twice"
    known = read_file(path, partial(from_json, dict[str, dict[str, Mark]]), hint) or {}
    marks = known.setdefault(namespace, {})
    timed = list(points_of(found, found.job, marks))
    new = [one for one in timed if one.place > marks.get(one.metric, (-1.0,))[0]]
    left = sort_out(new, time.time())
    dimensions = {"Cluster": folder.name, "Job": found.job.job_id}
    for batch in put(clients.cloudwatch, namespace, dimensions, left.points):
        marks.update({point.metric: (point.place, point.at) for point in batch})
        write_file(path, to_json(known) + "\n")
    times = [row.time for run in found.runs for row in run.rows]
    times += [row.time for run in found.runs for row in run.evaluations]
    return Pushed(
        sent=len(left.points),
        metrics=len({point.metric for point in left.points}),
        before=len(timed) - len(new),
        untimed=times.count(None),
        left_out=left,
    )


def points_of(found: Results, job: JobRecord, marks: Marks) -> Iterator[Point]:
    """Yield the job's values, those of each metric in order. A --metric with the name of a built-in
    metric replaces it.

    A row has its own time. A line of a log has none: its values are spread evenly by line number,
    from the last value sent, or the job's start, to the job's end, or now while it runs.
    """
    began = job.started_at.timestamp()
    ended = began + job.duration_s
    own = {series.name for series in found.metrics}
    for kind, fields in ((TrainingRow, TRAINING), (EvaluationRow, EVALUATION)):
        rows = [row for run in found.runs for row in (*run.rows, *run.evaluations)]
        # Rows from before the job's start belong to an earlier job, which this one resumed.
        mine = [
            (row, row.time)
            for row in rows
            if isinstance(row, kind) and row.time is not None and row.time >= began - 1
        ]
        for field, (metric, unit) in fields.items():
            for row, at in mine if metric not in own else ():
                yield Point(metric, at, at, getattr(row, field), unit)
    last = max((point.line for series in found.metrics for point in series.points), default=0)
    for series in found.metrics:
        line, at = marks.get(series.name, (0.0, began))
        pace = max(0.0, ended - at) / max(1.0, last - line)
        for one in series.points:
            yield Point(series.name, one.line, at + pace * max(0.0, one.line - line), one.value)
