"""The tutorial's runs, and the comparison of a run with them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.jobs.metrics.logs import RunFacts, TrainingRow
from clusterctl.jobs.metrics.reference import REFERENCES, at_step, choose_reference, compare
from clusterctl.jobs.metrics.runs import Run, read_runs
from tests.jobs.training_logs import banner, evaluation, rows

BY_NAME = {each.name: each for each in REFERENCES}


@pytest.mark.parametrize(
    ("name", "rows", "last", "top1", "finished_in_s"),
    [
        ("imagenet-32", 17, (14050, 89.8, 0.00002), 75.716, 6004.354426383972),
        ("imagenet-256", 8, (1750, 89.5, 0.00026), 75.086, 860.5105031204224),
        ("synthetic-4", 6, (400, 0.3, 2.30401), None, None),
    ],
)
def test_what_the_tutorial_shows(name, rows, last, top1, finished_in_s):
    run = BY_NAME[name].run
    row = run.rows[-1]
    assert (len(run.rows), (row.step, row.epoch, row.learning_rate)) == (rows, last)
    assert (run.result.top1 if run.result else None) == top1
    assert run.facts.finished_in_s == finished_in_s


@pytest.mark.parametrize("reference", REFERENCES[:2], ids=lambda each: each.name)
def test_a_run_equals_itself(reference):
    for row in reference.run.rows:
        assert f"{reference.epoch(row.step):.1f}" == f"{row.epoch:.1f}"
    compared = compare(reference.run, reference)
    assert len(compared.rows) == sum(row.step != 1 for row in reference.run.rows)
    for row in compared.rows:
        assert row.loss == pytest.approx(row.reference_loss, abs=1e-9)
        assert row.learning_rate == pytest.approx(row.reference_learning_rate, abs=1e-12)
    assert compared.speed_ratio == 1.0
    assert compared.top1_difference == 0.0


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        (RunFacts(), "imagenet-32"),
        (RunFacts(gpus=1), "imagenet-32"),
        (RunFacts(gpus=90), "imagenet-32"),
        (RunFacts(gpus=91), "imagenet-256"),
        (RunFacts(gpus=4096), "imagenet-256"),
        (RunFacts(gpus=256, peak_learning_rate=0.1), "synthetic-4"),
        (RunFacts(gpus=256, peak_learning_rate=0.1, data="/data"), "imagenet-256"),
    ],
)
def test_the_nearest_in_size(facts, name):
    assert choose_reference(Run(facts)).name == name


def test_another_size_at_equal_epochs():
    """8 GPUs have a quarter of the batch, so an epoch has four times as many steps."""
    text = banner(8) + rows([0, 1, *range(50, 60000, 50)], 2048 / 1_281_167, 4000.0)
    [run] = read_runs([text + evaluation(56301, 76.0)])
    compared = compare(run, BY_NAME["imagenet-32"])
    assert len(compared.rows) == 16
    for ours, theirs in zip(compared.rows[1:], BY_NAME["imagenet-32"].run.rows[2:]):
        assert ours.learning_rate == pytest.approx(4 * theirs.step / 1e6, abs=1e-5)
        assert ours.reference_learning_rate == theirs.learning_rate
    assert compared.top1_difference == pytest.approx(76.0 - 75.716)
    assert compared.speed_ratio == pytest.approx(500 / 615.688, rel=1e-5)


def test_what_cannot_be_compared_is_not():
    reference = BY_NAME["imagenet-32"]
    early = replace(reference.run, rows=reference.run.rows[:10])
    assert [row.epoch for row in compare(early, reference).rows][-1] < 2.6
    half = replace(early, evaluations=(replace(reference.run.evaluations[0], epoch=45.0),))
    assert compare(half, reference).top1_difference is None
    assert compare(Run(), reference).rows == ()
    synthetic = replace(early, facts=RunFacts(gpus=32, peak_learning_rate=3.2))
    assert compare(synthetic, reference).rows == ()
    other = replace(reference.run, facts=RunFacts(gpus=32, training_samples=1000))
    assert (compare(other, reference).rows, compare(other, reference).top1_difference) == ((), None)
    corrupt = replace(reference.run, facts=RunFacts(gpus=32, training_samples=1_281_100))
    assert compare(corrupt, reference).top1_difference == 0.0
    assert compare(synthetic, reference).speed_ratio == pytest.approx(0.993, abs=0.01)


def test_values_between_two_rows_are_interpolated():
    table = [TrainingRow(step, 0.0, 1.0, 10.0 - step, 20.0 - step, step / 100)
             for step in (0, 10, 20, 30, 100)]  # fmt: skip
    assert at_step(table, 15) == pytest.approx((-5.0, 5.0, 0.15))
    assert at_step(table, 30) == (-20.0, -10.0, 0.3)
    assert at_step(table, 30.0000000001) == (-20.0, -10.0, 0.3)
    assert at_step(table, 31) is None, "rows are missing there"
    assert at_step(table, 100) == (-90.0, -80.0, 1.0)
    assert at_step(table, 100.5) is None
    assert at_step(table, -1) is None
    assert at_step([], 0) is None
