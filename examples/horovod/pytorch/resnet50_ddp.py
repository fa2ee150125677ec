"""Train ResNet-50 with PyTorch's DistributedDataParallel, on noise or ImageNet's TFRecord files.

    clusterctl train demo 32 --env /opt/pytorch \
        --script '~/examples/horovod/pytorch/resnet50_ddp.py' -- --num_batches 200
    clusterctl train demo 32 --launcher torchrun \
        --script '~/examples/horovod/pytorch/resnet50_ddp.py' -- \
        --data_dir ~/data/tf-imagenet --num_epochs 90 --warmup_epochs 10
    torchrun --nproc_per_node 8 resnet50_ddp.py --num_batches 200

Without a launcher it is a program for one GPU, or for CPUs. It prints the same table as the
TensorFlow trainer in ../tensorflow, and writes its rows to `metrics.jsonl` in --log_dir. Images
from files need Pillow. Comments that start with `DDP:` mark the lines for several processes.
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import json
import math
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Callable

import torch
import torch.distributed as dist
from imagenet_records import DataError, TrainingImages, bounds_in, files_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Sampler

HEADER = "  Step Epoch Speed   Loss  FinLoss   LR"
ROW = "%6i %5.1f %7.1f %6.3f %6.3f %7.5f"
IMAGES = 1_281_167  # in an epoch of ImageNet, and of noise
# Mean and standard deviation of all training pixels: red, green, blue, in levels of 0..255.
MEAN, DEVIATION = (121.0, 115.0, 100.0), (70.0, 68.0, 71.0)
LOWEST_RATE, WARMUP_RATE = 0.00001, 0.001
# As for the TensorFlow trainer: 256 images in half precision need a GPU of 16 GB. Drivers report
# less than the board has, 15,079 MiB or more.
LARGE_GPU_BYTES = 15_000 << 20
# Steps before the speed is measured: cuDNN tries its algorithms, torch.compile compiles, and clocks
# settle.
WARMUP_STEPS = 20
SAVE_EVERY_S = 300.0
SAVED = {"step", "images_per_step", "model", "optimizer", "scaler"}  # in a checkpoint
PRECISIONS = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
# Blocks and width of each of the four stages (He et al., 2015, table 1).
STAGES = {
    "resnet18": ((2, 64), (2, 128), (2, 256), (2, 512)),
    "resnet50": ((3, 64), (4, 128), (6, 256), (3, 512)),
}


class Problem(Exception):
    """An error of the user's or the machine's, in one line. `common`: all ranks have it."""

    def __init__(self, text: str, common: bool = False) -> None:
        super().__init__(text)
        self.common = common


# ---------------------------------------------------------------------------------------------
# The model, as in ../tensorflow/model.py


class Block(nn.Module):
    """A residual block: two 3x3 convolutions, or a bottleneck, and a shortcut.

    A bottleneck has 1x1, 3x3 and 1x1 convolutions, the last with four times the width.
    """

    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        outputs = 4 * width if bottleneck else width
        # As in ResNet v1.5, the stride of a bottleneck is in its 3x3 convolution.
        shape = [(inputs, width, 3, stride), (width, width, 3, 1)]
        if bottleneck:
            shape = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
        layers: list[nn.Module] = []
        for first, last, kernel, step in shape:
            layers += [convolution(first, last, kernel, step), batch_norm(last), nn.ReLU(True)]
        self.residual = nn.Sequential(*layers[:-1])
        nn.init.zeros_(layers[-2].weight)  # a block begins as its shortcut alone
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                convolution(inputs, outputs, 1, stride), batch_norm(outputs)
            )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.residual(images) + self.shortcut(images))


def convolution(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Conv2d:
    layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    # Keras's VarianceScaling: cut off at two deviations, and a variance of 1 / inputs after that.
    deviation = (inputs * kernel**2) ** -0.5 / 0.87962566
    nn.init.trunc_normal_(layer.weight, 0, deviation, -2 * deviation, 2 * deviation)
    return layer


def batch_norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-4)


def resnet(name: str, classes: int = 1000) -> nn.Sequential:
    bottleneck = name == "resnet50"
    layers: list[nn.Module] = [convolution(3, 64, 7, 2), batch_norm(64), nn.ReLU(True)]
    layers.append(nn.MaxPool2d(3, 2, 1))
    inputs = 64
    for stage, (blocks, width) in enumerate(STAGES[name]):
        for block in range(blocks):
            layers.append(Block(inputs, width, 2 if stage and not block else 1, bottleneck))
            inputs = 4 * width if bottleneck else width
    last = nn.Linear(inputs, classes)
    nn.init.normal_(last.weight, 0, 0.01)
    nn.init.zeros_(last.bias)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), last)


# ---------------------------------------------------------------------------------------------
# Ranks


def join() -> torch.device:
    """Connect to the other ranks, and return this rank's device. Raises Problem."""
    gpus = torch.cuda.device_count()
    local = int(os.environ.get("LOCAL_RANK", 0))  # DDP: one GPU for each rank of a node.
    if gpus and local >= gpus:
        raise Problem(f"local rank {local} and {gpus} GPUs on this node: start fewer ranks")
    if gpus:
        torch.cuda.set_device(local)
        torch.backends.cudnn.benchmark = True
    backend = "nccl" if gpus else "gloo"
    if "RANK" in os.environ:
        # DDP: clusterctl and torchrun set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
        dist.init_process_group(backend)
    elif int(os.environ.get("OMPI_COMM_WORLD_SIZE", 1)) > 1:
        raise Problem("several ranks without RANK and MASTER_ADDR: use clusterctl or torchrun")
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    return torch.device("cuda", local) if gpus else torch.device("cpu")


def leave(failed: bool) -> None:
    """Disconnect this rank. One that fails does not wait for the others: they wait for it."""
    if not dist.is_initialized():
        return
    if failed and dist.get_backend() == "nccl" and hasattr(dist.group.WORLD, "abort"):
        dist.group.WORLD.abort()  # since PyTorch 2.6; before that, destroying is aborting
    else:
        dist.destroy_process_group()


def gather(value: Any) -> list[Any]:
    """Return the values of all ranks, on every rank. Between ranks PyTorch needs NumPy for it."""
    if dist.get_world_size() == 1:
        return [value]
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def everywhere(action: Callable[[], Any]) -> Any:
    """Return what `action` returns. If it fails on a rank, raise its Problem on all of them."""
    result, problem = None, None
    try:
        result = action()
    except (Problem, DataError) as error:
        problem = f"{socket.gethostname()}: {error}"
    found = [each for each in gather(problem) if each]
    if found:
        raise Problem(found[0], common=True)
    return result


def cpus_of_this_rank() -> int:
    """Return this rank's share of the CPUs that it may use; other ranks may use some of them."""
    host, cpus = socket.gethostname(), os.sched_getaffinity(0)
    places = gather((host, sorted(cpus)))
    users = Counter(cpu for other, theirs in places if other == host for cpu in theirs)
    # 1e-6: three thirds of a CPU may add up to a little less than one.
    return max(1, int(sum(1 / users[cpu] for cpu in cpus) + 1e-6))


# ---------------------------------------------------------------------------------------------
# Images

Batches = Iterable["tuple[torch.Tensor, torch.Tensor]"]  # images [n, 3, h, w], labels [n]


def noise(args: argparse.Namespace, device: torch.device) -> Batches:
    """Return one batch of noise, again and again. It has one label, so that the loss stays finite:
    random labels would have to be memorized."""
    shape = (args.batch_size, 3, args.image_size, args.image_size)
    images = torch.randn(shape, device=device).contiguous(memory_format=torch.channels_last)
    labels = torch.zeros(args.batch_size, dtype=torch.long, device=device)
    return itertools.repeat((images, labels))


def open_images(args: argparse.Namespace) -> TrainingImages:
    """Return the training images of --data_dir. Raises Problem on all ranks."""
    rank, size = dist.get_rank(), dist.get_world_size()
    files = everywhere(lambda: files_of(args.data_dir))
    # DDP: each node reads its own copy of the files. The copies must not differ.
    copies = gather([(Path(file).name, Path(file).stat().st_size) for file in files])
    if any(copy != copies[0] for copy in copies):
        raise Problem(f"the nodes' copies of {args.data_dir} differ: copy them again", common=True)
    # DDP: each rank looks for the records of a share of the files, and tells the others.
    parts = gather(everywhere(lambda: [bounds_in(file) for file in files[rank::size]]))
    bounds = [parts[number % size][number // size] for number in range(len(files))]
    return TrainingImages(files, bounds, args.image_size)


class Endless(Sampler):
    """This rank's images from step `first` on, epoch after epoch: the workers never wait for one
    epoch's last batch. Each epoch has whole steps alone, the same number on all ranks."""

    def __init__(self, images: TrainingImages, args: argparse.Namespace, first: int) -> None:
        # DDP: each rank gets other images, in another order in each epoch.
        self.order = DistributedSampler(images, shuffle=True, seed=args.seed, drop_last=True)
        self.steps = len(self.order) // args.batch_size
        self.batch, self.first = args.batch_size, first

    def __iter__(self) -> Iterator[int]:
        epoch, done = divmod(self.first, self.steps)
        for number in itertools.count(epoch):
            self.order.set_epoch(number)
            yield from itertools.islice(self.order, done * self.batch, self.steps * self.batch)
            done = 0


def from_files(
    images: TrainingImages, args: argparse.Namespace, device: torch.device, first: int
) -> Batches:
    """Yield endless batches on the device from step `first` on, normalized there."""
    on_gpu = device.type == "cuda"
    loader = DataLoader(
        images,
        args.batch_size,
        sampler=Endless(images, args, first),
        num_workers=args.workers,
        pin_memory=on_gpu,  # or else the copy to the GPU would not run beside the step
        drop_last=True,
    )
    mean = torch.tensor(MEAN, device=device).view(3, 1, 1)
    deviation = torch.tensor(DEVIATION, device=device).view(3, 1, 1)
    for levels, labels in loader:
        # As bytes, a quarter of float32. Channels are last in the memory already.
        moved = levels.to(device, non_blocking=True).permute(0, 3, 1, 2)
        yield (moved.float() - mean) / deviation, labels.to(device, non_blocking=True)


# ---------------------------------------------------------------------------------------------
# The log


class Log:
    """Prints rows and writes them as JSON lines, on rank 0 only. `batch`: images of all ranks.
    `images`: those of an epoch. Speed is in images/s of all ranks since the previous row."""

    def __init__(self, folder: str, batch: int, images: int, first_step: int) -> None:
        self.on = dist.get_rank() == 0  # DDP: only rank 0 prints.
        self.batch, self.images = batch, images
        self.last, self.since = first_step - 1, time.time()
        self.run = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.getpid()}"
        if self.on:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.metrics = Path(folder, "metrics.jsonl").open("a")  # noqa: SIM115

    def line(self, text: str) -> None:
        if self.on:
            print(text, flush=True)

    def record(self, kind: str, **values: Any) -> None:
        """Write a JSON line. A number that is not finite becomes null."""
        for name, value in values.items():
            if isinstance(value, float) and not math.isfinite(value):
                values[name] = None
        if self.on:
            line = {"run": self.run, "kind": kind, "time": round(time.time(), 3), **values}
            print(json.dumps(line), file=self.metrics, flush=True)

    def row(self, step: int, loss: float, final_loss: float, rate: float) -> None:
        now, epoch = time.time(), step * self.batch / self.images
        speed = (step - self.last) * self.batch / (now - self.since)
        self.line(ROW % (step, epoch, speed, loss, final_loss, rate))
        names = ("step", "epoch", "images_per_s", "loss", "final_loss", "learning_rate")
        self.record("train", **dict(zip(names, (step, epoch, speed, loss, final_loss, rate))))
        self.last, self.since = step, now


# ---------------------------------------------------------------------------------------------
# Training


class Trainer:
    """The model on all ranks, and its step."""

    def __init__(self, args: argparse.Namespace, device: torch.device) -> None:
        self.args, self.device = args, device
        # Tensor cores take channels last; other convolutions would be converted in every step.
        self.model = resnet(args.model).to(device, memory_format=torch.channels_last)
        norms = {
            id(p)
            for m in self.model.modules()
            if isinstance(m, nn.BatchNorm2d)
            for p in m.parameters()
        }
        parameters = list(self.model.parameters())
        self.decayed = [one for one in parameters if id(one) not in norms]
        groups = [
            {"params": self.decayed, "weight_decay": args.wdecay},
            {"params": [one for one in parameters if id(one) in norms], "weight_decay": 0.0},
        ]
        # Since PyTorch 2.3, one kernel updates all weights, and the loss scale needs no answer of
        # the GPU in each step.
        fused = device.type == "cuda" and "fused" in inspect.signature(torch.optim.SGD).parameters
        self.optimizer = torch.optim.SGD(
            groups, args.lr, momentum=args.mom, nesterov=True, **({"fused": True} if fused else {})
        )
        # float16 alone needs a loss scale: bfloat16 has the range of float32.
        scaler = getattr(torch.amp, "GradScaler", None)  # since PyTorch 2.3
        scaler = scaler or (lambda device, enabled: torch.cuda.amp.GradScaler(enabled=enabled))
        self.scaler = scaler("cuda", enabled=args.precision == "fp16")

    def wrap(self) -> None:
        """Copy rank 0's weights to all ranks, and average gradients from here on."""
        # DDP: gradients are sent while others are computed. Batch norms keep averages of their own
        # ranks, and a checkpoint has those of rank 0, as in the TensorFlow trainer.
        known = inspect.signature(DistributedDataParallel.__init__).parameters
        newer = "forward_sync_buffers" in known  # the name in newer versions
        buffers = {"forward_sync_buffers" if newer else "broadcast_buffers": False}
        # All steps have the same shapes: without this the compiler would try to allow for others.
        model = torch.compile(self.model, dynamic=False) if self.args.compile else self.model
        self.ddp: Any = DistributedDataParallel(model, gradient_as_bucket_view=True, **buffers)

    def step(self, images: torch.Tensor, labels: torch.Tensor, rate: float) -> torch.Tensor:
        """Train for one step at this rate. Return this rank's loss, which is still computed."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        half = self.args.precision != "fp32"
        dtype = PRECISIONS[self.args.precision]
        with torch.autocast(self.device.type, dtype) if half else nullcontext():
            loss = nn.functional.cross_entropy(self.ddp(images), labels)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach()

    def losses(self, loss: torch.Tensor) -> tuple[float, float]:
        """Return the mean loss of all ranks, without and with the weight decay. Waits for it."""
        squares = torch.stack([one.detach().float().pow(2).sum() for one in self.decayed]).sum()
        both = torch.stack([loss.float(), squares])
        dist.all_reduce(both)  # DDP: the sums of all ranks.
        mean, squares_mean = (both / dist.get_world_size()).tolist()
        return mean, mean + self.args.wdecay * squares_mean / 2

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    # Checkpoints. DDP: rank 0 saves, and after a start tells the others what it has found.

    def save(self, step: int, images_per_step: int, loss: torch.Tensor) -> None:
        """Write the state after `step` steps, under another name until it is complete.

        Raises Problem if this rank's loss or the state is not finite: the file before it stays.
        """
        if dist.get_rank():
            return
        path = Path(self.args.log_dir, "checkpoint.pt")
        if not self.is_finite(loss):
            kept = f"{path} stays as it was" if path.exists() else "no checkpoint is saved"
            raise Problem(
                f"the loss or the weights are not finite after {step} steps, {kept}: lower --lr or"
                " raise --warmup_epochs"
            )
        state = {
            "step": step,
            "images_per_step": images_per_step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
        }
        try:
            torch.save(state, path.with_suffix(".partial"))
            path.with_suffix(".partial").replace(path)
        except (OSError, RuntimeError) as error:  # PyTorch reports a full disk as RuntimeError
            raise Problem(f"{path} cannot be saved: {str(error).splitlines()[0]}") from None

    def is_finite(self, loss: torch.Tensor) -> bool:
        """Return whether this rank's loss, the weights, the batch norms and the momenta are finite.

        The loss is that of before the step, whose update may itself have made weights infinite. All
        ranks have the same weights.
        """
        momenta = [each.get("momentum_buffer") for each in self.optimizer.state.values()]
        state = [loss, *self.model.state_dict().values(), *momenta]
        checked = [each for each in state if each is not None]
        return bool(torch.stack([torch.isfinite(each).all() for each in checked]).all())

    def resume(self, images_per_step: int) -> int:
        """Load rank 0's checkpoint on all ranks, and return its steps; 0 without one."""
        path = Path(self.args.log_dir, "checkpoint.pt")

        def load() -> Any:
            if dist.get_rank() or not path.exists():
                return None
            try:
                state = torch.load(path, map_location="cpu")
            except Exception as error:  # a damaged file causes errors of many kinds
                raise Problem(f"{path} is damaged ({type(error).__name__}): remove it") from None
            if not (isinstance(state, dict) and state.keys() >= SAVED):
                raise Problem(f"{path} is not of this program: pass another --log_dir")
            return state

        states = [everywhere(load)]
        dist.broadcast_object_list(states)
        state = states[0]
        if state is None:
            return 0
        if state["images_per_step"] != images_per_step:
            raise Problem(
                f"{path} is of a training with {state['images_per_step']} images a step, this one "
                f"has {images_per_step}: pass another --log_dir",
                common=True,
            )
        try:
            self.model.load_state_dict(state["model"])
        except RuntimeError:
            raise Problem(f"{path} is of another --model", common=True) from None
        # Of the optimizer only the momenta are loaded: its settings, such as --mom and --wdecay,
        # are those of this command line and this machine.
        settings = [dict(group, params=None) for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(state["optimizer"])
        for group, mine in zip(self.optimizer.param_groups, settings):
            group.update(mine, params=group["params"])
        if state["scaler"]:  # with another --precision than fp16 it is empty
            self.scaler.load_state_dict(state["scaler"])
        return int(state["step"])


def learning_rate(args: argparse.Namespace, step: int, warmup: int, steps: int) -> float:
    """Return the rate of a step: a line up to --lr, then a parabola down, as the other trainer."""
    if step < warmup:
        return float(WARMUP_RATE + (args.lr - WARMUP_RATE) * step / warmup)
    left = 1 - (step - warmup) / max(1, steps - warmup)
    return float((args.lr - LOWEST_RATE) * left**2 + LOWEST_RATE)


def train(args: argparse.Namespace, device: torch.device) -> None:
    started = time.time()
    size = dist.get_world_size()  # DDP: the number of ranks.
    settle(args, device)
    torch.manual_seed(args.seed + dist.get_rank())  # DDP: other crops on each rank.
    images = open_images(args) if args.data_dir else None
    epoch_images = len(images) if images else IMAGES
    batch = args.batch_size * size  # DDP: images of one step, over all ranks.
    per_epoch = epoch_images // batch
    if not per_epoch:
        raise Problem(f"a step takes {batch} images, there are {epoch_images}: lower -b", True)
    steps = per_epoch * args.num_epochs if args.num_epochs else args.num_batches
    args.lr = args.lr or 0.1 * batch / 256
    trainer = Trainer(args, device)
    first = trainer.resume(batch) if images else 0
    trainer.wrap()

    log = Log(args.log_dir, batch, epoch_images, first)
    log.line(f"PyTorch {torch.__version__}, {args.model}, {args.precision}, {batch} images a step")
    log.line(f"DistributedDataParallel size: {size}")
    if images:
        log.line(f"Using data from: {args.data_dir}")
        log.line(f"Found {len(images)} training samples, {args.workers} workers for each rank")
    log.line(f"Using a learning rate of {args.lr}")
    if first:
        log.line(f"Going on from {args.log_dir}/checkpoint.pt: {first} of {steps} steps are done")
    log.record(
        "begin",
        gpus=size,
        pytorch=torch.__version__,
        data=args.data_dir,
        training_samples=len(images) if images else None,
        peak_learning_rate=args.lr,
        resumed_from=first or None,
        steps=steps,
    )
    log.line(HEADER)
    batches = from_files(images, args, device, first) if images else noise(args, device)
    saved, since, measured_from = time.monotonic(), 0.0, first + WARMUP_STEPS
    log.since = time.time()
    for step, (pixels, labels) in zip(range(first, steps), batches):
        if step == measured_from:
            trainer.synchronize()
            since = time.time()
        rate = learning_rate(args, step, per_epoch * args.warmup_epochs, steps)
        loss = trainer.step(pixels, labels, rate)
        if step in (0, 1, steps - 1) or step % args.display_every == 0:
            mean, final = trainer.losses(loss)
            log.row(step, mean, final, rate)
            if images and not math.isfinite(mean):
                text = f"the loss is {mean} at step {step}: lower --lr or raise --warmup_epochs"
                raise Problem(text, common=True)
        if images and (step == steps - 1 or time.monotonic() - saved > SAVE_EVERY_S):
            trainer.save(step + 1, batch, loss)
            saved = time.monotonic()
    trainer.synchronize()  # so that the times include the last step
    ended = time.time()
    if since:
        speed = (steps - measured_from) * batch / (ended - since)
        log.line(
            f"Speed after {WARMUP_STEPS} steps: {speed:.1f} images/s, {speed / size:.1f} a rank"
        )
    log.line(f"Finished in {ended - started}")
    log.record("end", finished_in_s=ended - started)


def settle(args: argparse.Namespace, device: torch.device) -> None:
    """Set what depends on the machine: batch, precision, workers and threads. Raises Problem."""
    on_gpu = device.type == "cuda"
    memory = torch.cuda.get_device_properties(device).total_memory if on_gpu else 0
    usual = 8 if not on_gpu else 256 if memory > LARGE_GPU_BYTES else 128
    # DDP: the same on all ranks, as many as the smallest GPU takes.
    args.batch_size = args.batch_size or min(gather(usual))
    args.precision = args.precision or ("fp16" if on_gpu else "fp32")
    everywhere(lambda: check_precision(args.precision, device))
    if args.compile and not hasattr(torch, "compile"):
        raise Problem(f"--compile needs PyTorch 2.0, this is {torch.__version__}", common=True)
    cpus = cpus_of_this_rank()
    if args.workers is None:
        args.workers = max(1, cpus - 1)  # one is left for the step
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(cpus)


def check_precision(precision: str, device: torch.device) -> None:
    if precision == "fp16" and device.type == "cpu":
        raise Problem("fp16 needs a GPU: give --precision bf16 or fp32")
    if precision == "bf16" and device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if major < 8:
            raise Problem(f"bf16 needs compute capability 8.0, this GPU has {major}.{minor}")


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value


def local_folder(text: str) -> str:
    """Return the path, with ~ expanded; empty for none.

    A URL is refused, of which Path would make a folder.
    """
    if "://" in text:
        raise argparse.ArgumentTypeError(
            f"{text} is no path of this machine: copy from or to it with aws s3 sync"
        )
    return text and str(Path(text).expanduser())


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0], allow_abbrev=False
    )
    add = parser.add_argument
    add("-m", "--model", choices=sorted(STAGES), default="resnet50")
    add(
        "--data_dir",
        type=local_folder,
        help="folder with train-* files; left out: noise, which measures speed",
    )
    text = "images of each rank in a step; left out: 256, on GPUs of less than 16 GB 128, on CPUs 8"
    add("-b", "--batch_size", type=positive, help=text)
    add("--num_batches", type=positive, default=100, help="steps to train for (100)")
    add("--num_epochs", type=positive, help="epochs to train for; overrides --num_batches")
    add("--image_size", type=positive, default=224, help="height and width in pixels (224)")
    text = "of a step; left out: fp16 on GPUs, fp32 on CPUs. fp32 uses TF32 where PyTorch does"
    add("--precision", choices=sorted(PRECISIONS), help=text)
    add("--compile", action="store_true", help="let torch.compile fuse what it can of a step")
    text = "processes that decode images; left out: this rank's share of the CPUs, less one"
    add("--workers", type=positive, help=text)
    add("--lr", type=float, help="peak learning rate; left out: 0.1 for every 256 images of a step")
    add("--warmup_epochs", type=int, default=0, help="epochs from a rate of 0.001 to --lr (0)")
    add("--mom", type=float, default=0.9, help="momentum (0.9)")
    add("--wdecay", type=float, default=1e-4, help="weight decay, not of batch norms (0.0001)")
    add("--seed", type=int, default=0, help="of weights, crops and the images' order (0)")
    add("--display_every", type=positive, default=20, help="steps between two rows (20)")
    add(
        "--log_dir",
        type=local_folder,
        default="resnet50_ddp",
        help="folder of metrics.jsonl and checkpoint.pt",
    )
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    failed = True
    try:
        device = join()
        train(args, device)
        failed = False
    except (Problem, DataError) as error:
        common = isinstance(error, Problem) and error.common
        failed = not common
        # The text of a worker's error is its whole traceback.
        text = str(error).strip().splitlines()[-1].rpartition("DataError: ")[2]
        if not (common and dist.get_rank()):
            print(f"resnet50_ddp.py: {text}", file=sys.stderr, flush=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        leave(failed)  # DDP: disconnect from the others.


if __name__ == "__main__":
    main()
