"""A rank of the job of `scripts/bench diagnose`: a stand-in for one of Horovod, without Horovod.

It has the variables of the real mpirun that starts it, threads, a stack, and connections to the
ranks whose numbers differ from its own in one bit. Rank STUCK opens a pipe that nobody writes to;
with STUCK -1 each rank sleeps. The arguments: STUCK HOST…
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
import threading
import time
from pathlib import Path

RANK = int(os.environ["OMPI_COMM_WORLD_RANK"])
SIZE = int(os.environ["OMPI_COMM_WORLD_SIZE"])
PER_HOST = int(os.environ["OMPI_COMM_WORLD_LOCAL_SIZE"])
PORT = 21000
THREADS = 12


def connect() -> list[socket.socket]:
    """Connect to the peers with a lower number, and accept those with a higher one."""
    peers = [RANK ^ 1 << bit for bit in range((SIZE - 1).bit_length()) if RANK ^ 1 << bit < SIZE]
    server = socket.create_server(("", PORT + RANK % PER_HOST), backlog=64)
    made = []
    for peer in peers:
        while peer < RANK:
            try:
                address = (sys.argv[2 + peer // PER_HOST], PORT + peer % PER_HOST)
                made.append(socket.create_connection(address))
                break
            except OSError:
                time.sleep(0.5)
    return made + [server.accept()[0] for peer in peers if peer > RANK]


def all_reduce(sockets: list[socket.socket]) -> None:
    """Exchange a message with each peer, as a barrier that waits for all."""
    for one in sockets:
        one.sendall(bytes(4096))
    waiting = selectors.DefaultSelector()
    for one in sockets:
        waiting.register(one, selectors.EVENT_READ)
    left = dict.fromkeys(sockets, 4096)
    while left:
        for key, _ in waiting.select():
            one = key.fileobj
            left[one] -= len(one.recv(left[one]))  # type: ignore[index, union-attr]
            if not left[one]:  # type: ignore[index]
                del left[one]  # type: ignore[arg-type]
                waiting.unregister(one)


def load(path: str) -> bytes:
    return Path(path).read_bytes()


def train(sockets: list[socket.socket], stuck: int) -> None:
    for step in range(1, 1_000_000):
        if step > 10 and stuck == RANK:
            load("/tmp/stand-in-pipe")
        if step > 10 and stuck < 0:
            time.sleep(100_000)
        time.sleep(0.2)
        all_reduce(sockets)
        if RANK == 0:
            print(f"step {step} loss 0.5", flush=True)


def main() -> None:
    stuck = int(sys.argv[1])
    if stuck == RANK:
        os.mkfifo("/tmp/stand-in-pipe")
    for _ in range(THREADS):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    train(connect(), stuck)


if __name__ == "__main__":
    main()
