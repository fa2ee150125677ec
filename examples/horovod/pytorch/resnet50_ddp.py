"""Measure how fast nodes train: ResNet-50 on noise, with PyTorch's DistributedDataParallel.

    torchrun --nproc_per_node 8 resnet50_ddp.py --num_batches 200
    clusterctl train demo 32 --launcher torchrun \
        --script '~/examples/horovod/pytorch/resnet50_ddp.py' -- -b 256

It prints the same table as the TensorFlow trainer in ../tensorflow, and writes its rows to
`metrics.jsonl` in --log_dir. Comments that start with `DDP:` mark the lines for several processes.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

HEADER = "  Step Epoch Speed   Loss  FinLoss   LR"
ROW = "%6i %5.1f %7.1f %6.3f %6.3f %7.5f"
IMAGES = 1_281_167  # in an epoch of ImageNet
# Blocks and width of each of the four stages (He et al., 2015, table 1).
STAGES = {
    "resnet18": ((2, 64), (2, 128), (2, 256), (2, 512)),
    "resnet50": ((3, 64), (4, 128), (6, 256), (3, 512)),
}


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
            layers += [convolution(first, last, kernel, step), nn.BatchNorm2d(last), nn.ReLU(True)]
        self.residual = nn.Sequential(*layers[:-1])
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)
            )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.residual(images) + self.shortcut(images))


def convolution(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)


def resnet(name: str, classes: int = 1000) -> nn.Sequential:
    bottleneck = name == "resnet50"
    layers: list[nn.Module] = [convolution(3, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU(True)]
    layers.append(nn.MaxPool2d(3, 2, 1))
    inputs = 64
    for stage, (blocks, width) in enumerate(STAGES[name]):
        for block in range(blocks):
            layers.append(Block(inputs, width, 2 if stage and not block else 1, bottleneck))
            inputs = 4 * width if bottleneck else width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


class Log:
    """Prints rows and writes them as JSON lines, on rank 0 only. `batch`: images of all ranks."""

    def __init__(self, folder: str, batch: int) -> None:
        self.on = dist.get_rank() == 0  # DDP: only rank 0 prints.
        self.batch, self.last, self.since = batch, -1, time.time()
        self.run = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.getpid()}"
        if self.on:
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.metrics = Path(folder, "metrics.jsonl").open("a")  # noqa: SIM115

    def line(self, text: str) -> None:
        if self.on:
            print(text, flush=True)

    def record(self, kind: str, **values: Any) -> None:
        if self.on:
            line = {"run": self.run, "kind": kind, "time": round(time.time(), 3), **values}
            print(json.dumps(line), file=self.metrics, flush=True)

    def row(self, step: int, loss: float, final_loss: float, rate: float) -> None:
        now, epoch = time.time(), step * self.batch / IMAGES
        speed = (step - self.last) * self.batch / (now - self.since)
        self.line(ROW % (step, epoch, speed, loss, final_loss, rate))
        names = ("step", "epoch", "images_per_s", "loss", "final_loss", "learning_rate")
        self.record("train", **dict(zip(names, (step, epoch, speed, loss, final_loss, rate))))
        self.last, self.since = step, now


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-m", "--model", choices=sorted(STAGES), default="resnet50")
    parser.add_argument("-b", "--batch_size", type=int, default=128, help="images of each process")
    parser.add_argument("--num_batches", type=int, default=100)
    parser.add_argument("--image_size", type=int, default=224)
    parser.add_argument("--lr", type=float, default=0.1, help="for 256 images; scaled to a step's")
    parser.add_argument("--wdecay", type=float, default=1e-4)
    parser.add_argument("--display_every", type=int, default=20)
    parser.add_argument("--log_dir", default="resnet50_ddp")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if gpu else "gloo")  # DDP: connect the ranks of all nodes.
    size = dist.get_world_size()  # DDP: the number of ranks.
    device = torch.device("cpu")
    if gpu:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))  # DDP: one GPU per rank.
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = True
    torch.manual_seed(dist.get_rank())  # DDP: different images for each rank.
    model = resnet(args.model).to(device)
    parameters = list(model.parameters())
    model = DistributedDataParallel(model)  # DDP: copy rank 0's weights, average gradients.
    batch = args.batch_size * size  # DDP: images of one step, over all ranks.
    rate = args.lr * batch / 256
    optimizer = torch.optim.SGD(parameters, rate, momentum=0.9, weight_decay=args.wdecay)
    images = torch.randn(args.batch_size, 3, args.image_size, args.image_size, device=device)
    labels = torch.randint(1000, (args.batch_size,), device=device)
    scaler = torch.cuda.amp.GradScaler(enabled=gpu)

    log = Log(args.log_dir, batch)
    log.line(f"PyTorch {torch.__version__}, {args.model}, {size} ranks, {batch} images a step")
    log.line(HEADER)
    for step in range(args.num_batches):
        optimizer.zero_grad(set_to_none=True)
        with torch.cuda.amp.autocast() if gpu else nullcontext():
            loss = nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if step in (0, 1, args.num_batches - 1) or step % args.display_every == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean)  # DDP: the sum of all ranks' losses.
            decay = sum(float(weights.detach().pow(2).sum()) for weights in parameters) / 2
            value = float(mean) / size
            log.row(step, value, value + args.wdecay * decay, rate)
    log.line("Finished")
    dist.destroy_process_group()  # DDP: disconnect the ranks.


if __name__ == "__main__":
    main()
