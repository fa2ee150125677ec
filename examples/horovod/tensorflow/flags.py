"""The trainer's command line: every flag with its default.

This module does not import TensorFlow, so that --help and wrong flags are answered at once.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from pathlib import Path
from typing import Any

from schedule import DECAYS, check_trace, decay_steps_and_rates

MODELS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Return the flags as attributes. On a wrong flag, print an error and exit with status 2."""
    parser = argparse.ArgumentParser(
        usage="%(prog)s (--data_dir DIR | --synthetic) (--num_epochs N | --num_batches N | --eval)"
        " [options]",
        description="Train a ResNet on ImageNet with TensorFlow 2 and Horovod, or evaluate one."
        " Booleans have a twin that turns them off: --nofp16.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,  # or else --clear would mean --clear_log, which deletes files
    )
    add_run_flags(parser.add_argument_group("what to do"))
    add_log_flags(parser.add_argument_group("log folder"))
    add_speed_flags(parser.add_argument_group("speed"))
    add_learning_flags(parser.add_argument_group("model and loss"))
    add_rate_flags(parser.add_argument_group("learning rate"))
    add_color_flags(parser.add_argument_group("colours, for very large batches"))
    args, unknown = parser.parse_known_args(argv)
    for word in unknown:
        print(f"ERROR: Unknown command line arg: {word}", file=sys.stderr)
    if unknown:
        sys.exit(2)
    try:
        check(args)
    except ValueError as error:
        parser.error(str(error))
    return args


def check(args: argparse.Namespace) -> None:
    """Check flags that depend on each other, and expand ~. Raise ValueError."""
    if args.eval and not args.data_dir:
        raise ValueError("--eval needs --data_dir: it reads the validation files there")
    if not (args.data_dir or args.synthetic):
        raise ValueError("pass --data_dir, or --synthetic to train on noise")
    if args.data_dir and args.synthetic:
        raise ValueError("pass --data_dir or --synthetic, not both")
    if not (args.eval or args.num_epochs or args.num_batches):
        raise ValueError("pass --num_epochs or --num_batches")
    plain = args.log_name == Path(args.log_name).name and args.log_name not in ("", "..")
    if not args.eval and not plain:
        raise ValueError("--log_name is a file's name, without a folder")
    decay_steps_and_rates(args, 1, 1.0)
    if args.trace_steps and args.num_batches and not args.num_epochs:
        check_trace(args, args.num_batches)
    for name in ("log_dir", "trace_dir"):
        folder = getattr(args, name) or ""
        if "://" in folder:  # Path would make a folder named `s3:`
            raise ValueError(
                f"--{name} is a folder of the nodes, not {folder}: train into one, and copy it "
                "there with aws s3 sync"
            )
    args.log_dir = str(Path(args.log_dir).expanduser())
    if args.data_dir and "://" not in args.data_dir:
        args.data_dir = str(Path(args.data_dir).expanduser())


def add_run_flags(group: Any) -> None:
    add = group.add_argument
    add("-m", "--model", default="resnet50", choices=MODELS, help="model to train")
    add("--data_dir", help="folder with train-* and validation-* files, or its s3:// address")
    add_boolean(group, "synthetic", False, "train on one image of noise: measures speed")
    add("-b", "--batch_size", type=positive, default=256, help="images per GPU in one step")
    add("--image_size", type=positive, default=224, help="height and width of the images")
    add("--num_batches", type=positive, help="steps to train for")
    add("--num_epochs", type=positive, help="epochs to train for; overrides --num_batches")
    add("--seed", type=not_negative, default=0, help="of weights, crops and the images' order")
    add_boolean(group, "eval", False, "evaluate the last checkpoint instead of training")
    text = "evaluate every that many checkpoints, too: of those that are kept"
    add("--eval_interval", type=positive, help=text)
    text = "GPUs of the training, for eval's epochs; left out: the checkpoint knows"
    add("--num_gpus", type=positive, help=text)


def add_log_flags(group: Any) -> None:
    add = group.add_argument
    add("--log_dir", default="imagenet_resnet", help="folder of log, checkpoints and summaries")
    add_boolean(group, "clear_log", False, "delete what an earlier training left there")
    add("--log_name", default="hvd_train.log", help="log file there (eval_... of an evaluation)")
    add("--display_every", type=positive, default=50, help="steps between two rows")
    add_boolean(group, "local_ckpt", False, "save checkpoints on every node, not on one")
    text = "seconds between two checkpoints, of which the newest 5 are kept"
    add("--save_checkpoints_secs", type=positive, default=300, help=text)
    text = "steps between two checkpoints, all kept, in place of seconds; 0: an epoch"
    add("--save_checkpoints_steps", type=not_negative, help=text)
    text = "steps between two summaries for TensorBoard; 0: an epoch"
    add("--save_summary_steps", type=not_negative, default=0, help=text)
    add_boolean(group, "mllog", False, "print MLPerf's lines (:::MLLOG), too")


def add_speed_flags(group: Any) -> None:
    add = group.add_argument
    add_boolean(group, "fp16", True, "mixed precision: float16 with float32 weights")
    text = "of --fp16, fixed; left out: from 1024 on, as large as the gradients bear"
    add("--loss_scale", type=above_zero, help=text)
    add_boolean(group, "fp16_allreduce", False, "send gradients as float16: half as many bytes")
    add_boolean(group, "xla", False, "let XLA compile what it can of a step")
    text = "let XLA compile the update of all weights as one program"
    add_boolean(group, "fused_update", False, text)
    add("--intra_op_parallelism_threads", type=not_negative, default=1, help="of one operation")
    add("--inter_op_parallelism_threads", type=not_negative, default=5, help="operations at a time")
    text = "START:STOP, as 100:110: what these steps of rank 0 do, for Perfetto and TensorBoard"
    add("--trace_steps", type=step_range, help=text)
    add("--trace_dir", help="folder of that; left out: --log_dir")
    text = "threads that prepare images; left out: one for each CPU of a GPU, less two"
    add("--num_parallel_calls", type=positive, help=text)
    add_boolean(group, "all_cpus", False, "prepare images on those two CPUs, too")


def add_learning_flags(group: Any) -> None:
    add = group.add_argument
    add_boolean(group, "adv_bn_init", True, "start each block's last batch norm at zero")
    add_boolean(group, "adv_conv_init", True, "scale first convolutions by their inputs alone")
    add("--mom", type=share, default=0.90, help="momentum")
    add("--wdecay", type=number, default=0.0001, help="weight decay")
    add("--label_smoothing", type=share, default=0.0, help="share of a label given to all classes")
    add_boolean(group, "use_larc", False, "limit each layer's step by its weights (LARC)")
    add("--leta", type=above_zero, default=0.013, help="LARC: weights' share a step may change")


def add_rate_flags(group: Any) -> None:
    add = group.add_argument
    text = "left out: 0.1 for every 256 images of a step, with --use_larc 3.7"
    add("--lr", type=above_zero, help=text)
    add("--warmup_lr", type=number, default=0.001, help="learning rate the warm-up starts at")
    add("--warmup_epochs", type=not_negative, default=0, help="epochs from there to --lr")
    add("--lr_decay_mode", default="poly", choices=sorted(DECAYS), help="shape of the decay")
    add("--lr_decay_steps", default="30,60,80", help="steps: epochs at which the rate changes")
    add("--lr_decay_lrs", default="", help="steps: the rates; left out: a tenth at each change")
    text = "restarts: the first period's share of the steps"
    add("--cdr_first_decay_ratio", type=above_zero, default=0.33, help=text)
    add("--cdr_t_mul", type=at_least_one, default=2.0, help="restarts: growth of the period")
    add("--cdr_m_mul", type=number, default=0.1, help="restarts: growth of the rate")
    add("--cdr_alpha", type=number, default=0.0, help="restarts: lowest share of the rate")
    add("--lc_periods", type=number, default=0.47, help="linear_cosine: periods")
    add("--lc_alpha", type=number, default=0.0, help="linear_cosine: alpha")
    add("--lc_beta", type=number, default=0.00001, help="linear_cosine: beta")


def add_color_flags(group: Any) -> None:
    add = group.add_argument
    add_boolean(group, "increased_aug", False, "change colours, too, not only crop and flip")
    add("--contrast", type=share, default=0.6, help="contrast changes by up to this share")
    add("--saturation", type=share, default=0.6, help="saturation changes by up to this share")
    add("--hue", type=number, default=0.13, help="hue changes by up to this, times pi")
    add("--brightness", type=number, default=0.3, help="brightness changes by up to this")


def add_boolean(group: Any, name: str, default: bool, text: str) -> None:
    """Add a boolean flag --name and its opposite --noname."""
    pair = group.add_mutually_exclusive_group()
    pair.add_argument(f"--{name}", action="store_true", default=default, help=text)
    pair.add_argument(f"--no{name}", dest=name, action="store_false", help=argparse.SUPPRESS)


def positive(text: str) -> int:
    return at_least(1, int(text), text)


def not_negative(text: str) -> int:
    return at_least(0, int(text), text)


def at_least(lowest: int, value: int, text: str) -> int:
    if value < lowest:
        raise argparse.ArgumentTypeError(f"{text} is not {lowest} or more")
    return value


def step_range(text: str) -> tuple[int, int]:
    first, colon, stop = text.partition(":")
    words = [word for word in (first, stop) if re.fullmatch("[0-9]{1,9}", word)]
    if not colon or len(words) < 2 or int(stop) <= int(first):
        raise argparse.ArgumentTypeError(f"{text} is not START:STOP, as 100:110")
    return int(first), int(stop)


def number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or value < 0:
        raise argparse.ArgumentTypeError(f"{text} is not a number of 0 or more")
    return value


def above_zero(text: str) -> float:
    if not number(text):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return float(text)


def at_least_one(text: str) -> float:
    if number(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return float(text)


def share(text: str) -> float:
    if number(text) >= 1:
        raise argparse.ArgumentTypeError(f"{text} is not from 0 to below 1")
    return float(text)
