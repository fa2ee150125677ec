"""Trains 50 steps by the recipe tutorial and 50 by the recipe fast, under mpirun.

    recipes_agree.py TRAINER FLAGS_OF_FAST...

Both have one batch, one learning rate, the same first weights and the same images, in float32. In
step 20 rank 1's images overflow. Rank 0 prints as JSON how far the recipes end from one another.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(sys.argv[1]).parent))
# XLA compiles for CPUs only if it is told to; for GPUs --xla is enough.
os.environ["TF_XLA_FLAGS"] = "--tf_xla_cpu_global_jit"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "0"
import horovod.tensorflow as hvd  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
import train_imagenet_resnet_hvd as imagenet  # noqa: E402
from flags import parse_args  # noqa: E402
from model import BLOCKS, build_resnet  # noqa: E402
from step import Trainer  # noqa: E402

FLAGS = ["--synthetic", "-m", "resnet18", "--image_size", "32", "-b", "8", "--nofp16"]
STEPS, OVERFLOWS = 50, 20
# A deeper net, a higher rate or smaller batches let rounding errors grow a thousandfold in 50
# steps, also between two runs of one recipe whose first weights differ by 1e-7.
RATE = 0.005
BLOCKS["resnet18"] = ((1, 1, 0, 0), False)


def main() -> None:
    runs = [train([]), train(sys.argv[2:])]  # in this order: XLA stays on
    (first, ours, *_), (_, theirs, *_) = runs
    way = norm([a - b for a, b in zip(ours, first)])
    losses = np.array([run[2] for run in runs])
    kept = np.delete(losses, OVERFLOWS, axis=1)
    facts = {
        "fused_update": [run[3] for run in runs],
        "losses": float((np.abs(kept[0] - kept[1]) / kept[0]).max()),
        "weights": norm([a - b for a, b in zip(ours, theirs)]) / way,
        "scales": [run[4] for run in runs],
        "ranks_alike": [len(set(hvd.allgather_object(run[5]))) == 1 for run in runs],
    }
    if hvd.rank() == 0:
        print("FACTS " + json.dumps(facts), flush=True)


def train(words: list[str]) -> tuple[list[Any], list[Any], list[float], bool, str, float]:
    """Return the variables at first and at last, the losses, --fused_update, the loss scale, and
    the norm of the weights. The batch norms' averages are among the variables, and each rank has
    its own.
    """
    args = parse_args([*FLAGS, "--num_batches", str(STEPS), *words])
    imagenet.start(args)  # sets the seed, too
    trainer = Trainer(args, build_resnet(args))
    trainer.scale.is_fixed = False
    trainer.scale.value.assign(1024.0)
    trainer.broadcast()
    first = [w.numpy() for w in trainer.model.variables]
    losses = []
    for step in range(STEPS):
        rng = np.random.default_rng([step, hvd.rank()])
        images = rng.normal(size=(8, 32, 32, 3)).astype(np.float32)
        if step == OVERFLOWS and hvd.rank() == 1:
            images[0] = np.inf
        labels = tf.constant(rng.integers(0, 10, 8), tf.int32)
        losses.append(float(trainer.step(tf.constant(images), labels, tf.constant(RATE))[0]))
    last = [w.numpy() for w in trainer.model.variables]
    weights = norm([w.numpy() for w in trainer.weights])
    return first, last, losses, args.fused_update, str(trainer.scale), weights


def norm(arrays: list[Any]) -> float:
    return float(np.sqrt(sum(float((a.astype(np.float64) ** 2).sum()) for a in arrays)))


if __name__ == "__main__":
    main()
