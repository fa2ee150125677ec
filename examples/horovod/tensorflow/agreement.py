"""Agreement between processes: values that all must share, a common end, and stacks on request.

If one process ended alone, the others would wait for it in Horovod. So all processes exchange
their failures and end together.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import signal
import socket
import sys
from typing import Callable, NoReturn, TypeVar

import horovod.tensorflow as hvd
import tensorflow as tf
from records import DataError, reason

Value = TypeVar("Value")


class Problem(Exception):
    """An error on this process, as one line for the user."""


class CommonProblem(Problem):
    """An error that ends all processes. Rank 0 prints it."""


# Errors that are printed as one line, without a traceback.
EXPECTED = (Problem, DataError, OSError, ValueError, tf.errors.OpError)


def together(compute: Callable[[], Value]) -> Value:
    """Return the result of `compute`. If it fails on any process, raise CommonProblem on all."""
    value, failure = _outcome(compute)
    # Horovod: every process receives the failures of all, in the order of the ranks.
    failures = _tellers(hvd.allgather_object((socket.gethostname(), failure)))
    failures.pop("", None)  # the text of processes that did not fail
    if failures:
        texts = failures if one_node() else [f"{who}: {text}" for text, who in failures.items()]
        raise CommonProblem("; ".join(texts))
    return value


def same_everywhere(compute: Callable[[], Value]) -> Value:
    """Return the result of `compute` if its text (`str`) is the same on every process.

    Raise CommonProblem if the texts differ, or if `compute` fails on any process.
    """
    value = together(compute)
    found = _tellers(hvd.allgather_object((socket.gethostname(), str(value))))
    if len(found) > 1:
        told = "; ".join(f"{who}: {text}" for text, who in found.items())
        raise CommonProblem(f"the processes differ: {told}")
    return value


def _tellers(told: list[tuple[str, str]]) -> dict[str, str]:
    """Map each distinct text to the first rank that sent it. `told`: (host, text) of each rank.

    The name has the rank as well as the host: hosts may have the same name.
    """
    first: dict[str, str] = {}
    for rank, (host, text) in enumerate(told):
        first.setdefault(text, f"rank {rank} on {host}")
    return first


def from_rank_0(compute: Callable[[], Value]) -> Value:
    """Return rank 0's result of `compute` on every process. Raise CommonProblem if it fails."""
    outcome = _outcome(compute) if hvd.rank() == 0 else None
    value, failure = hvd.broadcast_object(outcome)  # Horovod: from rank 0 to all processes.
    if failure:
        raise CommonProblem(failure)
    return value


def _outcome(compute: Callable[[], Value]) -> tuple[Value, str]:
    """Return the result of `compute` and "", or None and its error as one line."""
    try:
        return compute(), ""
    except EXPECTED as error:
        return None, one_line(error)


def end(error: BaseException) -> NoReturn:
    """Print the error as one line for the user, and exit with status 1."""
    text = one_line(error)
    if not hvd.is_initialized() or not isinstance(error, CommonProblem):
        where = f"{socket.gethostname()}: " if hvd.is_initialized() and not one_node() else ""
        # Horovod fails with this text after another process ended: that process prints the cause.
        sys.exit(1 if "Horovod has been shut down" in text else f"error: {where}{text}")
    if hvd.rank() == 0:
        print(f"error: {text}", file=sys.stderr, flush=True)
    # Horovod: mpirun kills all processes at the first exit, so all wait until rank 0 has printed.
    hvd.allreduce(tf.constant(0.0), name="told")
    sys.exit(1)


def one_node() -> bool:
    return bool(hvd.size() == hvd.local_size())


def one_line(error: BaseException) -> str:
    """Return the first line of the error's text, or the name of its type if it has no text."""
    text = reason(error) if isinstance(error, tf.errors.OpError) else str(error)
    return text.strip().partition("\n")[0] or type(error).__name__


def offer_stacks() -> None:
    """Write this process's Python stacks to a file in memory on signal SIGRTMIN + 7.

    `clusterctl diagnose` sends this signal and reads the file if the kernel does not allow reading
    the process itself. Nothing else uses the signal.
    """
    if hasattr(os, "memfd_create"):
        memory = os.memfd_create("clusterctl-stacks")
        # The reader truncates the file before each request: append, so that no hole is left.
        fcntl.fcntl(memory, fcntl.F_SETFL, os.O_APPEND)
        faulthandler.register(signal.SIGRTMIN + 7, memory)
