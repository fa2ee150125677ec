"""Stands in for the trainer on a node: its flags, its table and its metrics.jsonl, in no time.

It takes the place of train_imagenet_resnet_hvd.py (LabCluster.stand_in_trainer in tests/pair.py),
and reads the flags with the trainer's own modules. There is no TensorFlow, no Horovod and no data.
It is for tests of jobs, logs, retries, results and benchmarks; the trainer itself shows that it
trains.

STAND_IN in the environment orders `fail=STEP` or `hang=STEP` (before that step, of all ranks or, as
`fail=STEP@RANK`, of one) and `slow=SECONDS` (for a step; 0.02 without it). Commas separate orders.
While the file /data/hold names the number of ranks, rank 0 makes no step.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from flags import parse_args  # type: ignore[import-not-found]  # the trainer's
from schedule import make_schedule  # type: ignore[import-not-found]

RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
SIZE = int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))
ROW = "%6i %5.1f %7.1f %6.3f %6.3f %7.5f"


def orders() -> dict[str, float]:
    """Return the orders for this rank by name."""
    found = {}
    for order in filter(None, os.environ.get("STAND_IN", "").split(",")):
        name, _, value = order.partition("=")
        number, _, rank = value.partition("@")
        if rank in ("", str(RANK)):
            found[name] = float(number)
    return found


def is_held() -> bool:
    try:
        return RANK == 0 and str(SIZE) in Path("/data/hold").read_text().split()
    except FileNotFoundError:
        return False


def main() -> None:
    args = parse_args()
    schedule = make_schedule(args, SIZE)
    folder = Path(args.log_dir)
    folder.mkdir(parents=True, exist_ok=True)
    told = orders()
    with (folder / args.log_name).open("a") as log, (folder / "metrics.jsonl").open("a") as metrics:

        def line(text: str) -> None:
            if RANK == 0:
                print(text, flush=True)
                print(text, file=log, flush=True)

        def record(kind: str, **values: object) -> None:
            if RANK == 0:
                about = {"run": f"stand-in-{os.getpid()}", "kind": kind, "time": time.time()}
                print(json.dumps({**about, **values}), file=metrics, flush=True)

        line(f"PY{sys.version}TFnone")
        line(f"Horovod size: {SIZE}")
        line(f"Using a learning rate of {schedule.peak}")
        record(
            "begin",
            gpus=SIZE,
            tensorflow="none",
            data=args.data_dir,
            peak_learning_rate=schedule.peak,
            steps=schedule.steps,
        )
        line("  Step Epoch Speed   Loss  FinLoss   LR")
        began = time.monotonic()
        for step in range(schedule.steps):
            if step == told.get("fail"):
                sys.exit(f"rank {RANK} fails as ordered")
            while step == told.get("hang"):
                time.sleep(0.1)
            while is_held():
                time.sleep(0.05)
            time.sleep(told.get("slow", 0.02))
            if step == 1 or step % args.display_every == 0:
                took_s = time.monotonic() - began
                speed = (step + 1) * schedule.global_batch / took_s
                loss, rate = 7 - step / schedule.steps, schedule.learning_rate(step)
                epoch = schedule.epoch(step)
                line(ROW % (step, epoch, speed, loss, loss + 1, rate))
                record(
                    "train",
                    step=step,
                    epoch=epoch,
                    images_per_s=speed,
                    loss=loss,
                    final_loss=loss + 1,
                    learning_rate=rate,
                )
        took_s = time.monotonic() - began
        line(f"Finished in {took_s}")
        record("end", finished_in_s=took_s)


if __name__ == "__main__":
    main()
