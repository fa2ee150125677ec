"""`clusterctl results`: the results of training, from a cluster or from log files."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from clusterctl.cli import output
from clusterctl.cli.app_context import AppContext, cluster_command, cluster_named
from clusterctl.cli.following import exit_status, how_it_ended, note_lost
from clusterctl.cli.params import JobId, NodePath, json_option, refuse_overwriting
from clusterctl.domain.errors import ClusterctlError, UsageError
from clusterctl.domain.units import count, format_duration
from clusterctl.jobs.metrics.flops import IMAGE_SIZE
from clusterctl.jobs.metrics.logs import limited_searches
from clusterctl.jobs.metrics.reference import REFERENCES, choose_reference, compare

if TYPE_CHECKING:
    from clusterctl.jobs.metrics.logs import (
        EvaluationRow,
        LogItem,
        MetricDefinition,
        MetricSeries,
        RunFacts,
        TrainingRow,
    )
    from clusterctl.jobs.metrics.reference import Comparison
    from clusterctl.jobs.metrics.runs import Run
    from clusterctl.node.jobs.spec import JobRecord
    from clusterctl.operations.results import LogText, Results

TRAINING_COLUMNS = ("STEP", "EPOCH", "IMAGES/S", "LOSS", "FINAL LOSS", "LR")


@cluster_command(required=False, instead=("logs",))
@click.argument("job", required=False, type=JobId(loose=True))
@click.argument("more", nargs=-1, metavar="")
@click.option(
    "--log", "logs", multiple=True, metavar="FILE...", help="Read these logs; - is stdin."
)
@click.option(
    "--log-dir", type=NodePath(), metavar="DIR", help="Read this log folder of the head node."
)
@click.option("-f", "--follow", is_flag=True, help="Show rows as they come, until the job ends.")
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME=REGEX",
    help="Read this metric, too; @FILE: SageMaker's metric_definitions as JSON.",
)
@click.option(
    "--reference",
    type=click.Choice(["auto", *(one.name for one in REFERENCES), "none"]),
    default="auto",
    show_default=True,
    help="The tutorial's run to compare with; auto: the nearest in size.",
)
@click.option("--compare", is_flag=True, help="Compare the first --log with each of the others.")
@click.option("--all", "all_rows", is_flag=True, help="Show every row.")
@click.option("--csv", "csv_file", metavar="FILE", help="Write all rows as CSV; - is stdout.")
@json_option("RunResults")
@click.option("--plot", metavar="FILE", help="Draw a picture, an .svg file.")
@click.option(
    "--cloudwatch", metavar="NAMESPACE", help="Send a job's rows and metrics there, too; once."
)
@limited_searches()
def results(
    app: AppContext,
    name: str | None,
    job: str | None,
    more: tuple[str, ...],
    logs: tuple[str, ...],
    log_dir: str | None,
    follow: bool,
    metrics: tuple[str, ...],
    reference: str,
    compare: bool,
    all_rows: bool,
    csv_file: str | None,
    as_json: bool,
    plot: str | None,
    cloudwatch: str | None,
) -> int:
    """Show what training came to: of cluster NAME's latest job, of JOB, or of log files.

    \b
    clusterctl results demo
    clusterctl results demo 20261120-154501-3f2a --csv rows.csv
    clusterctl results demo --follow
    clusterctl results demo --follow --cloudwatch Training
    clusterctl results --log imagenet_resnet/*.log --plot run.svg
    clusterctl results --log monday.log friday.log --compare
    clusterctl results demo --metric 'loss=loss: ([0-9.]+)'

    Reads the trainer's tables, evaluations, and lines of Keras; compares with the tutorial's runs
    at equal epochs. With --log no cluster is needed. The exit status of --compare is 1 where
    something is slower by more than the noise.
    """
    from clusterctl.jobs.metrics.logs import parse_definitions
    from clusterctl.operations.results import check_picture

    definitions = parse_definitions(metrics)
    if as_json and csv_file == "-":
        raise UsageError("--json and --csv - both want standard output", "name a file: --csv FILE")
    if plot:
        check_picture(Path(plot))
    # A shell expands `--log *.log`: all files but the first arrive as arguments.
    files = [*logs, *filter(None, (name, job)), *more] if logs else []
    _check_written([csv_file, plot], files)
    push = None
    if cloudwatch is not None:
        if files or log_dir is not None:
            raise UsageError("--cloudwatch is for a job", "one cluster, and one job")
        push = _Push(app, cluster_named(name), cloudwatch)
    if compare:
        others = {"--log-dir": log_dir, "--follow": follow, "--metric": metrics, "--all": all_rows}
        others |= {"--csv": csv_file, "--plot": plot, "--reference": reference != "auto"}
        if ignored := " and ".join(option for option, given in others.items() if given):
            raise UsageError(f"--compare takes no {ignored}", "give --compare in a call of its own")
        return _compare_logs(list(dict.fromkeys(files)), as_json)
    status = 0
    if follow:
        if files or log_dir is not None or more:
            raise UsageError("--follow is for a job", "one cluster, and one job")
        rows = _Rows(definitions, csv_file, as_json)
        job, status = _follow(app, cluster_named(name), job, rows, definitions, push)
        # Rows on stdout are the whole result: a summary would spoil the JSON or CSV.
        if as_json or csv_file == "-" or status == output.INTERRUPTED:
            if left_out := rows.left_out:
                output.note(f"warning: {left_out}")
            return status
        output.line()
    if files:
        if log_dir is not None:
            raise UsageError("--log reads files here, --log-dir those of a cluster", "give one")
        found = _of_files(files, definitions)
    else:
        found = _of_cluster(app, cluster_named(name), job, more, log_dir, definitions)
    if push and not follow:
        push(found)
    found = replace(found, comparisons=_compared(found, reference))
    if csv_file:
        _write_csv(found, csv_file, bool(definitions) or not found.runs)
    if plot:
        _draw(found, Path(plot))
    if as_json:
        output.data(found)
        return status
    if csv_file != "-":
        show_results(found, all_rows)
    output.findings(found.findings)
    return status


def _check_written(written: Sequence[str | None], read: Sequence[str]) -> None:
    """Raise UsageError for a file that is read, or is in a folder that is not there."""
    paths = [Path(file) for file in written if file and file != "-"]
    refuse_overwriting(paths, [Path(file) for file in read if file != "-"])
    for path in paths:
        if not path.parent.is_dir():
            raise UsageError(f"cannot write {path}: there is no folder {path.parent}", "make it")


def _follow(
    app: AppContext,
    name: str,
    job: str | None,
    rows: _Rows,
    definitions: list[MetricDefinition],
    push: _Push | None,
) -> tuple[str, int]:
    """Show and push what the job's log adds until it ends; return its id and exit status."""
    from clusterctl.jobs.detached import LogFollower
    from clusterctl.jobs.plan import check_job_id
    from clusterctl.operations.logs import find, follow
    from clusterctl.operations.results import NoResults, results_of_cluster

    with app.open(name) as access:
        job_id = find(access, None if job is None else check_job_id(job), training=True).job_id
        output.note(f"job {job_id}")

        def take(chunk: bytes) -> None:
            rows.take(chunk)
            if push:
                push.now_and_then(lambda: results_of_cluster(access, job_id, None, definitions))

        try:
            ended = follow(access, job_id, LogFollower(take, note_lost))
            with contextlib.suppress(NoResults):
                if push:
                    push(results_of_cluster(access, job_id, None, definitions))
        except KeyboardInterrupt:
            output.note(f"\nno longer following; that does not end job {job_id}")
            return job_id, output.INTERRUPTED
    output.note(how_it_ended(ended))
    return job_id, exit_status(ended)


# Shortest time between two pushes to CloudWatch.
PUSHED_EVERY_S = 60.0


class _Push:
    """Sends results to a namespace of CloudWatch, and prints what was sent and left out."""

    def __init__(self, app: AppContext, name: str, namespace: str) -> None:
        from clusterctl.ec2.cloudwatch import check_namespace

        self._app, self._name, self._namespace = app, name, check_namespace(namespace)
        self._next = time.monotonic() + PUSHED_EVERY_S

    def __call__(self, found: Results) -> None:
        from clusterctl.operations.cloudwatch import push

        done = push(self._app.clients, self._app.folder(self._name), found, self._namespace)
        metrics = count(done.metrics, "metric")
        before = f"; {done.before} were sent before" if done.before else ""
        output.note(f"CloudWatch {self._namespace}: {done.sent} values of {metrics}{before}")
        for number, why in (
            (done.left_out.no_numbers, "are no finite numbers"),
            (done.left_out.too_old, "are older than the two weeks that CloudWatch takes"),
            (done.left_out.too_new, "are hours ahead of this machine's clock"),
            (done.untimed, "are rows without a time, of a log that is not metrics.jsonl"),
        ):
            if number:
                output.note(f"  left out: {number} {why}")

    def now_and_then(self, poll: Callable[[], Results]) -> None:
        """Push once a minute, and less often if a push takes long.

        An error of AWS is printed: it does not end the following.
        """
        from clusterctl.operations.results import NoResults

        began = time.monotonic()
        if began < self._next:
            return
        try:
            with contextlib.suppress(NoResults):
                self(poll())
        except ClusterctlError as error:
            output.note(f"nothing was sent to CloudWatch: {error.message}; tried again in a minute")
        ended = time.monotonic()
        # Pushing takes at most a twentieth of the time.
        self._next = ended + max(PUSHED_EVERY_S, 20 * (ended - began))


class _Rows:
    """Prints the rows and metrics of a growing log, and appends them to the file of --csv."""

    def __init__(
        self, definitions: list[MetricDefinition], csv_file: str | None, as_json: bool
    ) -> None:
        from clusterctl.jobs.metrics.logs import GrowingLog
        from clusterctl.operations.results import csv_header

        self._log, self._as_json, self._metrics = (
            GrowingLog(definitions),
            as_json,
            bool(definitions),
        )
        self._csv_file, self._titled = csv_file, False
        self._shown_at: dict[str, float] = {}
        self._keep(csv_header(self._metrics), "w")

    def take(self, chunk: bytes) -> None:
        from clusterctl.operations.results import item_csv, item_data

        for item in self._log.feed(chunk):
            self._keep(item_csv(item, self._metrics), "a")
            if self._as_json:
                output.event(item_data(item))
            elif self._csv_file != "-":
                self._show(item)

    @property
    def left_out(self) -> str:
        """A note on lines that were too long to be read; empty for none."""
        from clusterctl.jobs.metrics.logs import left_out

        return left_out(self._log.overlong)

    def _keep(self, text: str, mode: str) -> None:
        if self._csv_file == "-":
            output.raw(text.encode())
        elif self._csv_file and text:
            try:
                with Path(self._csv_file).open(mode) as file:
                    file.write(text)
            except OSError as error:
                raise UsageError(f"cannot write {self._csv_file}: {error.strerror}") from None

    def _show(self, item: LogItem) -> None:
        from clusterctl.jobs.metrics.logs import EvaluationRow

        if isinstance(item, tuple):
            name, point = item
            # Keras redraws its progress bar many times a second: one value a second is printed.
            if time.monotonic() - self._shown_at.get(name, -1.0) >= 1.0:
                self._shown_at[name] = time.monotonic()
                epoch = "" if point.epoch is None else f" (epoch {point.epoch})"
                output.line(f"{name} {point.value:.6g}{epoch}")
        elif isinstance(item, EvaluationRow):
            output.line(
                f"step {item.step}, epoch {item.epoch:.1f}: top-1 {item.top1:.3f} %, "
                f"top-5 {item.top5:.2f} %, loss {item.loss:.2f}"
            )
        else:
            titles = [] if self._titled else [TRAINING_COLUMNS]
            self._titled = True
            for cells in (*titles, _cells(item)):
                widths = (8, 7, 11, 8, 12, 0)
                padded = (str(cell).ljust(width) for cell, width in zip(cells, widths))
                output.line("".join(padded).rstrip())


def _of_files(files: list[str], definitions: list[MetricDefinition]) -> Results:
    from clusterctl.operations.results import LogText, decoded, read_log_files, results_of

    logs: list[LogText] = []
    for file in dict.fromkeys(files):
        if file == "-":
            try:
                text = decoded(sys.stdin.buffer.read())
            except OSError as error:
                raise UsageError(f"cannot read standard input: {error.strerror}") from None
            logs.append(LogText("standard input", text))
        else:
            logs.extend(read_log_files([file]))
    return results_of(logs, definitions)


def _compare_logs(files: list[str], as_json: bool) -> int:
    """Print runs side by side, and how much faster the other logs' runs are than the first's.

    Return 1 if one is slower, else 0.
    """
    from clusterctl.bench.results import differences, speeds_of_logs
    from clusterctl.cli.bench import print_comparison
    from clusterctl.operations.results import NoResults

    if len(files) < 2:
        raise UsageError("--compare is for two different logs or more", "--log ONE OTHER --compare")
    base, *others = [(file, _of_files([file], []).runs) for file in files]
    if without := [file for file, runs in (base, *others) if not runs]:
        raise NoResults(
            f"no run of the trainer in {', '.join(without)}: --compare compares the speeds of runs",
            "for the metrics of a log, one call for each: clusterctl results --log FILE",
        )
    # A log that names no GPU counts ranks, which may be on processors.
    on_gpus = all(run.facts.gpu for _, runs in (base, *others) for run in runs)
    unit = "GPU" if on_gpus else "rank"
    if not as_json:
        output.table(
            (
                "LOG",
                f"{unit.upper()}S",
                "DATA",
                "STEP",
                "EPOCH",
                "IMAGES/S",
                "LOSS",
                "TOP-1 %",
                "TOP-5 %",
            ),
            [(name, *_comparison_row(run)) for name, runs in (base, *others) for run in runs],
        )
        output.line()
    ours = speeds_of_logs(base[1])
    found = [
        (name, differences(ours, speeds_of_logs(runs)), _unlike(base[1], runs))
        for name, runs in others
    ]
    return print_comparison(base[0], found, as_json, unit=unit)


def _comparison_row(run: Run) -> tuple[object, ...]:
    last, speed, result = (run.rows or (None,))[-1], run.images_per_s, run.result
    return (
        run.facts.gpus or "-",
        run.facts.data_kind or "-",
        *((last.step, f"{last.epoch:.1f}") if last else ("-", "-")),
        "-" if speed is None else f"{speed:.1f}",
        f"{last.loss:.3f}" if last else "-",
        *((f"{result.top1:.3f}", f"{result.top5:.2f}") if result else ("-", "-")),
    )


def _unlike(ours: Sequence[Run], theirs: Sequence[Run]) -> list[str]:
    """Return how the runs differ in what their logs have besides speed."""
    names = (
        *("model", "image_size", "precision", "gpu", "data", "training_samples"),
        *("peak_learning_rate", "tensorflow"),
    )
    values = [
        [sorted({str(getattr(run.facts, name) or "-") for run in runs}) for name in names]
        for runs in (ours, theirs)
    ]
    return [
        f"{name.replace('_', ' ')}: {', '.join(one)} and {', '.join(other)}"
        for name, one, other in zip(names, *values)
        if one != other
    ]


def _of_cluster(
    app: AppContext,
    name: str,
    job: str | None,
    more: tuple[str, ...],
    log_dir: str | None,
    definitions: list[MetricDefinition],
) -> Results:
    from clusterctl.jobs.plan import check_job_id
    from clusterctl.operations.results import results_of_cluster

    if more or (job and log_dir is not None):
        raise UsageError("one cluster, and one job or log folder", "log files are read with --log")
    job_id = None if job is None else check_job_id(job)
    with app.open(name) as access:
        return results_of_cluster(access, job_id, log_dir, definitions)


def _compared(found: Results, name: str) -> tuple[Comparison | None, ...]:
    if name == "none":
        return (None,) * len(found.runs)
    given = next((each for each in REFERENCES if each.name == name), None)
    # Of neither the speed nor the losses would mean anything.
    other = [run.facts.other_model for run in found.runs]
    for model in dict.fromkeys(filter(None, other)):
        output.note(f"{model}: not compared with the tutorial's ResNet-50 with {IMAGE_SIZE} pixels")
    return tuple(
        None if model else compare(run, given or choose_reference(run))
        for run, model in zip(found.runs, other)
    )


def _write_csv(found: Results, file: str, metrics: bool) -> None:
    from clusterctl.operations.results import as_csv, write_result

    text = as_csv(found, metrics)
    if file == "-":
        output.raw(text.encode())
    else:
        write_result(Path(file), text.encode())
        output.note(f"wrote {file}")


def _draw(found: Results, path: Path) -> None:
    from clusterctl.bench.chart import picture
    from clusterctl.operations.results import metric_charts, run_charts, write_result

    reference = next((each.reference for each in found.comparisons if each), None)
    charts = [
        *(run_charts(found.runs, reference) if found.runs else []),
        *metric_charts(found.metrics),
    ]
    write_result(path, picture(charts, ", ".join(found.sources)).encode())
    output.note(f"wrote {path}")


# Rows of a table that are printed: about a screen.
ROWS_SHOWN = 24
T = TypeVar("T")


def show_results(results: Results, all_rows: bool) -> None:
    """Print everything found: each run with its comparison, then the metrics."""
    output.note(f"from {', '.join(results.sources)}")
    if results.job:
        output.note(f"job {results.job.job_id} {how_it_went(results.job)}")
    for number, (run, comparison) in enumerate(zip(results.runs, results.comparisons), 1):
        if number > 1:
            output.line()
        title = f"run {number}: " if len(results.runs) > 1 else ""
        show_run(run, title, all_rows)
        if comparison:
            output.line()
            show_comparison(run, comparison, all_rows)
    if results.metrics:
        if results.runs:
            output.line()
        show_metrics(results.metrics, all_rows)


def how_it_went(job: JobRecord) -> str:
    """Return `is running: ...`, `failed with exit status 1 after 2 min: ...`."""
    from clusterctl.node.jobs.spec import JobState
    from clusterctl.operations.results import state_phrase

    if job.is_active:
        return f"{state_phrase(job)}: this is what it has written so far"
    # It is not known when a lost job ended.
    after = "" if job.state is JobState.LOST else f" after {format_duration(job.duration_s)}"
    until = "" if job.state is JobState.SUCCEEDED else ": this is what it wrote until then"
    return f"{state_phrase(job)}{after}{until}"


def show_run(run: Run, title: str, all_rows: bool) -> None:
    """Print a run: its summary, remarks, rows and evaluations."""
    output.line(title + summary(run))
    for remark in [*remarks(run), *_utilization(run)]:
        output.line(f"  {remark}")
    if run.rows:
        output.line()
        output.table(TRAINING_COLUMNS, [_cells(row) for row in chosen(run.rows, all_rows)])
        _note_left_out(len(run.rows), all_rows)
    if run.evaluations:
        output.line()
        show_evaluations(run.evaluations)


def summary(run: Run) -> str:
    """Return `32 GPUs, step 14050, epoch 89.8; finished in 1 h 40 min`."""
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
    """Return the run's speed, and what has to be known of its rows: restarts, a loss of NaN."""
    item = []
    if run.images_per_s is not None:
        gpu = run.images_per_s_per_gpu
        each = f", {gpu:.1f} per GPU" if gpu is not None else ""
        since = f"from step {run.alike_from} on, " if run.alike_from else ""
        item.append(
            f"{run.images_per_s:.1f} images/s{each} ({since}without rows that count the start)"
        )
    if run.resumed_at:
        item.append(f"resumed at step {', '.join(map(str, run.resumed_at))}")
    if run.not_a_number_from is not None:
        item.append(f"the loss is not a number from step {run.not_a_number_from} on")
    return item


def _utilization(run: Run) -> list[str]:
    """Return how well the GPUs were used, and the speed by price, as far as they are known."""
    used, facts, item = run.utilization, run.facts, []
    if used.tflops is not None:
        share = "not known for" if used.mfu is None else f"{100 * used.mfu:.1f} % on"
        line = f"{used.tflops:.1f} TFLOP/s per GPU; MFU {share} {facts.gpu}"
        item.append(f"{line}, {facts.precision}")
    elif facts.precision and run.images_per_s is not None:
        item.append("TFLOP/s and MFU: not known" + ("" if facts.gpu else ", it ran on no GPU"))
    by_price = run.images_per_s_per_hourly_usd
    if by_price is not None:
        usd = f"${run.list_hourly_usd:,.2f} an hour on demand"
        item.append(f"{by_price:,.1f} images/s for each dollar an hour ({usd})")
    return item


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
    """Print a run compared with one of the tutorial's: speed, accuracy, and rows at equal epochs.

    Losses and accuracies are not compared if the run was not trained on ImageNet.
    """
    from clusterctl.jobs.trainer import IMAGENET_IMAGES

    reference = comparison.reference
    output.line(f"compared with {reference.title}:")
    ratio = comparison.speed_ratio
    if ratio is not None:
        # On a CPU it is a thousandth.
        times = f"{ratio:.2f}" if ratio >= 0.1 else f"{ratio:.2g}"
        output.line(
            f"  images/s per GPU: {comparison.images_per_s_per_gpu:.1f}, the tutorial's "
            f"{comparison.reference_images_per_s_per_gpu:.1f} on V100s ({times} times)"
        )
    if run.facts.other_data:
        images = run.facts.training_samples
        data = "synthetic data" if run.facts.synthetic else count(images or 0, "image")
        imagenet = f"ImageNet has {IMAGENET_IMAGES} images"
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
    """Print one line per metric; where Keras counted epochs, also the last value of each epoch."""
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
    # NaN compares false with everything: min and max need values without it.
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
    """Return all rows, or ROWS_SHOWN at equal distances, the first and the last among them."""
    if all_rows or len(rows) <= ROWS_SHOWN:
        return list(rows)
    last = len(rows) - 1
    return [rows[round(place * last / (ROWS_SHOWN - 1))] for place in range(ROWS_SHOWN)]


def _note_left_out(rows: int, all_rows: bool) -> None:
    if not all_rows and rows > ROWS_SHOWN:
        output.note(f"{ROWS_SHOWN} of {rows} rows; all of them: --all, --csv FILE or --json")
