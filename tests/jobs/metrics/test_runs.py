"""Runs in logs: resumed runs are joined, evaluations assigned, speeds computed, nothing twice."""

from __future__ import annotations

import json
import math

import pytest

from clusterctl.cli.results import remarks
from clusterctl.jobs.metrics.logs import TrainingRow
from clusterctl.jobs.metrics.runs import read_runs, runs_in_log, throughput
from clusterctl.operations.results import run_charts
from tests.jobs.training_logs import HEADER, banner, evaluation, rows

FIRST = banner() + HEADER + rows([0, 1, *range(50, 5001, 50)])
LATER = banner() + HEADER + rows(range(4000, 14051, 50)) + "Finished in 900.5\n"
WHOLE = FIRST + "Finished in 100.0\n"


def steps(run):
    return [row.step for row in run.rows]


def test_a_resumed_run_is_one():
    [run] = read_runs([FIRST + LATER + evaluation()])
    assert steps(run) == [0, 1, *range(50, 14051, 50)]
    assert run.resumed_at == (4000,)
    assert run.result is not None
    assert run.result.top1 == 75.0
    assert run.facts.gpus == 32, "the evaluation's ranks are not the training's"
    assert run.facts.validation_samples == 50000
    assert run.facts.finished_in_s is None, "the first part was cut short"
    assert (run.facts.finished, run.facts.last_part_s) == (True, 900.5)
    assert [row.step for row in run.rows if row.startup] == [0, 1, 4000]
    [both] = read_runs([WHOLE + LATER])
    assert (both.facts.finished_in_s, both.facts.last_part_s) == (1000.5, None)
    [longer] = read_runs([WHOLE + LATER.partition("Finished")[0]])
    assert not longer.facts.finished, "the later part is cut short"
    third = banner() + rows([14000, 14050], speed=1.0) + "Finished in 7.0\n"
    [thrice] = read_runs([FIRST + LATER + third])
    assert (thrice.facts.finished_in_s, thrice.facts.last_part_s) == (None, 7.0)


def test_the_step_of_the_checkpoint_counts_where_it_is_said():
    said = "Going on from /lo gs: 2/model.ckpt-4020: 4020 of 14075 steps are done\n"
    later = LATER.replace(HEADER, said + HEADER).replace(rows([4000]), "")
    [run] = read_runs([FIRST + later])
    assert run.resumed_at == (4020,)
    assert steps(run) == [0, 1, *range(50, 14051, 50)]
    [alone] = read_runs([later])
    assert (alone.resumed_at, alone.rows[0].step) == ((4020,), 4050)
    assert alone.rows[0].startup
    assert (alone.facts.finished_in_s, alone.facts.last_part_s) == (None, 900.5)


def test_the_speed_of_a_run_that_went_on_with_fewer_gpus_is_that_of_these():
    """Each GPU makes 625 images/s all the time, with as many images a step."""
    later = banner(16) + HEADER + rows(range(4000, 14051, 50), speed=10_000.0)
    [run] = read_runs([banner() + HEADER + rows(range(50, 5001, 50), speed=20_000.0) + later])
    assert (len(run.resumed_at), run.alike_from, run.facts.gpus) == (1, 4000, 16)
    assert run.images_per_s == pytest.approx(10_000)
    assert run.images_per_s_per_gpu == pytest.approx(625)
    assert remarks(run)[0].endswith("(from step 4000 on, without rows that count the start)")
    [curve] = next(one for one in run_charts([run]) if "per GPU" in one.title).curves
    assert {round(point[1]) for point in curve.points if not math.isnan(point[1])} == {625}


@pytest.mark.parametrize(
    "second",
    [
        banner() + rows([0, 1, 50], speed=1.0),  # starts again from step 0
        banner(64) + rows([4000, 4050], per_step=16384 / 1_281_167),  # another batch
        banner() + rows([9000, 9050]),  # from a checkpoint that this run did not reach
    ],
)
def test_what_is_no_resume(second):
    assert [run.resumed_at for run in read_runs([FIRST + second])] == [(), ()]


def test_in_any_number_of_logs_and_twice():
    training, evaluating = FIRST + LATER, evaluation()
    expected = read_runs([training + evaluating])
    assert read_runs([training, evaluating]) == expected
    assert read_runs([evaluating, training]) == expected
    job = LATER + evaluating
    assert read_runs([training, evaluating, job]) == expected
    still_growing = banner() + HEADER + rows(range(4000, 9000, 50))
    assert read_runs([FIRST + still_growing, LATER + evaluating]) == expected
    assert read_runs([training + evaluating] * 3) == expected
    lost = banner() + rows([0, 1]) + "    50   0.3 19347.5    nan    nan 0.10353\n"
    [run] = read_runs([lost, lost])
    assert run.not_a_number_from == 50


def test_an_evaluation_belongs_to_the_run_that_came_so_far():
    short = banner() + rows([0, 1, 50, 100], speed=100.0)
    long = banner() + rows([0, 1, *range(50, 14051, 50)])
    for text, evaluated in {
        long + short + evaluation(14075): [1, 0],
        long + short + evaluation(110): [0, 1],
        short + banner() + rows([0, 1, 50, 100]) + evaluation(3): [0, 1],
    }.items():
        assert [len(run.evaluations) for run in read_runs([text])] == evaluated


def test_evaluations_alone():
    [run] = read_runs([evaluation(1000, 20.0) + evaluation(2000, 30.0)])[:1]
    assert run.rows == ()
    assert run.images_per_s is None
    assert run.result.top1 == 30.0
    [run] = read_runs([FIRST + evaluation(5050, 50.0) + evaluation(5050, 75.0)])
    assert run.result.top1 == 75.0, "the checkpoint was evaluated again, on other images"


def test_the_runs_that_a_log_shows():
    another = banner(8) + rows([0, 1, 50], per_step=2048 / 1_281_167, speed=5000.0)
    runs = read_runs([another, FIRST, LATER])
    assert len(runs) == 2
    assert runs_in_log(runs, LATER) == runs[1:]
    assert runs_in_log(runs, another) == runs[:1]
    assert runs_in_log(runs, "nothing") == []


def made(*speeds_at):
    return [
        TrainingRow(step, 0.1, speed, 1.0, 1.0, 0.1, startup=step < 2) for step, speed in speeds_at
    ]


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ([], None),
        ([(0, 5.0), (1, 33.0)], None),
        ([(0, 5.0), (1, 33.0), (2, 100.0)], 100.0),
        # 49 steps at 100 and 50 steps at 300: the result is not the mean of both speeds.
        ([(0, 5.0), (1, 33.0), (50, 100.0), (100, 300.0), (150, 300.0)],
         149 / (49 / 100 + 100 / 300)),
        # Rows are left out: the speed after them is only of the last 50 steps.
        ([(50, 100.0), (100, 100.0), (150, 100.0), (13750, 200.0)], 200 / (150 / 100 + 50 / 200)),
        ([(50, 100.0), (100, float("inf")), (150, float("nan")), (200, 0.0)], 100.0),
        ([(7, 42.0)], 42.0),
    ],
)  # fmt: skip
def test_throughput(table, expected):
    found = throughput(made(*table))
    assert found == (expected if expected is None else pytest.approx(expected, rel=1e-12))


def line(run, kind, **values):
    return json.dumps({"run": run, "kind": kind, "time": 1.0, **values}) + "\n"


def trained(run, *steps, **changes):
    """Return rows as the trainer writes them. Their values follow from the step."""
    row = {"images_per_s": 19000.04, "final_loss": 7.1234567, **changes}
    return "".join(
        line(
            run,
            "train",
            **{
                "step": step,
                "epoch": step * 8192 / 1_281_167,
                "loss": 7 - step / 5001,
                "learning_rate": step / 1e6,
                **row,
            },
        )
        for step in steps
    )


BEGIN = {"gpus": 32, "training_samples": 1_281_167, "peak_learning_rate": 3.2, "data": "/data"}


def test_json_lines_of_a_resumed_run_that_was_killed_in_the_middle_of_a_line():
    first = line("a", "begin", **BEGIN) + trained("a", 0, 1, 50, 100) + trained("a", 150)[:40]
    then = line("b", "begin", **BEGIN, resumed_from=90, new_key=[1]) + trained("b", 100, 150)
    for text in (first + "\n" + then + line("b", "end", finished_in_s=9.5), first):
        [run] = read_runs([text])
        assert (run.facts.gpus, run.facts.data) == (32, "/data")
        assert [row.startup for row in run.rows][:3] == [True, True, False]
    [run] = read_runs([first + "\n" + then])
    assert [row.step for row in run.rows] == [0, 1, 50, 100, 150]
    assert (run.resumed_at, run.facts.finished) == ((90,), False)
    assert run.rows[2].loss == 7 - 50 / 5001, "nothing is rounded"


def test_json_lines_of_two_runs_at_once_and_of_a_loss_that_is_no_number():
    mixed = zip(
        trained("a", 0, 50).splitlines(True), trained("b", 0, 50, loss=None).splitlines(True)
    )
    runs = read_runs(["".join(line for pair in mixed for line in pair)])
    assert [run.not_a_number_from for run in runs] == [None, 0]
    assert [[row.step for row in run.rows] for run in runs] == [[0, 50]] * 2


def test_a_run_that_went_on_with_a_trainer_that_writes_json_lines():
    """The first part, by an earlier version, is only in the table; the second part is in both."""
    tables = banner() + rows([0, 1, 50, 100])
    later = "Going on from x/model.ckpt-90: 90 of 14075 steps are done\n" + rows([100, 150])
    [table] = read_runs([tables + banner() + later])
    exact = [
        line(
            "b",
            "train",
            step=row.step,
            epoch=row.epoch + 0.0001,
            images_per_s=row.images_per_s,
            loss=row.loss + 0.0001,
            final_loss=row.final_loss,
            learning_rate=row.learning_rate,
        )
        for row in table.rows[-2:]
    ]
    metrics = line("b", "begin", **BEGIN, resumed_from=90) + "".join(exact)
    for texts in ([tables + banner() + later, metrics], [tables + banner() + later + metrics]):
        [run] = read_runs(texts)
        assert [row.step for row in run.rows] == [0, 1, 50, 100, 150]
        assert (run.resumed_at, run.rows[-1].loss) == ((90,), table.rows[-1].loss + 0.0001)


@pytest.mark.parametrize(
    "text",
    [
        *('{"run": 3', '{"run": "a"}', "{}", '{"run": ' + "[" * 4000),
        '{"run": "a", "kind": "begin", "resumed_from": "x"}',
        *(trained("a", 0, **wrong) for wrong in ({"step": "x"}, {"step": math.inf}, {"loss": {}})),
        trained("a", 0, final_loss=10**400),
    ],
)
def test_lines_that_are_no_metrics_of_ours(text):
    assert read_runs([text + "\n"]) == []
    [run] = read_runs([text + "\n" + line("a", "begin", **BEGIN) + trained("a", 0, 1)])
    assert (run.facts.resumed_from, len(run.rows)) == (None, 2)
