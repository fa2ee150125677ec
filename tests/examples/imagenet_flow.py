"""Runs the trainer several times in one process per rank, under mpirun.

So TensorFlow is imported only once. The test reads the log folders. Rank 0 prints the exit statuses
as JSON. float16 is slow on CPUs, so the loss scale adapts in float32 here, and gradients are sent
as float16.

    imagenet_flow.py TRAINER DATA_FOLDER
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(sys.argv[1]).parent))
import checkpoints  # noqa: E402
import evaluate as evaluation  # noqa: E402
import horovod.tensorflow as hvd  # noqa: E402
import step  # noqa: E402
import tensorflow as tf  # noqa: E402
import train_imagenet_resnet_hvd as imagenet  # noqa: E402
from flags import parse_args  # noqa: E402

TINY = ["-m", "resnet18", "--image_size", "32", "-b", "4", "--nofp16"]
TRAIN = [*TINY, "--num_batches", "12", "--save_checkpoints_steps", "5"]


class MovingScale(step.LossScale):
    def __init__(self, args: Any) -> None:
        super().__init__(args)
        self.is_fixed = False
        self.value.assign(2.0**22)


class Clock:
    """Goes on by 300 s each time that it is read. On rank 1 it is always hours ahead."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 300.0 + 10_000 * hvd.rank()
        return self.now


class NoticedAtStep7(checkpoints.Checkpoints):
    def due(self, step: int) -> bool:
        if step == 7 and self.saves:
            Path(checkpoints.NOTICE).touch()
        return super().due(step)


def main() -> None:
    hvd.init()
    step.LossScale, step.GROWS_AFTER = MovingScale, 2
    data = ["--data_dir", sys.argv[2]]
    plain = [*data, *TRAIN, "--increased_aug", "--display_every", "4", "--save_summary_steps", "4"]
    train = [*plain, "--fp16_allreduce"]
    statuses = {"train": run(*train, "--mllog", "--log_dir", "whole")}
    evaluate = ["--data_dir", only_validation(Path(sys.argv[2])), *TINY, "--eval", "--mllog"]
    pruned_before_it_is_read("whole")
    statuses["eval"] = run(*evaluate, "--eval_interval", "2", "--log_dir", "whole")
    statuses["again"] = run(*train, "--log_dir", "whole")
    copy_checkpoint("model.ckpt-5", "resumed", "model.ckpt-5")
    copy_checkpoint("model.ckpt-10", "resumed", ".model.ckpt-10")  # incomplete: never renamed
    checkpoints.NOTICE, imagenet.Checkpoints = "notice", NoticedAtStep7
    checkpoints.time = Clock()
    at = train.index("--save_checkpoints_steps")
    by_time = [*train[:at], *train[at + 2 :], "--mllog"]
    statuses["resumed"] = run(*by_time, "--log_dir", "resumed", "--local_ckpt")
    imagenet.Checkpoints = checkpoints.Checkpoints
    timed = saved_by_time(Path("timed"))

    copy_checkpoint("model.ckpt-5", "early", "model.ckpt-5")
    statuses["other batch"] = run(*train, "-b", "5", "--log_dir", "early")
    statuses["more ranks"] = run(*train, "-b", "8", "--num_batches", "5", "--log_dir", "early")
    statuses["other model"] = run(*train, "-m", "resnet34", "--log_dir", "early")
    if hvd.rank() == 0:
        os.truncate("early/model.ckpt-5.data-00000-of-00001", 1000)
    statuses["damaged"] = run(*train, "--log_dir", "early")
    for name, length in (("model.ckpt-5", 0), ("model.ckpt-10", 1000), ("model.ckpt-12", 1000)):
        copy_checkpoint(name, "damaged last", name)
        if length and hvd.rank() == 0:
            os.truncate(f"damaged last/{name}.data-00000-of-00001", length)
    statuses["damaged last"] = run(*train, "--log_dir", "damaged last")
    statuses["no data"] = run(*TRAIN, "--data_dir", "no such", "--log_dir", "bad")
    statuses["too few"] = run(*train, "-b", "1000", "--log_dir", "bad")
    statuses["no checkpoint"] = run(*evaluate, "--log_dir", "bad")
    if hvd.rank() == 0:
        for mine in ("mine", "model.ckpt-best.index", "model.ckpt-notes"):
            Path("early", mine).touch()
    diverges = ["--lr", "1e30", "--save_checkpoints_steps", "100"]
    statuses["diverged"] = run(*plain, *diverges, "--log_dir", "early", "--clear_log")
    if hvd.rank() == 0:
        print("STATUSES " + json.dumps(statuses), flush=True)
        print("TIMED " + json.dumps(timed), flush=True)
        there = filter(checkpoints.is_by_time, checkpoints.saved_in("resumed"))
        print("BY_TIME " + json.dumps([saved.step for saved in there]), flush=True)
        print("TENSORS " + json.dumps(compared("model.ckpt-12")), flush=True)


def pruned_before_it_is_read(folder: str) -> None:
    """Add two checkpoints that a training deletes after the evaluation has listed them."""
    counter_of = evaluation.counter_of
    if hvd.rank() == 0:
        by_time = {checkpoints.BY_TIME: tf.Variable(1, dtype=tf.int64)}
        for number in (3, 4):
            checkpoints.save(tf.train.Checkpoint(besides=by_time), folder, number)

    def prune(*arguments: Any) -> Any:
        evaluation.counter_of = counter_of
        for number in (3, 4):
            checkpoints.delete(folder, number)
        return counter_of(*arguments)

    evaluation.counter_of = prune


def saved_by_time(folder: Path) -> dict[str, list[Any]]:
    """Save after some of nine steps, by the clock, and after three more in a run that goes on.

    Return the steps of the first by rank, and the files. A checkpoint saved by steps is there.
    """
    folder.mkdir(exist_ok=True)
    args = parse_args(["--synthetic", "--num_batches", "100", "--log_dir", str(folder)])
    scale = SimpleNamespace(variables={})
    trainer = SimpleNamespace(model=tf.Module(), momenta=[], scale=scale)
    checkpoints.time = Clock()
    ours = checkpoints.Checkpoints(args, imagenet.make_schedule(args, 2), trainer)
    ours.saved_at += 300  # the first step comes early
    if hvd.rank() == 0:
        checkpoints.save(ours.state, str(folder), 1)
    saved = []
    for number in range(1, 10):
        if ours.overdue(number):
            ours.save_by_time(number)
            saved.append(number)
    later = checkpoints.Checkpoints(args, imagenet.make_schedule(args, 2), trainer)
    for number in range(later.resume(str) + 1, 13):
        later.save_by_time(number)
    hvd.allreduce(tf.constant(0.0), name="saved")
    return {
        "steps": hvd.allgather_object(saved),
        "files": sorted(path.name for path in folder.iterdir()),
    }


def only_validation(data: Path) -> str:
    """Return a folder with only the validation files: an evaluation needs no others."""
    if hvd.rank() == 0:
        Path("validation only").mkdir()
        for file in data.glob("validation-*"):
            shutil.copy(file, "validation only")
    hvd.allreduce(tf.constant(0.0), name="validation_copied")
    return "validation only"


def run(*argv: str) -> int:
    try:
        imagenet.main(parse_args([*argv]))
    except SystemExit as exit:
        return int(exit.code) if isinstance(exit.code, int) else 1
    return 0


def compared(name: str) -> dict[str, list[str]]:
    """Return the names of tensors that are equal in a checkpoint of both runs, and of others."""
    whole, resumed = (tf.train.load_checkpoint(f"{run}/{name}") for run in ("whole", "resumed"))
    told: dict[str, list[str]] = {"same": [], "other": []}
    for key in sorted({*whole.get_variable_to_shape_map(), *resumed.get_variable_to_shape_map()}):
        # It has layers' names, whose numbers go on within one process.
        if key != "_CHECKPOINTABLE_OBJECT_GRAPH":
            same = whole.get_tensor(key).tobytes() == resumed.get_tensor(key).tobytes()
            told["same" if same else "other"].append(key)
    return told


def copy_checkpoint(name: str, folder: str, new_name: str) -> None:
    if hvd.rank() == 0:
        Path(folder).mkdir(exist_ok=True)
        for part in Path("whole").glob(f"{name}.*"):
            shutil.copy(part, Path(folder, part.name.replace(name, new_name)))
    hvd.allreduce(tf.constant(0.0), name=f"copied_{folder}_{new_name}")


if __name__ == "__main__":
    main()
