"""Results from log files: which files are read; CSV, JSON and pictures; and the written files."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from clusterctl.bench.chart import picture
from clusterctl.domain.errors import UsageError
from clusterctl.jobs.metrics.logs import parse_definition
from clusterctl.jobs.metrics.reference import REFERENCES, compare
from clusterctl.jobs.metrics.runs import read_runs
from clusterctl.node.jobs.spec import JobState
from clusterctl.node.record import finite, to_data
from clusterctl.operations import results
from clusterctl.operations.results import (
    TABLE_COLUMNS,
    LogText,
    NoResults,
    as_csv,
    cat_command,
    check_picture,
    decoded,
    folder_command,
    log_folders,
    metric_charts,
    read_log_files,
    results_of,
    run_charts,
    write_result,
)
from tests.job_records import JOB, job_record
from tests.jobs.training_logs import HEADER, banner, evaluation, rows

TRAINING = banner() + HEADER + rows([0, 1, *range(50, 14051, 50)]) + "Finished in 6000.5\n"
SVG = "{http://www.w3.org/2000/svg}"
KERAS = "Epoch 1/1\n4/4 - 1s - loss: 1.3 - accuracy: 0.25\n"
NAN = banner() + rows([0, 1]) + "    50   0.3 19347.5    nan    inf 0.10353\n"


def read(*texts, metrics=()):
    logs = [LogText(f"log {number}", text) for number, text in enumerate(texts)]
    return results_of(logs, [parse_definition(text) for text in metrics])


def test_metrics_are_read_where_there_is_no_table_or_where_they_are_asked_for():
    assert [series.name for series in read(KERAS).metrics] == ["train:loss", "train:accuracy"]
    both = read(TRAINING, KERAS)
    assert (len(both.runs), both.metrics) == (1, ())
    asked = read(TRAINING, KERAS, metrics=["x=loss: (.*?) "])
    assert [point.value for point in asked.metrics[0].points] == [1.3]
    assert len(asked.runs) == 1


def test_the_hint_of_a_job_without_results_names_its_own_log(monkeypatch):
    """Not the latest job's, which may be another."""
    monkeypatch.setattr(results, "find", lambda *_, **__: job_record(JobState.FAILED, 1))
    monkeypatch.setattr(results, "read_log", lambda access, job, write: write(b"nothing"))
    monkeypatch.setattr(results, "_logs", lambda *_: [])
    access = SimpleNamespace(cluster=SimpleNamespace(name="demo"))
    for job_id in (JOB, None):
        with pytest.raises(NoResults) as none:
            results.results_of_cluster(access, job_id)
        assert f"clusterctl logs demo {JOB}; other jobs: " in none.value.hint


@pytest.mark.parametrize("texts", [(), ("",), ("nothing\n", "\0\ufffd"), (HEADER,)])
def test_logs_without_results_are_an_error(texts):
    with pytest.raises(NoResults, match="no training table, evaluation or metric in"):
        read(*texts)
    with pytest.raises(NoResults):
        read(*texts, metrics=["x=(y)"])


def test_files_and_folders(tmp_path):
    folder = tmp_path / "we ird'\"; é"
    folder.mkdir()
    (folder / "hvd_train.log").write_text(TRAINING)
    (folder / "eval_hvd_train.log").write_bytes(b"\xff\xfe\n" + evaluation().encode())
    logs = read_log_files([str(folder)])
    assert [Path(log.name).name for log in logs] == ["hvd_train.log", "eval_hvd_train.log"]
    [run] = results_of(logs).runs
    assert run.result is not None
    (folder / "hvd_train.log").rename(folder / "log")  # the name that `fetch` uses
    assert Path(read_log_files([str(folder)])[-1].name).name == "log"
    with pytest.raises(UsageError, match="there is no hvd_train.log in"):
        read_log_files([str(tmp_path)])
    with pytest.raises(UsageError, match="cannot read .*: No such file"):
        read_log_files([str(tmp_path / "none")])
    (tmp_path / "empty").touch()
    assert [log.text for log in read_log_files([str(tmp_path / "empty")])] == [""]


def test_csv_has_every_row():
    text = as_csv(read(TRAINING + evaluation()), metrics=False)
    lines = list(csv.DictReader(io.StringIO(text)))
    assert tuple(lines[0]) == TABLE_COLUMNS
    assert [line["kind"] for line in lines] == ["train"] * 283 + ["eval"]
    first, last = lines[2], lines[-1]
    assert (first["run"], first["step"], first["images_per_s"]) == ("1", "50", "19000.0")
    assert (first["top1"], last["top1"], last["learning_rate"]) == ("", "75.0", "")
    assert last["checkpoint_time"] == "2026-11-20 10:00:00"


def test_csv_of_metrics_with_hostile_names():
    found = read("dice=0.5\n", metrics=['a,"b"\n=dice=(.*)'])
    lines = list(csv.reader(io.StringIO(as_csv(found, metrics=True))))
    assert lines == [["metric", "epoch", "line", "value"], ['a,"b"', "", "1", "0.5"]]


def test_json_is_json_whatever_the_loss():
    found = read(NAN)
    reference = REFERENCES[0]
    compared = replace(found, comparisons=(compare(found.runs[0], reference),))
    data = json.loads(json.dumps(finite(to_data(compared)), allow_nan=False))
    [run] = data["runs"]
    assert run["not_a_number_from"] == 50
    assert run["rows"][2]["loss"] is None
    assert run["rows"][2]["final_loss"] is None
    assert data["comparisons"][0]["reference"]["name"] == "imagenet-32"
    metrics = {one["name"]: one["points"] for one in to_data(read(KERAS))["metrics"]}
    assert metrics["train:loss"] == [{"line": 2, "epoch": 1, "value": 1.3}]


def drawn(charts, title="") -> ElementTree.Element:
    """Return the picture of the charts as XML, which it has to be."""
    return ElementTree.fromstring(picture(charts, title))


def lines_of(root) -> list[list[str]]:
    """Return the points of each line of a picture."""
    return [line.get("points").split() for line in root.iter(f"{SVG}polyline")]


@pytest.mark.parametrize("text", [NAN, rows([0]), rows([0, 1]), evaluation(), TRAINING + NAN])
def test_a_picture_is_drawn_of_any_rows(text):
    charts = run_charts(read(text).runs, REFERENCES[0])
    root = drawn(charts)
    titles = [one.text for one in root.iter(f"{SVG}text") if one.get("font-weight")]
    assert titles == ["loss", "learning rate", charts[2].title, "top-1 in %"]
    for points in lines_of(root):
        assert all(0 <= float(x) <= 760 and 0 <= float(y) <= 380 for x, y in
                   (point.split(",") for point in points))  # fmt: skip


@pytest.mark.parametrize(
    ("values", "lines"),
    [
        ("1 nan 3 4", 2),
        ("nan", 0),
        ("0 0", 1),
        ("-5 -4", 1),
        ("1e308 -1e308 2", 1),
        ("1e-320 2e-320", 1),
        ("inf 1 -inf", 1),
    ],
)
def test_any_values_of_a_metric_make_a_picture(values, lines):
    text = "".join(f"x={value}\n" for value in values.split())
    [chart] = metric_charts(read(text, metrics=["$<a>\x1b&$_{=x=(.*)"]).metrics)
    root = drawn([chart], "a\udc80 <log>")
    assert len(lines_of(root)) == lines
    labels = [one.text for one in root.iter(f"{SVG}text")]
    assert labels[0] == "$<a>\ufffd&$_{"
    assert root.get("aria-label") == "a\ufffd <log>"
    assert ("nothing in the log" in labels) is not lines


def test_what_the_charts_show():
    gap = banner() + rows([0, 1, 50, 100, 150, 5000, 5050])
    loss, rate, speed, top1 = run_charts(read(gap).runs, REFERENCES[0])
    assert [curve.label for curve in loss.curves] == ["tutorial, 32 GPUs", "this run, 32 GPUs"]
    ours = [y for _, y, *_ in loss.curves[1].points]
    assert [y != y for y in ours] == [False] * 5 + [True, False, False], "no line over the hole"
    assert speed.title == "images/s per GPU"
    speeds = [y for _, y, *_ in speed.curves[1].points]
    assert [y != y for y in speeds][:3] == [True, True, False], "the start is left out"
    assert speeds[2] == 19000.0 / 32
    assert [[y for _, y, *_ in curve.points] for curve in top1.curves] == [[75.716]]
    assert rate.x_label == "epoch"
    other = gap.replace("Found 1281167", "Found 1000")
    charts = run_charts(read(other).runs, REFERENCES[0])
    assert [len(chart.curves) for chart in charts] == [1, 1, 1, 0], "other images: ours alone"
    # All rows have 0.0 epochs: the x axis has steps, so the tutorial's epochs are not drawn.
    short = "Horovod size: 2\nUsing a learning rate of 0.1\n" + rows([0, 1, 10], 1e-6)
    loss, *_ = run_charts(read(short).runs, REFERENCES[2])
    [curve] = loss.curves
    assert (loss.x_label, [x for x, *_ in curve.points]) == ("step", [0.0, 1.0, 10.0])


@pytest.mark.parametrize("name", ["run.gif", "run", "run.", ".svg", "run.svg.exe", "run.png"])
def test_no_picture_of_that_name(name):
    with pytest.raises(UsageError, match="cannot draw"):
        check_picture(Path(name))


def test_files_are_replaced_in_one_step(tmp_path):
    target = tmp_path / "rows é.csv"
    target.write_text("old")
    link = tmp_path / "link.csv"
    link.symlink_to(target)
    write_result(link, b"new")
    assert (target.read_bytes(), link.is_symlink()) == (b"new", True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.csv", "rows é.csv"]
    write_result(Path(os.devnull), b"new")
    assert not Path(os.devnull).is_file()
    for place in (tmp_path, tmp_path / "none" / "rows.csv", target / "rows.csv"):
        with pytest.raises(UsageError, match="cannot write"):
            write_result(place, b"new")


@pytest.mark.parametrize(
    ("line", "folders"),
    [
        ("mpirun -np 2 python train_imagenet_resnet_hvd.py --synthetic",
         [("imagenet_resnet", "hvd_train.log")]),
        ("mpirun python -W ignore /x/train_imagenet_resnet_hvd.py --log_dir a --log_dir 'b c'",
         [("b c", "hvd_train.log")]),
        ("mpirun python train_imagenet_resnet_hvd.py --log_dir=/a --log_name=x.log\n"
         "mpirun python train_imagenet_resnet_hvd.py --log_dir=/a --log_name=x.log --eval",
         [("/a", "x.log")]),
        ("mpirun python train_imagenet_resnet_hvd.py --log_dir a && "
         "mpirun python train_imagenet_resnet_hvd.py --log_dir b --eval",
         [("a", "hvd_train.log"), ("b", "hvd_train.log")]),
        ("mpirun python train_imagenet_resnet_hvd.py --log_dir", [("imagenet_resnet",) * 1
         + ("hvd_train.log",)]),
        ("mpirun python mine.py --log_dir a", []),
        ("mpirun python 'train_imagenet_resnet_hvd.py", []),
        ("", []),
    ],
)  # fmt: skip
def test_log_folders_of_a_line(line, folders):
    assert log_folders(line) == folders


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("logs/hvd_train.log", True),
        ("~/we ird'\"; é.log", True),
        ("~/-n", True),
        ("none/hvd_train.log", False),
        ("~", None),
        ("$(touch boo)", False),
        ("; touch boo", False),
    ],
)
def test_the_command_that_reads_on_the_head_node(tmp_path, path, found):
    home = tmp_path / "ho me"
    logs = home / "examples/horovod/tensorflow/logs"
    logs.mkdir(parents=True)
    for file in (logs / "hvd_train.log", home / "we ird'\"; é.log", home / "-n"):
        file.write_text("its text")
    done = subprocess.run(
        ["sh", "-c", cat_command(path)], env={**os.environ, "HOME": str(home)},
        capture_output=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    if found:
        assert (done.returncode, decoded(done.stdout)) == (0, "its text"), done.stderr
    else:
        assert done.returncode == (44 if found is False else 1)
    assert not list(tmp_path.rglob("boo"))


@pytest.mark.parametrize(
    ("path", "there"),
    [("lo gs'\"; é", True), ("~/mine", True), ("~", True), ("nada", False), ("~/file", False),
     ("$(touch boo)", False), ("{0}", False)],
)  # fmt: skip
def test_the_command_that_looks_for_a_folder(tmp_path, path, there):
    (tmp_path / "examples/horovod/tensorflow/lo gs'\"; é").mkdir(parents=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "file").touch()
    done = subprocess.run(
        ["sh", "-c", folder_command(path)], env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == (0 if there else 44), done.stderr
    assert not list(tmp_path.rglob("boo"))


def test_damaged_rows_are_told_beside_the_others_and_where_there_is_no_other():
    row = {"run": "a", "kind": "train", "step": 0, "epoch": 0.0, "images_per_s": 9.0, "loss": 1.0}
    row = json.dumps({**row, "final_loss": 1.0, "learning_rate": 0.1})
    wrong = row.replace('"step": 0', '"step": "\\u001b"')
    found = read("", f"{row}\n{wrong}\n{row[:30]}\n{row[:30]}")
    assert len(found.runs[0].rows) == 1
    [finding] = found.findings
    [message] = found.damaged
    assert finding.message == message
    assert message.startswith("log 1: 2 rows cannot be read, the first: step: expected an integer")
    assert message.isprintable()
    with pytest.raises(NoResults, match="log 0: 1 row cannot be read"):
        read(wrong + "\n")


@pytest.mark.parametrize(("attempts", "gpus"), [((), 2), ((4,), None), ((2, 2), 2)])
def test_the_gpus_of_a_log_without_them_are_those_of_all_attempts(attempts, gpus):
    job = job_record()
    status = replace(job.status, ranks=2, attempts=tuple({"ranks": ranks} for ranks in attempts))
    [run] = read_runs([HEADER + rows([50, 100])])
    assert results._of_job(run, replace(job, status=status)).facts.gpus == gpus


def test_a_compressed_log_is_named_so(tmp_path):
    (tmp_path / "m.jsonl.gz").write_bytes(gzip.compress(b"{}"))
    with pytest.raises(UsageError, match="compressed with gzip"):
        results.read_log_files([str(tmp_path / "m.jsonl.gz")])
