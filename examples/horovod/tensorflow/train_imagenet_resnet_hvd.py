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
flags, schedule (steps and learning rates), data, records and augment (from files to images),
batches, model, step (loss, LARC, momentum), checkpoints, evaluate, log, step_trace, and agreement
(values that all processes must share, and how they fail together).
"""

# ruff: noqa: E402
from __future__ import annotations

from flags import parse_args

if __name__ == "__main__":
    ARGS = parse_args()  # before TensorFlow's import: --help and wrong flags are answered at once

import argparse
import math
import os
import sys
import time

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
from schedule import TRAINING_IMAGES, make_schedule
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
    # Horovod: the processes of a node share its CPUs.
    spared = 0 if args.all_cpus else 2
    threads = input_threads(os.cpu_count() or 1, hvd.local_size(), spared)
    args.num_parallel_calls = args.num_parallel_calls or threads


def input_threads(cpus: int, processes: int, spared: int) -> int:
    """Return how many threads prepare images for one of a node's `processes`.

    They are the process's share of the node's CPUs, less `spared` for the step and Horovod; at
    least 1.
    """
    return max(1, cpus // processes - spared)


def train(args: argparse.Namespace, log: Log) -> None:
    """Train to the last step, from the last checkpoint if there is one."""
    found, images_per_epoch = None, TRAINING_IMAGES
    if args.data_dir:
        log.line(f"Using data from: {args.data_dir}")
        # Horovod: each node reads its own copy of the files. The copies must not differ.
        found = same_everywhere(lambda: look_for(args.data_dir, "train"))
        images_per_epoch = found.images
        log.line(f"Found {found.images} training samples")
    schedule = from_rank_0(lambda: make_schedule(args, hvd.size(), images_per_epoch))
    log.line(f"Using a learning rate of {schedule.peak}")

    trainer = Trainer(args, build_resnet(args))
    checkpoints = Checkpoints(args, schedule, trainer)
    summaries = Summaries(args, schedule, trainer.scale)
    trace = StepTrace(args, log)
    first_step = 0
    if found:  # a run on noise has nothing worth saving
        log.line(f"Checkpointing every {checkpoints.every} steps")
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
    )
    trainer.broadcast()  # Horovod: all processes start with the same weights.
    batches = together(lambda: training_batches(args, found, first_step))

    started = time.time()
    table = Table(log, schedule, trainer.scale, first_step)
    for step, (images, labels) in zip(range(first_step, schedule.steps), batches):
        rate = tf.constant(schedule.learning_rate(step))
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
            elif checkpoints.noticed():
                log.line(f"Saving step {step + 1}: a node is about to be taken away")
                checkpoints.save(step + 1)
    float(final_loss)  # waits for the device, so that the time includes the last step
    took_s = time.time() - started
    log.line(f"Finished in {took_s}")
    log.record("end", finished_in_s=took_s)


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
