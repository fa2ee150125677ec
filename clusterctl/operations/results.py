"""Results of training, read from log files on this machine or the head node, as JSON or CSV; and as
a picture: a chart for loss, learning rate, speed, top-1, and for each metric.
"""

from __future__ import annotations

import csv
import io
import math
import os
import posixpath
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Optional

from clusterctl.bench.chart import Chart, ChartCurve, flat
from clusterctl.domain.errors import CommandFailed, NotFound, UsageError
from clusterctl.domain.findings import Finding
from clusterctl.domain.results import last_line
from clusterctl.domain.units import count
from clusterctl.jobs.metrics.logs import (
    KERAS,
    EvaluationRow,
    LogItem,
    MetricDefinition,
    MetricPoint,
    MetricSeries,
    TrainingRow,
    damaged_rows,
    parse_definitions,
    read_metrics,
)
from clusterctl.jobs.metrics.reference import Comparison, Reference
from clusterctl.jobs.metrics.runs import Run, read_runs, runs_in_log
from clusterctl.jobs.plan import JOBS_FOLDER
from clusterctl.jobs.trainer import SYNTHETIC_LOG_FOLDER, TRAINER
from clusterctl.node.jobs.folder import METRICS
from clusterctl.node.jobs.spec import LOG_NAME, JobRecord, JobState
from clusterctl.node.paths import EXAMPLES_FOLDER, LOG_FOLDER
from clusterctl.node.record import finite, to_data
from clusterctl.operations.access import Access
from clusterctl.operations.logs import NoJobs, find, read_log
from clusterctl.transport.connections import read_data

# The exit status of our commands on the head node if a file or folder does not exist. It differs
# from the statuses of cat, of the shell and of a failed command.
ABSENT = 44
READ_TIMEOUT_S = 600.0


_METRIC = "a program's own metrics are read with --metric NAME=REGEX"
_GROUP = "REGEX is searched for in each line, and its first (...) is the value: (?:...) for others"


class NoResults(NotFound):
    """The logs show no table, no evaluation and no metric."""


@dataclass(frozen=True)
class LogText:
    """The text of a log. `name` is where it was read."""

    name: str
    text: str


@dataclass(frozen=True)
class Results:
    """The runs and metrics in some logs. `sources` are the logs' names.

    `metrics` are empty unless they were requested or the logs have no training table. `job` is the
    job whose logs they are, None for other logs. `damaged` names each log with rows in JSON that
    cannot be read, and are missing here. `comparisons` has one item per run: its comparison with
    a run of the tutorial's, or None.
    """

    sources: tuple[str, ...]
    runs: tuple[Run, ...] = ()
    metrics: tuple[MetricSeries, ...] = ()
    job: JobRecord | None = None
    damaged: tuple[str, ...] = ()
    comparisons: tuple[Optional[Comparison], ...] = ()
    json_names = ("sources", "job_id", "runs", "metrics", "comparisons", "findings")

    @property
    def job_id(self) -> str:
        return self.job.job_id if self.job else ""

    @property
    def findings(self) -> list[Finding]:
        """A warning for each log with damaged rows, and for each note on a metric: what its values
        lack, or may mix."""
        damaged = [Finding.warning("results.rows", text) for text in self.damaged]
        return damaged + [
            Finding.warning("results.metric", f"metric {series.name}: {note}")
            for series in self.metrics
            for note in series.notes
        ]


def results_of(
    logs: Sequence[LogText], definitions: Sequence[MetricDefinition] = (), hint: str = ""
) -> Results:
    """Read the runs and metrics in some logs, in the given order. Raise NoResults."""
    runs = read_runs(log.text for log in logs)
    metrics = _metrics(logs, definitions, keras=not runs)
    return _checked(logs, Results((), tuple(runs), metrics), hint)


def results_of_cluster(
    access: Access,
    job_id: str | None = None,
    log_folder: str | None = None,
    definitions: Sequence[MetricDefinition] = (),
) -> Results:
    """Read the results of a job (None: the latest training), or of a log folder of the head node.

    If no job has run on the cluster, read the log folders of train.sh and train_synthetic.sh. Raise
    NotFound, HostError.
    """
    if log_folder is not None:
        return _of_folder(access, log_folder, definitions)
    try:
        job = find(access, job_id, training=True)
    except NoJobs as none:
        return _before_jobs(access, none, definitions)
    own_metrics = (f"{name}={regex}" for name, regex in job.spec.metric_definitions.items())
    definitions = definitions or parse_definitions(own_metrics)
    name = access.cluster.name
    hint = f"see what it wrote: clusterctl logs {name} {job.job_id}"
    hint = f"{hint}; other jobs: clusterctl jobs {name}"
    if job.state is not JobState.SUCCEEDED:
        hint = f"that job {state_phrase(job)}; {hint}"
    chunks: list[bytes] = []
    read_log(access, job, chunks.append)
    own = LogText(f"the log of job {job.job_id}", decoded(b"".join(chunks)))
    if job_id and not job.is_active:
        # The log folder may hold a later job's logs by now, but the job has a copy of its rows.
        logs = _logs(access, [f"~/{JOBS_FOLDER}/{job_id}/{METRICS}"])
    else:
        # Name the folder as a user would, relative to the trainer's folder.
        place = job.spec.log_dir.partition(f"/{EXAMPLES_FOLDER}/")[2] or job.spec.log_dir
        folder = [(place, job.spec.log_name)] if place else log_folders(job.spec.line)
        logs = _folder_logs(access, folder)
    found = _with_folder(logs, own, definitions, hint)
    return replace(found, job=job, runs=tuple(_of_job(run, job) for run in found.runs))


def state_phrase(job: JobRecord) -> str:
    """Describe a job's state as a predicate: `was cancelled`, `failed with exit status 1`."""
    return {
        JobState.QUEUED: "has not started",
        JobState.RUNNING: "is running",
        JobState.SUCCEEDED: "succeeded",
        JobState.FAILED: f"failed with exit status {job.exit_status}",
        JobState.CANCELLED: "was cancelled",
        JobState.LOST: f"was lost ({job.why_lost})",
    }[job.state]


def _of_folder(access: Access, folder: str, definitions: Sequence[MetricDefinition]) -> Results:
    """Read the results in a folder of the head node. Raise NoResults, HostError."""
    logs = _folder_logs(access, [(folder, LOG_NAME)])
    if not logs:
        place = f"a DIR that starts with neither / nor ~ is in ~/{EXAMPLES_FOLDER}"
        if not _is_folder(access, folder):
            raise NoResults(f"there is no folder {folder} on {access.head.host}", place)
        raise NoResults(f"there is no {LOG_NAME} in {folder} on {access.head.host}", place)
    return results_of(logs, definitions)


def _before_jobs(access: Access, none: NoJobs, definitions: Sequence[MetricDefinition]) -> Results:
    """Read the results of train.sh and train_synthetic.sh, started by hand. Raise NoResults."""
    folders = [(LOG_FOLDER, LOG_NAME), (SYNTHETIC_LOG_FOLDER, LOG_NAME)]
    logs = _folder_logs(access, folders)
    if not logs:
        raise NoResults(f"there are no results: {none.message}", none.hint)
    return results_of(logs, definitions, none.hint)


def _with_folder(
    folder: Sequence[LogText], own: LogText, definitions: Sequence[MetricDefinition], hint: str
) -> Results:
    """Return the runs in the job's own log, with the parts of them from before they were resumed,
    which only the logs in the folder have."""
    runs = read_runs(log.text for log in (*folder, own))
    runs = runs_in_log(runs, own.text) or runs
    metrics = _metrics([own], definitions, keras=not runs)
    return _checked((*folder, own), Results((), tuple(runs), metrics), hint)


def _metrics(
    logs: Iterable[LogText], definitions: Sequence[MetricDefinition], keras: bool
) -> tuple[MetricSeries, ...]:
    """Return the requested metrics. Without a request, return Keras's if `keras`, else none."""
    texts = (log.text for log in logs)
    if definitions:
        return tuple(read_metrics(texts, definitions))
    return tuple(series for series in read_metrics(texts, KERAS) if series.points) if keras else ()


def _checked(logs: Sequence[LogText], found: Results, hint: str) -> Results:
    """Return `found` with its sources and their damaged rows. Raise NoResults if it is empty."""
    found = replace(
        found,
        sources=tuple(log.name for log in logs),
        damaged=tuple(
            f"{log.name}: {count(len(wrong), 'row')} cannot be read, the first: {wrong[0]}"
            for log in logs
            if (wrong := damaged_rows(log.text))
        ),
    )
    if not (found.runs or any(series.points for series in found.metrics)):
        notes = [f"; metric {each.name} {note}" for each in found.metrics for note in each.notes]
        notes += [f"; {text}" for text in found.damaged]
        raise NoResults(
            f"no training table, evaluation or metric in {', '.join(found.sources) or 'any log'}"
            + "".join(notes),
            hint or (_GROUP if found.metrics else _METRIC),
        )
    return found


def _of_job(run: Run, job: JobRecord) -> Run:
    """Return the run with the price of the job's nodes, and with the job's number of ranks as its
    GPUs, if its log does not say that."""
    # A job that was started again may have had fewer nodes than those whose price is recorded.
    attempts = job.status.attempts
    usd = None if attempts else job.spec.list_hourly_usd
    # The rows are those of all attempts.
    ranks = {job.ranks, *(one.get("ranks") for one in attempts)}
    of_job = ranks.pop() if run.rows and len(ranks) == 1 else None
    gpus = run.facts.gpus or of_job or None
    return replace(run, facts=replace(run.facts, gpus=gpus), list_hourly_usd=usd)


def read_log_files(paths: Iterable[str]) -> list[LogText]:
    """Read log files of this machine. In a folder, read the trainer's three files, and `log`, which
    `fetch` writes.

    Raise UsageError.
    """
    return [log for path in paths for log in _local_logs(Path(path))]


def _local_logs(path: Path) -> list[LogText]:
    files = [path]
    if path.is_dir():
        names = (*_log_names(LOG_NAME), "log")
        files = [path / name for name in names if (path / name).exists()]
        if not files:
            raise UsageError(f"there is no {LOG_NAME} in {path}", "name the log file itself")
    try:
        return [LogText(str(file), decoded(file.read_bytes())) for file in files]
    except OSError as error:
        raise UsageError(
            f"cannot read {error.filename or path}: {error.strerror}", "--log takes log files"
        ) from None


def decoded(data: bytes) -> str:
    """Decode a log as UTF-8; bytes that are not UTF-8 become U+FFFD. Raise UsageError for gzip."""
    if data.startswith(b"\x1f\x8b"):
        raise UsageError("the log is compressed with gzip", "gunzip it, and name what that makes")
    return data.decode("utf-8", "replace")


def log_folders(line: str) -> list[tuple[str, str]]:
    """Return the log folder and the log's name of each trainer that a job's command line runs.

    This is for a job whose log folder is not recorded: the trainer, or a copy of it, ran as the
    user's own program (--script), so its own parser was not called.
    """
    try:
        words = shlex.split(line)
    except ValueError:
        return []
    starts = [index for index, word in enumerate(words) if posixpath.basename(word) == TRAINER]
    calls = [words[start:end] for start, end in zip(starts, [*starts[1:], len(words)])]
    folders = [
        (_option(call, "--log_dir", LOG_FOLDER), _option(call, "--log_name", LOG_NAME))
        for call in calls
    ]
    return list(dict.fromkeys(folders))


def _option(words: Sequence[str], name: str, default: str) -> str:
    value = default
    for word, following in zip(words, [*words[1:], default]):
        if word == name:
            value = following
        elif word.startswith(name + "="):
            value = word[len(name) + 1 :]
    return value


def _log_names(name: str) -> tuple[str, ...]:
    # A user may also give the name of an evaluation's log.
    name = name[5:] if name.startswith("eval_") else name
    return name, f"eval_{name}", METRICS


def _folder_logs(access: Access, folders: Iterable[tuple[str, str]]) -> list[LogText]:
    """Read the trainer's logs in folders of the head node, as far as they exist. Raise HostError.

    `folders` are pairs of a folder and the log's name.
    """
    return _logs(
        access,
        (posixpath.join(folder, each) for folder, name in folders for each in _log_names(name)),
    )


def _logs(access: Access, paths: Iterable[str]) -> list[LogText]:
    """Read files of the head node, without those that do not exist. Raise HostError."""
    found = []
    for path in dict.fromkeys(paths):
        text = _remote_file(access, path)
        if text is not None:
            found.append(LogText(f"{access.head.host}:{path}", text))
    return found


def cat_command(path: str) -> str:
    """Return the command that prints a file of the head node, or exits with ABSENT without it.

    A relative path is below the trainer's folder.
    """
    return _at(path, "[ -e {0} ] || exit {1}; exec cat -- {0}")


def folder_command(path: str) -> str:
    """Return the command that exits with 0 if `path` is a folder of the head node, else ABSENT."""
    return _at(path, "[ -d {0} ] || exit {1}")


def _at(path: str, command: str) -> str:
    """Return `command` with {0} replaced by the quoted path and {1} by ABSENT, to run in the
    trainer's folder, or the home folder without one."""
    if path == "~" or path.startswith("~/"):
        place = '"$HOME"' + (shlex.quote(path[1:]) if path[1:] else "")
    else:
        place = shlex.quote(path)
    return f'cd "$HOME"/{EXAMPLES_FOLDER} 2>/dev/null; ' + command.format(place, ABSENT)


def _is_folder(access: Access, path: str) -> bool:
    result = access.connections.run(access.head, folder_command(path), timeout_s=READ_TIMEOUT_S)
    if result.exit_status not in (0, ABSENT):
        raise CommandFailed(result.host, f"cannot check {path}")
    return result.exit_status == 0


def _remote_file(access: Access, path: str) -> str | None:
    chunks: list[bytes] = []
    result = read_data(
        access.connections, access.head, cat_command(path), chunks.append, timeout_s=READ_TIMEOUT_S
    )
    if result.exit_status == ABSENT:
        return None
    if result.exit_status:
        raise CommandFailed(result.host, f"cannot read {path}: {last_line(result.stderr)}")
    return decoded(b"".join(chunks))


TABLE_COLUMNS = (
    *("run", "kind", "step", "epoch", "images_per_s", "loss", "final_loss", "learning_rate"),
    *("top1", "top5", "checkpoint_time"),
)
METRIC_COLUMNS = ("metric", "epoch", "line", "value")


def csv_header(metrics: bool) -> str:
    """Return the first line of the CSV table of all runs, or of the metrics if `metrics`."""
    return _csv_line(METRIC_COLUMNS if metrics else TABLE_COLUMNS)


def item_csv(item: LogItem, metrics: bool) -> str:
    """Return the CSV line for a row or metric of a log that is followed.

    Return an empty string for a row in the table of metrics, and for a metric in the table of runs.
    """
    if isinstance(item, tuple):
        return _csv_line(_metric_line(*item)) if metrics else ""
    if metrics:
        return ""
    if isinstance(item, TrainingRow):
        return _csv_line((1, *_training_line(item)))
    return _csv_line((1, *_evaluation_line(item)))


def item_data(item: LogItem) -> dict[str, Any]:
    """Return a row or metric of a log that is followed, for `--json`."""
    if isinstance(item, tuple):
        fields = {"kind": "metric", "metric": item[0], **to_data(item[1])}
    else:
        fields = {"kind": "train" if isinstance(item, TrainingRow) else "eval", **to_data(item)}
    return finite(fields)


def _csv_line(cells: Sequence[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def as_csv(results: Results, metrics: bool) -> str:
    """Return a CSV table with a line per row of all runs or, if `metrics`, per metric value."""
    if metrics:
        lines = [_metric_line(one.name, point) for one in results.metrics for point in one.points]
    else:
        lines = [
            (number, *line)
            for number, run in enumerate(results.runs, 1)
            for line in (*map(_training_line, run.rows), *map(_evaluation_line, run.evaluations))
        ]
    return csv_header(metrics) + "".join(map(_csv_line, lines))


def _training_line(row: TrainingRow) -> tuple[Any, ...]:
    return ("train", *astuple(row)[:6], None, None, None)


def _evaluation_line(row: EvaluationRow) -> tuple[Any, ...]:
    loss, when = row.loss, row.checkpoint_time
    return ("eval", row.step, row.epoch, None, loss, None, None, row.top1, row.top5, when)


def _metric_line(name: str, point: MetricPoint) -> tuple[Any, ...]:
    return (name, point.epoch, point.line, point.value)


def write_result(path: Path, content: bytes) -> None:
    """Write a file so that readers never see a part of it. Write into a pipe or device directly.

    A symbolic link stays: the file it leads to is replaced. Raise UsageError.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        target = path.resolve()
        # Cut the name, because file names have at most 255 bytes.
        draft = target.with_name(f".{target.name[:200]}.{os.getpid()}")
        try:
            draft.write_bytes(content)
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


# The most metrics in one picture.
MOST_METRICS = 24
# Rows that are further apart than this many times the median distance are not connected.
WIDEST_GAPS = 3.0


def check_picture(path: Path) -> None:
    """Raise UsageError unless the file's name ends in .svg."""
    if path.suffix.lower() != ".svg":
        raise UsageError(f"cannot draw {path.name}", "the file's name ends in .svg")


def run_charts(runs: Sequence[Run], reference: Reference | None = None) -> list[Chart]:
    """Return charts with loss, learning rate, speed and top-1 of the runs over epochs.

    `reference` is the tutorial's run to compare with. If a run is too short to count the steps
    of an epoch, the charts are over steps, without the reference. The reference is also left out if
    a run trained on images other than ImageNet's. A synthetic reference is shown in any case, but
    only in the chart of speed.
    """
    over_epochs = all(run.epochs_per_step for run in runs if run.rows)
    shown = [_Shown(_label(number, run, len(runs)), run) for number, run in enumerate(runs, 1)]
    # Losses on different images cannot be compared.
    other_data = any(run.facts.other_data for run in runs)
    synthetic = reference is not None and reference.synthetic
    if reference and over_epochs and (synthetic or not other_data):
        # First, so that it is drawn behind the others.
        shown.insert(0, _Shown(f"tutorial, {reference.gpus} GPUs", reference.run, reference=True))
    alike = [each for each in shown if not (each.reference and synthetic)]
    per_gpu = all(each.run.facts.gpus for each in shown if each.run.rows)
    axis = "epoch" if over_epochs else "step"
    speed = "images/s per GPU" if per_gpu else "images/s"
    return [
        Chart("loss", _curves(alike, axis, lambda run, row: row.loss), axis),
        Chart("learning rate", _curves(alike, axis, lambda run, row: row.learning_rate), axis),
        Chart(speed, _curves(shown, axis, partial(_speed, per_gpu=per_gpu)), axis),
        Chart("top-1 in %", _accuracies(alike, axis), axis),
    ]


@dataclass(frozen=True)
class _Shown:
    label: str
    run: Run
    reference: bool = False

    def curve(self, points: Sequence[tuple[float, float]]) -> ChartCurve:
        kind = "reference" if self.reference else "training"
        return ChartCurve(self.label, kind, [flat(x, y) for x, y in points])


def _speed(run: Run, row: TrainingRow, per_gpu: bool) -> float:
    gpus = run.facts.gpus if per_gpu else None
    # Of rows on other GPUs, the number that would divide the speed is not in the run's facts.
    other = row.startup or (per_gpu and row.step < run.alike_from)
    return math.nan if other else row.images_per_s / (gpus or 1)


def _curves(
    shown: Sequence[_Shown], axis: str, value: Callable[[Run, TrainingRow], float]
) -> list[ChartCurve]:
    made = []
    for each in shown:
        per_step = (each.run.epochs_per_step or 0.0) if axis == "epoch" else 1.0
        points = [(row.step * per_step, value(each.run, row)) for row in each.run.rows]
        made.append(each.curve(_with_holes(points)))
    return [curve for curve in made if curve.points]


def _with_holes(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Insert a NaN point where rows are missing, so that no line is drawn there."""
    gaps = sorted(after[0] - before[0] for before, after in zip(points, points[1:]))
    widest = WIDEST_GAPS * gaps[len(gaps) // 2] if gaps else 0.0
    broken = list(points[:1])
    for before, after in zip(points, points[1:]):
        if after[0] - before[0] > widest:
            broken.append((before[0], math.nan))
        broken.append(after)
    return broken


def _accuracies(shown: Sequence[_Shown], axis: str) -> list[ChartCurve]:
    made = [
        each.curve([(float(getattr(row, axis)), row.top1) for row in each.run.evaluations])
        for each in shown
    ]
    return [curve for curve in made if curve.points]


def metric_charts(metrics: Sequence[MetricSeries]) -> list[Chart]:
    """Return a chart for each of the first MOST_METRICS metrics, with the values in the order of
    the log."""
    charts = []
    for series in metrics[:MOST_METRICS]:
        points = [flat(number, point.value) for number, point in enumerate(series.points, 1)]
        charts.append(
            Chart(series.name, [ChartCurve(series.name, "training", points)], "number of the value")
        )
    return charts


def _label(number: int, run: Run, runs: int) -> str:
    name = f"run {number}" if runs > 1 else "this run"
    return f"{name}, {count(run.facts.gpus, 'GPU')}" if run.facts.gpus else name
