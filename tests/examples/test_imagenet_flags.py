"""The ImageNet trainer's command line."""

from __future__ import annotations

import re
import sys

import pytest

from tests.programs import completed

from .conftest import IMAGENET

ENOUGH = ["--synthetic", "--num_batches", "1"]


DEFAULTS = """\
model=resnet50 data_dir=None batch_size=256 image_size=224 num_epochs=None num_batches=1 seed=0
log_dir=imagenet_resnet log_name=hvd_train.log clear_log=False local_ckpt=False display_every=50
eval=False eval_interval=None num_gpus=None save_checkpoints_secs=300 save_checkpoints_steps=None
save_summary_steps=0 mllog=False
fp16=True fp16_allreduce=False loss_scale=None xla=False fused_update=False
all_cpus=False adv_bn_init=True adv_conv_init=True
intra_op_parallelism_threads=1 inter_op_parallelism_threads=5 num_parallel_calls=None
lr=None mom=0.9 wdecay=0.0001 label_smoothing=0.0 warmup_lr=0.001 warmup_epochs=0
lr_decay_mode=poly lr_decay_steps=30,60,80 lr_decay_lrs= use_larc=False leta=0.013
cdr_first_decay_ratio=0.33 cdr_t_mul=2.0 cdr_m_mul=0.1 cdr_alpha=0.0
lc_periods=0.47 lc_alpha=0.0 lc_beta=1e-05
increased_aug=False contrast=0.6 saturation=0.6 hue=0.13 brightness=0.3 synthetic=True
trace_steps=None trace_dir=None
"""


def test_defaults(imagenet):
    args = vars(imagenet.parse_args(ENOUGH))
    assert {f"{name}={value}" for name, value in args.items()} == set(DEFAULTS.split())


def test_every_boolean_has_a_twin(imagenet):
    names = ("clear_log", "fp16", "adv_bn_init", "adv_conv_init", "local_ckpt", "use_larc", "xla")
    for name in (*names, "fused_update", "all_cpus"):
        assert getattr(imagenet.parse_args([*ENOUGH, f"--{name}"]), name) is True
        assert getattr(imagenet.parse_args([*ENOUGH, f"--no{name}"]), name) is False


def test_epochs_override_batches(imagenet):
    args = imagenet.parse_args([*ENOUGH, "--num_epochs", "90"])
    assert imagenet.make_schedule(args, 32).steps == 14_075


@pytest.mark.parametrize(
    "line",
    [
        "--data_dir d --num_epochs 90 -b 256 --lr_decay_mode poly --warmup_epochs 10 --clear_log",
        "--data_dir d --num_epochs 90 --increased_aug -b 256 --mom 0.977 --wdecay 0.0005"
        " --loss_scale 256. --use_larc --lr_decay_mode linear_cosine --warmup_epochs 5 --clear_log",
        "--data_dir d --num_epochs 90 -b 256 --eval --num_gpus 32",
        "--data_dir d --eval",
        "--synthetic -b 256 --num_epochs 5 --clear_log --use_larc --loss_scale 256.",
        "--model resnet50 --fp16 --adv_bn_init --display_every 100 --lr 6.4 --loss_scale 1024."
        " --lr_decay_mode poly --synthetic --log_dir resnet50_log --num_batches 1000",
    ],
)
def test_the_tutorials_command_lines_are_taken(imagenet, line):
    imagenet.parse_args(line.split())


def test_the_home_folder_is_found(imagenet, monkeypatch):
    monkeypatch.setenv("HOME", "/home/we ird'é")
    args = imagenet.parse_args(["--data_dir=~/data", "--log_dir=~/log", "--num_epochs", "1"])
    assert (args.data_dir, args.log_dir) == ("/home/we ird'é/data", "/home/we ird'é/log")
    args = imagenet.parse_args(["--data_dir", "s3://bucket/~/x", "--num_epochs", "1"])
    assert args.data_dir == "s3://bucket/~/x"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([*ENOUGH, "--use_magic"], "ERROR: Unknown command line arg: --use_magic"),
        ([*ENOUGH, "--clear"], "ERROR: Unknown command line arg: --clear"),
        ([*ENOUGH, "extra"], "ERROR: Unknown command line arg: extra"),
        (["--num_batches", "1"], "pass --data_dir, or --synthetic"),
        (["--num_batches", "1", "--data_dir", ""], "pass --data_dir, or --synthetic"),
        ([*ENOUGH, "--data_dir", "d"], "not both"),
        (["--synthetic", "--eval"], "--eval needs --data_dir"),
        (["--synthetic"], "pass --num_epochs or --num_batches"),
        (["--data_dir", "d"], "pass --num_epochs or --num_batches"),
        ([*ENOUGH, "--log_name", "../x.log"], "without a folder"),
        ([*ENOUGH, "--log_name", ".."], "without a folder"),
        ([*ENOUGH, "--log_dir", "s3://bucket/x"], "is a folder of the nodes, not s3://bucket/x: "),
        ([*ENOUGH, "--trace_dir", "s3://bucket/x"], "is a folder of the nodes, not s3://bucket/x"),
        ([*ENOUGH, "-m", "resnet19"], "invalid choice: 'resnet19'"),
        ([*ENOUGH, "-b", "0"], "0 is not 1 or more"),
        ([*ENOUGH, "--seed", "-1"], "-1 is not 0 or more"),
        ([*ENOUGH, "--lr", "nan"], "nan is not a number of 0 or more"),
        ([*ENOUGH, "--lr", "0"], "0 is not above 0"),
        ([*ENOUGH, "--loss_scale", "0"], "0 is not above 0"),
        ([*ENOUGH, "--label_smoothing", "1"], "1 is not from 0 to below 1"),
        ([*ENOUGH, "--cdr_t_mul", "0.5"], "0.5 is not 1 or more"),
        ([*ENOUGH, "--fp16", "--nofp16"], "not allowed with"),
        ([*ENOUGH, "--lr_decay_lrs", "1,2"], "one rate more than"),
        ([*ENOUGH, "--lr_decay_steps", "30,x"], "--lr_decay_steps 30,x: whole epochs"),
        ([*ENOUGH, "--lr_decay_lrs", "1,x"], "--lr_decay_lrs 1,x: numbers"),
        ([*ENOUGH, "--lr_decay_lrs", "nan,3,2,1"], "nan,3,2,1: not all are numbers"),
        ([*ENOUGH, "--lr_decay_steps", "60,30"], "60,30 does not rise"),
        ([*ENOUGH, "--trace_steps", "5"], "5 is not START:STOP, as 100:110"),
        ([*ENOUGH, "--trace_steps", "5:5"], "5:5 is not START:STOP, as 100:110"),
        ([*ENOUGH, "--trace_steps", "900:901"], "begins with step 900, and the last one is "),
    ],
)
def test_wrong_flags_exit_with_2_and_say_what(imagenet, capsys, argv, message):
    with pytest.raises(SystemExit) as exit:
        imagenet.parse_args(argv)
    assert exit.value.code == 2
    assert message in capsys.readouterr().err


def test_help_needs_no_tensorflow():
    done = completed([sys.executable, IMAGENET, "--help"])
    assert done.returncode == 0, done.stderr
    assert "--warmup_epochs" in done.stdout
    mistake = completed([sys.executable, IMAGENET, "--eval"])
    assert mistake.returncode == 2
    assert mistake.stderr.splitlines()[-1].endswith("reads the validation files there")


def test_every_line_for_distribution_is_marked():
    """For a single GPU, the marked lines and all of agreement.py can be left out."""
    for path in set(IMAGENET.parent.glob("*.py")) - {IMAGENET.with_name("agreement.py")}:
        lines = path.read_text().splitlines()
        for number, line in enumerate(lines):
            if re.search(r"\bhvd\.", line) and not line.startswith(("import ", "from ")):
                near = "\n".join(lines[max(0, number - 4) : number + 2])
                assert "Horovod:" in near, f"{path.name}:{number + 1}: {line}"
