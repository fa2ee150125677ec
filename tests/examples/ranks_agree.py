"""Run under mpirun: does the trainer's step average gradients? Rank 0 prints the facts as JSON.

Every rank starts from weights and images of its own, on purpose.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(sys.argv[1]).parent))
import train_imagenet_resnet_hvd as imagenet  # noqa: E402

FLAGS = ["--synthetic", "-m", "resnet18", "--image_size", "32", "-b", "2", "--nofp16"]
RATE = 0.05


def main() -> None:
    args = imagenet.parse_args([*FLAGS, "--num_batches", "3"])
    imagenet.start(args)
    tf, hvd = imagenet.tf, imagenet.hvd
    tf.keras.utils.set_random_seed(hvd.rank())
    images, labels = imagenet.synthetic_batch(args, seed=hvd.rank())
    trainer = imagenet.Trainer(args, imagenet.build_resnet(args))

    facts: dict[str, Any] = {"images": everyones(checksum([images]))}
    facts["initial"] = everyones(checksum(trainer.weights))
    trainer.broadcast()
    facts["broadcast"] = everyones(checksum(trainer.weights))

    # The first step by hand, on the last layer: momentum starts at zero, so Nesterov's step is
    # rate x (1 + momentum) x the mean of the ranks' own gradients.
    kernel = trainer.weights[-2]
    with tf.GradientTape() as tape:
        final_loss = trainer.losses(images, labels)[1]
    own = tape.gradient(final_loss, kernel)
    mean = tf.reduce_mean(hvd.allgather(own[tf.newaxis]), axis=0)
    expected = kernel - RATE * (1 + args.mom) * mean
    trainer.step(images, labels, tf.constant(RATE))
    facts["kernel_error"] = float(tf.reduce_max(tf.abs(kernel - expected)))
    facts["own_gradient_is_not_the_mean"] = float(tf.reduce_max(tf.abs(own - mean)))

    for _ in range(2):
        trainer.step(images, labels, tf.constant(RATE))
    facts["trained"] = everyones(checksum(trainer.weights + trainer.momenta))
    if hvd.rank() == 0:
        print("FACTS " + json.dumps(facts), flush=True)


def checksum(tensors: list[Any]) -> str:
    return hashlib.sha256(b"".join(t.numpy().tobytes() for t in tensors)).hexdigest()


def everyones(text: str) -> list[str]:
    return list(imagenet.hvd.allgather_object(text))


if __name__ == "__main__":
    main()
