"""A job's command lines as the trainer's own parser reads them, and the consequences."""

from __future__ import annotations

import shlex
import shutil

import pytest

from clusterctl.jobs.deploy import EXAMPLES
from clusterctl.jobs.plan import JobPlan, with_trainer_run
from clusterctl.jobs.preflight import PreflightFacts, preflight
from clusterctl.jobs.trainer import TRAINER, TrainerRun, opposite, switch

SHIPPED = EXAMPLES / "tensorflow"
REAL = ("--data_dir", "/data of mine/", "--num_epochs", "90")
NODE = PreflightFacts(
    host="demo-0", versions={"mpirun": "mpirun (Open MPI) 5.0.11", "python": "3.11.2"}
)


def plan(*words, evaluation=(), trainer=SHIPPED, **changes):
    argv = ("/opt/mpirun", "-np", "8", "/opt/python", TRAINER, *words)
    then = ("/opt/mpirun", "/opt/python", TRAINER, *evaluation) if evaluation else ()
    job = JobPlan("x", 8, "cpu", False, "/jobs", argv, then, home="/home/ubuntu", **changes)
    return with_trainer_run(job, trainer)


def said(job, force=False):
    found = preflight(job, [NODE], [], force)
    return [(one.severity.value, one.message) for one in found if one.check == "flags.refused"]


@pytest.mark.parametrize(
    ("flags", "run", "log_dir"),
    [
        ("--synthetic --num_batches 3", TrainerRun(8, None, batches=3), "/jobs/imagenet_resnet"),
        (
            "--data_dir '/a b/é' -b8 -m=resnet18 --num_epochs 90 --num_batches 7 --log_dir=/l"
            " --log_name mine --clear_log",
            TrainerRun(8, "/a b/é", "/l", "mine", "resnet18", 8, 90, 7, clears=True),
            "/l",
        ),
        # Parsed as the trainer does: otherwise the checks would look elsewhere, and the trainer
        # would delete a folder without a question.
        (
            "--data_dir '~/d' --eval --local_ckpt --use_larc --save_checkpoints_steps 0 --nofp16"
            " --image_size 64 --log_dir '~/runs' --eval_interval 3",
            TrainerRun(
                *(8, "/home/ubuntu/d", "/home/ubuntu/runs"),
                save_every=0,
                local_ckpt=True,
                evaluates_only=True,
                uses_larc=True,
                fp16=False,
                eval_interval=3,
                image_size=64,
            ),
            "/home/ubuntu/runs",
        ),
    ],
)
def test_the_run_that_the_flags_ask_for(flags, run, log_dir):
    job = plan(*shlex.split(flags))
    assert (job.run, job.refused, job.log_dir) == (run, "", log_dir)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--log_dir", "s3://bucket/x"), "is a folder of the nodes, not s3://bucket/x: train into"),
        (("--batchsize", "64"), "Unknown command line arg: --batchsize"),
        (("--batch_size", "many"), "--batch_size"),
        (("--batch_size",), "expected one argument"),
        (("--cl",), "Unknown command line arg: --cl"),  # flags cannot be abbreviated
        (("--clear_log", "--noclear_log"), "not allowed with"),
        (("--lr_decay_mode", "exponential"), "invalid choice: 'exponential'"),
        (("it's",), "Unknown command line arg: it's"),
    ],
)
def test_what_it_does_not_take(words, message):
    job = plan(*REAL, *words, evaluation=(*REAL, "--eval", *words))
    [(severity, told)] = said(job)
    assert (severity, job.run, job.log_dir) == ("error", None, "")
    assert told.startswith("the trainer refuses its flags: ")
    assert message in told
    assert "\n" not in told


def test_a_mistake_in_the_second_line_only():
    job = plan(*REAL, evaluation=("--no",))
    assert (len(said(job)), job.run.data_dir) == (1, "/data of mine")


@pytest.mark.parametrize("parser", [None, "def parse_args(:", "raise SystemExit"])
def test_a_trainer_that_does_not_answer(tmp_path, parser):
    shutil.copy(SHIPPED / "schedule.py", tmp_path)
    if parser:
        (tmp_path / "flags.py").write_text(parser)
    [(severity, told)] = said(plan(*REAL, trainer=tmp_path))
    assert (severity, "does not say what it will do" in told) == ("error", True)


def test_a_trainer_of_another_version_may_lack_a_flag(tmp_path):
    text = (
        "import argparse\ndef parse_args(argv): return argparse.Namespace(data_dir='/d', mine=1)\n"
    )
    (tmp_path / "flags.py").write_text(text)
    assert plan(*REAL, trainer=tmp_path).run == TrainerRun(8, "/d")


@pytest.mark.parametrize(
    ("words", "changes", "severity"),
    [
        (("--mine",), {}, "warning"),
        # Its log folder is unknown, and an earlier run is never deleted without a question.
        (("--mine", "--clear_log"), {}, "error"),
        (("--mine", "--clear_log"), {"clears_on_purpose": True}, "warning"),
    ],
)
def test_a_trainer_of_the_users_own_can_be_forced(words, changes, severity):
    assert [one[0] for one in said(plan(*REAL, *words, **changes), force=True)] == [severity]


@pytest.mark.parametrize(
    ("run", "steps", "kept"),
    # The last steps of the tutorial's tables. tests/examples tests the schedules themselves.
    [
        (TrainerRun(4, "/d", epochs=90, save_every=1000), 112_602, 113),
        (TrainerRun(32, "/d", epochs=90, save_every=1000), 14_075, 15),
        (TrainerRun(256, "/d", epochs=90, save_every=1000), 1759, 2),
        # By time: the newest five, and one more.
        (TrainerRun(256, "/d", epochs=90), 1759, 6),
        (TrainerRun(32, "/d", batches=3), 3, 3),
        (TrainerRun(32, "/d", epochs=90, save_every=0), 14_075, 91),
        (TrainerRun(32, "/d", epochs=90, evaluates_only=True), 14_075, 0),
        (TrainerRun(32, "/d", epochs=1, save_every=1000), 156, 1),
        (TrainerRun(32, "/d", batches=1000, save_every=1000), 1000, 1),
        (TrainerRun(32, "/d", batches=1001, save_every=1000), 1001, 2),
        (TrainerRun(32, "/d", save_every=1000), None, 1),
        (TrainerRun(32, "/d"), None, 6),
        (TrainerRun(32, None, epochs=5), 781, 0),
    ],
)
def test_steps_and_checkpoints(run, steps, kept):
    assert (run.steps(1_281_167), run.checkpoints(1_281_167)) == (steps, kept)
    # Without data that can be counted, the number is that of the flags or of synthetic data.
    known = run.batches or not run.data_dir
    assert run.steps(None) == (steps if known else None)


def test_switches():
    words = ["-b", "8", "--fp16", "--nofp16", "--eval_interval", "3"]
    assert (switch(words, "fp16"), switch(words, "eval"), switch(["--eval"], "eval")) == (
        *(False, None, True),
    )
    assert (opposite("--nofp16"), opposite("--clear_log")) == ("--fp16", "--noclear_log")
