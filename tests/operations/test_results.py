"""Results from log files: which files are read; CSV, JSON and pictures; and the written files."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.domain.errors import MissingTool, UsageError
from clusterctl.jobs.metrics.logs import parse_definition
from clusterctl.jobs.metrics.reference import REFERENCES, compare
from clusterctl.operations.results import (
    TABLE_COLUMNS,
    LogText,
    NoResults,
    as_csv,
    as_data,
    cat_command,
    decoded,
    folder_command,
    log_folders,
    metric_findings,
    read_log_files,
    results_of,
    write_result,
)
from clusterctl.operations.results_plot import (
    Panel,
    PlotLine,
    draw,
    metric_panels,
    picture_format,
    run_panels,
)
from tests.jobs.training_logs import HEADER, banner, evaluation, rows
from tests.variants import usual

TRAINING = banner() + HEADER + rows([0, 1, *range(50, 14051, 50)]) + "Finished in 6000.5\n"
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
    text = json.dumps(as_data(found, [compare(found.runs[0], reference)]), allow_nan=False)
    [run] = json.loads(text)["runs"]
    assert run["not_a_number_from"] == 50
    assert run["rows"][2]["loss"] is None
    assert run["rows"][2]["final_loss"] is None
    assert run["comparison"]["reference"] == "imagenet-32"
    assert json.loads(json.dumps(as_data(read(KERAS), [])))["metrics"]["train:loss"] == [
        {"line": 2, "epoch": 1, "value": 1.3}
    ]


SIGNATURES = {"png": b"\x89PNG\r\n", "svg": b"<?xml", "pdf": b"%PDF"}


@pytest.mark.parametrize("ending", usual(1, SIGNATURES))
def test_pictures(ending):
    panels = [
        *run_panels(read(TRAINING + evaluation()).runs, REFERENCES[0]),
        *metric_panels(read("x=1\nx=nan\n", metrics=["$\\a$_{=x=(.*)", "é=y(.)"]).metrics),
    ]
    assert draw(panels, ending).startswith(SIGNATURES[ending])


@pytest.mark.parametrize(
    "text", usual(2, [NAN, rows([0]), rows([0, 1]), evaluation(), TRAINING + NAN])
)
def test_a_picture_is_drawn_of_a_few_rows(text):
    runs = read(text).runs
    assert draw(run_panels(runs, REFERENCES[0]), "png").startswith(SIGNATURES["png"])


def test_what_the_panels_show():
    gap = banner() + rows([0, 1, 50, 100, 150, 5000, 5050])
    loss, rate, speed, top1 = run_panels(read(gap).runs, REFERENCES[0])
    assert [curve.label for curve in loss.curves] == ["tutorial, 32 GPUs", "this run, 32 GPUs"]
    ours = loss.curves[1]
    assert [y != y for y in ours.y] == [False] * 5 + [True, False, False], "no line over the hole"
    assert speed.title == "images/s per GPU"
    assert [y != y for y in speed.curves[1].y][:3] == [True, True, False], "the start is left out"
    assert speed.curves[1].y[2] == 19000.0 / 32
    assert [curve.y for curve in top1.curves] == [(75.716,)]
    assert rate.x_label == "epoch"
    other = gap.replace("Found 1281167", "Found 1000")
    panels = run_panels(read(other).runs, REFERENCES[0])
    assert [len(panel.curves) for panel in panels] == [1, 1, 1, 0], "other images: ours alone"
    # All rows have 0.0 epochs: the x axis has steps, so the tutorial's epochs are not drawn.
    short = "Horovod size: 2\nUsing a learning rate of 0.1\n" + rows([0, 1, 10], 1e-6)
    loss, *_ = run_panels(read(short).runs, REFERENCES[2])
    assert (loss.x_label, [curve.x for curve in loss.curves]) == ("step", [(0.0, 1.0, 10.0)])


def test_a_picture_has_its_panels_alone_with_a_title_and_bars():
    curve = PlotLine("measured", (1.0, 2.0), (3.0, 5.0), True, spreads=((2.5, 3.5), (4.0, 6.0)))
    panels = [Panel(name, "GPUs", (curve,), x_marks=(1.0, 2.0)) for name in ("a", "b", "c")]
    picture = draw(panels, "svg", "two machines").decode()
    assert picture.count('<g id="axes_') == 3, "the fourth place is empty"
    assert picture.count('<g id="LineCollection_') == 3
    assert "<!-- two machines -->" in picture
    assert "<!-- 1.5 -->" not in picture
    bare = draw([replace(one, curves=(replace(curve, spreads=()),)) for one in panels], "svg")
    assert b"LineCollection" not in bare


@pytest.mark.parametrize("name", ["run.gif", "run", "run.", ".png", "run.png.exe"])
def test_no_picture_of_that_name(name):
    with pytest.raises(UsageError, match="cannot draw"):
        picture_format(Path(name))


def test_without_matplotlib(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingTool) as refused:
        picture_format(Path("run.PNG"))
    assert "pip install matplotlib" in refused.value.hint


def test_matplotlib_is_imported_by_drawing_alone():
    program = (
        "import sys, clusterctl.cli.results, clusterctl.operations.results_plot as plot;"
        "plot.picture_format(__import__('pathlib').Path('x.png'));"
        "sys.exit('matplotlib' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


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
    [finding] = metric_findings(found)
    [message] = found.damaged
    assert finding.message == message
    assert message.startswith("log 1: 2 rows cannot be read, the first: step: expected an integer")
    assert message.isprintable()
    with pytest.raises(NoResults, match="log 0: 1 row cannot be read"):
        read(wrong + "\n")
