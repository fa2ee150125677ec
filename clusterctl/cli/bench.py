"""`clusterctl bench NAME`: how training scales on a cluster, and what its network carries."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from clusterctl.cli import output
from clusterctl.cli.app_context import (
    ACCOUNT_PARAMETERS,
    AppContext,
    cluster_command,
    cluster_named,
)
from clusterctl.cli.following import note_lost
from clusterctl.cli.params import (
    LocalPath,
    NodePath,
    NumberRange,
    dry_run_option,
    force_option,
    json_option,
    preset_option,
    rank_options,
)
from clusterctl.cli.program_arguments import ProgramCommand
from clusterctl.cli.train import recipe_option
from clusterctl.domain.errors import UsageError
from clusterctl.domain.findings import NOT_KNOWN
from clusterctl.domain.units import count, format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from clusterctl.bench.plan import RunKey
    from clusterctl.bench.results import Benchmark, Difference, MeasuredRun
    from clusterctl.operations.bench import BenchPlan, BenchRequest, RunWatch


@cluster_command(cls=ProgramCommand, required=False, instead=("compared",))
@click.argument("arguments", nargs=-1, type=NodePath())
@click.option("--gpus", metavar="N,N...", help="The sizes to measure: 1,8,16,32.")
@click.option("--synthetic", is_flag=True, help="On noise: the default, also with --data-dir.")
@click.option(
    "--data-dir", type=NodePath(), default="", metavar="DIR", help="On TFRecord files of the nodes."
)
@click.option(
    "--repeats", type=click.IntRange(1), default=3, show_default=True, help="Runs of each size."
)
@click.option(
    "--steps", type=click.IntRange(1), default=200, show_default=True, help="Measured in a run."
)
@click.option(
    "--warmup",
    type=click.IntRange(1),
    default=50,
    show_default=True,
    help="Steps before them that do not count.",
)
@click.option("--seed", type=int, metavar="N", help="Of the runs' order; default: by chance.")
@click.option("--predict", metavar="N,N...", help="Further sizes for the model to predict.")
@click.option(
    "--out",
    type=LocalPath(file_okay=False),
    metavar="DIR",
    help="Where runs and report are kept; default: bench-NAME.",
)
@click.option(
    "--compare", "compared", multiple=True, metavar="DIR...", help="Compare with kept benchmarks."
)
@preset_option
@recipe_option
@rank_options
@click.option("--network", is_flag=True, help="Measure the network between the nodes, no GPUs.")
@click.option(
    "--streams",
    type=click.IntRange(1, 64),
    default=8,
    show_default=True,
    help="With --network: connections of a pair at once.",
)
@click.option(
    "--seconds",
    type=NumberRange(0.1, 60),
    default=1.0,
    show_default=True,
    help="With --network: how long each of a pair's four rates is measured.",
)
@dry_run_option
@force_option
@json_option("Benchmarks")
def bench(
    app: AppContext,
    name: str | None,
    arguments: tuple[str, ...],
    gpus: str | None,
    synthetic: bool,
    data_dir: str,
    repeats: int,
    steps: int,
    warmup: int,
    seed: int | None,
    predict: str | None,
    out: Path | None,
    compared: tuple[str, ...],
    preset: str,
    recipe: str | None,
    variables: tuple[str, ...],
    mpi_args: tuple[str, ...],
    network: bool,
    streams: int,
    seconds: float,
    dry_run: bool,
    force: bool,
    as_json: bool,
) -> int:
    """Measure how training scales on cluster NAME, or what its network carries.

    \b
    clusterctl bench demo --gpus 1,8,16,32 --dry-run
    clusterctl bench demo --gpus 1,8,16,32 --synthetic --data-dir '~/data/tf-imagenet'
    clusterctl bench demo --gpus 1,8 --steps 100 -- --batch_size 128
    clusterctl bench --compare bench-monday bench-friday
    clusterctl bench demo --network --out bench-demo

    Every finished run is kept: after an interruption the same command makes the remaining runs.
    Ctrl-C ends the current run. What follows -- goes to the trainer. The exit status of --compare
    is 1 where something is slower by more than the noise on machines of the same types.
    """
    from clusterctl.bench.plan import BenchSettings, parse_sizes
    from clusterctl.jobs.mpirun import mpirun_arguments, parse_variable
    from clusterctl.operations.bench import BenchRequest

    if compared:
        # A shell expands `--compare bench-*`: all folders but the first arrive as arguments.
        folders = [*compared, *([name] if name else []), *arguments]
        _refuse_besides("--compare", "compared", "predict", "as_json")
        predicted = parse_sizes(predict) if predict else ()
        return _compare([Path(one) for one in folders], predicted, as_json)
    name = cluster_named(name)
    if network:
        from clusterctl.cli.bench_network import bench_network

        _refuse_besides("--network", "network", "streams", "seconds", "out", "force", "as_json")
        return bench_network(
            app, name, streams=streams, seconds=seconds, force=force, as_json=as_json, out=out
        )
    if not gpus:
        raise UsageError("--gpus is missing", f"for example: clusterctl bench {name} --gpus 1,8")
    parsed = tuple(parse_variable(text, os.environ) for text in variables)
    settings = BenchSettings(
        cluster=name,
        steps=steps,
        warmup=warmup,
        synthetic=synthetic or not data_dir,
        data_dir=data_dir,
        preset=preset,
        recipe=recipe or BenchSettings.recipe,
        arguments=arguments,
        # The value of a private variable must not get into the benchmark's files.
        variables=tuple(v.name if v.private else f"{v.name}={v.value}" for v in parsed),
        mpi_arguments=mpirun_arguments(mpi_args),
    )
    settings.check_arguments()
    options = _BenchOptions(
        BenchRequest(
            settings,
            parse_sizes(gpus),
            repeats,
            secrets.randbelow(2**32) if seed is None else seed,
            parsed,
            force,
        ),
        predicted=parse_sizes(predict) if predict else (),
        folder=out or Path(f"bench-{name}"),
        dry_run=dry_run,
        as_json=as_json,
    )
    return _bench(app, options)


def _refuse_besides(option: str, *known: str) -> None:
    """Raise UsageError for an option that was typed and that does not go with this one.

    Those of the account go with each.
    """
    context = click.get_current_context()
    for one in context.command.params:
        typed = context.get_parameter_source(str(one.name)) is ParameterSource.COMMANDLINE
        if (
            typed
            and isinstance(one, click.Option)
            and one.name not in (*known, *ACCOUNT_PARAMETERS)
        ):
            raise UsageError(f"{option} makes no use of {one.opts[0]}", f"leave out {one.opts[0]}")


@dataclass(frozen=True)
class _BenchOptions:
    """The options of one `bench` command, parsed."""

    request: BenchRequest
    predicted: tuple[int, ...]
    folder: Path
    dry_run: bool
    as_json: bool


def _bench(app: AppContext, options: _BenchOptions) -> int:
    """Make the remaining runs, or with --dry-run show them; return the exit status."""
    from clusterctl.operations.bench import (
        plan_benchmark,
        read_benchmark,
        run_benchmark,
        write_benchmark,
        write_report,
    )
    from clusterctl.operations.status import cluster_status

    request, folder = options.request, options.folder
    status = cluster_status(app.clients, app.folder(request.settings.cluster))
    with app.access(status.cluster) as access:
        plan = plan_benchmark(app.clients, status, access, request, folder)
        _show_plan(plan, options)
        for largest in plan.largest.values():
            largest.check()
        if options.dry_run:
            return 0
        write_benchmark(folder, plan.benchmark)
        with _report_if_it_ends_early(folder, options.predicted):
            run_benchmark(access, plan, request, folder, _watch(len(plan.keys)))
    wrote = write_report(folder, options.predicted)
    _show(read_benchmark(folder), options.predicted, options.as_json)
    output.note(f"in {folder}: {', '.join(wrote)}")
    return 0


@contextlib.contextmanager
def _report_if_it_ends_early(folder: Path, predicted: tuple[int, ...]) -> Iterator[None]:
    """Write the report of the finished runs if the block is interrupted or fails."""
    from clusterctl.operations.bench import write_report

    try:
        yield
    except BaseException as ended:
        if isinstance(ended, KeyboardInterrupt):
            output.note("the run that was under way is ended, those before it are kept")
            output.note_resume_command()
        if (folder / "runs.jsonl").exists():
            try:
                write_report(folder, predicted)
            except Exception as problem:  # whatever it is, it must not replace what ended the runs
                output.note(f"the report in {folder} is not renewed: {problem}")
        raise


def _note_damaged(benchmark: Benchmark) -> None:
    """Warn of kept runs that cannot be read: they count as not made, and are made again."""
    for text in benchmark.damaged:
        output.note(f"warning: a run is lost: {text}")


def _show_plan(plan: BenchPlan, options: _BenchOptions) -> None:
    """Print how many runs are left, their time and price; for a dry run every run and line."""
    benchmark, keys, plans = plan.benchmark, plan.keys, plan.largest
    _note_damaged(benchmark)
    from clusterctl.bench.results import estimate_s
    from clusterctl.ec2.money.costs import format_usd
    from clusterctl.operations.bench import guess_step_s, hourly_usd

    first = next(iter(plans.values())).job
    seconds = estimate_s(benchmark, keys, guess_step_s(benchmark.about, first))
    hourly = hourly_usd(benchmark.about)
    usd = None if seconds is None or hourly is None else seconds / 3600 * hourly
    if options.dry_run and options.as_json:
        lines = {kind: largest.job.line for kind, largest in plans.items()}
        cost = {"estimate_s": seconds, "estimate_usd": usd, "hourly_usd": hourly}
        output.data({"runs": keys, "seed": benchmark.seed, **cost, "lines": lines})
        return
    if options.dry_run and keys:
        output.table(("GPUS", "DATA", "REPEAT"), [(k.gpus, k.data, k.repeat) for k in keys])
        for largest in plans.values():
            output.line(largest.job.line)
    for largest in plans.values():
        output.findings(largest.findings)
    kept = f", {count(len(benchmark.runs), 'run')} kept" if benchmark.runs else ""
    left = f"{count(len(keys), 'run')} to make{kept}"
    if not keys:
        output.note(left)
    elif seconds is None:
        rate = "" if hourly is None else f"; the nodes cost {format_usd(hourly)} an hour"
        output.note(f"{left}; how long they take is not known before the first has ended{rate}")
    else:
        price = "price unknown" if usd is None else format_usd(usd)
        output.note(f"{left}: about {format_duration(seconds)}, {price}")


def _watch(runs: int) -> RunWatch:
    from clusterctl.bench.results import in_words
    from clusterctl.operations.bench import RunWatch

    numbers = itertools.count(1)

    def starts(key: RunKey, job_id: str) -> None:
        output.note(f"run {next(numbers)} of {runs}: {key} (job {job_id})")

    def ended(run: MeasuredRun, left_s: float) -> None:
        left = f"; about {format_duration(left_s)} left" if left_s else ""
        output.note(f"  {in_words(run)}{left}")

    return RunWatch(starts=starts, lost=note_lost, ended=ended)


def _show(benchmark: Benchmark, predicted: tuple[int, ...], as_json: bool) -> None:
    from clusterctl.bench.report import as_data, cost_table, model_tables, speed_table, why_no_model
    from clusterctl.bench.results import by_size, model_of

    if as_json:
        output.data(as_data(benchmark, predicted))
        return
    results = by_size(benchmark)
    tables = [speed_table(results), cost_table(results)]
    for table in [*tables, *(model_tables(benchmark, predicted) if predicted else ())]:
        output.table([name.upper() for name in table.header], table.rows)
        output.line()
    for kind in benchmark.settings.kinds if predicted else ():
        if model_of(benchmark, kind) is None:
            output.note(f"no prediction for {kind} data: {why_no_model(benchmark, kind)}")


def _compare(folders: list[Path], predicted: tuple[int, ...], as_json: bool) -> int:
    """Compare the first folder with each of the others, or show a single one, with predictions of
    further sizes; see print_comparison."""
    from clusterctl.bench.report import choice_table, machines_in_words
    from clusterctl.bench.results import by_size, compare, configuration_differences
    from clusterctl.operations.bench import read_benchmark

    base, *others = [read_benchmark(folder) for folder in folders]
    for one in (base, *others):
        _note_damaged(one)
    if not others:
        _show(base, predicted, as_json)
        if not base.runs:
            output.note(f"nothing to compare: {folders[0]} has no finished run")
        return 0 if base.runs else NOT_KNOWN
    if predicted:
        hint = f"clusterctl bench --compare {folders[0]} --predict 128"
        raise UsageError("--predict is for one kept benchmark", hint)
    found = [
        (other.name, compare(base, other), configuration_differences(base, other))
        for other in others
    ]
    choices = [
        [
            {"benchmark": each.name, "machines": machines_in_words(each), **size.as_data()}
            for each in (base, other)
            for size in by_size(each)
        ]
        for other in others
    ]
    status = print_comparison(base.name, found, as_json, choices)
    if not as_json:
        table = choice_table([base, *others])
        output.line()
        output.table([name.upper() for name in table.header], table.rows)
    return status


def print_comparison(
    base: str,
    found: list[tuple[str, list[Difference], list[str]]],
    as_json: bool,
    choices: Sequence[list[dict[str, Any]]] = (),
    unit: str = "GPU",
) -> int:
    """Print how each of the others differs from the base, in speed and in what else is unlike.

    A size counts GPUs, or what else `unit` names: ranks on processors. `choices` are added to the
    JSON: for each of the others, time and cost of the sizes of both. Return the exit status: 1 if
    one of the others is slower, otherwise NOT_KNOWN if one has no size in common with the base, 0
    if all have.
    """
    if as_json:
        shown: list[dict[str, Any]] = [
            {"base": base, "other": other, "unlike": unlike} | {"sizes": differences}
            for other, differences, unlike in found
        ]
        for one, choice in zip(shown, choices):
            one["choices"] = choice
        output.data(shown)
    for other, differences, unlike in () if as_json else found:
        unknown = [each for each in differences if each.gpus is None]
        of_each = "" if unknown else f" of each {unit}"
        output.line(f"{other} against {base}, images/s{of_each}:")
        output.table(
            (f"{unit.upper()}S", "DATA", base, other, "FASTER BY", "P", ""),
            [
                (
                    each.gpus or "-",
                    each.data or "-",
                    f"{each.base.value:.1f}",
                    f"{each.other.value:.1f}",
                    f"{each.percent:+.1f} %",
                    "-" if each.chance is None else f"{each.chance:.3f}",
                    each.verdict,
                )
                for each in differences
            ],
        )
        if unknown:
            output.note(f"  not known: the number of {unit}s, which may differ (-: of all of them)")
        if not differences:
            output.note("nothing was compared: no size has a speed in both")
        for line in unlike:
            output.note(f"  not alike: {line}")
    if any(each.is_regression for _, differences, _ in found for each in differences):
        return 1
    return 0 if all(differences for _, differences, _ in found) else NOT_KNOWN
