"""Train a minimal object detector on several ranks: find a coloured rectangle in noise.

    clusterctl train demo 2 --launcher torchrun --script detection.py --hyperparameter epochs=8

It is a script-mode program, as for SageMaker. Without a cluster, run `python detection.py` or
`torchrun --nproc_per_node 2 detection.py`. Ranks use DistributedDataParallel. Those of mpirun use
Horovod instead, where there is one that was built with PyTorch. The images are generated: a model
that finds these rectangles shows that training on several ranks works, and nothing about real
images.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SIDE = 32  # pixels of an image
COLOURS = ("red", "green", "blue")  # the classes: the channel that is brighter in the rectangle
SHORTEST, LONGEST = 8, 20  # limits of a rectangle's sides, in pixels


# ---------------------------------------------------------------------------------------------
# Images, boxes and the model


def made_up(images: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Generate `images` images, their boxes and their classes.

    A box is centre x, centre y, width and height, as shares of the image's side.
    """
    random = torch.Generator().manual_seed(seed)
    pixels = torch.rand(images, 3, SIDE, SIDE, generator=random)
    sizes = torch.randint(SHORTEST, LONGEST + 1, (images, 2), generator=random)
    room = SIDE - sizes + 1
    starts = (torch.rand(images, 2, generator=random) * room).long()
    classes = torch.randint(len(COLOURS), (images,), generator=random)
    for n in range(images):
        (x, y), (width, height) = starts[n].tolist(), sizes[n].tolist()
        pixels[n, classes[n], y : y + height, x : x + width] += 0.5
    return pixels, torch.cat([starts + sizes / 2, sizes.float()], 1) / SIDE, classes


def corners(boxes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the upper left and the lower right corners of boxes."""
    centres, sizes = boxes[:, :2], boxes[:, 2:]
    return centres - sizes / 2, centres + sizes / 2


def intersection_over_union(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """Return the intersection over union of each pair of boxes, from 0 to 1."""
    (low, high), (other_low, other_high) = corners(ours), corners(theirs)
    sides = torch.minimum(high, other_high) - torch.maximum(low, other_low)
    common = sides.clamp(min=0).prod(1)
    union = ours[:, 2:].prod(1) + theirs[:, 2:].prod(1) - common
    return common / union.clamp(min=1e-12)


class Detector(nn.Module):
    """Four convolutions that each halve the size, and one layer for the box and the class."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in ((3, 16), (16, 32), (32, 64), (64, 64)):
            layers += [nn.Conv2d(inputs, outputs, 3, 2, 1), nn.ReLU()]
        side = SIDE // 16
        self.layers = nn.Sequential(
            *layers, nn.Flatten(), nn.Linear(64 * side * side, 4 + len(COLOURS))
        )

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.layers(images)
        return torch.sigmoid(found[:, :4]), found[:, 4:]


def loss_of(found: tuple[torch.Tensor, torch.Tensor], boxes: Any, classes: Any) -> torch.Tensor:
    """Return the loss of predicted boxes and classes."""
    # 20: an error of a few pixels weighs about as much as an unknown class.
    box = 20 * nn.functional.smooth_l1_loss(found[0], boxes, beta=0.1)
    return box + nn.functional.cross_entropy(found[1], classes)


# ---------------------------------------------------------------------------------------------
# Ranks: the same few calls with PyTorch and with Horovod


class TorchRanks:
    """The ranks that torchrun or `clusterctl train` has started, or a single one without both."""

    by = "DistributedDataParallel"

    def __init__(self) -> None:
        if "RANK" in os.environ:
            dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
        else:
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.local_rank = int(os.environ.get("LOCAL_RANK", 0))

    def together(self, model: nn.Module, optimizer: Any) -> tuple[nn.Module, Any]:
        """Copy rank 0's weights to all. Return a model and optimizer that average gradients."""
        return DistributedDataParallel(model), optimizer

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, on every rank."""
        values = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def leave(self) -> None:
        dist.destroy_process_group()


class HorovodRanks:
    """The ranks that mpirun or horovodrun has started."""

    by = "Horovod"

    def __init__(self, hvd: Any) -> None:
        hvd.init()
        self.hvd, self.rank, self.size = hvd, hvd.rank(), hvd.size()
        self.local_rank = hvd.local_rank()

    def together(self, model: nn.Module, optimizer: Any) -> tuple[nn.Module, Any]:
        self.hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        named = model.named_parameters()
        return model, self.hvd.DistributedOptimizer(optimizer, named_parameters=named)

    def gather(self, value: Any) -> list[Any]:
        found: list[Any] = self.hvd.allgather_object(value)
        return found

    def leave(self) -> None:
        self.hvd.shutdown()


def join() -> TorchRanks | HorovodRanks:
    """Connect to the other ranks. Exit if mpirun has started several that would not find each
    other: without Horovod, and without the variables that `clusterctl train` sets."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return TorchRanks()
    try:
        import horovod.torch as hvd
    except ImportError:
        # Without Horovod, each rank would train a model of its own, without an error.
        if int(os.environ.get("OMPI_COMM_WORLD_SIZE", 1)) > 1 and "RANK" not in os.environ:
            sys.exit(
                "detection.py: mpirun's ranks need RANK and MASTER_ADDR, or a Horovod that was "
                f"built with PyTorch, and {sys.executable} has none: use clusterctl or torchrun"
            )
        return TorchRanks()
    return HorovodRanks(hvd)


def check_agreement(model: nn.Module, ranks: TorchRanks | HorovodRanks) -> None:
    """Exit unless all ranks have the same weights, to the last bit."""
    digest = hashlib.sha256()
    for weights in model.state_dict().values():
        digest.update(weights.cpu().numpy().tobytes())
    found = ranks.gather(digest.hexdigest())
    other = [str(rank) for rank, each in enumerate(found) if each != found[0]]
    if other:
        sys.exit(f"detection.py: other weights than rank 0's on rank {', '.join(other)}")


# ---------------------------------------------------------------------------------------------
# Training


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return value


def local_folder(text: str) -> Path | None:
    """Return the path, with ~ expanded; None for an empty text.

    A URL is refused, of which Path would make a folder.
    """
    if "://" in text:
        raise argparse.ArgumentTypeError(
            f"{text} is no path of this machine: copy from or to it with aws s3 sync"
        )
    return Path(text).expanduser() if text else None


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )

    def add(name: str, **settings: Any) -> None:
        # A flag can be written both as --model_dir and as --model-dir.
        both = dict.fromkeys((name, "--" + name[2:].replace("_", "-")))
        parser.add_argument(*both, **settings)

    environ = os.environ
    add("--epochs", type=positive, default=8, help="times to see all images")
    add("--batch_size", type=positive, default=32, help="images of one rank in one step")
    add("--images", type=positive, default=4096, help="to train on, of all ranks together")
    add("--val_images", type=positive, default=512, help="held out")
    add("--lr", type=float, default=0.002, help="learning rate")
    add("--seed", type=int, default=0, help="of the images and the weights")
    models = environ.get("SM_MODEL_DIR", "~/models/detection")
    add(
        "--model_dir",
        type=local_folder,
        default=models,
        help="folder for the weights, detection.pt",
    )
    output = environ.get("SM_OUTPUT_DATA_DIR")
    add("--output_data_dir", type=local_folder, default=output, help="for metrics.jsonl")
    return parser.parse_args()


def evaluate(
    model: nn.Module, data: tuple[torch.Tensor, ...], ranks: TorchRanks | HorovodRanks
) -> dict[str, float]:
    """Return the mean IoU and the share of correct classes over the images of all ranks."""
    images, boxes, classes = data
    with torch.no_grad():
        found, scores = model(images)
    shares = float(intersection_over_union(found, boxes).sum())
    told = ranks.gather((shares, int((scores.argmax(1) == classes).sum()), len(images)))
    shares, right, count = (sum(values) for values in zip(*told))
    return {"val_iou": shares / count, "val_accuracy": right / count}


def main() -> None:
    args = parse_args()
    ranks = join()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", ranks.local_rank)
        torch.cuda.set_device(device)
    steps = args.images // (args.batch_size * ranks.size)
    if not steps:
        sys.exit(
            f"detection.py: {args.images} images are too few: a step takes --batch_size times "
            f"ranks, {args.batch_size * ranks.size}; give more --images or a smaller --batch_size"
        )
    own = slice(ranks.rank, None, ranks.size)
    train = tuple(part[own].to(device) for part in made_up(args.images, args.seed))
    # Other images than the training set: seed s and seed ~s differ.
    held_out = tuple(part[own].to(device) for part in made_up(args.val_images, ~args.seed))

    # Every rank starts with different weights on purpose: `together` copies rank 0's to all.
    torch.manual_seed(args.seed + ranks.rank)
    model = Detector().to(device)
    both, optimizer = ranks.together(model, torch.optim.Adam(model.parameters(), args.lr))
    history = [{"epoch": 0, **evaluate(model, held_out, ranks)}]
    if ranks.rank == 0:
        print(f"{ranks.by} size: {ranks.size}; {steps} steps an epoch")
        print(epoch_line(history[0], args.epochs), flush=True)
    for epoch in range(1, args.epochs + 1):
        order = torch.randperm(len(train[0]))[: steps * args.batch_size]
        total = 0.0
        for batch in order.split(args.batch_size):
            images, boxes, classes = (part[batch] for part in train)
            optimizer.zero_grad()
            loss = loss_of(both(images), boxes, classes)
            loss.backward()
            optimizer.step()
            total += float(loss)
        mean = sum(ranks.gather(total)) / (steps * ranks.size)
        if not math.isfinite(mean):
            sys.exit(f"detection.py: the loss is {mean}: give a smaller --lr")
        history.append({"epoch": epoch, "loss": mean, **evaluate(model, held_out, ranks)})
        if ranks.rank == 0:
            print(epoch_line(history[-1], args.epochs), flush=True)
    check_agreement(model, ranks)
    if ranks.rank == 0:
        keep(model, history, args)
    ranks.leave()


def epoch_line(values: dict[str, Any], epochs: int) -> str:
    """Return `Epoch 1/8 - loss: 1.2345 - val_iou: 0.5432 - val_accuracy: 0.9876`, for example."""
    shown = [f"{name}: {value:.4f}" for name, value in values.items() if name != "epoch"]
    return " - ".join([f"Epoch {values['epoch']}/{epochs}", *shown])


def keep(model: nn.Module, history: list[dict[str, Any]], args: argparse.Namespace) -> None:
    """Save the weights, and with --output_data_dir a JSON line for each epoch."""
    folder = args.model_dir or Path()
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), folder / "detection.pt")
    print(f"the same weights on all ranks; saved in {folder / 'detection.pt'}")
    if args.output_data_dir:
        output = args.output_data_dir / "metrics.jsonl"
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text("".join(json.dumps(each) + "\n" for each in history))


if __name__ == "__main__":
    main()
