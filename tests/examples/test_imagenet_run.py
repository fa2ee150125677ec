"""The ImageNet trainer on files: two ranks train, resume, evaluate, and refuse wrong input."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace

import pytest

from clusterctl.jobs.metrics.runs import read_runs
from tests.programs import completed

from .conftest import IMAGENET, after

# The timeout is for hangs: on a busy machine these tests take minutes.
pytestmark = [pytest.mark.train, pytest.mark.timeout(1200)]

PROGRAM = Path(__file__).with_name("imagenet_flow.py")
UTILS = Path(__file__).parents[2] / "utils"
CLASSES = 4
TINY = ["-m", "resnet18", "--image_size", "32", "-b", "4", "--nofp16"]
EVALUATED = re.compile(
    r"^ *(\d+)  +(\d+\.0)  +(\d+\.\d{3})  +(\d+\.\d\d)  +(\d+\.\d\d)  (\S+ \S+)$", re.MULTILINE
)


@pytest.fixture(scope="module")
def records(training_env, tmp_path_factory) -> Path:
    """Return shards of the stand-in for ImageNet, in a folder with special characters."""
    folder = tmp_path_factory.mktemp("ima ge'nét")
    python = training_env / "bin" / "python"
    steps = [
        ["make_sample_imagenet.py", "--output_dir", "raw", "--classes", str(CLASSES)]
        + ["--images", "40", "--validation_images", "21", "--size", "48"],
        ["preprocess_imagenet.py", "--raw_data_dir", "raw", "--local_scratch_dir", "scratch"]
        + ["--output_dir", "records", "--train_shards", "4", "--validation_shards", "3"]
        + ["--num_processes", "1", "--allow_corrupt", "1"],
    ]
    for program, *words in steps:
        done = completed([python, UTILS / program, *words], cwd=folder)
        assert done.returncode == 0, done.stderr
    shutil.rmtree(folder / "raw")
    return folder / "records"


@pytest.fixture(scope="module")
def flow(records, ranks_in, tmp_path_factory) -> SimpleNamespace:
    """Return the results of two ranks: see imagenet_flow.py."""
    folder = tmp_path_factory.mktemp("flow")
    result = ranks_in(folder, 2, PROGRAM, IMAGENET, records)
    assert result.returncode == 0, result.stderr
    return SimpleNamespace(
        folder=folder,
        stdout=without_mllog(result.stdout),
        stderr=result.stderr,
        statuses=after("STATUSES", result.stdout),
        tensors=after("TENSORS", result.stdout),
        timed=after("TIMED", result.stdout),
        resumed_by_time=after("BY_TIME", result.stdout),
        log=without_mllog((folder / "whole" / "hvd_train.log").read_text()),
    )


MLLOG = ":::MLLOG "


def without_mllog(text: str) -> str:
    return "".join(line for line in text.splitlines(True) if not line.startswith(MLLOG))


def test_the_lines_of_a_training(flow, records):
    assert flow.statuses["train"] == 0
    assert flow.log.partition("Finished in ")[0] in flow.stdout
    lines = flow.log.partition("\nHorovod size: 2\n")[2].splitlines()
    assert lines[0] == f"Using data from: {records}"
    assert lines[1] == "Found 39 training samples"
    assert lines[2:7] == [
        "Using a learning rate of 0.003125",
        "Checkpointing every 5 steps",
        "Saving summary every 4 steps",
        f"Using preprocessing threads per GPU: {max(1, len(os.sched_getaffinity(0)) // 2 - 2)}",
        "  Step Epoch Speed   Loss  FinLoss   LR",
    ]
    end = next(at for at, line in enumerate(lines) if re.fullmatch(r"Finished in \d+\.\d+", line))
    scales = [line for line in lines[7:end] if line.startswith("Loss scale: ")]
    assert scales[0] == "Loss scale: 2097152, skipped steps: 1"
    rows = [line.split() for line in lines[7:end] if line not in scales]
    assert [int(row[0]) for row in rows] == [0, 1, 4, 8]
    assert [row[1] for row in rows] == ["0.0", "0.2", "0.8", "1.6"]  # 8 images of 39 a step
    assert [row[5] for row in rows] == ["0.00313", "0.00263", "0.00139", "0.00036"]


def test_what_a_training_leaves(flow):
    names = sorted(path.name for path in (flow.folder / "whole").iterdir())
    assert [name for name in names if "tfevents" not in name] == [
        "eval_hvd_train.log",
        "hvd_train.log",
        "metrics.jsonl",
        *(
            f"model.ckpt-{step}.{ending}"
            for step in (10, 12, 5)
            for ending in ("data-00000-of-00001", "index")
        ),
    ]
    training, evaluation = (name for name in names if "tfevents" in name)  # sorted by time
    written = (flow.folder / "whole" / training).read_bytes()
    assert all(name in written for name in (b"final_loss", b"learning_rate"))
    assert written.count(b"images_per_s") == 2, "of three, the first would count the start"
    assert b"eval_top1" in (flow.folder / "whole" / evaluation).read_bytes()


def test_a_training_that_goes_on_ends_as_one_that_was_never_stopped(flow):
    """They are equal bit by bit: the checkpoint has weights, momenta, the batch norms' averages and
    the loss scale, which changes before and after it.
    """
    assert flow.statuses["resumed"] == 0
    log = (flow.folder / "resumed" / "hvd_train.log").read_text()
    assert "Going on from resumed/model.ckpt-5: 5 of 12 steps are done\n" in log
    assert [row.split()[0] for row in log.splitlines() if row.startswith("     ")] == ["8"]
    assert flow.tensors["other"] == []
    assert len(flow.tensors["same"]) > 150, "62 weights, as many momenta, 40 of batch norms"
    assert row_of(flow.log, 8)[3:5] == row_of(log, 8)[3:5]


def test_a_notice_has_the_state_saved_at_once(flow):
    """The guard wrote it in the seventh step. With --local_ckpt the nodes agree every fourth step
    whether a checkpoint is due by rank 0's clock: it was in the eighth."""
    log = (flow.folder / "resumed" / "hvd_train.log").read_text()
    assert "\nCheckpointing every 300 seconds\n" in log
    assert log.count("Saving step 7: a node is about to be taken away\n") == 1
    saved = sorted(path.name for path in (flow.folder / "resumed").glob("model.ckpt-*.index"))
    assert saved == [f"model.ckpt-{step}.index" for step in (12, 5, 7, 8)]
    assert flow.resumed_by_time == [7, 8], "a later run counts them among its newest five"
    assert not [*(flow.folder / "resumed").glob(".model.ckpt-*")], "half a checkpoint"


def test_rank_0s_clock_alone_saves_by_time_and_the_newest_five_are_kept(flow):
    """The first step came before 300 s had passed. The other rank's clock was hours ahead. The run
    went on from step 9 to 12, and deleted what its first part had saved by time, and no other."""
    assert flow.timed["steps"] == [list(range(2, 10)), []]
    assert flow.timed["files"] == [
        f"model.ckpt-{step}.{ending}"
        for step in (1, 10, 11, 12, 8, 9)
        for ending in ("data-00000-of-00001", "index")
    ]


def mllog_of(flow, *names):
    """Return MLPerf's lines in these logs, checked as mlperf_logging's parser reads them."""
    text = "".join((flow.folder / name).read_text() for name in names)
    found = [line for line in text.splitlines() if MLLOG in line]
    lines = [json.loads(line.removeprefix(MLLOG)) for line in found]
    for line in lines:
        assert list(line) == ["namespace", "time_ms", "event_type", "key", "value", "metadata"]
        assert isinstance(line["time_ms"], int)
        assert isinstance(line["metadata"], dict)
        event = {"start": "INTERVAL_START", "stop": "INTERVAL_END"}.get(line["key"].split("_")[-1])
        assert line["event_type"] == (event or "POINT_IN_TIME")
    return lines


def test_the_lines_of_mlperf(flow):
    """12 steps of 8 of 39 images: three epochs begin. The evaluation has two checkpoints."""
    lines = mllog_of(flow, "whole/hvd_train.log", "whole/eval_hvd_train.log")
    values = {line["key"]: line["value"] for line in lines}
    assert (values["global_batch_size"], values["train_samples"]) == (8, 39)
    assert (values["eval_samples"], values["opt_name"]) == (21, "sgd")
    times = {line["key"]: line["time_ms"] for line in lines}
    assert times["init_start"] <= times["run_start"] < times["eval_accuracy"] <= times["run_stop"]
    steps = [(line["key"], line["metadata"].get("epoch_num")) for line in lines
             if re.search("_(start|stop|accuracy)$", line["key"])]  # fmt: skip
    assert steps == [
        *(("init_start", None), ("init_stop", None), ("run_start", None)),
        *((f"epoch_{end}", epoch) for epoch in (1, 2, 3) for end in ("start", "stop")),
        *((f"eval_{end}", epoch) for epoch in (2, 3) for end in ("start", "accuracy", "stop")),
        ("run_stop", None),
    ]
    [run] = read_runs((flow.folder / "whole" / name).read_text()
                      for name in ("hvd_train.log", "eval_hvd_train.log"))  # fmt: skip
    accuracies = [line["value"] for line in lines if line["key"] == "eval_accuracy"]
    assert accuracies == pytest.approx([row.top1 / 100 for row in run.evaluations], abs=1e-5)
    reached = max(accuracies) >= 0.759
    assert lines[-1]["metadata"] == {"status": "success" if reached else "aborted"}


def test_a_resumed_training_has_no_time_of_mlperf(flow):
    """Otherwise one that went on from its last checkpoint would have trained in seconds."""
    keys = {line["key"] for line in mllog_of(flow, "resumed/hvd_train.log")}
    assert "epoch_start" in keys
    assert not keys & {"init_start", "run_start", "run_stop"}


def test_the_time_of_the_whole_begins_before_the_model_is_built(flow):
    """As in the original. The trainer's record begins after the model was built."""
    lines = (flow.folder / "whole" / "metrics.jsonl").read_text().splitlines()
    begin, end = (
        next(line for line in map(json.loads, lines) if line["kind"] == kind)
        for kind in ("begin", "end")
    )
    assert end["finished_in_s"] > end["time"] - begin["time"]


def test_the_metrics_are_the_tables_for_programs(flow):
    """Rank 0 writes each row of a training, its evaluation, and a resumed training once."""
    for name in ("whole", "resumed"):
        texts = [path.read_text() for path in sorted((flow.folder / name).glob("*train.log"))]
        metrics = (flow.folder / name / "metrics.jsonl").read_text()
        [run], [table] = read_runs([metrics]), read_runs(reversed(texts))
        assert [row.step for row in run.rows] == [row.step for row in table.rows]
        assert (len(run.evaluations), run.resumed_at) == (len(table.evaluations), table.resumed_at)
        for exact, row in zip(run.rows, table.rows):
            assert abs(exact.loss - row.loss) < 0.001
            assert abs(exact.learning_rate - row.learning_rate) < 0.00001
        assert read_runs([*reversed(texts), metrics]) == [run], "what is in two logs counts once"
        work = {"model": "resnet18", "image_size": 32, "precision": "float32"}
        assert run.facts == replace(table.facts, **work), "what only programs need"


def row_of(log: str, step: int) -> list[str]:
    return next(line.split() for line in log.splitlines() if line.split()[:1] == [str(step)])


def test_a_finished_training_says_so(flow):
    assert flow.statuses["again"] == 0
    assert flow.log.splitlines()[-1] == (
        "Nothing to train: whole/model.ckpt-12 has all 12 steps; --clear_log starts again,"
        " --eval evaluates it"
    )


def test_evaluation(flow, records, ranks_in, tmp_path):
    log = without_mllog((flow.folder / "whole" / "eval_hvd_train.log").read_text())
    lines = log.partition("\nHorovod size: 2\n")[2].splitlines()
    assert lines[:5] == [
        "Evaluating",
        "Validation dataset size: 21",
        "Of checkpoints that are saved by time only the newest 5 are kept: to evaluate earlier"
        " ones, train with --save_checkpoints_steps",
        "  step  epoch  top1    top5     loss   checkpoint_time(UTC)",
        "whole/model.ckpt-3 was deleted by the training meanwhile: not evaluated",
    ]
    assert lines[-1] == "Finished evaluation"
    rows = [Row.of(line) for line in lines[5:-1]]
    assert [row.step for row in rows] == [5, 12], "the first, every second, and the last"
    # The checkpoint records 8 images per step and 39 in all, without --num_gpus and train-*.
    assert [row.epoch for row in rows] == ["2.0", "3.0"]
    saved = (flow.folder / "whole" / "model.ckpt-12.index").stat().st_mtime
    when = datetime.fromtimestamp(int(saved), timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    assert rows[-1].when == when
    right = rows[-1].top1 * 21 / 100
    assert right == pytest.approx(round(right), abs=1e-3), "a share of 21 images"

    # 21 images in three files on two ranks: a single process has the same sums.
    alone = ranks_in(
        flow.folder,
        1,
        IMAGENET,
        *TINY,
        *("--data_dir", records, "--log_dir", "whole", "--eval", "--num_gpus", "1"),
    )
    assert alone.returncode == 0, alone.stderr
    row = Row.of(alone.stdout.splitlines()[-2])
    assert (row.top1, row.top5, row.when) == (rows[-1].top1, rows[-1].top5, rows[-1].when)
    assert row.loss == pytest.approx(rows[-1].loss, abs=0.011)
    assert row.epoch == "2.0", "12 steps of 4 of 39 images are 1.2 epochs, and count as 2"


@dataclass(frozen=True)
class Row:
    step: int
    epoch: str
    top1: float
    top5: float
    loss: float
    when: str

    @classmethod
    def of(cls, line: str) -> Row:
        match = EVALUATED.fullmatch(line)
        assert match, line
        step, epoch, top1, top5, loss, when = match.groups()
        return cls(int(step), epoch, float(top1), float(top5), float(loss), when)


def test_what_is_wrong_is_said_once_and_in_one_line(flow):
    wrong = {
        "other batch": "early/model.ckpt-5 is of a training with 8 images a step, and this one"
        " has 10: take -b 4 to continue it, another --log_dir to keep it, or --clear_log",
        # With more ranks, its 5 steps would count as a complete training.
        "more ranks": "early/model.ckpt-5 is of a training with 8 images a step, and this one"
        " has 16: take -b 4 to continue it, another --log_dir to keep it, or --clear_log",
        "other model": "early/model.ckpt-5 does not fit: it is damaged, or of another --model; take"
        " another --log_dir to keep it, or --clear_log to delete it",
        "damaged": "early/model.ckpt-5 does not fit: it is damaged, or of another --model; take",
        "damaged last": "model.ckpt-12 does not fit: it is damaged, or of another --model; to go on"
        " from step 5, move damaged last/model.ckpt-10.* damaged last/model.ckpt-12.* to another"
        " folder",
        "no data": "no such",
        "too few": "one step takes 2000 images and there are 39: lower --batch_size",
        "no checkpoint": "bad holds no checkpoint: train first, or pass --log_dir",
        "diverged": "were skipped, whose gradients are no numbers (loss nan, loss scale",
    }
    assert [name for name, status in flow.statuses.items() if status] == list(wrong)
    assert {flow.statuses[name] for name in wrong} == {1}
    told = [line for line in flow.stderr.splitlines() if "error:" in line]
    assert len(told) == len(wrong), told
    for line, message in zip(told, wrong.values()):
        assert line.startswith("error: ")
        assert message in line
    assert "Traceback" not in flow.stderr


def test_clear_log_takes_what_a_training_left_and_nothing_else(flow):
    """The run that diverged started with --clear_log."""
    names = sorted(path.name for path in (flow.folder / "early").iterdir())
    mine = ["mine", "model.ckpt-best.index", "model.ckpt-notes"]
    assert [name for name in names if "tfevents" not in name] == [
        *("hvd_train.log", "metrics.jsonl", *mine)
    ]
    log = (flow.folder / "early" / "hvd_train.log").read_text()
    assert log.count("Horovod size: 2") == 1
