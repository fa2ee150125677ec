"""`clusterctl results`: what training came to, from a cluster or from log files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from clusterctl.cli import output
from clusterctl.cli.app_context import AppContext, ClusterCommand, account_options
from clusterctl.cli.params import JobId
from clusterctl.domain.errors import UsageError

if TYPE_CHECKING:
    from clusterctl.jobs.metrics.logs import MetricDefinition
    from clusterctl.jobs.metrics.reference import Comparison, Reference
    from clusterctl.operations.results import LogText, Results

REFERENCES = ("auto", "imagenet-32", "imagenet-256", "synthetic-4", "none")


@click.command(cls=ClusterCommand, instead="logs")
@click.argument("name", required=False)
@click.argument("job", required=False, type=JobId())
@click.argument("more", nargs=-1, metavar="")
@click.option(
    "--log", "logs", multiple=True, metavar="FILE...", help="Read these logs; - is stdin."
)
@click.option("--log-dir", metavar="DIR", help="Read this log folder of the head node.")
@click.option(
    "--metric", "metrics", multiple=True, metavar="NAME=REGEX", help="Read this metric, too."
)
@click.option(
    "--reference",
    type=click.Choice(REFERENCES),
    default="auto",
    show_default=True,
    help="The tutorial's run to compare with; auto: the nearest in size.",
)
@click.option("--all", "all_rows", is_flag=True, help="Show every row.")
@click.option("--csv", "csv_file", metavar="FILE", help="Write all rows as CSV; - is stdout.")
@click.option("--json", "as_json", is_flag=True, help="All of it as JSON.")
@click.option("--plot", metavar="FILE", help="Draw a picture: .png, .svg or .pdf.")
@account_options
def results(
    app: AppContext,
    name: str | None,
    job: str | None,
    more: tuple[str, ...],
    logs: tuple[str, ...],
    log_dir: str | None,
    metrics: tuple[str, ...],
    reference: str,
    all_rows: bool,
    csv_file: str | None,
    as_json: bool,
    plot: str | None,
) -> int:
    """Show what training came to: of cluster NAME's latest job, of JOB, or of log files.

    \b
    clusterctl results demo
    clusterctl results demo 20261120-154501-3f2a --csv rows.csv
    clusterctl results --log imagenet_resnet/*.log --plot run.png
    clusterctl results demo --metric 'loss=loss: ([0-9.]+)'

    Reads the trainer's tables, evaluations, and lines of Keras; compares with the tutorial's runs
    at equal epochs. With --log no cluster is needed.
    """
    from clusterctl.jobs.metrics.logs import parse_definition
    from clusterctl.operations.results_plot import picture_format

    definitions = [parse_definition(text) for text in metrics]
    if as_json and csv_file == "-":
        raise UsageError("--json and --csv - both want standard output", "name a file: --csv FILE")
    ending = picture_format(Path(plot)) if plot else ""
    files = [*logs, *filter(None, (name, job)), *more] if logs else []
    if files:
        if log_dir is not None:
            raise UsageError("--log reads files here, --log-dir those of a cluster", "give one")
        found = _of_files(files, definitions)
    else:
        assert name is not None  # ClusterCommand has it, unless there are logs
        found = _of_cluster(app, name, job, more, log_dir, definitions)
    comparisons = _compared(found, reference)
    if csv_file:
        _write_csv(found, csv_file, bool(definitions) or not found.runs)
    if plot:
        _draw(found, comparisons, Path(plot), ending)
    _show(found, comparisons, as_json, csv_file == "-", all_rows)
    return 0


def _of_files(files: list[str], definitions: list[MetricDefinition]) -> Results:
    from clusterctl.operations.results import LogText, decoded, read_log_files, results_of

    logs: list[LogText] = []
    for file in dict.fromkeys(files):
        if file == "-":
            logs.append(LogText("standard input", decoded(sys.stdin.buffer.read())))
        else:
            logs.extend(read_log_files([file]))
    return results_of(logs, definitions)


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
    job_id = check_job_id(job) if job else None
    with app.open(name) as access:
        return results_of_cluster(access, job_id, log_dir, definitions)


def _compared(found: Results, name: str) -> list[Comparison | None]:
    from clusterctl.jobs.metrics.reference import REFERENCES, choose_reference, compare

    if name == "none":
        return [None for _ in found.runs]
    given: Reference | None = next((each for each in REFERENCES if each.name == name), None)
    return [compare(run, given or choose_reference(run)) for run in found.runs]


def _write_csv(found: Results, file: str, metrics: bool) -> None:
    from clusterctl.operations.results import as_csv, write_result

    text = as_csv(found, metrics)
    if file == "-":
        output.raw(text.encode())
    else:
        write_result(Path(file), text.encode())
        output.note(f"wrote {file}")


def _draw(found: Results, comparisons: list[Comparison | None], path: Path, ending: str) -> None:
    from clusterctl.operations.results import write_result
    from clusterctl.operations.results_plot import draw, metric_panels, run_panels

    beside = next((each.reference for each in comparisons if each), None)
    panels = [
        *(run_panels(found.runs, beside) if found.runs else []),
        *metric_panels(found.metrics),
    ]
    write_result(path, draw(panels, ending))
    output.note(f"wrote {path}")


def _show(
    found: Results,
    comparisons: list[Comparison | None],
    as_json: bool,
    csv_on_stdout: bool,
    all_rows: bool,
) -> None:
    if as_json:
        from clusterctl.operations.results import as_data

        output.data(as_data(found, comparisons))
    elif not csv_on_stdout:
        from clusterctl.cli.results_table import show_results

        show_results(found, comparisons, all_rows)
