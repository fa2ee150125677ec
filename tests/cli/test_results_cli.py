"""`clusterctl results --log`: no cluster, no account, no network."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from clusterctl.cli.results import how_it_went
from clusterctl.jobs.metrics.runs import read_runs
from clusterctl.node.jobs.spec import JobState
from clusterctl.operations.results import _of_job
from tests.cli.programs import call
from tests.cli.running import CommandLine
from tests.job_records import job_record
from tests.jobs.training_logs import HEADER, banner, evaluation, rows

ROWS = rows([0, 1, *range(50, 14051, 50)], speed=19200.0)
RUN = banner() + HEADER + ROWS + "Finished in 6000.5\n" + evaluation()


@pytest.mark.parametrize(
    ("command", "arguments", "says"),
    [
        ("tuning", ("demo", "--output", "file"), "'file' is a file"),
        ("bench", ("demo", "--gpus", "1", "--dry-run", "--out", "file"), "'file' is a file"),
        ("results", ("demo", "--csv", "none/x.csv"), "cannot write none/x.csv"),
    ],
)
def test_a_result_that_can_go_nowhere_is_refused_before_a_host_is_asked(
    tmp_path, capsys, monkeypatch, command, arguments, says
):
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    ran = CommandLine(tmp_path, capsys, [])(command, *arguments)
    assert (ran.status, says in ran.err) == (2, True), ran.err


@pytest.fixture
def results(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLUSTERCTL_CONFIG", "/dev/null")
    command = CommandLine(tmp_path, capsys, [])
    (tmp_path / "hvd_train.log").write_text(RUN)
    return lambda *arguments: command("results", *arguments)


@pytest.mark.parametrize("option", ["--csv", "--plot"])
def test_a_log_is_not_overwritten(results, option):
    Path("run.svg").write_text(RUN)
    refused = results("--log", "run.svg", option, "run.svg")
    assert refused.status == 2 and "overwritten" in refused.err
    assert Path("run.svg").read_text() == RUN


def test_all_rows_and_no_reference(results):
    everything = results("--log", "hvd_train.log", "--all", "--reference", "none")
    assert "of 283 rows" not in everything.err
    assert len(everything.out.splitlines()) == 2 + 2 + 283 + 3
    assert "tutorial" not in everything.out


BEGIN = {"kind": "begin", "gpus": 32, "model": "resnet50", "image_size": 224,
         "precision": "float16", "gpu": "Tesla V100-SXM2-16GB"}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "says", "mfu"),
    [
        ({}, "14.7 TFLOP/s per GPU; MFU 11.8 % on Tesla V100-SXM2-16GB, float16", 0.1178),
        ({"gpu": "NVIDIA B300"}, "14.7 TFLOP/s per GPU; MFU not known for NVIDIA B300, flo", None),
        ({"gpu": None}, "TFLOP/s and MFU: not known, it ran on no GPU", None),
        ({"model": "mine"}, "TFLOP/s and MFU: not known\n", None),
    ],
)
def test_the_use_of_the_gpus(results, tmp_path, changes, says, mfu):
    """The rows of MLPerf's log in between change nothing."""
    row = {"epoch": 1.0, "images_per_s": 19200, "loss": 7, "final_loss": 8, "learning_rate": 1}
    lines = [{**BEGIN, **changes}, *({"kind": "train", "step": n, **row} for n in (0, 50, 100))]
    mllog = ':::MLLOG {"namespace": "", "time_ms": 1, "event_type": "INTERVAL_START", "key": '
    mllog += '"epoch_start", "value": null, "metadata": {"epoch_num": 1}}\n'
    text = mllog.join(json.dumps({"run": "a", **line}) + "\n" for line in lines)
    (tmp_path / "metrics.jsonl").write_text(text)
    ran = results("--log", "metrics.jsonl")
    assert f"  {says}" in ran.out
    is_other = "model" in changes
    assert ("compared with the tutorial's run" in ran.out) is not is_other
    assert ("mine with 224 pixels: not compared with the tutorial's" in ran.err) is is_other
    [run] = json.loads(results("--log", "metrics.jsonl", "--json").out)["runs"]
    assert run["mfu"] == (None if mfu is None else pytest.approx(mfu, rel=1e-3))
    assert run["images_per_s_per_hourly_usd"] is None
    (tmp_path / "again.jsonl").write_text(text.replace('"image_size": 224', '"image_size": 32'))
    ran = results("--log", "metrics.jsonl", "again.jsonl", "--compare")
    assert "image size: 224 and 32" in ran.out + ran.err
    unit = "rank" if changes == {"gpu": None} else "GPU"
    assert (
        f"again.jsonl against metrics.jsonl, images/s of each {unit}:\n{unit.upper()}S " in ran.out
    )


def test_the_speed_by_price_is_that_of_all_of_the_jobs_nodes():
    began = datetime(2026, 11, 20, tzinfo=timezone.utc)
    job = job_record(JobState.SUCCEEDED, 0, began=began, ranks=32, list_hourly_usd=96.0)
    [run] = read_runs([RUN])
    assert _of_job(run, job).images_per_s_per_hourly_usd == pytest.approx(200)
    # After a lost node there may have been fewer of them.
    again = replace(job, status=replace(job.status, attempts=({"exit_status": 255},)))
    unpriced = replace(job, spec=replace(job.spec, list_hourly_usd=None))
    priced = [_of_job(run, one).images_per_s_per_hourly_usd for one in (again, unpriced)]
    assert priced == [None, None]


def test_several_logs_after_one_option_and_standard_input(results, tmp_path):
    for name in ("b é.log", "c.log"):
        (tmp_path / name).write_text(RUN.replace("32", "256", 1).replace("19200.0", "19199.9"))
    ran = results("--log", "hvd_train.log", "b é.log", "c.log", "hvd_train.log")
    assert ran.err.startswith("from hvd_train.log, b é.log, c.log\n")
    assert "run 2: 256 GPUs, step 14050" in ran.out
    assert "run 3" not in ran.out, "two of the files are the same run"
    done = call("clusterctl", "results", "--log", "-", "--json", stdin=RUN.encode())
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["sources"] == ["standard input"]
    assert len(data["runs"][0]["rows"]) == 283
    assert data["comparisons"][0]["top1_difference"] == pytest.approx(-0.716)


def test_logs_side_by_side_name_a_difference_beyond_the_noise_and_no_other(results, tmp_path):
    """The cluster's speed drifts: a row is near the row before. 4 % are reported, 0.2 % are not."""

    def log(name, factor, seed):
        rnd, off, lines = random.Random(seed), 0.0, [rows([0, 1])]
        for step in range(50, 30001, 50):
            off = 0.9 * off + rnd.gauss(0, 0.004)
            lines.append(rows([step], speed=19200 * factor * (1 + off)))
        (tmp_path / name).write_text(banner() + HEADER + "".join(lines))

    log("monday.log", 1, 1)
    log("alike.log", 1.002, 2)
    log("slow.log", 0.96, 3)
    ran = results("--log", "monday.log", "alike.log", "slow.log", "--compare")
    verdicts = [line for line in ran.out.splitlines() if line.startswith("32  ")]
    assert (ran.status, [line.split("  ")[-1] for line in verdicts]) == (
        1,
        ["within the noise", "REGRESSION"],
    ), ran.out
    assert ran.out.splitlines()[1].split()[:5] == ["monday.log", "32", "real", "30000", "191.8"]
    # Such a log may be one of ranks on processors.
    assert "GPU" not in ran.out and "images/s of each rank:" in ran.out
    assert ran.out.splitlines()[0].split()[:2] == ["LOG", "RANKS"]
    told = json.loads(results("--log", "monday.log", "alike.log", "--compare", "--json").out)
    assert told[0]["sizes"][0]["percent"] == pytest.approx(0.2, abs=1)
    (tmp_path / "small.log").write_text(banner(8) + HEADER + rows([0, 50, 100, 150]))
    ran = results("--log", "monday.log", "small.log", "--compare")
    assert (ran.status, "nothing was compared" in ran.err) == (3, True), ran
    # Without the trainer's banner neither ranks nor data are known.
    for name in ("monday.log", "slow.log"):
        (tmp_path / name).write_text((tmp_path / name).read_text()[len(banner()) :])
    ran = results("--log", "monday.log", "slow.log", "--compare")
    shown = [line.split() for line in ran.out.splitlines()]
    assert (shown[1][:3], shown[-1][:2]) == (["monday.log", "-", "-"], ["-", "-"]), ran.out
    assert "slow.log against monday.log, images/s:\n" in ran.out
    assert "not known: the number of ranks" in ran.err
    [told] = json.loads(results("--log", "monday.log", "slow.log", "--compare", "--json").out)
    assert [(one["gpus"], one["data"]) for one in told["sizes"]] == [(None, None)]


@pytest.mark.parametrize(
    ("state", "exit_status", "says"),
    [
        (JobState.QUEUED, None, "has not started: this is what it has written so far"),
        (JobState.RUNNING, None, "is running: this is what it has written so far"),
        (JobState.SUCCEEDED, 0, "succeeded after 1 min 30 s"),
        (JobState.FAILED, 3,
         "failed with exit status 3 after 1 min 30 s: this is what it wrote until then"),
        (JobState.CANCELLED, 143,
         "was cancelled after 1 min 30 s: this is what it wrote until then"),
        (JobState.LOST, None,
         "was lost (the head node was rebooted): this is what it wrote until then"),
    ],
)  # fmt: skip
def test_how_a_job_went(state, exit_status, says):
    began = datetime(2026, 11, 20, tzinfo=timezone.utc)
    job = job_record(state, exit_status, began=began)
    assert how_it_went(replace(job, status=replace(job.status, rebooted=True))) == says


def test_files_beside_the_table(results, tmp_path):
    ran = results("--log", "hvd_train.log", "--csv", "rows.csv", "--plot", "run é.svg")
    assert ran.status == 0, ran.err
    assert "wrote rows.csv\nwrote run é.svg\n" in ran.err
    assert "compared with the tutorial's run" in ran.out
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 285
    assert (tmp_path / "run é.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        ((), 2, " results NAME; or give --log\n"),
        (("--log", "none.log"), 2, "cannot read none.log: No such file or directory"),
        (("--log", "."), 0, ""),
        (("--log", "empty"), 2, "there is no hvd_train.log in empty"),
        (("--log", "dull.log"), 1, "no training table, evaluation or metric in dull.log"),
        (("--log", "dull.log", "--metric", "x=y(z)"), 1, "no training table"),
        (
            ("--log", "cats.log", "--metric", "cat=cat=(.*?);"),
            1,
            "in cats.log; metric cat matched 1 line, whose value 'dog' is no number",
        ),
        (("--log", "hvd_train.log", "--metric", "x"), 2, "not a metric: 'x'"),
        (("--log", "hvd_train.log", "--plot", "x.gif"), 2, "cannot draw x.gif"),
        (("--log", "hvd_train.log", "--plot", "none/x.svg"), 2, "cannot write none/x.svg"),
        (("--log", "hvd_train.log", "--csv", "none/x"), 2, "cannot write none/x"),
        (("demo", "--follow", "--plot", "none/x.svg"), 2, "there is no folder none"),
        (("--log", "hvd_train.log", "--csv", "-", "--json"), 2, "both want standard output"),
        (("--log", "hvd_train.log", "--log-dir", "x"), 2, "give one"),
        (("--log", "hvd_train.log", "--compare"), 2, "two different logs or more"),
        (("--log", "cats.log", "hvd_train.log", "--compare", "--csv", "x", "--metric", "a=(b)"), 2,
         "--compare takes no --metric and --csv"),
        (("--log", "hvd_train.log", "keras.log", "--compare"), 1,
         "no run of the trainer in keras.log: --compare compares the speeds of runs"),
        (("--log", "hvd_train.log", "--reference", "64"), 2, "'64' is not one of"),
        (("demo", "yesterday's"), 2, "yesterday's"),
        (("demo", "20261120-154501-3f2a", "more"), 2, "one cluster"),
        (("demo", "20261120-154501-3f2a", "--log-dir", "x"), 2, "one cluster"),
    ],
)  # fmt: skip
def test_refused(results, tmp_path, arguments, status, says):
    (tmp_path / "dull.log").write_text("nothing to see\n")
    (tmp_path / "cats.log").write_text("cat=dog;\n")
    (tmp_path / "keras.log").write_text("Epoch 1/1\n9/9 [====] - 1s 9ms/step - loss: 0.5\n")
    (tmp_path / "empty").mkdir()
    ran = results(*arguments)
    assert (ran.status, says in ran.err) == (status, True), ran.err
    assert "Traceback" not in ran.err
