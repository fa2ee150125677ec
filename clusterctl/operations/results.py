"""The results of training: of log files here or of a cluster's head node, as JSON and as CSV."""

from __future__ import annotations

import csv
import io
import math
import os
import posixpath
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import Any

from clusterctl.domain.errors import ClusterctlError, CommandFailed, UsageError
from clusterctl.domain.results import last_line
from clusterctl.jobs.detached import JobRecord, JobState
from clusterctl.jobs.metrics.logs import (
    KERAS,
    EvaluationRow,
    MetricDefinition,
    MetricSeries,
    Said,
    TrainingRow,
    clean_lines,
    parse_definitions,
    read_metrics,
)
from clusterctl.jobs.metrics.reference import Comparison
from clusterctl.jobs.metrics.runs import Run, holding, read_runs
from clusterctl.jobs.plan import EXAMPLES_FOLDER, JOBS_FOLDER
from clusterctl.jobs.trainer import SYNTHETIC_LOG_FOLDER, TRAINER
from clusterctl.operations.access import Access
from clusterctl.operations.logs import NoJobs, find, read_log

LOG_FOLDER = "imagenet_resnet"
LOG_NAME = "hvd_train.log"
METRICS = "metrics.jsonl"
ABSENT = 44
READ_TIMEOUT_S = 600.0


class NoResults(ClusterctlError):
    """The logs show no table, no evaluation and no metric."""


@dataclass(frozen=True)
class LogText:
    """A log and where it was read."""

    name: str
    text: str


@dataclass(frozen=True)
class Results:
    """What logs say. `metrics` are read where they are asked for, or where there is no table."""

    sources: tuple[str, ...]
    runs: tuple[Run, ...] = ()
    metrics: tuple[MetricSeries, ...] = ()
    job: JobRecord | None = None


def results_of(
    logs: Sequence[LogText], definitions: Sequence[MetricDefinition] = (), hint: str = ""
) -> Results:
    """Runs and metrics in some logs, read one after the other. Raises NoResults."""
    runs = read_runs(log.text for log in logs)
    metrics = _metrics(logs, definitions, keras=not runs)
    return _checked(Results(tuple(log.name for log in logs), tuple(runs), metrics), hint)


def results_of_cluster(
    access: Access,
    job_id: str | None = None,
    log_folder: str | None = None,
    definitions: Sequence[MetricDefinition] = (),
) -> Results:
    """Those of a job, of the latest job, or of a log folder of the head node.

    Where no job has run, the folders are those of train.sh and train_synthetic.sh. Raises
    NoResults, UsageError, HostError.
    """
    if log_folder is not None:
        return _of_folder(access, log_folder, definitions)
    try:
        job = find(access, job_id, training=True)
    except NoJobs as none:
        return _before_jobs(access, none, definitions)
    own_metrics = (f"{name}={regex}" for name, regex in job.metric_definitions.items())
    definitions = definitions or parse_definitions(own_metrics)
    name = access.cluster.name
    hint = f"see what it wrote: clusterctl logs {name}; other jobs: clusterctl jobs {name}"
    if job.state is not JobState.SUCCEEDED:
        hint = f"that job {said_of(job)}; {hint}"
    own = LogText(f"the log of job {job.job_id}", _job_log(access, job))
    if job_id and not job.running:
        # The folder may hold a later job's logs by now; its rows were kept.
        logs = _logs(access, [f"~/{JOBS_FOLDER}/{job_id}/{METRICS}"])
    else:
        # Relative to where the trainer runs, as a user would name it.
        place = job.log_dir.partition(f"/{EXAMPLES_FOLDER}/")[2] or job.log_dir
        folder = [(place, job.log_name)] if place else log_folders(job.line)
        logs = _folder_logs(access, folder)
    found = _with_folder(logs, own, definitions, hint)
    return replace(found, job=job, runs=tuple(_sized(run, job) for run in found.runs))


def said_of(job: JobRecord) -> str:
    """`was cancelled`, `failed with exit status 1`."""
    return {
        JobState.QUEUED: "has not begun",
        JobState.RUNNING: "is running",
        JobState.SUCCEEDED: "succeeded",
        JobState.FAILED: f"failed with exit status {job.exit_status}",
        JobState.CANCELLED: "was cancelled",
        JobState.LOST: "was lost (was the head node rebooted?)",
    }[job.state]


def _of_folder(access: Access, folder: str, definitions: Sequence[MetricDefinition]) -> Results:
    logs = _folder_logs(access, [(folder, LOG_NAME)])
    if not logs:
        place = f"a DIR that starts with neither / nor ~ is in ~/{EXAMPLES_FOLDER}"
        if not _is_folder(access, folder):
            raise UsageError(f"there is no folder {folder} on {access.head.host}", place)
        raise NoResults(f"there is no {LOG_NAME} in {folder} on {access.head.host}", place)
    return results_of(logs, definitions)


def _before_jobs(access: Access, none: NoJobs, definitions: Sequence[MetricDefinition]) -> Results:
    """Those of train.sh and of train_synthetic.sh, started by hand. Raises NoResults."""
    folders = [(LOG_FOLDER, LOG_NAME), (SYNTHETIC_LOG_FOLDER, LOG_NAME)]
    logs = _folder_logs(access, folders)
    if not logs:
        raise NoResults(f"{none.message}: there are no results yet", none.hint)
    return results_of(logs, definitions, none.hint)


def _with_folder(
    folder: Sequence[LogText], own: LogText, definitions: Sequence[MetricDefinition], hint: str
) -> Results:
    """The latest job's runs, with what the folder has of them from before they were resumed."""
    runs = read_runs(log.text for log in (*folder, own))
    runs = holding(runs, own.text) or runs
    metrics = _metrics([own], definitions, keras=not runs)
    sources = tuple(log.name for log in (*folder, own))
    return _checked(Results(sources, tuple(runs), metrics), hint)


def _metrics(
    logs: Iterable[LogText], definitions: Sequence[MetricDefinition], keras: bool
) -> tuple[MetricSeries, ...]:
    """The metrics that are asked for; else Keras's, where nothing else was found."""
    lines = (line for log in logs for line in clean_lines(log.text))
    if definitions:
        return tuple(read_metrics(lines, definitions))
    return tuple(series for series in read_metrics(lines, KERAS) if series.points) if keras else ()


def _checked(found: Results, hint: str) -> Results:
    if not (found.runs or any(series.points for series in found.metrics)):
        raise NoResults(
            f"no training table, evaluation or metric in {', '.join(found.sources) or 'any log'}",
            hint or "a program's own metrics are read with --metric NAME=REGEX",
        )
    return found


def _sized(run: Run, job: JobRecord) -> Run:
    if run.facts.gpus or not (run.rows and job.ranks):
        return run
    return replace(run, facts=replace(run.facts, gpus=job.ranks))


def read_log_files(paths: Iterable[str]) -> list[LogText]:
    """Log files of this machine; of a folder the trainer's three, and what `fetch` calls `log`.

    Raises UsageError.
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
    """A log's text, whatever else is in it."""
    return data.decode("utf-8", "replace")


def log_folders(line: str) -> list[tuple[str, str]]:
    """Return folder and log's name of each copy of the trainer that a job's line runs as a program
    of the user's own (--script): nobody asked its parser."""
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
    # An evaluation's may be given as such, too.
    name = name[5:] if name.startswith("eval_") else name
    return name, f"eval_{name}", METRICS


def _folder_logs(access: Access, folders: Iterable[tuple[str, str]]) -> list[LogText]:
    """The trainer's logs in folders of the head node; those that there are. Raises HostError."""
    return _logs(
        access,
        (posixpath.join(folder, each) for folder, name in folders for each in _log_names(name)),
    )


def _logs(access: Access, paths: Iterable[str]) -> list[LogText]:
    """Those of the files that there are. Raises HostError."""
    found = []
    for path in dict.fromkeys(paths):
        text = _remote_file(access, path)
        if text is not None:
            found.append(LogText(f"{access.head.host}:{path}", text))
    return found


def cat_command(path: str) -> str:
    """Prints a file of the head node; relative paths are below the trainer's folder."""
    return _at(path, "[ -e {0} ] || exit {1}; exec cat -- {0}")


def folder_command(path: str) -> str:
    """Succeeds where that is a folder of the head node, and ends with ABSENT where it is none."""
    return _at(path, "[ -d {0} ] || exit {1}")


def _at(path: str, command: str) -> str:
    if path == "~" or path.startswith("~/"):
        place = '"$HOME"' + (shlex.quote(path[1:]) if path[1:] else "")
    else:
        place = shlex.quote(path)
    return f'cd "$HOME"/{EXAMPLES_FOLDER} 2>/dev/null; ' + command.format(place, ABSENT)


def _is_folder(access: Access, path: str) -> bool:
    result = access.connections.run(access.head, folder_command(path), timeout_s=READ_TIMEOUT_S)
    if result.exit_status not in (0, ABSENT):
        raise CommandFailed(result.host, f"cannot look for {path}")
    return result.exit_status == 0


def _remote_file(access: Access, path: str) -> str | None:
    said: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
    result = access.connections.run(
        access.head,
        cat_command(path),
        timeout_s=READ_TIMEOUT_S,
        sink=lambda stream, chunk: said[stream].append(chunk),
    )
    if result.exit_status == ABSENT:
        return None
    if result.exit_status:
        complaint = last_line(decoded(b"".join(said["stderr"])))
        raise CommandFailed(result.host, f"cannot read {path}: {complaint}")
    return decoded(b"".join(said["stdout"]))


def _job_log(access: Access, job: JobRecord) -> str:
    chunks: list[bytes] = []
    read_log(access, job.job_id, chunks.append)
    return decoded(b"".join(chunks))


TABLE_COLUMNS = (
    "run",
    "kind",
    "step",
    "epoch",
    "images_per_s",
    "loss",
    "final_loss",
    "learning_rate",
    "top1",
    "top5",
    "checkpoint_time",
)
METRIC_COLUMNS = ("metric", "epoch", "line", "value")


def as_data(results: Results, comparisons: Sequence[Comparison | None]) -> dict[str, Any]:
    """For `--json`; what is not a finite number is null. One comparison for each run, or None."""
    runs = [
        {**_run_data(run), "comparison": _comparison_data(comparison)}
        for run, comparison in zip(results.runs, comparisons)
    ]
    value: dict[str, Any] = _plain(
        {
            "sources": results.sources,
            "job": results.job.as_data() if results.job else None,
            "runs": runs,
            "metrics": {
                series.name: [asdict(point) for point in series.points]
                for series in results.metrics
            },
        }
    )
    return value


def _run_data(run: Run) -> dict[str, Any]:
    return {
        **asdict(run.facts),
        "synthetic": run.facts.synthetic,
        "images_per_s": run.images_per_s,
        "images_per_s_per_gpu": run.images_per_s_per_gpu,
        "resumed_at": run.resumed_at,
        "not_a_number_from": run.not_a_number_from,
        "rows": [asdict(row) for row in run.rows],
        "evaluations": [asdict(row) for row in run.evaluations],
    }


def _comparison_data(comparison: Comparison | None) -> dict[str, Any] | None:
    if comparison is None:
        return None
    return {
        "reference": comparison.reference.name,
        "images_per_s_per_gpu": comparison.images_per_s_per_gpu,
        "reference_images_per_s_per_gpu": comparison.reference_images_per_s_per_gpu,
        "speed_ratio": comparison.speed_ratio,
        "top1_difference": comparison.top1_difference,
        "top5_difference": comparison.top5_difference,
        "rows": [asdict(row) for row in comparison.rows],
    }


def _plain(value: Any) -> Any:
    """JSON has no word for what is not a number."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def csv_header(metrics: bool) -> str:
    """The first line of the tables of all runs, or of the metrics."""
    return _csv_line(METRIC_COLUMNS if metrics else TABLE_COLUMNS)


def said_csv(said: Said, metrics: bool) -> str:
    """A line of what a log adds while it is followed; empty for what the table does not have."""
    if isinstance(said, tuple):
        name, point = said
        return _csv_line((name, point.epoch, point.line, point.value)) if metrics else ""
    if metrics:
        return ""
    if isinstance(said, TrainingRow):
        return _csv_line((1, *_training_line(said)))
    return _csv_line((1, *_evaluation_line(said)))


def said_data(said: Said) -> dict[str, Any]:
    """The same for `--json`."""
    if isinstance(said, tuple):
        fields = {"kind": "metric", "metric": said[0], **asdict(said[1])}
    else:
        fields = {"kind": "train" if isinstance(said, TrainingRow) else "eval", **asdict(said)}
    return {name: _plain(value) for name, value in fields.items()}


def _csv_line(cells: Sequence[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def as_csv(results: Results, metrics: bool) -> str:
    """The tables of all runs, a row of a table being a line; or the metrics, if `metrics`."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if metrics:
        writer.writerow(METRIC_COLUMNS)
        writer.writerows(line for series in results.metrics for line in _metric_lines(series))
    else:
        writer.writerow(TABLE_COLUMNS)
        for number, run in enumerate(results.runs, 1):
            writer.writerows((number, *_training_line(row)) for row in run.rows)
            writer.writerows((number, *_evaluation_line(row)) for row in run.evaluations)
    return text.getvalue()


def _training_line(row: TrainingRow) -> tuple[Any, ...]:
    return ("train", *astuple(row)[:6], None, None, None)


def _evaluation_line(row: EvaluationRow) -> tuple[Any, ...]:
    loss, when = row.loss, row.checkpoint_time
    return ("eval", row.step, row.epoch, None, loss, None, None, row.top1, row.top5, when)


def _metric_lines(series: MetricSeries) -> list[tuple[Any, ...]]:
    return [(series.name, point.epoch, point.line, point.value) for point in series.points]


def write_result(path: Path, content: bytes) -> None:
    """Replace a file in one step; a pipe or a device is written to. Raises UsageError."""
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        target = path.resolve()
        draft = target.with_name(f".{target.name[:200]}.{os.getpid()}")
        try:
            draft.write_bytes(content)
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
