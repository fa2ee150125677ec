"""`bench` on two hosts of the lab, cut off and resumed. A stand-in takes the trainer's place."""

from __future__ import annotations

import json
import math
import re
import signal
import subprocess
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from clusterctl.bench.plan import BenchSettings, RunKey
from clusterctl.bench.results import Benchmark, in_words
from clusterctl.cli.bench import _watch
from clusterctl.domain.errors import ClusterctlError
from clusterctl.domain.findings import Finding
from clusterctl.jobs.metrics.logs import TrainingRow
from clusterctl.jobs.metrics.runs import Run
from clusterctl.node.jobs.spec import JobState
from clusterctl.operations import bench
from tests.pair import eventually

# Prints the processes that are ranks.
RANKS = "grep -l OMPI_COMM_WORLD_RANK= /proc/[0-9]*/environ 2>/dev/null; true"
TRAINER = ("--", "-m", "resnet18", "--image_size", "32", "-b", "2")


@pytest.fixture
def quiet(pair):
    """Return the cluster without running processes and without jobs."""
    pair.on(0, "rm -rf ~/.clusterctl/jobs/*")
    with pair.stand_in_trainer():
        yield pair
    pair.on(0, "rm -f /data/hold")
    pair.ctl("cancel")
    pair.ctl("clean-logs", "--jobs", "--force", "--yes")


def begun(process, run):
    """Return the job of a run, once it has started."""
    for line in process.stderr:
        started = re.match(rf"run {run} of .*\(job (\S+)\)", line)
        if started:
            return started[1]
    raise AssertionError(f"run {run} never began")


def states(pair):
    return {job["job_id"]: job["state"] for job in json.loads(pair.ctl("jobs", "--json")[1])}


@pytest.mark.lab
@pytest.mark.train
@pytest.mark.all
def test_a_benchmark_that_is_cut_off_goes_on_from_what_it_has(quiet, tmp_path):
    out = tmp_path / "kept"
    short = ("--gpus", "1,2", "--repeats", "1", "--steps", "4", "--warmup", "2", "--out", str(out))
    plan = quiet.ok("bench", *short, "--seed", "5", "--dry-run", "--json", *TRAINER)
    sizes = [run["gpus"] for run in json.loads(plan)["runs"]]
    assert sorted(sizes) == [1, 2]
    assert (json.loads(plan)["hourly_usd"], out.exists()) == (None, False)

    # Ctrl-C in the second run: it is cancelled on all nodes. The result of the first run is kept.
    quiet.on(0, f"echo {sizes[1]} >/data/hold")
    process = quiet.start("bench", *short, "--seed", "5", *TRAINER)
    first = begun(process, 1)
    second = begun(process, 2)
    # An mpirun that gets TERM before it has started its ranks goes on: its end takes 15 s more.
    eventually(lambda: quiet.on(0, RANKS), "ranks")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert (process.returncode, "clusterctl bench pair" in err) == (130, True), err
    assert states(quiet) == {first: "succeeded", second: "cancelled"}
    assert (
        "1 run to make, 1 run kept: about " in quiet.ctl("bench", *short, "--dry-run", *TRAINER)[2]
    )

    # Killed in a run: the run continues without clusterctl. The next `bench` takes its result, even
    # if that size is not requested any more. Another benchmark does not disturb the run.
    kept = (out / "runs.jsonl").read_bytes()
    process = quiet.start("bench", *short, *TRAINER)
    second = begun(process, 1)
    quiet.ends(1, "another clusterctl bench is at work in", "bench", *short, *TRAINER)
    process.kill()
    process.communicate()
    quiet.on(0, "rm /data/hold")
    with (out / "runs.jsonl").open("a") as file:
        file.write('{"gpus": 2, "data": "synt')  # as if killed during the write
    quiet.ends(0, "0 runs to make, 1 run kept", "bench", "--gpus", "1", *short[2:], *TRAINER)
    assert second in (out / "runs.jsonl").read_text()
    more = ("--gpus", "1", "--repeats", "2", *short[4:])
    text = quiet.ok("bench", *more, "--json", *TRAINER)
    assert (out / "runs.jsonl").read_bytes().startswith(kept)
    said = json.loads(text)
    ended = {id for id, state in states(quiet).items() if state == "succeeded"}
    assert {run["job"]["job_id"] for run in said["runs"]} == ended
    assert (len(ended), ended > {first, second}) == (3, True)
    one, two = said["sizes"]
    assert (one["gpus"], two["gpus"], said["seed"]) == (1, 2, 5)
    assert {len(run["rows"]) for run in said["runs"]} == {4}, "the warm-up's rows are left out"
    assert two["share_compute"] + two["share_allreduce"] == pytest.approx(1)
    # A host of the lab has this machine's speed: that has no price, whatever the host's type.
    assert (two["epoch_usd"], two["images_per_s_per_hourly_usd"]) == (None, None)
    assert (said["about"]["types"], said["about"]["per_node"]) == (["p3.2xlarge"], 1)
    page = (out / "report.html").read_text()
    firsts = [run["job"]["line"] for run in said["runs"] if run["repeat"] == 1]
    assert all(line.replace("'", "&#x27;") in page for line in firsts)
    assert (out / "scaling.svg").read_text().startswith("<svg")

    # Nothing is left to do. Other options are another benchmark. It equals itself.
    status, text, err = quiet.ctl("bench", *short, *TRAINER)
    assert (status, err.splitlines()[-2]) == (0, "0 runs to make, 3 runs kept"), err
    quiet.ends(2, "holds another benchmark: arguments was", "bench", *short, *TRAINER[:-1], "4")
    beside = [sys.executable, "-m", "clusterctl", "bench", "--compare", str(out), str(out)]
    told = subprocess.run(beside, env=quiet.environ, capture_output=True, text=True, check=True)
    assert told.stdout.count("not known: repeats are missing") == 1
    header, *choices = told.stdout.splitlines()[-5:]
    assert header.split()[-6:] == ["$", "AN", "HOUR", "90", "EPOCHS", "$"]
    assert sorted(row.split()[:4] for row in choices) == [
        *2 * [["p3.2xlarge", "(kept)", "1", "1"]],
        *2 * [["p3.2xlarge", "(kept)", "2", "2"]],
    ]
    told = subprocess.run([*beside, "--json"], env=quiet.environ, capture_output=True, check=True)
    [said] = json.loads(told.stdout)
    taken = [(each["machines"], each["gpus"]) for each in said["choices"]]
    assert taken == 2 * [("p3.2xlarge", 1), ("p3.2xlarge", 2)]


@pytest.mark.lab
@pytest.mark.train
@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        ((), 2, "--gpus is missing"),
        (("--gpus", "1,3"), 2, "wanted 3 GPUs, there are 2"),
        (("--gpus", "1,none"), 2, "write them as 1,8,16,32"),
        (("--gpus", "1", "--data-dir", "~/none"), 1, "there is no training data"),
        (("--gpus", "1", "--network"), 2, "leave out --gpus"),
        (("--network", "--dry-run"), 2, "leave out --dry-run"),
        (("--compare", "/none"), 2, "leave out --out"),
    ],
)
def test_refused(pair, tmp_path, arguments, status, says):
    pair.ends(status, says, "bench", "--out", str(tmp_path / "kept"), *arguments)
    assert not (tmp_path / "kept").exists()


def test_what_does_not_hold_for_a_run_of_bench_is_left_out():
    there = Finding.warning("log.unfinished", "imagenet_resnet_bench holds a run")
    full = Finding.error("disk.checkpoints", "1 checkpoint", "write elsewhere (-- --log_dir DIR)")
    [left] = bench.findings_of_run([there, full])
    assert left.check == "disk.checkpoints"
    assert "--log_dir" not in left.hint


def test_a_row_whose_speed_is_no_number_loses_no_run(tmp_path, monkeypatch, capsys):
    said = {"job_id": "a", "gpus": 1, "data": "synthetic", "repeat": 1}
    said.update(batch=32, nodes=1, hourly_usd=None)
    (tmp_path / "under-way.json").write_text(json.dumps(said))
    (tmp_path / "logs").mkdir()
    job = SimpleNamespace(job_id="a", state=JobState.SUCCEEDED, duration_s=9.0, report=dict)
    monkeypatch.setattr(bench, "list_jobs", lambda *_: [job])
    monkeypatch.setattr(bench, "follow", lambda *_: job)
    speeds = (100.0, math.inf, 100.0)
    rows = tuple(TrainingRow(10 + i, 0.0, speed, 0, 0, 0) for i, speed in enumerate(speeds))
    found = SimpleNamespace(job=job, runs=(Run(rows=rows),))
    monkeypatch.setattr(bench, "results_of_cluster", lambda *_: found)
    settings = BenchSettings("demo", warmup=2)
    made = Benchmark("b", settings, 1, {})
    bench.write_benchmark(tmp_path, made)
    keys = tuple(RunKey(1, "synthetic", repeat) for repeat in (1, 2))
    plan, request = bench.BenchPlan(made, keys, {}, {}), bench.BenchRequest(settings, (1,))
    monkeypatch.setattr(bench, "_start", Mock(side_effect=ClusterctlError("cut off")))
    with pytest.raises(ClusterctlError, match="cut off"):
        bench.run_benchmark(Mock(), plan, request, tmp_path, _watch(2))
    [run] = bench.read_benchmark(tmp_path).runs
    assert in_words(run).endswith("100.0 of each GPU, without 1 row whose speed is no number")
    # The second run takes as long as the first.
    assert capsys.readouterr().err.endswith(f"  {in_words(run)}; about 9.0 s left\n")


def test_a_run_without_rows_is_not_resumed_again(tmp_path, monkeypatch):
    run = {"job_id": "a", "gpus": 1, "data": "synthetic", "repeat": 1}
    said = {**run, "batch": 32, "nodes": 1, "hourly_usd": None}
    (tmp_path / "under-way.json").write_text(json.dumps(said))
    (tmp_path / "logs").mkdir()
    job = SimpleNamespace(job_id="a", state=JobState.SUCCEEDED)
    monkeypatch.setattr(bench, "list_jobs", lambda *_: [job])
    monkeypatch.setattr(bench, "follow", lambda *_: job)
    found = SimpleNamespace(job=job, runs=())
    monkeypatch.setattr(bench, "results_of_cluster", lambda *_: found)
    benchmark = SimpleNamespace(runs=(), settings=BenchSettings("demo", warmup=2))
    request = bench.BenchRequest(benchmark.settings, (1,))
    work = Mock(), bench.BenchPlan(benchmark, (), {}, {}), request, tmp_path, Mock()
    with pytest.raises(ClusterctlError, match="no row after its warm-up"):
        bench.run_benchmark(*work)
    assert bench.run_benchmark(*work) is benchmark
