"""Runs on each node, started by torchrun: one rank, with its number as a mark around its output.

    PROGRAM ARGUMENTS...        replaces itself by that Python program, on its share of the
                                node's processors (affinity.py)
    relay RANK OUT ERR IN IN    a second process, which adds the marks and ends when no process can
                                write to it any more. The numbers are file descriptors

All ranks of a node share torchrun's output. The head node removes the marks (output.py).

mpirun sends KILL to a torchrun that waits for ranks which ignore TERM. PR_SET_PDEATHSIG (prctl(2))
stops the ranks together with torchrun, so that none is left on any node.
"""

from __future__ import annotations

import os
import select
import signal
import sys

from clusterctl.node.affinity import bind_near_gpu
from clusterctl.node.death_signal import set_death_signal
from clusterctl.node.procfs import JOB_VARIABLE

# With two marks less than PIPE_BUF (4096 bytes): the kernel does not split such a write to a pipe.
READ_BYTES = 4000


def main() -> None:
    """Start the relay, then become the rank."""
    if sys.argv[1] == "relay":
        relay(sys.argv[2], [int(word) for word in sys.argv[3:]])
        return
    start_relay()
    bind_near_gpu(single_uses_all=True)
    set_death_signal(signal.SIGKILL)
    os.execv(sys.executable, [sys.executable, "-u", *sys.argv[1:]])


def start_relay() -> None:
    """Start the relay as a grandchild, so that no rank waits for it. Its environment has nothing of
    a rank's but the job's ID: nothing takes it for a rank."""
    outputs = [os.dup(1), os.dup(2)]
    pipes = [os.pipe(), os.pipe()]
    if not os.fork():
        if os.fork():
            os._exit(0)
        files = [*outputs, *(reads for reads, _ in pipes)]
        for fd in files:
            os.set_inheritable(fd, True)
        words = ["relay", os.environ["RANK"], *map(str, files)]
        job = {name: os.environ[name] for name in (JOB_VARIABLE,) if name in os.environ}
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.execve(sys.executable, [sys.executable, "-ISu", sys.argv[0], *words], job)
    os.wait()
    for fd, (_, writes) in zip((1, 2), pipes):
        os.dup2(writes, fd)


def relay(rank: str, files: list[int]) -> None:
    """Pass on the rank's two outputs with marks, until both have ended."""
    outputs = dict(zip(files[2:], files[:2]))
    while outputs:
        for fd in select.select([*outputs], [], [])[0]:
            content = os.read(fd, READ_BYTES)
            if content:
                begin = f"\x1e<rank{rank}>\x1f".encode()
                os.write(outputs[fd], begin + content + b"\x1e<rank>\x1f")
            else:
                del outputs[fd]
