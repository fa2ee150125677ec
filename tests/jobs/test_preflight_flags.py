"""The trainer's own parser is asked about the flags, before mpirun starts."""

from __future__ import annotations

import shutil

import pytest

from clusterctl.jobs.deploy import EXAMPLES
from clusterctl.jobs.plan import JobPlan
from clusterctl.jobs.preflight.flags import flags_findings
from clusterctl.jobs.presets import TRAINER
from clusterctl.jobs.work import Work

SHIPPED = EXAMPLES / "tensorflow"
WORK = Work(2, "/data")
REAL = ("--data_dir", "/data of mine/", "--num_epochs", "90")


def plan(*words, evaluation=(), work=WORK):
    argv = ("/opt/mpirun", "-np", "2", "/opt/python", TRAINER, *words)
    then = ("/opt/mpirun", "/opt/python", TRAINER, *evaluation) if evaluation else ()
    return JobPlan("x", 2, "cpu", False, "/home/ubuntu", argv, then, work=work)


def said(job, trainer=SHIPPED):
    return [(one.check_id, one.severity.value, one.message) for one in flags_findings(job, trainer)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--batchsize", "64"), "Unknown command line arg: --batchsize"),
        (("--batch_size", "many"), "--batch_size"),
        (("--batch_size",), "expected one argument"),
        (("--lr_decay_mode", "exponential"), "invalid choice: 'exponential'"),
        (("it's", "ünï çode"), "arg: it's; Unknown command line arg: ünï çode"),
    ],
)
def test_what_it_does_not_take(words, message):
    [(check_id, severity, told)] = said(plan(*REAL, *words))
    assert (check_id, severity) == ("flags.refused", "error")
    assert told.startswith("the trainer: ")
    assert message in told
    assert "\n" not in told


def test_what_it_takes():
    assert said(plan(*REAL, "--nofp16", evaluation=(*REAL, "--eval"))) == []
    assert said(plan("--help")) == []


def test_a_mistake_in_both_lines_is_told_once_and_one_in_the_second_too():
    assert len(said(plan(*REAL, "--no", evaluation=(*REAL, "--no")))) == 1
    assert len(said(plan(*REAL, evaluation=("--no",)))) == 1


def test_programs_of_the_users_own_and_folders_without_a_parser_are_left_alone(tmp_path):
    assert said(plan("--no", work=None)) == []
    assert said(plan("--no"), tmp_path) == []


def test_a_parser_that_is_broken_is_for_the_job_to_tell(tmp_path):
    shutil.copy(SHIPPED / "schedule.py", tmp_path)
    (tmp_path / "flags.py").write_text("def parse_args(:")
    assert said(plan("--no"), tmp_path) == []
