"""Statistics compared with tables, results by size, comparisons of benchmarks, and the report."""

from __future__ import annotations

import json
import math
import random
import re
from dataclasses import asdict, replace
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest

from clusterctl.bench.network import Allreduce, AllreduceTable, NetworkFigures
from clusterctl.bench.plan import REAL, SYNTHETIC, BenchSettings, RunKey, order, parse_sizes
from clusterctl.bench.report import (
    Chart,
    ReportTable,
    as_csv,
    as_data,
    blocks,
    choice_table,
    html,
    markdown,
    published,
    published_for,
)
from clusterctl.bench.results import (
    AboutCluster,
    Benchmark,
    MeasuredRun,
    by_size,
    compare,
    configuration_differences,
    estimate_s,
    measured,
    measured_network,
    model_of,
)
from clusterctl.bench.statistics import independent, mean, ratio, t_quantile, t_tails, welch
from clusterctl.cli.bench import _compare, _report_if_it_ends_early
from clusterctl.cli.main import cli, run_command
from clusterctl.domain.errors import ClusterctlError, UsageError
from clusterctl.domain.findings import NOT_KNOWN
from clusterctl.jobs.metrics.logs import TrainingRow
from clusterctl.jobs.trainer import TrainerRun
from clusterctl.node.record import from_data, from_json, to_data, to_json
from clusterctl.operations.bench import (
    BenchPlan,
    BenchRequest,
    guess_step_s,
    locked_folder,
    open_benchmark,
    read_benchmark,
    run_benchmark,
    write_benchmark,
    write_network,
    write_report,
)
from tests.bench.machines import Machine
from tests.variants import usual

MACHINE = Machine(8, 0.335, 51e6, 60e9, 1.6e9, 3e-4, 0.006, input_s=0.395)
SETTINGS = BenchSettings("demo", data_dir="~/data/tf-imagenet")
ABOUT = AboutCluster(
    cluster="demo",
    types=("p3.16xlarge",),
    per_node=8,
    gpu="V100",
    zones=("us-east-1a",),
    price=("AWS's price list, 2026-11-23",),
)


def run_of(key, step_s):
    speed = 256 * key.gpus / step_s
    nodes = -(-key.gpus // 8)
    job = {
        "job_id": f"job-{key.gpus}-{key.repeat}",
        "preset": "gpu",
        "started_at": f"2026-11-23T0{key.repeat}:00:00+00:00",
        "line": f"mpirun -np {key.gpus} python x.py '</script>'",
        "nodes": [{"versions": {"tensorflow": "2.15.1", "kernel": "6.8.0-1015-aws"}}],
    }
    return MeasuredRun(
        key.gpus, key.data, key.repeat, ((70, speed), (90, speed)), speed, 256 * key.gpus,
        1_281_167, nodes, 24.48 * nodes, 60 + 251 * step_s, job,
    )  # fmt: skip


def benchmark(sizes=(1, 8, 16, 32, 64), repeats=5, slower=1.0, noise=0.005, seed=1):
    rnd = random.Random(seed)
    runs = []
    for key in order(SETTINGS, sizes, repeats, seed):
        machine = MACHINE if key.data == REAL else replace(MACHINE, input_s=0.0)
        step_s = machine.step_s(key.gpus) * slower * rnd.gauss(1, noise)
        runs.append(run_of(key, step_s))
    return Benchmark("bench-demo", SETTINGS, seed, ABOUT, tuple(runs))


@pytest.mark.parametrize(
    ("freedom", "t"), [(1, 12.706), (2, 4.303), (4, 2.776), (9, 2.262), (30, 2.042), (1000, 1.962)]
)
def test_students_t_is_as_in_the_tables(freedom, t):
    assert t_quantile(freedom) == pytest.approx(t, abs=5e-4)
    assert t_tails(t, freedom) == pytest.approx(0.05, abs=1e-4)


def test_intervals_hold_as_often_as_they_say():
    """They hold for 95 % of 1,000 benchmarks of five runs. Welch's test calls 5 % of pairs that are
    equal unequal."""
    rnd = random.Random(3)
    held = ratios = unequal = 0
    for _ in range(1000):
        one, two = ([rnd.gauss(1, s) for _ in range(5)] for s in (0.02, 0.01))
        both = mean(one), ratio(one, two)
        held += both[0].low <= 1 <= both[0].high
        ratios += both[1].low <= 1 <= both[1].high
        unequal += welch(one, two) < 0.05
    assert (abs(held - 950) < 25, abs(ratios - 950) < 25, abs(unequal - 50) < 25) == (True,) * 3
    assert (mean([1.0]).low, ratio([1.0], [2.0, 3.0]).low, welch([1.0], [2.0, 3.0])) == (None,) * 3


def test_welch_as_in_his_example():
    """R's t.test(extra ~ group, data = sleep): t = -1.8608, df = 17.776, p = 0.07939."""
    one = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    two = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    assert welch(one, two) == pytest.approx(0.07939, abs=1e-5)


@pytest.mark.parametrize(("length", "like_the_last"), [(60, 0), (200, 0.5), (600, 0.9)])
def test_rows_of_a_run_that_wanders_differ_no_more_often_than_repeats(length, like_the_last):
    """With rows as independent values, 23 to 65 % of such equal runs would differ beyond noise."""
    rnd, called = random.Random(1), 0

    def series():
        value, found = 0.0, []
        for _ in range(length):
            value = like_the_last * value + rnd.gauss(0, 0.004)
            found.append(1 + value)
        return found

    for _ in range(200):
        chance = welch(independent(series()), independent(series()))
        called += chance is not None and chance < 0.05
    assert called <= 20


def test_the_order_is_random_whole_and_the_same_for_a_seed():
    keys = order(SETTINGS, (1, 8), 3, seed=5)
    assert sorted(keys) == [
        RunKey(n, data, r) for n in (1, 8) for data in (REAL, SYNTHETIC) for r in (1, 2, 3)
    ]
    assert keys == order(SETTINGS, (1, 8), 3, seed=5) != order(SETTINGS, (1, 8), 3, seed=6)
    assert order(SETTINGS, (1, 8), 3, 5, done=keys[:4]) == keys[4:]
    assert parse_sizes("8, 1,8") == (1, 8)
    for wrong in ("", "0", "1,,2", "8-16", "9" * 5000, "9" * 400):
        with pytest.raises(UsageError):
            parse_sizes(wrong)


@pytest.mark.parametrize(("steps", "warmup", "every"), [(200, 50, 10), (4, 2, 1), (7, 3, 1)])
def test_the_warm_up_is_dropped_whole(steps, warmup, every):
    settings = BenchSettings("demo", steps=steps, warmup=warmup)
    assert settings.every == every
    flags = " ".join(settings.flags())
    assert f"--num_batches {steps + warmup + 1} --display_every {every} " in flags
    shown = [step for step in range(steps + warmup + 1) if step == 1 or not step % every]
    rows = [TrainingRow(s, 0.0, 1.0 if s <= warmup else 100.0, 0, 0, 0, s <= 1) for s in shown]
    kept, speed = measured(rows, warmup)
    assert (kept[0].step, kept[-1].step) == (warmup + every, warmup + steps)
    assert speed == pytest.approx(100.0)
    assert measured(rows[:2], warmup) == ((), 0.0)


def test_speed_efficiency_shares_and_money():
    found = {(each.gpus, each.data): each for each in by_size(benchmark(noise=0.0))}
    one, node, many = (found[key] for key in ((1, SYNTHETIC), (8, SYNTHETIC), (64, SYNTHETIC)))
    assert one.images_per_s.value == pytest.approx(256 / 0.335)
    assert (one.efficiency.value, one.efficiency_vs_node) == (1.0, None)
    alone, here = (MACHINE.step_s(n) for n in (8, 64))
    step_s = replace(MACHINE, input_s=0.0).step_s(64)
    assert many.efficiency.value == pytest.approx(0.335 / step_s)
    assert node.efficiency_vs_node.value == 1.0
    assert (many.shares.compute, many.shares.allreduce) == pytest.approx(
        (0.335 / step_s, 1 - 0.335 / step_s)
    )
    assert many.shares.input is None
    # A node reads a step's images in 0.395 s and computes for less: it waits for the rest.
    read = found[8, REAL]
    computed = replace(MACHINE, input_s=0.0).step_s(8)
    assert read.shares.input == pytest.approx(1 - computed / 0.395)
    assert sum((read.shares.compute, read.shares.allreduce, read.shares.input)) == pytest.approx(1)
    epoch_s = 1_281_167 / (8 * 256 / 0.395)
    assert read.epoch_usd == pytest.approx(24.48 * epoch_s / 3600)
    data = read.as_data()
    assert data["epochs_90_s"] == pytest.approx(90 * epoch_s)
    assert (alone, here) == pytest.approx((0.395, here))
    # Without a run of one GPU on synthetic data, compute and allreduce cannot be told apart.
    assert all(each.shares is None for each in by_size(benchmark(sizes=(8, 16))))


def test_the_use_of_the_gpus_and_the_speed_by_price():
    """They are shown as they are kept. A log may lack what tells them."""
    found = benchmark(sizes=(1, 8), noise=0.0)
    about = {"model": "resnet50", "image_size": 224, "precision": "float16"}
    runs = tuple(
        replace(run, **about, gpu="Tesla V100-SXM2-16GB",
                job={**run.job, "list_hourly_usd": 24.48 * run.nodes})
        for run in found.runs
    )  # fmt: skip
    kept = [from_json(MeasuredRun, to_json(run)) for run in runs]
    new = replace(found, runs=tuple(kept))
    one, eight = (each for each in by_size(new) if each.data == SYNTHETIC)
    assert one.tflops_per_gpu == pytest.approx(256 / 0.335 * 24.535e-3, rel=1e-4)
    assert one.mfu == pytest.approx(one.tflops_per_gpu / 125)
    data = eight.as_data()
    speed = eight.images_per_s.value
    assert data["images_per_s_per_hourly_usd"] == pytest.approx(speed / 24.48)
    assert (data["mfu"], data["efficiency"]) == (eight.mfu, eight.efficiency.value)
    assert "against_gpu" not in data
    text = markdown(blocks(new))
    assert f"| {one.tflops_per_gpu:.1f} | {100 * one.mfu:.1f} % |" in text
    assert f"| {speed / 24.48:,.1f} |" in text
    assert "| GPU and precision | Tesla V100-SXM2-16GB, float16 |" in text

    text = markdown(blocks(replace(new, about=replace(ABOUT, local=True))))
    assert "There are no dollars: hosts of the local EC2" in text
    assert "AWS's price" not in text

    old = by_size(found)[0].as_data()
    assert (old["tflops_per_gpu"], old["mfu"], old["images_per_s_per_hourly_usd"]) == (None,) * 3


@pytest.mark.parametrize("local", [True, False])
def test_a_benchmark_of_cpus_says_so_and_predicts_no_gpus(local):
    found = benchmark()
    runs = tuple(replace(run, job={**run.job, "preset": "cpu"}) for run in found.runs)
    about = replace(ABOUT, network_gbps=25.0, local=local)
    cpus = replace(found, runs=runs, about=about)
    where = "local EC2: CPUs of one machine, no GPUs" if local else "CPUs, no GPUs"
    report = blocks(cpus)
    text = markdown(report)
    assert text.startswith(f"# How ResNet training scales on demo ({where})\n")
    assert f"images/s ({where})" in html(report, as_data(cpus))
    assert all(where in one.title for one in report if isinstance(one, Chart))
    assert ("V100" in text, "predicted" in text, "Gbit/s" in text) == (False, False, not local)
    data = as_data(cpus)
    assert (data["on_cpus"], data["local_ec2"]) == (True, local)
    assert data["models"] == {SYNTHETIC: None, REAL: None}
    assert as_data(found)["on_cpus"] is False


def test_runs_that_contradict_each_other_have_no_headline():
    one, other = (
        run_of(RunKey(2, SYNTHETIC, repeat), step_s) for repeat, step_s in ((0, 1), (1, 2))
    )
    text = markdown(blocks(replace(benchmark(), runs=(one, other))))
    assert "The runs on 2 GPUs differ too much for a conclusion" in text
    assert " train " not in text.partition("## Speed")[0]


def test_the_model_of_real_data_is_that_of_synthetic_data_and_what_a_node_reads():
    model = model_of(benchmark(), REAL)
    assert model.reading.full_node_s == pytest.approx(0.395, rel=0.01)
    assert max(map(abs, model.residuals.values())) < 0.02
    assert model_of(benchmark(), SYNTHETIC).reading is None


def kinds_of(synthetic, real, repeats=3, spread=0.01, per_node=8):
    """Return a benchmark with these seconds of a step by size; repeats differ by the `spread`."""
    found = []
    for data, table in ((SYNTHETIC, synthetic), (REAL, real)):
        for gpus, step_s in table.items():
            for repeat in range(1, repeats + 1):
                off = spread * (repeat - (repeats + 1) / 2)
                found.append(run_of(RunKey(gpus, data, repeat), step_s * (1 + off)))
    return Benchmark("b", SETTINGS, 1, replace(ABOUT, per_node=per_node), tuple(found))


def model_rows(found, data, predicted=()):
    """Return the rows of the model of one kind of data in the report by size, as texts."""
    part = markdown(blocks(found, predicted)).split(f"## The model: {data} data")[1]
    lines = part.split("\n## ")[0].splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    return {int(row[0]): row[1:] for row in rows if row[0].isdigit()}


LEVEL_STEPS = {8: 1.0, 16: 1.0, 32: 1.0}
WITHOUT_READING = "with a constant speed of reading, neither of each node nor of a storage"


@pytest.mark.parametrize(
    "real",
    [
        {8: 1.0, 16: 1.0, 32: 1.5},  # a storage that is shared, or one node that reads slowly
        {8: 1.2, 16: 1.5, 32: 1.5},
        {8: 1.8, 16: 2.0, 32: 2.2},
        {8: 1.0, 16: 3.0, 32: 1.5},
        {8: 0.5, 16: 0.5, 32: 0.5},  # faster than without reading
        {1: 2.0, 8: 2.0, 16: 2.0},
    ],
)
@pytest.mark.parametrize("repeats", [1, 3])
def test_reading_that_the_measurements_refute_predicts_nothing(real, repeats):
    found = kinds_of({**dict.fromkeys(real, 1.0), **LEVEL_STEPS}, real, repeats)
    rows = model_rows(found, REAL, (64,))
    assert rows.keys() == {*real, 64}
    assert rows[64] == ["not known", *["–"] * 5]
    assert {rows[gpus][4] for gpus in real} == {"–"}, "an interval that the measurement refutes"
    assert WITHOUT_READING in markdown(blocks(found))
    said = as_data(found, (64,))["models"][REAL]
    assert (said["predictions"], bool(said["misfits"])) == ([], True)
    # The model of synthetic data is as good as ever.
    assert model_rows(found, SYNTHETIC, (64,))[64][0] == "predicted"


@pytest.mark.parametrize("repeats", [1, 3])
def test_a_storage_that_all_nodes_share_is_seen_at_two_sizes(repeats):
    found = kinds_of(LEVEL_STEPS, {8: 1.0, 16: 1.5, 32: 3.0}, repeats)
    said = model_of(found, REAL).predict(64)
    assert said.step_s == pytest.approx(6.0, rel=0.01)
    assert said.low_s < 5.8 < 6.2 < said.high_s < 7
    assert model_rows(found, REAL)[32][:2] == ["measured", "3,000.0 ms"]
    assert "The nodes read from a storage that they share: it needs 750.0 ms" in markdown(
        blocks(found)
    )


def test_the_interval_of_a_speed_of_reading_has_the_noise_of_the_sizes_that_wait():
    quiet, shaky = (
        model_of(kinds_of(LEVEL_STEPS, real), REAL).predict(64)
        for real in ({8: 2.0, 16: 2.0, 32: 2.0}, {8: 1.95, 16: 2.05, 32: 2.0})
    )
    assert shaky.percent > 1.3 * quiet.percent


def test_without_repeats_reading_counts_as_it_was_measured():
    said = model_of(kinds_of(LEVEL_STEPS, dict.fromkeys(LEVEL_STEPS, 2.0), 1), REAL).predict(64)
    assert said.step_s == pytest.approx(2.0, rel=0.01)
    assert said.low_s < 2 < said.high_s
    # Repeats that differ much do not hide that real data takes twice as long.
    shaky = kinds_of(LEVEL_STEPS, dict.fromkeys(LEVEL_STEPS, 2.0), 2, spread=0.4)
    assert welch([0.8, 1.2], [1.6, 2.4]) > 0.05
    assert model_of(shaky, REAL).predict(64).step_s == pytest.approx(2.0, rel=0.01)


def test_few_sizes_on_real_data_say_as_little_as_few_on_synthetic_data():
    steps = {1: 1.0, 8: 1.0, 16: 1.0, 32: 1.0}
    said = model_of(kinds_of(steps, {8: 2.0, 16: 2.0}), REAL).predict(32)
    assert (said.step_s, said.low_s) == (pytest.approx(2.0, rel=0.01), None)
    assert model_of(kinds_of(steps, {8: 2.0}), REAL) is None
    # A measured network does not tell how several nodes read.
    rows = [{"bytes": size, "seconds": 1e-4 + size * 1e-9} for size in (2**20, 2**26)]
    network = {
        "nodes": ["a", "b"], "streams": 8, "seconds": 1.0, "instance_types": ABOUT.types,
        "allreduce": [{"program": "MPI_Allreduce", "ranks": 2, "rows": rows, "error": None}],
    }  # fmt: skip
    one_node = dict.fromkeys((2, 4, 8), 1.0)
    network = from_data(NetworkFigures, network)
    found = replace(kinds_of(one_node, one_node), network=network)
    assert model_of(found, SYNTHETIC).predict(16) is not None
    assert model_of(found, REAL).predict(16) is None
    alone = replace(found, settings=replace(SETTINGS, synthetic=False))
    assert model_of(alone, REAL).predict(16) is None


@pytest.mark.parametrize("steps", [{8: 0.5, 16: 0.1, 32: 0.7}, {1: 1.0, 2: 9.0, 4: 0.1, 8: 30.0}])
def test_sizes_that_no_hypothesis_fits_are_shown_as_measured_and_predict_nothing(steps):
    found = kinds_of(steps, steps)
    rows = model_rows(found, SYNTHETIC, (64,))
    assert {gpus: row[1] for gpus, row in rows.items()} == {
        **{gpus: f"{1000 * step_s:,.1f} ms" for gpus, step_s in steps.items()},
        64: "–",
    }
    assert {row[4] for row in rows.values()} == {"–"}
    text = markdown(blocks(found))
    assert "The model does not fit what was measured on" in text
    assert "Of synthetic data fewer than two sizes were measured, or its model" in text
    assert as_data(found)["models"][REAL] is None


@pytest.mark.parametrize(
    ("synthetic", "real"),
    usual(
        2,
        [
            *[(LEVEL_STEPS, {8: 1.0}), ({}, {})],
            *[(LEVEL_STEPS, {}), ({8: 1.0}, LEVEL_STEPS), ({}, {8: 1.0})],
        ],
    ),
)
def test_a_report_of_any_part_of_the_runs(synthetic, real, tmp_path):
    found = kinds_of(synthetic, real)
    write_benchmark(tmp_path, found)
    lines = [json.dumps(asdict(run)) + "\n" for run in found.runs]
    (tmp_path / "runs.jsonl").write_text("".join(lines))
    assert "report.html" in write_report(tmp_path, (64,))
    assert _compare([tmp_path], (), True) == (0 if found.runs else NOT_KNOWN)
    assert _compare([tmp_path, tmp_path], (), True) == (0 if found.runs else NOT_KNOWN)
    assert choice_table([found, found]) is not None


@pytest.mark.parametrize("ended", [KeyboardInterrupt(), ClusterctlError("host-1 is silent")])
def test_a_report_that_fails_does_not_hide_what_ended_the_benchmark(ended, tmp_path, capsys):
    (tmp_path / "runs.jsonl").write_text("")  # there is no benchmark.json
    with pytest.raises(type(ended)) as raised, _report_if_it_ends_early(tmp_path, ()):
        raise ended
    assert raised.value is ended
    assert f"the report in {tmp_path} is not renewed: " in capsys.readouterr().err


def hostile(rnd):
    """Return a benchmark with any positive seconds, within six orders of magnitude."""
    kinds = rnd.choice([{}, {}, {"data_dir": ""}, {"synthetic": False}])
    settings = replace(SETTINGS, **kinds)
    found = []
    for kind in settings.kinds:
        spread = rnd.choice([0, 0.01, 1, 3])
        middle = rnd.uniform(spread - 3, 3 - spread)
        for gpus in rnd.sample([1, 2, 3, 4, 8, 12, 16, 32, 64, 128], rnd.randint(1, 7)):
            step_s = 10 ** (middle + rnd.uniform(-spread, spread))
            for repeat in range(rnd.randint(1, 3)):
                by = rnd.choice([1, 1, rnd.gauss(1, 0.01), 10 ** rnd.uniform(-1, 1)])
                found.append(run_of(RunKey(gpus, kind, repeat + 1), step_s * by))
    rnd.shuffle(found)
    about = replace(ABOUT, per_node=rnd.choice([1, 4, 8, 16]))
    return Benchmark("b", settings, 1, about, tuple(found))


def check_report(found):
    """Check what holds of every report: it is there, no time is below zero, and what is called
    measured was measured."""
    data, report = as_data(found, (64, 1000)), blocks(found, (64, 1000))
    assert "</main>" in html(report, data)
    json.dumps(data, allow_nan=False)
    as_csv(by_size(found))
    for size in data["sizes"]:
        for name in ("step_s", "images_per_s", "efficiency", "efficiency_vs_node"):
            low, high = size[f"{name}_low"], size[f"{name}_high"]
            assert low is None or 0 <= low <= size[name]
            assert high is None or high >= size[name]
    for kind, model in data["models"].items():
        took = {one["gpus"]: one["step_s"] for one in data["sizes"] if one["data"] == kind}
        for said in (model or {}).get("predictions", ()):
            assert said["step_s"] > 0
            assert said["low_s"] is None or 0 <= said["low_s"] <= said["step_s"] <= said["high_s"]
            measured_s = took.get(said["gpus"])
            assert said["measured_s"] == measured_s
            if said["low_s"] is not None and measured_s is not None:
                assert said["low_s"] <= measured_s <= said["high_s"]
        rows = model_rows(found, kind, (64, 1000))
        assert {64, 1000} <= rows.keys()
        shown = {gpus: row[1] for gpus, row in rows.items() if row[0] == "measured"}
        if model:
            assert shown == {gpus: f"{1000 * t:,.1f} ms" for gpus, t in took.items()}


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_measured_the_report_is_possible(seed):
    check_report(hostile(random.Random(seed)))


@pytest.mark.all
def test_whatever_else_is_measured_the_report_is_possible():
    for seed in range(100, 200):
        check_report(hostile(random.Random(seed)))


def test_the_guess_before_the_first_run_is_of_the_same_gpu_and_precision():
    def guess(gpu, **run):
        job = SimpleNamespace(preset="gpu", run=TrainerRun(ranks=8, **run))
        return guess_step_s(AboutCluster(gpu=gpu), job)

    # Tutorial: 143,558 images/s on 256 GPUs in half precision; DLPerf: 9,515 on 32 in single.
    assert guess("V100", batch_size=256) == pytest.approx(256 * 256 / 143558)
    assert guess("V100", batch_size=128, fp16=False) == pytest.approx(128 * 32 / 9515)
    assert guess("A100", batch_size=128, fp16=False) is None, "no run in single precision is known"
    assert guess("H100") is None, "its source does not say the precision"
    assert guess("V100", model="resnet18") is None
    assert guess("V100", image_size=448) is None, "its steps take about four times as long"


def test_figures_of_the_network_are_kept_beside_the_runs_and_taken_into_the_model(tmp_path):
    names = ("demo-0", "demo-1")
    rows = tuple(Allreduce(s, 1e-4 + s * 1e-9, 0.0) for s in (2**20, 2**24, 2**26))
    figures = NetworkFigures(
        names, 8, 1.0, instance_types=("p3.16xlarge",), allreduce=(AllreduceTable("MPI", 2, rows),)
    )
    write_network(tmp_path / "new", figures)  # before the benchmark: the folder is made
    alone = benchmark(sizes=(1, 8))
    write_benchmark(tmp_path / "new", alone)
    kept = replace(alone, network=read_benchmark(tmp_path / "new").network)
    # 102 MB in one message of 128 MiB or less, by default.
    took = measured_network(kept)
    assert (took.nodes, took.latency_s) == (2, pytest.approx(1e-4))
    assert took.transfer_s == pytest.approx(4 * 25_557_032 * 1e-9)
    line = "mpirun -x HOROVOD_FUSION_THRESHOLD=16777216 python x.py --fp16_allreduce"
    runs = [replace(run, job={**run.job, "line": line}) for run in kept.runs]
    took = measured_network(replace(kept, runs=tuple(runs)))
    assert (took.latency_s, took.transfer_s) == pytest.approx((4e-4, 2 * 25_557_032 * 1e-9))
    # Of other machines they tell nothing.
    assert measured_network(replace(kept, about=replace(ABOUT, types=("p5.48xlarge",)))) is None
    assert measured_network(alone) is None
    (tmp_path / "new" / "network.json").write_text('{"nodes": 3}')
    with pytest.raises(ClusterctlError, match=r"cannot read .*/network.json: nodes: "):
        read_benchmark(tmp_path / "new")


def test_the_report_says_whether_an_allreduce_is_exposed():
    fast = tuple(run_of(key, 0.335) for key in order(SETTINGS, (1, 8, 16, 32), 2, 1))
    flat = markdown(blocks(replace(benchmark(sizes=()), runs=fast)))
    assert "Whether an allreduce is exposed is not known yet" in flat
    # The interval at twice the size is wide upwards only: the step may not become shorter.
    [row] = [one for one in flat.splitlines() if one.startswith("| 64 | predicted")][:1]
    low, high = map(float, re.findall(r"[+-][\d.]+", row)[:2])
    assert -6 < low < 0 < 10 < high
    grown = markdown(blocks(benchmark(sizes=(1, 8, 16, 32), repeats=2)))
    assert re.search(r"An allreduce is exposed, with a probability of ([5-9]\d|100)%", grown)


def test_a_regression_beyond_the_noise_is_named_and_noise_is_not():
    base = benchmark()
    names = {d.verdict for d in compare(base, benchmark(slower=1.03, seed=2))}
    assert names == {"REGRESSION"}
    assert {d.verdict for d in compare(base, benchmark(slower=1 / 1.03, seed=2))} == {"faster"}
    other = benchmark(slower=1.03, seed=2)
    other = replace(other, about=replace(other.about, types=("p3.2xlarge",)))
    compared = compare(base, other)
    assert [(d.verdict, d.is_regression) for d in compared] == [("slower", False)] * len(compared)
    called = sum(
        each.beyond for seed in range(2, 42) for each in compare(base, benchmark(seed=seed))
    )
    assert called <= 8, "of 400 comparisons of equals"
    once = compare(base, benchmark(repeats=1, slower=2.0))
    assert {(d.chance, d.beyond) for d in once} == {(None, False)}
    assert compare(base, replace(base, runs=())) == []


def test_choices_are_by_speed_with_what_a_whole_training_costs():
    """The tutorial's 1 and 3 nodes, of two types: one with a spot price, one without a price."""

    def of(name, factor, usd, **about):
        found = benchmark(sizes=(8, 24), noise=0.0, slower=factor)
        found = replace(found, about=replace(ABOUT, types=(name,), **about))
        runs = (replace(run, hourly_usd=usd and usd * run.nodes) for run in found.runs)
        return replace(found, runs=tuple(run for run in runs if run.data == SYNTHETIC))

    clusters = [
        of("p3.16xlarge", 1.0, 24.48, market=("on-demand",)),
        of("p3dn.24xlarge", 0.8, 9.0, market=("spot",)),
        of("p2.8xlarge", 4.0, None),
    ]
    # A small data set makes its epochs short, and the training no faster.
    small = tuple(replace(run, images=499) for run in clusters[2].runs)
    clusters[2] = replace(clusters[2], runs=small)
    table = choice_table(clusters)
    assert table.header[-3:] == ("$ an hour", "90 epochs", "$")
    assert [row[:3] for row in table.rows] == [
        ("p3dn.24xlarge spot", 3, 24),
        ("p3.16xlarge", 3, 24),
        ("p3dn.24xlarge spot", 1, 8),
        ("p3.16xlarge", 1, 8),
        ("p2.8xlarge", 3, 24),
        ("p2.8xlarge", 1, 8),
    ]
    [size] = [each for each in by_size(clusters[0]) if each.gpus == 24]
    hours = 90 * 1_281_167 / size.images_per_s.value / 3600
    assert [row[4] for row in table.rows] == [*4 * ["1,281,167"], "499", "499"]
    assert [row[6] for row in table.rows] == ["27.00", "73.44", "9.00", "24.48", "–", "–"]
    assert table.rows[1][-1] == f"{hours * 73.44:,.2f}"
    assert table.rows[-1][-1] == "–"


def test_what_differs_beside_the_speed_names_versions():
    def with_versions(found, **versions):
        job = {**found.runs[0].job, "nodes": [{"versions": versions}]}
        return replace(found, runs=tuple(replace(run, job=job) for run in found.runs))

    base = with_versions(benchmark(), tensorflow="2.15.1", driver="535")
    other = with_versions(benchmark(slower=1.1), tensorflow="2.15.1", driver="550")
    assert configuration_differences(base, base) == []
    assert configuration_differences(base, other) == ["driver: 535 and 550"]
    tuned = replace(base.settings, variables=("HOROVOD_FUSION_THRESHOLD=0",))
    assert configuration_differences(base, replace(base, settings=tuned)) == [
        "variables: none and HOROVOD_FUSION_THRESHOLD=0"
    ]


def test_choices_of_the_same_machines_have_the_name_of_their_benchmark():
    monday, friday = (replace(benchmark(sizes=(8,)), name=name) for name in ("monday", "friday"))
    names = {row[0] for row in choice_table([monday, friday]).rows}
    [machines] = {row[0] for row in choice_table([monday]).rows}
    assert names == {f"{machines} (monday)", f"{machines} (friday)"}


def test_the_time_that_is_left():
    keys = order(SETTINGS, (8,), 2, 1)
    empty = replace(benchmark(), runs=())
    assert estimate_s(empty, keys, None) is None
    assert estimate_s(empty, keys, 0.4) == pytest.approx(4 * (60 + 251 * 0.4))
    some = benchmark(noise=0.0, sizes=(1,))
    assert estimate_s(some, keys, None) == pytest.approx(4 * some.runs[0].duration_s, rel=0.01)


class Page(HTMLParser):
    """An HTML parser that fails at an unclosed tag, and collects what a browser would load."""

    def __init__(self):
        super().__init__()
        self.open, self.loads = [], []

    def handle_starttag(self, tag, attributes):
        if tag != "meta":
            self.open.append(tag)
        self.loads += [v for k, v in attributes if k in ("src", "href", "srcset")]

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_loads_nothing_and_holds_its_data():
    found = benchmark()
    text = html(blocks(found, (128,)), as_data(found, (128,)))
    page = Page()
    page.feed(text)
    assert (page.open, page.loads) == ([], [])
    assert "url(" not in text
    assert text.count("</script>") == 1, "a command line ended the data"
    kept = json.loads(re.search(r'id="data">(.*)</script>', text)[1])
    assert [size["gpus"] for size in kept["sizes"][::2]] == [1, 8, 16, 32, 64]
    assert 128 in [p["gpus"] for p in kept["models"][SYNTHETIC]["predictions"]]
    for said in (
        "6.8.0-1015-aws",
        "p3.16xlarge",
        "AWS&#x27;s price list",
        "seed 1;",
        "mpirun -np 64",
    ):
        assert said in text, said
    assert "prefers-color-scheme: dark" in text
    assert "nan" not in text.partition("<script")[0]


def test_markdown_and_csv_have_the_same_figures():
    found = benchmark()
    results = by_size(found)
    lines = markdown(blocks(found), "scaling.svg").splitlines()
    rows = [line for line in lines if line.startswith("| 64 | synthetic | 5 | ")]
    assert f" {results[-1].images_per_s.value:,.1f} " in rows[0]
    assert "![images/s](scaling.svg)" in lines
    widths = {block.header: {len(row) for row in block.rows} for block in blocks(found)
              if isinstance(block, ReportTable)}  # fmt: skip
    assert all(found <= {len(header)} for header, found in widths.items())
    header, *values = as_csv(results).splitlines()
    assert len(values) == len(results)
    assert {line.count(",") for line in values} == {header.count(",")}
    assert markdown(blocks(replace(found, runs=()))).count("No run has finished yet.") == 1


def test_an_interval_without_an_end_is_json_that_other_programs_read(tmp_path):
    shaky = benchmark(sizes=(1, 8), repeats=2, noise=0.0)
    runs = tuple(run_of(run.key, run.step_s * run.repeat) for run in shaky.runs)
    shaky = replace(shaky, runs=runs)
    first = by_size(shaky)[0]
    assert (first.images_per_s.high, first.images_per_s.percent) == (None, math.inf)
    assert 0 < first.images_per_s.low < first.images_per_s.value
    for said in (as_data(shaky), to_data(compare(shaky, shaky))):
        json.dumps(said, allow_nan=False)
    assert "over 100 %" in markdown(blocks(shaky))
    assert "inf" not in as_csv(by_size(shaky))


def test_a_folder_goes_on_with_the_machines_as_they_are_now(tmp_path):
    about = replace(ABOUT, region="us-east-1", images=("ami-1",))
    one_node = replace(about, nodes=1, hourly_usd=(24.48,))
    write_benchmark(tmp_path, replace(benchmark(), about=one_node))
    grown = replace(about, nodes=4, hourly_usd=(24.48,) * 4)
    assert open_benchmark(tmp_path, SETTINGS, 7, grown).about == grown, "or 32 GPUs have no price"
    for other in ({"images": ("ami-2",)}, {"efa_interfaces": 4}, {"per_node": 4}):
        with pytest.raises(
            UsageError, match=f"{next(iter(other)).split('_')[0]}.* of the machines"
        ):
            open_benchmark(tmp_path, SETTINGS, 7, replace(grown, **other))


def test_a_report_of_a_folder_whose_only_run_was_cut_short(tmp_path):
    write_benchmark(tmp_path, benchmark())
    (tmp_path / "runs.jsonl").write_text('{"gpus": 1, "da')
    assert "report.html" in write_report(tmp_path)
    [lost] = read_benchmark(tmp_path).damaged
    assert "runs.jsonl, line 1: " in lost


def test_a_damaged_run_is_told_and_the_others_count(tmp_path, capsys):
    found = benchmark()
    write_benchmark(tmp_path, found)
    first, *rest = [to_json(run) for run in found.runs]
    (tmp_path / "runs.jsonl").write_text("\n".join([first[:70], *rest, ""]))
    read = read_benchmark(tmp_path)
    assert read.runs == found.runs[1:]
    assert _compare([tmp_path], (), True) == 0
    assert f"a run is lost: {tmp_path / 'runs.jsonl'}, line 1: not JSON" in capsys.readouterr().err
    (tmp_path / "benchmark.json").write_text('{"settings": {"cluster": "demo"}, "about": {}}')
    with pytest.raises(ClusterctlError, match=r"cannot read .*/benchmark.json: seed: missing"):
        read_benchmark(tmp_path)
    with pytest.raises(UsageError, match=r"there is no benchmark in .*/runs.jsonl"):
        read_benchmark(tmp_path / "runs.jsonl")  # as for a folder without one


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"gpus": 0}, "gpus: expected at least 1, got 0"),
        ({"images_per_s": 0}, "images_per_s: not a speed: 0.0"),
        ({"images_per_s": -1.5}, "images_per_s: not a speed: -1.5"),
        ({"rows": []}, "rows: expected rows with speeds"),
        ({"job": {"nodes": None}}, "job.nodes: expected an array, got None"),
        ({"job": {"nodes": [{"versions": 7}]}}, "job.nodes[0].versions: expected an object, got 7"),
    ],
)
def test_a_run_that_nobody_can_have_measured_is_told(tmp_path, wrong, told):
    write_benchmark(tmp_path, benchmark())
    (tmp_path / "runs.jsonl").write_text(
        json.dumps({**to_data(benchmark().runs[0]), **wrong}) + "\n"
    )
    assert read_benchmark(tmp_path).damaged == (f"{tmp_path / 'runs.jsonl'}, line 1: {told}",)
    assert "report.html" in write_report(tmp_path)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"per_node": "x"}, "about.per_node: expected an integer, got 'x'"),
        ({"per_node": -8}, "about: per_node: expected at least 1, got -8"),
        ({"types": 5}, "about.types: expected an array, got 5"),
    ],
)
def test_facts_about_machines_that_reports_cannot_read(tmp_path, wrong, told):
    write_benchmark(tmp_path, benchmark())
    file = tmp_path / "benchmark.json"
    kept = json.loads(file.read_text())
    file.write_text(json.dumps({**kept, "about": {**kept["about"], **wrong}}))
    with pytest.raises(ClusterctlError) as caught:
        read_benchmark(tmp_path)
    assert caught.value.message == f"cannot read {file}: {told}"


UNDER_WAY = {"job_id": "a", "gpus": 1, "data": "synthetic", "repeat": 1, "batch": 32, "nodes": 1}


@pytest.mark.parametrize(
    "content", ['{"job_id": "a"', json.dumps({**UNDER_WAY, "gpus": 0, "hourly_usd": None})]
)
def test_a_damaged_record_of_a_run_under_way_starts_no_other(tmp_path, content):
    write_benchmark(tmp_path, benchmark())
    (tmp_path / "under-way.json").write_text(content)
    plan = BenchPlan(benchmark(), (RunKey(1, SYNTHETIC, 1),), {}, {})
    with pytest.raises(ClusterctlError, match=r"cannot read .*/under-way.json") as refused:
        run_benchmark(None, plan, BenchRequest(SETTINGS, (1,)), tmp_path, None)
    assert "clusterctl jobs" in refused.value.hint


def test_two_benchmarks_do_not_share_a_folder(tmp_path):
    refused = pytest.raises(ClusterctlError, match="another clusterctl bench is at work")
    with locked_folder(tmp_path), refused, locked_folder(tmp_path):
        pass
    with locked_folder(tmp_path):
        pass


def test_published_runs_name_their_source_and_no_gpu_that_nobody_measured():
    assert {run.gpu for run in published()} == {"V100", "A100", "H100"}
    assert all(len(run.source) > 10 for run in published())


def test_published_runs_are_shown_for_the_same_work_only():
    def report(preset="gpu", **other):
        work = {"model": "resnet50", "image_size": 224, "precision": "float16", **other}
        runs = [replace(r, job={**r.job, "preset": preset}, **work) for r in benchmark().runs]
        return markdown(blocks(replace(benchmark(), runs=tuple(runs))))

    in_half, in_single, unknown = "| DGX-1 V100-16, TF1", "InfiniBand EDR", "not stated |"
    assert in_half in report() and unknown in report() and in_single not in report()
    single = report(precision="float32")
    assert in_single in single and unknown in single and in_half not in single
    of_unknown = report(precision=None)
    assert unknown in of_unknown and in_half not in of_unknown and in_single not in of_unknown
    both = [replace(r, model="resnet50", image_size=224, precision=precision)
            for r in benchmark().runs for precision in ("float16", "float32")]  # fmt: skip
    found = [run.title for run in published_for(replace(benchmark(), runs=tuple(both)))]
    assert found and found == [run.title for run in published() if run.title in found], "each once"
    for others in (
        *(report("cpu"), report(model="resnet101"), report(image_size=64)),
        *(report(image_size=448), markdown(blocks(benchmark()))),  # the logs lack what was trained
    ):
        assert "Published runs" not in others


@pytest.mark.parametrize("flag", ["--num_batches", "--num_epochs=3", "--log_dir=x", "--clear_log"])
def test_flags_that_bench_sets_itself_are_refused_and_values_like_its_own_are_not(flag):
    with pytest.raises(UsageError, match=f"bench sets {flag.partition('=')[0]} itself"):
        replace(SETTINGS, arguments=(flag,)).check_arguments()
    replace(SETTINGS, arguments=("--batch_size", str(SETTINGS.every))).check_arguments()


@pytest.mark.parametrize(
    ("words", "option"),
    [(["--compare", "b1", "--gpus", "4"], "--gpus"), (["--compare", "b1", "--out", "o"], "--out")],
)
def test_an_option_that_a_comparison_makes_no_use_of_is_refused(capsys, words, option):
    assert run_command(cli, ["bench", *words]) == 2
    assert f"--compare makes no use of {option}" in capsys.readouterr().err


@pytest.mark.parametrize("way", [["demo", "--network"], ["--compare", "b1"]])
def test_the_accounts_options_go_with_each_way(capsys, tmp_path, monkeypatch, way):
    monkeypatch.setenv("CLUSTERCTL_HOME", str(tmp_path))
    assert run_command(cli, ["bench", *way, "--region", "us-east-1", "--profile", "nobody"])
    assert "makes no use" not in capsys.readouterr().err


def test_a_kept_benchmark_predicts_further_sizes(tmp_path, capsys):
    found = kinds_of(LEVEL_STEPS, {})
    write_benchmark(tmp_path, found)
    lines = [json.dumps(asdict(run)) + "\n" for run in found.runs]
    (tmp_path / "runs.jsonl").write_text("".join(lines))
    assert run_command(cli, ["bench", "--compare", str(tmp_path), "--predict", "77"]) == 0
    assert "\n77  " in capsys.readouterr().out
    lines = [json.dumps(asdict(replace(r, job={"preset": "cpu"}))) + "\n" for r in found.runs]
    (tmp_path / "runs.jsonl").write_text("".join(lines))
    assert run_command(cli, ["bench", "--compare", str(tmp_path), "--predict", "77"]) == 0
    assert "no prediction for synthetic data: CPUs computed" in capsys.readouterr().err
    two = ["bench", "--compare", str(tmp_path), str(tmp_path), "--predict", "77"]
    assert run_command(cli, two) == 2
