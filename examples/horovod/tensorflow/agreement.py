"""What all processes must know the same, how they fail together (one that fails alone
leaves the others waiting for it), and how they show where they wait."""

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
    """What went wrong on this process, in one line for the user."""


class CommonProblem(Problem):
    """What went wrong on all processes: rank 0 tells."""


EXPECTED = (Problem, DataError, OSError, ValueError, tf.errors.OpError)


def together(compute: Callable[[], Value]) -> Value:
    """The result of `compute`. Raises CommonProblem on all processes when it fails on any."""
    value, failure = _outcome(compute)
    # Horovod: everyone learns what the others met, in the order of their ranks.
    failures = _tellers(hvd.allgather_object((socket.gethostname(), failure)))
    failures.pop("", None)
    if failures:
        texts = failures if one_node() else [f"{who}: {text}" for text, who in failures.items()]
        raise CommonProblem("; ".join(texts))
    return value


def same_everywhere(compute: Callable[[], Value]) -> Value:
    """The result of `compute`, when it reads the same (`str`) on every process.

    Raises CommonProblem when it differs, or fails on any of them.
    """
    value = together(compute)
    found = _tellers(hvd.allgather_object((socket.gethostname(), str(value))))
    if len(found) > 1:
        told = "; ".join(f"{who}: {text}" for text, who in found.items())
        raise CommonProblem(f"the processes differ: {told}")
    return value


def _tellers(told: list[tuple[str, str]]) -> dict[str, str]:
    """Each text once, with the first rank that told it: (host, text) of all ranks in their order.

    Hosts may share a name, and so one host's ranks may differ: a rank is what there is one of.
    """
    first: dict[str, str] = {}
    for rank, (host, text) in enumerate(told):
        first.setdefault(text, f"rank {rank} on {host}")
    return first


def from_rank_0(compute: Callable[[], Value]) -> Value:
    """The result of `compute` on rank 0, for everyone. Raises CommonProblem when it fails."""
    outcome = _outcome(compute) if hvd.rank() == 0 else None
    value, failure = hvd.broadcast_object(outcome)  # Horovod: from rank 0 to everyone.
    if failure:
        raise CommonProblem(failure)
    return value


def _outcome(compute: Callable[[], Value]) -> tuple[Value, str]:
    try:
        return compute(), ""
    except EXPECTED as error:
        return None, one_line(error)


def end(error: BaseException) -> NoReturn:
    """Tell the user in one line what was wrong, and end with status 1."""
    text = one_line(error)
    if not hvd.is_initialized() or not isinstance(error, CommonProblem):
        where = f"{socket.gethostname()}: " if hvd.is_initialized() and not one_node() else ""
        # Who only heard that another process has ended leaves the telling to that one.
        sys.exit(1 if "Horovod has been shut down" in text else f"error: {where}{text}")
    if hvd.rank() == 0:
        print(f"error: {text}", file=sys.stderr, flush=True)
    # Horovod: mpirun ends everyone at the first exit, so nobody goes before rank 0 has told.
    hvd.allreduce(tf.constant(0.0), name="told")
    sys.exit(1)


def one_node() -> bool:
    return bool(hvd.size() == hvd.local_size())


def one_line(error: BaseException) -> str:
    text = reason(error) if isinstance(error, tf.errors.OpError) else str(error)
    return text.strip().partition("\n")[0] or type(error).__name__


def offer_stacks() -> None:
    """Let `clusterctl diagnose` see where this process is, also where the kernel lets nobody look
    into it: on a signal that nothing else uses, its stacks are written to memory that it shares."""
    if hasattr(os, "memfd_create"):
        memory = os.memfd_create("clusterctl-stacks")
        # Whoever asks empties it first.
        fcntl.fcntl(memory, fcntl.F_SETFL, os.O_APPEND)
        faulthandler.register(signal.SIGRTMIN + 7, memory)
