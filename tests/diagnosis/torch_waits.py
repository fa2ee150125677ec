"""Two ranks of torch.distributed. Rank 0 waits in each call of a list until rank 1 joins it.

Rank 0 makes the file FOLDER/at-NAME before a call, and rank 1 makes the call when the file
FOLDER/go-NAME is there.
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

FOLDER = Path(sys.argv[1])
RANK = int(os.environ["RANK"])


def turn(name):
    if RANK == 0:
        (FOLDER / f"at-{name}").touch()
    else:
        while not (FOLDER / f"go-{name}").exists():
            time.sleep(0.05)


class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        while RANK == 0 and not (FOLDER / "go-loader").exists():
            time.sleep(0.05)
        return torch.zeros(1)


def main():
    turn("init")
    dist.init_process_group("gloo")
    value = torch.ones(3)
    turn("all_reduce")
    dist.all_reduce(value)
    turn("barrier")
    dist.barrier()
    turn("all_gather")
    dist.all_gather([torch.zeros(3), torch.zeros(3)], value)
    turn("broadcast")
    dist.broadcast(value, 1)
    turn("recv")
    dist.recv(value, 1) if RANK == 0 else dist.send(value, 0)
    turn("gather_object")
    dist.all_gather_object([None, None], "text")
    turn("new_group")
    dist.new_group([0, 1])
    turn("ddp")
    model = DistributedDataParallel(torch.nn.Linear(3, 3))
    loss = model(value).sum()
    turn("backward")
    loss.backward()
    turn("loader")
    next(iter(torch.utils.data.DataLoader(Slow(), num_workers=1)))
    turn("wait")
    dist.all_reduce(value, async_op=True).wait()


if __name__ == "__main__":
    main()
