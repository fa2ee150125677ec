"""Results on the screen: what each run came to, its table, and the tutorial's beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from clusterctl.cli import output
from clusterctl.domain.units import count, format_duration
from clusterctl.jobs.detached import JobRecord, JobState
from clusterctl.jobs.metrics.logs import (
    IMAGENET_SAMPLES,
    EvaluationRow,
    MetricSeries,
    RunFacts,
    TrainingRow,
)
from clusterctl.jobs.metrics.reference import Comparison
from clusterctl.jobs.metrics.runs import Run
from clusterctl.operations.results import Results, said_of

ROWS_SHOWN = 24
T = TypeVar("T")


def show_results(
    results: Results, comparisons: Sequence[Comparison | None], all_rows: bool
) -> None:
    """Everything found, run by run, then the metrics."""
    output.note(f"from {', '.join(results.sources)}")
    if results.job:
        output.note(f"job {results.job.job_id} {how_it_went(results.job)}")
    for number, (run, comparison) in enumerate(zip(results.runs, comparisons), 1):
        if number > 1:
            output.line()
        show_run(run, f"run {number}: " if len(results.runs) > 1 else "", all_rows)
        if comparison:
            output.line()
            show_comparison(run, comparison, all_rows)
    if results.metrics:
        if results.runs:
            output.line()
        show_metrics(results.metrics, all_rows)


def how_it_went(job: JobRecord) -> str:
    """`is running: ...`, `failed with exit status 1 after 2 min: ...`."""
    if job.running:
        return "is running: this is what it has written so far"
    # Nobody knows when a lost one ended.
    after = "" if job.state is JobState.LOST else f" after {format_duration(job.duration_s)}"
    until = "" if job.state is JobState.SUCCEEDED else ": this is what it wrote until then"
    return f"{said_of(job)}{after}{until}"


def show_run(run: Run, title: str, all_rows: bool) -> None:
    output.line(title + summary(run))
    for remark in remarks(run):
        output.line(f"  {remark}")
    if run.rows:
        output.line()
        output.table(
            ("STEP", "EPOCH", "IMAGES/S", "LOSS", "FINAL LOSS", "LR"),
            [_cells(row) for row in chosen(run.rows, all_rows)],
        )
        _note_left_out(len(run.rows), all_rows)
    if run.evaluations:
        output.line()
        show_evaluations(run.evaluations)


def summary(run: Run) -> str:
    """`32 GPUs, 14050 steps, 89.8 epochs; finished in 1 h 40 min`."""
    if not run.rows:
        return "an evaluation"
    last = run.rows[-1]
    gpus = [count(run.facts.gpus, "GPU")] if run.facts.gpus else []
    data = ["synthetic data"] if run.facts.synthetic else []
    parts = [*gpus, *data, f"step {last.step}", f"epoch {last.epoch:.1f}"]
    return f"{', '.join(parts)}; {_ending(run.facts)}"


def _ending(facts: RunFacts) -> str:
    if facts.finished_in_s is not None:
        return f"finished in {format_duration(facts.finished_in_s)}"
    if facts.last_part_s is not None:
        return f"finished, its last part in {format_duration(facts.last_part_s)}"
    return "not finished"


def remarks(run: Run) -> list[str]:
    """Its speed, and what a reader must know of the rows."""
    said = []
    if run.images_per_s is not None:
        gpu = run.images_per_s_per_gpu
        each = f", {gpu:.1f} per GPU" if gpu is not None else ""
        said.append(f"{run.images_per_s:.1f} images/s{each} (without rows that count the start)")
    if run.resumed_at:
        said.append(f"resumed at step {', '.join(map(str, run.resumed_at))}")
    if run.not_a_number_from is not None:
        said.append(f"the loss is not a number from step {run.not_a_number_from} on")
    return said


def show_evaluations(evaluations: Sequence[EvaluationRow]) -> None:
    output.table(
        ("STEP", "EPOCH", "TOP-1 %", "TOP-5 %", "LOSS", "CHECKPOINT (UTC)"),
        [
            (
                row.step,
                f"{row.epoch:.1f}",
                f"{row.top1:.3f}",
                f"{row.top5:.2f}",
                f"{row.loss:.2f}",
                row.checkpoint_time,
            )
            for row in evaluations
        ],
    )


def show_comparison(run: Run, comparison: Comparison, all_rows: bool) -> None:
    reference = comparison.reference
    output.line(f"beside {reference.title}:")
    ratio = comparison.speed_ratio
    if ratio is not None:
        output.line(
            f"  images/s per GPU: {comparison.images_per_s_per_gpu:.1f}, the tutorial's "
            f"{comparison.reference_images_per_s_per_gpu:.1f} ({ratio:.2f} times)"
        )
    if run.facts.other_data:
        images = run.facts.training_samples
        data = "synthetic data" if run.facts.synthetic else count(images or 0, "image")
        imagenet = f"ImageNet has {IMAGENET_SAMPLES} images"
        output.line(f"  losses and accuracies do not compare: {data}, {imagenet}")
    else:
        for line in _accuracy(run, comparison):
            output.line(f"  {line}")
    if comparison.rows:
        output.line()
        output.table(
            ("EPOCH", "LOSS", "TUTORIAL", "FINAL LOSS", "TUTORIAL", "LR", "TUTORIAL"),
            [
                (
                    f"{row.epoch:.2f}",
                    f"{row.loss:.3f}",
                    f"{row.reference_loss:.3f}",
                    f"{row.final_loss:.3f}",
                    f"{row.reference_final_loss:.3f}",
                    f"{row.learning_rate:.5f}",
                    f"{row.reference_learning_rate:.5f}",
                )
                for row in chosen(comparison.rows, all_rows)
            ],
        )


def _accuracy(run: Run, comparison: Comparison) -> list[str]:
    theirs, ours = comparison.reference.run.result, run.result
    if not (theirs and ours):
        return []
    if comparison.top1_difference is None or comparison.top5_difference is None:
        return [
            f"top-1 {ours.top1:.3f} % at epoch {ours.epoch:.1f}; "
            f"the tutorial's {theirs.top1:.3f} % is of epoch {theirs.epoch:.1f}"
        ]
    return [
        f"top-1 {ours.top1:.3f} %, the tutorial's {theirs.top1:.3f} % "
        f"({comparison.top1_difference:+.3f})",
        f"top-5 {ours.top5:.2f} %, the tutorial's {theirs.top5:.2f} % "
        f"({comparison.top5_difference:+.2f})",
    ]


def show_metrics(metrics: Sequence[MetricSeries], all_rows: bool) -> None:
    """One line per metric; where Keras counted epochs, their last values below."""
    output.table(
        ("METRIC", "VALUES", "FIRST", "LAST", "LOWEST", "HIGHEST"),
        [(series.name, len(series.points), *_extent(series)) for series in metrics],
    )
    per_epoch = [(series.name, series.per_epoch) for series in metrics if series.per_epoch]
    epochs = sorted({epoch for _, values in per_epoch for epoch in values})
    if epochs:
        output.line()
        output.table(
            ("EPOCH", *(name for name, _ in per_epoch)),
            [
                (epoch, *(f"{v[epoch]:.6g}" if epoch in v else "-" for _, v in per_epoch))
                for epoch in chosen(epochs, all_rows)
            ],
        )
        _note_left_out(len(epochs), all_rows)


def _extent(series: MetricSeries) -> tuple[str, ...]:
    values = [point.value for point in series.points]
    if not values:
        return ("-", "-", "-", "-")
    numbers = [value for value in values if value == value] or values
    return tuple(f"{value:.6g}" for value in (values[0], values[-1], min(numbers), max(numbers)))


def _cells(row: TrainingRow) -> tuple[object, ...]:
    return (
        row.step,
        f"{row.epoch:.1f}",
        f"{row.images_per_s:.1f}",
        f"{row.loss:.3f}",
        f"{row.final_loss:.3f}",
        f"{row.learning_rate:.5f}",
    )


def chosen(rows: Sequence[T], all_rows: bool) -> list[T]:
    """All, or as many as a screen holds: the first, the last, and others at equal distances."""
    if all_rows or len(rows) <= ROWS_SHOWN:
        return list(rows)
    last = len(rows) - 1
    return [rows[round(place * last / (ROWS_SHOWN - 1))] for place in range(ROWS_SHOWN)]


def _note_left_out(rows: int, all_rows: bool) -> None:
    if not all_rows and rows > ROWS_SHOWN:
        output.note(f"{ROWS_SHOWN} of {rows} rows; all of them: --all, --csv FILE or --json")
