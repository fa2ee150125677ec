"""Train a ResNet on ImageNet-sized synthetic data with TensorFlow 2 and Horovod.

One GPU, or none:

    python train_imagenet_resnet_hvd.py --synthetic --num_batches 1000

Every GPU of the hosts in a hosts file, 32 in all:

    mpirun -np 32 -hostfile hosts python train_imagenet_resnet_hvd.py --synthetic --num_epochs 5

A laptop's two cores (float16 is slow without a GPU, so --nofp16):

    mpirun -np 2 python train_imagenet_resnet_hvd.py --synthetic --nofp16 \
        --image_size 64 --batch_size 8 --num_batches 40 --display_every 10

Every line marked `Horovod:` is there because more than one process trains; without those lines
this is a program for one GPU.

The model is the residual network of https://arxiv.org/abs/1512.03385 with the stride in the 3x3
convolution; the last batch normalisation of a block starts at zero, and the learning rate grows
with the batch after a warm-up, as in https://arxiv.org/abs/1706.02677.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

TRAINING_IMAGES = 1_281_167  # ImageNet's; an epoch of synthetic data is as long
CLASSES = 1000
CHANNEL_MEAN = (121.0, 115.0, 100.0)
CHANNEL_STD = (70.0, 68.0, 71.0)

# Blocks per stage, and whether a block is three convolutions (a bottleneck) or two.
MODELS = {
    "resnet18": ((2, 2, 2, 2), False),
    "resnet34": ((3, 4, 6, 3), False),
    "resnet50": ((3, 4, 6, 3), True),
    "resnet101": ((3, 4, 23, 3), True),
    "resnet152": ((3, 8, 36, 3), True),
}

HEADER = "  Step Epoch Speed   Loss  FinLoss   LR"
ROW = "%6i %5.1f %7.1f %6.3f %6.3f %7.5f"

# Imported by start(): the environment has to be set first, and --help should not wait for them.
tf: Any = None
hvd: Any = None


# ---------------------------------------------------------------------------------------------
# Command line


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        usage="%(prog)s --synthetic (--num_batches N | --num_epochs N) [options]",
        description=(__doc__ or "").partition("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("-m", "--model", default="resnet50", choices=sorted(MODELS, key=len), help="model to train")
    add_flag(parser, "synthetic", False, "train on random images made on the device")
    add("-b", "--batch_size", type=positive, default=256, help="images per GPU in one step")
    add("--image_size", type=positive, default=224, help="height and width of the images")
    add("--num_batches", type=positive, help="steps to train for")
    add("--num_epochs", type=positive, help="epochs to train for; overrides --num_batches")
    add("--log_dir", default="imagenet_resnet", help="folder of the log")
    add_flag(parser, "clear_log", False, "start with an empty log folder")
    add("--log_name", default="hvd_train.log", help="file in the log folder")
    add("--display_every", type=positive, default=50, help="steps between two rows")
    add_flag(parser, "fp16", True, "train in mixed precision (float16 with float32 weights)")
    add("--loss_scale", type=float, default=1024.0, help="keeps float16 gradients from vanishing")
    add("--intra_op_parallelism_threads", type=int, default=1, help="threads of one operation")
    add("--inter_op_parallelism_threads", type=int, default=5, help="operations at one time")
    add_flag(parser, "adv_bn_init", True, "start each block's last batch normalisation at zero")
    add_flag(parser, "adv_conv_init", True, "scale initial convolutions by their inputs alone")

    add("--lr", type=float, help="learning rate; left out: 0.1 for every 256 images of a step")
    add("--mom", type=float, default=0.90, help="momentum")
    add("--wdecay", type=float, default=0.0001, help="weight decay")
    add("--warmup_lr", type=float, default=0.001, help="learning rate the warm-up starts at")
    add("--warmup_epochs", type=int, default=0, help="epochs from there to the learning rate")
    add("--lr_decay_mode", default="poly", choices=sorted(DECAYS), help="shape of the decay")
    add("--lr_decay_steps", default="30,60,80", help="steps: epochs at which the rate changes")
    add("--lr_decay_lrs", default="", help="steps: the rates; left out: a tenth at each change")
    add("--cdr_first_decay_ratio", type=float, default=0.33, help="restarts: first period's share")
    add("--cdr_t_mul", type=float, default=2.0, help="restarts: growth of the period")
    add("--cdr_m_mul", type=float, default=0.1, help="restarts: growth of the rate")
    add("--cdr_alpha", type=float, default=0.0, help="restarts: lowest share of the rate")
    add("--lc_periods", type=float, default=0.47, help="linear_cosine: periods")
    add("--lc_alpha", type=float, default=0.0, help="linear_cosine: alpha")
    add("--lc_beta", type=float, default=0.00001, help="linear_cosine: beta")

    args, unknown = parser.parse_known_args(argv)
    for word in unknown:
        print(f"ERROR: Unknown command line arg: {word}", file=sys.stderr)
    if unknown:
        sys.exit(2)
    if not args.synthetic:
        parser.error("pass --synthetic: this program trains on random images")
    if not (args.num_epochs or args.num_batches):
        parser.error("pass --num_batches or --num_epochs")
    try:
        decay_steps_and_rates(args, 1, 1.0)
    except ValueError as error:
        parser.error(str(error))
    return args


def add_flag(parser: argparse.ArgumentParser, name: str, default: bool, text: str) -> None:
    """A boolean --name with its twin --noname."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(f"--{name}", action="store_true", default=default, help=text)
    group.add_argument(f"--no{name}", dest=name, action="store_false", help=argparse.SUPPRESS)


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


# ---------------------------------------------------------------------------------------------
# How long to train, and at which learning rate. Plain numbers: step 0 is the first.


@dataclass(frozen=True)
class Schedule:
    args: argparse.Namespace
    global_batch: int
    steps: int
    steps_per_epoch: int
    warmup_steps: int
    peak: float

    def epoch(self, step: int) -> float:
        return step * self.global_batch / TRAINING_IMAGES

    def learning_rate(self, step: int) -> float:
        if step < self.warmup_steps:
            warmup_lr = self.args.warmup_lr
            return warmup_lr + (self.peak - warmup_lr) * step / self.warmup_steps
        return DECAYS[self.args.lr_decay_mode](self, step - self.warmup_steps)

    @property
    def decay_length(self) -> int:
        return self.steps - self.warmup_steps


def make_schedule(args: argparse.Namespace, size: int) -> Schedule:
    """The schedule of `size` processes, each with a batch of its own."""
    global_batch = args.batch_size * size  # Horovod: a step sees the batches of all.
    steps_per_epoch = TRAINING_IMAGES // global_batch
    return Schedule(
        args=args,
        global_batch=global_batch,
        steps=TRAINING_IMAGES * args.num_epochs // global_batch
        if args.num_epochs
        else args.num_batches,
        steps_per_epoch=steps_per_epoch,
        warmup_steps=steps_per_epoch * args.warmup_epochs,
        # Horovod: more processes see more images in a step, and the rate grows with them.
        peak=args.lr or size * args.batch_size * 0.1 / 256,
    )


# Below, `step` counts from the end of the warm-up.


def steps_decay(schedule: Schedule, step: int) -> float:
    boundaries, rates = decay_steps_and_rates(
        schedule.args, schedule.steps_per_epoch, schedule.peak
    )
    step += schedule.warmup_steps
    return rates[sum(step > boundary for boundary in boundaries)]


def decay_steps_and_rates(
    args: argparse.Namespace, steps_per_epoch: int, peak: float
) -> tuple[list[int], list[float]]:
    """The steps after which the rate changes, and the rates: one more than changes."""
    boundaries = [int(epoch) * steps_per_epoch for epoch in args.lr_decay_steps.split(",")]
    if not args.lr_decay_lrs:
        return boundaries, [peak * 0.1**i for i in range(len(boundaries) + 1)]
    rates = [float(rate) for rate in args.lr_decay_lrs.split(",")]
    if len(rates) != len(boundaries) + 1:
        raise ValueError("--lr_decay_lrs takes one rate more than --lr_decay_steps has epochs")
    return boundaries, rates


def poly_decay(schedule: Schedule, step: int, length: int | None = None) -> float:
    length = length or schedule.decay_length
    lowest = 0.00001
    left = 1 - min(step, length) / length
    return (schedule.peak - lowest) * left**2 + lowest


def poly_cycle_decay(schedule: Schedule, step: int) -> float:
    periods = max(1, math.ceil(step / schedule.decay_length))
    return poly_decay(schedule, step, length=periods * schedule.decay_length)


def cosine_decay(schedule: Schedule, step: int) -> float:
    done = min(step, schedule.decay_length) / schedule.decay_length
    return schedule.peak * 0.5 * (1 + math.cos(math.pi * done))


def cosine_restarts_decay(schedule: Schedule, step: int) -> float:
    """Periods of cosine, each `t_mul` times as long and `m_mul` times as high as the last."""
    args = schedule.args
    done = step / (schedule.decay_length * args.cdr_first_decay_ratio)
    period, length = 0, 1.0
    while done >= length:
        done -= length
        length *= args.cdr_t_mul
        period += 1
    cosine = 0.5 * args.cdr_m_mul**period * (1 + math.cos(math.pi * done / length))
    return schedule.peak * ((1 - args.cdr_alpha) * cosine + args.cdr_alpha)


def linear_cosine_decay(schedule: Schedule, step: int) -> float:
    args = schedule.args
    done = min(step, schedule.decay_length) / schedule.decay_length
    cosine = 0.5 * (1 + math.cos(2 * math.pi * args.lc_periods * done))
    return schedule.peak * ((args.lc_alpha + 1 - done) * cosine + args.lc_beta)


DECAYS: dict[str, Callable[[Schedule, int], float]] = {
    "steps": steps_decay,
    "poly": poly_decay,
    "poly_cycle": poly_cycle_decay,
    "cosine": cosine_decay,
    "cosine_decay_restarts": cosine_restarts_decay,
    "linear_cosine": linear_cosine_decay,
}


# ---------------------------------------------------------------------------------------------
# TensorFlow and Horovod


def start(args: argparse.Namespace) -> None:
    """Import TensorFlow and Horovod, take a device."""
    global tf, hvd
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_GPU_THREAD_MODE", "gpu_private")
    os.environ.setdefault("TF_GPU_THREAD_COUNT", "2")
    os.environ.setdefault("TF_USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT", "1")

    import horovod.tensorflow  # Horovod: after the environment, as TensorFlow itself.
    import tensorflow

    tf, hvd = tensorflow, horovod.tensorflow
    hvd.init()  # Horovod: meet the other processes; from here on each knows its rank.
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        # Horovod: one GPU for each process of a host.
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
    # Convolutions are fastest, or possible at all, with channels first on a GPU, last on a CPU.
    tf.keras.backend.set_image_data_format("channels_first" if gpus else "channels_last")
    tf.config.threading.set_intra_op_parallelism_threads(args.intra_op_parallelism_threads)
    tf.config.threading.set_inter_op_parallelism_threads(args.inter_op_parallelism_threads)
    if args.fp16:
        tf.keras.mixed_precision.set_global_policy("mixed_float16")


def synthetic_batch(args: argparse.Namespace, seed: int) -> tuple[Any, Any]:
    """Random images and labels, made once: they stay on the device."""
    random = tf.random.Generator.from_seed(seed)
    shape = (args.batch_size, args.image_size, args.image_size, 3)
    images = random.truncated_normal(shape, mean=112.0, stddev=70.0)
    images = (images - CHANNEL_MEAN) / CHANNEL_STD
    if tf.keras.backend.image_data_format() == "channels_first":
        images = tf.transpose(images, (0, 3, 1, 2))
    labels = random.uniform((args.batch_size,), maxval=CLASSES, dtype=tf.int32)
    return tf.cast(images, tf.float16 if args.fp16 else tf.float32), labels


# ---------------------------------------------------------------------------------------------
# The model


def build_resnet(args: argparse.Namespace) -> Any:
    layers = tf.keras.layers
    channels_first = tf.keras.backend.image_data_format() == "channels_first"
    blocks_per_stage, bottleneck = MODELS[args.model]
    size = args.image_size
    images = tf.keras.Input((3, size, size) if channels_first else (size, size, 3))

    x = layers.ZeroPadding2D(3)(images)
    x = convolution(args, x, 64, 7, stride=2, padding="valid")
    x = layers.MaxPooling2D(3, 2, padding="same")(x)
    for stage, blocks in enumerate(blocks_per_stage):
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            x = residual_block(args, x, 64 * 2**stage, stride, bottleneck)
    x = layers.GlobalAveragePooling2D()(x)
    normal = tf.keras.initializers.RandomNormal(stddev=0.01)
    logits = layers.Dense(CLASSES, kernel_initializer=normal)(x)
    # The loss is computed in float32 in either precision.
    return tf.keras.Model(images, layers.Activation("linear", dtype="float32")(logits))


def residual_block(
    args: argparse.Namespace, x: Any, filters: int, stride: int, bottleneck: bool
) -> Any:
    shortcut = x
    depth = 4 * filters if bottleneck else filters
    if x.shape[channel_axis()] != depth or stride != 1:
        shortcut = convolution(args, x, depth, 1, stride, relu=False)
    if bottleneck:
        x = convolution(args, x, filters, 1)
        x = convolution(args, x, filters, 3, stride)
        x = convolution(args, x, depth, 1, relu=False, last=True)
    else:
        x = convolution(args, x, filters, 3, stride)
        x = convolution(args, x, depth, 3, relu=False, last=True)
    return tf.keras.layers.ReLU()(tf.keras.layers.add([x, shortcut]))


def convolution(
    args: argparse.Namespace,
    x: Any,
    filters: int,
    kernel: int,
    stride: int = 1,
    padding: str = "same",
    relu: bool = True,
    last: bool = False,
) -> Any:
    """A convolution without bias, its batch normalisation, and mostly a ReLU."""
    layers = tf.keras.layers
    scaled = tf.keras.initializers.VarianceScaling()
    x = layers.Conv2D(
        filters,
        kernel,
        stride,
        padding,
        use_bias=False,
        kernel_initializer=scaled if args.adv_conv_init else "glorot_uniform",
    )(x)
    x = layers.BatchNormalization(
        channel_axis(),
        momentum=0.9,
        epsilon=1e-4,
        gamma_initializer="zeros" if last and args.adv_bn_init else "ones",
    )(x)
    return layers.ReLU()(x) if relu else x


def channel_axis() -> int:
    return 1 if tf.keras.backend.image_data_format() == "channels_first" else -1


# ---------------------------------------------------------------------------------------------
# The training step


class Trainer:
    """A model, its momentum, and the step that improves it."""

    def __init__(self, args: argparse.Namespace, model: Any) -> None:
        self.args = args
        self.model = model
        self.weights = model.trainable_variables
        self.decayed = [w for w in self.weights if "batch_normalization" not in w.name]
        self.momenta = [tf.Variable(tf.zeros(w.shape), trainable=False) for w in self.weights]
        # Nothing in the step needs autograph, which would take seconds to read Horovod's code.
        self.step = tf.function(self._step, autograph=False)

    def _step(self, images: Any, labels: Any, learning_rate: Any) -> tuple[Any, Any]:
        """One step. Returns the loss without and with the weight decay."""
        scale = self.args.loss_scale
        with tf.GradientTape() as tape:
            loss, final_loss = self.losses(images, labels)
            scaled_loss = final_loss * scale
        # Horovod: the tape's gradients become the mean over all processes. Sent in a few groups,
        # they still travel while others are computed, and the graph is traced in half the time.
        tape = hvd.DistributedGradientTape(tape, num_groups=8)
        gradients = tape.gradient(scaled_loss, self.weights)
        for weight, momentum, gradient in zip(self.weights, self.momenta, gradients):
            self._improve(weight, momentum, gradient / scale, learning_rate)
        return loss, final_loss

    def losses(self, images: Any, labels: Any) -> tuple[Any, Any]:
        logits = self.model(images, training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        loss = tf.reduce_mean(losses)
        squares = tf.add_n([tf.nn.l2_loss(w) for w in self.decayed])
        return loss, loss + self.args.wdecay * squares

    def _improve(self, weight: Any, momentum: Any, gradient: Any, learning_rate: Any) -> None:
        """Stochastic gradient descent with Nesterov's momentum, in one fused operation."""
        tf.raw_ops.ResourceApplyMomentum(
            var=weight.handle,
            accum=momentum.handle,
            lr=learning_rate,
            grad=gradient,
            momentum=self.args.mom,
            use_nesterov=True,
        )

    def broadcast(self) -> None:
        # Horovod: everyone starts from the weights of rank 0.
        hvd.broadcast_variables(self.model.variables, root_rank=0)


# ---------------------------------------------------------------------------------------------
# The run


class Log:
    """Lines for the console and the log file, from one process and without delay."""

    def __init__(self, args: argparse.Namespace) -> None:
        path = Path(args.log_dir, args.log_name)
        # Horovod: one process of each host clears, and the log is opened when all have.
        if args.clear_log and hvd.local_rank() == 0 and path.exists():
            shutil.rmtree(args.log_dir)
        hvd.allreduce(tf.constant(0.0), name="log_cleared")
        self.file = None
        if hvd.rank() == 0:  # Horovod: one process of all speaks.
            path.parent.mkdir(parents=True, exist_ok=True)
            self.file = path.open("a")

    def line(self, text: str) -> None:
        if self.file:
            print(text, flush=True)
            print(text, file=self.file, flush=True)


def train(args: argparse.Namespace, schedule: Schedule, log: Log) -> None:
    # Horovod: each process has images of its own.
    images, labels = synthetic_batch(args, seed=7 * (1 + hvd.rank()))
    trainer = Trainer(args, build_resnet(args))
    trainer.broadcast()  # Horovod: and all have the same weights.
    log.line(HEADER)
    last_row, last_time = -1, time.time()
    for step in range(schedule.steps):
        rate = schedule.learning_rate(step)
        loss, final_loss = trainer.step(images, labels, tf.constant(rate))
        if step == 1 or step % args.display_every == 0:
            loss, final_loss = float(loss), float(final_loss)  # waits for the device
            now = time.time()
            speed = (step - last_row) * schedule.global_batch / (now - last_time)
            log.line(ROW % (step, schedule.epoch(step), speed, loss, final_loss, rate))
            if not math.isfinite(final_loss):
                sys.exit(f"error: the loss is {final_loss}: lower --lr or raise --warmup_epochs")
            last_row, last_time = step, now


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    start(args)
    log = Log(args)
    log.line(f"PY{sys.version}TF{tf.__version__}")
    log.line(f"Horovod size: {hvd.size()}")  # Horovod: how many processes train.
    schedule = make_schedule(args, hvd.size())
    log.line(f"Using a learning rate of {schedule.peak}")
    started = time.time()
    train(args, schedule, log)
    log.line(f"Finished in {time.time() - started}")


if __name__ == "__main__":
    main()
