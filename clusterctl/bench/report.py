"""The report of a benchmark as Markdown, as an HTML page, as CSV and as JSON.

The report is made of blocks, from which Markdown and HTML are written. The HTML page loads nothing
from elsewhere and runs no script. Its picture is SVG and follows the reader's light or dark mode.
"""

from __future__ import annotations

import csv
import functools
import io
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import Any, Optional, Union

from clusterctl.bench.chart import Chart, ChartCurve, flat, svg
from clusterctl.bench.model import FARTHEST, FEWEST_SIZES, Model
from clusterctl.bench.plan import REAL
from clusterctl.bench.results import Benchmark, SizeResult, by_size, model_of, versions
from clusterctl.bench.statistics import LEVEL, Estimate
from clusterctl.domain.cluster import Market
from clusterctl.domain.units import count, format_duration
from clusterctl.jobs.metrics.flops import IMAGE_SIZE
from clusterctl.jobs.trainer import EPOCHS, IMAGENET_IMAGES
from clusterctl.node.record import from_data, from_json, to_data

NONE = "–"
# Half of an interval, in percent of its value: above it, the value means nothing.
TOO_FAR_APART = 50.0
# The model predicts powers of two up to this number of GPUs, that of the tutorial's largest run.
LARGEST_PREDICTED = 256
# With this probability at least, the report calls an allreduce exposed, with the probability.
EXPOSED_FROM = 0.5


@dataclass(frozen=True)
class Text:
    """A paragraph; `level` makes it a heading, 1 or 2."""

    text: str
    level: int = 0


@dataclass(frozen=True)
class ReportTable:
    """Rows of cells under a header. With `numbers`, all cells are aligned right."""

    header: Sequence[str]
    rows: Sequence[Sequence[object]]
    numbers: bool = True


@dataclass(frozen=True)
class CommandLines:
    """Command lines, as they are typed into a shell."""

    lines: Sequence[str]


Block = Union[Text, ReportTable, Chart, CommandLines]


@dataclass(frozen=True)
class PublishedRun:
    """Speeds that others have published, in images/s by the number of GPUs. `data` is REAL or
    SYNTHETIC; `fp16` is None if the source does not say."""

    title: str
    gpu: str
    per_node: int
    data: str
    images_per_s: Mapping[str, int]
    source: str
    fp16: Optional[bool] = None


@functools.cache
def published() -> tuple[PublishedRun, ...]:
    """Return the published runs that come with clusterctl, each with its source."""
    text = resources.files("clusterctl.bench").joinpath("published.json").read_text()
    return from_data(tuple[PublishedRun, ...], from_json(dict[str, Any], text)["runs"])


def published_for(benchmark: Benchmark) -> list[PublishedRun]:
    """Return the published runs of the same work, GPU and kind of data; none for runs on CPUs."""
    gpu, kinds = benchmark.about.gpu, benchmark.settings.kinds
    fp16 = {"float16": True, "float32": False}
    works = {
        (run.model, run.image_size, fp16.get(run.precision or ""))
        for run in benchmark.runs
        if run.model and run.facts.preset in ("gpu", "efa")
    }
    like = [one for work in works for one in published_like(gpu, *work)]
    return [one for one in published() if one in like and one.data in kinds]


def published_like(
    gpu: str, model: str, image_size: int | None, fp16: bool | None
) -> list[PublishedRun]:
    """Return the published runs of this work on the GPU of that name, as AWS gives it.

    They are all of ResNet-50 with images of 224 pixels. Those whose source does not give the
    precision are among them; with None for `fp16`, if it is unknown, only they.
    """
    if (model, image_size) != ("resnet50", IMAGE_SIZE):
        return []
    return [each for each in published() if each.gpu == gpu and each.fp16 in (None, fp16)]


def blocks(benchmark: Benchmark, predicted: Sequence[int] = ()) -> list[Block]:
    """Return the whole report. `predicted` are sizes for the model besides the powers of two."""
    results = by_size(benchmark)
    models = {kind: model_of(benchmark, kind) for kind in benchmark.settings.kinds}
    cluster = benchmark.about.cluster or benchmark.name
    return [
        Text(f"How ResNet training scales on {cluster}{_simulated(benchmark)}", 1),
        Text(_summary(results)),
        *charts(benchmark, results, models),
        Text("Speed", 2),
        speed_table(results),
        Text(
            f"± is half of the {LEVEL:.0%} interval of Student's t over repeated runs; of an "
            "efficiency, by the delta method with Welch's degrees of freedom. The speed is all "
            "images by all seconds of the measured steps. Efficiency is images/s of a GPU against "
            "a single GPU, and against one full node, on the same kind of data. TFLOP/s are those "
            "that the model needs (docs/benchmarks.md), of each GPU; MFU is their share of the "
            f"GPU's peak without sparsity. {NONE}: not known."
        ),
        Text("Where a step's time goes, and what an epoch costs", 2),
        cost_table(results),
        Text(_shares_and_prices(benchmark)),
        *itertools.chain.from_iterable(
            _model(model, kind, benchmark, predicted) for kind, model in models.items()
        ),
        *_published(benchmark),
        Text("How it was measured", 2),
        Text(_method(benchmark)),
        ReportTable(("what", "value"), facts(benchmark), numbers=False),
        Text("The exact command of the first run of each size and kind of data:"),
        CommandLines(_commands(benchmark)),
        Text("All runs", 2),
        _runs(benchmark),
    ]  # fmt: skip


def _simulated(benchmark: Benchmark) -> str:
    """Return words for titles, if no GPU was measured."""
    if benchmark.about.local:
        return " (local EC2: CPUs of one machine, no GPUs)"
    return " (CPUs, no GPUs)" if benchmark.on_cpus else ""


def _summary(results: Sequence[SizeResult]) -> str:
    if not results:
        return "No run has finished yet."
    last = results[-1]
    values = (last.images_per_s, last.efficiency, last.efficiency_vs_node)
    if any(one and (one.percent or 0.0) > TOO_FAR_APART for one in values):
        return (
            f"The runs on {count(last.gpus, 'GPU')} differ too much for a conclusion: make more "
            "and longer ones (--repeats, --steps), on nodes where nothing else runs."
        )
    against = last.efficiency or last.efficiency_vs_node
    base = "one GPU" if last.efficiency else "one node"
    relative = f", {_percent(against)} of the speed of {base} on each GPU" if against else ""
    return (
        f"{count(last.gpus, 'GPU')} train {last.images_per_s.value:,.1f} images/s on {last.data} "
        f"data{relative}: {format_duration(last.epoch_s)} an epoch."
    )


def speed_table(results: Sequence[SizeResult]) -> ReportTable:
    """Return the table of speeds and efficiencies by size."""
    return ReportTable(
        (
            *("GPUs", "data", "runs", "images/s", "±", "per GPU", "efficiency", "vs 1 node"),
            *("TFLOP/s", "MFU"),
        ),
        [
            (
                each.gpus,
                each.data,
                each.runs,
                f"{each.images_per_s.value:,.1f}",
                _half(each.images_per_s),
                f"{each.per_gpu:,.1f}",
                _percent(each.efficiency),
                _percent(each.efficiency_vs_node),
                NONE if each.tflops_per_gpu is None else f"{each.tflops_per_gpu:.1f}",
                NONE if each.mfu is None else f"{100 * each.mfu:.1f} %",
            )
            for each in results
        ],
    )


def cost_table(results: Sequence[SizeResult]) -> ReportTable:
    """Return the table of a step's shares, times and costs by size."""
    return ReportTable(
        (
            *("GPUs", "data", "step", "compute", "allreduce", "input", "$ an epoch", "90 epochs"),
            *("$", "images/s per $/h"),
        ),
        [
            (
                each.gpus,
                each.data,
                f"{1000 * each.step_s.value:,.1f} ms",
                *(
                    _share(getattr(each.shares, name) if each.shares else None)
                    for name in ("compute", "allreduce", "input")
                ),
                _usd(each.epoch_usd),
                format_duration(EPOCHS * each.epoch_s),
                _usd(None if each.epoch_usd is None else EPOCHS * each.epoch_usd),
                f"{by_price:,.1f}" if (by_price := each.images_per_s_per_hourly_usd) else NONE,
            )
            for each in results
        ],
    )


def choice_table(benchmarks: Sequence[Benchmark]) -> ReportTable:
    """Return the table of all sizes of all benchmarks: by data, the most images/s first. Times of
    epochs of other lengths do not compare."""
    machines = [machines_in_words(each) for each in benchmarks]
    # The name of a benchmark distinguishes two of the same machines.
    names = [
        f"{words} ({each.name})" if machines.count(words) > 1 else words
        for words, each in zip(machines, benchmarks)
    ]
    found = [(name, size) for name, each in zip(names, benchmarks) for size in by_size(each)]
    found.sort(key=lambda choice: (choice[1].data, -choice[1].images_per_s.value))
    return ReportTable(
        (
            *("type", "nodes", "GPUs", "data", "images", "images/s", "$ an hour"),
            *(f"{EPOCHS} epochs", "$"),
        ),
        [
            (
                name,
                size.nodes,
                size.gpus,
                size.data,
                f"{size.epoch_images:,}",
                f"{size.images_per_s.value:,.1f}",
                _usd(size.hourly_usd),
                format_duration(EPOCHS * size.epoch_s),
                _usd(None if size.epoch_usd is None else EPOCHS * size.epoch_usd),
            )
            for name, size in found
        ],
    )


def machines_in_words(benchmark: Benchmark) -> str:
    """Return instance types and market, such as `p3.16xlarge` or `p3.16xlarge spot`."""
    markets = [one for one in benchmark.about.market if one != Market.ON_DEMAND.value]
    return " ".join([", ".join(benchmark.about.types) or NONE, *markets])


def _half(value: Estimate) -> str:
    if value.percent is None:
        return NONE
    return f"{value.percent:.1f} %" if value.percent < 100 else "over 100 %"


def _percent(value: Estimate | None) -> str:
    if value is None:
        return NONE
    half = f" ± {value.percent * value.value:.1f}" if value.percent is not None else ""
    return f"{100 * value.value:.1f}{half} %"


def _share(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.0f} %"


def _usd(value: float | None) -> str:
    return NONE if value is None else f"{value:,.2f}" if value >= 0.1 else f"{value:.4f}"


def _shares_and_prices(benchmark: Benchmark) -> str:
    prices = "; ".join(benchmark.about.price) or "the price of a node is unknown"
    market = ", ".join(benchmark.about.market)
    dollars = (
        "There are no dollars: hosts of the local EC2 have the speed of the machine it runs on."
        if benchmark.about.local
        else "Dollars are of the nodes that have ranks, whole nodes, "
        f"{market or 'at the prices'} ({prices}). images/s per $/h is the speed by AWS's price of "
        "these nodes on demand."
    )
    return (
        "Shares are by difference between runs, not by a profile: compute is the step of one GPU "
        "on synthetic data; allreduce is what the step grows by with more GPUs, so it holds only "
        "what does not hide behind the backward pass, and waiting for the slowest rank; input is "
        "what real data adds at the same size. A difference below zero is noise, and none. "
        f"{NONE}: the runs that would show it were not made. {dollars} Times and dollars are for "
        "training only: launch, data, checkpoints and evaluation come on top."
    )


def _model(
    model: Model | None, kind: str, benchmark: Benchmark, predicted: Sequence[int]
) -> list[Block]:
    """Return the heading, the explanation and the table of predictions of a model."""
    title = Text(f"The model: {kind} data", 2)
    if model is None:
        unknown = [(gpus, *_UNKNOWN) for gpus in predicted]
        table = [ReportTable(_MODEL_HEADER, unknown)] if unknown else []
        return [title, Text(why_no_model(benchmark, kind)), *table]
    batch = _batch_per_gpu(benchmark)
    with_reading = kind == REAL and benchmark.settings.synthetic
    found = {gpus: _model_row(model, gpus, batch) for gpus in predicted_sizes(model, predicted)}
    rows = [row or (n, *_UNKNOWN) for n, row in found.items() if row or n in predicted]
    table = [ReportTable(_MODEL_HEADER, rows)]
    if model.misfits:
        return [title, Text(_misfits(model, with_reading)), *table]
    reading = _reading(model) if with_reading else ""
    terms = "; ".join(f"{name} {1000 * s:,.2f} ms" for name, s in model.seconds.items())
    return [
        title,
        Text(
            "The likeliest of the hypotheses that are averaged, in milliseconds a unit of a term "
            f"(formulas: docs/benchmarks.md): {terms}.{reading} {_what_is_known(model)} "
            "Model: the step by the model, which at a measured size differs from what was "
            f"measured. {LEVEL:.0%}: where the mean step of as many runs of a size lies with that "
            f"certainty, compared with the model; {NONE}: not known, for fewer than {FEWEST_SIZES} "
            "sizes. Off: the model's error at a measured size. Beyond "
            f"{FARTHEST:.0f} times the largest size it is a guess."
        ),
        *table,
    ]


_MODEL_HEADER = ("GPUs", "", "step", "images/s", "model", f"{LEVEL:.0%}", "off")
_UNKNOWN = ("not known", *[NONE] * 5)


def _model_row(model: Model, gpus: int, batch: float) -> tuple[object, ...] | None:
    """Return the row of a size: what was measured, or what is predicted, else None."""
    predicted, measured_s = model.predict(gpus), model.measured.get(gpus)
    step_s = measured_s or (predicted and predicted.step_s)
    if not step_s:
        return None
    error = NONE
    if predicted and predicted.low_s is not None and predicted.high_s is not None:
        low, high = (
            100 * (bound / predicted.step_s - 1) for bound in (predicted.low_s, predicted.high_s)
        )
        error = f"{low:+.1f} to {high:+.1f} %"
    how = "measured" if measured_s else "a guess" if predicted and predicted.far else "predicted"
    off = f"{100 * model.residuals[gpus]:+.1f} %" if measured_s else NONE
    speed = f"{gpus * batch / step_s:,.1f}"
    return gpus, how, _ms(step_s), speed, _ms(model.step_s(gpus)), error, off


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:,.1f} ms"


def why_no_model(benchmark: Benchmark, kind: str) -> str:
    """Return why the runs on that kind of data have no model."""
    if benchmark.on_cpus:
        return "CPUs computed, and share their machine's memory: nothing follows for GPUs."
    if len({run.gpus for run in benchmark.runs if run.data == kind}) < 2:
        return "Fewer than two sizes were measured: there is nothing to fit."
    return (
        "The model of real data is that of synthetic data and the speed of reading. Of synthetic "
        "data fewer than two sizes were measured, or its model does not explain them: nothing is "
        "predicted."
    )


def _misfits(model: Model, with_reading: bool) -> str:
    """Return why a model that does not explain its measurements predicts nothing."""
    sizes = ", ".join(map(str, model.misfits))
    reading = (
        " with a constant speed of reading, neither of each node nor of a storage that the nodes "
        "share"
        if with_reading
        else ""
    )
    measured = f"what was measured on {sizes} GPUs"
    return f"The model does not fit {measured}{reading}: nothing is predicted."


def _reading(model: Model) -> str:
    """Return what is known of reading, as a sentence."""
    if model.reading is None:
        return f" No measured size waits for reading. {_OWN_DISKS}"
    took = _ms(model.reading.full_node_s)
    if model.reading.shared:
        return (
            f" The nodes read from a storage that they share: it needs {took} for the images of a "
            "step of each full node."
        )
    return f" A node reads one step in {took}. {_OWN_DISKS}"


_OWN_DISKS = (
    "That each node reads from disks of its own is assumed: a storage that all share may limit "
    "larger sizes."
)


def _what_is_known(model: Model) -> str:
    """Return what the measurements say of the allreduce between nodes."""
    if max(model.measured) <= model.per_node:
        if model.network is None:
            return (
                "Only one node was measured: efficiency of several unknown. Measure one size on "
                "two nodes."
            )
        return "Only one node was measured: figures for several come only from the network."
    network = "" if model.network else " So does a measured network (bench --network)."
    if model.exposed < EXPOSED_FROM:
        return (
            "Whether an allreduce is exposed is not known yet: so far all of it may hide behind "
            "the backward pass. The intervals include that it shows at the next size. Measuring "
            f"it narrows them.{network}"
        )
    return f"An allreduce is exposed, with a probability of {model.exposed:.0%}."


def model_tables(benchmark: Benchmark, predicted: Sequence[int]) -> list[ReportTable]:
    """Return the table of predictions for each kind of data that has a model."""
    found = (
        _model(model_of(benchmark, kind), kind, benchmark, predicted)
        for kind in benchmark.settings.kinds
    )
    return [block for each in found for block in each if isinstance(block, ReportTable)]


def predicted_sizes(model: Model, more: Sequence[int] = ()) -> list[int]:
    """Return the measured sizes, the powers of two up to LARGEST_PREDICTED, and `more`, sorted."""
    powers = [2**k for k in range(LARGEST_PREDICTED.bit_length())]
    return sorted({*powers, *model.residuals, *more})


def _batch_per_gpu(benchmark: Benchmark) -> float:
    return benchmark.runs[-1].batch / benchmark.runs[-1].gpus if benchmark.runs else 0.0


def charts(
    benchmark: Benchmark, results: Sequence[SizeResult], models: Mapping[str, Model | None]
) -> list[Chart]:
    """Return the chart of images/s; none without results.

    Published runs are drawn up to four times the largest size, the model up to FARTHEST times.
    """
    if not results:
        return []
    batch, largest = _batch_per_gpu(benchmark), max(each.gpus for each in results)
    curves: list[ChartCurve] = []
    for kind in benchmark.settings.kinds:
        ours = [each for each in results if each.data == kind]
        if ours:
            points = [(float(e.gpus), *_with_bounds(e.images_per_s)) for e in ours]
            curves.append(ChartCurve(f"{kind} data", "measured", points))
        model = models.get(kind)
        if model:
            farthest = FARTHEST * max(model.residuals)
            sizes = [n for n in predicted_sizes(model) if n <= farthest and model.predict(n)]
            line = [flat(n, n * batch / model.step_s(n)) for n in sizes]
            if line:
                curves.append(ChartCurve(f"model, {kind} data", "model", line))
    for each in published_for(benchmark):
        speeds = each.images_per_s.items()
        line = [flat(int(n), v) for n, v in speeds if int(n) <= 4 * largest]
        if line:
            curves.append(ChartCurve(each.title, "published", line))
    first = results[0]
    top = max(point[0] for curve in curves for point in curve.points)
    line = [flat(n, n * first.per_gpu) for n in (first.gpus, top)]
    ideal = ChartCurve(f"as fast as on {count(first.gpus, 'GPU')}", "ideal", line)
    return [Chart(f"images/s{_simulated(benchmark)}", [ideal, *curves], logarithmic=True)]


def _with_bounds(value: Estimate) -> tuple[float, float, float]:
    low = value.value if value.low is None else value.low
    high = value.value if value.high is None else value.high
    return value.value, low, high


def _published(benchmark: Benchmark) -> list[Block]:
    found = published_for(benchmark)
    if not found:
        return []
    rows = [
        (
            each.title,
            "; ".join(f"{gpus}: {speed:,}" for gpus, speed in each.images_per_s.items()),
            each.source,
        )
        for each in found
    ]
    return [
        Text("Published runs on this GPU", 2),
        Text(
            "GPUs and images/s, as they were published: with other software, batches and networks. "
            "They show whether yours are of the right size, no more."
        ),
        ReportTable(("run", "images/s", "source"), rows, numbers=False),
    ]


def _method(benchmark: Benchmark) -> str:
    settings = benchmark.settings
    data = " and ".join(
        f"{kind} data" + (f" ({settings.data_dir})" if kind == REAL else "")
        for kind in settings.kinds
    )
    return (
        f"Each run is a launch of its own, on {data}: {count(settings.warmup, 'step')} of warm-up "
        f"that do not count, then {count(settings.steps, 'step')} that do. The sizes and repeats "
        f"came in random order, seed {benchmark.seed}; runs that were added later came in random "
        "order among themselves. The batch of a GPU is the same at every size (weak scaling)."
    )


def facts(benchmark: Benchmark) -> list[tuple[str, str]]:
    """Return what is needed to reproduce the benchmark: machines, and versions from job records."""
    about, runs = benchmark.about, benchmark.runs
    gbps, efas = about.network_gbps, about.efa_interfaces
    network = f"{gbps:g} Gbit/s always, by EC2" if gbps else "EC2 does not say"
    starts = sorted(run.facts.started_at for run in runs)
    rows: list[tuple[str, object]] = [
        ("instance types", about.types),
        ("machines", "simulated: hosts of the local EC2" if about.local else ""),
        ("nodes, GPUs or ranks of each", [about.nodes, about.per_node]),
        ("GPU of the type", "" if benchmark.on_cpus else about.gpu),
        ("GPU and precision", sorted({f"{run.gpu}, {run.precision}" for run in runs if run.gpu})),
        ("region, zones", [about.region, *about.zones]),
        ("market", about.market),
        ("placement group", about.placement_group or "none"),
        ("network", "" if about.local else network),
        ("EFA", count(efas, "interface") if efas else "none"),
        ("image", about.images),
        ("preset", sorted({run.facts.preset for run in runs})),
        ("recipe", benchmark.settings.recipe),
        ("batch of a GPU", f"{_batch_per_gpu(benchmark):g}" if runs else ""),
        ("an epoch", sorted({f"{run.images:,} images" for run in runs})),
        *versions(runs).items(),
        ("first run, last run (UTC)", [starts[0], starts[-1]] if starts else ""),
    ]
    return [(name, _listed(value)) for name, value in rows if value]


def _listed(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _commands(benchmark: Benchmark) -> list[str]:
    first: dict[tuple[int, str], str] = {}
    for run in benchmark.runs:
        first.setdefault((run.gpus, run.data), run.facts.line)
    return [first[key] for key in sorted(first)]


def _runs(benchmark: Benchmark) -> ReportTable:
    return ReportTable(
        ("job", "GPUs", "data", "repeat", "images/s", "slowest row", "fastest row", "whole run"),
        [
            (
                run.facts.job_id or NONE,
                run.gpus,
                run.data,
                run.repeat,
                f"{run.images_per_s:,.1f}",
                f"{min(speed for _, speed in run.rows):,.1f}",
                f"{max(speed for _, speed in run.rows):,.1f}",
                format_duration(run.duration_s),
            )
            for run in benchmark.runs
        ],
    )


def markdown(report: Iterable[Block], picture: str = "") -> str:
    """Return the report as Markdown. `picture` is the file with the chart; empty for none."""
    parts = []
    for block in report:
        if isinstance(block, Text):
            parts.append(f"{'#' * block.level} {block.text}".strip())
        elif isinstance(block, CommandLines):
            parts.append("\n".join(["```", *block.lines, "```"]))
        elif isinstance(block, ReportTable):
            rule = [":--" if not block.numbers else "--:"] * len(block.header)
            rows = [block.header, rule, *block.rows]
            cells = ([str(cell).replace("|", "\\|") for cell in row] for row in rows)
            parts.append("\n".join(f"| {' | '.join(row)} |" for row in cells))
        elif picture:
            parts.append(f"![{block.title}]({picture})")
    return "\n\n".join(parts) + "\n"


def html(report: Iterable[Block], data: Mapping[str, Any]) -> str:
    """Return the report as one HTML page that has all its data as JSON in it."""
    report = list(report)
    title = next((b.text for b in report if isinstance(b, Text) and b.level == 1), "")
    # A `</script>` in a string would end the script element.
    kept = json.dumps(data).replace("<", "\\u003c")
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{_STYLE}</style>\n<main>\n{''.join(map(_html, report))}</main>\n"
        f'<script type="application/json" id="data">{kept}</script></html>\n'
    )


def _html(block: Block) -> str:
    if isinstance(block, Text):
        tag = f"h{block.level}" if block.level else "p"
        return f"<{tag}>{escape(block.text)}</{tag}>\n"
    if isinstance(block, CommandLines):
        return "".join(f"<pre>{escape(line)}</pre>\n" for line in block.lines)
    if isinstance(block, Chart):
        return f"<figure>{svg(block)}<figcaption>{escape(block.title)}</figcaption></figure>\n"
    head = "".join(f"<th>{escape(name)}</th>" for name in block.header)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>\n"
        for row in block.rows
    )
    kind = "numbers" if block.numbers else "words"
    return f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>\n{rows}</tbody></table>\n'


_STYLE = """
:root { color-scheme: light dark; --line: #d0d4da; --soft: #f4f6f8; }
@media (prefers-color-scheme: dark) { :root { --line: #3a4149; --soft: #1d2228; } }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0; }
main { max-width: 54rem; margin: auto; padding: 1rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums;
  font-size: .85rem; margin: .5rem 0 1rem; }
th, td { padding: .25rem .4rem; border-bottom: 1px solid var(--line); text-align: left;
  overflow-wrap: break-word; vertical-align: top; }
.numbers th, .numbers td { text-align: right; }
pre { background: var(--soft); padding: .6rem; font-size: .75rem; white-space: pre-wrap;
  overflow-wrap: anywhere; }
figure { margin: 1rem 0; } figcaption { font-size: .85rem; text-align: center; }
svg { width: 100%; height: auto; }
@media (max-width: 40rem) { table { display: block; overflow-x: auto; }
  th, td { padding: .2rem .15rem; font-size: .68rem; } }
"""


def as_csv(results: Sequence[SizeResult]) -> str:
    """Return the results as CSV, a line for each size and kind of data; empty without results."""
    text = io.StringIO()
    lines = [each.as_data() for each in results]
    if lines:
        writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    return text.getvalue()


def as_data(benchmark: Benchmark, predicted: Sequence[int] = ()) -> dict[str, Any]:
    """Return the whole report for JSON. `predicted`: see `blocks`."""
    models = {kind: model_of(benchmark, kind) for kind in benchmark.settings.kinds}
    return {
        "name": benchmark.name,
        "settings": to_data(benchmark.settings),
        "seed": benchmark.seed,
        "on_cpus": benchmark.on_cpus,
        "local_ec2": benchmark.about.local,
        "about": to_data(benchmark.about),
        "sizes": [each.as_data() for each in by_size(benchmark)],
        "models": {
            kind: model
            and {
                "seconds": dict(model.seconds),
                "input_s": model.reading.full_node_s if model.reading else 0.0,
                "input_is_shared": bool(model.reading and model.reading.shared),
                "misfits": list(model.misfits),
                "residuals": dict(model.residuals),
                "exposed": model.exposed,
                "predictions": [
                    {**to_data(prediction), "measured_s": model.measured.get(n)}
                    for n in predicted_sizes(model, predicted)
                    if (prediction := model.predict(n))
                ],
            }
            for kind, model in models.items()
        },
        "imagenet_images": IMAGENET_IMAGES,
        "runs": to_data(benchmark.runs),
    }
