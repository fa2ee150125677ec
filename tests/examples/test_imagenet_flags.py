"""The ImageNet trainer's command line."""

from __future__ import annotations

import pytest

ENOUGH = ["--synthetic", "--num_batches", "1"]


@pytest.mark.parametrize(
    ("flag", "default"),
    [
        ("model", "resnet50"),
        ("batch_size", 256),
        ("image_size", 224),
        ("num_epochs", None),
        ("log_dir", "imagenet_resnet"),
        ("log_name", "hvd_train.log"),
        ("clear_log", False),
        ("display_every", 50),
        ("fp16", True),
        ("adv_bn_init", True),
        ("adv_conv_init", True),
        ("loss_scale", 1024.0),
        ("intra_op_parallelism_threads", 1),
        ("inter_op_parallelism_threads", 5),
        ("lr", None),
        ("mom", 0.9),
        ("wdecay", 0.0001),
        ("warmup_lr", 0.001),
        ("warmup_epochs", 0),
        ("lr_decay_mode", "poly"),
        ("lr_decay_steps", "30,60,80"),
        ("lr_decay_lrs", ""),
    ],
)
def test_defaults(imagenet, flag, default):
    assert getattr(imagenet.parse_args(ENOUGH), flag) == default


@pytest.mark.parametrize("name", ["clear_log", "fp16", "adv_bn_init", "adv_conv_init"])
def test_every_boolean_has_a_twin(imagenet, name):
    assert getattr(imagenet.parse_args([*ENOUGH, f"--{name}"]), name) is True
    assert getattr(imagenet.parse_args([*ENOUGH, f"--no{name}"]), name) is False


def test_epochs_override_batches(imagenet):
    args = imagenet.parse_args([*ENOUGH, "--num_epochs", "90"])
    assert imagenet.make_schedule(args, 32).steps == 14_075


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([*ENOUGH, "--use_magic"], "ERROR: Unknown command line arg: --use_magic"),
        ([*ENOUGH, "extra"], "ERROR: Unknown command line arg: extra"),
        (["--num_batches", "1"], "pass --synthetic"),
        (["--synthetic"], "pass --num_batches or --num_epochs"),
        ([*ENOUGH, "-m", "resnet19"], "invalid choice: 'resnet19'"),
        ([*ENOUGH, "-b", "0"], "0 is not 1 or more"),
        ([*ENOUGH, "--lr_decay_lrs", "1,2"], "one rate more than"),
        ([*ENOUGH, "--lr_decay_steps", "30,x"], "invalid literal"),
    ],
)
def test_wrong_flags_exit_with_2_and_say_what(imagenet, capsys, argv, message):
    with pytest.raises(SystemExit) as exit:
        imagenet.parse_args(argv)
    assert exit.value.code == 2
    assert message in capsys.readouterr().err


def test_help_needs_no_tensorflow(imagenet, capsys):
    with pytest.raises(SystemExit) as exit:
        imagenet.parse_args(["--help"])
    assert exit.value.code == 0
    assert "--warmup_epochs" in capsys.readouterr().out
    assert imagenet.tf is None
