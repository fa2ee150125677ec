"""Results as JSON and CSV, and the files they are written to."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

from clusterctl.domain.errors import UsageError
from clusterctl.jobs.metrics.logs import EvaluationRow, MetricSeries, TrainingRow
from clusterctl.jobs.metrics.reference import Comparison
from clusterctl.jobs.metrics.runs import Run
from clusterctl.operations.results import Results

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
