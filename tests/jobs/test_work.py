"""What the trainer will do, from its flags."""

from __future__ import annotations

import shlex

import pytest

from clusterctl.jobs.work import (
    Contradiction,
    Work,
    check_clearing,
    clearing,
    clears_or_resumes,
    read_work,
    switch,
    twins,
    value,
)


@pytest.mark.parametrize(
    ("flags", "work"),
    [
        ("--synthetic", Work(8, None)),
        ("--data_dir '/a b/é' -b8 -m=resnet18", Work(8, "/a b/é", model="resnet18", batch_size=8)),
        ("--data_dir /d --data_dir=/e -b 1 --batch_size 2", Work(8, "/e", batch_size=2)),
        (
            "--data_dir /d --num_epochs 90 --num_batches 7 --log_dir=/l --clear_log",
            Work(8, "/d", "/l", epochs=90, batches=7, clears=True),
        ),
        ("--data_dir /d --clear_log --noclear_log", Work(8, "/d")),
        (
            "--data_dir /d --eval --local_ckpt --use_larc --save_checkpoints_steps 0",
            Work(8, "/d", save_every=0, local_ckpt=True, evaluates_only=True, uses_larc=True),
        ),
        # The trainer refuses these; here they are as if they were not there.
        ("--data_dir /d -b many --num_epochs -1 --log_dir", Work(8, "/d")),
        ("", Work(8, None)),
    ],
)
def test_read(flags, work):
    assert read_work(shlex.split(flags), 8) == work


@pytest.mark.parametrize(
    ("ranks", "epochs", "steps"),
    # As the tutorial's tables end: tests/examples has the schedules themselves.
    [(4, 90, 112_602), (8, 90, 56_301), (32, 90, 14_075), (256, 90, 1759), (32, 1, 156)],
)
def test_steps(ranks, epochs, steps):
    work = Work(ranks, "/d", epochs=epochs)
    assert work.steps(1_281_167) == steps
    assert work.steps(None) is None
    assert Work(ranks, None, epochs=epochs).steps(None) == steps
    assert Work(ranks, "/d", batches=7).steps(None) == 7


@pytest.mark.parametrize(
    ("work", "kept"),
    [
        (Work(32, "/d", epochs=90), 15),
        (Work(32, "/d", epochs=90, save_every=0), 91),
        (Work(32, "/d", batches=1000), 1),
        (Work(32, "/d", batches=1001), 2),
        (Work(32, "/d"), 1),
        (Work(32, None, epochs=5), 0),
        (Work(32, "/d", epochs=90, evaluates_only=True), 0),
    ],
)
def test_checkpoints(work, kept):
    assert work.checkpoints(1_281_167) == kept


def test_values_and_switches():
    words = ["-b", "8", "--lr=0.1", "--lr", "0.2", "--fp16", "--nofp16", "--eval_interval", "3"]
    assert value(words, "--lr") == "0.2"
    assert value(words, "-b", "--batch_size") == "8"
    assert value(words, "--eval") is None
    assert switch(words, "fp16") is False
    assert switch(words, "eval") is None
    assert twins("--nofp16") == ("--fp16", "--nofp16")
    assert twins("--clear_log") == ("--clear_log", "--noclear_log")
    assert twins("--num_epochs") == twins("8") == ()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("", None),
        ("--clear_log", True),
        ("--clear_log --noclear_log", False),
        ("--noclear_log --clear", True),  # the trainer knows its flags by their beginnings
        ("--cl", True),
        ("--noc", False),
        ("--c --no -c clear_log --cdr_alpha 0 --clear_logs", None),
    ],
)
def test_what_flags_say_of_the_log_folder(flags, said):
    assert clearing(flags.split()) is said
    assert read_work(flags.split(), 8).clears is bool(said)


@pytest.mark.parametrize(
    ("clears", "flags", "word"),
    [
        (True, "--noclear_log", "--noclear_log"),
        (False, "--lr 1 --clear_log", "--clear_log"),
        (False, "--clear", "--clear"),
        (False, "--clear_log --noclear_log", "--clear_log"),
    ],
)
def test_contradictions(clears, flags, word):
    with pytest.raises(Contradiction, match=f"the trainer's {word} says the opposite") as raised:
        check_clearing(clears, flags.split())
    assert (raised.value.exit_status, bool(raised.value.hint)) == (2, True)
    check_clearing(None, flags.split())
    check_clearing(True, ["--clear_log"])
    check_clearing(False, ["--noclear_log"])


def test_clear_or_resume():
    assert clears_or_resumes(False, False) is None
    assert clears_or_resumes(True, False) is True
    assert clears_or_resumes(False, True) is False
    with pytest.raises(Contradiction, match="--clear and --resume contradict each other"):
        clears_or_resumes(True, True)
