"""Fit a line through noisy points. Each rank has its own points; all ranks average their gradients.

    mpirun -np 4 python average.py STEPS

scripts/demo runs it on two hosts, and stops one of the ranks.
"""

import random
import sys
import time

from mpi4py import MPI

world = MPI.COMM_WORLD
chance = random.Random(world.rank)  # noqa: S311 - no secret
slope = 0.0
for step in range(1, int(sys.argv[1]) + 1):
    x = chance.random()
    y = 3 * x + chance.gauss(0, 0.1)
    gradient = 2 * (slope * x - y) * x
    time.sleep(0.1)
    slope -= 0.1 * world.allreduce(gradient) / world.size
    if world.rank == 0 and step % 10 == 0:
        print(f"step {step}: slope {slope:.2f}, averaged over {world.size} ranks", flush=True)
