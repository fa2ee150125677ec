"""Train a ResNet on ImageNet with TensorFlow 2 and Horovod, and evaluate it.

On one GPU, or on CPUs, with one image of noise as data:

    python train_imagenet_resnet_hvd.py --synthetic --num_batches 1000

On the 32 GPUs of the hosts in a hosts file, and then the accuracy, on 8 GPUs of one host:

    mpirun -np 32 -hostfile hosts python train_imagenet_resnet_hvd.py \
        --data_dir ~/data/tf-imagenet --num_epochs 90 --warmup_epochs 10
    mpirun -np 8 python train_imagenet_resnet_hvd.py \
        --data_dir ~/data/tf-imagenet --eval

On the two cores of a laptop (--nofp16, because float16 is slow without a GPU):

    mpirun -np 2 python train_imagenet_resnet_hvd.py --synthetic --nofp16 \
        --image_size 64 --batch_size 8 --num_batches 40 --display_every 10

Comments that start with `Horovod:` mark the lines that are needed only because several processes
train. Without those lines, this is a program for one GPU. Its parts are in files of their own:
flags, affinity (which processors a process uses), schedule (steps and learning rates), data,
records and augment (from files to images), batches, model, step (loss, LARC, momentum),
checkpoints, evaluate, log, step_trace, and agreement (values that all processes must share, and how
they fail together).
"""

# ruff: noqa: E402
from __future__ import annotations

from affinity import bind_near_gpu
from flags import parse_args

if __name__ == "__main__":
    ARGS = parse_args()  # before TensorFlow's import: --help and wrong flags are answered at once
    bind_near_gpu()  # Horovod: also before it, because its threads inherit the processors.

import argparse
import math
import os
import socket
import sys
import time
from collections.abc import Iterable
from typing import Any

STARTED_AT = time.time()

# TensorFlow reads these, so they are set before its import: errors only, two threads per GPU that
# launch kernels, and faster cuDNN kernels for batch norm and convolutions.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_GPU_THREAD_MODE", "gpu_private")
os.environ.setdefault("TF_GPU_THREAD_COUNT", "2")
os.environ.setdefault("TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT", "1")
os.environ.setdefault("TF_ENABLE_WINOGRAD_NONFUSED", "1")

import horovod.tensorflow as hvd
import tensorflow as tf
from agreement import (
    EXPECTED,
    CommonProblem,
    Problem,
    end,
    from_rank_0,
    offer_stacks,
    same_everywhere,
    together,
)
from batches import look_for, training_batches
from checkpoints import Checkpoints
from evaluate import evaluate
from log import Log, Summaries, Table
from model import build_resnet
from schedule import TRAINING_IMAGES, Schedule, make_schedule
from step import LossScale, Trainer
from step_trace import StepTrace

# Skipped steps in a row that end a run. The largest loss scale, 2^24, falls to 1 in fewer steps.
MOST_SKIPPED = 30


def main(args: argparse.Namespace) -> None:
    try:
        start(args)
        log = Log(args)
        log.line(f"PY{sys.version}TF{tf.__version__}")
        log.line(f"Horovod size: {hvd.size()}")  # Horovod: the number of processes.
        if args.eval:
            evaluate(args, log)
        else:
            train(args, log)
    except EXPECTED as error:
        end(error)
    except KeyboardInterrupt:
        sys.exit(130)


def start(args: argparse.Namespace) -> None:
    """Start Horovod, select this process's GPU, and configure TensorFlow. Raise Problem."""
    if getattr(tf.keras, "__version__", "2").startswith("3"):
        raise Problem("Keras 3 does not train with Horovod: take TensorFlow 2.15, or tf_keras")
    offer_stacks()
    hvd.init()  # Horovod: from here on each process knows its rank.
    if hvd.rank() == 0 and hvd.cross_size() > 1 and "NCCL_DEBUG" not in os.environ:
        # Horovod: let rank 0's NCCL print which network it uses between the nodes.
        os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET,ENV")
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        # Horovod: leave memory for NCCL, whose buffers TensorFlow does not allocate.
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        if hvd.local_rank() >= len(gpus):
            raise Problem(f"{hvd.local_size()} processes and {len(gpus)} GPUs on this node")
        # Horovod: one GPU for each process of a host.
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
    # Channels first on GPUs, as in the original. Float16 convolutions are faster with channels last
    # there, and TensorFlow's layout optimizer converts them (generic_layout_optimizer.cc: NVIDIA
    # from compute capability 7.0 on, at least half of them in float16). On CPUs only channels last
    # can be computed.
    tf.keras.backend.set_image_data_format("channels_first" if gpus else "channels_last")
    tf.config.threading.set_intra_op_parallelism_threads(args.intra_op_parallelism_threads)
    tf.config.threading.set_inter_op_parallelism_threads(args.inter_op_parallelism_threads)
    tf.keras.utils.set_random_seed(args.seed)
    tf.keras.mixed_precision.set_global_policy("mixed_float16" if args.fp16 else "float32")
    if args.xla:
        tf.config.optimizer.set_jit("autoclustering")
    # Horovod: every process learns which processors those of its node may use.
    here = socket.gethostname()
    mine = os.sched_getaffinity(0)
    told = hvd.allgather_object((here, sorted(mine)))
    spared = 0 if args.all_cpus else 2
    threads = input_threads(mine, [used for host, used in told if host == here], spared)
    args.num_parallel_calls = args.num_parallel_calls or threads


def input_threads(mine: Iterable[int], everyones: Iterable[Iterable[int]], spared: int) -> int:
    """Return how many threads prepare images for this process.

    `mine` are the processors that it may use, `everyones` those of each process of the node, this
    one included. The threads are its share of `mine`, less `spared` for the step and Horovod; at
    least one.
    """
    mine = set(mine)
    sharing = sum(not mine.isdisjoint(used) for used in everyones)
    return max(1, len(mine) // sharing - spared)


def train(args: argparse.Namespace, log: Log) -> None:
    """Train to the last step, from the last checkpoint if there is one."""
    reads_at = time.time()  # MLPerf's clock begins here: before anything reads the data
    found, images_per_epoch = None, TRAINING_IMAGES
    if args.data_dir:
        log.line(f"Using data from: {args.data_dir}")
        # Horovod: each node reads its own copy of the files. The copies must not differ.
        found = same_everywhere(lambda: look_for(args.data_dir, "train"))
        images_per_epoch = found.images
        log.line(f"Found {found.images} training samples")
    schedule = from_rank_0(lambda: make_schedule(args, hvd.size(), images_per_epoch))
    log.line(f"Using a learning rate of {schedule.peak}")

    # As in the original, the time of the whole begins before the graph is built.
    started = time.time()
    trainer = Trainer(args, build_resnet(args))
    checkpoints = Checkpoints(args, schedule, trainer)
    summaries = Summaries(args, schedule, trainer.scale)
    trace = StepTrace(args, log)
    first_step = 0
    if found:  # a run on noise has nothing worth saving
        log.line(f"Checkpointing every {checkpoints.interval}")
        log.line(f"Saving summary every {summaries.every} steps")
        log.line(f"Using preprocessing threads per GPU: {args.num_parallel_calls}")
        first_step = checkpoints.resume(log.line)
        if first_step >= schedule.steps:
            return
    log.record(
        "begin",
        gpus=hvd.size(),  # Horovod: the number of ranks that train.
        tensorflow=tf.__version__,
        data=args.data_dir,
        training_samples=found.images if found else None,
        peak_learning_rate=schedule.peak,
        resumed_from=first_step or None,
        steps=schedule.steps,
        **kind_of_work(args),
    )
    log_recipe(args, schedule, None if first_step else reads_at, log)
    trainer.broadcast()  # Horovod: all processes start with the same weights.
    batches = together(lambda: training_batches(args, found, first_step))

    table = Table(log, schedule, trainer.scale, first_step)
    for step, (images, labels) in zip(range(first_step, schedule.steps), batches):
        rate = tf.constant(schedule.learning_rate(step))
        log_epoch(schedule, step, first_step, log)
        with trace.step(step):
            loss, final_loss = trainer.step(images, labels, rate)
        trace.after(step + 1, final_loss, step + 1 == schedule.steps)
        if step == 1 or step % args.display_every == 0:
            table.row(step, float(loss), float(final_loss))  # waits for the device
            if found:
                check(trainer.scale, final_loss, schedule.steps)
        if found:
            summaries.after(step + 1, loss, final_loss)
            if checkpoints.due(step + 1):
                check(trainer.scale, final_loss, schedule.steps)
                checkpoints.save(step + 1)
            elif checkpoints.overdue(step + 1):
                checkpoints.save_by_time(step + 1)
            elif checkpoints.noticed():
                log.line(f"Saving step {step + 1}: a node is about to be taken away")
                checkpoints.save_by_time(step + 1)
    float(final_loss)  # waits for the device, so that the time includes the last step
    took_s = time.time() - started
    log.line(f"Finished in {took_s}")
    log.record("end", finished_in_s=took_s)
    log.mllog("epoch_stop", epoch_num=int(schedule.epoch(schedule.steps - 1)) + 1)
    if not found:  # no evaluation follows that could reach the accuracy
        log.mllog("run_stop", status="aborted")


def kind_of_work(args: argparse.Namespace) -> dict[str, Any]:
    """Return what tells how many operations an image takes, and how many a second the GPUs can do.

    `gpu` has the names of all processes' GPUs, as the driver has them; None on CPUs.
    """
    names = [
        tf.config.experimental.get_device_details(gpu).get("device_name", "unknown")
        for gpu in tf.config.get_visible_devices("GPU")[:1]
    ]
    found = hvd.allgather_object(names)  # Horovod: nodes may have different GPUs.
    return {
        "model": args.model,
        "image_size": args.image_size,
        "precision": "float16" if args.fp16 else "float32",
        "gpu": ", ".join(sorted({name for each in found for name in each})) or None,
    }


def log_recipe(
    args: argparse.Namespace, schedule: Schedule, reads_at: float | None, log: Log
) -> None:
    """Write the start of MLPerf's ResNet benchmark (closed_resnet.yaml of its compliance checker).

    The division is open: the closed one prescribes another schedule. The evaluation writes
    eval_samples. `reads_at` is when the run began to read its data; None for one that goes on from
    a checkpoint, which has no time of the whole.
    """
    log.mllog("submission_benchmark", "resnet", at_s=STARTED_AT)
    log.mllog("submission_division", "open", at_s=STARTED_AT)
    if reads_at is not None:
        log.mllog("init_start", at_s=STARTED_AT)
        log.mllog("init_stop", at_s=reads_at)
        log.mllog("run_start", at_s=reads_at)
    log.mllog("seed", args.seed)
    log.mllog("global_batch_size", schedule.global_batch)
    log.mllog("gradient_accumulation_steps", 1)
    log.mllog("train_samples", schedule.images)
    log.mllog("opt_name", "sgd")
    log.mllog("opt_base_learning_rate", schedule.peak)
    log.mllog("opt_learning_rate_warmup_epochs", args.warmup_epochs)
    log.mllog("opt_weight_decay", args.wdecay)


def log_epoch(schedule: Schedule, step: int, first_step: int, log: Log) -> None:
    """Write where an epoch of MLPerf's log ends and the next begins. Epochs count from 1."""
    epoch = int(schedule.epoch(step)) + 1
    if step > first_step:
        before = int(schedule.epoch(step - 1)) + 1
        if epoch == before:
            return
        log.mllog("epoch_stop", epoch_num=before)
    log.mllog("epoch_start", epoch_num=epoch)


def check(scale: LossScale, loss: tf.Tensor, steps: int) -> None:
    """Raise CommonProblem if too many steps in a row were skipped: they change no weight."""
    in_a_row = int(scale.skipped_in_a_row)
    if not in_a_row:
        return
    # Horovod: the mean loss and the count are the same on all processes, so they end together.
    mean = float(hvd.allreduce(loss, name="checked_loss"))
    # A smaller loss scale cannot help if the loss itself is not finite: a short run ends earlier.
    short_run = max(1, steps // 2)
    if in_a_row >= (MOST_SKIPPED if math.isfinite(mean) else min(MOST_SKIPPED, short_run)):
        raise CommonProblem(
            f"{in_a_row} steps in a row were skipped, whose gradients are no numbers"
            f" (loss {mean:.3f}, loss scale {float(scale.value):.10g}): lower --lr, raise"
            " --warmup_epochs or leave --loss_scale out"
        )


if __name__ == "__main__":
    main(ARGS)
